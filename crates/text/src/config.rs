//! `tokenizer_config.json` and `chat_template.jinja`: what stands beside a tokenizer.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

const CONFIG_FILE: &str = "tokenizer_config.json";
const JINJA_FILE: &str = "chat_template.jinja";

/// Why the files beside a tokenizer could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {file}: {source}; check the file's permissions")]
    Unreadable { file: String, source: std::io::Error },
    #[error("{file} is not valid JSON: {source}; download the model's files again")]
    BrokenJson { file: String, source: serde_json::Error },
    #[error("{file}: `{field}` must be {expected}; correct it or take the file from the model's origin")]
    WrongType { file: String, field: String, expected: &'static str },
}

/// The part of `tokenizer_config.json` that changes what a model reads: named special tokens, whether text
/// begins with one, and the chat templates.
///
/// Every field is optional in the file, and so is the file: a directory without one gives the default value.
#[derive(Debug, Clone, Default)]
pub struct TokenizerConfig {
    special: BTreeMap<String, String>,
    add_bos: Option<bool>,
    templates: BTreeMap<String, String>,
    origin: String,
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json`, and `chat_template.jinja`, which wins over the template inside the former.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join(CONFIG_FILE);
        let origin = path.display().to_string();
        let mut config = match read_optional(&path)? {
            Some(bytes) => Self::parse(&bytes, &origin)?,
            None => Self { origin, ..Self::default() },
        };
        let jinja = dir.join(JINJA_FILE);
        if let Some(bytes) = read_optional(&jinja)? {
            let file = jinja.display().to_string();
            let source =
                String::from_utf8(bytes).map_err(|_| wrong_type(&file, "the whole file", "text in UTF-8"))?;
            config.templates.insert("default".into(), source);
            config.origin = file;
        }
        Ok(config)
    }

    /// The same from the bytes of a `tokenizer_config.json`.
    pub fn from_slice(json: &[u8]) -> Result<Self, ConfigError> {
        Self::parse(json, CONFIG_FILE)
    }

    /// The text of a named special token: `token("bos_token")`, `token("eos_token")`.
    pub fn token(&self, name: &str) -> Option<&str> {
        self.special.get(name).map(String::as_str)
    }

    /// `add_bos_token`, where the file says so.
    pub fn add_bos(&self) -> Option<bool> {
        self.add_bos
    }

    pub(crate) fn special(&self) -> &BTreeMap<String, String> {
        &self.special
    }

    pub(crate) fn templates(&self) -> &BTreeMap<String, String> {
        &self.templates
    }

    pub(crate) fn origin(&self) -> &str {
        if self.origin.is_empty() { CONFIG_FILE } else { &self.origin }
    }

    fn parse(json: &[u8], file: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|source| ConfigError::BrokenJson { file: file.into(), source })?;
        let fields = value.as_object().ok_or_else(|| wrong_type(file, "the whole file", "an object"))?;
        let special = fields
            .iter()
            .filter(|(name, _)| name.ends_with("_token"))
            .filter_map(|(name, value)| Some((name.clone(), token_text(value)?.to_owned())))
            .collect();
        let add_bos = fields.get("add_bos_token").and_then(Value::as_bool);
        let templates = match fields.get("chat_template") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(value) => templates(value).ok_or_else(|| {
                wrong_type(file, "chat_template", "a string, or a list of {\"name\", \"template\"}")
            })?,
        };
        Ok(Self { special, add_bos, templates, origin: file.into() })
    }
}

/// A special token is written as its text or as an object around it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn templates(value: &Value) -> Option<BTreeMap<String, String>> {
    if let Some(source) = value.as_str() {
        return Some(BTreeMap::from([("default".into(), source.into())]));
    }
    let named = |entry: &Value| {
        let field = |name| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        Some((field("name")?, field("template")?))
    };
    value.as_array()?.iter().map(named).collect()
}

fn wrong_type(file: &str, field: &str, expected: &'static str) -> ConfigError {
    ConfigError::WrongType { file: file.into(), field: field.into(), expected }
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Unreadable { file: path.display().to_string(), source }),
    }
}
