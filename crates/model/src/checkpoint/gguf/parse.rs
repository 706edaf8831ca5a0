//! The bytes of one GGUF file, version 2 or 3, little endian, checked field by field.

use super::metadata::{Metadata, Value};
use super::reader::Reader;
use crate::checkpoint::TensorEntry;
use crate::error::LoadError;
use kernels::format::Format;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a GGUF file holds, before any name or architecture is understood.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Version of the format.
    pub version: u32,
    /// Every key and value.
    pub metadata: Metadata,
    /// Every tensor, in the file's order.
    pub tensors: Vec<TensorEntry>,
}

/// A key may have this many bytes, says the format.
const MAX_KEY: usize = 65_535;
/// A tensor's name may have this many bytes, says the format.
const MAX_TENSOR_NAME: usize = 64;
/// Alignment of tensor data when the file does not say.
const DEFAULT_ALIGNMENT: usize = 32;

/// Reads the header, the metadata and the tensor table of `bytes`, the contents of `path`.
///
/// Padding after the last tensor may be absent: some writers leave it out.
///
/// # Errors
/// Anything that breaks the format's rules, and tensor types this engine has no kernels for.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<File, LoadError> {
    let mut reader = Reader::new(path, bytes);
    let version = read_version(&mut reader)?;
    // A tensor takes a length and a character, a dimension count, a dimension, a type, an offset.
    let tensor_count = reader.count("tensor_count", 8 + 1 + 4 + 8 + 4 + 8)?;
    // A pair takes a length and a character, a type, a value.
    let pair_count = reader.count("metadata_kv_count", 8 + 1 + 4 + 1)?;
    let metadata = Metadata::new(path, read_pairs(&mut reader, pair_count)?);
    let alignment = alignment(&metadata)?;
    let table = (0..tensor_count)
        .map(|index| read_tensor(&mut reader, index))
        .collect::<Result<Vec<_>, _>>()?;
    let data = reader.position().next_multiple_of(alignment);
    let tensors = place(path, table, data, alignment, bytes.len())?;
    Ok(File { version, metadata, tensors })
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, LoadError> {
    let magic = reader.u32("magic")?;
    if magic != u32::from_le_bytes(*b"GGUF") {
        return Err(reader.error("magic", "is not `GGUF`: this is not a GGUF file"));
    }
    let version = reader.u32("version")?;
    if version.swap_bytes() <= 3 && version != 0 {
        return Err(reader.error("version", "the file is big endian; convert it to little endian"));
    }
    if !(2..=3).contains(&version) {
        return Err(reader.error(
            "version",
            format!("is {version}; this engine reads 2 and 3: convert the file again"),
        ));
    }
    Ok(version)
}

fn read_pairs(reader: &mut Reader<'_>, count: usize) -> Result<BTreeMap<String, Value>, LoadError> {
    let mut values = BTreeMap::new();
    for index in 0..count {
        let key = reader.string(&format!("metadata key {index}"))?;
        if key.is_empty() {
            return Err(reader.error(&format!("metadata key {index}"), "is empty"));
        }
        if key.len() > MAX_KEY {
            return Err(reader.error(
                &format!("metadata key {index}"),
                format!("has {} bytes, at most {MAX_KEY} are allowed", key.len()),
            ));
        }
        let value = reader.value(&key)?;
        if values.contains_key(&key) {
            return Err(reader.error(&key, "is given twice"));
        }
        values.insert(key, value);
    }
    Ok(values)
}

fn alignment(metadata: &Metadata) -> Result<usize, LoadError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() && alignment >= 8 => {
            Ok(alignment as usize)
        }
        Some(Value::U32(other)) => Err(LoadError::new(
            metadata.path(),
            KEY,
            format!("is {other}; must be a power of two and at least 8"),
        )),
        Some(other) => Err(LoadError::new(
            metadata.path(),
            KEY,
            format!("must be a UINT32, the file has {}", other.kind()),
        )),
    }
}

/// A line of the tensor table: checked by itself, not yet against the file's length.
struct Unplaced {
    name: String,
    shape: Vec<usize>,
    format: Format,
    bytes: usize,
    offset: u64,
}

fn read_tensor(reader: &mut Reader<'_>, index: usize) -> Result<Unplaced, LoadError> {
    let anonymous = format!("tensor {index}");
    let name = reader.string(&anonymous)?;
    if name.is_empty() || name.len() > MAX_TENSOR_NAME {
        return Err(reader.error(
            &anonymous,
            format!("its name has {} bytes; 1 to {MAX_TENSOR_NAME} are allowed", name.len()),
        ));
    }
    let dimensions = reader.u32(&name)?;
    if !(1..=4).contains(&dimensions) {
        return Err(reader.error(&name, format!("has {dimensions} dimensions; 1 to 4 are allowed")));
    }
    let mut shape = Vec::with_capacity(4);
    for _ in 0..dimensions {
        let dimension = reader.u64(&name)?;
        match usize::try_from(dimension) {
            Ok(1..) => shape.push(dimension as usize),
            _ => {
                return Err(
                    reader.error(&name, format!("a dimension of {dimension} is impossible"))
                );
            }
        }
    }
    shape.reverse();
    let kind = reader.u32(&name)?;
    let offset = reader.u64(&name)?;
    let format = format_of(kind).map_err(|type_name| {
        reader.error(
            &name,
            format!(
                "has the tensor type {type_name}, which this engine cannot compute with; use a \
                 file quantized to Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or Q2_K to Q6_K, or F32, F16, BF16"
            ),
        )
    })?;
    let row = shape[shape.len() - 1];
    if !row.is_multiple_of(format.block()) {
        return Err(reader.error(
            &name,
            format!(
                "rows of {row} elements do not fill whole {} blocks of {}",
                format.name(),
                format.block()
            ),
        ));
    }
    let bytes = shape
        .iter()
        .try_fold(1usize, |product, &dimension| product.checked_mul(dimension))
        .and_then(|elements| format.bytes(elements))
        .ok_or_else(|| reader.error(&name, format!("its size overflows: shape {shape:?}")))?;
    Ok(Unplaced { name, shape, format, bytes, offset })
}

/// Puts the tensors into the file: aligned, inside, none over another, no name twice.
fn place(
    path: &Path,
    table: Vec<Unplaced>,
    data: usize,
    alignment: usize,
    length: usize,
) -> Result<Vec<TensorEntry>, LoadError> {
    let mut names = BTreeSet::new();
    let mut tensors = Vec::with_capacity(table.len());
    for tensor in table {
        let error = |problem: String| LoadError::new(path, &tensor.name, problem);
        let offset = usize::try_from(tensor.offset)
            .ok()
            .filter(|offset| offset.is_multiple_of(alignment))
            .ok_or_else(|| {
                error(format!("offset {} is not a multiple of {alignment}", tensor.offset))
            })?;
        let start = data.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(tensor.bytes));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(error(format!(
                "its end overflows: {} bytes at offset {offset}",
                tensor.bytes
            )));
        };
        if end > length {
            return Err(error(format!(
                "ends at byte {end}, but the file has {length} bytes: {} are missing; fetch the \
                 file again",
                end - length
            )));
        }
        if !names.insert(tensor.name.clone()) {
            return Err(error("is in the file twice".to_owned()));
        }
        tensors.push(TensorEntry {
            name: tensor.name,
            shape: tensor.shape,
            format: tensor.format,
            range: start..end,
        });
    }
    let mut order: Vec<&TensorEntry> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.range.start);
    for pair in order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(LoadError::new(
                path,
                &pair[1].name,
                format!("lies over the bytes of {}", pair[0].name),
            ));
        }
    }
    Ok(tensors)
}

/// The format of a tensor type number, or the name of a type without kernels.
fn format_of(kind: u32) -> Result<Format, String> {
    Ok(match kind {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        10 => Format::Q2_K,
        11 => Format::Q3_K,
        12 => Format::Q4_K,
        13 => Format::Q5_K,
        14 => Format::Q6_K,
        30 => Format::BF16,
        other => {
            let names = [
                (9, "Q8_1"),
                (15, "Q8_K"),
                (16, "IQ2_XXS"),
                (17, "IQ2_XS"),
                (18, "IQ3_XXS"),
                (19, "IQ1_S"),
                (20, "IQ4_NL"),
                (21, "IQ3_S"),
                (22, "IQ2_S"),
                (23, "IQ4_XS"),
                (24, "I8"),
                (25, "I16"),
                (26, "I32"),
                (27, "I64"),
                (28, "F64"),
                (29, "IQ1_M"),
                (34, "TQ1_0"),
                (35, "TQ2_0"),
                (39, "MXFP4"),
                (40, "NVFP4"),
            ];
            return Err(match names.iter().find(|(number, _)| *number == other) {
                Some((_, name)) => (*name).to_owned(),
                None => format!("number {other} (unknown)"),
            });
        }
    })
}
