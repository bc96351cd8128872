//! A step: what is to be computed, which pages that fills, and the way back if it fails.
//!
//! `schedule` plans; nothing it does is visible to a later step until `complete`. The keys of pages that the
//! step will fill are in the index already, as pending, so that sequences admitted later in the same step
//! share them: the run stores each layer's keys and values before it attends to them. After `fail` every
//! sequence is as it was before the step, and sequences admitted in it hold public pages only.

use crate::cache::{KvCache, Partial, UnknownSequence};
use crate::evict::Wanted;
use crate::page::PageRef;
use crate::pool::AllocError;
use crate::table::Table;
use octavo_types::{GroupId, PageId, Pages, SeqId, Tokens};
use std::ops::Range;

/// Tokens of one sequence that the step computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    pub seq: SeqId,
    pub positions: Range<Tokens>,
}

/// Copy the first `slots` of a page, in all its layers, before anything of the step is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPage {
    pub from: PageId,
    pub to: PageId,
    pub slots: Tokens,
}

/// Whom new pages are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A request that could wait: leaves the reserve alone.
    New,
    /// A sequence that is to finish: may use the reserve when nothing else is left.
    Running,
}

/// Why tokens of a sequence cannot be part of the step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("{seq} is in this step already")]
    Twice { seq: SeqId },
    #[error("{seq} has {left} left to compute, {asked} were asked for")]
    TooMany { seq: SeqId, left: Tokens, asked: Tokens },
    #[error("out of memory for {seq}: {need} would be over the limit of {limit} a sequence")]
    OverLimit { seq: SeqId, need: Pages, limit: Pages },
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// What a copy is made from, kept alive until it is made.
#[derive(Debug)]
struct Source {
    page: PageRef,
    /// Whom the copy is for.
    seq: SeqId,
    /// Where the page was the sequence's tail before, if it was.
    replaced: Option<GroupId>,
}

/// The step being planned.
#[derive(Debug, Default)]
pub struct Step {
    spans: Vec<Span>,
    copies: Vec<CopyPage>,
    /// One a copy.
    sources: Vec<Source>,
    /// Pages whose keys are pending.
    pub(crate) pending: Vec<PageRef>,
    pub(crate) admitted: Vec<SeqId>,
}

impl Step {
    /// What to compute, in the order it was scheduled.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }
    /// What to copy first, in this order.
    pub fn copies(&self) -> &[CopyPage] {
        &self.copies
    }
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.copies.is_empty()
    }

    /// Whether no sequence holds a page which another one fills in this step. Only those that begin in it may: whatever
    /// others hold together was full before, or is copied before it is written.
    pub fn is_apart(&self) -> bool {
        self.admitted.is_empty() || self.pending.is_empty()
    }

    pub(crate) fn copy(
        &mut self,
        from: PageRef,
        to: PageId,
        slots: Tokens,
        seq: SeqId,
        replaced: Option<GroupId>,
    ) {
        self.copies.push(CopyPage { from: from.id(), to, slots });
        self.sources.push(Source { page: from, seq, replaced });
    }

    /// Drops what was planned for a sequence that is being freed: its pages may go to somebody else.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.admitted.retain(|admitted| *admitted != seq);
        let mut keep = self.sources.iter().map(|source| source.seq != seq).collect::<Vec<_>>().into_iter();
        self.copies.retain(|_| keep.next().expect("one source a copy"));
        self.sources.retain(|source| source.seq != seq);
    }

    /// Pages that are copied for a sequence.
    pub(crate) fn sources_of(&self, seq: SeqId) -> impl Iterator<Item = PageId> + '_ {
        self.sources.iter().filter(move |source| source.seq == seq).map(|source| source.page.id())
    }

    /// Pages that the step itself keeps alive.
    pub(crate) fn held(&self) -> impl Iterator<Item = PageId> + '_ {
        self.sources.iter().map(|source| source.page.id()).chain(self.pending.iter().map(PageRef::id))
    }
}

/// What a sequence needs so that it can grow.
struct Growth {
    positions: Range<Tokens>,
    /// Groups whose last page is shared and must be copied before it is written.
    copies: Vec<GroupId>,
    /// New pages, copies included, one count a group.
    pages: Vec<Pages>,
}

impl KvCache {
    /// The step planned so far. Carry out its copies, then compute its spans, then say how it went.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Plans to compute the next `n` tokens of a sequence: takes the pages they need, all or none, and copies
    /// what is shared and would be written.
    pub fn schedule(&mut self, seq: SeqId, n: Tokens, claim: Claim) -> Result<Span, ScheduleError> {
        if let Some(span) = self.schedule_in_place(seq, n) {
            return Ok(span);
        }
        let growth = self.growth(seq, n)?;
        let need = growth.pages.iter().copied().sum();
        let mut pages = self.take(need, seq, claim)?.into_iter();
        let sequence = self.sequences.get_mut(&seq).expect("found above");
        let Growth { positions, copies, pages: counts } = growth;
        let page_size = self.settings.page_size;
        let slots = page_size.offset_of(positions.start);
        for (group, (table, count)) in (0u16..).map(GroupId).zip(sequence.tables.iter_mut().zip(counts)) {
            let mut new = pages.by_ref().take(count.as_usize());
            if copies.contains(&group) {
                let copy = new.next().expect("counted");
                let id = copy.id();
                self.step.copy(table.replace_tail(copy), id, slots, seq, Some(group));
                self.counters.copies_on_write += 1;
            } else if slots > Tokens::ZERO && table.open().is_none() {
                table.reopen_tail();
            }
            new.for_each(|page| table.push_open(page));
            if page_size.offset_of(positions.end) == Tokens::ZERO {
                table.seal();
            }
        }
        sequence.scheduled = positions.end;
        self.offer_full_pages(seq, positions.clone());
        self.note_peak();
        let span = Span { seq, positions };
        self.step.spans.push(span.clone());
        Ok(span)
    }

    /// The common case of decoding: the tokens go where pages are open already.
    fn schedule_in_place(&mut self, seq: SeqId, n: Tokens) -> Option<Span> {
        let size = self.settings.page_size;
        let sequence = self.sequences.get_mut(&seq)?;
        let (start, left) = (sequence.computed, sequence.prompt.len() - sequence.computed);
        let room = size.tokens() - size.offset_of(start);
        let possible = sequence.scheduled == start && Tokens::ZERO < n && n <= left && n <= room;
        if !possible
            || size.offset_of(start) == Tokens::ZERO
            || sequence.tables.iter().any(|t| t.open().is_none())
        {
            return None;
        }
        let positions = start..start + n;
        sequence.scheduled = positions.end;
        if n == room {
            sequence.tables.iter_mut().for_each(Table::seal);
            self.offer_full_pages(seq, positions.clone());
        }
        let span = Span { seq, positions };
        self.step.spans.push(span.clone());
        Some(span)
    }

    fn growth(&self, seq: SeqId, n: Tokens) -> Result<Growth, ScheduleError> {
        let sequence = self.sequence(seq)?;
        if sequence.scheduled > sequence.computed {
            return Err(ScheduleError::Twice { seq });
        }
        let start = sequence.computed;
        let left = sequence.prompt.len() - start;
        if n > left || n == Tokens::ZERO {
            return Err(ScheduleError::TooMany { seq, left, asked: n });
        }
        let end = start + n;
        let (page_size, total) = (self.settings.page_size, self.settings.total);
        let least = self.settings.least_pages(end);
        if least > total {
            return Err(AllocError::NeverFits { need: least, total }.into());
        }
        let mut growth = Growth { positions: start..end, copies: Vec::new(), pages: Vec::new() };
        for (group, table) in (0u16..).map(GroupId).zip(&sequence.tables) {
            let mut pages = page_size.pages_for(end) - table.end();
            if page_size.offset_of(start) > Tokens::ZERO
                && let Some(tail) = table.sealed_tail()
                && self.pool.refs(tail.id()) != Ok(1)
            {
                growth.copies.push(group);
                pages += Pages(1);
            }
            growth.pages.push(pages);
        }
        let need = sequence.pages() + growth.pages.iter().copied().sum() - Pages(growth.copies.len() as u32);
        match self.settings.sequence_limit {
            Some(limit) if need > limit => Err(ScheduleError::OverLimit { seq, need, limit }),
            _ => Ok(growth),
        }
    }

    /// Makes the pages that `positions` fill known to the index, as pending.
    fn offer_full_pages(&mut self, seq: SeqId, positions: Range<Tokens>) {
        let page_size = self.settings.page_size;
        let sequence = self.sequences.get_mut(&seq).expect("just scheduled");
        let full = page_size.full_pages(positions.start).0..page_size.full_pages(positions.end).0;
        for index in full.map(Pages) {
            let Some(cursor) = sequence.cursor else { return };
            sequence.cursor =
                self.index.descend(cursor, sequence.prompt.key(index), sequence.prompt.page(index));
            let Some(node) = sequence.cursor else {
                self.counters.key_collisions += 1;
                return;
            };
            if self.index.is_evicted(node) {
                self.policy.note(Wanted::Evicted);
            }
            for (group, table) in (0u16..).map(GroupId).zip(&sequence.tables) {
                let page = table.sealed_page(index).expect("full pages are sealed");
                if self.index.offer(node, group, page.id()) {
                    self.info[page.id().index()].is_prefix = false;
                    self.step.pending.push(page.share().expect("fewer holders than u32 counts"));
                }
            }
        }
    }

    /// The step has run: what it computed is now in the cache, for everybody in the same scope.
    pub fn complete(&mut self) {
        let Step { spans, sources, pending, admitted, .. } = std::mem::take(&mut self.step);
        for page in &pending {
            self.index.publish(page.id());
        }
        for page in pending.iter().chain(sources.iter().map(|source| &source.page)) {
            self.info[page.id().index()].stamp(self.now);
        }
        for seq in admitted {
            if let Some(sequence) = self.sequences.get_mut(&seq) {
                sequence.last_step = self.now;
            }
        }
        for Span { seq, positions } in spans {
            self.counters.computed_tokens += u64::from((positions.end - positions.start).0);
            self.advance(seq);
        }
        drop((sources, pending));
        self.drain();
    }

    /// Counts the scheduled tokens of a sequence as computed, and gives up the pages that no token to come sees.
    fn advance(&mut self, seq: SeqId) {
        let sequence = self.sequences.get_mut(&seq).expect("a sequence in a step cannot be freed");
        sequence.computed = sequence.scheduled;
        sequence.last_step = self.now;
        for (group, table) in (0u16..).map(GroupId).zip(&mut sequence.tables) {
            let keep_from = self.index.first_needed(group, sequence.computed);
            while let Some(page) = table.pop_front(keep_from) {
                self.info[page.id().index()].stamp(self.now);
            }
        }
    }

    /// The step did not run, or not to its end: every sequence goes back to where it was before, and what it
    /// was to compute stays to be computed. Sequences admitted in the step keep what was public before it.
    pub fn fail(&mut self) {
        let Step { spans, sources, pending, admitted, .. } = std::mem::take(&mut self.step);
        self.counters.failed_steps += 1;
        for span in spans.iter().filter(|span| !admitted.contains(&span.seq)) {
            self.roll_back(span);
        }
        for Source { page, seq, replaced } in sources {
            if let Some(group) = replaced
                && !admitted.contains(&seq)
            {
                let sequence = self.sequences.get_mut(&seq).expect("a sequence in a step cannot be freed");
                sequence.tables[group.index()].restore_tail(page);
            }
        }
        for page in pending {
            self.index.withdraw(page.id());
        }
        for seq in admitted {
            self.attach_again(seq);
        }
        self.drain();
    }

    fn roll_back(&mut self, span: &Span) {
        let sequence = self.sequences.get_mut(&span.seq).expect("a sequence in a step cannot be freed");
        let page_size = self.settings.page_size;
        let Range { start, end } = span.positions;
        if let Some(cursor) = sequence.cursor {
            let levels = page_size.full_pages(end) - page_size.full_pages(start);
            sequence.cursor = Some(self.index.ascend(cursor, levels));
        }
        for table in &mut sequence.tables {
            while table.end() > page_size.pages_for(start) {
                drop(table.pop());
            }
        }
        sequence.scheduled = start;
    }

    /// Starts a sequence over that was admitted in a step that failed.
    fn attach_again(&mut self, seq: SeqId) {
        let Some(mut sequence) = self.sequences.remove(&seq) else { return };
        if let Some(node) = sequence.cursor.take() {
            self.index.release(node);
        }
        self.release_tail_first(&mut sequence.tables, sequence.last_step);
        self.drain();
        let attached = self.attach(seq, &sequence.prompt, sequence.reuse, Partial::Skip);
        sequence.tables = attached.tables;
        sequence.cursor = attached.cursor;
        sequence.computed = attached.hit.tokens;
        sequence.scheduled = attached.hit.tokens;
        self.sequences.insert(seq, sequence);
    }
}
