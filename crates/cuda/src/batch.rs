//! What a step's spans and tables become on the device: made once, found again by the other layers of the step.

use crate::attention::Placed;
use crate::device::Device;
use crate::memory::Memory;
use crate::plan::PlanKey;
use octavo_backend::{BackendError, Span, TableView};
use std::sync::Arc;

/// Steps, or layer groups of a step, that are remembered.
const REMEMBERED: usize = 32;

/// Spans and tables by value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tables {
    pub(crate) page_size: usize,
    pub(crate) spans: Vec<Span>,
    /// Index of the first page held, and how many are held, of each span.
    ranges: Vec<(u32, usize)>,
    pages: Vec<u32>,
}

/// Where page 0 of each table would be among the pages of all tables, one after another behind `at` others; below zero
/// where the first pages are gone. A table is the index of its first page and how many it holds.
pub(crate) fn origins(at: usize, tables: impl IntoIterator<Item = (u32, usize)>) -> Vec<i32> {
    let mut at = at;
    let origin = |(first, len): (u32, usize)| {
        let origin = at as i32 - first as i32;
        at += len;
        origin
    };
    tables.into_iter().map(origin).collect()
}

/// Panics unless every span's pages cover it.
pub(crate) fn check(page_size: usize, spans: &[Span], tables: impl IntoIterator<Item = (u32, usize)>) {
    for (span, (first, len)) in spans.iter().zip(tables).filter(|(span, _)| span.rows > 0) {
        let first = first as usize;
        assert!(first * page_size <= span.start as usize, "a page that has left the window");
        assert!(span.end() as usize <= (first + len) * page_size, "pages up to {}", span.end());
    }
}

impl Tables {
    pub(crate) fn new(page_size: usize, spans: &[Span], tables: &[TableView<'_>]) -> Self {
        Self {
            page_size,
            spans: spans.to_vec(),
            ranges: tables.iter().map(|table| (table.first, table.pages.len())).collect(),
            pages: tables.iter().flat_map(|table| table.pages).map(|page| page.0).collect(),
        }
    }

    /// One more than the largest page.
    fn end_of_pages(&self) -> usize {
        self.pages.iter().map(|&page| page as usize + 1).max().unwrap_or(0)
    }

    fn is(&self, page_size: usize, spans: &[Span], tables: &[TableView<'_>]) -> bool {
        let same_range =
            |(range, table): (&(u32, usize), &TableView<'_>)| *range == (table.first, table.pages.len());
        if (self.page_size, &self.spans[..], self.ranges.len()) != (page_size, spans, tables.len()) {
            return false;
        }
        let mut pages = &self.pages[..];
        self.ranges.iter().zip(tables).all(same_range)
            && tables.iter().all(|table| {
                let (own, rest) = pages.split_at(table.pages.len());
                pages = rest;
                own.iter().zip(table.pages).all(|(own, page)| *own == page.0)
            })
    }

    pub(crate) fn origins(&self) -> Vec<i32> {
        origins(0, self.ranges.iter().copied())
    }

    /// Page and slot of every row.
    fn slots(&self) -> Vec<u32> {
        let size = self.page_size as u32;
        let place = |origin: i32, position: u32| {
            let index = origin + (position / size) as i32;
            [self.pages[index as usize], position % size]
        };
        let rows = self.spans.iter().zip(self.origins());
        rows.flat_map(|(span, origin)| (span.start..span.end()).flat_map(move |p| place(origin, p))).collect()
    }
}

/// [`Tables`] and what was made of them.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) tables: Tables,
    pub(crate) slots: Memory,
    pub(crate) pages: Memory,
    end_of_pages: usize,
    plans: Vec<(PlanKey, Arc<Placed>)>,
}

/// The last batches, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Batches(Vec<Batch>);

impl Batches {
    pub(crate) fn get(
        &mut self,
        device: &Arc<dyn Device>,
        page_size: usize,
        spans: &[Span],
        tables: &[TableView<'_>],
        arena_pages: usize,
    ) -> Result<&mut Batch, BackendError> {
        assert_eq!(spans.len(), tables.len(), "spans and tables");
        let found = self.0.iter().rposition(|batch| batch.tables.is(page_size, spans, tables));
        let at = match found {
            Some(at) => at,
            None => self.add(device, Tables::new(page_size, spans, tables))?,
        };
        let batch = &mut self.0[at];
        assert!(batch.end_of_pages <= arena_pages, "pages of an arena of {arena_pages}");
        Ok(batch)
    }

    fn add(&mut self, device: &Arc<dyn Device>, tables: Tables) -> Result<usize, BackendError> {
        check(tables.page_size, &tables.spans, tables.ranges.iter().copied());
        let slots = Memory::of(device, &tables.slots())?;
        let pages = Memory::of(device, &tables.pages)?;
        if self.0.len() == REMEMBERED {
            self.0.remove(0);
        }
        let end_of_pages = tables.end_of_pages();
        self.0.push(Batch { tables, slots, pages, end_of_pages, plans: Vec::new() });
        Ok(self.0.len() - 1)
    }
}

impl Batch {
    pub(crate) fn plan(
        &mut self,
        key: PlanKey,
        make: impl FnOnce(&Tables) -> Result<Placed, BackendError>,
    ) -> Result<Arc<Placed>, BackendError> {
        if let Some((_, plan)) = self.plans.iter().find(|(k, _)| *k == key) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(make(&self.tables)?);
        self.plans.push((key, plan.clone()));
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;
    use octavo_types::PageId;

    const PAGES: [PageId; 3] = [PageId(4), PageId(9), PageId(2)];

    fn span(start: u32) -> Span {
        Span { first_row: 0, rows: 2, start }
    }

    #[test]
    fn a_batch_is_found_again_by_everything_that_it_was_made_of() {
        let view = |first, pages| [TableView { first, pages }];
        let tables = Tables::new(16, &[span(20)], &view(0, &PAGES));
        assert!(tables.is(16, &[span(20)], &view(0, &PAGES)));
        assert!(!tables.is(32, &[span(20)], &view(0, &PAGES)));
        assert!(!tables.is(16, &[span(21)], &view(0, &PAGES)));
        assert!(!tables.is(16, &[span(20)], &view(1, &PAGES)));
        assert!(!tables.is(16, &[span(20)], &view(0, &PAGES[..2])));
        assert!(!tables.is(16, &[span(20)], &view(0, &[PAGES[1], PAGES[0], PAGES[2]])));
    }

    #[test]
    #[should_panic(expected = "a page that has left the window")]
    fn a_row_before_the_first_page_is_refused() {
        check(16, &[span(31)], [(2, 1)]);
    }

    #[test]
    #[should_panic(expected = "pages up to 49")]
    fn a_row_behind_the_last_page_is_refused() {
        check(16, &[span(46)], [(1, 2)]);
        check(16, &[span(47)], [(1, 2)]);
    }

    fn get(batches: &mut Batches, device: &Arc<dyn Device>, start: u32, arena_pages: usize) {
        let tables = [TableView { first: 0, pages: &PAGES }];
        batches.get(device, 16, &[span(start)], &tables, arena_pages).unwrap();
    }

    #[test]
    #[should_panic(expected = "pages of an arena of 9")]
    fn a_page_beyond_the_arena_is_refused() {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        let mut batches = Batches::default();
        get(&mut batches, &device, 0, 10);
        get(&mut batches, &device, 0, 9);
    }

    #[test]
    fn the_last_batches_are_remembered_and_no_more() {
        let device: Arc<dyn Device> = Arc::new(Emulated::default());
        let mut batches = Batches::default();
        (0..40).for_each(|start| get(&mut batches, &device, start, 10));
        let starts: Vec<u32> = batches.0.iter().map(|batch| batch.tables.spans[0].start).collect();
        assert_eq!(starts, (8..40).collect::<Vec<_>>());
    }
}
