//! A step as plain data: what the cache planned, laid out for the model.

use octavo_backend::{Choice, Rows, Span, TableView};
use octavo_kv::KvCache;
use octavo_types::PageId;
use std::ops::Range;

/// What is wanted of a span.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Wanted {
    Nothing,
    /// The logits of the last row: what may come next.
    Last,
    /// What comes next, chosen so from the logits of the last row, or those.
    Token(Choice),
    /// Every row: the logits of the prompt itself.
    All,
}

/// Everything a runner needs for one step. The buffers are kept from step to step.
///
/// Invariant: `tables` has one entry a group and span, group by group, and each covers its span.
#[derive(Debug, Default)]
pub struct Batch {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    apart: bool,
    groups: usize,
    tables: Vec<(u32, Range<usize>)>,
    pages: Vec<PageId>,
    copies: Vec<(PageId, PageId, usize)>,
    wanted: Vec<u32>,
    /// One a wanted row; none where its logits are wanted themselves.
    choices: Vec<Option<Choice>>,
    /// One a span: which of the wanted rows are its own.
    logits: Vec<Range<usize>>,
}

impl Batch {
    /// Lays out the step that `cache` has planned. `wanted` says for each of its spans, in order, which logits to
    /// return.
    pub fn fill(&mut self, cache: &KvCache, wanted: impl Fn(usize) -> Wanted) {
        self.tokens.clear();
        self.spans.clear();
        self.wanted.clear();
        self.choices.clear();
        self.logits.clear();
        self.pages.clear();
        let step = cache.step();
        self.apart = step.is_apart();
        self.groups = cache.settings().windows.len();
        self.tables.clear();
        self.tables.resize(self.groups * step.spans().len(), (0, 0..0));
        for (index, planned) in step.spans().iter().enumerate() {
            let sequence = cache.sequence(planned.seq).expect("a sequence in a step exists");
            let positions = planned.positions.start.as_usize()..planned.positions.end.as_usize();
            let first_row = self.tokens.len();
            self.tokens.extend_from_slice(&sequence.tokens()[positions]);
            let rows = self.tokens.len() - first_row;
            self.spans.push(Span { first_row, rows, start: planned.positions.start.0 });
            self.want(wanted(index), first_row..first_row + rows);
            for (group, table) in sequence.tables().iter().enumerate() {
                let start = self.pages.len();
                table.page_runs().iter().for_each(|run| self.pages.extend_from_slice(run));
                let at = group * step.spans().len() + index;
                self.tables[at] = (table.first().0, start..self.pages.len());
            }
        }
        self.copies.clear();
        self.copies.extend(step.copies().iter().map(|copy| (copy.from, copy.to, copy.slots.as_usize())));
    }

    /// Notes which rows of the next span logits are wanted of.
    fn want(&mut self, wanted: Wanted, rows: Range<usize>) {
        let first = self.wanted.len();
        match wanted {
            Wanted::Nothing => {}
            Wanted::Last | Wanted::Token(_) => self.wanted.push(rows.end as u32 - 1),
            Wanted::All => self.wanted.extend(rows.start as u32..rows.end as u32),
        }
        self.logits.push(first..self.wanted.len());
        let choice = if let Wanted::Token(choice) = wanted { Some(choice) } else { None };
        self.choices.resize(self.wanted.len(), choice);
    }

    pub fn rows(&self) -> Rows<'_> {
        Rows { tokens: &self.tokens, spans: &self.spans, apart: self.apart }
    }

    /// For each group, a table for each span.
    pub fn tables(&self) -> Vec<Vec<TableView<'_>>> {
        let view = |(first, range): &(u32, Range<usize>)| TableView {
            first: *first,
            pages: &self.pages[range.clone()],
        };
        let spans = self.spans.len();
        (0..self.groups)
            .map(|group| self.tables[group * spans..][..spans].iter().map(view).collect())
            .collect()
    }

    /// (from, to, slots), to be copied in this order before anything is stored.
    pub fn copies(&self) -> &[(PageId, PageId, usize)] {
        &self.copies
    }

    /// Where the logits of a span are among those of all.
    pub fn logits_of(&self, span: usize) -> Range<usize> {
        self.logits[span].clone()
    }

    /// Rows whose logits, or tokens, are wanted.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }

    /// How the token of each wanted row is chosen; none where its logits are wanted themselves.
    pub fn choices(&self) -> &[Option<Choice>] {
        &self.choices
    }
}
