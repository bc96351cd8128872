//! The quality command as a user runs it, on short texts with the built-in model.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use support::Octavo;

const QUALITY: Octavo = Octavo("quality");

fn row<'a>(report: &'a Value, precision: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter()
        .find(|row| row["precision"] == precision)
        .unwrap_or_else(|| panic!("no {precision}: {report}"))
}

fn figure(report: &Value, precision: &str, key: &str) -> f64 {
    row(report, precision)[key].as_f64().unwrap_or_else(|| panic!("{precision} has no {key}: {report}"))
}

fn file(name: &str, contents: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

/// Of few tokens chance alone makes fp8 look two percent better or worse.
#[test]
fn eight_bits_stay_within_two_percent_of_f16_at_half_the_bytes() {
    let precisions = ["--precisions", "f16,fp8,int8", "--window", "512", "--limit", "0"];
    let report = QUALITY.object(&precisions);
    for precision in ["fp8", "int8"] {
        assert!(figure(&report, precision, "perplexity_change_percent").abs() < 2.0, "{report}");
        assert!((0.5..0.55).contains(&figure(&report, precision, "share_of_f16")), "{report}");
        assert!(figure(&report, precision, "mean_kl") > 0.0, "what is blurred must be seen: {report}");
    }
    assert_eq!(report["goals_met"], true, "{report}");
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 4);
    let base = figure(&report, "f16", "perplexity");
    for (precision, goals) in ["fp8", "int8"].into_iter().zip(goals.chunks(2)) {
        let change = figure(&report, precision, "perplexity_change_percent");
        let expected = 100.0 * (figure(&report, precision, "perplexity") / base - 1.0);
        assert!((change - expected).abs() < 1e-9, "{report}");
        assert_eq!(goals[0]["figure"], change.abs(), "{report}");
        assert_eq!(goals[1]["figure"], figure(&report, precision, "share_of_f16"), "{report}");
    }
}

#[test]
fn perplexity_is_that_of_transformers() {
    let report = QUALITY.object(&["--tokens", "600", "--window", "300", "--limit", "0"]);
    assert_eq!((&report["tokens"], &report["predicted"]), (&600.into(), &598.into()));
    for precision in ["f32", "f16", "bf16", "fp8", "int8"] {
        // It knows the subject: far from the 6 144 of a model that knows nothing.
        assert!((2.0..600.0).contains(&figure(&report, precision, "perplexity")), "{report}");
    }
    // The same text, model and windows by Hugging Face transformers in float32. Weights in bf16 are multiplied with
    // activations in bf16, unless they are widened.
    let transformers = 94.949_050_7;
    let off = figure(&report, "f32", "perplexity") / transformers - 1.0;
    assert!(off != 0.0 && off.abs() < 1e-2, "off by {off}: {report}");
    let widened =
        ["--tokens", "600", "--window", "300", "--limit", "0", "--precisions", "f32", "--weights", "f32"];
    let report = QUALITY.object(&widened);
    let off = figure(&report, "f32", "perplexity") / transformers - 1.0;
    assert!(off.abs() < 1e-4, "widened, off by {off}: {report}");
}

#[test]
fn f16_is_what_the_others_are_measured_against() {
    let report = QUALITY.object(&["--tokens", "120", "--limit", "0"]);
    for key in ["mean_kl", "max_kl", "perplexity_change_percent"] {
        assert_eq!(figure(&report, "f16", key), 0.0, "{key}");
    }
    let kl = |precision| figure(&report, precision, "mean_kl");
    assert!(kl("f32") < kl("bf16") && kl("bf16") < kl("fp8"), "{report}");
    assert!(kl("fp8") <= figure(&report, "fp8", "max_kl"), "{report}");
    assert_eq!(row(&report, "f16")["recall"], Value::Null);
}

#[test]
fn recall_in_f16_is_that_in_f32_within_a_few_percent() {
    let report = QUALITY.object(&["--tokens", "32", "--limit", "16", "--precisions", "f32,f16"]);
    let [f32, f16] = ["f32", "f16"].map(|precision| figure(&report, precision, "recall"));
    assert!((f32 - f16).abs() <= 1.0 / 16.0, "{report}");
    assert!(f16 > 0.2, "the cache carries what was said before: {report}");
    assert_eq!(report["conversations"], 16);
}

#[test]
fn two_runs_print_the_same_whatever_the_threads() {
    let args = ["--tokens", "100", "--limit", "1", "--precisions", "fp8"];
    let one = QUALITY.text(&[&args[..], &["--threads", "1"]].concat());
    assert_eq!(one, QUALITY.text(&[&args[..], &["--threads", "2"]].concat()));
    assert!(one.contains("\nGoals\n") && one.contains("precision"), "{one}");
}

#[test]
fn only_the_precisions_asked_for_and_f16_are_measured() {
    let report = QUALITY.object(&["--tokens", "20", "--limit", "0", "--precisions", "int8"]);
    let names: Vec<&Value> = report["rows"].as_array().unwrap().iter().map(|row| &row["precision"]).collect();
    assert_eq!(names, ["f16", "int8"]);
}

#[test]
fn a_text_and_conversations_of_ones_own_are_measured() {
    let text =
        file("own.txt", "Returns the number of elements in the vector, also referred to as its length.");
    let line = r#"{"messages": [{"role": "user", "content": "Hello, my name is Nick."}, {"role": "assistant", "content": "Nice to meet you, Nick! What would you like to know about Rust?"}, {"role": "user", "content": "Who am I?"}], "answer": "Your name is Nick."}"#;
    // The beginning of an answer is none.
    let short = line.replace("Your name is Nick.", "Your name is");
    let recall = file("own.jsonl", &format!("{line}\n\n{short}\n"));
    // Windows of the text are no limit to conversations.
    let [text, recall] = [&text, &recall].map(|path| path.to_str().unwrap());
    let args = ["--text", text, "--recall", recall, "--precisions", "f16", "--window", "16"];
    let report = QUALITY.object(&args);
    assert_eq!((&report["conversations"], &row(&report, "f16")["recall"]), (&2.into(), &0.5.into()));
    assert_eq!(row(&report, "f16")["recall_right"], 1);
    assert!(figure(&report, "f16", "perplexity") < 1000.0, "{report}");
    let table = QUALITY.text(&[&args[..], &["--limit", "1"]].concat());
    assert!(table.contains(" 100.0 %\n") && table.contains("recall: 1 conversations"), "{table}");
    let whole = ["--text", text, "--precisions", "f16", "--limit", "0", "--window", "4096"];
    assert_eq!(QUALITY.object(&whole)["window"], 4096);
}

#[test]
fn what_cannot_be_measured_is_refused_with_what_to_do() {
    let empty = file("empty.txt", "");
    let broken = file("broken.jsonl", "{\"messages\": []}\n");
    let cases: [(&[&str], &str); 7] = [
        (&["--text", "no/such/text"], "cannot read no/such/text"),
        (&["--text", empty.to_str().unwrap()], "fewer than two tokens"),
        (&["--recall", broken.to_str().unwrap()], "broken.jsonl is no conversation: missing field `answer`"),
        (&["--recall", empty.to_str().unwrap()], "empty.txt has no conversations: write one JSON object"),
        (&["--window", "5000"], "lower --window"),
        (&["--precisions", "fp4"], "int8"),
        (&["--model", "no/such/model"], "is not a directory"),
    ];
    for (args, expected) in cases {
        let error = QUALITY.error_of(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
