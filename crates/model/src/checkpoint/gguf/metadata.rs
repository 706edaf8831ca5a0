//! The key–value section of a GGUF file, with getters that name the key when its type is wrong.

use crate::error::LoadError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A metadata value, typed as it is stored.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the format's own types
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array value: elements of one type, possibly arrays themselves.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the format's own types
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
}

impl Value {
    /// The type's name in the format's documentation.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::U8(_) => "UINT8",
            Value::I8(_) => "INT8",
            Value::U16(_) => "UINT16",
            Value::I16(_) => "INT16",
            Value::U32(_) => "UINT32",
            Value::I32(_) => "INT32",
            Value::U64(_) => "UINT64",
            Value::I64(_) => "INT64",
            Value::F32(_) => "FLOAT32",
            Value::F64(_) => "FLOAT64",
            Value::Bool(_) => "BOOL",
            Value::String(_) => "STRING",
            Value::Array(array) => array.kind(),
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }
}

impl Array {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn kind(&self) -> &'static str {
        match self {
            Array::U8(_) => "ARRAY of UINT8",
            Array::I8(_) => "ARRAY of INT8",
            Array::U16(_) => "ARRAY of UINT16",
            Array::I16(_) => "ARRAY of INT16",
            Array::U32(_) => "ARRAY of UINT32",
            Array::I32(_) => "ARRAY of INT32",
            Array::U64(_) => "ARRAY of UINT64",
            Array::I64(_) => "ARRAY of INT64",
            Array::F32(_) => "ARRAY of FLOAT32",
            Array::F64(_) => "ARRAY of FLOAT64",
            Array::Bool(_) => "ARRAY of BOOL",
            Array::String(_) => "ARRAY of STRING",
            Array::Array(_) => "ARRAY of ARRAY",
        }
    }

    /// The elements as `i32`, when they are integers that fit.
    fn integers(&self) -> Option<Vec<i32>> {
        fn narrow<T: Copy + TryInto<i32>>(values: &[T]) -> Option<Vec<i32>> {
            values.iter().map(|&v| v.try_into().ok()).collect()
        }
        match self {
            Array::U8(v) => narrow(v),
            Array::I8(v) => narrow(v),
            Array::U16(v) => narrow(v),
            Array::I16(v) => narrow(v),
            Array::U32(v) => narrow(v),
            Array::I32(v) => narrow(v),
            Array::U64(v) => narrow(v),
            Array::I64(v) => narrow(v),
            _ => None,
        }
    }
}

/// All keys of a GGUF file (of the first part, when it is split). A getter gives `None` for a key
/// that is absent and an error naming file and key for one of another type.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// The metadata of the file at `path`, which errors will name.
    pub fn new(path: &Path, values: BTreeMap<String, Value>) -> Metadata {
        Metadata { path: path.into(), values }
    }

    /// The file, for errors about its keys.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A value as it is stored.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Every key and value, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A string.
    ///
    /// # Errors
    /// A value of another type.
    pub fn string(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.read(key, "a STRING", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any width that fits in `u32`.
    ///
    /// # Errors
    /// A value of another type, or out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.read(key, "an integer from 0 to 4294967295", |value| value.integer()?.try_into().ok())
    }

    /// A FLOAT32, or a FLOAT64 rounded to `f32`.
    ///
    /// # Errors
    /// A value of another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.read(key, "a FLOAT32", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// A value of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.read(key, "a BOOL", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// A value of another type.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        self.read(key, "an ARRAY of STRING", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of FLOAT32.
    ///
    /// # Errors
    /// A value of another type.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, LoadError> {
        self.read(key, "an ARRAY of FLOAT32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width that fit in `i32`.
    ///
    /// # Errors
    /// A value of another type, or an element out of range.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, LoadError> {
        self.read(key, "an ARRAY of INT32", |value| match value {
            Value::Array(array) => array.integers(),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(LoadError::new(
                &self.path,
                key,
                format!("must be {wanted}, the file has {}", describe(value)),
            )),
        }
    }
}

/// A value's type, with the value itself where it is a number.
fn describe(value: &Value) -> String {
    match value.integer() {
        Some(number) => format!("{} {number}", value.kind()),
        None => value.kind().to_owned(),
    }
}
