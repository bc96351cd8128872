//! The fixtures under `tests/fixtures`, read.
#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod expected;
pub(crate) mod run;

use octavo_model::{ConfigError, ModelConfig};
use serde_json::Value;
use std::path::PathBuf;

pub(crate) fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

pub(crate) fn model_dir(name: &str) -> PathBuf {
    fixtures().join("models").join(name)
}

/// The names of all fixture models.
pub(crate) fn model_names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("models")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    names
}

/// A real model's `config.json`, as JSON to change.
pub(crate) fn raw_config(name: &str) -> Value {
    let path = fixtures().join("configs").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn config(name: &str) -> ModelConfig {
    ModelConfig::from_json(&raw_config(name).to_string()).unwrap()
}

/// The configuration after the fields in `change`, an object, are set; a null takes the field away.
pub(crate) fn changed(name: &str, change: Value) -> Result<ModelConfig, ConfigError> {
    with(raw_config(name), change)
}

/// The same for a fixture model.
pub(crate) fn changed_model(name: &str, change: Value) -> ModelConfig {
    let text = std::fs::read_to_string(model_dir(name).join("config.json")).unwrap();
    with(serde_json::from_str(&text).unwrap(), change).unwrap()
}

fn with(mut raw: Value, change: Value) -> Result<ModelConfig, ConfigError> {
    for (field, value) in change.as_object().unwrap() {
        match value.is_null() {
            true => _ = raw.as_object_mut().unwrap().remove(field),
            false => raw[field] = value.clone(),
        }
    }
    ModelConfig::from_json(&raw.to_string())
}
