//! Damaged files never panic, and whole ones come back as they were written.

use crate::common::gguf::{Gguf, Q4_0, Tensor, whole};
use crate::common::safetensors as st;
use kernels::format::Format;
use model::checkpoint::gguf::{Array, Value, parse};
use model::checkpoint::{Checkpoint, safetensors};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Files made and opened for each format.
const ROUNDS: u64 = 20_000;

/// SplitMix64: the same damage on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is at least 1.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// `bytes` with one to four bits flipped, bytes cut off, words made extreme, or pieces moved.
fn damage(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(3) {
        if out.is_empty() {
            break;
        }
        let at = random.below(out.len());
        match random.below(4) {
            0 => out[at] ^= 1 << random.below(8),
            1 => out.truncate(at),
            2 => {
                let extreme = [0, 1, u64::MAX, 1 << 63, 1 << 32][random.below(5)];
                let end = (at + 8).min(out.len());
                out[at..end].copy_from_slice(&extreme.to_le_bytes()[..end - at]);
            }
            _ => {
                let from = random.below(out.len());
                let length = random.below(64).min(out.len() - from);
                let piece = out[from..from + length].to_vec();
                let end = (at + random.below(16)).min(out.len());
                out.splice(at..end, piece);
            }
        }
    }
    out
}

/// Opens damaged copies; returns how many were still accepted. Every byte of an accepted tensor
/// is read.
fn survive(bytes: &[u8], open: impl Fn(Vec<u8>) -> Option<Checkpoint>) -> u64 {
    let mut random = Random(1);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let Some(checkpoint) = open(damage(&mut random, bytes)) else { continue };
        accepted += 1;
        let found: Vec<(String, Vec<usize>)> =
            checkpoint.tensors().map(|t| (t.name.to_owned(), t.shape.to_vec())).collect();
        for (name, shape) in found {
            let tensor = checkpoint.tensor(&name, &shape).unwrap();
            let elements = shape.iter().product();
            assert_eq!(tensor.format.bytes(elements), Some(tensor.data.len()));
        }
        checkpoint.config().rope.frequencies(checkpoint.config().head_dim);
    }
    accepted
}

#[test]
fn damaged_gguf_never_panics() {
    let tokens = Array::String(["a", "b", "ab", "c"].map(String::from).to_vec());
    let file = whole("llama")
        .pair("tokenizer.ggml.tokens", Value::Array(tokens))
        .pair("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; 4])))
        .build();
    let path = Path::new("damaged.gguf");
    let accepted = survive(&file, |bytes| Checkpoint::from_gguf(path, bytes).ok());
    // Damage to the weights alone goes unseen; damage to the structure must not.
    assert!((1..ROUNDS / 2).contains(&accepted), "{accepted} of {ROUNDS} were accepted");
}

#[test]
fn damaged_safetensors_never_panic() {
    let config = st::config("LlamaForCausalLM").to_string();
    let file = st::build(&[
        st::tensor("model.embed_tokens.weight", &[4, 8], 1.0),
        st::tensor("model.norm.weight", &[8], 1.0),
    ]);
    let path = Path::new("damaged");
    let accepted =
        survive(&file, |bytes| Checkpoint::from_safetensors(path, config.as_bytes(), bytes).ok());
    assert!((1..ROUNDS / 2).contains(&accepted), "{accepted} of {ROUNDS} were accepted");
}

#[test]
fn a_damaged_config_never_panics() {
    let config = st::with(
        st::config("Qwen3ForCausalLM"),
        json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1,
               "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    );
    let weights = st::build(&[st::tensor("model.embed_tokens.weight", &[4, 8], 1.0)]);
    let path = Path::new("damaged");
    let accepted = survive(config.to_string().as_bytes(), |bytes| {
        Checkpoint::from_safetensors(path, &bytes, weights.clone()).ok()
    });
    assert!((1..ROUNDS / 2).contains(&accepted), "{accepted} of {ROUNDS} were accepted");
}

#[test]
fn a_damaged_index_never_panics_and_never_leads_out() {
    let index = json!({"weight_map": {"a": "x-00001.safetensors", "b": "x-00002.safetensors"}});
    let index = index.to_string();
    let mut random = Random(2);
    for _ in 0..ROUNDS {
        let bytes = damage(&mut random, index.as_bytes());
        let Ok(index) = safetensors::parse_index(Path::new("index"), &bytes) else { continue };
        for shard in index.shards.keys() {
            assert_eq!(Path::new("folder").join(shard).parent(), Some(Path::new("folder")));
        }
    }
}

/// Any metadata value.
fn value() -> impl Strategy<Value = Value> {
    let text = "[ -~é😀]{0,8}";
    let array = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..5).prop_map(Array::U8),
        proptest::collection::vec(any::<i16>(), 0..5).prop_map(Array::I16),
        proptest::collection::vec(any::<u64>(), 0..5).prop_map(Array::U64),
        proptest::collection::vec(-1e9f32..1e9, 0..5).prop_map(Array::F32),
        proptest::collection::vec(-1e9..1e9, 0..5).prop_map(Array::F64),
        proptest::collection::vec(any::<bool>(), 0..5).prop_map(Array::Bool),
        proptest::collection::vec(text, 0..5).prop_map(Array::String),
    ];
    let array = array
        .prop_recursive(2, 8, 3, |a| proptest::collection::vec(a, 0..3).prop_map(Array::Array));
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e9f32..1e9).prop_map(Value::F32),
        (-1e9..1e9).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        text.prop_map(Value::String),
        array.prop_map(Value::Array),
    ]
}

/// Shapes, outermost first, that are small.
fn shape() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(1u64..4, 1..=4)
}

proptest! {
    #[test]
    fn gguf_comes_back_as_written(
        pairs in proptest::collection::btree_map("[a-z.]{1,12}", value(), 0..6),
        shapes in proptest::collection::vec((shape(), any::<bool>()), 0..5),
        power in 3u32..8,
        version in 2u32..=3,
    ) {
        let mut file = Gguf { version, alignment: 1 << power, ..Gguf::new() };
        let mut pairs: BTreeMap<String, Value> = pairs;
        pairs.insert("general.alignment".into(), Value::U32(1 << power));
        file.pairs = pairs.clone().into_iter().collect();
        let mut formats = Vec::new();
        for (index, (shape, quantized)) in shapes.iter().enumerate() {
            let name = format!("t{index}");
            file = match quantized {
                false => file.tensor(&name, shape),
                true => {
                    let mut dimensions: Vec<u64> = shape.iter().rev().copied().collect();
                    dimensions[0] *= 32;
                    let bytes = dimensions.iter().product::<u64>() as usize / 32 * 18;
                    let data = (0..bytes).map(|byte| byte as u8).collect();
                    file.raw(Tensor { name, dimensions, kind: Q4_0, data, offset: None })
                }
            };
            formats.push(if *quantized { Format::Q4_0 } else { Format::F32 });
        }
        let bytes = file.build();
        let parsed = parse(Path::new("file.gguf"), &bytes).unwrap();
        prop_assert_eq!(parsed.version, version);
        let read: BTreeMap<String, Value> =
            parsed.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
        prop_assert_eq!(read, pairs);
        prop_assert_eq!(parsed.tensors.len(), file.tensors.len());
        for ((read, written), format) in parsed.tensors.iter().zip(&file.tensors).zip(formats) {
            prop_assert_eq!(&read.name, &written.name);
            let shape: Vec<u64> = read.shape.iter().rev().map(|&d| d as u64).collect();
            prop_assert_eq!(&shape, &written.dimensions);
            prop_assert_eq!(read.format, format);
            prop_assert_eq!(&bytes[read.range.clone()], &written.data[..]);
        }
    }

    #[test]
    fn safetensors_come_back_as_written(
        tensors in proptest::collection::vec(("[a-z.]{1,12}", shape(), 0usize..3), 0..6),
    ) {
        let mut seen = BTreeSet::new();
        let written: Vec<st::Tensor> = tensors
            .into_iter()
            .filter(|(name, _, _)| seen.insert(name.clone()))
            .map(|(name, shape, dtype)| {
                let shape: Vec<usize> = shape.into_iter().map(|d| d as usize).collect();
                let (dtype, width) = [("F32", 4), ("F16", 2), ("BF16", 2)][dtype];
                let bytes = shape.iter().product::<usize>() * width;
                st::Tensor { name, dtype, shape, data: (0..bytes).map(|b| b as u8).collect() }
            })
            .collect();
        let bytes = st::build(&written);
        let read = safetensors::parse(Path::new("file.safetensors"), &bytes).unwrap();
        prop_assert_eq!(read.len(), written.len());
        for (read, written) in read.iter().zip(&written) {
            prop_assert_eq!(&read.name, &written.name);
            prop_assert_eq!(&read.shape, &written.shape);
            prop_assert_eq!(read.format.name(), written.dtype);
            prop_assert_eq!(&bytes[read.range.clone()], &written.data[..]);
        }
    }
}
