//! The benches of the CPU as a user runs them: the real binary, on sizes so small that the figures mean nothing.

use serde_json::{Value, json};
use std::process::{Command, Output};

fn octavo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo")).args(args).output().expect("the binary starts")
}

fn stdout(args: &[&str]) -> String {
    let output = octavo(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs with `--quick --json -` and parses the whole of standard output.
fn object(bench: &str) -> Value {
    let text = stdout(&["bench", bench, "--quick", "--threads", "2", "--json", "-"]);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(value["bench"], bench);
    let goals = value["goals"].as_array().expect("a list of goals");
    assert!(!goals.is_empty() && goals.iter().all(|goal| goal["met"].is_boolean()), "{text}");
    value
}

fn assert_positive(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} of {object}");
    }
}

fn cells<const N: usize>(report: &Value, keys: [&str; N]) -> Vec<[Value; N]> {
    let cells = report["cells"].as_array().expect("a list of cells");
    cells.iter().map(|cell| keys.map(|key| cell[key].clone())).collect()
}

const CEILINGS: [&str; 2] = ["read_bandwidth_gb_s", "fma_peak_gflops"];

#[test]
fn the_gemm_bench_has_its_keys_and_every_cell() {
    let report = object("gemm");
    assert_positive(&report, &CEILINGS);
    let fractions = ["fraction_of_read_bandwidth", "fraction_of_fma_peak"];
    assert_positive(&report, &fractions);
    for cell in report["cells"].as_array().unwrap() {
        assert_positive(cell, &["ms", "gflops", "gb_s"]);
        assert_positive(cell, &fractions);
    }
    let found = cells(&report, ["product", "weights", "rows"]);
    let mut expected = Vec::new();
    for product in ["qkv", "o", "gate_up", "down", "head"] {
        for weights in ["bf16", "int8"] {
            expected.extend([1, 16, 64, 512].map(|rows| [json!(product), json!(weights), json!(rows)]));
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn the_attention_bench_has_its_keys_for_every_precision() {
    let report = object("attention");
    assert_positive(&report, &["paged_over_contiguous", "read_bandwidth_gb_s"]);
    let codecs = ["f16", "bf16", "int8", "fp8"];
    assert_positive(&report["fraction_of_read_bandwidth"], &codecs);
    assert_positive(&report["tokens_over_f16"], &codecs);
    assert_eq!(cells(&report, ["codec"]), codecs.map(|codec| [json!(codec)]));
}

#[test]
fn the_decode_bench_has_its_keys_and_every_kind_of_step() {
    let report = object("decode");
    let ratios = ["fraction_of_read_bandwidth", "batch_16_over_1", "int8_over_bf16", "read_bandwidth_gb_s"];
    assert_positive(&report, &ratios);
    assert_positive(&report, &["batch_16_over_1_at_ceilings", "fma_peak_gflops"]);
    let speeds = ["tokens_per_s", "tokens_per_s_batch_16", "tokens_per_s_deep", "tokens_per_s_int8"];
    assert_positive(&report, &speeds);
    let expected = [("bf16", 1, 8), ("bf16", 16, 8), ("bf16", 1, 64), ("int8", 1, 8), ("int8", 16, 8)];
    let expected = expected.map(|(weights, batch, depth)| [json!(weights), json!(batch), json!(depth)]);
    assert_eq!(cells(&report, ["weights", "batch", "depth"]), expected);
}

#[test]
fn the_prefill_bench_has_its_keys() {
    let report = object("prefill");
    let fractions = ["fraction_of_fma_peak", "fraction_of_fma_peak_products", "fma_peak_gflops"];
    assert_positive(&report, &fractions);
    assert_positive(&report, &["tokens_per_s", "ms", "gflops", "gflops_products"]);
}

#[test]
fn people_read_the_number_of_threads_and_the_goals() {
    let text = stdout(&["bench", "prefill", "--quick", "--threads", "1"]);
    assert!(text.contains("threads: 1, medians of 2 rounds"), "{text}");
    assert!(text.contains("\nGoals\n"), "{text}");
}

#[test]
fn quick_rounds_are_not_counted_by_the_user() {
    let output = octavo(&["bench", "decode", "--quick", "--rounds", "3"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
