//! The default pair, which is fetched as the program fetches it.

use crate::questions::{QUESTIONS, files, requests};
use crate::{accepted, bytes, on_card, run, undrafted};
use engine::draft::Scripted;
use engine::{Engine, EngineOptions, Pair, Request, Speculation};

fn pair() -> Pair {
    let (target, draft) = files();
    on_card(&target, Some(&draft))
}

fn options() -> EngineOptions {
    EngineOptions { max_running: QUESTIONS.len(), kv_tokens: Some(2048), ..Default::default() }
}

#[test]
fn drafts_batches_and_chunks_change_no_byte() {
    for temperature in [0.0, 0.7, 1.0] {
        let loaded = pair();
        let requests = requests(&loaded, temperature, Speculation::Auto, 64);
        let mut engine = Engine::new(loaded, options());
        let truth = bytes(&run(&mut engine, &undrafted(&requests)));
        assert!(truth.iter().all(|(ids, text)| !ids.is_empty() && !text.is_empty()));
        for width in [2, 4, 8, 16] {
            let speculation = Speculation::Width(width);
            let wide: Vec<Request> =
                requests.iter().cloned().map(|r| Request { speculation, ..r }).collect();
            let outputs = run(&mut engine, &wide);
            assert_eq!(bytes(&outputs), truth, "T {temperature}, width {width}");
            assert!(accepted(&outputs) > 0, "no draft was ever accepted");
        }
        for (chunk, max_running, kv_tokens) in
            [(2, 6, 2048), (7, 1, 2048), (64, 3, 2048), (128, 6, 256)]
        {
            let kv_tokens = Some(kv_tokens);
            let options = EngineOptions { chunk, max_running, kv_tokens, ..options() };
            let mut engine = Engine::new(pair(), options);
            for round in 0..2 {
                let outputs = run(&mut engine, &requests);
                let what = format!("T {temperature}, chunks of {chunk}, {kv_tokens:?} tokens");
                assert_eq!(bytes(&outputs), truth, "{what}, round {round}");
            }
        }
        let random = |id: u64, at: usize| ((id * 31 + at as u64) * 7919 % 49152) as u32;
        let drafter = Box::new(Scripted::new(8, random));
        let mut engine = Engine::with_drafter(pair(), drafter, options());
        assert_eq!(bytes(&run(&mut engine, &requests)), truth, "T {temperature}, random drafts");
    }
}
