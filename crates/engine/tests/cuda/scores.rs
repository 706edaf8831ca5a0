//! Log-probabilities of a card: those of the CPU in floats to within bf16, and the same however they are
//! asked for.

use crate::{fixed, fixture, pair, prompt, request, run};
use device::Cpu;
use engine::{Engine, EngineOptions, Output, Pair, PairOptions, PromptLogProbs, Request};
use kernels::choose::LogProbs;
use model::Precision;

const TOP: usize = 3;

fn reporting(from: usize, request: Request) -> Request {
    Request { prompt_logprobs: Some(PromptLogProbs { from, top: TOP }), ..request }
}

fn found(output: &Output) -> Vec<LogProbs> {
    output.prompt.iter().filter_map(|token| token.logprobs.clone()).collect()
}

/// Each token of a prompt is as likely as the CPU says with weights in floats. On the way to a logit
/// numbers are rounded to bf16, by one part in 2⁹ at most, in a dozen places a layer: their sum, of the
/// largest logarithm there is, is the most that two can be apart, and its root what they are in the mean.
#[test]
fn prompts_are_as_likely_as_in_floats() {
    for target in ["llama3", "mistral", "qwen2", "qwen3"] {
        let asked = reporting(0, request(&prompt(3, 100), 1));
        let options = PairOptions { precision: Precision::Float, ..PairOptions::default() };
        let on_cpu = Pair::load(&Cpu::new(2), &fixture(target), None, &options);
        let on_cpu = on_cpu.expect("the pair loads");
        let layers = on_cpu.config().layers;
        let mut on_cpu = Engine::new(on_cpu, fixed());
        let want = found(&run(&mut on_cpu, std::slice::from_ref(&asked))[0]);
        let mut on_card = Engine::new(pair(target, None), fixed());
        let got = found(&run(&mut on_card, &[asked])[0]);
        assert_eq!((got.len(), want.len()), (99, 99));
        let apart = got.iter().zip(&want).map(|(a, b)| (a.chosen - b.chosen).abs());
        let (worst, mean) = (apart.clone().fold(0.0, f32::max), apart.sum::<f32>() / 99.0);
        let largest = want.iter().fold(0.0, |most: f32, found| most.max(found.chosen.abs()));
        let roundings = (12 * layers + 2) as f32;
        let (most, usual) = (roundings / 512.0 * largest, roundings.sqrt() / 512.0 * largest);
        println!(
            "{target}: log-probabilities apart: mean {mean:.4} ({usual:.4} allowed), most {worst:.4} \
             ({most:.4} allowed)"
        );
        assert!(worst <= most && mean <= usual, "{target}: too far apart");
    }
}

/// A prompt's token is as likely, bit for bit, as the same token when it was chosen; drafted or not.
#[test]
fn a_prompt_is_as_likely_as_the_same_text_generated() {
    let asked = Request { logprobs: Some(TOP), ..request(&prompt(1, 20), 40) };
    let mut plain = Engine::new(pair("qwen3", None), fixed());
    let output = run(&mut plain, std::slice::from_ref(&asked)).remove(0);
    let told = |output: &Output| -> Vec<LogProbs> {
        output.tokens.iter().map(|token| token.logprobs.clone().expect("asked for")).collect()
    };
    let (generated, text) = (told(&output), [prompt(1, 20), output.ids()].concat());
    for chunk in [2, 7, 64, 512] {
        let options = EngineOptions { chunk, width: 8, ..fixed() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
        let drafted = run(&mut engine, std::slice::from_ref(&asked)).remove(0);
        assert_eq!(told(&drafted), generated, "drafted, chunks of {chunk}");
        for _ in 0..2 {
            let again = run(&mut engine, &[reporting(20, request(&text, 6))]).remove(0);
            assert_eq!(found(&again), generated, "chunks of {chunk}");
        }
    }
}
