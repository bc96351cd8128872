//! Text to ids and back, against ids from the Python package `tokenizers`.

mod common;

use common::{byte_level_with_bos, demo, demo_dir, sentencepiece, with_decoder};
use octavo_text::{Markup, SpecialTokens, Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    literal: Vec<u32>,
    decoded: String,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("fixtures/tokens.json")).unwrap()
}

#[test]
fn ids_are_those_of_the_reference_implementation() {
    let tokenizer = demo();
    for case in cases() {
        assert_eq!(tokenizer.encode(&case.text, Markup::Parse).unwrap(), case.ids, "{:?}", case.text);
        assert_eq!(tokenizer.encode(&case.text, Markup::Literal).unwrap(), case.literal, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&case.ids, SpecialTokens::Show).unwrap(), case.decoded);
    }
}

#[test]
fn a_special_token_in_text_is_a_token_only_when_asked() {
    let tokenizer = demo();
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", Markup::Parse).unwrap(), [end]);
    let literal = tokenizer.encode("<|im_end|>", Markup::Literal).unwrap();
    assert!(literal.len() > 1 && !literal.contains(&end), "{literal:?}");
    assert_eq!(tokenizer.decode(&literal, SpecialTokens::Skip).unwrap(), "<|im_end|>");
    // Asking for one form leaves the other as it was.
    assert_eq!(tokenizer.encode("<|im_end|>", Markup::Parse).unwrap(), [end]);
}

#[test]
fn the_directory_gives_the_same_tokenizer_as_the_embedded_bytes() {
    let config = TokenizerConfig::from_dir(&demo_dir()).unwrap();
    let from_dir = Tokenizer::from_dir(&demo_dir(), &config).unwrap();
    let embedded = demo();
    assert_eq!(from_dir.vocab_size(), 6144);
    assert_eq!(embedded.vocab_size(), 6144);
    let text = "The same ids, whichever way.";
    assert_eq!(from_dir.encode(text, Markup::Parse).unwrap(), embedded.encode(text, Markup::Parse).unwrap());
    assert_eq!((from_dir.eos(), from_dir.bos()), (Some(2), None));
}

#[test]
fn every_tokens_bytes_are_what_it_decodes_to() {
    let tokenizer = demo();
    for id in 0..tokenizer.vocab_size() as u32 {
        let text = tokenizer.decode(&[id], SpecialTokens::Show).unwrap();
        assert_eq!(String::from_utf8_lossy(tokenizer.token_bytes(id)), text, "{id}");
    }
    let mut single: Vec<u8> = (0..tokenizer.vocab_size() as u32)
        .map(|id| tokenizer.token_bytes(id))
        .filter(|bytes| bytes.len() == 1)
        .map(|bytes| bytes[0])
        .collect();
    single.sort_unstable();
    assert_eq!(single, (0..=255).collect::<Vec<u8>>(), "each byte has its token, once");
    assert_eq!(tokenizer.token_bytes(6144), b"");
    assert_eq!(tokenizer.token(6144), None);
}

#[test]
fn sentencepiece_tokens_know_their_spaces_and_bytes() {
    let tokenizer = sentencepiece("{}");
    let the = tokenizer.token_id("▁the").unwrap();
    assert_eq!(tokenizer.token_bytes(the), b" the");
    let byte = tokenizer.token_id("<0xE4>").unwrap();
    assert_eq!(tokenizer.token_bytes(byte), [0xE4]);
    assert!(tokenizer.is_special(tokenizer.token_id("<s>").unwrap()));
    assert!(!tokenizer.is_special(the) && !tokenizer.is_special(byte));
    // Where no step of the decoder makes bytes of such tokens, they stand for themselves.
    let text = with_decoder(common::SENTENCEPIECE, serde_json::json!(null));
    assert_eq!(text.token_bytes(byte), b"<0xE4>");
}

#[test]
fn an_added_token_outside_the_byte_alphabet_stands_for_itself() {
    let mut json: serde_json::Value = serde_json::from_slice(common::DEMO_TOKENIZER).unwrap();
    let added = serde_json::json!({"id": 6144, "content": "ab中", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": false});
    json["added_tokens"].as_array_mut().unwrap().push(added);
    let tokenizer = Tokenizer::from_slice(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap();
    assert_eq!(tokenizer.token_bytes(6144), "ab中".as_bytes());
    assert_eq!(tokenizer.decode(&[6144], SpecialTokens::Show).unwrap(), "ab中");
}

#[test]
fn truncation_and_padding_left_in_the_file_do_nothing() {
    let tokenizer = sentencepiece("{}");
    assert_eq!(tokenizer.encode("a", Markup::Parse).unwrap().len(), 2, "not padded to eight");
    let text = "the quick brown fox jumps";
    let ids = tokenizer.encode(text, Markup::Parse).unwrap();
    assert!(ids.len() > 8, "not cut at eight: {}", ids.len());
    assert_eq!(tokenizer.decode(&ids, SpecialTokens::Skip).unwrap(), text);
}

#[test]
fn a_prompt_begins_with_bos_exactly_once() {
    for (tokenizer, bos) in
        [(sentencepiece(r#"{"bos_token": "<s>"}"#), "<s>"), (byte_level_with_bos(), "<|endoftext|>")]
    {
        let id = tokenizer.token_id(bos).unwrap();
        assert!(tokenizer.adds_bos());
        assert_eq!(tokenizer.bos(), Some(id));
        let plain = tokenizer.encode_prompt("hi there", Markup::Parse).unwrap();
        let spelled = tokenizer.encode_prompt(&format!("{bos}hi there"), Markup::Parse).unwrap();
        for ids in [&plain, &spelled] {
            assert_eq!(ids[0], id);
            assert_eq!(ids.iter().filter(|&&other| other == id).count(), 1, "{ids:?}");
        }
        assert_eq!(tokenizer.encode_prompt("", Markup::Parse).unwrap(), [id]);
    }
}

#[test]
fn a_rendered_chat_is_encoded_as_it_stands() {
    let tokenizer = byte_level_with_bos();
    let with = tokenizer.encode_chat("<|endoftext|><|im_start|>user").unwrap();
    assert_eq!(with[..2], [0, 1], "the template's own bos, not a second one");
    let without = tokenizer.encode_chat("<|im_start|>user").unwrap();
    assert_eq!(without[0], 1, "a template without bos stays without");
}

#[test]
fn add_bos_token_in_the_configuration_wins_over_the_tokenizer() {
    let off = sentencepiece(r#"{"bos_token": "<s>", "add_bos_token": false}"#);
    assert!(!off.adds_bos());
    // It says nothing of a token by another name.
    let other = sentencepiece(r#"{"bos_token": "</s>", "add_bos_token": false}"#);
    assert!(other.adds_bos());
    assert_eq!((other.bos(), sentencepiece("{}").bos()), (Some(2), Some(1)));
    assert_ne!(off.encode_prompt("hi", Markup::Parse).unwrap()[0], 1);

    let config = r#"{"bos_token": {"content": "<|endoftext|>"}, "add_bos_token": true}"#;
    let config = TokenizerConfig::from_slice(config.as_bytes()).unwrap();
    let on = Tokenizer::from_slice(common::DEMO_TOKENIZER, &config).unwrap();
    assert!(on.adds_bos());
    let plain = on.encode_prompt("hi", Markup::Parse).unwrap();
    assert_eq!(plain[0], 0);
    assert_eq!(on.encode_prompt("<|endoftext|>hi", Markup::Parse).unwrap(), plain);
}

#[test]
fn the_demo_model_adds_nothing_to_a_prompt() {
    let tokenizer = demo();
    assert!(!tokenizer.adds_bos());
    let text = "Vec is a growable array";
    assert_eq!(
        tokenizer.encode_prompt(text, Markup::Parse).unwrap(),
        tokenizer.encode(text, Markup::Parse).unwrap()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn literal_text_that_is_already_composed_comes_back_unchanged(text in "[a-zA-Z0-9 \\n\\t<|>_{}().äöü你好🙂]{0,60}") {
        let tokenizer = DEMO.with(Clone::clone);
        let ids = tokenizer.encode(&text, Markup::Literal).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, SpecialTokens::Show).unwrap(), text);
    }
}

thread_local! {
    static DEMO: Tokenizer = demo();
}
