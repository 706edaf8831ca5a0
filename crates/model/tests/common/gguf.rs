//! Writes GGUF files.

use model::checkpoint::gguf::{Array, Value};

/// Type numbers of the format.
pub(crate) const F32: u32 = 0;
/// 32 elements in 18 bytes.
pub(crate) const Q4_0: u32 = 2;

/// A GGUF file in the making. Fields may be set to what the format forbids.
#[derive(Clone, Debug)]
pub(crate) struct Gguf {
    pub(crate) version: u32,
    /// Alignment that the tensors get.
    pub(crate) alignment: usize,
    /// In file order; a key may be given twice.
    pub(crate) pairs: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

/// A tensor in the making.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Innermost first, as the file has them.
    pub(crate) dimensions: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
    /// Where the file should say that it lies, when not where it does.
    pub(crate) offset: Option<u64>,
}

impl Gguf {
    pub(crate) fn new() -> Gguf {
        Gguf { version: 3, alignment: 32, pairs: Vec::new(), tensors: Vec::new() }
    }

    pub(crate) fn pair(mut self, key: &str, value: Value) -> Gguf {
        self.pairs.push((key.into(), value));
        self
    }

    /// An F32 tensor of `shape`, outermost first, counting up from 0.
    pub(crate) fn tensor(self, name: &str, shape: &[u64]) -> Gguf {
        let elements: u64 = shape.iter().product();
        let data = (0..elements).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let dimensions = shape.iter().rev().copied().collect();
        self.raw(Tensor { name: name.into(), dimensions, kind: F32, data, offset: None })
    }

    pub(crate) fn raw(mut self, tensor: Tensor) -> Gguf {
        self.tensors.push(tensor);
        self
    }

    /// The value of `key`, replaced.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Gguf {
        self.pairs.retain(|(other, _)| other != key);
        self.pair(key, value)
    }

    /// Without `key`.
    pub(crate) fn without(mut self, key: &str) -> Gguf {
        self.pairs.retain(|(other, _)| other != key);
        self
    }

    /// The file's bytes. There is no padding behind the last tensor.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            string(&mut out, key);
            write_value(&mut out, value);
        }
        let mut end = 0;
        let mut data = Vec::new();
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            let offset: usize = usize::next_multiple_of(end, self.alignment);
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            data.resize(offset, 0);
            data.extend(&tensor.data);
            end = data.len();
        }
        if !data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend(data);
        out
    }
}

/// The metadata of a Llama with one layer of width 8, 2 query heads and 1 key/value head, and its
/// embedding of 4 tokens: the least that opens.
pub(crate) fn llama() -> Gguf {
    Gguf::new()
        .pair("general.architecture", Value::String("llama".into()))
        .pair("llama.block_count", Value::U32(1))
        .pair("llama.context_length", Value::U32(64))
        .pair("llama.embedding_length", Value::U32(8))
        .pair("llama.feed_forward_length", Value::U32(16))
        .pair("llama.attention.head_count", Value::U32(2))
        .pair("llama.attention.head_count_kv", Value::U32(1))
        .pair("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .tensor("token_embd.weight", &[4, 8])
}

/// [`llama`] with every tensor, for any architecture's name.
pub(crate) fn whole(architecture: &str) -> Gguf {
    let mut file = llama();
    for (key, value) in &mut file.pairs {
        *key = key.replace("llama.", &format!("{architecture}."));
        if key == "general.architecture" {
            *value = Value::String(architecture.into());
        }
    }
    file.tensor("output_norm.weight", &[8])
        .tensor("output.weight", &[4, 8])
        .tensor("blk.0.attn_norm.weight", &[8])
        .tensor("blk.0.ffn_norm.weight", &[8])
        .tensor("blk.0.attn_q.weight", &[8, 8])
        .tensor("blk.0.attn_k.weight", &[4, 8])
        .tensor("blk.0.attn_v.weight", &[4, 8])
        .tensor("blk.0.attn_output.weight", &[8, 8])
        .tensor("blk.0.ffn_gate.weight", &[16, 8])
        .tensor("blk.0.ffn_up.weight", &[16, 8])
        .tensor("blk.0.ffn_down.weight", &[8, 16])
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    let kind = |out: &mut Vec<u8>, number: u32| out.extend(number.to_le_bytes());
    match value {
        Value::U8(v) => (kind(out, 0), out.extend(v.to_le_bytes())).1,
        Value::I8(v) => (kind(out, 1), out.extend(v.to_le_bytes())).1,
        Value::U16(v) => (kind(out, 2), out.extend(v.to_le_bytes())).1,
        Value::I16(v) => (kind(out, 3), out.extend(v.to_le_bytes())).1,
        Value::U32(v) => (kind(out, 4), out.extend(v.to_le_bytes())).1,
        Value::I32(v) => (kind(out, 5), out.extend(v.to_le_bytes())).1,
        Value::F32(v) => (kind(out, 6), out.extend(v.to_le_bytes())).1,
        Value::Bool(v) => (kind(out, 7), out.push(u8::from(*v))).1,
        Value::String(v) => (kind(out, 8), string(out, v)).1,
        Value::Array(v) => (kind(out, 9), write_array(out, v)).1,
        Value::U64(v) => (kind(out, 10), out.extend(v.to_le_bytes())).1,
        Value::I64(v) => (kind(out, 11), out.extend(v.to_le_bytes())).1,
        Value::F64(v) => (kind(out, 12), out.extend(v.to_le_bytes())).1,
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    fn each<T>(out: &mut Vec<u8>, kind: u32, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        out.extend(kind.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| write(out, item));
    }
    match array {
        Array::U8(v) => each(out, 0, v, |out, x| out.push(*x)),
        Array::I8(v) => each(out, 1, v, |out, x| out.extend(x.to_le_bytes())),
        Array::U16(v) => each(out, 2, v, |out, x| out.extend(x.to_le_bytes())),
        Array::I16(v) => each(out, 3, v, |out, x| out.extend(x.to_le_bytes())),
        Array::U32(v) => each(out, 4, v, |out, x| out.extend(x.to_le_bytes())),
        Array::I32(v) => each(out, 5, v, |out, x| out.extend(x.to_le_bytes())),
        Array::F32(v) => each(out, 6, v, |out, x| out.extend(x.to_le_bytes())),
        Array::Bool(v) => each(out, 7, v, |out, x| out.push(u8::from(*x))),
        Array::String(v) => each(out, 8, v, |out, x| string(out, x)),
        Array::Array(v) => each(out, 9, v, write_array),
        Array::U64(v) => each(out, 10, v, |out, x| out.extend(x.to_le_bytes())),
        Array::I64(v) => each(out, 11, v, |out, x| out.extend(x.to_le_bytes())),
        Array::F64(v) => each(out, 12, v, |out, x| out.extend(x.to_le_bytes())),
    }
}
