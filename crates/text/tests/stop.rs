//! Stop strings, against a search of the whole text.

use octavo_text::{MAX_STOP_BYTES, MAX_STOPS, Pushed, StopError, StopStrings, StopText};
use proptest::prelude::*;

fn stops(list: &[&str]) -> StopStrings {
    StopStrings::new(list, StopText::Drop).unwrap()
}

/// Everything that comes out, and which stop string ended it.
fn run(stops: &mut StopStrings, pieces: &[&str]) -> (String, Option<usize>) {
    let mut out = String::new();
    for piece in pieces {
        let Pushed { text, stopped } = stops.push(piece);
        out += &text;
        if stopped.is_some() {
            assert_eq!(stops.finish(), "", "nothing follows a stop string");
            return (out, stopped);
        }
    }
    out += &stops.finish();
    (out, None)
}

#[test]
fn without_stop_strings_text_passes_at_once() {
    let mut none = stops(&[]);
    assert_eq!(none.push("héllo"), Pushed { text: "héllo".into(), stopped: None });
    assert_eq!(none.finish(), "");
}

#[test]
fn what_could_become_a_stop_string_waits_and_nothing_else_does() {
    let mut end = stops(&["<end>"]);
    assert_eq!(end.push("a < b <e").text, "a < b ");
    assert_eq!(end.held(), "<e");
    assert_eq!(end.push("lse <en").text, "<else ");
    assert_eq!(end.finish(), "<en", "the text ended by itself");
    assert_eq!(end.push("d>"), Pushed { text: "d>".into(), stopped: None }, "another text");
}

#[test]
fn a_stop_string_is_found_across_pieces_and_the_rest_is_dropped() {
    assert_eq!(run(&mut stops(&["\n\nQ:"]), &["A: 4\n", "\n", "Q", ": more"]), ("A: 4".into(), Some(0)));
}

#[test]
fn the_stop_string_is_kept_where_asked_for() {
    let mut keep = StopStrings::new(&["</a>"], StopText::Keep).unwrap();
    assert_eq!(run(&mut keep, &["x<", "/a", "> y"]), ("x</a>".into(), Some(0)));
}

#[test]
fn what_is_passed_ends_no_text_but_may_begin_what_does() {
    let mut end = stops(&["<end>", "e"]);
    assert_eq!(end.pass("a<end>b<en"), "a<end>b");
    assert_eq!(end.held(), "<en");
    assert_eq!(end.push("d> c"), Pushed { text: String::new(), stopped: Some(0) });
    // A whole match that is let go may end with the beginning of the next.
    let mut twice = stops(&["abab"]);
    assert_eq!(twice.pass("abab"), "ab");
    assert_eq!(twice.push("ab"), Pushed { text: String::new(), stopped: Some(0) });
    let mut none = stops(&["abab"]);
    assert_eq!(none.pass("xabab") + &none.pass("x") + &none.finish(), "xababx");
}

#[test]
fn a_failed_start_may_hold_another_start() {
    assert_eq!(run(&mut stops(&["aab"]), &["a", "a", "a", "b"]), ("a".into(), Some(0)));
    assert_eq!(run(&mut stops(&["ababc"]), &["abab", "abc"]), ("ab".into(), Some(0)));
}

#[test]
fn the_first_to_be_complete_ends_the_text_and_of_those_the_longest() {
    assert_eq!(run(&mut stops(&["abc", "b"]), &["xabc"]), ("xa".into(), Some(1)));
    assert_eq!(run(&mut stops(&["c", "abc", "abc"]), &["xabc"]), ("x".into(), Some(1)));
}

#[test]
fn characters_of_many_bytes_are_never_cut() {
    // Both begin with the same three bytes.
    let mut face = stops(&["😀!"]);
    assert_eq!(face.push("😁😀").text, "😁");
    assert_eq!(face.push("é").text, "😀é");
    assert_eq!(run(&mut face, &["ü😀", "!"]), ("ü".into(), Some(0)));
}

#[test]
fn after_a_stop_nothing_comes_out() {
    let mut stop = stops(&["."]);
    assert_eq!(stop.push("a.b"), Pushed { text: "a".into(), stopped: Some(0) });
    assert_eq!(stop.push("c"), Pushed { text: String::new(), stopped: Some(0) });
    assert_eq!(stop.finish(), "");
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let refused = |list: &[String]| StopStrings::new(list, StopText::Drop).unwrap_err();
    let many = vec!["x".to_string(); MAX_STOPS + 1];
    assert_eq!(refused(&many).to_string(), "17 stop strings: there can be at most 16");
    assert_eq!(refused(&["a".into(), String::new()]), StopError::Empty { index: 1 });
    let long = "x".repeat(MAX_STOP_BYTES + 1);
    assert_eq!(refused(&[long]), StopError::TooLong { index: 0, bytes: 1025 });
    assert!(StopStrings::new(&vec!["x".repeat(MAX_STOP_BYTES); MAX_STOPS], StopText::Drop).is_ok());
}

#[test]
fn near_matches_cost_no_more_than_other_text() {
    // Quadratic work would be 10^10 steps here.
    let mut stop =
        StopStrings::new(&vec!["a".repeat(MAX_STOP_BYTES - 1) + "b"; MAX_STOPS], StopText::Drop).unwrap();
    let text = "a".repeat(1_000_000);
    let mut released = stop.push(&text).text.len();
    assert!(stop.held().len() < MAX_STOP_BYTES);
    released += stop.finish().len();
    assert_eq!(released, text.len());
}

/// The whole text at once: where a stop string is first complete.
fn naive(text: &str, list: &[String]) -> (String, Option<usize>) {
    for end in 0..=text.len() {
        let complete =
            list.iter().enumerate().filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some((index, stop)) = complete.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index)) {
            return (text[..end - stop.len()].into(), Some(index));
        }
    }
    (text.into(), None)
}

proptest! {
    #[test]
    fn however_the_text_is_cut_the_result_is_that_of_the_whole_text(
        pieces in prop::collection::vec("[abé😀😁]{0,4}", 0..12),
        list in prop::collection::vec("[abé😀😁]{1,5}", 0..5),
    ) {
        let expected = naive(&pieces.concat(), &list);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let found = run(&mut StopStrings::new(&list, StopText::Drop).unwrap(), &pieces);
        prop_assert_eq!(&found, &expected);
        let kept = run(&mut StopStrings::new(&list, StopText::Keep).unwrap(), &pieces);
        let whole = expected.0 + expected.1.map_or("", |index| list[index].as_str());
        prop_assert_eq!(kept, (whole, expected.1));
    }

    #[test]
    fn no_more_is_held_than_could_begin_a_stop_string(
        text in "[ab]{0,30}",
        list in prop::collection::vec("[ab]{4,8}", 1..4),
    ) {
        let mut stop = StopStrings::new(&list, StopText::Drop).unwrap();
        if stop.push(&text).stopped.is_none() {
            let ends = (0..=text.len()).map(|at| &text[at..]);
            let longest = ends.filter(|end| list.iter().any(|stop| stop.starts_with(end))).map(str::len).max();
            prop_assert_eq!(stop.held().len(), longest.unwrap_or(0));
        }
    }
}
