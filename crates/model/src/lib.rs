//! Models in the layout of the Hugging Face hub, and their forward pass over any [`Backend`].
//!
//! [`ModelConfig`] is what `config.json` says, checked; [`Weights`] is where the tensors lie; [`Model`] is both on a
//! device, and turns the rows of a step into logits. There is one decoder: what Llama, Qwen3 and Gemma 3 do
//! differently is data.
//!
//! [`Backend`]: octavo_backend::Backend

mod block;
mod config;
mod damage;
mod decoder;
mod files;
mod gemma3;
mod generation;
mod llama;
mod load;
mod model;
mod qwen3;
mod scratch;
mod weights;

pub use config::{Architecture, ConfigError, LayerConfig, ModelConfig, Rope, RopeKind, RopeScaling};
pub use files::weight_files;
pub use generation::GenerationConfig;
pub use load::Progress;
pub use model::Model;
pub use weights::{LoadError, Weights};
