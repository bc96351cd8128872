//! `octavo chat` with its input from a pipe: the real binary with the built-in model.

#[path = "support/server.rs"]
mod server;

use server::{file, octavo};
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

/// A conversation of these lines, without chance.
fn chat(args: &[&str], lines: impl AsRef<[u8]>) -> Output {
    let mut command = octavo(&[&["chat", "--temperature", "0"], args].concat());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("the binary starts");
    process.stdin.take().unwrap().write_all(lines.as_ref()).unwrap();
    process.wait_with_output().unwrap()
}

/// What was answered, by line, in a conversation that ends well.
fn answers(args: &[&str], lines: &str) -> Vec<String> {
    let Output { status, stdout, stderr } = chat(args, lines);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn every_line_is_answered_and_what_was_said_is_known() {
    let lines = answers(&[], "My name is Ada.\nWhat is my name?\n");
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1], "Your name is Ada.");
}

#[test]
fn the_last_line_needs_no_line_break_and_empty_ones_are_skipped() {
    assert_eq!(answers(&[], "\n\nWhat does Vec::push do?").len(), 1);
    assert!(answers(&[], "").is_empty());
}

#[test]
fn reset_forgets_what_was_said() {
    let lines = answers(&[], "My name is Ada.\n/reset\nWhat is my name?\n");
    assert_eq!(lines.len(), 2);
    assert!(!lines[1].contains("Ada"), "{lines:?}");
}

#[test]
fn stats_show_that_earlier_turns_came_from_the_cache() {
    let lines = answers(&["--num-pages", "64"], "My name is Ada.\n/stats\nWhat is my name?\n/stats\n");
    assert!(lines[1].starts_with("pages: 0 used, "), "{lines:?}");
    assert!(lines[1].contains(" cached, 1 reserved, ") && lines[1].contains("free of 64"), "{lines:?}");
    let pages = |line: &str| -> Vec<u32> {
        let words = line.split([' ', ';']).filter_map(|word| word.parse().ok());
        words.take(5).collect()
    };
    for line in [&lines[1], &lines[3]] {
        let [used, cached, reserved, free, total] = pages(line)[..] else { panic!("{line}") };
        assert_eq!(used + cached + reserved + free, total, "{line}");
    }
    assert!(pages(&lines[3])[1] > pages(&lines[1])[1], "more is cached: {lines:?}");
    assert!(lines[1].contains("; 0 prompt tokens found"), "{lines:?}");
    assert!(!lines[3].contains("; 0 prompt tokens found"), "{lines:?}");
}

#[test]
fn quit_ends_before_the_rest_is_read() {
    for quit in ["/quit", "/exit"] {
        assert!(answers(&[], &format!("{quit}\nWhat does Vec::push do?\n")).is_empty(), "{quit}");
    }
}

const LONG: &str =
    "Please answer in one sentence, and say where in the standard library the answer is found.";

/// Prompt tokens that were found in the cache, by the last line.
fn found(args: &[&str], lines: &str) -> u32 {
    let lines = answers(args, &format!("{lines}/stats\n"));
    let found = lines.last().unwrap().split_once("; ").unwrap().1;
    found.split_once(" prompt tokens found").unwrap().0.parse().unwrap()
}

/// What begins alike is found again: whether there is a system message shows in that.
#[test]
fn a_system_message_stays_until_another_one_or_none_is_set() {
    let again = found(&[], &format!("{LONG}\n/reset\n{LONG}\n"));
    assert!(again >= 16, "{again}");
    let set = format!("/system {LONG}\nhi\n/reset\nhi\n");
    assert!(found(&[], &set) >= 16, "starting over keeps it");
    assert_eq!(found(&["--system", LONG], &format!("hi\n/reset\n/system {LONG}\nhi\n")), found(&[], &set));
    assert!(found(&[], &format!("{LONG}\n/reset\n/system {LONG}\n{LONG}\n")) < 8);
    assert_eq!(found(&[], &format!("/system Be brief.\n/system\n{LONG}\n/reset\n{LONG}\n")), again);
    assert_eq!(found(&[], &format!("{LONG}\n/reset\n/system x\n/system\n{LONG}\n")), again);
}

#[test]
fn sampling_is_as_it_was_asked_for() {
    let chance = ["--temperature", "1.5", "--top-k", "0", "--top-p", "1", "-n", "24", "--seed"];
    let said = |seed: &str| {
        let mut command = octavo(&[&["chat"], &chance[..], &[seed]].concat());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(b"Tell me something.\n").unwrap();
        process.wait_with_output().unwrap().stdout
    };
    assert_eq!(said("1"), said("1"));
    assert_ne!(said("1"), said("2"));
}

#[test]
fn an_unknown_command_is_answered_with_those_there_are() {
    let output = chat(&[], "/help\n");
    assert!(output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(["/reset", "/system", "/stats", "/quit"].iter().all(|name| said.contains(name)), "{said}");
}

#[test]
fn a_conversation_that_no_longer_fits_fails_once_and_in_words() {
    let output = chat(&["--max-model-len", "40"], "hi\nhi\nhi\nhi\nhi\nhi\n");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("takes at most 40 tokens").count(), 1, "{said}");
}

#[test]
fn a_line_that_is_no_text_is_skipped_and_told_at_the_end_again() {
    let output = chat(&[], b"My name is Ada.\n\xff\xfe\nWhat is my name?\n");
    let (said, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(said.lines().nth(1), Some("Your name is Ada."), "{said}");
    assert!(error.contains("line 2 is not text in UTF-8 and was skipped"), "{error}");
    assert!(error.contains("1 of 3 lines on standard input were not text"), "{error}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn options_come_from_a_file_and_the_environment_as_well() {
    let path = file("chat.toml", "max-tokens = 2\nport = 8000\napi-key = [\"those of serve\"]\n");
    let config = ["--config", path.to_str().unwrap()];
    let short = answers(&config, "What does Vec::push do?\n");
    let whole = answers(&[&config[..], &["--max-tokens", "64"]].concat(), "What does Vec::push do?\n");
    assert!(short[0].len() < whole[0].len() && whole[0].starts_with(&short[0]), "{short:?} {whole:?}");
    assert_eq!(answers(&[&config[..], &["--"]].concat(), "What does Vec::push do?\n"), short);
}

#[test]
fn a_switch_of_a_file_can_be_turned_off() {
    let path = file("chat-switch.toml", "no-prefix-cache = true\n");
    let config = ["--config", path.to_str().unwrap()];
    let lines = format!("{LONG}\n/reset\n{LONG}\n");
    assert_eq!(found(&config, &lines), 0);
    assert!(found(&[&config[..], &["--no-prefix-cache=false"]].concat(), &lines) >= 16);
}

#[test]
fn a_model_without_a_template_is_sent_to_generate() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let model = std::env::temp_dir().join(format!("octavo-no-template-{}", std::process::id()));
    std::fs::create_dir_all(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(demo.join(name), model.join(name)).unwrap();
    }
    let output = chat(&["--model", model.to_str().unwrap()], "hi\n");
    std::fs::remove_dir_all(&model).unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no chat template: use `octavo generate`"), "{said}");
}
