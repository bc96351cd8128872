//! The benches as a user runs them: the real binary, on sizes so small that the figures mean nothing.

use serde_json::Value;
use std::process::{Command, Output};

fn octavo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo")).args(args).output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs with `--json -` and parses the whole of standard output.
fn object(args: &[&str]) -> Value {
    let text = stdout(&octavo(&[args, &["--json", "-"]].concat()));
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert!(value.is_object(), "{text}");
    assert!(value["hardware_threads"].as_u64() > Some(0), "{text}");
    let goals = value["goals"].as_array().expect("a list of goals");
    assert!(!goals.is_empty() && goals.iter().all(|goal| goal["met"].is_boolean()), "{text}");
    assert_eq!(value["goals_met"], goals.iter().all(|goal| goal["met"] == true), "{text}");
    value
}

fn assert_positive(value: &Value, what: &str) {
    assert!(value.as_f64().is_some_and(|figure| figure > 0.0), "{what}: {value}");
}

#[test]
fn the_pool_bench_has_its_keys_and_every_cell() {
    let report = object(&["bench", "pool", "--quick"]);
    for key in ["ns_per_page", "ns_per_page_baseline", "speedup", "speedup_2t", "flatness"] {
        assert_positive(&report[key], key);
    }
    let cells = report["cells"].as_array().unwrap();
    let kinds: Vec<(u64, u64)> = cells
        .iter()
        .map(|cell| (cell["threads"].as_u64().unwrap(), cell["batch"].as_u64().unwrap()))
        .collect();
    assert_eq!(kinds, [(1, 1), (1, 8), (1, 64), (2, 1), (2, 8), (2, 64)]);
    assert_eq!(report["ns_per_page"], cells[1]["ns_per_page"]);
    assert_eq!(report["speedup"], cells[1]["speedup"]);
    assert_eq!(report["speedup_2t"], cells[4]["speedup"]);
}

#[test]
fn the_prefix_bench_has_its_keys_for_both_lengths_and_every_policy() {
    let report = object(&["bench", "prefix", "--quick"]);
    for key in ["ns_per_page_lookup_hit", "ns_per_page_lookup_miss", "ns_per_page_insert", "ns_per_page_hash"]
    {
        for length in ["4096", "32768"] {
            assert_positive(&report[key][length], key);
        }
    }
    for policy in ["lru", "priority", "adaptive"] {
        assert_positive(&report["ns_evict"][policy], policy);
    }
}
