//! A model of random weights: what it says means nothing, what it costs is what a real one of its geometry costs.

use super::machine::Machine;
use super::measure::SEED;
use anyhow::Result;
use octavo_backend::{TensorRef, WeightDtype, WeightFormat};
use octavo_cpu::{Cpu, Matrix, Pool};
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::KvSpec;
use serde_json::{Map, Value, json};

/// Bytes that one task fills; a multiple of a weight.
const PIECE: usize = 1 << 20;
const ONE: u16 = 0x3f80;

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub(super) name: &'static str,
    layers: usize,
    hidden: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    mlp: usize,
    vocab: usize,
}

impl Geometry {
    pub(super) fn new(quick: bool) -> Self {
        if quick {
            let (hidden, head_dim, mlp, vocab) = (64, 32, 96, 320);
            return Self { name: "tiny", layers: 2, hidden, q_heads: 4, kv_heads: 2, head_dim, mlp, vocab };
        }
        let (hidden, head_dim, mlp, vocab) = (1024, 128, 3072, 151_936);
        Self { name: "Qwen3-0.6B", layers: 28, hidden, q_heads: 16, kv_heads: 8, head_dim, mlp, vocab }
    }

    pub(super) fn config(&self) -> Result<ModelConfig> {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.mlp, "num_hidden_layers": self.layers,
            "num_attention_heads": self.q_heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "vocab_size": self.vocab, "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        });
        Ok(ModelConfig::from_json(&config.to_string())?)
    }

    /// The products of one layer, then that with the output head: what they are called, outputs and inputs.
    pub(super) fn products(&self) -> [(&'static str, [usize; 2]); 5] {
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        [
            ("qkv", [q + 2 * kv, self.hidden]),
            ("o", [self.hidden, q]),
            ("gate_up", [2 * self.mlp, self.hidden]),
            ("down", [self.hidden, self.mlp]),
            ("head", [self.vocab, self.hidden]),
        ]
    }

    /// Names and shapes of everything that is stored.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Self { hidden, head_dim, mlp, vocab, .. } = *self;
        let (q, kv) = (self.q_heads * head_dim, self.kv_heads * head_dim);
        let layer = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.q_norm", vec![head_dim]),
            ("self_attn.k_norm", vec![head_dim]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![mlp, hidden]),
            ("mlp.up_proj", vec![mlp, hidden]),
            ("mlp.down_proj", vec![hidden, mlp]),
        ];
        let ends = [("embed_tokens", vec![vocab, hidden]), ("norm", vec![hidden])];
        let ends = ends.map(|(name, shape)| (format!("model.{name}.weight"), shape));
        let named =
            |i: usize| layer.clone().map(|(name, shape)| (format!("model.layers.{i}.{name}.weight"), shape));
        ends.into_iter().chain((0..self.layers).flat_map(named)).collect()
    }

    /// All of it as one file in memory.
    pub(super) fn weights(&self, pool: &Pool) -> Result<Weights> {
        let tensors = self.tensors();
        let (mut header, mut end) = (Map::new(), 0);
        for (name, shape) in &tensors {
            let start = end;
            end += shape.iter().product::<usize>() * 2;
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
            header.insert(name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string();
        header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
        let mut file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        let mut at = file.len();
        file.resize(at + end, 0);
        for (_, shape) in &tensors {
            let bytes = &mut file[at..][..shape.iter().product::<usize>() * 2];
            at += bytes.len();
            match shape.len() {
                1 => bytes.as_chunks_mut().0.fill(ONE.to_le_bytes()),
                _ => fill(pool, bytes),
            }
        }
        Ok(Weights::from_bytes("random weights", file)?)
    }

    /// Bytes of weights that a step of one row reads, norms left out.
    pub(super) fn bytes_read(&self, config: &ModelConfig, format: WeightFormat) -> f64 {
        let scales = size_of::<f32>() as f64 / octavo_backend::weights::GROUP as f64;
        let width = match format {
            WeightFormat::AsStored => 2.0,
            WeightFormat::F32 => 4.0,
            WeightFormat::Int8 => 1.0 + scales,
        };
        config.parameters() as f64 * width
    }
}

/// The model on the machine.
pub(super) fn load(
    machine: &Machine,
    config: &ModelConfig,
    spec: &KvSpec,
    weights: &Weights,
    format: WeightFormat,
) -> Result<Model<Cpu>> {
    Ok(Model::load(&machine.cpu, config.clone(), spec, weights, format, &mut |_| {})?)
}

/// A random matrix of its own.
pub(super) fn matrix(pool: &Pool, [rows, cols]: [usize; 2], format: WeightFormat) -> Matrix {
    let mut bytes = vec![0; rows * cols * 2];
    fill(pool, &mut bytes);
    let tensor = TensorRef::new(WeightDtype::Bf16, rows, cols, &bytes).expect("as many bytes as it takes");
    Matrix::pack(&[tensor], format, pool)
}

/// Weights in bf16 with magnitudes from 2⁻⁷ to 2⁻⁵.
fn fill(pool: &Pool, bytes: &mut [u8]) {
    pool.run_chunks(bytes, PIECE, &|piece, bytes| {
        let mut random = fastrand::Rng::with_seed(SEED ^ piece as u64);
        let weight = |bits: u64| bits & 0x80ff_80ff_80ff_80ff | 0x3c00_3c00_3c00_3c00;
        for eight in bytes.chunks_mut(8) {
            eight.copy_from_slice(&weight(random.u64(..)).to_le_bytes()[..eight.len()]);
        }
    });
}
