use crate::load::{Loader, Progress};
use crate::scratch::Scratch;
use crate::weights::{LoadError, Weights};
use crate::{ModelConfig, RopeKind};
use octavo_backend::{
    AttentionSpec, Backend, BackendError, NormSpec, Rows, TableView, WeightFormat,
};
use octavo_types::{KvSpec, LayerGroup};
use std::fmt;

/// One layer's weights, and where its keys and values lie.
pub(crate) struct Layer<B: Backend> {
    pub rope: RopeKind,
    /// The group whose page tables it uses, and its place in that group's pages.
    pub group: usize,
    pub index_in_page: usize,
    pub window: Option<u32>,
    pub input_norm: B::Vector,
    pub qkv: B::Matrix,
    pub head_norms: Option<[B::Vector; 2]>,
    pub o: B::Matrix,
    pub after_attention: Option<B::Vector>,
    pub before_mlp: B::Vector,
    pub gate_up: B::Matrix,
    pub down: B::Matrix,
    pub after_mlp: Option<B::Vector>,
}

/// Angles a position of one of the model's ropes.
struct Turning {
    kind: RopeKind,
    inv_freq: Vec<f32>,
    scale: f32,
}

/// A model on a device.
pub struct Model<B: Backend> {
    config: ModelConfig,
    groups: usize,
    embedding: B::Matrix,
    embedding_scale: f32,
    layers: Vec<Layer<B>>,
    final_norm: B::Vector,
    /// `None` where the embedding is the head.
    head: Option<B::Matrix>,
    ropes: Vec<Turning>,
    scratch: Scratch<B>,
}

impl<B: Backend> Model<B> {
    /// Hands every tensor to the back end, straight from where it lies. `spec` is the geometry of the cache this
    /// model will run on, from [`ModelConfig::kv_spec`].
    pub fn load(
        backend: &B,
        config: ModelConfig,
        spec: &KvSpec,
        weights: &Weights,
        format: WeightFormat,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, LoadError> {
        let places = places(spec.groups(), config.layers().len())?;
        let ropes = ropes(&config);
        let mut loader = Loader::new(backend, &config, weights, format, progress);
        let (embedding, embedding_scale) = loader.embedding()?;
        let layers = places
            .iter()
            .zip(config.layers())
            .enumerate()
            .map(|(i, (&(group, at), &layer))| {
                let window = spec.groups()[group].window.map(|window| window.0);
                loader.layer(i, layer, (group, at), window)
            })
            .collect::<Result<_, _>>()?;
        let final_norm = loader.final_norm()?;
        let head = loader.head()?;
        loader.finish();
        let scratch = Scratch::new(backend, &config, ropes.len())?;
        let groups = spec.groups().len();
        Ok(Self { config, groups, embedding, embedding_scale, layers, final_norm, head, ropes, scratch })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Runs one ragged batch: stores the keys and values of every row, and gives the logits of the rows listed in
    /// `wanted`, `[wanted, vocab]`, in that order.
    ///
    /// `tables` has an entry for each layer group, with a table for each span. Tokens must be below the vocabulary's
    /// size and the tables cover their spans; a batch that does not fit panics.
    pub fn forward(
        &mut self,
        backend: &B,
        rows: Rows<'_>,
        tables: &[&[TableView<'_>]],
        arena: &mut B::Arena,
        wanted: &[u32],
    ) -> Result<&B::Buf, BackendError> {
        assert_eq!(tables.len(), self.groups, "one list of page tables for each layer group");
        assert!(tables.iter().all(|group| group.len() == rows.spans.len()), "one table for each span");
        self.scratch.resize(backend, rows.tokens.len(), wanted.len())?;
        self.start(backend, rows)?;
        for i in 0..self.layers.len() {
            self.attention(backend, i, rows, tables, arena)?;
            self.mlp(backend, i)?;
        }
        self.logits(backend, wanted)?;
        Ok(&self.scratch.logits)
    }

    fn norm<'a>(&self, weight: &'a B::Vector) -> NormSpec<'a, B::Vector> {
        NormSpec { weight, eps: self.config.norm_eps() }
    }

    /// Angles, embeddings, and the first norm.
    fn start(&mut self, backend: &B, rows: Rows<'_>) -> Result<(), BackendError> {
        let norm = NormSpec { weight: &self.layers[0].input_norm, eps: self.config.norm_eps() };
        let scratch = &mut self.scratch;
        for (rope, angles) in self.ropes.iter().zip(&mut scratch.angles) {
            backend.angles(rows.spans, &rope.inv_freq, rope.scale, angles)?;
        }
        backend.embed(&self.embedding, rows.tokens, self.embedding_scale, &mut scratch.x)?;
        backend.rms_norm(&scratch.x, norm, &mut scratch.normed)
    }
}
