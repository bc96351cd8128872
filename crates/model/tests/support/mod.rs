//! The fixtures under `tests/fixtures`, read.
#![allow(dead_code, reason = "every test binary uses its own part")]

use octavo_model::{ConfigError, ModelConfig};
use serde_json::Value;
use std::path::PathBuf;

pub fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

pub fn model_dir(name: &str) -> PathBuf {
    fixtures().join("models").join(name)
}

/// The names of all fixture models.
pub fn model_names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("models")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    names
}

/// A real model's `config.json`, as JSON to change.
pub fn raw_config(name: &str) -> Value {
    let path = fixtures().join("configs").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn config(name: &str) -> ModelConfig {
    ModelConfig::from_json(&raw_config(name).to_string()).unwrap()
}

/// The configuration after the fields in `change`, an object, are set; a null takes the field away.
pub fn changed(name: &str, change: Value) -> Result<ModelConfig, ConfigError> {
    let mut raw = raw_config(name);
    for (field, value) in change.as_object().unwrap() {
        match value.is_null() {
            true => _ = raw.as_object_mut().unwrap().remove(field),
            false => raw[field] = value.clone(),
        }
    }
    ModelConfig::from_json(&raw.to_string())
}
