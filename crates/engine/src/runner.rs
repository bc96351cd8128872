//! Runs a step on a device. The engine holds one boxed [`Runner`] and never names the device.

use crate::batch::Batch;
use octavo_backend::{Backend, BackendError, Choice, PageLayout, Rows, Span, TableView};
use octavo_model::Model;
use octavo_types::{KvSpec, PageId, Pages, Tokens};
use std::ops::Range;

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
    backend: B,
    model: Model<B>,
    arena: B::Arena,
    /// The batch of the open step was given to the device.
    started: bool,
}

impl<B: Backend> ModelRunner<B> {
    /// Room for `pages` of the geometry `spec`, which must be the one the model was loaded for.
    pub fn new(backend: B, model: Model<B>, spec: &KvSpec, pages: Pages) -> Result<Self, BackendError> {
        let arena = backend.arena(PageLayout::new(spec), pages)?;
        Ok(Self { backend, model, arena, started: false })
    }
}

/// Lengths of sequences in steps that only warm up: what a device does for short ones may not be what it does for long.
const WARM_LENGTHS: [u32; 4] = [1, 256, 1024, 4096];
/// The most sequences in such steps: larger ones take long enough for whatever comes first.
const MOST_WARM: u32 = 256;
/// Rows of prompts in such steps.
const WARM_CHUNKS: [u32; 3] = [2, 64, 512];

impl<B: Backend> ModelRunner<B> {
    /// Runs steps of up to `max_batch` sequences of up to `max_len` tokens, so that a device which compiles, measures or
    /// records what it meets for the first time does so now, and makes room for steps with `chunk` tokens of prompts.
    /// Before anything is in the pages: what they hold afterwards is undefined.
    pub fn warm_up(
        &mut self,
        spec: &KvSpec,
        max_batch: u32,
        max_len: Tokens,
        chunk: Tokens,
    ) -> Result<(), BackendError> {
        if !self.backend.chooses() {
            return Ok(());
        }
        // Steps may be filled up.
        let most = (max_batch as usize).next_multiple_of(32);
        self.model.reserve(&self.backend, most + chunk.as_usize(), most)?;
        for rows in WARM_CHUNKS.into_iter().filter(|rows| *rows <= chunk.0.min(max_len.0)) {
            self.any_step(spec, 1, 0..rows)?;
        }
        let mut batch = 1;
        while batch <= max_batch.min(MOST_WARM) {
            let mut padded = batch;
            for length in WARM_LENGTHS.into_iter().filter(|length| *length <= max_len.0) {
                padded = self.any_step(spec, batch, length - 1..length)?;
            }
            batch = padded + 1;
        }
        Ok(())
    }

    /// These positions of so many sequences, all of whose pages are the first; says how many rows it was filled up to.
    fn any_step(&mut self, spec: &KvSpec, batch: u32, positions: Range<u32>) -> Result<u32, BackendError> {
        let (count, rows) = (batch as usize, positions.len());
        let span = |i| Span { first_row: i * rows, rows, start: positions.start };
        let spans: Vec<Span> = (0..count).map(span).collect();
        let pages = vec![PageId(0); spec.page_size().pages_for(Tokens(positions.end)).as_usize()];
        let table = vec![TableView { first: 0, pages: &pages }; count];
        let tables = vec![&table[..]; spec.groups().len()];
        let tokens = vec![0; count * rows];
        let wanted: Vec<u32> = (1..=count).map(|i| (i * rows - 1) as u32).collect();
        let rows = Rows { tokens: &tokens, spans: &spans };
        let choices = vec![Choice::LIKELIEST; count];
        let Self { backend, model, arena, .. } = self;
        let padded = model.rows_for(backend, rows, &tables, arena, &choices);
        model.forward_and_choose(backend, rows, &tables, arena, &wanted, &choices)?;
        backend.chosen(count)?;
        Ok(padded as u32)
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
