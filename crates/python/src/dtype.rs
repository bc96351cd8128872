//! Names of precisions, those of NumPy and torch among them.

use crate::ints::positive;
use octavo_types::KvDtype;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

pub(crate) fn parse(name: &str) -> PyResult<KvDtype> {
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" | "f32" | "float" => Ok(KvDtype::F32),
        "float16" | "f16" | "half" => Ok(KvDtype::F16),
        "bfloat16" | "bf16" => Ok(KvDtype::Bf16),
        "float8_e4m3fn" | "float8_e4m3" | "fp8" => Ok(KvDtype::Fp8),
        "int8" | "uint8" => Ok(KvDtype::Int8),
        _ => Err(PyTypeError::new_err(format!(
            "a KV cache cannot hold {name}: choose float32, float16, bfloat16, float8_e4m3fn or int8"
        ))),
    }
}

/// The one name that a precision has here, and the bytes of a row of `head_dim` numbers, parameters included.
#[pyfunction]
pub(crate) fn dtype_name(name: &str, head_dim: i64) -> PyResult<(&'static str, u64)> {
    let dtype = parse(name)?;
    Ok((dtype.name(), dtype.vector_bytes(positive("head_dim", head_dim)?)))
}
