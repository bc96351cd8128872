//! Whole numbers as Python hands them over: one, a list, or a NumPy array.

use crate::errors::value;
use numpy::{PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use octavo_types::Tokens;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A list of whole numbers. Arrays of int64 and int32 are read as they lie; floating point is refused, not rounded.
pub(crate) struct Ints(pub(crate) Vec<i64>);

impl<'py> FromPyObject<'_, 'py> for Ints {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = object.extract::<PyReadonlyArray1<'py, i64>>() {
            return Ok(Self(array.as_array().iter().copied().collect()));
        }
        if let Ok(array) = object.extract::<PyReadonlyArray1<'py, i32>>() {
            return Ok(Self(array.as_array().iter().copied().map(i64::from).collect()));
        }
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            // NumPy takes an empty list for floating point.
            if array.shape() == [0] {
                return Ok(Self(Vec::new()));
            }
            return Err(PyTypeError::new_err(format!(
                "an array of {} with {} axes is no list of whole numbers: give one axis of int64 or int32",
                array.dtype(),
                array.ndim()
            )));
        }
        object.extract::<Vec<i64>>().map(Self)
    }
}

/// A count or position.
pub(crate) fn tokens(name: &str, n: i64) -> PyResult<Tokens> {
    count(name, n).map(Tokens)
}

pub(crate) fn count(name: &str, n: i64) -> PyResult<u32> {
    u32::try_from(n).map_err(|_| value(format!("{name} is {n}: it must be between 0 and {}", u32::MAX)))
}

pub(crate) fn same_length(what: [(&str, usize); 2]) -> PyResult<()> {
    let [(first, n), (second, m)] = what;
    if n == m { Ok(()) } else { Err(value(format!("{n} {first} and {m} {second}: give as many of each"))) }
}

pub(crate) fn positive(name: &str, n: i64) -> PyResult<u32> {
    match u32::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(value(format!("{name} is {n}: it must be between 1 and {}", u32::MAX))),
    }
}
