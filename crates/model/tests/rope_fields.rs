//! `rope_scaling` and `rope_parameters`: two fields for one thing, never silently at odds.

mod support;

use octavo_model::{RopeKind, RopeScaling};
use serde_json::json;
use support::{changed, config};

fn refused(name: &str, change: serde_json::Value, expected: &str) {
    let error = changed(name, change.clone()).expect_err(&change.to_string()).to_string();
    assert!(error.contains(expected), "{name} {change}: {error}");
}

#[test]
fn fields_that_contradict_each_other_are_refused_by_name() {
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let one = json!({"rope_theta": null, "rope_scaling": linear,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}});
    for name in ["llama-3.2-3b", "qwen3-0.6b"] {
        refused(name, one.clone(), "both rope_scaling and rope_parameters, which differ; keep the one");
    }
    let by_type = json!({"rope_scaling": linear, "rope_parameters": {
        "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}});
    refused("gemma-3-1b", by_type, "both rope_scaling and rope_parameters");
    let yarn =
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": {"rope_theta": 1e6}});
    refused("qwen3-0.6b", yarn, "the rope scaling \"yarn\"");
}

#[test]
fn fields_that_say_the_same_are_taken() {
    let both = json!({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}});
    let rope = changed("qwen3-0.6b", both).unwrap().rope(RopeKind::Full);
    assert_eq!((rope.theta(), rope.scaling()), (1e6, RopeScaling::Linear { factor: 2.0 }));
    let empty = json!({"rope_theta": null, "rope_scaling": {}, "rope_parameters": {"rope_theta": 5e5}});
    assert_eq!(changed("qwen3-0.6b", empty).unwrap().rope(RopeKind::Full).theta(), 5e5);
}

#[test]
fn parameters_by_layer_type_are_read_whole_or_refused() {
    let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6});
    let extra = json!({"rope_parameters": {"full_attention": full, "rope_theta": 5e5}});
    refused("gemma-3-1b", extra, "unknown field `rope_theta`, expected `full_attention` or");
    let wrong = json!({"rope_parameters": {"full_attention": {"rope_theta": "much"}}});
    refused("gemma-3-1b", wrong, "invalid type: string \"much\"");
    let unknown = json!({"rope_parameters": {"global": full}});
    refused("gemma-3-1b", unknown, "unknown field `global`");
    let missing = json!({"rope_parameters": {"full_attention": full, "sliding_attention": null}});
    let c = changed("gemma-3-1b", missing).unwrap();
    assert_eq!(c.rope(RopeKind::Full).scaling(), RopeScaling::Linear { factor: 8.0 });
    assert_eq!(c.rope(RopeKind::Sliding), config("gemma-3-1b").rope(RopeKind::Sliding));
}

#[test]
fn an_architecture_has_as_many_ropes_as_it_was_made_with() {
    let by_type = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}});
    refused("qwen3-0.6b", by_type.clone(), "rope_parameters is by layer type, but");
    refused("llama-3.2-3b", by_type, "rope_parameters is by layer type, but");
    let one = json!({"rope_parameters": {"rope_theta": 1e6}});
    refused("gemma-3-1b", one, "rope_parameters is for all layers, but");
}

#[test]
fn a_llama_3_rope_was_stretched_from_the_positions_of_the_model_where_nothing_is_said() {
    let change = json!({"max_position_embeddings": 4096, "rope_scaling": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}});
    let scaling = changed("llama-3.2-3b", change).unwrap().rope(RopeKind::Full).scaling();
    assert!(matches!(scaling, RopeScaling::Llama3 { original_positions: 4096.0, .. }), "{scaling:?}");
}

#[test]
fn numbers_that_stretch_nothing_are_refused_by_name() {
    let llama3 = |high: f64, factor: f64| {
        json!({"rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 4.0,
            "high_freq_factor": high, "original_max_position_embeddings": 64}})
    };
    refused("llama-3.2-3b", llama3(4.0, 8.0), "high_freq_factor is 4, but must be above low_freq_factor (4)");
    refused("llama-3.2-3b", llama3(5.0, 0.0), "rope factor is 0, but must be positive");
    changed("llama-3.2-3b", llama3(5.0, 8.0)).unwrap();
}

#[test]
fn of_two_names_of_its_kind_the_newer_one_counts() {
    let both = json!({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}});
    let scaling = changed("qwen3-0.6b", both).unwrap().rope(RopeKind::Full).scaling();
    assert_eq!(scaling, RopeScaling::Linear { factor: 2.0 });
}
