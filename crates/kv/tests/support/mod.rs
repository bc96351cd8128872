//! A cache with simulated bytes, so that tests see what a model would read.
//!
//! Every slot holds one number that stands for a token's keys and values. The right number depends on the scope,
//! the layer group and every token up to the position, as real keys and values do: a page that is shared too
//! widely, freed too early, overwritten or copied wrongly reads back wrong.
#![allow(dead_code, unreachable_pub)]

use octavo_kv::{Claim, Hit, KvCache, PageRef, Prompt, Reuse, ScheduleError, Scope, Scrub, Settings};
use octavo_types::{GroupId, PageId, PageSize, Pages, SeqId, SlotId, Timestamp, Tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub const GARBAGE: u64 = 0xdead;

pub struct Memory {
    slots: Vec<u64>,
    page_size: PageSize,
}

impl Memory {
    fn page(&mut self, page: PageId) -> &mut [u64] {
        let size = self.page_size.as_usize();
        &mut self.slots[page.index() * size..][..size]
    }
}

/// Zeroes simulated pages.
pub struct Zero(pub Arc<Mutex<Memory>>);

impl Scrub for Zero {
    fn zero(&self, pages: &[PageId]) {
        let mut memory = self.0.lock().unwrap();
        pages.iter().for_each(|page| memory.page(*page).fill(0));
    }
}

/// What a test remembers of a sequence, apart from the cache.
#[derive(Clone)]
pub struct Known {
    pub salt: u8,
    pub tokens: Vec<u32>,
}

pub struct Simulation {
    pub cache: KvCache,
    pub memory: Arc<Mutex<Memory>>,
    pub known: BTreeMap<SeqId, Known>,
    /// Handles that the test holds.
    pub outside: Vec<PageRef>,
}

impl Simulation {
    pub fn new(settings: Settings) -> Self {
        Self::build(settings, false)
    }

    pub fn zeroing(settings: Settings) -> Self {
        Self::build(settings, true)
    }

    fn build(settings: Settings, zero: bool) -> Self {
        let slots = vec![0; settings.total.as_usize() * settings.page_size.as_usize()];
        let memory = Arc::new(Mutex::new(Memory { slots, page_size: settings.page_size }));
        let cache = if zero {
            KvCache::with_scrub(settings, Box::new(Zero(Arc::clone(&memory)))).unwrap()
        } else {
            KvCache::new(settings).unwrap()
        };
        Self { cache, memory, known: BTreeMap::new(), outside: Vec::new() }
    }

    pub fn prompt(&self, salt: u8, tokens: &[u32]) -> Prompt {
        Prompt::new(tokens.to_vec(), scope(salt), self.cache.settings().page_size).unwrap()
    }

    pub fn admit(&mut self, tokens: &[u32]) -> (SeqId, Hit) {
        self.admit_as(0, tokens)
    }

    pub fn admit_as(&mut self, salt: u8, tokens: &[u32]) -> (SeqId, Hit) {
        let prompt = self.prompt(salt, tokens);
        let (seq, hit) = self.cache.admit(prompt, Reuse::Longest).unwrap();
        self.known.insert(seq, Known { salt, tokens: tokens.to_vec() });
        self.check();
        (seq, hit)
    }

    pub fn schedule(&mut self, seq: SeqId, n: u32) -> Result<(), ScheduleError> {
        let result = self.cache.schedule(seq, Tokens(n), Claim::New).map(drop);
        self.check();
        result
    }

    /// Schedules whatever `seq` has left, and runs.
    pub fn finish(&mut self, seq: SeqId) {
        let left = self.left(seq);
        if left > 0 {
            self.schedule(seq, left).unwrap();
        }
        self.run();
    }

    /// Admits, computes and returns a sequence that is still held.
    pub fn compute(&mut self, tokens: &[u32]) -> SeqId {
        self.compute_as(0, tokens)
    }

    pub fn compute_as(&mut self, salt: u8, tokens: &[u32]) -> SeqId {
        let (seq, _) = self.admit_as(salt, tokens);
        self.finish(seq);
        seq
    }

    /// Computes a sequence and lets it go, so that its full pages are cached.
    pub fn leave_cached(&mut self, tokens: &[u32]) {
        let seq = self.compute(tokens);
        self.free(seq);
    }

    pub fn append(&mut self, seq: SeqId, token: u32) {
        self.cache.append(seq, token).unwrap();
        self.known.get_mut(&seq).unwrap().tokens.push(token);
    }

    /// Appends and computes one token at a time.
    pub fn decode(&mut self, seq: SeqId, tokens: &[u32]) {
        for &token in tokens {
            self.append(seq, token);
            self.finish(seq);
        }
    }

    pub fn fork(&mut self, seq: SeqId) -> SeqId {
        let child = self.cache.fork(seq).unwrap();
        self.known.insert(child, self.known[&seq].clone());
        self.check();
        child
    }

    pub fn free(&mut self, seq: SeqId) {
        self.cache.free(seq).unwrap();
        self.known.remove(&seq);
        self.check();
    }

    pub fn tick(&mut self, seconds: u64) {
        self.cache.tick(Timestamp::from_secs(seconds));
        self.check();
    }

    pub fn left(&self, seq: SeqId) -> u32 {
        let sequence = self.cache.sequence(seq).unwrap();
        sequence.tokens().len() as u32 - sequence.computed().0
    }

    pub fn pages(&self, seq: SeqId) -> Vec<PageId> {
        self.cache.sequence(seq).unwrap().table(GroupId(0)).pages().collect()
    }

    /// Carries the step out and completes it.
    pub fn run(&mut self) {
        self.carry_out(usize::MAX);
        self.verify_step();
        self.cache.complete();
        self.check();
        self.verify();
    }

    /// Carries out the first `operations` of the step, leaves garbage in the next, and fails.
    pub fn crash(&mut self, operations: usize) {
        self.carry_out(operations);
        self.cache.fail();
        self.check();
        self.verify();
    }

    fn carry_out(&mut self, operations: usize) {
        let mut memory = self.memory.lock().unwrap();
        let mut left = operations;
        let mut spend = || {
            let state = left;
            left = left.saturating_sub(1);
            state
        };
        for copy in self.cache.step().copies() {
            let source = memory.page(copy.from).to_vec();
            let target = memory.page(copy.to);
            match spend() {
                0 => {}
                1 => target.fill(GARBAGE),
                _ => {
                    target.fill(GARBAGE);
                    target[..copy.slots.as_usize()].copy_from_slice(&source[..copy.slots.as_usize()]);
                }
            }
        }
        for span in self.cache.step().spans() {
            let known = &self.known[&span.seq];
            for position in span.positions.start.0..span.positions.end.0 {
                let state = spend();
                for group in 0..self.cache.settings().windows.len() as u16 {
                    let slot = self.slot(span.seq, group, position).expect("a scheduled token has a page");
                    match state {
                        0 => {}
                        1 => memory.slots[slot.0 as usize] = GARBAGE,
                        _ => memory.slots[slot.0 as usize] = contents(known, group, position),
                    }
                }
            }
        }
    }

    fn slot(&self, seq: SeqId, group: u16, position: u32) -> Option<SlotId> {
        let table = self.cache.sequence(seq).unwrap().table(GroupId(group));
        table.slot(Tokens(position), self.cache.settings().page_size)
    }

    /// Every computed token that a later one may look at reads back as what its own prefix makes it.
    pub fn verify(&self) {
        for (&seq, known) in &self.known {
            let sequence = self.cache.sequence(seq).unwrap();
            assert_eq!(sequence.tokens(), known.tokens, "{seq} has other tokens");
            self.verify_reads(seq, sequence.computed()..sequence.computed());
        }
    }

    /// So does everything that the step's own tokens look at.
    fn verify_step(&self) {
        for span in self.cache.step().spans() {
            self.verify_reads(span.seq, span.positions.clone());
        }
    }

    /// Everything before `positions.end` that tokens from `positions.start` on look at reads back right.
    fn verify_reads(&self, seq: SeqId, positions: Range<Tokens>) {
        let memory = self.memory.lock().unwrap();
        let known = &self.known[&seq];
        for (group, window) in (0u16..).zip(&self.cache.settings().windows) {
            let first = window.map_or(0, |window| (positions.start.0 + 1).saturating_sub(window.0));
            for position in first..positions.end.0 {
                let slot = self.slot(seq, group, position);
                let slot = slot.unwrap_or_else(|| panic!("{seq} lost position {position}"));
                let found = memory.slots[slot.0 as usize];
                assert_eq!(found, contents(known, group, position), "{seq}, group {group}, {position}");
            }
        }
    }

    pub fn read_page(&self, page: PageId) -> Vec<u64> {
        self.memory.lock().unwrap().page(page).to_vec()
    }

    pub fn check(&self) {
        let audit = self.cache.check().unwrap();
        let outside: BTreeSet<PageId> = self.outside.iter().map(PageRef::id).collect();
        assert_eq!(audit.held_outside.into_iter().collect::<BTreeSet<_>>(), outside, "a page leaked");
        assert!(self.cache.counts().add_up());
    }
}

pub fn scope(salt: u8) -> Scope {
    if salt == 0 { Scope::default() } else { Scope::new(&[salt], b"") }
}

/// Stands for the keys and values of one token.
pub fn contents(known: &Known, group: u16, position: u32) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(known.salt) << 8 ^ u64::from(group) << 32;
    let tokens = &known.tokens[..=position as usize];
    tokens.iter().fold(start, |hash, token| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3))
        | 1 << 63
}

/// `total` pages of four tokens, one full-attention group.
pub fn small(total: u32) -> Settings {
    Settings { page_size: PageSize::new(4).unwrap(), ..Settings::new(Pages(total)) }
}

pub fn range(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}
