//! `octavo generate`, the real binary with the built-in model.

use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn octavo(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = octavo(&[args, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const ASK: [&str; 5] = ["generate", "--chat", "What does Vec::push do?", "--temperature", "0"];

#[test]
fn the_built_in_model_answers_with_no_file_and_no_network() {
    let output = octavo(&ASK);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "`Vec::push` appends an element to the back of a collection.\n"
    );
}

#[test]
fn json_has_the_ids_the_text_the_reason_and_the_timings() {
    let answer = json(&ASK);
    assert!(answer["text"].as_str().unwrap().starts_with("`Vec::push` appends"));
    assert_eq!(answer["finish_reason"], "stop");
    assert!(answer["prompt_token_ids"].as_array().unwrap().len() > 5);
    assert!(answer["token_ids"].as_array().unwrap().len() > 5);
    for key in ["load_seconds", "prefill_seconds", "decode_seconds", "tokens_per_second"] {
        assert!(answer["timings"][key].is_f64(), "{key}");
    }
    let timing = |key: &str| answer["timings"][key].as_f64().unwrap();
    let count = |key: &str| answer[key].as_array().unwrap().len() as f64;
    let reading = timing("prompt_tokens_per_second") * timing("prefill_seconds");
    assert!((reading - count("prompt_token_ids")).abs() < 1e-6, "{answer}");
    // The first token is the prompt's.
    let writing = timing("tokens_per_second") * timing("decode_seconds");
    assert!((writing - (count("token_ids") - 1.0)).abs() < 1e-6, "{answer}");
    assert_ne!(timing("load_seconds"), timing("prefill_seconds"));
    assert_eq!(json(&[&ASK[..], &["-n", "3"]].concat())["finish_reason"], "length");
}

#[test]
fn what_is_interrupted_keeps_what_is_there_and_does_not_end_as_if_it_were_whole() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interrupted.json");
    let more = ["--ignore-eos", "--max-tokens", "4000", "--json", file.to_str().unwrap()];
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(ASK).args(more);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut out, mut text) = (child.stdout.take().unwrap(), vec![0; 20]);
    out.read_exact(&mut text).unwrap();
    Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    out.read_to_end(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(answer["finish_reason"], "cancelled");
    assert_eq!(format!("{}\n", answer["text"].as_str().unwrap()), String::from_utf8(text).unwrap());
}

#[test]
fn a_switch_may_have_a_value_and_takes_nothing_of_what_follows_it() {
    let ids = |args: &[&str]| json(&[&["generate", "-n", "1"], args].concat())["prompt_token_ids"].clone();
    let (chat, text) = (ids(&["hi", "--chat"]), ids(&["hi"]));
    assert_ne!(chat, text);
    assert_eq!(ids(&["--deterministic", "--chat", "hi"]), chat);
    assert_eq!(ids(&["--chat=true", "hi"]), chat);
    assert_eq!(ids(&["--deterministic=false", "--chat=false", "hi"]), text);
}

#[test]
fn a_system_message_without_a_chat_is_refused() {
    for args in [&[][..], &["--chat=false"]] {
        let output = octavo(&[&["generate", "hi", "--system", "Be brief."], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("--chat"), "{args:?}: {said}");
    }
}

#[test]
fn a_system_message_comes_before_the_users() {
    let ids = |more: &[&str]| json(&[&ASK[..], &["-n", "1"], more].concat())["prompt_token_ids"].clone();
    let (alone, told) = (ids(&[]), ids(&["--system", "Answer in one word."]));
    let [alone, told] = [alone, told].map(|ids| ids.as_array().unwrap().clone());
    assert!(told.len() > alone.len() && told.ends_with(&alone), "{told:?} {alone:?}");
}

#[test]
fn greedy_tokens_are_the_same_paged_and_contiguous_for_every_precision() {
    let prompt = ["generate", "--chat", "My name is Ada. What is my name?", "--temperature", "0"];
    for dtype in ["f32", "f16", "bf16", "fp8", "int8"] {
        let run =
            |more: &[&str]| json(&[&prompt[..], &["--kv-dtype", dtype], more].concat())["token_ids"].clone();
        let paged = run(&[]);
        assert_eq!(paged, run(&["--kv-backend", "contiguous"]), "{dtype}");
        assert_eq!(paged, run(&["--page-size", "3", "--chunk", "5", "--threads", "1"]), "{dtype}");
    }
}

#[test]
fn what_was_said_earlier_is_recalled_through_the_cache() {
    let prompt = ["generate", "--chat", "My name is Ada. What is my name?", "--temperature", "0"];
    for dtype in ["f16", "fp8", "int8"] {
        let answer = json(&[&prompt[..], &["--kv-dtype", dtype]].concat());
        assert_eq!(answer["text"], "Your name is Ada.", "{dtype}");
    }
}

#[test]
fn the_prompt_comes_from_a_file_or_from_standard_input() {
    let file = std::env::temp_dir().join(format!("octavo-prompt-{}", std::process::id()));
    std::fs::write(&file, "fn main() {\r\n").unwrap();
    let args = ["generate", "--temperature", "0", "-n", "8", "--json", "-"];
    let from_file = octavo(&[&args[..], &["--prompt-file", file.to_str().unwrap()]].concat());
    std::fs::remove_file(&file).unwrap();
    let from_stdin = |more: &[&str], text: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_octavo"))
            .args([&args[..], more].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let ids = |out: &[u8]| serde_json::from_slice::<Value>(out).unwrap()["prompt_token_ids"].clone();
    let given = ids(&octavo(&[&args[..], &["fn main() {"]].concat()).stdout);
    assert_eq!(ids(&from_file.stdout), given, "a line break at the end is not meant");
    assert_eq!(ids(&from_stdin(&[], "fn main() {").stdout), given);
    assert_eq!(ids(&from_stdin(&["-"], "fn main() {\n").stdout), given);
}

/// Some editors put one at the beginning.
#[test]
fn a_byte_order_mark_is_not_part_of_the_prompt() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("marked.txt");
    std::fs::write(&file, "\u{feff}fn main() {").unwrap();
    let ids = |args: &[&str]| json(&[&["generate", "-n", "1"], args].concat())["prompt_token_ids"].clone();
    assert_eq!(ids(&["--prompt-file", file.to_str().unwrap()]), ids(&["fn main() {"]));
}

/// The file that `--json` names is made or changed when there is something to write, and not before.
#[test]
fn a_command_that_fails_leaves_the_file_for_its_json_as_it_was() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("left.json");
    let _ = std::fs::remove_file(&path);
    let file = ["--json", path.to_str().unwrap()];
    for fails in [
        &["generate", "x", "--model", "/no/such/folder"][..],
        &["quality", "--model", "/no/such/folder"],
        &["plan", "--model", "/no/such/folder"],
        &["bench", "trace", "/no/such/file"],
    ] {
        assert!(!octavo(&[fails, &file].concat()).status.success());
        assert!(!path.exists(), "{fails:?}");
        std::fs::write(&path, "kept").unwrap();
        assert!(!octavo(&[fails, &file].concat()).status.success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept", "{fails:?}");
        std::fs::remove_file(&path).unwrap();
    }
    for old in [None, Some("longer than what comes".repeat(1000))] {
        if let Some(old) = old {
            std::fs::write(&path, old).unwrap();
        }
        assert!(octavo(&[&["generate", "x", "-n", "1"], &file[..]].concat()).status.success());
        let answer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(answer["finish_reason"], "length");
    }
}

#[test]
fn an_error_is_told_with_its_cause_once() {
    let empty = std::env::temp_dir().join(format!("octavo-empty-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let failed = octavo(&["generate", "--model", empty.to_str().unwrap(), "hello"]);
    std::fs::remove_dir(&empty).unwrap();
    let text = String::from_utf8(failed.stderr).unwrap();
    assert_eq!((failed.status.code(), text.matches("No such file").count()), (Some(1), 1), "{text}");
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_gives_another() {
    let run = |seed| {
        let args =
            ["generate", "The standard library", "--temperature", "1.5", "--top-k", "0", "--top-p", "1"];
        json(&[&args[..], &["-n", "24", "--seed", seed]].concat())["token_ids"].clone()
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn a_model_directory_works_like_the_built_in_one() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo");
    assert_eq!(json(&[&ASK[..], &["--model", dir]].concat())["token_ids"], json(&ASK)["token_ids"]);
}

#[test]
fn a_model_whose_own_defaults_make_no_sense_is_refused() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let model = std::env::temp_dir().join(format!("octavo-defaults-{}", std::process::id()));
    std::fs::create_dir_all(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(demo.join(name), model.join(name)).unwrap();
    }
    std::fs::write(model.join("generation_config.json"), r#"{"top_p": 0}"#).unwrap();
    let output = octavo(&["generate", "x", "--model", model.to_str().unwrap()]);
    std::fs::remove_dir_all(&model).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("generation_config.json of the model: top_p"),
        "{error}"
    );
}

#[test]
fn what_cannot_work_is_refused_with_what_to_do() {
    let refused = |args: &[&str], part: &str| {
        let output = octavo(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(part), "{args:?}: {error}");
        assert!(output.stdout.is_empty());
    };
    refused(&["generate", "x", "--model", "/no/such/folder"], "config.json");
    refused(&["generate", "x", "--json", "/no/such/folder/x"], "cannot write /no/such/folder/x");
    refused(&["generate", "x", "--page-size", "0"], "0 is not in 1..");
    refused(&["generate", "x", "--chunk", "0"], "0 is not in 1..");
    refused(&["generate", "x", "--kv-memory", "lots"], "lots");
    refused(&["generate", "x", "--kv-memory", "1KB"], "at least one page");
    refused(&["generate", "x", "--max-model-len", "9999999"], "4096");
    refused(&["generate", "x", "--temperature", "-1"], "'--temperature <T>': it must be between 0 and 100");
    refused(&["generate", "x", "--top-p", "-1"], "'--top-p <P>': it must be above 0 and at most 1");
    refused(&["generate", "x", "--max-tokens", "-1"], "-1 is not in 0..");
    refused(&["generate", "x", "--threads", "0"], "choose 1 to 1024");
    refused(&["generate", "x", "--threads", "9999"], "choose 1 to 1024");
    refused(&["bench", "gemm", "--quick", "--threads", "9999"], "choose 1 to 1024");
    refused(&["generate", "x", "--prompt-file", "y"], "cannot be used with");
    refused(&["generate", "--prompt-file", "/no/such/file"], "/no/such/file");
    refused(&["generate", ""], "at least one token");
    let long = "word ".repeat(5000);
    refused(&["generate", &long], "4096");
    refused(&["generate", &long, "--max-model-len", "100"], "100");
}

/// Rather than with an answer that looks finished.
#[test]
fn damaged_weights_end_in_an_error() {
    let (from, to) = (
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo")),
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged"),
    );
    std::fs::create_dir_all(&to).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let mut bytes = std::fs::read(from.join(file)).unwrap();
        if file == "model.safetensors" {
            let middle = bytes.len() / 2;
            bytes[middle..][..200_000].fill(0xff);
        }
        std::fs::write(to.join(file), bytes).unwrap();
    }
    let output = octavo(&["generate", "hi", "-n", "5", "--model", to.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("computed no number for any token: its weights may be damaged"), "{error}");
}

/// What could not be written is no success; who stopped reading has seen enough.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for args in [
        &["generate", "The", "-n", "4"][..],
        &["generate", "The", "-n", "4", "--json", "-"],
        &["chat", "-n", "4"],
    ] {
        for (out, code, says) in [(full(), 1, "octavo: cannot write to standard output"), (closed(), 0, "")] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
            let command = command.args(args).stdin(Stdio::piped()).stdout(out).stderr(Stdio::piped());
            let mut running = command.spawn().unwrap();
            running.stdin.take().unwrap().write_all(b"hello\n").unwrap();
            let ended = running.wait_with_output().unwrap();
            let error = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(
                (ended.status.code(), error.starts_with(says)),
                (Some(code), true),
                "{args:?}: {error}"
            );
        }
    }
}

/// What is said beside the text is lost, and nothing else.
#[test]
fn standard_error_that_takes_nothing_ends_nothing() {
    for args in [&["generate", "The", "-n", "4", "--num-pages", "8"][..], &["chat", "-n", "4"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
        let command = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(full);
        let mut running = command.spawn().unwrap();
        running.stdin.take().unwrap().write_all(b"/nonsense\nhello\n").unwrap();
        let ended = running.wait_with_output().unwrap();
        assert!(ended.status.success() && !ended.stdout.is_empty(), "{args:?}: {ended:?}");
    }
}

#[test]
fn a_pool_smaller_than_the_model_bounds_the_text_and_says_so() {
    let output =
        octavo(&["generate", "fn main() {", "--num-pages", "1", "--ignore-eos", "-n", "200", "--json", "-"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.contains("16 tokens"), "{error}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let len = |key: &str| answer[key].as_array().unwrap().len();
    assert_eq!(len("prompt_token_ids") + len("token_ids"), 16);
    assert_eq!(answer["finish_reason"], "length");
    let asked = octavo(&["generate", "fn main() {", "--num-pages", "1", "--max-model-len", "100"]);
    let error = String::from_utf8(asked.stderr).unwrap();
    assert!(!asked.status.success() && error.contains("1 page") && error.contains("16 tokens"), "{error}");
}
