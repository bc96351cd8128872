//! The benches of the CPU as a user runs them: the real binary, on sizes so small that the figures mean nothing.

#[path = "support/figures.rs"]
mod figures;

use figures::{assert_near, figure, goal, reached};
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

/// Whether the goal of these words is met by figures of at least `limit`, or else by those of at most that.
fn assert_met(report: &Value, part: &str, limit: f64, at_least: bool) {
    let (goal, reached) = (goal(report, part), reached(report, part));
    assert_eq!(goal["met"], if at_least { reached >= limit } else { reached <= limit }, "{goal}");
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
    for cell in report["cells"].as_array().unwrap() {
        let products = figure(cell, "rows") * figure(cell, "outputs") * figure(cell, "inputs");
        assert_near(figure(cell, "gflops"), 2.0 * products / figure(cell, "ms") / 1e6, "gflops");
    }
    for (key, rows) in
        [("fraction_of_read_bandwidth", 1), ("fraction_of_fma_peak", 512), ("fraction_of_bf16_peak", 512)]
    {
        // A layer's products one after another: the longest of them counts most.
        let layer =
            report["cells"].as_array().unwrap().iter().filter(|cell| {
                cell["weights"] == "bf16" && cell["rows"] == rows && cell["product"] != "head"
            });
        let (sum, ms) = layer.fold((0.0, 0.0), |(sum, ms), cell| {
            (sum + figure(cell, key) * figure(cell, "ms"), ms + figure(cell, "ms"))
        });
        assert_near(figure(&report, key), sum / ms, key);
    }
    assert_eq!(reached(&report, "the read bandwidth"), figure(&report, "fraction_of_read_bandwidth"));
    assert_eq!(reached(&report, "the multiply-add peak"), figure(&report, "fraction_of_fma_peak"));
}

#[test]
fn the_attention_bench_has_its_keys_for_every_precision() {
    let report = object("attention");
    assert_positive(&report, &["paged_over_contiguous", "read_bandwidth_gb_s"]);
    let codecs = ["f16", "bf16", "int8", "fp8"];
    assert_positive(&report["fraction_of_read_bandwidth"], &codecs);
    assert_positive(&report["tokens_over_f16"], &codecs);
    assert_eq!(cells(&report, ["codec"]), codecs.map(|codec| [json!(codec)]));
    let cells = report["cells"].as_array().unwrap();
    let slowest = cells.iter().map(|cell| figure(cell, "paged_over_contiguous")).fold(0.0, f64::max);
    assert_eq!(figure(&report, "paged_over_contiguous"), slowest);
    assert_eq!(reached(&report, "contiguous keys and values"), slowest);
    assert_met(&report, "contiguous keys and values", 1.05, false);
    for codec in ["int8", "fp8"] {
        assert_eq!(reached(&report, &format!("{codec} at 1.5x")), figure(&report["tokens_over_f16"], codec));
    }
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
    let cells = report["cells"].as_array().unwrap();
    for cell in cells {
        assert_near(figure(cell, "tokens_per_s"), figure(cell, "batch") / figure(cell, "ms") * 1e3, "tokens");
        assert_near(figure(cell, "gb_s"), figure(cell, "bytes") / figure(cell, "ms") / 1e6, "gb_s");
    }
    // Weights once, and the keys and values of 8 tokens of each sequence: 2 layers, 2 heads of 32, two bytes.
    assert_eq!(figure(&cells[1], "bytes") - figure(&cells[0], "bytes"), 15.0 * 8.0 * 512.0);
    let [one, batch, _, int8, _] = cells.as_slice() else { panic!("{cells:?}") };
    let of = |a: &Value, b: &Value, key: &str| figure(a, key) / figure(b, key);
    assert_near(figure(&report, "batch_16_over_1"), of(batch, one, "ms"), "16 sequences");
    assert_near(figure(&report, "int8_over_bf16"), of(int8, one, "tokens_per_s"), "int8");
    let least = |cell: &Value| {
        let shares = ["fraction_of_read_bandwidth", "fraction_of_bf16_peak"].map(|key| figure(cell, key));
        figure(cell, "ms") * shares[0].max(shares[1])
    };
    assert_near(figure(&report, "batch_16_over_1_at_ceilings"), least(batch) / least(one), "at ceilings");
    assert_eq!(reached(&report, "2.5x the time"), figure(&report, "batch_16_over_1"));
    assert_met(&report, "2.5x the time", 2.5, false);
    assert_eq!(reached(&report, "int8"), figure(&report, "int8_over_bf16"));
    assert_met(&report, "int8", 1.5, true);
    assert_eq!(reached(&report, "read bandwidth"), figure(&report, "fraction_of_read_bandwidth"));
}

#[test]
fn the_prefill_bench_has_its_keys() {
    let report = object("prefill");
    let fractions = ["fraction_of_fma_peak", "fraction_of_fma_peak_products", "fma_peak_gflops"];
    assert_positive(&report, &fractions);
    assert_positive(&report, &["tokens_per_s", "ms", "gflops", "gflops_products"]);
    let (tokens, ms) = (figure(&report, "tokens"), figure(&report, "ms"));
    assert_near(figure(&report, "tokens_per_s"), tokens / ms * 1e3, "tokens_per_s");
    // 48 tokens, 2 layers: q, k and v of all; each token attends to those up to it; the rest of the last layer, and the
    // head, are for the last token.
    let [qkv, rest, head] = [256 * 64, 64 * 128 + 192 * 64 + 64 * 96, 320 * 64].map(f64::from);
    let attention = 2.0 * 128.0 * (48.0 * 49.0 / 2.0);
    let products = 2.0 * (48.0 * qkv + attention) + 48.0 * rest + rest + head;
    assert_near(figure(&report, "gflops"), 2.0 * products / ms / 1e6, "gflops");
    for (key, of, peak) in [
        ("fraction_of_fma_peak", "gflops", "fma_peak_gflops"),
        ("fraction_of_fma_peak_products", "gflops_products", "fma_peak_gflops"),
        ("fraction_of_bf16_peak", "gflops", "bf16_peak_gflops"),
        ("fraction_of_bf16_peak_products", "gflops_products", "bf16_peak_gflops"),
    ] {
        assert_near(figure(&report, key), figure(&report, of) / figure(&report, peak), key);
    }
    assert_eq!(reached(&report, "products at"), figure(&report, "fraction_of_fma_peak_products"));
    assert_eq!(reached(&report, "the whole step"), figure(&report, "fraction_of_fma_peak"));
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
