//! The benches of the engine as a user runs them: the real binary, on sizes so small that most figures mean nothing.

#[path = "support/figures.rs"]
mod figures;
mod support;

use figures::{assert_near, figure, reached};
use serde_json::{Value, json};
use support::Octavo;

const BENCH: Octavo = Octavo("bench");

fn assert_positive(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} of {object}");
    }
}

fn assert_has_goals(report: &Value, bench: &str) {
    assert_eq!(report["bench"], bench);
    let goals = report["goals"].as_array().expect("a list of goals");
    assert!(!goals.is_empty() && goals.iter().all(|goal| goal["met"].is_boolean()), "{report}");
}

/// Every JSON key that a bench's help names.
fn keys_in_help(bench: &str) -> Vec<String> {
    let help = BENCH.text(&[bench, "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, keys) = help.split_once("JSON keys: ").expect("the help names its keys");
    let keys = keys.split(['(', '.']).next().unwrap();
    let keys = keys.split(", ").filter(|key| !key.contains("what they were"));
    keys.map(|key| key.trim().to_owned()).collect()
}

#[test]
fn the_scheduler_bench_has_its_keys() {
    let report = BENCH.object(&["scheduler", "--quick"]);
    assert_has_goals(&report, "scheduler");
    assert_positive(&report, &["us_per_step_256"]);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.last().unwrap()["sequences"], 256);
    for cell in cells {
        assert_positive(cell, &["plan_us", "publish_us", "scheduler_us", "sample_us"]);
        assert!(figure(cell, "scheduler_us") >= figure(cell, "plan_us"), "with publishing: {cell}");
        assert!(figure(cell, "scheduler_p99_us") >= figure(cell, "scheduler_us"), "{cell}");
    }
    assert_eq!(report["us_per_step_256"], cells.last().unwrap()["scheduler_us"]);
    assert_eq!(report["us_per_step_256_cold"], cells.last().unwrap()["scheduler_cold_us"]);
    assert_eq!(reached(&report, "256 sequences"), figure(&report, "us_per_step_256"));
}

#[test]
fn the_engine_runs_16_8_4_2_and_1_times_the_sequences_of_eight_slots() {
    let report = BENCH.object(&["capacity"]);
    assert_has_goals(&report, "capacity");
    assert_eq!(report["goals_met"], true, "{report}");
    let keys = ["length", "contiguous", "paged", "claimed"];
    let cells = report["cells"].as_array().unwrap().iter();
    let found: Vec<_> = cells.map(|cell| keys.map(|key| cell[key].clone())).collect();
    let expected = [(256, 128, 16.0), (512, 64, 8.0), (1024, 32, 4.0), (2048, 16, 2.0)];
    let expected =
        expected.map(|(length, paged, claimed)| [json!(length), json!(8), json!(paged), json!(claimed)]);
    assert_eq!(found[..4], expected);
    assert_eq!(found[4][0], 4096);
    for cell in report["cells"].as_array().unwrap() {
        assert_eq!(figure(cell, "ratio"), figure(cell, "paged") / figure(cell, "contiguous"));
        assert_eq!(figure(cell, "of_claim"), figure(cell, "ratio") / figure(cell, "claimed"));
    }
    assert_eq!(reached(&report, "at the full length"), figure(&report["cells"][4], "of_claim"));
}

#[test]
fn the_serving_bench_has_its_keys_for_both_back_ends() {
    let report = BENCH.object(&["serving", "--quick"]);
    assert_has_goals(&report, "serving");
    assert_positive(&report, &["paged_over_contiguous", "paged_over_contiguous_decode"]);
    assert_positive(
        &report,
        &["paged_over_contiguous_predicted", "ttft_speedup_shared_prefix", "p99_itl_ms"],
    );
    for (side, batch) in [("contiguous", 8), ("paged", 24)] {
        assert_eq!(report[side]["batch"], batch, "{report}");
        assert_positive(
            &report[side],
            &["kv_bytes", "tokens_per_s", "decode_tokens_per_s", "mean_ttft_ms", "tokens"],
        );
    }
    assert_eq!(report["contiguous"]["tokens"], report["paged"]["tokens"], "the same load");
    assert_eq!(report["contiguous"]["kv_bytes"], report["paged"]["kv_bytes"], "in the same memory");
    let [slots, pages] = ["contiguous", "paged"].map(|side| &report[side]);
    let over = |key: &str| figure(slots, key) / figure(pages, key);
    assert_near(figure(&report, "paged_over_contiguous"), over("seconds"), "in all");
    let decode = 1.0 / over("decode_tokens_per_s");
    assert_near(figure(&report, "paged_over_contiguous_decode"), decode, "decoding");
    // What was not read from prompts came one token a sequence and step, from full batches; there are 12 requests.
    let predicted = |side: &Value| {
        let steps = (figure(side, "tokens") - 12.0) / figure(side, "batch");
        figure(side, "prefill_seconds") + steps * figure(side, "decode_step_ms") / 1e3
    };
    let expected = predicted(slots) / predicted(pages);
    assert_near(figure(&report, "paged_over_contiguous_predicted"), expected, "predicted");
    let [cold, shared] = [0, 1].map(|i| report["ttft_shared_prefix_ms"][i].as_f64().unwrap());
    assert_near(figure(&report, "ttft_speedup_shared_prefix"), cold / shared, "shared");
    for side in [slots, pages] {
        assert!(figure(side, "prefill_seconds") < figure(side, "seconds"), "{side}");
        assert!(figure(side, "mean_ttft_ms") < 1e3 * figure(side, "seconds"), "{side}");
    }
    assert_eq!(reached(&report, "decoding in pages"), figure(&report, "paged_over_contiguous_decode"));
    assert_eq!(reached(&report, "5x sooner"), figure(&report, "ttft_speedup_shared_prefix"));
    assert_eq!(reached(&report, "p99 gap"), figure(&report, "p99_itl_ms"));
}

#[test]
fn every_key_that_the_help_names_is_there() {
    for (bench, args) in [
        ("scheduler", &["scheduler", "--quick"][..]),
        ("capacity", &["capacity"]),
        ("serving", &["serving", "--quick"]),
    ] {
        let report = BENCH.object(args);
        for key in keys_in_help(bench) {
            assert!(!report[&key].is_null(), "{bench}: {key:?} of {report}");
        }
    }
}

#[test]
fn the_offline_bench_generates_all_that_was_asked_for() {
    let report = BENCH.object(&["offline", "--quick"]);
    assert_eq!(report["bench"], "offline");
    assert_positive(&report, &["tokens_per_s", "seconds", "prompt_tokens", "output_tokens", "steps"]);
    let expected = figure(&report, "output_tokens") / figure(&report, "seconds");
    assert_near(figure(&report, "tokens_per_s"), expected, "tokens_per_s");
    for key in keys_in_help("offline").iter().filter(|key| !key.contains(' ')) {
        assert!(!report[key].is_null(), "{key} of {report}");
    }
}

#[test]
fn a_bench_refuses_options_that_it_does_not_read() {
    for args in [["serving", "--quick", "--rounds", "3"], ["offline", "--quick", "--rounds", "3"]] {
        let said = BENCH.error_of(&args);
        assert!(said.contains("unexpected argument '--rounds'"), "{args:?}: {said}");
    }
    let said = BENCH.error_of(&["offline", "--geometry", "Gemma"]);
    assert!(said.contains("--geometry is for --device cuda"), "{said}");
    let said = BENCH.error_of(&["offline", "--min-len", "9", "--max-len", "8"]);
    assert!(said.contains("--min-len is above --max-len"), "{said}");
    for args in [["attention", "--rounds", "3"], ["prefill", "--rounds", "3"], ["serving", "--threads", "1"]]
    {
        let said = BENCH.error_of(&[&args[..], &["--device", "cuda:63"]].concat());
        assert!(said.contains(&format!("{} is for --device cpu", args[1])), "{args:?}: {said}");
    }
}

#[test]
fn steps_that_are_not_measured_are_refused_before_a_device_is_opened() {
    for (args, names) in [
        (["step", "--geometry", "70B"], "Llama-3.2-3B, Qwen3-4B, Gemma-3-1B, Qwen3-0.6B"),
        (["offline", "--geometry", "70B"], "Llama-3.2-3B, Qwen3-4B, Gemma-3-1B, Qwen3-0.6B"),
        (["serving", "--geometry", "Qwen3"], "several geometries: Qwen3-4B, Qwen3-0.6B"),
        (["step", "--batch", "7"], "1, 24 and 256"),
        (["step", "--context", "100"], "512 and 4096"),
    ] {
        let said = BENCH.error_of(&[&args[..], &["--device", "cuda:63"]].concat());
        assert!(said.contains(names), "{args:?}: {said}");
    }
    let said = BENCH.error_of(&["step", "--batch", "24", "--context", "512", "--device", "cuda:63"]);
    assert!(said.contains("--device cpu"), "what is measured is let through: {said}");
}

#[test]
fn benches_of_a_gpu_say_what_is_missing_where_there_is_none() {
    for bench in ["step", "long", "attention", "prefill", "offline", "serving"] {
        // No machine has so many.
        let said = BENCH.error_of(&[bench, "--device", "cuda:63"]);
        assert!(said.contains("--device cpu"), "{bench}: {said}");
    }
    let refused = BENCH.run(&["step", "--device", "cpu"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("octavo bench decode"));
}
