//! `config.json`: parsed once, and a [`ModelConfig`] that exists is valid.

mod architecture;
mod build;
mod error;
mod ids;
mod layers;
mod raw;
mod raw_rope;
mod rope;

pub use architecture::Architecture;
pub use error::ConfigError;
pub(crate) use ids::OneOrMany;
pub use rope::{Rope, RopeScaling};

use octavo_backend::{Activation, Heads, WeightDtype};
use octavo_types::{KvDtype, KvSpec, PageSize, SpecError, Tokens};
use std::path::Path;

/// Which of a model's ropes turns a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeKind {
    Full,
    Sliding,
}

/// What differs from layer to layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerConfig {
    /// Positions the layer sees, its own included; `None` sees all.
    pub window: Option<Tokens>,
    pub rope: RopeKind,
}

/// The geometry and the settings of one model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    architecture: Architecture,
    hidden: u32,
    intermediate: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    max_positions: Tokens,
    norm_eps: f32,
    activation: Activation,
    attention_scale: f32,
    tied: bool,
    layers: Vec<LayerConfig>,
    rope_full: Rope,
    rope_sliding: Rope,
    dtype: Option<WeightDtype>,
    bos: Vec<u32>,
    eos: Vec<u32>,
}

impl ModelConfig {
    /// `config.json` in the directory of a model.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ConfigError::Io { path: path.clone(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::parse(text, "config.json")
    }

    fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let raw: raw::Raw = serde_json::from_str(text)
            .map_err(|source| ConfigError::Json { file: file.to_owned(), source })?;
        Self::try_from(raw)
    }

    pub fn architecture(&self) -> Architecture {
        self.architecture
    }
    pub fn hidden(&self) -> usize {
        self.hidden as usize
    }
    pub fn intermediate(&self) -> usize {
        self.intermediate as usize
    }
    pub fn heads(&self) -> Heads {
        Heads { q: self.heads as usize, kv: self.kv_heads as usize, dim: self.head_dim as usize }
    }
    pub fn vocab(&self) -> usize {
        self.vocab as usize
    }
    /// The longest sequence the model was made for.
    pub fn max_positions(&self) -> Tokens {
        self.max_positions
    }
    pub fn norm_eps(&self) -> f32 {
        self.norm_eps
    }
    pub fn activation(&self) -> Activation {
        self.activation
    }
    /// Multiplies every attention score.
    pub fn attention_scale(&self) -> f32 {
        self.attention_scale
    }
    /// The embedding is the output head too.
    pub fn tied(&self) -> bool {
        self.tied
    }
    pub fn layers(&self) -> &[LayerConfig] {
        &self.layers
    }
    pub fn rope(&self, kind: RopeKind) -> Rope {
        match kind {
            RopeKind::Full => self.rope_full,
            RopeKind::Sliding => self.rope_sliding,
        }
    }
    /// What the file says its weights are stored as; the weights themselves decide.
    pub fn dtype(&self) -> Option<WeightDtype> {
        self.dtype
    }
    pub fn bos(&self) -> &[u32] {
        &self.bos
    }
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Angle a position of each pair of elements of a head, and the factor on cosines and sines.
    pub fn inv_freq(&self, kind: RopeKind) -> (Vec<f32>, f32) {
        self.rope(kind).inv_freq(self.head_dim)
    }

    /// The geometry of this model's cache. With `window`, no layer looks further back than that, whatever it was
    /// made for.
    pub fn kv_spec(
        &self,
        dtype: KvDtype,
        page_size: PageSize,
        window: Option<Tokens>,
    ) -> Result<KvSpec, SpecError> {
        let narrowed = |layer: &LayerConfig| match (layer.window, window) {
            (Some(own), Some(most)) => Some(own.min(most)),
            (own, most) => own.or(most),
        };
        let windows: Vec<_> = self.layers.iter().map(narrowed).collect();
        KvSpec::new(&windows, self.kv_heads, self.head_dim, dtype, page_size)
    }

    /// Weights the model has, norms left out: what its matrices take in memory is this times their width.
    pub fn parameters(&self) -> u64 {
        let [hidden, mlp, vocab] = [self.hidden, self.intermediate, self.vocab].map(u64::from);
        let [q, kv] = [self.heads, self.kv_heads].map(|n| u64::from(n) * u64::from(self.head_dim));
        let layer = hidden * (2 * q + 2 * kv + 3 * mlp);
        let ends = if self.tied { 1 } else { 2 };
        layer * self.layers.len() as u64 + ends * vocab * hidden
    }
}
