//! The default target against transformers, which computed in f32 on the same weights expanded.

use crate::{cpu, files};
use engine::{Engine, EngineOptions, Limits, Pair, PairOptions, Request, Speculation, Stops};
use kernels::choose::log_probs;
use kernels::kv_store::KvFormat;
use model::Precision;
use model::checkpoint::Checkpoint;
use model::decoder::{Decoder, Workspace};
use model::pass::Pass;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    output_logprobs: Vec<f32>,
    top1_top2_gap: Vec<f32>,
}

/// A forced output token: its log-probability here and there, and the best token here.
struct Forced {
    token: u32,
    best: u32,
    gap: f32,
    here: f32,
    there: f32,
}

/// Every output token of every golden, given the tokens before it.
fn forced(precision: Precision) -> Vec<Forced> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../fixtures/models/smollm2-135m.golden.json");
    let text = std::fs::read(path).expect("the golden file");
    let golden: Golden = serde_json::from_slice(&text).expect("a golden file");
    let (cpu, (target, _)) = (cpu(), files());
    let files = Checkpoint::open(&target).expect("the target opens");
    let decoder = Decoder::load(&cpu, &files, precision).expect("the target loads");
    let vocab = decoder.config().vocab;
    let mut result = Vec::new();
    for case in golden.cases {
        let ids: Vec<u32> = case.prompt_ids.iter().chain(&case.output_ids).copied().collect();
        let pages: Vec<u32> = (0..ids.len().div_ceil(16) as u32).collect();
        let (mut kv, mut w) =
            (decoder.kv_pool(KvFormat::F32, pages.len(), 16), Workspace::default());
        let mut pass = Pass::default();
        pass.push(&ids, 0, &pages, 16);
        decoder.forward(&cpu, &mut w, &mut kv, &pass, &[]);
        let first = case.prompt_ids.len() - 1;
        let rows: Vec<usize> = (first..ids.len() - 1).collect();
        let mut logits = Vec::new();
        decoder.logits(&cpu, &mut w, &rows, &mut logits);
        for (i, row) in logits.chunks_exact(vocab).enumerate() {
            let token = case.output_ids[i];
            let probs = log_probs(row, vocab, token, 1);
            result.push(Forced {
                token,
                best: probs.top[0].0,
                gap: case.top1_top2_gap[i],
                here: probs.chosen,
                there: case.output_logprobs[i],
            });
        }
    }
    assert!(result.len() > 200);
    result
}

/// With the weights expanded to f32, as the reference computed, only the order of sums differs.
#[test]
fn expanded_weights_give_the_references_tokens_and_probabilities() {
    for f in forced(Precision::Float) {
        assert_eq!(f.best, f.token, "the reference's gap is {}", f.gap);
        assert!((f.here - f.there).abs() < 2e-3, "{} for {}", f.here, f.there);
    }
}

/// With weights as stored, inputs of products are rounded to 8 bits in blocks of 32: a relative
/// error of about 0.5 % of each block's largest input, which a small model with large outliers
/// shows. The bounds are a little above what that arithmetic gives here, and far below what a
/// wrong scale or a lost block would.
#[test]
fn quantized_arithmetic_stays_near_the_reference() {
    let all = forced(Precision::AsStored);
    let n = all.len() as f32;
    let mean = all.iter().map(|f| (f.here - f.there).abs()).sum::<f32>() / n;
    let worst = all.iter().map(|f| (f.here - f.there).abs()).fold(0.0, f32::max);
    let (here, there) = all.iter().fold((0.0, 0.0), |(a, b), f| (a - f.here / n, b - f.there / n));
    let clear = all.iter().filter(|f| f.gap > 1.5).collect::<Vec<_>>();
    let wrong = clear.iter().filter(|f| f.best != f.token).count();
    let said = format!(
        "mean {mean}, worst {worst}, cross-entropy {here} for {there}, {wrong} of {} clear choices differ",
        clear.len()
    );
    println!("{said}");
    assert!(mean < 0.05 && worst < 0.6 && wrong == 0 && (here - there).abs() < 0.01, "{said}");
}

#[derive(Deserialize)]
struct DraftGolden {
    verify_width: usize,
    end_ids: Vec<u32>,
    cases: Vec<DraftCase>,
}

#[derive(Deserialize)]
struct DraftCase {
    prompt_ids: Vec<u32>,
    tokens: Vec<u32>,
    /// Drafts accepted by each verify pass.
    accepted: Vec<usize>,
}

/// With every weight in floats the drafter proposes, pass by pass, what the reference drafter
/// proposes: the same number of drafts is accepted.
#[test]
fn the_drafter_accepts_as_the_reference_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../fixtures/models/smollm2-dflash-golden.json");
    let text = std::fs::read(path).expect("the golden file");
    let golden: DraftGolden = serde_json::from_slice(&text).expect("a golden file");
    let (target, draft) = files();
    let options = PairOptions {
        precision: Precision::Float,
        draft_precision: Precision::Float,
        ..PairOptions::default()
    };
    let pair = Pair::load(&cpu(), &target, Some(&draft), &options).expect("the pair loads");
    let kv_tokens = Some(1024);
    let mut engine = Engine::new(pair, EngineOptions { kv_tokens, ..EngineOptions::default() });
    assert!(!golden.cases.is_empty());
    for case in golden.cases {
        let request = Request {
            stops: Stops { ids: golden.end_ids.clone(), strings: vec![] },
            limits: Limits { max_tokens: Some(case.tokens.len()), ..Limits::default() },
            speculation: Speculation::Width(golden.verify_width),
            ..Request::new(case.prompt_ids)
        };
        let output = engine.run(vec![request]).expect("runs").remove(0);
        // The reference keeps the id that ends a text.
        let ended = case.tokens.last().is_some_and(|last| golden.end_ids.contains(last));
        assert_eq!(output.ids(), case.tokens[..case.tokens.len() - usize::from(ended)]);
        let mut accepted = case.accepted;
        if let (true, Some((last, earlier))) = (ended, accepted.split_last_mut()) {
            // So it does with a draft of that id, which is no part of the engine's text.
            let before = 1 + earlier.iter().map(|accepted| accepted + 1).sum::<usize>();
            *last = (*last).min(output.ids().len() - before);
        }
        let mut histogram = vec![0; accepted.iter().max().map_or(0, |most| most + 1)];
        accepted.iter().for_each(|&accepted| histogram[accepted] += 1);
        assert_eq!(output.stats.accepted, histogram);
    }
}
