//! From the files to the device: every tensor is handed over once, straight from the mapping.

use crate::block::Block;
use crate::decoder::{Layer, Place};
use crate::weights::{LoadError, Weights};
use crate::{ModelConfig, RopeKind};
use octavo_backend::{Backend, TensorRef, WeightDtype, WeightFormat};

/// How far loading has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// Hands tensors to the back end, and reports.
pub(crate) struct Loader<'a, B: Backend> {
    backend: &'a B,
    config: &'a ModelConfig,
    weights: &'a Weights,
    block: Block,
    prefix: &'static str,
    format: WeightFormat,
    progress: &'a mut dyn FnMut(Progress),
    at: Progress,
}

const HEAD: &str = "lm_head.weight";

impl<'a, B: Backend> Loader<'a, B> {
    pub(crate) fn new(
        backend: &'a B,
        config: &'a ModelConfig,
        weights: &'a Weights,
        format: WeightFormat,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let block = Block::of(config);
        let has_embedding = |prefix: &&&str| weights.contains(&format!("{prefix}embed_tokens.weight"));
        let prefix = block.prefixes.iter().find(has_embedding).unwrap_or(&block.prefixes[0]);
        let head = if config.tied() { 0 } else { weights.bytes_of(HEAD) };
        let at = Progress { bytes_done: 0, bytes_total: weights.bytes_under(prefix) + head };
        Self { backend, config, weights, block, prefix, format, progress, at }
    }

    /// The embedding, and the factor on what is read from it.
    pub(crate) fn embedding(&mut self) -> Result<(B::Matrix, f32), LoadError> {
        let shape = [self.config.vocab(), self.config.hidden()];
        let name = self.named("embed_tokens");
        let dtype = self.weights.tensor(&name, shape)?.dtype();
        // Reading rows is no work that quantising would speed up; as the output head it is.
        let format = if self.config.tied() { self.format } else { WeightFormat::AsStored };
        let table = self.matrix(&[(name, shape)], format)?;
        let scale = match self.block.scaled_embedding {
            true => rounded((self.config.hidden() as f64).sqrt() as f32, dtype),
            false => 1.0,
        };
        Ok((table, scale))
    }

    /// `None` where the embedding is the head.
    pub(crate) fn head(&mut self) -> Result<Option<B::Matrix>, LoadError> {
        if self.config.tied() {
            return Ok(None);
        }
        let shape = [self.config.vocab(), self.config.hidden()];
        self.matrix(&[(HEAD.to_owned(), shape)], self.format).map(Some)
    }

    pub(crate) fn final_norm(&mut self) -> Result<B::Vector, LoadError> {
        let name = self.named("norm");
        self.norm(name, self.config.hidden())
    }

    /// `ropes` are the model's, in the order in which its layers will count them.
    pub(crate) fn layer(
        &mut self,
        index: usize,
        place: Place,
        ropes: &[RopeKind],
    ) -> Result<Layer<B>, LoadError> {
        let (hidden, heads) = (self.config.hidden(), self.config.heads());
        let (q, kv, mlp) = (heads.q * heads.dim, heads.kv * heads.dim, self.config.intermediate());
        let Block { input_norm, after_attention, before_mlp, after_mlp, head_norms, .. } = self.block;
        let kind = self.config.layers()[index].rope;
        let rope = ropes.iter().position(|rope| *rope == kind).expect("they are all layers' ropes");
        let prefix = self.prefix;
        let at = move |name: &str| format!("{prefix}layers.{index}.{name}.weight");
        let part = |name: &str, rows: usize| (at(name), [rows, hidden]);
        let qkv = [part("self_attn.q_proj", q), part("self_attn.k_proj", kv), part("self_attn.v_proj", kv)];
        let gate_up = [part("mlp.gate_proj", mlp), part("mlp.up_proj", mlp)];
        Ok(Layer {
            rope,
            place,
            input_norm: self.norm(at(input_norm), hidden)?,
            qkv: self.matrix(&qkv, self.format)?,
            head_norms: match head_norms {
                Some([q, k]) => Some([self.norm(at(q), heads.dim)?, self.norm(at(k), heads.dim)?]),
                None => None,
            },
            o: self.matrix(&[(at("self_attn.o_proj"), [hidden, q])], self.format)?,
            after_attention: after_attention.map(|name| self.norm(at(name), hidden)).transpose()?,
            before_mlp: self.norm(at(before_mlp), hidden)?,
            gate_up: self.matrix(&gate_up, self.format)?,
            down: self.matrix(&[(at("mlp.down_proj"), [hidden, mlp])], self.format)?,
            after_mlp: after_mlp.map(|name| self.norm(at(name), hidden)).transpose()?,
        })
    }

    /// All there is has been handed over, whatever else lies in the files.
    pub(crate) fn finish(self) {
        (self.progress)(Progress { bytes_done: self.at.bytes_total, ..self.at });
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}.weight", self.prefix)
    }

    fn norm(&mut self, name: String, len: usize) -> Result<B::Vector, LoadError> {
        let values = self.weights.tensor(&name, [1, len])?;
        let vector = self.backend.vector(values, self.block.norm_plus);
        let vector = vector.map_err(|source| LoadError::Tensor { tensor: name.clone(), source })?;
        self.done(&name);
        Ok(vector)
    }

    /// The parts one below the other.
    fn matrix(
        &mut self,
        parts: &[(String, [usize; 2])],
        format: WeightFormat,
    ) -> Result<B::Matrix, LoadError> {
        let tensors: Vec<TensorRef<'_>> =
            parts.iter().map(|(name, shape)| self.weights.tensor(name, *shape)).collect::<Result<_, _>>()?;
        refuse_mixed(parts, &tensors)?;
        let matrix = self
            .backend
            .matrix(&tensors, format)
            .map_err(|source| LoadError::Tensor { tensor: parts[0].0.clone(), source })?;
        parts.iter().for_each(|(name, _)| self.done(name));
        Ok(matrix)
    }

    fn done(&mut self, name: &str) {
        self.at.bytes_done += self.weights.bytes_of(name);
        self.weights.forget(name);
        (self.progress)(self.at);
    }
}

fn refuse_mixed(parts: &[(String, [usize; 2])], tensors: &[TensorRef<'_>]) -> Result<(), LoadError> {
    let first = tensors[0].dtype();
    match tensors.iter().position(|tensor| tensor.dtype() != first) {
        None => Ok(()),
        Some(other) => Err(LoadError::MixedTypes {
            first: parts[0].0.clone(),
            second: parts[other].0.clone(),
            types: format!("{first:?} and {:?}", tensors[other].dtype()),
        }),
    }
}

/// The factor is kept in the type of the weights it multiplies.
fn rounded(value: f32, dtype: WeightDtype) -> f32 {
    match dtype {
        WeightDtype::F32 => value,
        WeightDtype::F16 => half::f16::from_f32(value).to_f32(),
        WeightDtype::Bf16 => half::bf16::from_f32(value).to_f32(),
    }
}
