mod support;

use octavo_backend::{Reference, WeightFormat};
use octavo_model::{LoadError, Model, ModelConfig, Progress, Weights};
use octavo_types::{KvDtype, KvSpec, PageSize};
use serde_json::{Value, json};
#[cfg(target_os = "linux")]
use std::path::Path;
use support::run::{Session, Setup, distance};
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

/// Whoever ties the head to the embedding reads no head, even where there is one.
#[test]
fn a_head_that_is_not_read_is_not_waited_for() {
    let reports = load(config("llama-gqa", json!({"tie_word_embeddings": true})), "llama-gqa").unwrap();
    let total = Weights::open(&model_dir("llama-gqa")).unwrap().bytes_under("model.");
    assert_eq!(reports.last().unwrap().bytes_total, total);
}

/// As many bytes of the mapping of a file under `dir` as are in memory.
#[cfg(target_os = "linux")]
fn resident(dir: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.contains(dir.to_str().unwrap()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("it is mapped");
    1024 * rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_back_end_has_leaves_memory_while_the_rest_is_read() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::copy(demo.join("model.safetensors"), dir.path().join("model.safetensors"));
    let weights = Weights::open(dir.path()).unwrap();
    let (config, mut most) = (ModelConfig::from_dir(&demo).unwrap(), 0);
    let spec = config.kv_spec(KvDtype::F32, PageSize::DEFAULT, None).unwrap();
    let mut report = |_| most = resident(dir.path()).max(most);
    Model::load(&Reference, config, &spec, &weights, WeightFormat::AsStored, &mut report).unwrap();
    assert!(most < bytes.unwrap() / 2, "{most} bytes at once");
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

/// A tensor of a file that is to be written: its name, type and bytes.
type Tensor = (String, &'static str, Vec<u8>);

fn stored(name: &str, dtype: &'static str, values: &[f32]) -> Tensor {
    let bytes = |value: &f32| match dtype {
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(*value).to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
    };
    (name.to_owned(), dtype, values.iter().flat_map(bytes).collect())
}

/// A fixture whose weights are in f32, with what `each` makes of every tensor in its place.
fn remade(name: &str, each: impl Fn(&str, &[f32]) -> Vec<Tensor>) -> tempfile::TempDir {
    let bytes = std::fs::read(model_dir(name).join("model.safetensors")).unwrap();
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    header.remove("__metadata__");
    let (mut made, mut out) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in header {
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
        let values: Vec<f32> =
            data[from..to].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        for (name, dtype, bytes) in each(&name, &values) {
            let offsets = [out.len(), out.len() + bytes.len()];
            out.extend(bytes);
            let entry = json!({"dtype": dtype, "shape": entry["shape"], "data_offsets": offsets});
            made.insert(name, entry);
        }
    }
    let header = Value::Object(made).to_string();
    let dir = tempfile::tempdir().unwrap();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &out].concat();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

#[test]
fn tensors_that_make_one_matrix_have_one_type() {
    let dir = remade("llama-gqa", |name, values| {
        let dtype = if name.ends_with("0.self_attn.v_proj.weight") { "BF16" } else { "F32" };
        vec![stored(name, dtype, values)]
    });
    let config = config("llama-gqa", json!({}));
    let spec = config.kv_spec(KvDtype::F32, PageSize::DEFAULT, None).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    let error = Model::load(&Reference, config, &spec, &weights, WeightFormat::AsStored, &mut |_| {});
    assert_eq!(
        error.unwrap_err().to_string(),
        "the tensors model.layers.0.self_attn.q_proj.weight and model.layers.0.self_attn.v_proj.weight are used as \
         one matrix, but are stored as F32 and Bf16"
    );
}

/// The square root of 32 is 5.65625 in sixteen bits. The same numbers in f32, with embeddings that make up for it.
#[test]
fn the_factor_on_gemmas_embeddings_has_the_type_of_its_weights() {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let config = config("gemma3-gqa", json!({"tie_word_embeddings": false}));
    let logits = |each: &dyn Fn(&str, &[f32]) -> Tensor| {
        let dir = remade("gemma3-gqa", |name, values| match name {
            EMBEDDING => {
                let (_, dtype, head) = each("lm_head.weight", values);
                vec![each(name, values), ("lm_head.weight".into(), dtype, head)]
            }
            _ => vec![each(name, values)],
        });
        let mut session = Session::with_config(Reference, config.clone(), dir.path(), Setup::default());
        session.all_logits(&(0..40).collect::<Vec<_>>(), 40).concat()
    };
    let rounded = |dtype: &'static str, value: f32| match dtype {
        "F16" => half::f16::from_f32(value).to_f32(),
        _ => half::bf16::from_f32(value).to_f32(),
    };
    for dtype in ["F16", "BF16"] {
        let found = logits(&|name, values| stored(name, dtype, values));
        let widened = |factor: f32| {
            logits(&|name, values| {
                let factor = if name == EMBEDDING { factor } else { 1.0 };
                let values: Vec<f32> = values.iter().map(|&value| factor * rounded(dtype, value)).collect();
                stored(name, "F32", &values)
            })
        };
        let off = distance(&found, &widened(5.65625 / 32f32.sqrt()));
        assert!(off < 3e-6, "{dtype}: off by {off}");
        let off = distance(&found, &widened(1.0));
        assert!(off > 1e-5, "{dtype}: off by {off} only");
    }
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
