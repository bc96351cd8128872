//! The tokenizers and files that tests share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;

use octavo_text::{Tokenizer, TokenizerConfig};

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
