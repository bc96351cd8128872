//! Runs a step on a device. The engine holds one boxed [`Runner`] and never names the device.

use crate::batch::Batch;
use octavo_backend::{Backend, BackendError, Choice, PageLayout, TableView};
use octavo_model::Model;
use octavo_types::{KvSpec, PageId, Pages};

/// What a step gives for each wanted row: its logits, or the token where the device has chosen it.
#[derive(Debug, Default)]
pub struct Logits {
    data: Vec<f32>,
    vocab: usize,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
enum Row {
    /// Where its logits begin.
    Logits(usize),
    Token(u32),
}

impl Logits {
    pub fn rows(&self) -> usize {
        self.rows.len()
    }
    /// The token of a row that has nothing else.
    pub fn token(&self, row: usize) -> Option<u32> {
        match self.rows[row] {
            Row::Token(token) => Some(token),
            Row::Logits(_) => None,
        }
    }
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[self.start(row)..][..self.vocab]
    }
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let start = self.start(row);
        &mut self.data[start..][..self.vocab]
    }
    fn start(&self, row: usize) -> usize {
        match self.rows[row] {
            Row::Logits(start) => start,
            Row::Token(_) => panic!("row {row} has a token and no logits"),
        }
    }
    /// No rows yet, of a vocabulary this large.
    pub fn clear(&mut self, vocab: usize) {
        self.data.clear();
        self.rows.clear();
        self.vocab = vocab;
    }
    /// Adds a row.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.vocab, "one logit a token");
        self.rows.push(Row::Logits(self.data.len()));
        self.data.extend_from_slice(row);
    }
    /// Adds a row of which only the token is known.
    pub fn push_token(&mut self, token: u32) {
        self.rows.push(Row::Token(token));
    }
}

/// A step is started, and finished with the same batch; between the two a device may work by itself.
pub trait Runner: Send {
    /// Begins whatever the device does by itself. What is left, which may be everything, is for [`finish`](Self::finish).
    fn start(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let _ = batch;
        Ok(())
    }
    /// The batch's copies have been carried out and it was computed: leaves the wanted logits, or tokens, in `logits`.
    fn finish(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError>;
    /// Both at once.
    fn step(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        self.start(batch)?;
        self.finish(batch, logits)
    }
    fn zero(&mut self, pages: &[PageId]) -> Result<(), BackendError>;
    /// How many tokens the model knows.
    fn vocab(&self) -> usize;
    /// What runs it, for people.
    fn device(&self) -> String;
}

/// A model on a back end, with the bytes of its pages.
pub struct ModelRunner<B: Backend> {
    pub(crate) backend: B,
    pub(crate) model: Model<B>,
    pub(crate) arena: B::Arena,
    /// The batch of the open step was given to the device.
    started: bool,
}

impl<B: Backend> ModelRunner<B> {
    /// Room for `pages` of the geometry `spec`, which must be the one the model was loaded for.
    pub fn new(backend: B, model: Model<B>, spec: &KvSpec, pages: Pages) -> Result<Self, BackendError> {
        let arena = backend.arena(PageLayout::new(spec), pages)?;
        Ok(Self { backend, model, arena, started: false })
    }

    /// Writes all of the `pages` once, so that the system gives them memory now and not while somebody waits for a
    /// token. `progress` is told how many of how many are done. Before anything is in them.
    pub fn commit(
        &mut self,
        pages: Pages,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), BackendError> {
        const AT_ONCE: usize = 16;
        let all: Vec<PageId> = (0..pages.0).map(PageId).collect();
        for (i, some) in all.chunks(AT_ONCE).enumerate() {
            progress(i * AT_ONCE, all.len());
            self.backend.zero_pages(&mut self.arena, some)?;
        }
        progress(all.len(), all.len());
        Ok(())
    }
}

impl<B: Backend> ModelRunner<B> {
    /// The batch's copies, then the model over it.
    fn run(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let Self { backend, model, arena, .. } = self;
        backend.copy_pages(arena, batch.copies())?;
        if batch.rows().tokens.is_empty() {
            return Ok(());
        }
        let tables = batch.tables();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        // Rows whose logits are read back may get any token.
        let choices: Vec<Choice> = match backend.chooses() {
            true => batch.choices().iter().map(|choice| choice.unwrap_or(Choice::LIKELIEST)).collect(),
            false => Vec::new(),
        };
        model.forward_and_choose(backend, batch.rows(), &tables, arena, batch.wanted(), &choices)?;
        Ok(())
    }
}

impl<B: Backend> std::fmt::Debug for ModelRunner<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelRunner").field("device", &self.backend.name()).finish_non_exhaustive()
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn start(&mut self, batch: &Batch) -> Result<(), BackendError> {
        // A device that computes while it is asked to would keep the caller from what it has to do meanwhile.
        self.started = self.backend.works_meanwhile();
        if self.started { self.run(batch) } else { Ok(()) }
    }

    fn finish(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        if !std::mem::take(&mut self.started) {
            self.run(batch)?;
        }
        logits.clear(self.model.config().vocab());
        let wanted = batch.wanted().len();
        if wanted == 0 {
            return Ok(());
        }
        let (backend, out) = (&self.backend, self.model.logits());
        if !backend.chooses() {
            backend.read(out, &mut logits.data)?;
            logits.rows.extend((0..wanted).map(|row| Row::Logits(row * logits.vocab)));
            return Ok(());
        }
        let tokens = backend.chosen(wanted)?;
        let mut row_of_logits = Vec::new();
        for (row, (token, choice)) in tokens.into_iter().zip(batch.choices()).enumerate() {
            match token.filter(|_| choice.is_some()) {
                Some(token) => logits.push_token(token),
                None => {
                    backend.read_row(out, row, &mut row_of_logits)?;
                    logits.push(&row_of_logits);
                }
            }
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
