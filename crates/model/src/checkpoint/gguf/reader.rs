//! Little-endian reads from untrusted bytes. Nothing is allocated before the bytes that would
//! fill it are known to exist.

use super::metadata::{Array, Value};
use crate::error::LoadError;
use std::path::Path;

/// Arrays of arrays may nest this deep; no known file goes past two.
const MAX_NESTING: usize = 4;

/// Element types of metadata values, by the format's numbers.
mod kind {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

/// A place in a file's bytes. Every read names the field it is for.
pub(super) struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Reader<'a> {
        Reader { path, bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn error(&self, field: &str, problem: impl Into<String>) -> LoadError {
        LoadError::new(self.path, field, problem)
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, length: usize, field: &str) -> Result<&'a [u8], LoadError> {
        if length > self.remaining() {
            return Err(self.error(
                field,
                format!(
                    "needs {length} bytes at byte {}, but the file has {} bytes: at least {} are \
                     missing; fetch the file again",
                    self.at,
                    self.bytes.len(),
                    length - self.remaining(),
                ),
            ));
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], LoadError> {
        Ok(self.take(N, field)?.try_into().expect("take gives the length it was asked for"))
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A count of things that take at least `least` bytes each in the rest of the file.
    pub(super) fn count(&mut self, field: &str, least: usize) -> Result<usize, LoadError> {
        let count = self.u64(field)?;
        let room = (self.remaining() / least) as u64;
        if count > room {
            return Err(self.error(
                field,
                format!("says {count} follow, but the rest of the file has room for {room}"),
            ));
        }
        Ok(count as usize)
    }

    /// A UTF-8 string behind its length.
    pub(super) fn string(&mut self, field: &str) -> Result<String, LoadError> {
        let length = self.count(field, 1)?;
        let at = self.at;
        match std::str::from_utf8(self.take(length, field)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.error(field, format!("the string at byte {at} is not UTF-8"))),
        }
    }

    /// A metadata value behind its type.
    pub(super) fn value(&mut self, key: &str) -> Result<Value, LoadError> {
        Ok(match self.u32(key)? {
            kind::U8 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            kind::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            kind::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            kind::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            kind::U32 => Value::U32(self.u32(key)?),
            kind::I32 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            kind::U64 => Value::U64(self.u64(key)?),
            kind::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            kind::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            kind::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            kind::BOOL => Value::Bool(self.boolean(key)?),
            kind::STRING => Value::String(self.string(key)?),
            kind::ARRAY => Value::Array(self.elements(key, 1)?),
            other => return Err(self.unknown_kind(key, other)),
        })
    }

    /// An array behind its element type and count, itself `depth` arrays deep.
    fn elements(&mut self, key: &str, depth: usize) -> Result<Array, LoadError> {
        if depth > MAX_NESTING {
            return Err(self.error(key, format!("arrays nest deeper than {MAX_NESTING}")));
        }
        Ok(match self.u32(key)? {
            kind::U8 => Array::U8(self.numbers(key, u8::from_le_bytes)?),
            kind::I8 => Array::I8(self.numbers(key, i8::from_le_bytes)?),
            kind::U16 => Array::U16(self.numbers(key, u16::from_le_bytes)?),
            kind::I16 => Array::I16(self.numbers(key, i16::from_le_bytes)?),
            kind::U32 => Array::U32(self.numbers(key, u32::from_le_bytes)?),
            kind::I32 => Array::I32(self.numbers(key, i32::from_le_bytes)?),
            kind::U64 => Array::U64(self.numbers(key, u64::from_le_bytes)?),
            kind::I64 => Array::I64(self.numbers(key, i64::from_le_bytes)?),
            kind::F32 => Array::F32(self.numbers(key, f32::from_le_bytes)?),
            kind::F64 => Array::F64(self.numbers(key, f64::from_le_bytes)?),
            kind::BOOL => Array::Bool(self.repeat(key, 1, |reader| reader.boolean(key))?),
            kind::STRING => Array::String(self.repeat(key, 8, |reader| reader.string(key))?),
            kind::ARRAY => {
                Array::Array(self.repeat(key, 12, |reader| reader.elements(key, depth + 1))?)
            }
            other => return Err(self.unknown_kind(key, other)),
        })
    }

    /// A counted array of fixed-size numbers.
    fn numbers<T, const N: usize>(
        &mut self,
        key: &str,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, LoadError> {
        let count = self.count(key, N)?;
        let data = self.take(count * N, key)?;
        let (chunks, _) = data.as_chunks::<N>();
        Ok(chunks.iter().map(|&chunk| decode(chunk)).collect())
    }

    /// A counted array of things of at least `least` bytes.
    fn repeat<T>(
        &mut self,
        key: &str,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, LoadError>,
    ) -> Result<Vec<T>, LoadError> {
        let count = self.count(key, least)?;
        (0..count).map(|_| read(self)).collect()
    }

    fn boolean(&mut self, key: &str) -> Result<bool, LoadError> {
        match self.array::<1>(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.error(key, format!("a BOOL must be 0 or 1, found {other}"))),
        }
    }

    fn unknown_kind(&self, key: &str, kind: u32) -> LoadError {
        self.error(key, format!("unknown metadata type {kind}; the format knows 0 to 12"))
    }
}
