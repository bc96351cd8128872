//! Random operation sequences against a naive oracle: simulated bytes that must read back right, and sets of
//! prefixes that say what a lookup may find. `check()` after every operation.

mod support;

use octavo_kv::{
    AdmitError, AllocError, Claim, PinId, PolicyKind, ReleaseError, Reuse, ScheduleError, Settings,
};
use octavo_types::{PageSize, Pages, SeqId, Timestamp, Tokens};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use support::{Known, Simulation};

#[derive(Clone, Debug)]
enum Op {
    Admit { salt: u8, tokens: Vec<u32>, reuse: bool },
    Append { seq: usize, tokens: Vec<u32> },
    Schedule { seq: usize, n: u32, running: bool },
    Complete,
    Fail { after: usize },
    Fork { seq: usize },
    Free { seq: usize },
    Preempt { seq: usize },
    Pin { salt: u8, tokens: Vec<u32> },
    Unpin { pin: usize },
    Evict { pages: u32 },
    Tick { seconds: u64 },
}

/// Few tokens and few lengths, so that prompts share prefixes and differ in the middle of pages.
fn tokens(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        3 => (0u32..2, 1..=longest).prop_map(|(token, len)| vec![token; len]),
        2 => (0u32..2, 0u32..2, 1..=longest, 1..=longest).prop_map(|(a, b, n, m)| {
            [vec![a; n], vec![b; m]].concat()
        }),
        1 => prop::collection::vec(0u32..3, 0..=longest),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let seq = 0usize..8;
    prop_oneof![
        6 => (0u8..2, tokens(14), prop::bool::weighted(0.9))
            .prop_map(|(salt, tokens, reuse)| Op::Admit { salt, tokens, reuse }),
        4 => (seq.clone(), prop::collection::vec(0u32..2, 1..4))
            .prop_map(|(seq, tokens)| Op::Append { seq, tokens }),
        10 => (seq.clone(), 1u32..16, any::<bool>())
            .prop_map(|(seq, n, running)| Op::Schedule { seq, n, running }),
        8 => Just(Op::Complete),
        2 => (0usize..20).prop_map(|after| Op::Fail { after }),
        2 => seq.clone().prop_map(|seq| Op::Fork { seq }),
        4 => seq.clone().prop_map(|seq| Op::Free { seq }),
        2 => seq.clone().prop_map(|seq| Op::Preempt { seq }),
        1 => (0u8..2, tokens(14)).prop_map(|(salt, tokens)| Op::Pin { salt, tokens }),
        1 => (0usize..4).prop_map(|pin| Op::Unpin { pin }),
        1 => (0u32..4).prop_map(|pages| Op::Evict { pages }),
        2 => (0u64..5).prop_map(|seconds| Op::Tick { seconds }),
    ]
}

fn windows() -> impl Strategy<Value = Vec<Option<Tokens>>> {
    prop_oneof![
        4 => Just(vec![None]),
        1 => (1u32..10).prop_map(|w| vec![Some(Tokens(w))]),
        2 => (1u32..10).prop_map(|w| vec![None, Some(Tokens(w))]),
        1 => (1u32..10, 1u32..10).prop_map(|(a, b)| vec![Some(Tokens(a)), None, Some(Tokens(b)), None]),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let policy = prop_oneof![Just(PolicyKind::Lru), Just(PolicyKind::Priority), Just(PolicyKind::Adaptive)];
    let limits = (0u32..3, prop::option::weighted(0.2, 4u32..20), prop::option::weighted(0.2, 0u32..10));
    (5u32..40, 1u32..5, windows(), policy, limits, 0usize..6, prop::bool::weighted(0.9)).prop_map(
        |(
            total,
            page_size,
            windows,
            policy,
            (reserve, sequence_limit, cached_limit),
            ghosts,
            prefix_cache,
        )| {
            Settings {
                page_size: PageSize::new(page_size).unwrap(),
                windows,
                policy,
                reserve: Pages(reserve),
                sequence_limit: sequence_limit.map(Pages),
                cached_limit: cached_limit.map(Pages),
                remember_evicted: ghosts,
                prefix_cache,
                pin_quota: Pages((total - reserve) / 3),
                ..Settings::new(Pages(total))
            }
        },
    )
}

/// The simulation, and what the oracle knows of it.
struct Model {
    sim: Simulation,
    pins: Vec<PinId>,
    seconds: u64,
    /// Page-aligned prefixes that a completed step computed, by salt.
    published: BTreeSet<(u8, Vec<u32>)>,
    /// The same for the step being planned.
    planned: BTreeSet<(u8, Vec<u32>)>,
    next_id: u64,
}

impl Model {
    fn new(settings: Settings) -> Self {
        let sim = Simulation::zeroing(settings);
        let (published, planned) = (BTreeSet::new(), BTreeSet::new());
        Self { sim, pins: Vec::new(), seconds: 0, published, planned, next_id: 0 }
    }

    fn pick(&self, at: usize) -> Option<SeqId> {
        let ids: Vec<SeqId> = self.sim.known.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[at % ids.len()])
    }

    fn in_flight(&self, seq: SeqId) -> bool {
        self.sim.cache.step().spans().iter().any(|span| span.seq == seq)
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Admit { salt, tokens, reuse } => self.admit(salt, tokens, reuse),
            Op::Append { seq, tokens } => {
                if let Some(seq) = self.pick(seq) {
                    tokens.into_iter().for_each(|token| self.sim.append(seq, token));
                }
            }
            Op::Schedule { seq, n, running } => {
                if let Some(seq) = self.pick(seq) {
                    self.schedule(seq, n, if running { Claim::Running } else { Claim::New });
                }
            }
            Op::Complete => {
                self.published.append(&mut self.planned);
                self.sim.run();
            }
            Op::Fail { after } => self.fail(after),
            Op::Fork { seq } => {
                if let Some(seq) = self.pick(seq)
                    && let Ok(child) = self.sim.cache.fork(seq)
                {
                    self.next_id += 1;
                    let known = self.sim.known[&seq].clone();
                    self.sim.known.insert(child, known);
                }
            }
            Op::Free { seq } => {
                if let Some(seq) = self.pick(seq) {
                    if self.in_flight(seq) {
                        assert_eq!(self.sim.cache.free(seq), Err(ReleaseError::InFlight(seq)));
                    } else {
                        self.sim.free(seq);
                    }
                }
            }
            Op::Preempt { seq } => self.preempt(seq),
            Op::Pin { salt, tokens } => self.pin(salt, &tokens),
            Op::Unpin { pin } => {
                if !self.pins.is_empty() {
                    let pin = self.pins.swap_remove(pin % self.pins.len());
                    self.sim.cache.unpin(pin).unwrap();
                }
            }
            Op::Evict { pages } => {
                let cached = self.sim.cache.counts().cached;
                let evicted = self.sim.cache.evict(Pages(pages));
                assert!(evicted <= Pages(pages));
                assert_eq!(self.sim.cache.counts().cached, cached - evicted);
            }
            Op::Tick { seconds } => {
                self.seconds += seconds;
                self.sim.cache.tick(Timestamp::from_secs(self.seconds));
            }
        }
        self.sim.check();
    }

    fn admit(&mut self, salt: u8, tokens: Vec<u32>, reuse: bool) {
        let prompt = self.sim.prompt(salt, &tokens);
        let peeked = self.sim.cache.lookup(&prompt);
        let reuse = if reuse { Reuse::Longest } else { Reuse::Nothing };
        self.next_id += 1;
        match self.sim.cache.admit(prompt, reuse) {
            Ok((seq, hit)) => {
                assert_eq!(seq, SeqId(self.next_id - 1), "ids are counted up");
                if reuse == Reuse::Longest {
                    assert_eq!(hit.stop, peeked.stop);
                    assert!(hit == peeked || hit.copied == Tokens::ZERO, "{hit:?}, before {peeked:?}");
                } else {
                    assert_eq!(hit.tokens, Tokens::ZERO);
                }
                self.check_hit(salt, &tokens, hit.tokens.0 as usize);
                self.sim.known.insert(seq, Known { salt, tokens });
            }
            Err(AdmitError::OverLimit { need, limit, .. }) => assert!(need > limit),
            Err(AdmitError::Alloc(AllocError::NeverFits { need, total })) => assert!(need > total),
            Err(error) => panic!("{error}"),
        }
    }

    /// No more is found than some completed, or just planned, prefix of the same salt has, and never the last
    /// token.
    fn check_hit(&self, salt: u8, tokens: &[u32], hit: usize) {
        assert!(hit == 0 || hit < tokens.len());
        let size = self.sim.cache.settings().page_size.as_usize();
        let full = hit / size * size;
        let known = |len: usize| {
            let prefix = (salt, tokens[..len].to_vec());
            self.published.contains(&prefix) || self.planned.contains(&prefix)
        };
        assert!(full == 0 || known(full), "{full} tokens found that nobody computed");
        let begins = |(other, prefix): &(u8, Vec<u32>)| *other == salt && prefix.starts_with(&tokens[..hit]);
        assert!(
            hit == full || self.published.iter().any(begins),
            "a partial page found that nobody computed"
        );
    }

    fn schedule(&mut self, seq: SeqId, n: u32, claim: Claim) {
        let left = self.sim.left(seq);
        let before = self.sim.cache.counts();
        let available = self.sim.cache.available(claim);
        let pages = self.sim.pages(seq);
        match self.sim.cache.schedule(seq, Tokens(n.min(left)), claim) {
            Ok(span) => {
                let size = self.sim.cache.settings().page_size.as_usize();
                let known = &self.sim.known[&seq];
                for end in (span.positions.start.as_usize() + 1..=span.positions.end.as_usize())
                    .filter(|e| e % size == 0)
                {
                    self.planned.insert((known.salt, known.tokens[..end].to_vec()));
                }
                return;
            }
            Err(ScheduleError::Twice { .. }) => {}
            Err(ScheduleError::TooMany { left, .. }) => assert_eq!(left, Tokens::ZERO),
            Err(ScheduleError::OverLimit { need, limit, .. }) => assert!(need > limit),
            Err(ScheduleError::Alloc(AllocError::OutOfPages { need, free })) => {
                assert_eq!(free, available);
                assert!(need > free);
            }
            Err(ScheduleError::Alloc(AllocError::NeverFits { need, total })) => assert!(need > total),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.sim.cache.counts(), before, "a refusal took something");
        assert_eq!(self.sim.pages(seq), pages);
    }

    /// A step is lost after some of its operations; what it was to compute is not known to anybody.
    fn fail(&mut self, after: usize) {
        let before: BTreeMap<SeqId, Vec<u32>> =
            self.sim.known.iter().map(|(seq, known)| (*seq, known.tokens.clone())).collect();
        self.planned.clear();
        self.sim.crash(after);
        for (seq, tokens) in before {
            let sequence = self.sim.cache.sequence(seq).unwrap();
            assert_eq!(sequence.tokens(), tokens);
            assert_eq!(sequence.scheduled(), sequence.computed());
        }
        assert!(self.sim.cache.step().is_empty());
    }

    fn preempt(&mut self, at: usize) {
        let Some(seq) = self.pick(at).filter(|seq| !self.in_flight(*seq)) else { return };
        let known = self.sim.known.remove(&seq).unwrap();
        let prompt = self.sim.cache.preempt(seq).unwrap();
        assert_eq!(prompt.tokens(), known.tokens);
        self.sim.check();
        self.next_id += 1;
        if let Ok((seq, _)) = self.sim.cache.admit(prompt, Reuse::Longest) {
            self.sim.known.insert(seq, known);
        }
    }

    fn pin(&mut self, salt: u8, tokens: &[u32]) {
        let prompt = self.sim.prompt(salt, tokens);
        if let Ok((pin, covered)) = self.sim.cache.pin(&prompt) {
            assert!(self.published.contains(&(salt, tokens[..covered.as_usize()].to_vec())));
            self.pins.push(pin);
            let snapshot = self.sim.cache.snapshot();
            assert!(snapshot.pinned <= self.sim.cache.settings().pin_quota);
        }
    }

    /// Everything is given back when everybody is gone.
    fn end(mut self) {
        self.apply(Op::Complete);
        for seq in self.sim.known.keys().copied().collect::<Vec<_>>() {
            self.sim.free(seq);
        }
        assert_eq!(self.sim.cache.counts().used, Pages::ZERO);
        for pin in std::mem::take(&mut self.pins) {
            self.sim.cache.unpin(pin).unwrap();
        }
        let cached = self.sim.cache.counts().cached;
        assert_eq!(self.sim.cache.evict(Pages(u32::MAX)), cached);
        self.sim.check();
        let counts = self.sim.cache.counts();
        assert_eq!(counts.free + counts.reserved, counts.total);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000.max(ProptestConfig::default().cases), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_keep_every_sequence_readable(
        settings in settings(),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut model = Model::new(settings);
        ops.into_iter().for_each(|op| model.apply(op));
        model.end();
    }

    /// With room for everything, a lookup finds exactly what the oracle knows: every published page of the
    /// prefix, then the longest beginning that any page has below it.
    #[test]
    fn with_room_for_everything_a_lookup_finds_all_there_is(
        page_size in 1u32..5,
        prompts in prop::collection::vec((0u8..2, tokens(14)), 1..12),
    ) {
        let settings = Settings { page_size: PageSize::new(page_size).unwrap(), ..Settings::new(Pages(2000)) };
        let mut sim = Simulation::new(settings);
        let size = page_size as usize;
        let mut pages: BTreeSet<(u8, Vec<u32>)> = BTreeSet::new();
        for (salt, tokens) in prompts {
            let usable = tokens.len().saturating_sub(1);
            let full = (0..=usable / size).rev().map(|n| n * size)
                .find(|n| *n == 0 || pages.contains(&(salt, tokens[..*n].to_vec()))).unwrap();
            let best = pages.iter()
                .filter(|(other, page)| *other == salt && page.len() == full + size && page.starts_with(&tokens[..full]))
                .map(|(_, page)| page[full..].iter().zip(&tokens[full..usable]).take_while(|(a, b)| a == b).count())
                .max().unwrap_or(0);
            let (seq, hit) = sim.admit_as(salt, &tokens);
            prop_assert_eq!(hit.tokens.as_usize(), full + best);
            prop_assert_eq!(hit.copied.as_usize(), best);
            sim.finish(seq);
            sim.free(seq);
            for end in (size..=tokens.len()).step_by(size) {
                pages.insert((salt, tokens[..end].to_vec()));
            }
        }
    }
}
