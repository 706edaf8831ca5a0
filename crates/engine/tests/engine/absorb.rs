//! What a drafter absorbs late, and what the target need not keep for it.

use crate::common::{fixed, fixture, ids, pair, plain, prompt, request};
use device::{Cpu, Threads};
use engine::draft::{DflashDrafter, Draft, DraftRow, Drafter, Scripted};
use engine::{
    Choosing, Engine, EngineOptions, Features, Parts, Request, Speculation, Target, Vocabulary,
};
use kernels::choose::LogProbs;
use kernels::kv_store::KvFormat;
use model::Precision;
use model::checkpoint::Checkpoint;
use model::decoder::Decoder;
use model::dflash::Dflash;
use model::pass::Pass;
use std::sync::{Arc, Mutex};

/// When a drafter computes the KV of what it absorbs.
#[derive(Clone, Copy)]
enum When {
    AtOnce,
    WhenItMust,
}

/// Proposals as they were made: request, length of its context, tokens.
type Proposals = Vec<(u64, usize, Vec<u32>)>;

/// The DFlash drafter, with its proposals written down.
struct Witness {
    drafter: DflashDrafter,
    when: When,
    proposals: Arc<Mutex<Proposals>>,
}

impl Drafter for Witness {
    fn block(&self) -> usize {
        self.drafter.block()
    }

    fn taps(&self) -> &[usize] {
        self.drafter.taps()
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.drafter.propose(rows, out);
        let mut proposals = self.proposals.lock().unwrap();
        let made =
            rows.iter().zip(&*out).map(|(row, out)| (row.request, row.len, out.tokens.clone()));
        proposals.extend(made);
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        self.drafter.absorb(features, positions, slots);
        match self.when {
            When::AtOnce => self.drafter.settle(),
            When::WhenItMust => {}
        }
    }

    fn settle(&mut self) {
        self.drafter.settle();
    }
}

const PAGE: usize = 4;
const PAGES: usize = 40;

fn witness(when: When, proposals: &Arc<Mutex<Proposals>>) -> Witness {
    let cpu = Cpu::new(2);
    let files = Checkpoint::open(&fixture("qwen3")).expect("the target opens");
    let target = Decoder::load(&cpu, &files, Precision::AsStored).expect("the target loads");
    let draft = fixture("dflash");
    let model = Dflash::load(&cpu, &draft, files.config(), None, Precision::Int8)
        .expect("the drafter loads");
    let allowed = target.config().vocab;
    let kv = model.kv_pool(KvFormat::F32, PAGES, PAGE);
    let drafter = DflashDrafter::new(cpu, model, Arc::new(target), kv, allowed);
    Witness { drafter, when, proposals: proposals.clone() }
}

/// Requests that draft, that only keep context, and that do neither, in waves: later ones find the
/// pages of earlier ones, or write over them.
fn waves() -> Vec<Vec<Request>> {
    let speculation = |wave: usize, i: usize| match (wave, i % 4) {
        (0, _) => Speculation::Width(1),
        (_, 3) => Speculation::Off,
        (_, i) => Speculation::Width(1 + 2 * i),
    };
    let one = |wave: usize, i: usize| Request {
        speculation: speculation(wave, i),
        ..request(&prompt((i % 5) as u64, 9 + 5 * (i % 3)), 30)
    };
    (0..4).map(|wave| (0..8).map(|i| one(wave, i)).collect()).collect()
}

/// Absorbing late proposes, bit for bit, what absorbing at once does: also from pages whose first
/// owner never drafted, and from pages that were given to another before their content was
/// absorbed.
#[test]
fn proposals_do_not_depend_on_when_tokens_are_absorbed() {
    let run = |when| {
        let proposals = Arc::default();
        let options = EngineOptions {
            page_size: PAGE,
            kv_tokens: Some(PAGE * PAGES),
            max_running: 6,
            chunk: 24,
            ..fixed()
        };
        let drafter = Box::new(witness(when, &proposals));
        let mut engine = Engine::with_drafter(pair("qwen3", None), drafter, options);
        let outputs: Vec<_> =
            waves().into_iter().map(|wave| ids(&engine.run(wave).expect("runs"))).collect();
        let tally = engine.tally();
        assert!(tally.retractions > 0 && tally.cached_tokens > 0, "pages change hands");
        drop(engine);
        (outputs, Arc::try_unwrap(proposals).expect("the engine is gone").into_inner().unwrap())
    };
    let (at_once, late) = (run(When::AtOnce), run(When::WhenItMust));
    assert!(at_once.1.len() > 50);
    assert_eq!(at_once.1, late.1, "the proposals");
    for (outputs, wave) in late.0.iter().zip(waves()) {
        assert_eq!(*outputs, ids(&plain("qwen3", &wave)));
    }
}

/// A target that writes down what it was asked to keep.
struct Counter {
    kept: Arc<Mutex<Vec<(usize, usize)>>>,
    features: Vec<f32>,
}

impl Target for Counter {
    fn forward(&mut self, pass: &Pass, taps: &[usize]) {
        self.kept.lock().unwrap().push((pass.rows(), taps.len()));
        self.features = vec![0.0; pass.rows() * taps.len()];
    }

    fn features(&self) -> Features<'_> {
        Features::Host(&self.features)
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        out.iter_mut().zip(rows.draws).for_each(|(out, draw)| *out = draw.position % 7);
    }

    fn log_probs(&self, _: usize, _: u32, _: usize) -> LogProbs {
        LogProbs::default()
    }

    fn score(&mut self, rows: &[usize], _: &[u32], _: usize) -> Vec<LogProbs> {
        vec![LogProbs::default(); rows.len()]
    }
}

/// Ten tokens without text.
struct Ten;

impl Vocabulary for Ten {
    fn size(&self) -> usize {
        10
    }

    fn piece(&self, _: u32) -> &[u8] {
        b""
    }
}

/// A scripted drafter that wants features of two layers.
struct Wanting(Scripted<fn(u64, usize) -> u32>);

impl Drafter for Wanting {
    fn block(&self) -> usize {
        self.0.block()
    }

    fn taps(&self) -> &[usize] {
        &[0, 1]
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.0.propose(rows, out);
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], _: &[u32]) {
        assert_eq!(features.host().len(), 2 * positions.len());
    }
}

/// A step in which nobody drafts or will draft keeps no features.
#[test]
fn features_are_kept_for_those_who_draft_only() {
    for (speculation, taps) in [(Speculation::Off, 0), (Speculation::Auto, 2)] {
        let kept = Arc::default();
        let parts = Parts {
            target: Box::new(Counter { kept: Arc::clone(&kept), features: Vec::new() }),
            drafter: Box::new(Wanting(Scripted::new(4, |_, at| at as u32 % 5))),
            vocabulary: Arc::new(Ten),
            context: 64,
            pages: 16,
            mask_id: None,
        };
        let options = EngineOptions { page_size: 16, max_running: 3, ..Default::default() };
        let mut engine = Engine::assemble(&Threads::new(), parts, options);
        let one = |i: u32| Request { speculation, ..request(&[i, 2, 3], 20) };
        let outputs = engine.run((0..3).map(one).collect()).expect("runs");
        let expected: Vec<u32> = (3..23).map(|at| at % 7).collect();
        assert!(outputs.iter().all(|output| output.ids() == expected));
        drop(engine);
        let kept = kept.lock().unwrap();
        assert!(!kept.is_empty() && kept.iter().all(|(_, asked)| *asked == taps), "{kept:?}");
    }
}
