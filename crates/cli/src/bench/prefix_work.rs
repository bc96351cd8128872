//! The work that `bench prefix` times, on caches filled the way a server fills them.

use super::measure::{SEED, ns_each, time};
use octavo_kv::{Claim, KvCache, PolicyKind, Prompt, Reuse, Scope, Settings, Stop};
use octavo_types::{PageSize, Pages, SeqId, Timestamp, Tokens};
use std::hint::black_box;
use std::time::Duration;

/// From all 32 bits, so that no two prompts begin alike.
fn random_tokens(length: Tokens) -> Vec<u32> {
    (0..length.0).map(|_| fastrand::u32(..)).collect()
}

fn hashed(tokens: &[u32]) -> Prompt {
    hash(tokens.to_vec())
}

fn hash(tokens: Vec<u32>) -> Prompt {
    Prompt::new(tokens, Scope::default(), PageSize::DEFAULT).expect("a prompt of the bench is short")
}

fn cache(total: Pages, policy: PolicyKind) -> KvCache {
    KvCache::new(Settings { policy, ..Settings::new(total) }).expect("valid settings")
}

fn admit(cache: &mut KvCache, prompt: Prompt) -> SeqId {
    cache.admit(prompt, Reuse::Longest).expect("the prompt fits the pool").0
}

fn compute(cache: &mut KvCache, seq: SeqId, tokens: Tokens) {
    cache.schedule(seq, tokens, Claim::New).expect("the pool has room");
    cache.complete();
}

/// A cache of prompts of one length.
#[derive(Debug)]
pub(super) struct Filled {
    cache: KvCache,
    /// What is cached, as tokens.
    prompts: Vec<Vec<u32>>,
    length: Tokens,
}

impl Filled {
    /// Pages that every measurement works on, whatever the length of the prompts.
    pub(super) const PAGES_A_ROUND: Pages = Pages(2_048);
    /// Prompts that are computed at once.
    const AT_ONCE: usize = 256;

    /// At least `pages` of cached prompts, and room for more. They are computed a page of each in turn, so
    /// that the pages of a prompt lie far apart, as they do in a cache that has run for a while.
    pub(super) fn new(length: Tokens, pages: Pages, room: Pages) -> Self {
        fastrand::seed(SEED);
        let prompts: Vec<Vec<u32>> =
            (0..pages.0.div_ceil(Self::pages_of(length))).map(|_| random_tokens(length)).collect();
        let held = Pages(prompts.len() as u32 * Self::pages_of(length));
        let mut cache = cache(held + room, PolicyKind::default());
        for together in prompts.chunks(Self::AT_ONCE) {
            let sequences: Vec<SeqId> =
                together.iter().map(|tokens| admit(&mut cache, hashed(tokens))).collect();
            for _ in 0..Self::pages_of(length) {
                sequences.iter().for_each(|seq| compute(&mut cache, *seq, PageSize::DEFAULT.tokens()));
            }
            sequences.iter().for_each(|seq| cache.free(*seq).expect("just admitted"));
        }
        Self { cache, prompts, length }
    }

    fn pages_of(length: Tokens) -> u32 {
        PageSize::DEFAULT.pages_for(length).0
    }

    /// Nanoseconds a page of what `measure` times, over a round of prompts.
    fn round(&self, mut measure: impl FnMut() -> Duration) -> f64 {
        let prompts = Self::PAGES_A_ROUND.0 / Self::pages_of(self.length);
        let took = (0..prompts).map(|_| measure()).sum();
        ns_each(took, u64::from(Self::PAGES_A_ROUND.0))
    }

    /// Hashing alone.
    pub(super) fn hash(&self) -> f64 {
        self.round(|| {
            let tokens = random_tokens(self.length);
            time(|| black_box(hash(tokens))).0
        })
    }

    /// Looking up a hashed prompt that is cached whole, all but its last token.
    pub(super) fn find(&self) -> f64 {
        self.round(|| {
            let prompt = hashed(fastrand::choice(&self.prompts).expect("one prompt or more"));
            let (took, hit) = time(|| self.cache.lookup(black_box(&prompt)));
            assert_eq!(hit.stop, Stop::WholePrompt);
            took
        })
    }

    /// Looking up a hashed prompt of which nothing is cached.
    pub(super) fn miss(&self) -> f64 {
        self.round(|| {
            let prompt = hash(random_tokens(self.length));
            let (took, hit) = time(|| self.cache.lookup(black_box(&prompt)));
            assert_eq!(hit.tokens, Tokens::ZERO);
            took
        })
    }

    /// Admitting a hashed prompt of which nothing is cached, planning all of it as one step (which takes its
    /// pages, by eviction where none is free, and indexes them), and completing the step.
    pub(super) fn insert(&mut self) -> f64 {
        let (length, prompts) = (self.length, Self::PAGES_A_ROUND.0 / Self::pages_of(self.length));
        let mut took = Duration::ZERO;
        for _ in 0..prompts {
            let prompt = hash(random_tokens(length));
            let (inserting, seq) = time(|| {
                let seq = admit(&mut self.cache, prompt);
                compute(&mut self.cache, seq, length);
                seq
            });
            took += inserting;
            self.cache.free(seq).expect("just admitted");
        }
        ns_each(took, u64::from(Self::PAGES_A_ROUND.0))
    }
}

/// A cache full of idle pages: sequences of sixteen pages that ended in random order.
#[derive(Debug)]
pub(super) struct Evicting {
    cache: KvCache,
    clock: Timestamp,
}

impl Evicting {
    const LENGTH: Tokens = Tokens(256);
    const PAGES_A_SEQUENCE: u32 = 16;
    const PAGES_A_ROUND: u32 = 1_024;

    pub(super) fn new(policy: PolicyKind, pages: Pages) -> Self {
        fastrand::seed(SEED);
        let sequences = pages.0.div_ceil(Self::PAGES_A_SEQUENCE);
        let total = Pages(sequences * Self::PAGES_A_SEQUENCE);
        let mut full = Self { cache: cache(total, policy), clock: Timestamp::default() };
        full.fill(sequences);
        // From here on every eviction also forgets an older one, as in any cache that has run for a while.
        let remembered = full.cache.settings().remember_evicted as u32;
        for _ in 0..remembered.div_ceil(Self::PAGES_A_ROUND) {
            full.evict(Pages(1));
        }
        full
    }

    fn fill(&mut self, sequences: u32) {
        // All were last used at the same time, so that the order of their ends decides.
        self.clock.0 += 1;
        self.cache.tick(self.clock);
        let mut running: Vec<SeqId> = (0..sequences)
            .map(|_| {
                let seq = admit(&mut self.cache, hash(random_tokens(Self::LENGTH)));
                compute(&mut self.cache, seq, Self::LENGTH);
                seq
            })
            .collect();
        fastrand::shuffle(&mut running);
        running.iter().for_each(|seq| self.cache.free(*seq).expect("just admitted"));
    }

    /// Nanoseconds a page for evicting `batch` at a time. The cache is full again afterwards.
    pub(super) fn evict(&mut self, batch: Pages) -> f64 {
        let (took, evicted) = time(|| {
            let batches = 0..Self::PAGES_A_ROUND / batch.0;
            batches.map(|_| self.cache.evict(batch)).sum::<Pages>()
        });
        assert_eq!(evicted, Pages(Self::PAGES_A_ROUND));
        self.fill(Self::PAGES_A_ROUND / Self::PAGES_A_SEQUENCE);
        ns_each(took, u64::from(Self::PAGES_A_ROUND))
    }
}
