mod support;

use octavo_backend::{Reference, WeightFormat};
use octavo_model::{LoadError, Model, ModelConfig, Progress, Weights};
use octavo_types::{KvDtype, KvSpec, PageSize};
use serde_json::json;
use support::run::{Session, Setup};
use support::{changed_model as config, model_dir};

fn load(config: ModelConfig, weights: &str) -> Result<Vec<Progress>, LoadError> {
    let spec = config.kv_spec(KvDtype::F32, PageSize::DEFAULT, None).unwrap();
    load_for(config, weights, &spec)
}

fn load_for(config: ModelConfig, weights: &str, spec: &KvSpec) -> Result<Vec<Progress>, LoadError> {
    let weights = Weights::open(&model_dir(weights)).unwrap();
    let mut reports = Vec::new();
    let format = WeightFormat::AsStored;
    Model::load(&Reference, config, spec, &weights, format, &mut |report| reports.push(report))?;
    Ok(reports)
}

#[test]
fn progress_grows_up_to_the_bytes_of_the_model() {
    for name in ["llama-gqa", "llama-sharded", "qwen3-bf16", "gemma3-mqa"] {
        let reports = load(config(name, json!({})), name).unwrap();
        let total = Weights::open(&model_dir(name)).unwrap().bytes_under("");
        assert!(reports.is_sorted_by_key(|report| report.bytes_done), "{name}");
        assert!(reports.iter().all(|report| report.bytes_total == total), "{name}");
        // The last two: the last tensor, and the end.
        assert!(reports[reports.len() - 2..].iter().all(|report| report.bytes_done == total), "{name}");
    }
}

#[test]
fn weights_of_another_size_than_configured_are_named_with_both_shapes() {
    let error = load(config("llama-gqa", json!({"intermediate_size": 60})), "llama-gqa").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tensor model.layers.0.mlp.gate_proj.weight in model.safetensors has the shape [64, 48]; config.json \
         makes it [60, 48]"
    );
}

#[test]
fn a_layer_that_is_not_in_the_files_is_named() {
    let error = load(config("llama-gqa", json!({"num_hidden_layers": 3})), "llama-gqa").unwrap_err();
    let expected = "the tensor model.layers.2.input_layernorm.weight is missing from model.safetensors";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn another_architectures_weights_lack_a_tensor() {
    let change = json!({"architectures": ["Qwen3ForCausalLM"]});
    let error = load(config("llama-gqa", change), "llama-gqa").unwrap_err().to_string();
    assert!(error.contains("model.layers.0.self_attn.q_norm.weight is missing"), "{error}");
}

#[test]
fn a_cache_planned_for_another_model_is_refused() {
    let other = KvSpec::full_attention(5, 2, 64, KvDtype::F32, PageSize::DEFAULT).unwrap();
    let error = load_for(config("llama-gqa", json!({})), "llama-gqa", &other).unwrap_err();
    assert!(matches!(error, LoadError::Layers { expected: 2, found: 5 }), "{error}");
}

/// The weights of a fixture with other names of tensors, in a directory of their own.
fn renamed(name: &str, from: &str, to: &str) -> tempfile::TempDir {
    let bytes = std::fs::read(model_dir(name).join("model.safetensors")).unwrap();
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header = str::from_utf8(header).unwrap().replace(&format!("\"{from}"), &format!("\"{to}"));
    let dir = tempfile::tempdir().unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

#[test]
fn the_text_model_within_a_multimodal_one_computes_the_same() {
    let name = "gemma3-gqa";
    let text = std::fs::read_to_string(model_dir(name).join("config.json")).unwrap();
    let inner: serde_json::Value = serde_json::from_str(&text).unwrap();
    let outer = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner});
    let config = ModelConfig::from_json(&outer.to_string()).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    let alone = Session::open(Reference, &model_dir(name), Setup::default()).all_logits(&tokens, 40);
    for prefix in ["language_model.model.", "model.language_model."] {
        let dir = renamed(name, "model.", prefix);
        let mut session = Session::with_config(Reference, config.clone(), dir.path(), Setup::default());
        assert!(session.all_logits(&tokens, 40) == alone, "{prefix}");
    }
}
