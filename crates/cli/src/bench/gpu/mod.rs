//! Benches of the CUDA back end. Random weights, keys and values are made on the device.

pub(super) mod attention;
pub(super) mod long;
pub(super) mod prefill;
mod profile;
pub(super) mod step;
mod world;

pub(super) use world::load;

use super::machine::MachineArgs;
use anyhow::{Result, bail};
use octavo::Device;
use octavo_cuda::Options;
use octavo_cuda::bench::Bench;
use octavo_model::ModelConfig;
use std::path::PathBuf;

/// The device, opened; `None` where the CPU is meant.
pub(super) fn open(device: Device, deterministic: bool, graphs: bool) -> Result<Option<Bench>> {
    match device {
        Device::Cuda(number) => {
            Ok(Some(Bench::open(number, Options { deterministic, cache: cache(), graphs })?))
        }
        Device::Cpu => Ok(None),
        Device::Auto => bail!("a bench runs on the device you name: --device cpu or --device cuda"),
    }
}

// Not a documentation comment: it would take the place of the bench's own in the help.
#[derive(Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// What computes: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// On a GPU: a sequence's results may not depend on others
    #[arg(long)]
    deterministic: bool,
}

impl DeviceArgs {
    /// The GPU; `None` where the CPU is meant.
    pub(super) fn open(&self, machine: &MachineArgs) -> Result<Option<Bench>> {
        if self.device != Device::Cpu {
            machine.refuse_on_gpu()?;
        }
        open(self.device, self.deterministic, true)
    }
}

/// Where compiled kernels are kept.
fn cache() -> Option<PathBuf> {
    octavo::Hub::from_vars(|name| std::env::var_os(name)).user_caches().map(PathBuf::from)
}

/// A model by its configuration, which is all that its speed depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub(super) name: &'static str,
    config: &'static str,
}

macro_rules! geometry {
    ($name:literal, $file:literal) => {
        Geometry {
            name: $name,
            config: include_str!(concat!("../../../../../tests/fixtures/configs/", $file, ".json")),
        }
    };
}

pub(super) const LLAMA_3B: Geometry = geometry!("Llama-3.2-3B", "llama-3.2-3b");
pub(super) const QWEN_4B: Geometry = geometry!("Qwen3-4B", "qwen3-4b");
pub(super) const GEMMA_1B: Geometry = geometry!("Gemma-3-1B", "gemma-3-1b");
pub(super) const QWEN_06B: Geometry = geometry!("Qwen3-0.6B", "qwen3-0.6b");
pub(super) const ALL: [Geometry; 4] = [LLAMA_3B, QWEN_4B, GEMMA_1B, QWEN_06B];

/// Those whose names contain this.
pub(super) fn named(part: &str) -> Result<Vec<&'static Geometry>> {
    let named: Vec<_> = ALL.iter().filter(|geometry| geometry.name.contains(part)).collect();
    if named.is_empty() {
        let names: Vec<_> = ALL.iter().map(|geometry| geometry.name).collect();
        bail!("no geometry has {part:?} in its name; there are {}", names.join(", "));
    }
    Ok(named)
}

/// The one whose name contains this.
pub(super) fn only(part: &str) -> Result<&'static Geometry> {
    match named(part)?[..] {
        [one] => Ok(one),
        ref several => {
            let names: Vec<_> = several.iter().map(|geometry| geometry.name).collect();
            bail!("{part:?} is in the names of several geometries: {}", names.join(", "));
        }
    }
}

impl Geometry {
    pub(super) fn config(&self) -> Result<ModelConfig> {
        Ok(ModelConfig::from_json(self.config)?)
    }
}
