use crate::config::{Settings, SettingsError};
use crate::evict::Policy;
use crate::hash::{Prompt, TooLong};
use crate::page::PageRef;
use crate::pins::Pins;
use crate::plan::{Claim, Step};
use crate::pool::{AllocError, Pool, RefError, Scrub};
use crate::prefix::{Match, NodeId, PrefixIndex, Stop};
use crate::room::{PageInfo, PageTimes};
use crate::sequence::Sequence;
use crate::stats::Counters;
use crate::table::Table;
use hashbrown::HashMap;
use octavo_types::{GroupId, PageId, Pages, SeqId, Timestamp, Tokens};
use std::sync::Arc;

/// The cache as its user meets it: sequences come, share, grow, fork and go.
///
/// One thread owns a `KvCache` and drives it in steps:
///
/// ```text
///   tick(now) → free(done) → admit(prompt) / append(token) → schedule(seq, n) → run step() → complete()
///                                                                                        ↘ fail()
/// ```
///
/// Invariant, in every [`Snapshot`](crate::Snapshot): `used + cached + reserved + free == total`.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) settings: Settings,
    pub(crate) pool: Arc<Pool>,
    pub(crate) index: PrefixIndex,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    next_sequence: u64,
    pub(crate) step: Step,
    pub(crate) pins: Pins,
    /// Idle pages kept for what they contain.
    pub(crate) cached: Pages,
    /// One a page.
    pub(crate) info: Box<[PageInfo]>,
    /// Room to drain into; empty between calls.
    pub(crate) returned: Vec<PageId>,
    pub(crate) now: Timestamp,
    pub(crate) counters: Counters,
    pub(crate) times: PageTimes,
}

/// What a new sequence found in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Tokens that need not be computed.
    pub tokens: Tokens,
    /// How many of them come from a page that is copied because only its beginning fits.
    pub copied: Tokens,
    /// Why there were no more.
    pub stop: Stop,
}

/// Whether a new sequence may use what is cached. Its own pages are kept for others either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reuse {
    #[default]
    Longest,
    /// Compute everything, as a request for its prompt's logprobs must.
    Nothing,
}

/// Why a sequence cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    #[error("the prompt was hashed for pages of {prompt}, the cache has pages of {cache}")]
    PageSize { prompt: Tokens, cache: Tokens },
    #[error("out of memory for this request: {need} for its {tokens}, over the limit of {limit} a sequence")]
    OverLimit { need: Pages, tokens: Tokens, limit: Pages },
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// A sequence that is not there, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no {0}: it was freed or never admitted")]
pub struct UnknownSequence(pub SeqId);

/// Why a sequence cannot end yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("{0} has tokens in the step that is being planned: complete or fail the step first")]
    InFlight(SeqId),
}

/// Why a sequence cannot be continued in two ways.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error("{0} has tokens in the step that is being planned: fork it before or after")]
    InFlight(SeqId),
    #[error(transparent)]
    Share(#[from] RefError),
}

/// Why a token cannot become part of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Unknown(#[from] UnknownSequence),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// What `attach` found for a sequence.
pub(crate) struct Attached {
    pub(crate) tables: Vec<Table>,
    pub(crate) cursor: Option<NodeId>,
    pub(crate) hit: Hit,
}

impl KvCache {
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        Self::build(settings, None)
    }

    /// As `new`; `scrub` zeroes every page before it is handed out again.
    pub fn with_scrub(settings: Settings, scrub: Box<dyn Scrub>) -> Result<Self, SettingsError> {
        Self::build(settings, Some(scrub))
    }

    fn build(settings: Settings, scrub: Option<Box<dyn Scrub>>) -> Result<Self, SettingsError> {
        settings.validate()?;
        let total = settings.total;
        Ok(Self {
            pool: Pool::build(total, scrub),
            index: PrefixIndex::new(
                settings.page_size,
                settings.windows.clone(),
                total,
                settings.remember_evicted,
            ),
            policy: settings.policy.build(total),
            sequences: HashMap::new(),
            next_sequence: 0,
            step: Step::default(),
            pins: Pins::new(total),
            cached: Pages::ZERO,
            info: vec![PageInfo::default(); total.as_usize()].into(),
            returned: Vec::new(),
            now: Timestamp::default(),
            counters: Counters::default(),
            times: PageTimes::default(),
            settings,
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Says what time it is, once a step. Time never goes back: an earlier one is ignored.
    pub fn tick(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.drain();
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn sequence(&self, id: SeqId) -> Result<&Sequence, UnknownSequence> {
        self.sequences.get(&id).ok_or(UnknownSequence(id))
    }

    pub fn sequences(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.sequences.iter().map(|(id, sequence)| (*id, sequence))
    }

    /// What `admit` would find now, without taking it.
    pub fn lookup(&self, prompt: &Prompt) -> Hit {
        if !self.settings.prefix_cache || prompt.page_size() != self.settings.page_size {
            return Hit { tokens: Tokens::ZERO, copied: Tokens::ZERO, stop: Stop::NotLookedUp };
        }
        let found = self.index.lookup(prompt, self.now);
        let copied = found.partial.map_or(Tokens::ZERO, |(_, tokens)| tokens);
        Hit { tokens: self.full_tokens(&found) + copied, copied, stop: found.stop }
    }

    /// Begins a sequence with what the cache has of its prompt. Takes no page but the ones it shares, and one a
    /// group where a page is reused in part. A failure leaves nothing behind; its id is not used again.
    pub fn admit(&mut self, prompt: Prompt, reuse: Reuse) -> Result<(SeqId, Hit), AdmitError> {
        let (id, hit) = self.admit_uncounted(prompt, reuse)?;
        self.count_lookup(id, &hit).expect("just admitted");
        Ok((id, hit))
    }

    /// As `admit`, for one whose admission may be undone, or that was here before and gave way: what it finds is
    /// neither counted nor a use that the policy learns from until [`count_lookup`](Self::count_lookup).
    pub fn admit_uncounted(&mut self, prompt: Prompt, reuse: Reuse) -> Result<(SeqId, Hit), AdmitError> {
        let id = SeqId(self.next_sequence);
        self.next_sequence += 1;
        self.refuse_what_never_fits(&prompt)?;
        self.drain();
        let Attached { tables, cursor, hit } = self.attach(id, &prompt, reuse, Partial::Copy);
        let sequence = Sequence {
            prompt,
            computed: hit.tokens,
            scheduled: hit.tokens,
            tables,
            cursor,
            reuse,
            last_step: self.now,
        };
        self.sequences.insert(id, sequence);
        self.step.admitted.push(id);
        self.note_peak();
        Ok((id, hit))
    }

    fn refuse_what_never_fits(&self, prompt: &Prompt) -> Result<(), AdmitError> {
        let Settings { page_size, total, .. } = self.settings;
        if prompt.page_size() != page_size {
            let (prompt, cache) = (prompt.page_size().tokens(), page_size.tokens());
            return Err(AdmitError::PageSize { prompt, cache });
        }
        let tokens = prompt.len();
        let need = self.settings.least_pages(tokens);
        if need > total {
            return Err(AllocError::NeverFits { need, total }.into());
        }
        match self.settings.sequence_limit {
            Some(limit) if need > limit => Err(AdmitError::OverLimit { need, tokens, limit }),
            _ => Ok(()),
        }
    }

    /// Takes what the index has of `prompt` for `owner`.
    pub(crate) fn attach(
        &mut self,
        owner: SeqId,
        prompt: &Prompt,
        reuse: Reuse,
        partial: Partial,
    ) -> Attached {
        if !self.settings.prefix_cache {
            return Attached { tables: self.empty_tables(), cursor: None, hit: self.lookup(prompt) };
        }
        let root = self.index.hold_root(prompt.scope());
        if reuse == Reuse::Nothing {
            let hit = Hit { tokens: Tokens::ZERO, copied: Tokens::ZERO, stop: Stop::NotLookedUp };
            return Attached { tables: self.empty_tables(), cursor: Some(root), hit };
        }
        let found = self.index.lookup(prompt, self.now);
        let cursor = found.nodes.last().copied().unwrap_or(root);
        self.index.hold(cursor);
        self.index.release(root);
        let mut tables = self.share_full_pages(owner, &found);
        let copied = match (partial, found.partial) {
            (Partial::Copy, Some((node, tokens))) => self.copy_partial(owner, node, tokens, &mut tables),
            _ => Tokens::ZERO,
        };
        let hit = Hit { tokens: self.full_tokens(&found) + copied, copied, stop: found.stop };
        Attached { tables, cursor: Some(cursor), hit }
    }

    fn share_full_pages(&mut self, owner: SeqId, found: &Match) -> Vec<Table> {
        let next = self.full_tokens(found);
        self.group_ids()
            .map(|group| {
                let first = self.index.first_needed(group, next);
                let mut table = Table::starting_at(first);
                for &node in &found.nodes[first.as_usize()..] {
                    let page = self.index.page(node, group).expect("a match has every page it needs");
                    table.push_sealed(self.obtain(page, owner));
                }
                table
            })
            .collect()
    }

    /// Plans a copy of the node's pages into new ones; gives up where there is no room for them.
    fn copy_partial(&mut self, owner: SeqId, node: NodeId, slots: Tokens, tables: &mut [Table]) -> Tokens {
        let sources: Vec<PageRef> = self
            .group_ids()
            .map(|group| {
                let page = self.index.page(node, group).expect("a partial match has every page");
                self.obtain(page, owner)
            })
            .collect();
        let Ok(copies) = self.take(Pages(tables.len() as u32), owner, Claim::New) else {
            drop(sources);
            self.drain();
            return Tokens::ZERO;
        };
        for ((table, source), copy) in tables.iter_mut().zip(sources).zip(copies) {
            self.step.copy(source, copy.id(), slots, owner, None);
            table.push_open(copy);
        }
        slots
    }

    /// Another reference to an indexed page, whether somebody holds it or not.
    pub(crate) fn obtain(&mut self, page: PageId, owner: SeqId) -> PageRef {
        loop {
            match self.pool.share(page) {
                Ok(shared) => return shared,
                Err(RefError::NotHeld { .. }) if self.info[page.index()].idle => {
                    self.info[page.index()].idle = false;
                    self.note_reuse(page);
                    self.policy.remove(page);
                    self.cached -= Pages(1);
                    return self.pool.revive(page, owner);
                }
                // Its last holder is letting go on another thread just now.
                Err(RefError::NotHeld { .. }) => self.take_in(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A handle on a full page of a sequence, for whoever reads it outside a step: to send it elsewhere, say. The
    /// page keeps its contents until the handle is dropped, on any thread. `None` for a page that is not there, or not
    /// full, and for a group that the cache does not have.
    pub fn hold(&self, id: SeqId, group: GroupId, index: Pages) -> Result<Option<PageRef>, UnknownSequence> {
        let sequence = self.sequence(id)?;
        let full = index < self.settings.page_size.full_pages(sequence.computed);
        // Of a sequence admitted in the open step, pages counted as computed may be yet to be filled.
        let filled = |page: &&PageRef| full && !self.index.home(page.id()).is_some_and(|home| home.pending);
        let table = sequence.tables.get(group.index());
        let page = table.and_then(|table| table.sealed_page(index)).filter(filled);
        Ok(page.and_then(|page| page.share().ok()))
    }

    /// Adds a token, as decoding does. It is computed by a later step.
    pub fn append(&mut self, id: SeqId, token: u32) -> Result<(), AppendError> {
        let sequence = self.sequences.get_mut(&id).ok_or(UnknownSequence(id))?;
        Ok(sequence.prompt.push(token)?)
    }

    /// A second sequence with the same tokens, over the same pages. Whichever of the two writes first into the
    /// page they end in gets a copy of it.
    pub fn fork(&mut self, id: SeqId) -> Result<SeqId, ForkError> {
        let parent = self.sequences.get_mut(&id).ok_or(UnknownSequence(id))?;
        if parent.scheduled > parent.computed || self.step.admitted.contains(&id) {
            return Err(ForkError::InFlight(id));
        }
        let child = Sequence {
            tables: parent.tables.iter_mut().map(Table::fork).collect::<Result<_, _>>()?,
            prompt: parent.prompt.clone(),
            computed: parent.computed,
            scheduled: parent.scheduled,
            cursor: parent.cursor,
            reuse: parent.reuse,
            last_step: parent.last_step,
        };
        if let Some(node) = child.cursor {
            self.index.hold(node);
        }
        let id = SeqId(self.next_sequence);
        self.next_sequence += 1;
        self.sequences.insert(id, child);
        self.counters.forks += 1;
        Ok(id)
    }

    /// Ends a sequence. Its full pages stay cached until their room is needed. Others may count on what it is
    /// about to compute, so a sequence with tokens in the open step is refused.
    pub fn free(&mut self, id: SeqId) -> Result<(), ReleaseError> {
        self.preempt(id).map(drop)
    }

    /// As `free`, and hands the tokens back, hashed, so that the sequence can be admitted again.
    pub fn preempt(&mut self, id: SeqId) -> Result<Prompt, ReleaseError> {
        let sequence = self.sequence(id)?;
        if sequence.scheduled > sequence.computed {
            return Err(ReleaseError::InFlight(id));
        }
        let Sequence { prompt, mut tables, cursor, last_step, .. } =
            self.sequences.remove(&id).expect("found above");
        if let Some(node) = cursor {
            self.index.release(node);
        }
        self.step.forget(id);
        self.release_tail_first(&mut tables, last_step);
        self.drain();
        Ok(prompt)
    }

    /// Gives every page up, the last of each group first, so that the start of a prefix outlives its end.
    pub(crate) fn release_tail_first(&mut self, tables: &mut [Table], last_step: Timestamp) {
        let longest = tables.iter().map(Table::end).max().unwrap_or(Pages::ZERO);
        for index in (0..longest.0).rev() {
            for table in tables.iter_mut().filter(|table| table.end().0 == index + 1) {
                if let Some(page) = table.pop() {
                    self.info[page.id().index()].stamp(last_step);
                }
            }
        }
    }

    pub(crate) fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.settings.windows.len() as u16).map(GroupId)
    }

    fn empty_tables(&self) -> Vec<Table> {
        self.group_ids().map(|_| Table::starting_at(Pages::ZERO)).collect()
    }

    fn full_tokens(&self, found: &Match) -> Tokens {
        let pages = Pages(found.nodes.len() as u32);
        self.settings.page_size.tokens_in(pages).expect("no longer than the prompt")
    }
}

/// Whether a page that fits only in its beginning is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Partial {
    Copy,
    Skip,
}
