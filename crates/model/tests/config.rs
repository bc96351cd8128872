mod support;

use octavo_backend::{Activation, Heads, WeightDtype};
use octavo_model::{Architecture, ModelConfig, RopeKind, RopeScaling};
use octavo_types::{Bytes, KvDtype, PageSize, Tokens};
use serde_json::{Value, json};
use support::{changed, config, raw_config};

#[test]
fn llama_3_2_3b_is_read() {
    let c = config("llama-3.2-3b");
    assert_eq!(c.architecture(), Architecture::Llama);
    assert_eq!(c.heads(), Heads { q: 24, kv: 8, dim: 128 });
    assert_eq!((c.hidden(), c.intermediate(), c.vocab()), (3072, 8192, 128_256));
    assert_eq!((c.layers().len(), c.max_positions()), (28, Tokens(131_072)));
    assert_eq!((c.activation(), c.tied(), c.norm_eps()), (Activation::Silu, true, 1e-5));
    assert_eq!(c.dtype(), Some(WeightDtype::Bf16));
    assert_eq!(c.eos(), [128_001, 128_008, 128_009]);
    assert_eq!(c.bos(), [128_000]);
    assert_eq!(c.attention_scale(), 128f32.powf(-0.5));
    assert!(c.layers().iter().all(|layer| layer.window.is_none() && layer.rope == RopeKind::Full));
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192.0,
    };
    assert_eq!(c.rope(RopeKind::Full).scaling(), scaling);
    assert_eq!(c.rope(RopeKind::Full).theta(), 500_000.0);
    // 114 688 bytes a token.
    let spec = c.kv_spec(KvDtype::F16, PageSize::DEFAULT, None).unwrap();
    assert_eq!((spec.groups().len(), spec.page_bytes()), (1, Bytes(16 * 114_688)));
    assert_eq!(c.parameters() / 100_000_000, 32);
}

#[test]
fn qwen3_has_heads_wider_than_its_hidden_size_divided() {
    let small = config("qwen3-0.6b");
    assert_eq!(small.architecture(), Architecture::Qwen3);
    assert_eq!((small.hidden(), small.heads()), (1024, Heads { q: 16, kv: 8, dim: 128 }));
    assert_eq!(small.rope(RopeKind::Full).scaling(), RopeScaling::None);
    assert_eq!((small.eos(), small.tied()), (&[151_645][..], true));
    let large = config("qwen3-4b");
    assert_eq!((large.hidden(), large.heads()), (2560, Heads { q: 32, kv: 8, dim: 128 }));
    assert_eq!(large.layers().len(), 36);
}

#[test]
fn gemma_3_1b_sees_everything_in_every_sixth_layer() {
    let c = config("gemma-3-1b");
    assert_eq!(c.architecture(), Architecture::Gemma3);
    assert_eq!(c.heads(), Heads { q: 4, kv: 1, dim: 256 });
    assert_eq!((c.activation(), c.tied(), c.attention_scale()), (Activation::Gelu, true, 0.0625));
    for (i, layer) in c.layers().iter().enumerate() {
        let global = i % 6 == 5;
        assert_eq!(layer.window, (!global).then_some(Tokens(512)), "layer {i}");
        assert_eq!(layer.rope, if global { RopeKind::Full } else { RopeKind::Sliding }, "layer {i}");
    }
    assert_eq!(c.rope(RopeKind::Full).theta(), 1e6);
    assert_eq!(c.rope(RopeKind::Sliding).theta(), 1e4);
    let spec = c.kv_spec(KvDtype::Bf16, PageSize::DEFAULT, None).unwrap();
    assert_eq!((spec.groups().len(), spec.layers_per_page()), (13, 2));
}

#[test]
fn gemma_3_4b_is_the_text_model_of_a_multimodal_one_that_leaves_most_out() {
    let c = config("gemma-3-4b");
    assert_eq!(c.heads(), Heads { q: 8, kv: 4, dim: 256 });
    assert_eq!((c.vocab(), c.max_positions()), (262_208, Tokens(131_072)));
    assert_eq!(c.layers()[0].window, Some(Tokens(1024)));
    assert_eq!(c.rope(RopeKind::Full).scaling(), RopeScaling::Linear { factor: 8.0 });
    // The scaling is for the layers that see everything.
    assert_eq!(c.rope(RopeKind::Sliding).scaling(), RopeScaling::None);
    assert_eq!((c.eos(), c.dtype()), (&[1, 106][..], Some(WeightDtype::Bf16)));
    assert_eq!((c.tied(), c.attention_scale(), c.norm_eps()), (true, 0.0625, 1e-6));
    assert_eq!(c.rope(RopeKind::Full).theta(), 1e6);
    assert_eq!(c.rope(RopeKind::Sliding).theta(), 1e4);
}

#[test]
fn what_the_text_model_within_a_multimodal_one_leaves_out_is_the_outer_ones() {
    let with = |outer: Value, inner: Value| {
        let mut raw = raw_config("gemma-3-4b");
        raw.as_object_mut().unwrap().extend(outer.as_object().unwrap().clone());
        raw["text_config"].as_object_mut().unwrap().extend(inner.as_object().unwrap().clone());
        ModelConfig::from_json(&raw.to_string())
    };
    let outer = json!({"tie_word_embeddings": false, "bos_token_id": 2, "eos_token_id": 3,
        "torch_dtype": "bfloat16"});
    let c = with(outer.clone(), json!({})).unwrap();
    assert_eq!((c.tied(), c.bos(), c.eos()), (false, &[2][..], &[3][..]));
    let inner = json!({"tie_word_embeddings": true, "bos_token_id": 4, "eos_token_id": 5,
        "torch_dtype": "float16"});
    let c = with(outer, inner).unwrap();
    assert_eq!((c.tied(), c.bos(), c.eos()), (true, &[4][..], &[5][..]));
    assert_eq!(c.dtype(), Some(WeightDtype::F16));
    let quantised = with(json!({"quantization_config": {"quant_method": "awq"}}), json!({})).unwrap_err();
    assert!(quantised.to_string().contains("quantised with awq"), "{quantised}");
}

#[test]
fn the_type_of_the_weights_has_two_names_and_may_be_torchs() {
    let of = |change| changed("qwen3-0.6b", change).unwrap().dtype();
    assert_eq!(of(json!({"torch_dtype": "float32"})), Some(WeightDtype::F32));
    assert_eq!(of(json!({"torch_dtype": "torch.float16"})), Some(WeightDtype::F16));
    assert_eq!(of(json!({"torch_dtype": "float32", "dtype": "bfloat16"})), Some(WeightDtype::Bf16));
    assert_eq!(of(json!({"torch_dtype": "float8"})), None);
}

#[test]
fn both_spellings_of_the_rope_are_the_same_configuration() {
    let llama = json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
    assert_eq!(changed("llama-3.2-3b", llama).unwrap(), config("llama-3.2-3b"));
    let types: Vec<_> =
        (1..=26).map(|i| if i % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let gemma = json!({"rope_theta": null, "rope_local_base_freq": null, "sliding_window_pattern": null,
        "layer_types": types, "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}});
    assert_eq!(changed("gemma-3-1b", gemma).unwrap(), config("gemma-3-1b"));
    let old = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
    let rope = changed("qwen3-0.6b", old).unwrap().rope(RopeKind::Full);
    assert_eq!(rope.scaling(), RopeScaling::Linear { factor: 2.0 });
}

#[test]
fn without_key_value_heads_every_query_head_has_its_own() {
    let c = changed("llama-3.2-3b", json!({"num_key_value_heads": null})).unwrap();
    assert_eq!(c.heads(), Heads { q: 24, kv: 24, dim: 128 });
}

#[test]
fn without_a_head_dimension_the_heads_share_the_hidden_size() {
    let c = changed("llama-3.2-3b", json!({"head_dim": null, "num_attention_heads": 48})).unwrap();
    assert_eq!(c.heads().dim, 64);
    let uneven = changed("llama-3.2-3b", json!({"head_dim": null, "num_attention_heads": 40})).unwrap_err();
    assert!(uneven.to_string().contains("hidden_size is 3072, but must be a multiple"), "{uneven}");
    let wide = changed("llama-3.2-3b", json!({"num_attention_heads": 40})).unwrap();
    assert_eq!(wide.heads(), Heads { q: 40, kv: 8, dim: 128 });
}

#[test]
fn whether_embeddings_are_tied_is_the_architectures_choice_where_nothing_is_said() {
    let untied = |name| !changed(name, json!({"tie_word_embeddings": null})).unwrap().tied();
    assert!(untied("llama-3.2-3b") && untied("qwen3-0.6b") && !untied("gemma-3-1b"));
}

#[test]
fn qwen3_with_windows_has_them_from_the_layer_named_on() {
    let change = json!({"use_sliding_window": true, "sliding_window": 4096, "max_window_layers": 20});
    let c = changed("qwen3-0.6b", change).unwrap();
    let windowed: Vec<bool> = c.layers().iter().map(|layer| layer.window == Some(Tokens(4096))).collect();
    assert_eq!(windowed, (0..28).map(|i| i >= 20).collect::<Vec<_>>());
    assert_eq!(c.rope(RopeKind::Sliding), c.rope(RopeKind::Full));
}

#[test]
fn a_window_given_by_the_user_narrows_layers_and_never_widens_them() {
    let windows = |name, window| {
        let spec = config(name).kv_spec(KvDtype::F16, PageSize::DEFAULT, Some(Tokens(window))).unwrap();
        spec.windows()
    };
    assert_eq!(windows("qwen3-0.6b", 100), [Some(Tokens(100))]);
    assert_eq!(windows("gemma-3-1b", 100), [Some(Tokens(100))]);
    assert!(windows("gemma-3-1b", 1000).contains(&Some(Tokens(512))));
}

#[test]
fn an_unknown_architecture_is_told_which_ones_are_supported() {
    let error = changed("qwen3-0.6b", json!({"architectures": ["MambaForCausalLM"]})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the architecture MambaForCausalLM is not supported; supported are LlamaForCausalLM, Qwen3ForCausalLM, \
         Gemma3ForCausalLM, Gemma3ForConditionalGeneration"
    );
    let both = json!({"architectures": ["MambaForCausalLM", "Qwen3ForCausalLM"]});
    assert_eq!(changed("qwen3-0.6b", both).unwrap(), config("qwen3-0.6b"));
}

#[test]
fn what_would_compute_something_else_is_refused_by_name() {
    let cases = [
        (json!({"attention_bias": true}), "config.json sets attention_bias, which is not supported"),
        (json!({"mlp_bias": true}), "config.json sets mlp_bias, which is not supported"),
        (json!({"final_logit_softcapping": 30.0}), "config.json sets final_logit_softcapping"),
        (json!({"attn_logit_softcapping": 50.0}), "config.json sets attn_logit_softcapping"),
        (json!({"partial_rotary_factor": 0.5}), "config.json sets partial_rotary_factor"),
        (
            json!({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}),
            "config.json sets partial_rotary_factor",
        ),
        (json!({"use_bidirectional_attention": true}), "config.json sets use_bidirectional_attention"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}), "the rope scaling \"yarn\""),
        (json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}), "the rope scaling \"dynamic\""),
        (json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}), "\"yarn\""),
        (json!({"hidden_act": "relu"}), "the activation \"relu\""),
        (json!({"quantization_config": {"quant_method": "gptq"}}), "quantised with gptq"),
        (json!({"layer_types": ["chunked_attention"], "num_hidden_layers": 1}), "\"chunked_attention\""),
    ];
    for (change, expected) in cases {
        let error = changed("qwen3-0.6b", change.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}

#[test]
fn geometries_that_make_no_sense_are_refused_with_the_field() {
    let cases = [
        (json!({"hidden_size": null}), "config.json has no hidden_size"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers is 0, but must be at least 1"),
        (json!({"num_hidden_layers": 4_000_000_000u32}), "num_hidden_layers is 4000000000, but at most"),
        (json!({"hidden_size": 4_000_000_000u32}), "hidden_size is 4000000000, but at most"),
        (json!({"max_position_embeddings": 0}), "max_position_embeddings is 0, but must be at least 1"),
        (json!({"rms_norm_eps": -1e-6}), "rms_norm_eps is -0.000001, but must not be negative"),
        (json!({"num_key_value_heads": 5}), "num_key_value_heads is 5, but num_attention_heads (16)"),
        (json!({"head_dim": 127}), "head_dim is 127, but must be even"),
        (json!({"rope_theta": -1}), "rope_theta is -1, but must be positive"),
        (json!({"rope_scaling": {"type": "linear"}}), "config.json has no rope factor"),
        (
            json!({"layer_types": ["full_attention"]}),
            "layer_types is a list of 1, but num_hidden_layers is 28",
        ),
        (json!({"use_sliding_window": true, "max_window_layers": 3}), "config.json has no sliding_window"),
        (
            json!({"use_sliding_window": true, "max_window_layers": 3, "sliding_window": 0}),
            "sliding_window is 0, but must be at least 1",
        ),
        (json!({"architectures": []}), "config.json has no architectures"),
        (json!({"vocab_size": "many"}), "config.json: invalid type"),
    ];
    for (change, expected) in cases {
        let error = changed("qwen3-0.6b", change.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}

#[test]
fn what_only_gemma_has_must_make_sense_too() {
    let cases = [
        (json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar is 0, but must be positive"),
        (json!({"sliding_window_pattern": 0}), "sliding_window_pattern is 0, but must be at least 1"),
    ];
    for (change, expected) in cases {
        let error = changed("gemma-3-1b", change.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}

#[test]
fn a_file_that_is_missing_or_not_json_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = ModelConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read") && error.contains("config.json"), "{error}");
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    let error = ModelConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json: EOF"), "{error}");
}

#[test]
fn fields_nobody_knows_do_no_harm() {
    let mut raw = raw_config("qwen3-0.6b");
    raw["a_field_of_next_year"] = json!({"deep": [1, 2]});
    assert_eq!(ModelConfig::from_json(&raw.to_string()).unwrap(), config("qwen3-0.6b"));
}
