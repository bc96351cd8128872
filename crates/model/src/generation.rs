use crate::config::{ConfigError, OneOrMany};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};
use std::io::ErrorKind;
use std::path::Path;

/// How the model's makers would have it sampled: `generation_config.json`. What the file leaves out is `None`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GenerationConfig {
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    /// 0 cuts nothing off.
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Raw {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    #[serde(deserialize_with = "top_k")]
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    eos_token_id: Option<OneOrMany>,
}

impl GenerationConfig {
    /// The file in the directory of a model; a model without one has no preferences.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path.display().to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Io { path, source }),
        }
    }

    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Self::parse(text, "generation_config.json")
    }

    fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_str(text)
            .map_err(|source| ConfigError::Json { file: file.to_owned(), source })?;
        Ok(Self {
            do_sample: raw.do_sample,
            temperature: raw.temperature,
            top_k: raw.top_k,
            top_p: raw.top_p,
            min_p: raw.min_p,
            repetition_penalty: raw.repetition_penalty,
            eos: raw.eos_token_id.map(OneOrMany::into_vec).unwrap_or_default(),
        })
    }
}

/// Files write a number of tokens as 50 and as 50.0, and no limit as 0 or below.
fn top_k<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let whole = |k: f64| k.fract() == 0.0 && k <= f64::from(u32::MAX);
    match Option::<f64>::deserialize(from)? {
        None => Ok(None),
        Some(k) if whole(k) => Ok(Some(k.max(0.0) as u32)),
        Some(k) => Err(D::Error::invalid_value(Unexpected::Float(k), &"a number of tokens")),
    }
}
