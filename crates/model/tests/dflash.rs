//! The DFlash drafter against its reference (`fixtures/dflash_reference.py`) on tiny drafters, and
//! the checks that a drafter belongs to its target.

use device::Cpu;
use kernels::choose::{Asked, Choices, Confidence, Draw, Kept, Shape, choose};
use kernels::kv_store::{KvFormat, KvPool};
use model::Precision;
use model::checkpoint::Checkpoint;
use model::config::ModelConfig;
use model::decoder::Decoder;
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::Pass;
use model::proposals::Proposals;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PAGE: usize = 4;
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    drafts: Vec<Draft>,
    #[serde(default)]
    drafts_is_causal_false: Vec<Draft>,
}

/// One draft pass over a context whose tapped features are given.
#[derive(Deserialize)]
struct Draft {
    anchor: u32,
    /// `[context, taps · hidden]`.
    taps: Vec<Vec<f32>>,
    /// `[block - 1, vocab]`.
    logits: Vec<Vec<f32>>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn target_config() -> ModelConfig {
    Checkpoint::open(&fixture("qwen3")).expect("the target opens").config().clone()
}

/// What the drafter thinks after absorbing `draft.taps`, `chunk` tokens at a time.
fn drafted(
    cpu: &Cpu,
    model: &Dflash,
    target: &Decoder,
    draft: &Draft,
    chunk: usize,
) -> DraftWorkspace {
    let context = draft.taps.len();
    let pages: Vec<u32> = (0..context.div_ceil(PAGE) as u32 + 1).rev().collect();
    let mut kv: KvPool = model.kv_pool(KvFormat::F32, pages.len(), PAGE);
    let mut w = DraftWorkspace::default();
    for (i, taps) in draft.taps.chunks(chunk).enumerate() {
        let mut rows = Pass::default();
        rows.push(&vec![0; taps.len()], i * chunk, &pages, PAGE);
        model.absorb(cpu, &mut w, &mut kv, &taps.concat(), &rows.positions, &rows.slots);
    }
    let block = model.config().block;
    let mut tokens = vec![model.config().mask_id; block];
    tokens[0] = draft.anchor;
    let mut pass = Pass::default();
    pass.push_block(&tokens, context, &pages);
    model.draft(cpu, &mut w, &kv, target, &pass);
    w
}

/// The logits of all that it proposes then.
fn logits(
    cpu: &Cpu,
    model: &Dflash,
    (target, proposals): (&Decoder, &Proposals),
    w: &mut DraftWorkspace,
) -> Vec<Vec<f32>> {
    let rows: Vec<usize> = (1..model.config().block).collect();
    let (draws, kept) = (vec![draw(0, 0.0); rows.len()], vec![Kept::Logits; rows.len()]);
    let confidence = Confidence::Untold;
    let asked = Asked { draws: &draws, shapes: &[], kept: &kept, confidence };
    let mut out = Choices::default();
    model.choose(cpu, w, (target, proposals), (&rows, &asked), &mut out);
    (0..rows.len()).map(|row| out.logits(row).to_vec()).collect()
}

fn draw(position: usize, temperature: f32) -> Draw {
    let position = position as u32;
    Draw { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3, position }
}

fn check(folder: &Path, drafts: &[Draft]) {
    let cpu = Cpu::new(2);
    let files = Checkpoint::open(&fixture("qwen3")).expect("the target opens");
    let target = Decoder::load(&cpu, &files, Precision::AsStored).expect("the target loads");
    let model = Dflash::load(&cpu, folder, files.config(), None, Precision::AsStored)
        .expect("the drafter loads");
    assert_eq!(model.unused(), Vec::<String>::new());
    assert!(!drafts.is_empty());
    let all = Proposals::Below(target.config().vocab);
    for draft in drafts {
        let got = |chunk| {
            let mut w = drafted(&cpu, &model, &target, draft, chunk);
            logits(&cpu, &model, (&target, &all), &mut w).concat()
        };
        let found = got(usize::MAX);
        let want = draft.logits.concat();
        let scale = want.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
        for (i, (g, w)) in found.iter().zip(&want).enumerate() {
            let error = (g - w).abs() / scale;
            assert!(error <= TOLERANCE, "context {}, logit {i}: {g} for {w}", draft.taps.len());
        }
        assert_eq!(found.len(), want.len());
        for chunk in [1, 3, 7] {
            assert!(found == got(chunk), "chunks of {chunk} change the draft");
        }
    }
}

fn golden(name: &str) -> Golden {
    let text = std::fs::read(fixture(name).join("golden.json")).expect("a golden file");
    serde_json::from_slice(&text).expect("a golden file")
}

#[test]
fn full_attention_looks_both_ways() {
    check(&fixture("dflash"), &golden("dflash").drafts);
}

#[test]
fn sliding_layers_look_behind_unless_the_file_says_otherwise() {
    let golden = golden("dflash-window");
    check(&fixture("dflash-window"), &golden.drafts);
    let changed = altered("dflash-window", |config| config["is_causal"] = json!(false));
    check(changed.path(), &golden.drafts_is_causal_false);
}

/// A copy of a drafter with another configuration.
fn altered(name: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let weights = "model.safetensors";
    std::fs::copy(fixture(name).join(weights), folder.path().join(weights)).expect("copies");
    let text = std::fs::read(fixture(name).join("config.json")).expect("reads");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    let text = serde_json::to_string(&config).expect("JSON");
    std::fs::write(folder.path().join("config.json"), text).expect("writes");
    folder
}

/// What loading says about a changed drafter.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let folder = altered("dflash", change);
    match Dflash::load(&Cpu::new(1), folder.path(), &target_config(), None, Precision::Int8) {
        Ok(_) => panic!("the drafter was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_drafter_for_another_target_is_refused_by_field() {
    let nested = |field: &'static str, value: Value| {
        move |config: &mut Value| config["dflash_config"][field] = value
    };
    let top = |field: &'static str, value: Value| move |config: &mut Value| config[field] = value;
    for (said, part) in [
        (refused(top("hidden_size", json!(128))), "hidden_size"),
        (refused(top("vocab_size", json!(1000))), "vocab_size"),
        (refused(top("num_target_layers", json!(30))), "num_target_layers"),
        (refused(top("num_target_layers", json!(null))), "num_target_layers"),
        (refused(top("block_size", json!(1))), "block_size"),
        (refused(top("block_size", json!(null))), "block_size"),
        (refused(nested("mask_token_id", json!(320))), "mask_token_id"),
        (refused(nested("mask_token_id", json!(-1))), "mask_token_id"),
        (refused(nested("mask_token_id", json!(null))), "mask_token_id"),
        (refused(nested("target_layer_ids", json!([0, 3]))), "target_layer_ids"),
        (refused(nested("target_layer_ids", json!([1, 0]))), "target_layer_ids"),
        (refused(nested("target_layer_ids", json!([]))), "target_layer_ids"),
        (refused(nested("block_sizes", json!([4, 6]))), "dflash_config.block_sizes"),
        (refused(nested("block_sizes", json!([1, 8]))), "dflash_config.block_sizes"),
        (refused(nested("block_sizes", json!([4, 4, 8]))), "dflash_config.block_sizes"),
        (refused(nested("block_sizes", json!([]))), "dflash_config.block_sizes"),
        (refused(nested("block_sizes", json!(8))), "dflash_config.block_sizes"),
        (refused(nested("proposed_ids", json!([5, 3]))), "dflash_config.proposed_ids"),
        (refused(nested("proposed_ids", json!([3, 3]))), "dflash_config.proposed_ids"),
        (refused(nested("proposed_ids", json!([3, 320]))), "dflash_config.proposed_ids"),
        (refused(nested("proposed_ids", json!([]))), "dflash_config.proposed_ids"),
        (refused(nested("proposed_ids", json!(3))), "dflash_config.proposed_ids"),
        (refused(nested("use_swa", json!(true))), "use_swa"),
        (refused(top("is_causal", json!("no"))), "is_causal"),
        (refused(top("num_attention_heads", json!(3))), "num_key_value_heads"),
        (refused(nested("target_layer_ids", json!([0, 1, 2]))), "fc.weight"),
    ] {
        assert!(said.contains(part), "{part} is not named in: {said}");
    }
}

/// The mask id may lie outside the tokenizer and the block size inside the nested section; both
/// are used as given. A narrower block may be asked for, a wider one is refused.
#[test]
fn the_drafters_own_settings_are_used_as_given() {
    let folder = altered("dflash", |config| {
        config["dflash_config"]["mask_token_id"] = json!(319);
        config["dflash_config"]["block_size"] = json!(8);
        config.as_object_mut().expect("an object").remove("block_size");
    });
    let load =
        |block| Dflash::load(&Cpu::new(1), folder.path(), &target_config(), block, Precision::Int8);
    let own = load(None).expect("loads");
    assert_eq!((own.config().block, own.config().mask_id), (8, 319));
    assert_eq!(load(Some(4)).expect("loads").config().block, 4);
    assert_eq!(own.config().blocks, [8]);
    let Err(error) = load(Some(32)) else { panic!("a block of 32 was taken") };
    assert!(error.to_string().contains("block_size"), "{error}");
}

/// A drafter may be asked for blocks from the narrowest that it was trained with to the widest, or to a
/// narrower one that is asked for.
#[test]
fn a_drafter_may_be_trained_with_several_blocks() {
    let folder = altered("dflash", |config| {
        config["dflash_config"]["block_sizes"] = json!([3, 8]);
    });
    let blocks = |block| {
        let drafter =
            Dflash::load(&Cpu::new(1), folder.path(), &target_config(), block, Precision::Int8);
        drafter.expect("loads").config().blocks.clone()
    };
    assert_eq!(blocks(None), [3, 4, 5, 6, 7, 8]);
    assert_eq!(blocks(Some(4)), [3, 4]);
    assert_eq!(blocks(Some(2)), [2], "narrower than it knows, but asked for");
}

/// Listed ids have the logits that the whole head gives them, but for the rounding of the drafter's weights; the others
/// have none, and ids that may not be chosen are not proposed.
#[test]
fn listed_ids_have_their_logits_of_the_whole_head() {
    for (precision, error) in [(Precision::AsStored, TOLERANCE), (Precision::Int8, 0.02)] {
        listed_as_whole(precision, error);
    }
}

/// `error` is a share of the largest logit.
fn listed_as_whole(precision: Precision, error: f32) {
    const ALLOWED: usize = 300;
    let ids: Vec<u32> = (0..320).filter(|id| id * id % 7 == 2).collect();
    let folder = altered("dflash", |config| config["dflash_config"]["proposed_ids"] = json!(ids));
    let cpu = Cpu::new(2);
    let files = Checkpoint::open(&fixture("qwen3")).expect("the target opens");
    let target = Decoder::load(&cpu, &files, Precision::AsStored).expect("the target loads");
    let model = Dflash::load(&cpu, folder.path(), files.config(), None, precision)
        .expect("the drafter loads");
    assert_eq!(model.config().proposed.as_deref(), Some(&ids[..]));
    let listed = model.proposals(&cpu, &target, ALLOWED);
    let expected: Vec<usize> =
        ids.iter().map(|&id| id as usize).filter(|&id| id < ALLOWED).collect();

    let draft = &golden("dflash").drafts[0];
    let mut w = drafted(&cpu, &model, &target, draft, usize::MAX);
    let all = Proposals::Below(target.config().vocab);
    let whole = logits(&cpu, &model, (&target, &all), &mut w);
    let some = logits(&cpu, &model, (&target, &listed), &mut w);
    let scale = whole.iter().flatten().fold(0.0, |a: f32, b| a.max(b.abs()));
    let mut by_id = vec![f32::NEG_INFINITY; whole.len() * ALLOWED];
    for ((whole, some), by_id) in whole.iter().zip(&some).zip(by_id.chunks_mut(ALLOWED)) {
        assert_eq!(some.len(), expected.len());
        for (&id, &got) in expected.iter().zip(some) {
            let want = whole[id];
            assert!((got - want).abs() <= error * scale, "id {id}: {got} for {want}");
            by_id[id] = got;
        }
    }
    let mut make = |asked: &Asked<'_>| {
        let (rows, mut out): (Vec<usize>, _) = ((1..=whole.len()).collect(), Choices::default());
        model.choose(&cpu, &mut w, (&target, &listed), (&rows, asked), &mut out);
        out.ids().to_vec()
    };
    choices_are_those_by_id(&cpu, (&by_id, ALLOWED), &mut make);
}

/// Greedy, with noise, and where an id is ruled out.
fn choices_are_those_by_id(
    cpu: &Cpu,
    (by_id, width): (&[f32], usize),
    make: &mut dyn FnMut(&Asked<'_>) -> Vec<u32>,
) {
    let rows = by_id.len() / width;
    let mut chosen = |temperature, additions| {
        let draws: Vec<Draw> = (0..rows).map(|row| draw(row, temperature)).collect();
        let shapes = vec![Shape { additions, ..Shape::default() }; rows];
        let mut by_ids = vec![0; rows];
        choose(cpu, by_id, width, width, &draws, &shapes, &mut by_ids);
        let confidence = Confidence::Told;
        let found = make(&Asked { draws: &draws, shapes: &shapes, kept: &[], confidence });
        assert_eq!(found, by_ids, "T {temperature}, {additions:?}");
        found
    };
    let greedy = chosen(0.0, &[]);
    chosen(1.0, &[]);
    let ruled_out = [(greedy[0], f32::NEG_INFINITY)];
    assert_ne!(chosen(0.0, &ruled_out)[0], greedy[0]);
}
