use half::{bf16, f16};
use octavo_backend::WeightDtype;

/// How numbers lie in device memory; the discriminants are those of `cu/number.cuh`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(i32)]
pub(crate) enum Precision {
    F32 = 0,
    Bf16 = 1,
    F16 = 2,
}

impl Precision {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// What weights of this type are kept as.
    pub(crate) fn of_weights(dtype: WeightDtype) -> Self {
        match dtype {
            WeightDtype::F16 => Self::F16,
            WeightDtype::Bf16 | WeightDtype::F32 => Self::Bf16,
        }
    }

    pub(crate) fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        out.clear();
        match self {
            Self::F32 => out.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            Self::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32())),
            Self::F16 => out.extend(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32())),
        }
    }
}
