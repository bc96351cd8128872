//! The tokenizers and files that tests share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::path::PathBuf;

use octavo_text::{ChatInput, ChatTemplate, Message, Tokenizer, TokenizerConfig};

pub(crate) const DEMO_TOKENIZER: &[u8] = include_bytes!("../../../../models/demo/tokenizer.json");
pub(crate) const DEMO_CONFIG: &[u8] = include_bytes!("../../../../models/demo/tokenizer_config.json");
/// Built as Llama 2's: `▁` for spaces, `<0xE4>` for bytes, `<s>` first.
pub(crate) const SENTENCEPIECE: &[u8] = include_bytes!("../fixtures/sentencepiece.json");

pub(crate) fn demo_dir() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "models", "demo"].iter().collect()
}

pub(crate) fn demo() -> Tokenizer {
    let config = TokenizerConfig::from_slice(DEMO_CONFIG).unwrap();
    Tokenizer::from_slice(DEMO_TOKENIZER, &config).unwrap()
}

pub(crate) fn sentencepiece(config: &str) -> Tokenizer {
    let config = TokenizerConfig::from_slice(config.as_bytes()).unwrap();
    Tokenizer::from_slice(SENTENCEPIECE, &config).unwrap()
}

/// A byte-level tokenizer that puts `<bos>` first itself, as Llama 3's does.
pub(crate) fn byte_level_with_bos() -> Tokenizer {
    let mut json: serde_json::Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    });
    let config = TokenizerConfig::from_slice(br#"{"bos_token": "<|endoftext|>"}"#).unwrap();
    Tokenizer::from_slice(json.to_string().as_bytes(), &config).unwrap()
}

/// The tokenizer of `json` with another way from tokens to text.
pub(crate) fn with_decoder(json: &[u8], decoder: serde_json::Value) -> Tokenizer {
    let mut json: serde_json::Value = serde_json::from_slice(json).unwrap();
    json["decoder"] = decoder;
    Tokenizer::from_slice(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap()
}

pub(crate) fn template(source: impl Into<serde_json::Value>) -> ChatTemplate {
    let source: serde_json::Value = source.into();
    let config =
        serde_json::json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": source});
    ChatTemplate::from_config(&TokenizerConfig::from_slice(config.to_string().as_bytes()).unwrap()).unwrap()
}

/// What a template makes of no conversation at all.
pub(crate) fn rendered(source: &str) -> String {
    template(source).render(&ChatInput::new(&[])).unwrap_or_else(|error| panic!("{source}: {error}"))
}

pub(crate) fn messages(value: serde_json::Value) -> Vec<Message> {
    serde_json::from_value(value).unwrap()
}

/// A directory of its own for one test, removed at the end.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path = std::env::temp_dir().join(format!("octavo-text-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (file, bytes) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
