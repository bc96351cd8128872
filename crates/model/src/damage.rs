//! What is wrong with a safetensors file that cannot be read: which tensor, where the header tells.

use crate::weights::LoadError;
use safetensors::SafeTensorError;
use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use serde_json::{Map, Value};

const METADATA: &str = "__metadata__";

/// The error for the bytes of a file that were refused with `source`.
pub(crate) fn explain(file: &str, bytes: &[u8], source: SafeTensorError) -> LoadError {
    first_wrong(file, bytes).unwrap_or_else(|| LoadError::Header { file: file.to_owned(), source })
}

/// In the order in which tensors lie in the file.
fn first_wrong(file: &str, bytes: &[u8]) -> Option<LoadError> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let header: Map<String, Value> = serde_json::from_slice(rest.get(..length)?).ok()?;
    let mut tensors = Vec::with_capacity(header.len());
    for (tensor, info) in header.into_iter().filter(|(name, _)| name != METADATA) {
        match TensorInfo::deserialize(info) {
            Ok(info) => tensors.push((tensor, info)),
            Err(why) => return Some(damaged(tensor, file, why.to_string())),
        }
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let (start, found) = (size_of::<u64>() + length, bytes.len());
    let mut expected = start;
    for (tensor, info) in tensors {
        let (from, to) = info.data_offsets;
        let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, size| bits.checked_mul(*size));
        if to.checked_sub(from).and_then(|bytes| bytes.checked_mul(8)) != bits {
            let why = format!("{} of shape {:?} cannot lie in bytes {from}..{to}", info.dtype, info.shape);
            return Some(damaged(tensor, file, why));
        }
        expected = start.checked_add(to)?;
        if expected > found {
            return Some(LoadError::Cut { tensor, file: file.to_owned(), expected, found });
        }
    }
    (expected != found).then(|| LoadError::Length { file: file.to_owned(), expected, found })
}

fn damaged(tensor: String, file: &str, why: String) -> LoadError {
    LoadError::Damaged { tensor, file: file.to_owned(), why }
}
