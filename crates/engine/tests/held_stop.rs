//! Stop strings in text that is held back until nothing more comes.

mod fake;

use fake::{Bench, PageRunner, VOCAB, prompt};
use octavo_engine::{Engine, EngineConfig, Event, Events, FinishReason, Finished, Request};
use octavo_text::{StopStrings, StopText, Tokenizer, TokenizerConfig};
use octavo_types::{Timestamp, Tokens};
use serde_json::json;

/// Every token ends in the first byte of a character, so that its text is not certain before the next.
fn tokenizer() -> Tokenizer {
    let vocab: serde_json::Map<_, _> = (0..VOCAB).map(|id| (format!("{id}Ã"), json!(id))).collect();
    let json = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "truncation": null, "padding": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0Ã"}});
    Tokenizer::from_slice(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap()
}

fn finished(stops: &[&str], stop_text: StopText) -> Finished {
    let settings = Bench::pool(8, 4);
    let runner = PageRunner::new(settings.total, settings.page_size);
    let config = EngineConfig::new(1, Tokens(32));
    let mut engine = Engine::new(config, settings, Box::new(runner), Some(tokenizer())).unwrap();
    let stops = StopStrings::new(stops, stop_text).unwrap();
    let request = Request { stop_strings: Some(stops), ..Request::new(prompt(1, 4), 1) };
    let accepted = engine.intake().accept(request).unwrap();
    engine.submit(accepted);
    let mut events = Events::new();
    for step in 1..10 {
        engine.step(Timestamp(step * 1000), &mut events);
    }
    let end = events.into_iter().find_map(|(_, event)| match event {
        Event::Finished(finished) => Some(finished),
        _ => None,
    });
    end.expect("it has ended")
}

#[test]
fn a_stop_string_that_only_the_end_completes_is_what_ended_the_text() {
    let end = finished(&["never", "\u{fffd}"], StopText::Drop);
    assert_eq!((end.reason, end.matched, end.text.as_str()), (FinishReason::Stop, Some(1), ""));
    let kept = finished(&["\u{fffd}"], StopText::Keep);
    assert_eq!((kept.reason, kept.matched, kept.text.as_str()), (FinishReason::Stop, Some(0), "\u{fffd}"));
}

#[test]
fn text_held_back_that_completes_no_stop_string_is_given_out() {
    let end = finished(&["\u{fffd} and more"], StopText::Drop);
    assert_eq!((end.reason, end.matched, end.text.as_str()), (FinishReason::Length, None, "\u{fffd}"));
}
