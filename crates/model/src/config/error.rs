use super::Architecture;
use std::path::PathBuf;

/// Why a model's configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{file}: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("the architecture {found} is not supported; supported are {supported}", supported = Architecture::names())]
    Architecture { found: String },
    #[error("config.json has no {0}")]
    Missing(&'static str),
    #[error("config.json: {field} is {found}, but {wanted}")]
    Value { field: &'static str, found: String, wanted: String },
    #[error("config.json sets {0}, which is not supported")]
    Unsupported(&'static str),
    #[error(
        "config.json asks for the rope scaling \"{0}\"; supported are \"default\", \"linear\" and \"llama3\""
    )]
    RopeScaling(String),
    #[error(
        "config.json has both rope_scaling and rope_parameters, which differ; keep the one that is meant"
    )]
    TwoRopes,
    #[error("config.json asks for the activation \"{0}\"; supported are \"silu\" and \"gelu_pytorch_tanh\"")]
    Activation(String),
    #[error(
        "the weights are quantised with {0}, which is not supported; use a checkpoint in bf16, f16 or f32"
    )]
    Quantised(String),
}

impl ConfigError {
    pub(super) fn value(field: &'static str, found: impl ToString, wanted: impl Into<String>) -> Self {
        Self::Value { field, found: found.to_string(), wanted: wanted.into() }
    }
}
