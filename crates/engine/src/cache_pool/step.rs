use super::errors::UpdateError;
use octavo_backend::TableView;
use octavo_kv::{AllocError, CacheManager, ExtendError};
use octavo_types::{PageId, Pages, SeqId, SlotId, Tokens};
use std::ops::Range;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) seq: SeqId,
    pub(super) len: Tokens,
    pub(super) new: Tokens,
}

/// Where a step's tokens go and what attention reads: worked out by the first layer, used by all of them.
#[derive(Debug)]
pub(super) struct Step {
    /// Rows of each sequence, padding included.
    pub(super) rows: usize,
    pub(super) growth: Vec<Growth>,
    /// Where each new token goes, sequence by sequence.
    slots: Vec<SlotId>,
    /// Runs of consecutive rows that are tokens, and their part of `slots`.
    runs: Vec<(usize, Range<usize>)>,
    /// The pages of every sequence, one after another, and each one's part of them.
    pages: Vec<PageId>,
    tables: Vec<(Range<usize>, u32)>,
}

impl Step {
    /// Takes the pages that are missing, for all sequences or for none. `slot` is the most that one may have.
    pub(super) fn plan(
        manager: &mut CacheManager,
        slot: Option<Tokens>,
        growth: Vec<Growth>,
        rows: usize,
    ) -> Result<Self, UpdateError> {
        take_pages(manager, slot, &growth)?;
        let mut step = Self {
            rows,
            slots: Vec::new(),
            runs: Vec::new(),
            pages: Vec::new(),
            tables: Vec::with_capacity(growth.len()),
            growth,
        };
        for index in 0..step.growth.len() {
            step.add(manager, index)?;
        }
        Ok(step)
    }

    fn add(&mut self, manager: &CacheManager, index: usize) -> Result<(), UpdateError> {
        let Growth { seq, len, new } = self.growth[index];
        let table = manager.block_table(seq)?;
        let size = manager.spec().page_size();
        let (start, end) = (self.slots.len(), len + new);
        self.slots.extend((len.0..end.0).filter_map(|at| table.slot(Tokens(at), size)));
        self.add_run(index * self.rows, start..self.slots.len());
        let held = size.pages_for(end).as_usize();
        self.tables.push((self.pages.len()..self.pages.len() + held, end.0));
        self.pages.extend_from_slice(&table.as_slice()[..held]);
        Ok(())
    }

    /// Rows that follow those of the last run belong to it.
    fn add_run(&mut self, first_row: usize, slots: Range<usize>) {
        match self.runs.last_mut() {
            Some((first, run)) if *first + run.len() == first_row => run.end = slots.end,
            _ => self.runs.push((first_row, slots)),
        }
    }

    /// First row and slots of every run of tokens.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, &[SlotId])> {
        self.runs.iter().map(|(first, slots)| (*first, &self.slots[slots.clone()]))
    }

    /// Each sequence's table, and its positions once this step is stored.
    pub(super) fn tables(&self) -> impl Iterator<Item = (TableView<'_>, u32)> {
        let view = |pages: &Range<usize>| TableView { first: 0, pages: &self.pages[pages.clone()] };
        self.tables.iter().map(move |(pages, end)| (view(pages), *end))
    }

    /// Positions of the longest sequence once this step is stored.
    pub(super) fn longest(&self) -> usize {
        self.tables.iter().map(|(_, end)| *end as usize).max().unwrap_or(0)
    }
}

fn take_pages(
    manager: &mut CacheManager,
    slot: Option<Tokens>,
    growth: &[Growth],
) -> Result<(), UpdateError> {
    let mut need = Pages::ZERO;
    for &Growth { seq, len, new } in growth {
        let end = len.checked_add(new).ok_or(ExtendError::TooLong { seq, len, more: new })?;
        if let Some(slot) = slot.filter(|slot| end > *slot) {
            return Err(UpdateError::TooLong { seq, len: end, slot });
        }
        let pages = manager.spec().page_size().pages_for(end);
        need += pages.saturating_sub(manager.block_table(seq)?.len());
    }
    let free = manager.free_slot_count();
    if need > free {
        return Err(AllocError::OutOfPages { need, free }.into());
    }
    for growth in growth {
        manager.reserve(growth.seq, growth.new)?;
    }
    Ok(())
}
