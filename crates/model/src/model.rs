use crate::decoder::{Batch, Decoder, Place, Turning};
use crate::load::{Loader, Progress};
use crate::scratch::Scratch;
use crate::weights::{LoadError, Weights};
use crate::{ModelConfig, RopeKind};
use octavo_backend::{Backend, BackendError, Choice, Pass, Rows, Step, TableView, WeightFormat};
use octavo_types::{KvSpec, LayerGroup};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

static LOADED: AtomicU64 = AtomicU64::new(0);

/// A model on a device, with the buffers of its steps.
pub struct Model<B: Backend> {
    /// No other model of the process has it.
    id: u64,
    decoder: Decoder<B>,
    groups: usize,
    scratch: Scratch<B>,
}

impl<B: Backend> Model<B> {
    /// Hands every tensor to the back end, straight from where it lies. `spec` is the geometry of the cache the
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
        let mut loader = Loader::new(backend, &config, weights, format, progress);
        let (embedding, embedding_scale) = loader.embedding()?;
        let kinds = ropes(&config);
        let layers =
            (0..places.len()).map(|i| loader.layer(i, places[i], &kinds)).collect::<Result<_, _>>()?;
        let final_norm = loader.final_norm()?;
        let head = loader.head()?;
        loader.finish();
        let ropes: Vec<_> = kinds.into_iter().map(|kind| turning(&config, kind)).collect();
        let scratch = Scratch::new(backend, &config, ropes.len())?;
        let decoder = Decoder { config, embedding, embedding_scale, layers, final_norm, head, ropes };
        let id = LOADED.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, decoder, groups: spec.groups().len(), scratch })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.decoder.config
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
        self.forward_and_choose(backend, rows, tables, arena, wanted, &[])
    }

    /// Makes room for steps of so many rows, of which so many are wanted: a step never moves its buffers then.
    pub fn reserve(&mut self, backend: &B, rows: usize, wanted: usize) -> Result<(), BackendError> {
        self.scratch.resize(backend, rows, wanted)
    }

    /// The rows that a step of one token a sequence is filled up to.
    pub fn rows_for(
        &self,
        backend: &B,
        rows: Rows<'_>,
        tables: &[&[TableView<'_>]],
        arena: &B::Arena,
        choices: &[Choice],
    ) -> usize {
        backend.step_rows(&Step { model: self.id, rows, tables, arena, choices })
    }

    /// The same, and a token for each of the wanted rows, for [`Backend::chosen`]; none where `choices` is empty. With
    /// them a step of one row a sequence may be a replay, whose logits have rows beyond those wanted.
    pub fn forward_and_choose(
        &mut self,
        backend: &B,
        rows: Rows<'_>,
        tables: &[&[TableView<'_>]],
        arena: &mut B::Arena,
        wanted: &[u32],
        choices: &[Choice],
    ) -> Result<&B::Buf, BackendError> {
        assert_eq!(tables.len(), self.groups, "one list of page tables for each layer group");
        assert!(tables.iter().all(|group| group.len() == rows.spans.len()), "one table for each span");
        let covered: usize = rows.spans.iter().map(|span| span.rows).sum();
        assert_eq!(covered, rows.tokens.len(), "the spans cover the tokens");
        assert!(choices.is_empty() || choices.len() == wanted.len(), "a choice for each wanted row");
        let every = wanted.iter().copied().eq(0..rows.tokens.len() as u32);
        let step =
            Step { model: self.id, rows, tables, arena: &*arena, choices: if every { choices } else { &[] } };
        let padded = backend.step_rows(&step);
        self.scratch.resize(backend, padded, if every { padded } else { wanted.len() })?;
        let mut pass = backend.begin(&step)?;
        while pass == Pass::Run {
            let batch = Batch { rows, tables, arena, wanted, every, choices };
            pass = backend.end(self.decoder.step(backend, &mut self.scratch, batch))?;
        }
        Ok(&self.scratch.logits)
    }

    /// What the last step left: a row for each one wanted, and more where it was filled up.
    pub fn logits(&self) -> &B::Buf {
        &self.scratch.logits
    }
}

impl<B: Backend> fmt::Debug for Model<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", &self.decoder.config).finish_non_exhaustive()
    }
}

/// Where each layer's keys and values lie.
fn places(groups: &[LayerGroup], layers: usize) -> Result<Vec<Place>, LoadError> {
    let found = groups.iter().map(|group| group.layers.len()).sum();
    if found != layers {
        return Err(LoadError::Layers { expected: layers, found });
    }
    let mut places = vec![Place { group: 0, layer: 0, window: None }; layers];
    for (group, members) in groups.iter().enumerate() {
        let window = members.window.map(|window| window.0);
        for (layer, &index) in members.layers.iter().enumerate() {
            places[index as usize] = Place { group, layer, window };
        }
    }
    Ok(places)
}

/// The ropes that some layer uses.
fn ropes(config: &ModelConfig) -> Vec<RopeKind> {
    let used = |kind: &RopeKind| config.layers().iter().any(|layer| layer.rope == *kind);
    [RopeKind::Full, RopeKind::Sliding].into_iter().filter(used).collect()
}

fn turning(config: &ModelConfig, kind: RopeKind) -> Turning {
    let (inv_freq, scale) = config.inv_freq(kind);
    Turning { inv_freq, scale }
}
