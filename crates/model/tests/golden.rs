//! The decoder against Hugging Face transformers (f32, eager attention) on tiny random
//! checkpoints of every family. `fixtures/README.md` says how the goldens were made.

use device::Cpu;
use kernels::kv_store::{KvFormat, KvPool};
use model::Precision;
use model::checkpoint::Checkpoint;
use model::decoder::{Decoder, Workspace};
use model::pass::Pass;
use serde::Deserialize;
use std::path::{Path, PathBuf};

const PAGE: usize = 16;
/// Logits agree to this, relative to the largest logit.
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    positions: Positions,
    layer_outputs: LayerOutputs,
}

#[derive(Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    last_logits: Vec<f32>,
    greedy: Vec<u32>,
}

/// The most likely tokens after every position of one prompt.
#[derive(Deserialize)]
struct Positions {
    prompt: usize,
    top_ids: Vec<Vec<usize>>,
    top_logits: Vec<Vec<f32>>,
}

/// The residual stream after each layer: `[layer][position][hidden]`.
#[derive(Deserialize)]
struct LayerOutputs {
    prompt: usize,
    states: Vec<Vec<Vec<f32>>>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models")
}

fn golden(file: &str) -> Golden {
    let path = fixtures().join(file);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("a golden file")
}

/// A decoder with one sequence's memory.
struct Runner {
    cpu: Cpu,
    decoder: Decoder,
    workspace: Workspace,
    kv: KvPool,
    pages: Vec<u32>,
    len: usize,
}

impl Runner {
    fn open(path: &str, precision: Precision) -> Runner {
        let cpu = Cpu::new(2);
        let files = Checkpoint::open(&fixtures().join(path)).expect("the checkpoint opens");
        let decoder = Decoder::load(&cpu, &files, precision).expect("the weights load");
        assert_eq!(files.unused(), Vec::<String>::new(), "every tensor has a use");
        let kv = decoder.kv_pool(KvFormat::F32, 16, PAGE);
        // Pages out of order: only the page table knows where a token lies.
        let pages = (0..16).rev().collect();
        Runner { cpu, decoder, workspace: Workspace::default(), kv, pages, len: 0 }
    }

    /// Computes `ids` on top of what is there and returns the logits of every row.
    fn logits(&mut self, ids: &[u32], taps: &[usize]) -> Vec<Vec<f32>> {
        let mut pass = Pass::default();
        pass.push(ids, self.len, &self.pages, PAGE);
        self.len += ids.len();
        self.decoder.forward(&self.cpu, &mut self.workspace, &mut self.kv, &pass, taps);
        let (mut out, rows) = (Vec::new(), (0..ids.len()).collect::<Vec<_>>());
        self.decoder.logits(&self.cpu, &mut self.workspace, &rows, &mut out);
        out.chunks_exact(self.decoder.config().vocab).map(<[f32]>::to_vec).collect()
    }

    fn restart(&mut self) {
        self.len = 0;
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |a: f32, b| a.max(b.abs()))
}

fn argmax(values: &[f32]) -> u32 {
    let best = (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]));
    best.expect("a row has logits") as u32
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    let scale = largest(want);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (g - w).abs() / scale;
        assert!(error <= TOLERANCE, "{what}, entry {i}: {g} for {w}, error {error}");
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

/// Logits of prompts of 1 to 100 tokens, greedy continuations, and layer outputs.
fn check(path: &str, golden_file: &str, precision: Precision) {
    let golden = golden(golden_file);
    let mut runner = Runner::open(path, precision);
    for prompt in &golden.prompts {
        runner.restart();
        let mut row = runner.logits(&prompt.ids, &[]).pop().expect("one row a token");
        let what = format!("{path}, prompt of {}", prompt.ids.len());
        assert_close(&row, &prompt.last_logits, &what);
        for (i, &want) in prompt.greedy.iter().enumerate() {
            assert_eq!(argmax(&row), want, "{what}, greedy token {i}");
            row = runner.logits(&[want], &[]).remove(0);
        }
    }
    runner.restart();
    let positions = &golden.positions;
    let rows = runner.logits(&golden.prompts[positions.prompt].ids, &[]);
    for ((row, ids), want) in rows.iter().zip(&positions.top_ids).zip(&positions.top_logits) {
        let got: Vec<f32> = ids.iter().map(|&id| row[id]).collect();
        assert_close(&got, want, path);
        assert_eq!(argmax(row), ids[0] as u32);
    }
    runner.restart();
    check_taps(&mut runner, &golden);
}

/// Tapped features are the outputs of the layers, before the final norm.
fn check_taps(runner: &mut Runner, golden: &Golden) {
    let states = &golden.layer_outputs.states;
    let taps: Vec<usize> = (0..states.len()).collect();
    let ids = &golden.prompts[golden.layer_outputs.prompt].ids;
    runner.logits(ids, &taps);
    let hidden = states[0][0].len();
    let features = runner.workspace.features();
    for (position, row) in features.chunks_exact(taps.len() * hidden).enumerate() {
        for (layer, got) in row.chunks_exact(hidden).enumerate() {
            let what = format!("layer {layer}, position {position}");
            assert_close(got, &states[layer][position], &what);
        }
    }
    assert_eq!(features.len(), ids.len() * taps.len() * hidden);
}

#[test]
fn llama3_with_scaled_rope() {
    check("llama3", "llama3/golden.json", Precision::AsStored);
}

/// Expanded to floats, since CPUs with products of `bf16` round their inputs to it too.
#[test]
fn llama3_in_bf16_shards() {
    check("llama3-bf16", "llama3-bf16/golden.json", Precision::Float);
}

#[test]
fn mistral_with_a_sliding_window() {
    check("mistral", "mistral/golden.json", Precision::AsStored);
}

#[test]
fn qwen2_with_biases_and_tied_head() {
    check("qwen2", "qwen2/golden.json", Precision::AsStored);
}

#[test]
fn qwen3_with_head_norms_and_free_head_size() {
    check("qwen3", "qwen3/golden.json", Precision::AsStored);
}

#[test]
fn gguf_rows_in_llamas_order_are_put_right() {
    check("llama3.gguf", "llama3/golden.json", Precision::AsStored);
}

/// Expanded to floats, block formats give what the reference computed from the same values.
#[test]
fn gguf_blocks_hold_the_references_values() {
    check("llama3-q8_0.gguf", "llama3-q8_0.golden.json", Precision::Float);
    check("llama3-q4_0.gguf", "llama3-q4_0.golden.json", Precision::Float);
    check("qwen2.gguf", "qwen2.golden.json", Precision::Float);
}
