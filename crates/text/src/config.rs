//! `tokenizer_config.json` and its companions: what stands beside a tokenizer.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

const CONFIG_FILE: &str = "tokenizer_config.json";
const MAP_FILE: &str = "special_tokens_map.json";
const JINJA_FILE: &str = "chat_template.jinja";
const JINJA_DIR: &str = "additional_chat_templates";

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
    /// None for a token that the file says the model has not.
    special: BTreeMap<String, Option<String>>,
    add_bos: Option<bool>,
    templates: BTreeMap<String, Template>,
    origin: String,
}

/// The text of a chat template, and the file it is from.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) source: String,
    pub(crate) file: String,
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json`; `special_tokens_map.json` for the tokens it does not name;
    /// `chat_template.jinja`, which replaces all templates inside of it; and those in `additional_chat_templates`.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join(CONFIG_FILE);
        let origin = path.display().to_string();
        let mut config = match read_optional(&path)? {
            Some(bytes) => Self::parse(&bytes, &origin)?,
            None => Self { origin, ..Self::default() },
        };
        config.read_map(&dir.join(MAP_FILE))?;
        let jinja = dir.join(JINJA_FILE);
        if let Some(template) = read_template(&jinja)? {
            config.templates = BTreeMap::from([("default".into(), template)]);
        }
        for (name, path) in additional(&dir.join(JINJA_DIR))? {
            config.templates.extend(read_template(&path)?.map(|template| (name, template)));
        }
        Ok(config)
    }

    fn read_map(&mut self, path: &Path) -> Result<(), ConfigError> {
        let Some(bytes) = read_optional(path)? else { return Ok(()) };
        for (name, token) in special_tokens(&object(&bytes, &path.display().to_string())?) {
            self.special.entry(name).or_insert(token);
        }
        Ok(())
    }

    /// The same from the bytes of a `tokenizer_config.json`.
    pub fn from_slice(json: &[u8]) -> Result<Self, ConfigError> {
        Self::parse(json, CONFIG_FILE)
    }

    /// The text of a named special token: `token("bos_token")`, `token("eos_token")`.
    pub fn token(&self, name: &str) -> Option<&str> {
        self.special.get(name)?.as_deref()
    }

    /// `add_bos_token`, where the file says so.
    pub fn add_bos(&self) -> Option<bool> {
        self.add_bos
    }

    /// The special tokens by name.
    pub(crate) fn special(&self) -> BTreeMap<String, String> {
        self.special.iter().filter_map(|(name, token)| Some((name.clone(), token.clone()?))).collect()
    }

    pub(crate) fn template(&self, name: &str) -> Option<&Template> {
        self.templates.get(name)
    }

    pub(crate) fn origin(&self) -> &str {
        if self.origin.is_empty() { CONFIG_FILE } else { &self.origin }
    }

    fn parse(json: &[u8], file: &str) -> Result<Self, ConfigError> {
        let fields = object(json, file)?;
        let special = special_tokens(&fields).collect();
        let add_bos = fields.get("add_bos_token").and_then(Value::as_bool);
        let templates = match fields.get("chat_template") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(value) => templates(value, file).ok_or_else(|| {
                wrong_type(file, "chat_template", "a string, or a list of {\"name\", \"template\"}")
            })?,
        };
        Ok(Self { special, add_bos, templates, origin: file.into() })
    }
}

fn object(json: &[u8], file: &str) -> Result<Map<String, Value>, ConfigError> {
    match serde_json::from_slice(json) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(wrong_type(file, "the whole file", "an object")),
        Err(source) => Err(ConfigError::BrokenJson { file: file.into(), source }),
    }
}

fn special_tokens(fields: &Map<String, Value>) -> impl Iterator<Item = (String, Option<String>)> {
    let named = fields.iter().filter(|(name, _)| name.ends_with("_token"));
    // What is neither text nor null is a setting (`add_bos_token`).
    named
        .filter(|(_, value)| value.is_null() || token_text(value).is_some())
        .map(|(name, value)| (name.clone(), token_text(value).map(str::to_owned)))
}

/// A special token is written as its text or as an object around it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn templates(value: &Value, file: &str) -> Option<BTreeMap<String, Template>> {
    let template = |source: &str| Template { source: source.into(), file: file.into() };
    if let Some(source) = value.as_str() {
        return Some(BTreeMap::from([("default".into(), template(source))]));
    }
    let named = |entry: &Value| {
        let field = |name| entry.get(name).and_then(Value::as_str);
        Some((field("name")?.to_owned(), template(field("template")?)))
    };
    value.as_array()?.iter().map(named).collect()
}

fn wrong_type(file: &str, field: &str, expected: &'static str) -> ConfigError {
    ConfigError::WrongType { file: file.into(), field: field.into(), expected }
}

fn read_template(path: &Path) -> Result<Option<Template>, ConfigError> {
    let Some(bytes) = read_optional(path)? else { return Ok(None) };
    let file = path.display().to_string();
    match String::from_utf8(bytes) {
        Ok(source) => Ok(Some(Template { source, file })),
        Err(_) => Err(wrong_type(&file, "the whole file", "text in UTF-8")),
    }
}

/// The `*.jinja` in a directory that need not be there, by name.
fn additional(dir: &Path) -> Result<BTreeMap<String, PathBuf>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { file: dir.display().to_string(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(unreadable(source)),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let is_template = path.extension().is_some_and(|extension| extension == "jinja");
        if let Some(name) = path.file_stem().and_then(OsStr::to_str).filter(|_| is_template) {
            found.insert(name.to_owned(), path);
        }
    }
    Ok(found)
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Unreadable { file: path.display().to_string(), source }),
    }
}
