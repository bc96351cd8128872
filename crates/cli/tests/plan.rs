//! The planner as a user runs it: the real binary, and figures that can be checked by hand.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use support::Octavo;

const PLAN: Octavo = Octavo("plan");

fn precision<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let all = plan["precisions"].as_array().unwrap();
    all.iter().find(|row| row["precision"] == name).unwrap_or_else(|| panic!("no {name} in {plan}"))
}

/// (length, contiguous, paged) of a precision.
fn sequences(plan: &Value, name: &str) -> Vec<[u64; 3]> {
    let rows = precision(plan, name)["sequences"].as_array().unwrap();
    rows.iter().map(|row| ["length", "contiguous", "paged"].map(|key| row[key].as_u64().unwrap())).collect()
}

/// A directory with nothing but the config.json of a real model.
fn model_of(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/configs");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(fixtures.join(format!("{name}.json")), dir.join("config.json")).unwrap();
    dir
}

#[test]
fn llama_3_2_3b_takes_114_688_bytes_a_token_in_bf16() {
    let plan = PLAN.object(&["--preset", "llama-3.2-3b"]);
    let bf16 = precision(&plan, "bf16");
    assert_eq!(bf16["bytes_per_token"], 114_688);
    assert_eq!(bf16["bytes_per_page"], 16 * 114_688);
    assert_eq!(bf16["pages"], 4_000_000_000u64 / (16 * 114_688));
    assert_eq!(precision(&plan, "f32")["bytes_per_token"], 2 * 114_688);
}

#[test]
fn a_preset_plans_the_same_as_the_models_own_config() {
    for name in ["llama-3.2-3b", "qwen3-4b", "qwen3-0.6b", "gemma-3-1b"] {
        let mut by_name = PLAN.object(&["--preset", name]);
        let mut by_file = PLAN.object(&["--model", model_of(name).to_str().unwrap()]);
        for plan in [&mut by_name, &mut by_file] {
            plan.as_object_mut().unwrap().remove("model");
        }
        assert_eq!(by_name, by_file, "{name}");
    }
}

#[test]
fn numbers_on_the_command_line_plan_the_same_as_the_model_they_are_of() {
    let numbers = ["--layers", "26", "--kv-heads", "1", "--head-dim", "256", "--q-heads", "4"];
    let window = ["--window", "512", "--global-every", "6", "--max-len", "32768"];
    let given = PLAN.object(&[&numbers[..], &window[..]].concat());
    assert_eq!(given["precisions"], PLAN.object(&["--preset", "gemma-3-1b"])["precisions"]);
    assert_eq!((&given["windowed_layers"], &given["layers"]), (&22.into(), &26.into()));
    // 4 GB of 32 768 tokens of 26 624 bytes.
    assert!(sequences(&given, "f16").iter().all(|row| row[1] == 4), "{given}");
    let numbers = ["--layers", "26", "--kv-heads", "1", "--head-dim", "256", "--window", "512"];
    let all = PLAN.object(&numbers);
    assert_eq!((&all["windowed_layers"], &all["max_len"]), (&26.into(), &4096.into()));
    assert_eq!((&all["q_heads"], &all["made_for"]), (&Value::Null, &Value::Null));
}

#[test]
fn people_read_the_same_in_tables() {
    let text = PLAN.text(&["--preset", "gemma-3-1b", "--max-len", "65536", "--kv-dtype", "fp8"]);
    for part in [
        "1 KV head of 256, shared by 4 query heads (4x less); 22 layers look back a window only\n",
        "sequences up to 65536 tokens (the model was made for 32768 tokens)\n",
        "A page holds 2 layers: a sequence has 13 page tables, one a group.\n",
        "Paged against contiguous, fp8: each contiguous one reserves 65536 tokens\n",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let cells = |of: &str| {
        let row = text.lines().map(str::trim).find(|line| line.starts_with(of)).unwrap();
        let cells = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.collect::<Vec<_>>()
    };
    assert_eq!(cells("fp8 "), ["fp8", "13 520", "208", "50.78 %", "16 640", "240 384", "1 920 160"]);
    assert_eq!(cells("65 536 "), ["65 536", "7", "14", "14", "28", "28"]);
    let plain = PLAN.text(&["--layers", "2", "--kv-heads", "4", "--head-dim", "64", "--q-heads", "4"]);
    assert!(plain.contains("2 layers, 4 KV heads of 64\n"), "{plain}");
    assert!(!plain.contains("page tables") && !plain.contains("made for"), "{plain}");
    let usual = PLAN.text(&["--preset", "gemma-3-1b"]);
    assert!(usual.contains("sequences up to 32768 tokens\n"), "{usual}");
}

#[test]
fn memory_that_is_enough_in_some_precisions_is_planned_for() {
    let plan = PLAN.object(&["--kv-memory", "40KB"]);
    let pages: Vec<u64> =
        ["f32", "f16", "int8"].map(|name| precision(&plan, name)["pages"].as_u64().unwrap()).into();
    assert_eq!(pages, [0, 0, 1]);
}

#[test]
fn without_a_model_the_built_in_one_is_planned_for() {
    let plan = PLAN.object(&[]);
    assert_eq!((&plan["model"], &plan["max_len"]), (&"octavo-demo".into(), &4096.into()));
    // 8 layers, keys and values, 2 heads of 64, 2 bytes.
    assert_eq!(precision(&plan, "f16")["bytes_per_token"], 8 * 2 * 2 * 64 * 2);
}

#[test]
fn eight_bits_take_half_of_sixteen_and_four_bytes_a_vector() {
    let plan = PLAN.object(&["--preset", "qwen3-0.6b"]);
    for name in ["fp8", "int8"] {
        let row = precision(&plan, name);
        assert_eq!(row["bytes_per_token"], 2 * 28 * 8 * (128 + 4), "{name}");
        assert_eq!(row["parameter_bytes_per_token"], 2 * 28 * 8 * 4, "{name}");
        assert_eq!(row["share_of_f16"], 0.515625, "{name}");
    }
    assert_eq!(precision(&plan, "f16")["share_of_f16"], 1.0);
}

#[test]
fn pages_hold_16_8_4_2_and_1_times_the_sequences_of_eight_slots() {
    let budget = (8u64 * 4096 * 114_688).to_string();
    let args = ["--preset", "llama-3.2-3b", "--max-model-len", "4096", "--kv-memory", &budget];
    let expected = [[256, 8, 128], [512, 8, 64], [1024, 8, 32], [2048, 8, 16], [4096, 8, 8]];
    assert_eq!(sequences(&PLAN.object(&args), "bf16"), expected);
    let table = PLAN.text(&[&args[..], &["--kv-dtype", "bf16"]].concat());
    for (length, gain) in [("256", "16.0x"), ("512", "8.0x"), ("1 024", "4.0x"), ("4 096", "1.0x")] {
        let found = table.lines().any(|line| line.trim().starts_with(length) && line.ends_with(gain));
        assert!(found, "{length} {gain}: {table}");
    }
}

#[test]
fn lengths_that_fill_a_page_in_part_take_it_whole() {
    let budget = (10u64 * 16 * 114_688).to_string();
    let args = ["--preset", "llama-3.2-3b", "--kv-memory", &budget, "--lengths", "16,17,33,160,161"];
    let paged: Vec<u64> = sequences(&PLAN.object(&args), "bf16").iter().map(|row| row[2]).collect();
    assert_eq!(paged, [10, 5, 3, 1, 0]);
}

#[test]
fn a_window_for_all_layers_makes_memory_constant() {
    let args = ["--preset", "qwen3-0.6b", "--kv-window", "1024", "--max-len", "1000000"];
    let plan = PLAN.object(&[&args[..], &["--lengths", "2048,200000,1000000"]].concat());
    let rows = precision(&plan, "f16")["sequences"].as_array().unwrap();
    let each: Vec<u64> = rows.iter().map(|row| row["bytes_each"].as_u64().unwrap()).collect();
    assert_eq!(each, [65 * 16 * 114_688; 3]);
    assert_eq!(precision(&plan, "f16")["longest_sequence"], Value::Null);
}

#[test]
fn the_200_000_token_budget_is_told_in_three_geometries() {
    let claims = PLAN.object(&["--claims"]);
    let rows: Vec<(u64, bool)> = claims["long_context"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["bytes"].as_u64().unwrap(), row["fits"].as_bool().unwrap()))
        .collect();
    assert_eq!(rows, [(4_915_200_000, false), (2_457_600_000, true), (11_468_800_000, false)]);
    assert_eq!(claims["long_context"][1]["bytes_with_scales"], 2_534_400_000u64);
    let table = PLAN.text(&["--claims"]);
    for figure in ["4.92 GB", "2.46 GB", "2.53 GB", "11.47 GB"] {
        assert!(table.contains(figure), "{figure}: {table}");
    }
}

#[test]
fn the_claimed_block_sizes_are_recomputed_from_the_real_geometries() {
    let claims = PLAN.object(&["--claims"]);
    let rows = claims["blocks"].as_array().unwrap();
    let sizes: Vec<u64> = rows.iter().map(|row| row["bytes_per_block"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1_835_008, 2_359_296, 425_984]);
    for row in rows {
        assert_eq!(row["cache_bytes"].as_u64(), row["bytes_per_block"].as_u64().map(|bytes| 2048 * bytes));
        let ratio = row["cache_bytes"].as_f64().unwrap() / row["claimed_cache_bytes"].as_f64().unwrap();
        assert!((1.6..1.8).contains(&ratio), "{row}");
    }
    let table = PLAN.text(&["--claims"]);
    assert_eq!(table.lines().filter(|line| line.ends_with(" 1.7x")).count(), 3, "{table}");
    assert!(table.contains("take 875 of 3328 pages (3.8x less)"), "{table}");
}

#[test]
fn the_claimed_gains_hold_unless_the_batch_is_limited() {
    let claims = PLAN.object(&["--claims"]);
    let rows = claims["capacity"].as_array().unwrap();
    let of = |key: &str| rows.iter().map(|row| row[key].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("gain"), [16.0, 8.0, 4.0, 2.0, 1.0]);
    assert_eq!(of("gain"), of("claimed_gain"));
    assert_eq!(of("gain_in_a_batch_of_32"), [4.0, 4.0, 4.0, 2.0, 1.0]);
}

#[test]
fn the_claimed_shares_are_exact_for_the_data_and_near_with_parameters() {
    let claims = PLAN.object(&["--claims"]);
    for row in claims["shares_of_f16"].as_array().unwrap() {
        assert_eq!(row["data"], row["claimed"], "{row}");
        let extra = row["with_parameters"].as_f64().unwrap() - row["claimed"].as_f64().unwrap();
        assert!((0.0..0.032).contains(&extra), "{row}");
    }
}

#[test]
fn the_object_has_its_keys() {
    let plan = PLAN.object(&[]);
    let keys =
        ["command", "model", "layers", "kv_heads", "head_dim", "page_size", "max_len", "kv_memory_bytes"];
    for key in keys {
        assert!(!plan[key].is_null(), "{key}: {plan}");
    }
    assert_eq!(plan["precisions"].as_array().unwrap().len(), 5);
}

#[test]
fn flags_that_make_no_sense_are_refused_with_what_to_do() {
    let cases: [(&[&str], &str); 11] = [
        (&["--layers", "28"], "--kv-heads"),
        (&["--kv-heads", "8"], "--layers"),
        (&["--layers", "0", "--kv-heads", "8", "--head-dim", "64"], "0 is not in 1"),
        (&["--preset", "gpt-5"], "llama-3.2-3b"),
        (
            &["--preset", "qwen3-4b", "--layers", "2", "--kv-heads", "1", "--head-dim", "8"],
            "cannot be used with",
        ),
        (&["--kv-memory", "lots"], "use KB, MB, GB"),
        (&["--lengths", "5000"], "raise --max-len"),
        (&["--kv-memory", "100"], "give --kv-memory more"),
        (&["--layers", "2", "--kv-heads", "4294967295", "--head-dim", "8"], "is not in 1..=16777216"),
        (&["--layers", "2", "--kv-heads", "8", "--head-dim", "500000000"], "is not in 1..=16777216"),
        (&["--layers", "2", "--kv-heads", "3", "--head-dim", "8", "--q-heads", "4"], "give a multiple"),
    ];
    for (args, expected) in cases {
        let error = PLAN.error_of(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn a_directory_without_a_config_is_refused_by_name() {
    let error = PLAN.error_of(&["--model", "no/such/model"]);
    assert!(error.starts_with("octavo: no/such/model is not a directory"), "{error}");
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan").join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    assert!(PLAN.error_of(&["--model", empty.to_str().unwrap()]).contains("config.json"));
}

#[test]
fn json_into_a_file_leaves_the_tables_on_standard_output() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plan.json");
    let table = PLAN.text(&["--json", json.to_str().unwrap()]);
    assert!(table.contains("Memory by precision"), "{table}");
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(plan["command"], "plan");
}
