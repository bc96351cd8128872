//! The files beside a tokenizer: which one has the last word.

mod common;

use common::Dir;
use octavo_text::{ChatInput, ChatTemplate, TokenizerConfig};
use serde_json::json;

const BOTH: &[u8] = br#"{"chat_template": [{"name": "default", "template": "config"},
    {"name": "tool_use", "template": "config tools"}]}"#;

fn rendered(dir: &Dir) -> (String, String) {
    let template = ChatTemplate::from_dir(&dir.0).unwrap();
    let tools = [json!({"name": "f"})];
    let input = ChatInput::new(&[]);
    (template.render(&input).unwrap(), template.render(&ChatInput { tools: &tools, ..input }).unwrap())
}

#[test]
fn special_tokens_are_looked_up_in_their_map_where_the_configuration_is_silent() {
    let config =
        br#"{"bos_token": "<a>", "pad_token": null, "chat_template": "{{ bos_token }}{{ eos_token }}"}"#;
    let map = br#"{"bos_token": "<b>", "eos_token": {"content": "<e>", "lstrip": false}, "pad_token": "<p>",
        "additional_special_tokens": ["<x>"]}"#;
    let dir = Dir::new("map", &[("tokenizer_config.json", config), ("special_tokens_map.json", map)]);
    let config = TokenizerConfig::from_dir(&dir.0).unwrap();
    assert_eq!((config.token("bos_token"), config.token("eos_token")), (Some("<a>"), Some("<e>")));
    assert_eq!(config.token("pad_token"), None, "null says that there is none");
    assert_eq!(rendered(&dir).0, "<a><e>");
    let alone = Dir::new("map-alone", &[("special_tokens_map.json", map)]);
    assert_eq!(TokenizerConfig::from_dir(&alone.0).unwrap().token("bos_token"), Some("<b>"));
}

#[test]
fn a_broken_map_of_special_tokens_is_named() {
    for (json, expected) in [(&b"{"[..], "not valid JSON"), (b"[]", "must be an object")] {
        let dir = Dir::new("map-broken", &[("special_tokens_map.json", json)]);
        let error = TokenizerConfig::from_dir(&dir.0).unwrap_err().to_string();
        assert!(error.contains("special_tokens_map.json") && error.contains(expected), "{error}");
    }
}

#[test]
fn a_jinja_file_replaces_every_template_of_the_configuration() {
    let dir = Dir::new("replaces", &[("tokenizer_config.json", BOTH), ("chat_template.jinja", b"file")]);
    assert_eq!(rendered(&dir), ("file".into(), "file".into()));
}

#[test]
fn additional_templates_are_read_under_the_names_of_their_files() {
    let tools = ("additional_chat_templates/tool_use.jinja", &b"file tools"[..]);
    let other = ("additional_chat_templates/notes.txt", &b"{% no template"[..]);
    let dir = Dir::new("additional", &[("chat_template.jinja", b"file"), tools, other]);
    assert_eq!(rendered(&dir), ("file".into(), "file tools".into()));
    let beside = Dir::new("additional-beside", &[("tokenizer_config.json", BOTH), tools]);
    assert_eq!(rendered(&beside), ("config".into(), "file tools".into()));
    let text = ("additional_chat_templates/tool_use.txt", &b"no template"[..]);
    let dir = Dir::new("additional-text", &[("chat_template.jinja", b"file"), text]);
    assert_eq!(rendered(&dir), ("file".into(), "file".into()));
}

/// What is there and cannot be read is not taken for missing.
#[test]
fn files_that_cannot_be_read_are_named() {
    for (name, inside) in [
        ("tokenizer_config.json", "tokenizer_config.json/x"),
        ("special_tokens_map.json", "special_tokens_map.json/x"),
        ("chat_template.jinja", "chat_template.jinja/x"),
        ("additional_chat_templates", "additional_chat_templates"),
    ] {
        let dir = Dir::new(&format!("unreadable-{name}"), &[(inside, b"")]);
        let error = TokenizerConfig::from_dir(&dir.0).unwrap_err().to_string();
        assert!(error.starts_with("cannot read") && error.contains(name), "{error}");
    }
}

#[test]
fn only_special_tokens_become_variables() {
    let config = br#"{"eos_token": "<e>", "tokenizer_class": "Fast",
        "chat_template": "{{ eos_token }}{{ tokenizer_class is defined }}{{ chat_template is defined }}"}"#;
    let dir = Dir::new("variables", &[("tokenizer_config.json", config)]);
    assert_eq!(rendered(&dir).0, "<e>FalseFalse");
}

#[test]
fn a_broken_additional_template_is_named_with_its_file() {
    let broken = ("additional_chat_templates/tool_use.jinja", &b"fine\n{% for x in %}"[..]);
    let dir = Dir::new("additional-broken", &[("chat_template.jinja", b"file"), broken]);
    let error = ChatTemplate::from_dir(&dir.0).unwrap_err().to_string();
    assert!(
        error.contains("additional_chat_templates/tool_use.jinja") && error.contains("line 2"),
        "{error}"
    );
}
