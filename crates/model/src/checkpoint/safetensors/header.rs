//! The header of one safetensors file (<https://github.com/huggingface/safetensors>): eight bytes
//! of length, then JSON that places every tensor in the bytes behind it.

use crate::checkpoint::TensorEntry;
use crate::error::LoadError;
use kernels::format::Format;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::path::Path;

/// The format's own bound of the header's length.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of `bytes`, the contents of `path`, in the order of their bytes.
///
/// # Errors
/// A file shorter or longer than its header says, bytes that belong to two tensors or to none,
/// names given twice, and element types other than F32, F16 and BF16.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<TensorEntry>, LoadError> {
    let error = |field: &str, problem: String| LoadError::new(path, field, problem);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(error(
            "header length",
            format!("the file has {} of its 8 bytes; fetch the file again", bytes.len()),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(error(
            "header length",
            format!("is {length}, at most {MAX_HEADER} is allowed: this is no safetensors file"),
        ));
    }
    let length = length as usize;
    if length > rest.len() {
        return Err(error(
            "header",
            format!(
                "has {length} bytes, the file ends after {}: {} are missing; fetch the file again",
                rest.len(),
                length - rest.len()
            ),
        ));
    }
    let (header, data) = rest.split_at(length);
    let lines: Header = serde_json::from_slice(header)
        .map_err(|e| error("header", format!("is not the JSON it should be: {e}")))?;
    let mut tensors = lines
        .tensors
        .into_iter()
        .map(|(name, line)| check(path, name, line))
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by(|a, b| {
        (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name))
    });
    check_cover(path, &tensors, data.len())?;
    let start = bytes.len() - data.len();
    for tensor in &mut tensors {
        tensor.range = tensor.range.start + start..tensor.range.end + start;
    }
    Ok(tensors)
}

/// A tensor by itself, its range still counted from the end of the header.
fn check(path: &Path, name: String, line: Line) -> Result<TensorEntry, LoadError> {
    let error = |problem: String| LoadError::new(path, &name, problem);
    let format = match line.dtype.as_str() {
        "F32" => Format::F32,
        "F16" => Format::F16,
        "BF16" => Format::BF16,
        other => {
            return Err(error(format!(
                "has elements of type {other}; this engine reads F32, F16 and BF16 (or a GGUF \
                 file for quantized weights)"
            )));
        }
    };
    let bytes = line
        .shape
        .iter()
        .try_fold(1usize, |product, &dimension| product.checked_mul(dimension))
        .and_then(|elements| format.bytes(elements))
        .ok_or_else(|| error(format!("its size overflows: shape {:?}", line.shape)))?;
    let [start, end] = line.data_offsets;
    if end.checked_sub(start) != Some(bytes) {
        return Err(error(format!(
            "data_offsets {start} to {end} do not hold the {bytes} bytes of shape {:?}",
            line.shape
        )));
    }
    Ok(TensorEntry { name, shape: line.shape, format, range: start..end })
}

/// Every byte of the data belongs to exactly one tensor. `tensors` is sorted by range.
fn check_cover(path: &Path, tensors: &[TensorEntry], length: usize) -> Result<(), LoadError> {
    let promised = tensors.iter().map(|tensor| tensor.range.end).max().unwrap_or(0);
    let error = |field: &str, problem: String| Err(LoadError::new(path, field, problem));
    if promised > length {
        return error(
            "file",
            format!(
                "is cut off: its header promises {promised} bytes of tensors, {length} are there, \
                 {} are missing; fetch the file again",
                promised - length
            ),
        );
    }
    let mut covered = 0;
    for tensor in tensors {
        if tensor.range.start != covered {
            return error(
                &tensor.name,
                format!(
                    "starts at byte {} of the data, but the tensor before it ends at {covered}",
                    tensor.range.start
                ),
            );
        }
        covered = tensor.range.end;
    }
    if covered < length {
        return error("file", format!("has {} bytes that no tensor owns", length - covered));
    }
    Ok(())
}

/// The JSON of a header.
struct Header {
    tensors: BTreeMap<String, Line>,
}

/// The JSON of a tensor.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// Reads the map by hand: serde would keep the last of two lines of one name.
struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut tensors = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<BTreeMap<String, String>>()?;
                continue;
            }
            let line = map.next_value()?;
            if tensors.contains_key(&name) {
                return Err(serde::de::Error::custom(format!("tensor {name} is given twice")));
            }
            tensors.insert(name, line);
        }
        Ok(Header { tensors })
    }
}
