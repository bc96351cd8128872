//! Broken and missing files: the error names the file and what to do.

mod common;

use common::{DEMO_CONFIG, DEMO_TOKENIZER, Dir};
use octavo_text::{ChatTemplate, ConfigError, TemplateError, Tokenizer, TokenizerConfig, TokenizerError};

#[test]
fn a_missing_tokenizer_names_the_file_and_what_to_give_instead() {
    let dir = Dir::new("missing", &[]);
    let error = Tokenizer::from_dir(&dir.0, &TokenizerConfig::default()).unwrap_err();
    assert!(matches!(error, TokenizerError::Missing { .. }));
    let text = error.to_string();
    assert!(text.contains("tokenizer.json") && text.contains(dir.0.to_str().unwrap()), "{text}");
    assert!(text.contains("give the directory of a model"), "{text}");
}

#[test]
fn a_broken_tokenizer_is_an_error_not_a_panic() {
    let cut = &DEMO_TOKENIZER[..DEMO_TOKENIZER.len() / 2];
    for bytes in [&b""[..], b"{}", b"[1, 2", b"\xff\xfe", cut] {
        let error = Tokenizer::from_slice(bytes, &TokenizerConfig::default()).unwrap_err();
        assert!(matches!(error, TokenizerError::Broken { .. }), "{error}");
        assert!(error.to_string().starts_with("tokenizer.json is not a tokenizer"), "{error}");
    }
}

/// Every id up to the largest takes memory.
#[test]
fn a_token_with_an_absurd_id_is_refused_by_name() {
    let text = std::str::from_utf8(DEMO_TOKENIZER).unwrap();
    for id in ["4294967295", "2000000000", "16777216"] {
        let wrong = text.replacen("\"id\": 0,", &format!("\"id\": {id},"), 1);
        let wrong = wrong.replacen("\"<|endoftext|>\": 0", &format!("\"<|endoftext|>\": {id}"), 1);
        assert_ne!(wrong, text);
        let error =
            Tokenizer::from_slice(wrong.as_bytes(), &TokenizerConfig::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("has the id {id}, and ids must be below 16777216")), "{error}");
    }
}

#[test]
fn a_named_token_that_the_tokenizer_lacks_is_an_error() {
    let config = TokenizerConfig::from_slice(br#"{"eos_token": "<|none|>"}"#).unwrap();
    let error = Tokenizer::from_slice(DEMO_TOKENIZER, &config).unwrap_err();
    assert!(
        matches!(&error, TokenizerError::UnknownToken { role: "eos_token", token, .. } if token == "<|none|>")
    );
}

#[test]
fn a_broken_configuration_names_its_file() {
    let dir = Dir::new("broken", &[("tokenizer_config.json", b"{\"bos_token\": ")]);
    let error = TokenizerConfig::from_dir(&dir.0).unwrap_err();
    assert!(matches!(error, ConfigError::BrokenJson { .. }));
    let text = error.to_string();
    assert!(text.contains("tokenizer_config.json") && text.contains("not valid JSON"), "{text}");
    let through = ChatTemplate::from_dir(&dir.0).unwrap_err();
    assert_eq!(through.to_string(), text);
}

#[test]
fn fields_of_the_wrong_type_are_named() {
    for json in [&br#"{"chat_template": 7}"#[..], br#"{"chat_template": [{"name": "default"}]}"#] {
        let error = TokenizerConfig::from_slice(json).unwrap_err();
        assert!(
            matches!(&error, ConfigError::WrongType { field, .. } if field == "chat_template"),
            "{error}"
        );
    }
    assert!(matches!(TokenizerConfig::from_slice(b"[]"), Err(ConfigError::WrongType { .. })));
}

#[test]
fn a_model_without_a_template_says_what_to_use_instead() {
    let dir = Dir::new("none", &[("tokenizer_config.json", b"{\"chat_template\": null}")]);
    let error = ChatTemplate::from_dir(&dir.0).unwrap_err();
    assert!(matches!(error, TemplateError::Missing { .. }));
    let text = error.to_string();
    assert!(text.contains("tokenizer_config.json") && text.contains("chat_template.jinja"), "{text}");
    let empty = Dir::new("empty", &[]);
    assert!(matches!(ChatTemplate::from_dir(&empty.0), Err(TemplateError::Missing { .. })));
    let none = ChatTemplate::from_config(&TokenizerConfig::default()).unwrap_err().to_string();
    assert!(none.starts_with("tokenizer_config.json has no chat template"), "{none}");
}

#[test]
fn a_template_that_does_not_parse_gives_file_and_line() {
    let dir = Dir::new("syntax", &[("chat_template.jinja", b"fine\n{% for x in %}\n")]);
    let error = ChatTemplate::from_dir(&dir.0).unwrap_err();
    assert!(matches!(&error, TemplateError::Syntax { line: 2, .. }), "{error}");
    assert!(error.to_string().contains("chat_template.jinja"), "{error}");
}

#[test]
fn a_jinja_file_wins_over_the_configuration() {
    let files = [("tokenizer_config.json", DEMO_CONFIG), ("chat_template.jinja", b"from the file")];
    let dir = Dir::new("wins", &files);
    let template = ChatTemplate::from_dir(&dir.0).unwrap();
    assert_eq!(template.render(&octavo_text::ChatInput::new(&[])).unwrap(), "from the file");
    // Special tokens still come from the configuration.
    assert_eq!(TokenizerConfig::from_dir(&dir.0).unwrap().token("eos_token"), Some("<|im_end|>"));
}

/// What the end of a text is, nobody knows while it grows; and the decoder panics where there is little to strip.
#[test]
fn a_decoder_that_strips_the_end_of_a_text_is_refused() {
    let strip = |stop| serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": stop});
    let steps = |stop| serde_json::json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, strip(stop)]});
    for decoder in [strip(1), steps(2)] {
        let mut json: serde_json::Value = serde_json::from_slice(DEMO_TOKENIZER).unwrap();
        json["decoder"] = decoder;
        let error =
            Tokenizer::from_slice(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json has a decoder that strips the end"), "{error}");
    }
    common::with_decoder(DEMO_TOKENIZER, steps(0));
}
