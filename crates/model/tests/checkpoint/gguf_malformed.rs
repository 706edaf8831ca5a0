//! GGUF files that break the format: each is refused with an error about the right field, soon.

use crate::common::gguf::{Gguf, Tensor, llama};
use crate::{refusal, says};
use model::checkpoint::Checkpoint;
use model::checkpoint::gguf::{Array, Value};
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens `bytes`, which must be refused within 100 ms. The quickest of three tries counts: the
/// machine may be busy.
fn refused(bytes: &[u8], parts: &[&str]) {
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let copy = bytes.to_vec();
        let start = Instant::now();
        let error = refusal(Checkpoint::from_gguf(Path::new("bad.gguf"), copy));
        quickest = quickest.min(start.elapsed());
        says(&error, &["bad.gguf"]);
        says(&error, parts);
        if quickest < Duration::from_millis(100) {
            return;
        }
    }
    panic!("refusing took {quickest:?}");
}

fn tensor(dimensions: &[u64]) -> Gguf {
    llama().raw(Tensor {
        name: "odd".into(),
        dimensions: dimensions.into(),
        kind: 0,
        data: vec![0; 32],
        offset: None,
    })
}

#[test]
fn dimensions_that_cannot_be() {
    refused(&tensor(&[0]).build(), &["odd", "dimension of 0"]);
    refused(&tensor(&[8, 0]).build(), &["odd", "dimension of 0"]);
    refused(&tensor(&[]).build(), &["odd", "0 dimensions"]);
    refused(&tensor(&[1; 5]).build(), &["odd", "5 dimensions"]);
    // The product of the elements wraps.
    refused(&tensor(&[1 << 32, 1 << 32]).build(), &["odd", "overflows"]);
    // The elements fit, their bytes wrap.
    refused(&tensor(&[1 << 62]).build(), &["odd", "overflows"]);
    // The bytes fit, and wrap once they are padded or placed.
    refused(&tensor(&[(1 << 62) - 1]).build(), &["odd", "overflows"]);
    refused(&tensor(&[1 << 40]).build(), &["odd", "missing"]);
}

#[test]
fn offsets_that_cannot_be() {
    let placed = |offset: u64| {
        let mut file = tensor(&[8]);
        file.tensors[1].offset = Some(offset);
        file.build()
    };
    refused(&placed(129), &["odd", "not a multiple of 32"]);
    refused(&placed(u64::MAX - 31), &["odd", "overflows"]);
    refused(&placed(1 << 50), &["odd", "missing"]);
    refused(&placed(96), &["odd", "lies over the bytes of token_embd.weight"]);
    let mut twice = tensor(&[8]);
    twice.tensors[1].name = "token_embd.weight".into();
    refused(&twice.build(), &["token_embd.weight", "twice"]);
    twice.tensors[1].name = "n".repeat(65);
    refused(&twice.build(), &["tensor 1", "65"]);
    twice.tensors[1].name = String::new();
    refused(&twice.build(), &["tensor 1", "0 bytes"]);
}

#[test]
fn alignment_that_cannot_be() {
    const KEY: &str = "general.alignment";
    for value in [0, 1, 3, 4, 24] {
        refused(&llama().pair(KEY, Value::U32(value)).build(), &[KEY, "power of two"]);
    }
    for value in [Value::U64(32), Value::I32(32), Value::F32(32.0), Value::String("32".into())] {
        refused(&llama().pair(KEY, value).build(), &[KEY, "UINT32"]);
    }
    for alignment in [8, 64, 4096] {
        let file = Gguf { alignment, ..llama().pair(KEY, Value::U32(alignment as u32)) };
        Checkpoint::from_gguf(Path::new("good.gguf"), file.build()).unwrap();
    }
}

#[test]
fn keys_that_cannot_be() {
    refused(&llama().pair("", Value::U8(0)).build(), &["metadata key 8", "empty"]);
    let long = "k".repeat(65_536);
    refused(&llama().pair(&long, Value::U8(0)).build(), &["metadata key 8", "65536"]);
    let twice = llama().pair("llama.block_count", Value::U32(2));
    refused(&twice.build(), &["llama.block_count", "twice"]);
}

/// A file whose only pair is `key` with these bytes for its value.
fn raw_value(value: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    bytes.extend(b"key");
    bytes.extend(value);
    bytes
}

#[test]
fn values_that_cannot_be() {
    // A value of this type whose first word is `word`.
    let scalar =
        |kind: u32, word: u64| raw_value(&[&kind.to_le_bytes()[..], &word.to_le_bytes()].concat());
    // Arrays in arrays of one element each; the innermost of this element type and count.
    let array = |depth: usize, element: u32, count: u64| {
        let outer = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(depth - 1);
        let inner = [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
        raw_value(&[&9u32.to_le_bytes()[..], &outer, &inner].concat())
    };
    // A string of 2^63 bytes, and of as many as an address can count.
    refused(&scalar(8, 1 << 63), &["key", "9223372036854775808"]);
    refused(&scalar(8, u64::MAX), &["key", "18446744073709551615"]);
    // Arrays of 2^63 bytes, numbers, strings, arrays.
    for element in [0, 5, 8, 9, 12] {
        refused(&array(1, element, 1 << 63), &["key", "room for 0"]);
    }
    refused(&scalar(13, 0), &["key", "type 13"]);
    refused(&array(1, 13, 1), &["key", "type 13"]);
    refused(&array(5, 0, 0), &["key", "nest"]);
    refused(&array(4, 0, 0), &["general.architecture", "missing"]);
    refused(&raw_value(&[7, 0, 0, 0, 2]), &["key", "0 or 1"]);
    refused(&raw_value(&[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xff]), &["key", "UTF-8"]);
    let nested = Array::Array(vec![Array::U8(vec![1]), Array::String(vec!["a".into()])]);
    let file = llama().pair("nested", Value::Array(nested.clone()));
    let opened = Checkpoint::from_gguf(Path::new("good.gguf"), file.build()).unwrap();
    assert_eq!(opened.gguf().unwrap().get("nested"), Some(&Value::Array(nested)));
}

#[test]
fn headers_that_cannot_be() {
    refused(b"", &["magic"]);
    refused(b"GGML\x03\0\0\0", &["magic", "not a GGUF"]);
    refused(&Gguf { version: 1, ..llama() }.build(), &["version", "is 1"]);
    refused(&Gguf { version: 4, ..llama() }.build(), &["version", "is 4"]);
    refused(&Gguf { version: 0, ..llama() }.build(), &["version", "is 0"]);
    refused(&Gguf { version: 3 << 24, ..llama() }.build(), &["version", "big endian"]);
    let mut bytes = llama().build();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&bytes, &["tensor_count"]);
    let mut bytes = llama().build();
    bytes[16..24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    refused(&bytes, &["metadata_kv_count"]);
    for version in [2, 3] {
        let file = Gguf { version, ..llama() };
        Checkpoint::from_gguf(Path::new("good.gguf"), file.build()).unwrap();
    }
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let bytes = llama().build();
    assert!(bytes.len() < 1024);
    for length in 0..bytes.len() {
        refused(&bytes[..length], &[]);
    }
    refused(&bytes[..bytes.len() - 1], &["token_embd.weight", "1 are missing"]);
}
