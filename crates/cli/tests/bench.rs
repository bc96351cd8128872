//! The benches as a user runs them: the real binary, on sizes so small that the figures mean nothing.

#[path = "support/figures.rs"]
mod figures;

use figures::{assert_near, reached};
use serde_json::Value;
use std::path::{Path, PathBuf};
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

/// A file in the tests' own directory; the name must be the test's alone.
fn file(name: &str, contents: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).unwrap();
    path
}

fn trace_file(name: &str, requests: &[&[u64]]) -> PathBuf {
    let line = |(at, hashes): (usize, &&[u64])| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": {hashes:?}}}\n"
        )
    };
    file(name, &requests.iter().enumerate().map(line).collect::<String>())
}

fn error_of(args: &[&str]) -> String {
    let output = octavo(args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
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
    let figure = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let sizes = report["sizes"].as_array().unwrap();
    let pairs = sizes.iter().flat_map(|size| [&size["plain"], &size["churn"]]).chain(cells);
    let mut least = f64::INFINITY;
    for pair in pairs {
        let speedup = figure(pair, "ns_per_page_baseline") / figure(pair, "ns_per_page");
        assert_near(figure(pair, "speedup"), speedup, "speedup");
        least = least.min(figure(pair, "speedup"));
    }
    assert_eq!(figure(&report, "speedup_least"), least);
    for (key, work, of) in [
        ("flatness", "plain", "ns_per_page"),
        ("flatness_churn", "churn", "ns_per_page"),
        ("flatness_churn_baseline", "churn", "ns_per_page_baseline"),
    ] {
        let [small, large] = [0, 1].map(|size| figure(&sizes[size][work], of));
        assert_near(figure(&report, key), large / small, key);
    }
    for (part, key) in [
        ("under 45 ns a page", "ns_per_page"),
        ("0.9x of the baseline", "speedup_least"),
        ("two threads", "speedup_2t"),
        ("flat within", "flatness"),
    ] {
        assert_eq!(reached(&report, part), figure(&report, key), "{part}");
    }
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
        assert_positive(&report["ns_evict_by_64"][policy], policy);
    }
    let figure = |key: &str, of: &str| report[key][of].as_f64().unwrap();
    for length in ["4096", "32768"] {
        let hash = figure("ns_per_page_hash", length);
        let share = hash / figure("ns_per_page_lookup_miss", length);
        assert_near(figure("miss_hash_share", length), share, "the part of a miss that is hashing");
    }
    let [short, long] = ["4096", "32768"].map(|length| figure("miss_hash_share", length));
    assert_eq!(reached(&report, "is hashing"), short.min(long));
    let [short, long] = ["4096", "32768"].map(|length| figure("ns_per_page_lookup_hit", length));
    assert_eq!(reached(&report, "a cached page"), short.max(long));
    let evictions = ["lru", "priority", "adaptive"].map(|policy| figure("ns_evict", policy));
    assert_eq!(reached(&report, "an eviction"), evictions.into_iter().fold(0.0, f64::max));
}

#[test]
fn the_trace_bench_finds_what_each_policy_and_the_optimum_find() {
    // Room for two: lru has given up 1 when it comes again, and then 2; the optimum gives up 2 for 3.
    let path = trace_file("policies.jsonl", &[&[1], &[2], &[3], &[1], &[2]]);
    let report = object(&["bench", "trace", path.to_str().unwrap(), "--capacities", "2,3"]);
    assert_eq!((&report["requests"], &report["blocks"]), (&5.into(), &5.into()));
    let rows = report["rows"].as_array().unwrap();
    let shares = |row: &Value| ["capacity", "infinite", "opt", "lru"].map(|key| row[key].as_f64().unwrap());
    assert_eq!(shares(&rows[0]), [2.0, 0.4, 0.2, 0.0]);
    assert_eq!(shares(&rows[1]), [3.0, 0.4, 0.4, 0.4]);
    assert_eq!(reached(&report, "no policy"), 0.0, "at the larger capacity all find what can be found");
    let narrow = object(&["bench", "trace", path.to_str().unwrap(), "--capacities", "2"]);
    let best = |row: &Value| ["lru", "priority", "adaptive"].map(|name| row[name].as_f64().unwrap());
    let nearest = best(&narrow["rows"][0]).into_iter().fold(0.0, f64::max);
    assert_eq!(reached(&narrow, "no policy"), nearest - 0.2);
    for policy in ["priority", "adaptive"] {
        assert!(rows[0][policy].is_number(), "{rows:?}");
    }
}

#[test]
fn a_request_that_no_cache_of_this_size_holds_is_counted() {
    let path = trace_file("refused.jsonl", &[&[1, 2], &[1, 2, 3, 4], &[1, 2]]);
    let report = object(&["bench", "trace", path.to_str().unwrap(), "--capacities", "3"]);
    let row = &report["rows"][0];
    assert_eq!((&row["requests_refused"], &row["lru"], &row["opt"]), (&1.into(), &0.25.into(), &0.25.into()));
}

#[test]
fn without_json_people_read_tables_and_goals() {
    let path = trace_file("table.jsonl", &[&[1, 2], &[1, 2]]);
    let text = stdout(&octavo(&["bench", "trace", path.to_str().unwrap(), "--capacities", "2"]));
    assert!(text.contains("\n  2          0.500  0.500  0.500     0.500     0.500        0\n"), "{text}");
    assert!(text.contains("\nGoals\n  met     "), "{text}");
}

#[test]
fn json_into_a_file_leaves_the_tables_on_standard_output() {
    let path = trace_file("both.jsonl", &[&[1], &[1]]);
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("both.json");
    let text = stdout(&octavo(&["bench", "trace", path.to_str().unwrap(), "--json", json.to_str().unwrap()]));
    assert!(text.contains("\nGoals\n"), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["bench"], "trace");
}

#[test]
fn a_malformed_line_is_named_by_its_number() {
    let path = file("malformed.jsonl", "{\"timestamp\": 0, \"hash_ids\": [1]}\n\n{\"timestamp\": 1}\n");
    let error = error_of(&["bench", "trace", path.to_str().unwrap()]);
    assert!(error.starts_with("octavo: line 3 of "), "{error}");
    assert!(error.contains("missing field `hash_ids`"), "{error}");
}

#[test]
fn a_trace_that_is_missing_or_empty_is_refused_with_what_to_do() {
    let error = error_of(&["bench", "trace", "no/such/trace.jsonl"]);
    assert!(error.starts_with("octavo: cannot open the trace no/such/trace.jsonl: give the path"), "{error}");
    let path = file("empty.jsonl", "\n");
    let error = error_of(&["bench", "trace", path.to_str().unwrap()]);
    assert!(error.contains("has no blocks"), "{error}");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_bench_runs() {
    let error = error_of(&["bench", "trace", "no/such/trace.jsonl", "--json", "no/such/report.json"]);
    assert!(error.starts_with("octavo: cannot write no/such/report.json"), "{error}");
}
