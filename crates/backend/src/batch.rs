use crate::Choice;
use octavo_types::PageId;

/// Rows of one sequence in the batch: consecutive rows, consecutive positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row in its sequence.
    pub start: u32,
}

impl Span {
    /// Tokens the sequence has in the cache once this span is stored.
    pub fn end(&self) -> u32 {
        self.start + self.rows as u32
    }
}

/// The rows of a step.
///
/// Invariant: the spans follow each other without gaps and cover `tokens`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub tokens: &'a [u32],
    pub spans: &'a [Span],
    /// Whether it is known that no sequence holds a page which another one fills in this step: what each of them has to
    /// see beside its own rows was stored before.
    pub apart: bool,
}

impl<'a> Rows<'a> {
    /// Of sequences of which it is not known whether they are apart.
    pub fn new(tokens: &'a [u32], spans: &'a [Span]) -> Self {
        Self { tokens, spans, apart: false }
    }
}

/// The page table of one span in one layer group.
#[derive(Clone, Copy, Debug)]
pub struct TableView<'a> {
    /// Index of the first page held: those before it have left the window.
    pub first: u32,
    /// The pages from there on; they cover every position up to the span's end.
    pub pages: &'a [PageId],
}

/// A whole step as a back end sees it before its operations are called.
#[derive(Debug)]
pub struct Step<'a, Arena> {
    /// Of the model that runs: steps of one are not replayed for another.
    pub model: u64,
    pub rows: Rows<'a>,
    /// For each layer group, a table for each span.
    pub tables: &'a [&'a [TableView<'a>]],
    pub arena: &'a Arena,
    /// One a row where the step ends in a token for every row, otherwise empty.
    pub choices: &'a [Choice],
}

/// What a back end asks of whoever runs a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Call the operations of the step.
    Run,
    /// The results are there, or will be when they are read.
    Done,
}
