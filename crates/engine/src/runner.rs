//! Runs a step on a device. The engine holds one boxed [`Runner`] and never names the device.

use crate::batch::Batch;
use octavo_backend::{Backend, BackendError, PageLayout, TableView};
use octavo_model::Model;
use octavo_types::{KvSpec, PageId, Pages};

/// Logits of the wanted rows: `[rows, vocab]`.
#[derive(Debug, Default)]
pub struct Logits {
    data: Vec<f32>,
    vocab: usize,
}

impl Logits {
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab).unwrap_or(0)
    }
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab..][..self.vocab]
    }
    /// No rows yet, of a vocabulary this large.
    pub fn clear(&mut self, vocab: usize) {
        self.data.clear();
        self.vocab = vocab;
    }
    /// Adds a row.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.vocab, "one logit a token");
        self.data.extend_from_slice(row);
    }
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.vocab..][..self.vocab]
    }
}

pub trait Runner: Send {
    /// Carries out the batch's copies, then computes it, and leaves the wanted logits in `logits`.
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError>;
    fn zero(&mut self, pages: &[PageId]) -> Result<(), BackendError>;
    /// How many tokens the model knows.
    fn vocab(&self) -> usize;
    /// What runs it, for people.
    fn device(&self) -> String;
}

/// A model on a back end, with the bytes of its pages.
pub struct ModelRunner<B: Backend> {
    backend: B,
    model: Model<B>,
    arena: B::Arena,
}

impl<B: Backend> ModelRunner<B> {
    /// Room for `pages` of the geometry `spec`, which must be the one the model was loaded for.
    pub fn new(backend: B, model: Model<B>, spec: &KvSpec, pages: Pages) -> Result<Self, BackendError> {
        let arena = backend.arena(PageLayout::new(spec), pages)?;
        Ok(Self { backend, model, arena })
    }
}

impl<B: Backend> std::fmt::Debug for ModelRunner<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelRunner").field("device", &self.backend.name()).finish_non_exhaustive()
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        logits.clear(self.model.config().vocab());
        self.backend.copy_pages(&mut self.arena, batch.copies())?;
        if batch.rows().tokens.is_empty() {
            return Ok(());
        }
        let tables = batch.tables();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        let out =
            self.model.forward(&self.backend, batch.rows(), &tables, &mut self.arena, batch.wanted())?;
        if !batch.wanted().is_empty() {
            self.backend.read(out, &mut logits.data)?;
        }
        Ok(())
    }

    fn zero(&mut self, pages: &[PageId]) -> Result<(), BackendError> {
        self.backend.zero_pages(&mut self.arena, pages)
    }

    fn vocab(&self) -> usize {
        self.model.config().vocab()
    }

    fn device(&self) -> String {
        self.backend.name()
    }
}
