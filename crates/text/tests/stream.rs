//! Text token by token is the text of all tokens.

mod common;

use std::sync::LazyLock;

use common::{DEMO_TOKENIZER, SENTENCEPIECE as SENTENCEPIECE_JSON, demo, sentencepiece, with_decoder};
use octavo_text::{Markup, SpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

static DEMO: LazyLock<Tokenizer> = LazyLock::new(demo);
static SENTENCEPIECE: LazyLock<Tokenizer> = LazyLock::new(|| sentencepiece("{}"));

/// Byte-level, and its text goes through another step.
static STEPS: LazyLock<Tokenizer> = LazyLock::new(|| {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    with_decoder(DEMO_TOKENIZER, json!({"type": "Sequence", "decoders": [byte_level, {"type": "Fuse"}]}))
});

const TEXTS: [&str; 9] = [
    "plain words, and a few more.",
    "🙂👨‍👩‍👧‍👦🇩🇪👍🏽 in a row 🏳️‍🌈",
    "你好,世界。日本語と한국어",
    "e\u{301}a\u{300}\u{302}\u{323} n\u{303}",
    "नमस्ते שלום مرحبا Здравствуй",
    "  leading and   inner    spaces  ",
    "the the\n\n\nthe\tthe \n the",
    "a replacement \u{fffd} of one's own \u{fffd}",
    "\u{0}\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}",
];

fn streamed(tokenizer: &Tokenizer, ids: &[u32], special: SpecialTokens) -> Vec<String> {
    let mut stream = tokenizer.stream(special);
    let mut pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    pieces
}

fn check(tokenizer: &Tokenizer, ids: &[u32]) {
    for special in [SpecialTokens::Skip, SpecialTokens::Show] {
        let whole = tokenizer.decode(ids, special).unwrap();
        assert_eq!(streamed(tokenizer, ids, special).concat(), whole, "{special:?} {ids:?}");
    }
}

/// Ids of the single-byte tokens for `bytes`: `<0xE4>` where the tokenizer has such, a token of one byte otherwise.
fn byte_ids(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
    let by_bytes =
        |byte: u8| (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [byte]);
    let id_of =
        |&byte: &u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).or_else(|| by_bytes(byte)).unwrap();
    bytes.iter().map(id_of).collect()
}

#[test]
fn texts_in_many_scripts_stream_as_a_whole() {
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        for text in TEXTS {
            check(tokenizer, &tokenizer.encode(text, Markup::Parse).unwrap());
            check(tokenizer, &tokenizer.encode_prompt(text, Markup::Literal).unwrap());
        }
    }
}

#[test]
fn no_piece_of_valid_text_splits_a_character() {
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        for text in TEXTS.iter().filter(|text| !text.contains('\u{fffd}')) {
            let ids = tokenizer.encode(text, Markup::Literal).unwrap();
            for piece in streamed(tokenizer, &ids, SpecialTokens::Skip) {
                assert!(!piece.contains('\u{fffd}'), "{text:?} gave {piece:?}");
            }
        }
    }
}

#[test]
fn a_character_appears_with_its_last_byte() {
    let mut stream = DEMO.stream(SpecialTokens::Skip);
    let ids = byte_ids(&DEMO, "🙂".as_bytes());
    let out: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(out, [None, None, None, Some("🙂".to_owned())]);
    assert_eq!(stream.finish(), "");
    // A list of one decoder is that decoder.
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let one = with_decoder(DEMO_TOKENIZER, json!({"type": "Sequence", "decoders": [byte_level]}));
    let mut stream = one.stream(SpecialTokens::Skip);
    assert_eq!(ids.iter().map(|&id| stream.push(id)).collect::<Vec<_>>(), out);
}

#[test]
fn a_cut_character_is_held_back_until_the_end() {
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        let ids = byte_ids(tokenizer, &"🙂".as_bytes()[..3]);
        let mut stream = tokenizer.stream(SpecialTokens::Skip);
        assert!(ids.iter().all(|&id| stream.push(id).is_none()));
        assert_eq!(stream.finish(), tokenizer.decode(&ids, SpecialTokens::Skip).unwrap());
    }
}

#[test]
fn bytes_that_are_not_utf8_become_the_same_marks_as_in_the_whole() {
    let cases: [&[u8]; 7] = [
        b"\xff\xfe\xfd",
        b"a\xe4\xbdb",
        b"\xe4\xbd\xa0\xff",
        b"\xf0\x9f\x99x\xf0\x9f",
        b"\xc0\xaf\xed\xa0\x80",
        b"\xf4\x90\x80\x80z",
        b"ok\x80ok\xe4",
    ];
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        for bytes in cases {
            check(tokenizer, &byte_ids(tokenizer, bytes));
        }
    }
}

#[test]
fn plain_words_are_not_held_back() {
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        let ids = tokenizer.encode("hi the hill", Markup::Parse).unwrap();
        let mut stream = tokenizer.stream(SpecialTokens::Skip);
        let silent = ids.iter().filter(|&&id| stream.push(id).is_none()).count();
        assert!(silent <= 1, "only a stripped leading space may be silent, not {silent} of {}", ids.len());
        assert_eq!(stream.finish(), "");
    }
}

#[test]
fn a_space_after_a_skipped_special_token_survives() {
    let tokenizer = &*SENTENCEPIECE;
    let id = |token: &str| tokenizer.token_id(token).unwrap();
    check(
        tokenizer,
        &[id("<s>"), id("▁the"), id("</s>"), id("▁the"), id("<s>"), id("<s>"), id("▁"), id("▁"), id("▁the")],
    );
    check(tokenizer, &[id("▁"), id("▁"), id("</s>"), id("▁▁"), id("a"), id("▁▁▁▁"), id("▁"), id("▁")]);
    check(tokenizer, &[id("<0xE4>"), id("</s>"), id("<0xBD>"), id("<0xA0>"), id("▁the")]);
}

#[test]
fn unknown_ids_leave_no_text() {
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        let known = tokenizer.encode("the hi", Markup::Parse).unwrap();
        let mut ids = vec![u32::MAX];
        ids.extend(known.iter().flat_map(|&id| [id, 1_000_000]));
        check(tokenizer, &ids);
        assert_eq!(streamed(tokenizer, &ids, SpecialTokens::Skip).concat(), "the hi");
    }
}

#[test]
fn decoders_that_look_at_neighbours_stream_as_a_whole() {
    let strip = |start| json!({"type": "Strip", "content": " ", "start": start, "stop": 0});
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let fuse = json!({"type": "Fuse"});
    let decoders = [
        json!(null),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "BPEDecoder", "suffix": "e"}),
        json!({"type": "Sequence", "decoders": [replace, fuse, strip(3)]}),
        json!({"type": "Sequence", "decoders": [replace, fuse, strip(9)]}),
    ];
    for decoder in decoders {
        let tokenizer = with_decoder(SENTENCEPIECE_JSON, decoder);
        for ids in pseudo_random_ids(tokenizer.vocab_size() as u32) {
            check(&tokenizer, &ids);
        }
        let [space, the] = ["▁", "▁the"].map(|token| tokenizer.token_id(token).unwrap());
        (0..16)
            .for_each(|spaces| check(&tokenizer, &[&vec![space; spaces][..], &[the, space, the]].concat()));
        // Lists of which nothing may be left.
        [&[0, 1][..], &[1_000_000], &[1, 1_000_000]].into_iter().for_each(|ids| check(&tokenizer, ids));
        // Only a decoder that makes bytes of them waits for the others of a character.
        let byte = tokenizer.token_id("<0xE4>").unwrap();
        assert!(tokenizer.stream(SpecialTokens::Skip).push(byte).is_some());
    }
}

#[test]
fn a_byte_decoder_in_several_steps_streams_valid_text_as_a_whole() {
    let tokenizer = &*STEPS;
    for text in TEXTS {
        let ids = tokenizer.encode(text, Markup::Literal).unwrap();
        assert!(
            text.contains('\u{fffd}')
                || !streamed(tokenizer, &ids, SpecialTokens::Show).concat().contains('\u{fffd}')
        );
        check(tokenizer, &ids);
    }
}

#[test]
fn a_byte_decoder_in_several_steps_waits_for_a_character_after_any_number_of_wrong_bytes() {
    for wrong in 0..8 {
        let bytes = [&b"\xff".repeat(wrong), "🙂".as_bytes(), b"\xf0\x9f"].concat();
        check(&STEPS, &byte_ids(&STEPS, &bytes));
        let mut stream = STEPS.stream(SpecialTokens::Skip);
        let ids = byte_ids(&STEPS, &b"\xff".repeat(wrong));
        let pieces: Vec<_> = ids.into_iter().map(|id| stream.push(id)).collect();
        assert!(pieces.iter().all(|piece| piece.as_deref() == Some("\u{fffd}")), "{pieces:?}");
    }
}

/// Sequences that mix spaces, letters and special tokens in all orders; the same ones every time.
fn pseudo_random_ids(vocab: u32) -> impl Iterator<Item = Vec<u32>> {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..300).map(move |len| {
        // Ids from 259 are pieces of text; the first three are special.
        let mut id = || if next() % 8 == 0 { next() % 3 } else { 259 + next() % (vocab - 259) };
        (0..len % 40).map(|_| id()).collect()
    })
}

#[test]
fn streams_and_templates_cross_threads() {
    fn movable<T: Send + Sync>() {}
    movable::<Tokenizer>();
    movable::<octavo_text::TextStream>();
    movable::<octavo_text::ChatTemplate>();
}

#[test]
fn a_long_answer_costs_as_much_a_token_as_a_short_one() {
    // Quadratic work would take minutes for these.
    for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
        let words = tokenizer.encode(&"the hi é 你 ".repeat(4_000), Markup::Parse).unwrap();
        check(tokenizer, &words);
        let broken = byte_ids(tokenizer, b"\xff").repeat(50_000);
        check(tokenizer, &broken);
        let spaces = vec![*tokenizer.encode(" ", Markup::Parse).unwrap().last().unwrap(); 20_000];
        check(tokenizer, &spaces);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn random_ids_stream_as_a_whole(ids in prop::collection::vec(0u32..6150, 0..60)) {
        check(&DEMO, &ids);
    }

    #[test]
    fn random_bytes_and_words_stream_as_a_whole(ids in prop::collection::vec(0u32..310, 0..60)) {
        check(&DEMO, &ids);
        check(&STEPS, &ids);
        check(&SENTENCEPIECE, &ids);
    }

    #[test]
    fn random_text_streams_as_a_whole(text in "\\PC{0,40}") {
        for tokenizer in [&*DEMO, &*SENTENCEPIECE] {
            check(tokenizer, &tokenizer.encode(&text, Markup::Parse).unwrap());
        }
    }
}
