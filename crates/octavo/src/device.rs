//! What computes: the CPU, or a GPU.

use std::fmt;
use std::str::FromStr;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Device {
    /// The first GPU if there is one that can run the model as asked for, otherwise the CPU.
    #[default]
    Auto,
    Cpu,
    /// By its number.
    Cuda(usize),
}

/// A name that no device has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device: write auto, cpu, cuda or, for the second GPU, cuda:1")]
pub struct DeviceNameError(String);

/// Why a GPU does not run a model.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("this program was built without CUDA: build it with the feature `cuda`, or use --device cpu")]
    NotBuilt,
    #[error("{why}")]
    NotOpened {
        why: String,
        /// There is a GPU, but it cannot be used.
        has_device: bool,
    },
    #[error("weights converted while loading run on the CPU only: use --weights stored, or --device cpu")]
    ConvertedWeights,
    #[error(
        "pages of {0} tokens run on the CPU only: use --page-size 16 or 32 or --kv-backend contiguous, or --device cpu"
    )]
    PageSize(u32),
}

impl DeviceError {
    /// Whether somebody who left the choice to us would wonder why the GPU is idle.
    pub(crate) fn surprises(&self) -> bool {
        !matches!(self, Self::NotBuilt | Self::NotOpened { has_device: false, .. })
    }
}

impl FromStr for Device {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(number).map(Self::Cuda),
        }
        .ok_or_else(|| DeviceNameError(text.into()))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_called_what_they_print() {
        for device in [Device::Auto, Device::Cpu, Device::Cuda(0), Device::Cuda(11)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
    }

    #[test]
    fn what_is_no_device_is_refused_with_an_example() {
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "cuda1", "CPU"] {
            let error = text.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("cuda:1"), "{error}");
        }
    }
}
