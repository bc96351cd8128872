//! A step as plain data: what the cache planned, laid out for the model.

use octavo_backend::{Rows, Span, TableView};
use octavo_kv::KvCache;
use octavo_types::PageId;
use std::ops::Range;

/// Which rows of a span logits are wanted of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    Nothing,
    /// The last row alone: what comes next.
    Last,
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
    groups: usize,
    tables: Vec<(u32, Range<usize>)>,
    pages: Vec<PageId>,
    copies: Vec<(PageId, PageId, usize)>,
    wanted: Vec<u32>,
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
        self.logits.clear();
        let step = cache.step();
        for (index, planned) in step.spans().iter().enumerate() {
            let sequence = cache.sequence(planned.seq).expect("a sequence in a step exists");
            let positions = planned.positions.start.as_usize()..planned.positions.end.as_usize();
            let first_row = self.tokens.len();
            self.tokens.extend_from_slice(&sequence.tokens()[positions]);
            let rows = self.tokens.len() - first_row;
            self.spans.push(Span { first_row, rows, start: planned.positions.start.0 });
            let last = (first_row + rows) as u32;
            let first_wanted = self.wanted.len();
            match wanted(index) {
                Wanted::Nothing => {}
                Wanted::Last => self.wanted.push(last - 1),
                Wanted::All => self.wanted.extend(first_row as u32..last),
            }
            self.logits.push(first_wanted..self.wanted.len());
        }
        self.copies.clear();
        self.copies.extend(step.copies().iter().map(|copy| (copy.from, copy.to, copy.slots.as_usize())));
        self.fill_tables(cache);
    }

    fn fill_tables(&mut self, cache: &KvCache) {
        self.tables.clear();
        self.pages.clear();
        self.groups = cache.settings().windows.len();
        for group in 0..self.groups {
            for planned in cache.step().spans() {
                let table =
                    &cache.sequence(planned.seq).expect("a sequence in a step exists").tables()[group];
                let start = self.pages.len();
                table.page_runs().iter().for_each(|run| self.pages.extend_from_slice(run));
                self.tables.push((table.first().0, start..self.pages.len()));
            }
        }
    }

    pub fn rows(&self) -> Rows<'_> {
        Rows { tokens: &self.tokens, spans: &self.spans }
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

    /// Rows whose logits are wanted.
    pub fn wanted(&self) -> &[u32] {
        &self.wanted
    }
}
