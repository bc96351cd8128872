//! What `config.json` leaves out means what it means to `transformers`.

mod support;

use octavo_backend::{Activation, Heads};
use octavo_model::{ModelConfig, RopeKind};
use octavo_types::Tokens;
use serde_json::json;
use support::{changed, raw_config};

/// The configuration with a field that is there and null.
fn with_null(name: &str, field: &str) -> Result<ModelConfig, octavo_model::ConfigError> {
    let mut raw = raw_config(name);
    raw[field] = json!(null);
    ModelConfig::from_json(&raw.to_string())
}

#[test]
fn positions_rope_and_norms_left_out_are_the_architectures() {
    let left_out = json!({"max_position_embeddings": null, "rope_theta": null, "rope_scaling": null,
        "rope_local_base_freq": null, "rms_norm_eps": null});
    for (name, positions, theta) in
        [("llama-3.2-3b", 2048, 1e4), ("qwen3-0.6b", 32_768, 1e4), ("gemma-3-1b", 131_072, 1e6)]
    {
        let c = changed(name, left_out.clone()).unwrap();
        assert_eq!((c.max_positions(), c.norm_eps()), (Tokens(positions), 1e-6), "{name}");
        assert_eq!(c.rope(RopeKind::Full).theta(), theta, "{name}");
        assert_eq!(c.rope(RopeKind::Sliding).theta(), 1e4, "{name}");
    }
}

#[test]
fn qwen3_has_heads_of_128_unless_it_says_otherwise() {
    let c = changed("qwen3-0.6b", json!({"head_dim": null, "num_attention_heads": 8})).unwrap();
    assert_eq!((c.hidden(), c.heads()), (1024, Heads { q: 8, kv: 8, dim: 128 }));
    let wide = changed("qwen3-0.6b", json!({"head_dim": null, "num_attention_heads": 32})).unwrap();
    assert_eq!(wide.heads(), Heads { q: 32, kv: 8, dim: 128 });
}

#[test]
fn key_value_heads_left_out_are_the_architectures_number_and_null_ones_are_as_many_as_there_are_heads() {
    let left_out = json!({"num_key_value_heads": null});
    assert_eq!(changed("qwen3-4b", left_out.clone()).unwrap().heads().kv, 32);
    let error = changed("qwen3-0.6b", left_out.clone()).unwrap_err().to_string();
    assert!(error.contains("num_key_value_heads is 32, but num_attention_heads (16)"), "{error}");
    assert_eq!(with_null("qwen3-0.6b", "num_key_value_heads").unwrap().heads().kv, 16);
    assert_eq!(with_null("llama-3.2-3b", "num_key_value_heads").unwrap().heads().kv, 24);
    assert_eq!(changed("gemma-3-1b", left_out).unwrap().heads().kv, 4);
    let error = with_null("gemma-3-1b", "num_key_value_heads").unwrap_err().to_string();
    assert_eq!(error, "config.json has no num_key_value_heads");
}

#[test]
fn a_window_that_is_null_is_none_and_one_left_out_is_the_architectures() {
    let error = with_null("gemma-3-1b", "sliding_window").unwrap_err().to_string();
    assert_eq!(error, "config.json has no sliding_window");
    let c = changed("gemma-3-1b", json!({"sliding_window": null})).unwrap();
    assert_eq!(c.layers()[0].window, Some(Tokens(4096)));
}

#[test]
fn each_architecture_has_its_own_name_for_the_activation() {
    let gelu = json!({"hidden_activation": "gelu_pytorch_tanh"});
    for name in ["llama-3.2-3b", "qwen3-0.6b"] {
        assert_eq!(changed(name, gelu.clone()).unwrap().activation(), Activation::Silu, "{name}");
    }
    assert_eq!(
        changed("llama-3.2-3b", json!({"hidden_act": "gelu_new"})).unwrap().activation(),
        Activation::Gelu
    );
    assert_eq!(
        changed("llama-3.2-3b", json!({"hidden_act": "swish"})).unwrap().activation(),
        Activation::Silu
    );
    let silu = json!({"hidden_act": "silu", "hidden_activation": null});
    assert_eq!(changed("gemma-3-1b", silu).unwrap().activation(), Activation::Gelu);
}

#[test]
fn gemmas_pattern_has_two_names_and_qwen3s_windows_begin_at_layer_28() {
    let full = |c: &ModelConfig| c.layers().iter().position(|layer| layer.window.is_none());
    let private = json!({"sliding_window_pattern": null, "_sliding_window_pattern": 4});
    assert_eq!(full(&changed("gemma-3-1b", private).unwrap()), Some(3));
    let neither = json!({"sliding_window_pattern": null});
    assert_eq!(full(&changed("gemma-3-1b", neither).unwrap()), Some(5));
    let windows = json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": null});
    let c = changed("qwen3-4b", windows).unwrap();
    assert_eq!(c.layers().iter().position(|layer| layer.window.is_some()), Some(28));
}

#[test]
fn a_llama_has_no_windows_whatever_its_file_says() {
    let types = vec!["sliding_attention"; 28];
    let c = changed("llama-3.2-3b", json!({"layer_types": types, "sliding_window": 64})).unwrap();
    assert!(c.layers().iter().all(|layer| layer.window.is_none()));
}

#[test]
fn windowed_layers_of_qwen3_need_windows_switched_on() {
    let types: Vec<_> =
        (0..28).map(|i| if i < 20 { "full_attention" } else { "sliding_attention" }).collect();
    for switch in [json!(false), json!(null)] {
        let change =
            json!({"layer_types": types, "sliding_window": 64, "use_sliding_window": switch.clone()});
        let error = changed("qwen3-0.6b", change).unwrap_err().to_string();
        assert!(error.contains("use_sliding_window is false, but layer_types has"), "{switch}: {error}");
    }
    let on = json!({"layer_types": types, "sliding_window": 64, "use_sliding_window": true});
    assert_eq!(changed("qwen3-0.6b", on).unwrap().layers()[27].window, Some(Tokens(64)));
}

#[test]
fn an_id_below_zero_is_no_token() {
    let c = changed("qwen3-0.6b", json!({"eos_token_id": [-1, 7], "bos_token_id": -1})).unwrap();
    assert_eq!((c.eos(), c.bos()), (&[7][..], &[][..]));
}
