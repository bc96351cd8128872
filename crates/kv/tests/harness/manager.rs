//! Any operations on a cache with simulated bytes, each checked against what is known of the cache.

use super::program::{NOBODY, Op, Program};
use crate::support::{Known, Simulation, contents};
use octavo_kv::{
    AdmitError, AllocError, AppendError, Claim, ForkError, Hit, PageRef, PinError, PinId, Prompt,
    ReleaseError, Reuse, ScheduleError, Scope, Stop, UnknownSequence,
};
use octavo_types::{GroupId, PageSize, Pages, SeqId, Timestamp, Tokens};
use std::collections::BTreeMap;

/// Runs the program that `bytes` are; panics if the cache does anything it should not.
pub(crate) fn run(bytes: &[u8]) {
    let program = Program::decode(bytes);
    let mut shown = ShownOnFailure { program: &program, done: 0 };
    let mut manager = Manager::new(&program);
    for op in program.ops.clone() {
        shown.done += 1;
        manager.apply(op);
        manager.check();
    }
    manager.end();
}

/// Prints the program up to where a check failed, if the panic unwinds.
struct ShownOnFailure<'a> {
    program: &'a Program,
    done: usize,
}

impl Drop for ShownOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Program { settings, zeroing, ops } = self.program;
            eprintln!("{settings:?}, zeroing: {zeroing}");
            ops[..self.done].iter().for_each(|op| eprintln!("  {op:?}"));
        }
    }
}

/// How far a sequence is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Progress {
    pub(super) computed: Tokens,
    pub(super) scheduled: Tokens,
    /// Whether it was admitted in the open step.
    fresh: bool,
}

pub(super) struct Manager {
    pub(super) sim: Simulation,
    pub(super) zeroing: bool,
    pub(super) progress: BTreeMap<SeqId, Progress>,
    /// Preempted, with their salts.
    waiting: Vec<(u8, Prompt)>,
    /// With a prompt that continues after what is pinned, and how much that is.
    pub(super) pins: Vec<(PinId, Prompt, Tokens)>,
    /// What `sim.outside` read when the handles were taken.
    pub(super) contents: Vec<Vec<u64>>,
    pub(super) now: u64,
    next_id: u64,
    /// Tokens of all admitted prompts.
    pub(super) admitted: u64,
}

impl Manager {
    fn new(program: &Program) -> Self {
        let settings = program.settings.clone();
        Self {
            sim: if program.zeroing { Simulation::zeroing(settings) } else { Simulation::new(settings) },
            zeroing: program.zeroing,
            progress: BTreeMap::new(),
            waiting: Vec::new(),
            pins: Vec::new(),
            contents: Vec::new(),
            now: 0,
            next_id: 0,
            admitted: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Admit { salt, tokens, reuse } => {
                let prompt = self.sim.prompt(salt, &tokens);
                self.admit(salt, prompt, reuse);
            }
            Op::AdmitOtherPageSize => self.admit_other_page_size(),
            Op::Resume { waiting } => {
                if let Some(at) = choose(self.waiting.len(), waiting) {
                    let (salt, prompt) = self.waiting.swap_remove(at);
                    self.admit(salt, prompt, Reuse::Longest);
                }
            }
            Op::Append { seq, token } => self.append(seq, token),
            Op::Schedule { seq, n, claim } => self.schedule(seq, n, claim),
            Op::Complete => self.complete(),
            Op::Fail { after } => self.fail(after),
            Op::Fork { seq } => self.fork(seq),
            Op::Free { seq } => drop(self.preempt(seq)),
            Op::Preempt { seq } => {
                let preempted = self.preempt(seq);
                self.waiting.extend(preempted);
            }
            Op::Pin { salt, tokens } => self.pin(salt, &tokens),
            Op::PinSequence { seq } => {
                if let Ok(Known { salt, tokens }) = self.choose(seq).map(|seq| self.sim.known[&seq].clone()) {
                    self.pin(salt, &tokens);
                }
            }
            Op::Unpin { pin } => self.unpin(pin),
            Op::Evict { pages } => self.evict(pages),
            Op::Tick { micros } => {
                self.now = self.now.max(micros);
                self.sim.cache.tick(Timestamp(micros));
                assert_eq!(self.sim.cache.now(), Timestamp(self.now), "time never goes back");
            }
            Op::Hold { seq, group, index } => self.hold(seq, group, index),
            Op::LetGo { handle } => {
                if let Some(at) = choose(self.contents.len(), handle) {
                    self.contents.swap_remove(at);
                    drop(self.sim.outside.swap_remove(at));
                }
            }
        }
    }

    /// The sequence that `at` stands for, or one that there is not.
    fn choose(&self, at: u8) -> Result<SeqId, UnknownSequence> {
        let nobody = UnknownSequence(SeqId(u64::MAX));
        let at = choose(self.progress.len(), at).filter(|_| at != NOBODY).ok_or(nobody)?;
        self.progress.keys().nth(at).copied().ok_or(nobody)
    }

    fn page_size(&self) -> PageSize {
        self.sim.cache.settings().page_size
    }

    fn admit(&mut self, salt: u8, prompt: Prompt, reuse: Reuse) {
        let tokens = prompt.tokens().to_vec();
        let peeked = self.sim.cache.lookup(&prompt);
        let reserved = self.sim.cache.counts().reserved;
        self.next_id += 1;
        match self.sim.cache.admit(prompt, reuse) {
            Ok((seq, hit)) => {
                assert_eq!(seq, SeqId(self.next_id - 1), "ids are counted up");
                assert!(hit.tokens <= peeked.tokens, "{hit:?}, before {peeked:?}");
                self.check_hit(&tokens, reuse, hit);
                assert!(self.sim.cache.counts().reserved >= reserved, "a new sequence took the reserve");
                let progress = Progress { computed: hit.tokens, scheduled: hit.tokens, fresh: true };
                self.progress.insert(seq, progress);
                self.admitted += tokens.len() as u64;
                self.sim.known.insert(seq, Known { salt, tokens });
            }
            Err(AdmitError::OverLimit { need, limit, .. }) => assert!(need > limit),
            Err(AdmitError::Alloc(AllocError::NeverFits { need, total })) => assert!(need > total),
            Err(error) => panic!("{error}"),
        }
    }

    fn check_hit(&self, tokens: &[u32], reuse: Reuse, hit: Hit) {
        assert!(hit.tokens == Tokens::ZERO || hit.tokens.as_usize() < tokens.len(), "{hit:?}");
        assert_eq!(self.page_size().offset_of(hit.tokens), hit.copied, "whole pages are shared, not copied");
        if reuse == Reuse::Nothing || !self.sim.cache.settings().prefix_cache {
            assert_eq!((hit.tokens, hit.stop), (Tokens::ZERO, Stop::NotLookedUp));
        }
    }

    fn admit_other_page_size(&mut self) {
        let size = PageSize::new(self.page_size().tokens().0 + 1).expect("one or more");
        let prompt = Prompt::new(vec![0; 4], Scope::default(), size).expect("four tokens");
        self.next_id += 1;
        let error = self.sim.cache.admit(prompt, Reuse::Longest).expect_err("a prompt of other pages");
        assert!(matches!(error, AdmitError::PageSize { .. }), "{error}");
    }

    fn append(&mut self, at: u8, token: u32) {
        match self.choose(at) {
            Ok(seq) => self.sim.append(seq, token),
            Err(nobody) => {
                let refused = self.sim.cache.append(nobody.0, token);
                assert_eq!(refused, Err(AppendError::Unknown(nobody)));
            }
        }
    }

    fn schedule(&mut self, at: u8, n: Tokens, claim: Claim) {
        let (seq, Progress { computed, scheduled, .. }) = match self.choose(at) {
            Ok(seq) => (seq, self.progress[&seq]),
            Err(nobody) => {
                let refused = self.sim.cache.schedule(nobody.0, n, claim);
                return assert_eq!(refused, Err(ScheduleError::Unknown(nobody)));
            }
        };
        let before = (self.sim.cache.counts(), self.sim.cache.sequence(seq).map(|seq| seq.pages()));
        let left = Tokens(self.sim.left(seq));
        match self.sim.cache.schedule(seq, n, claim) {
            Ok(span) => {
                assert_eq!(span.positions, computed..computed + n);
                assert_eq!(self.sim.cache.step().spans().last(), Some(&span));
                let reserved = self.sim.cache.counts().reserved;
                assert!(claim == Claim::Running || reserved >= before.0.reserved, "the reserve was taken");
                self.progress.entry(seq).and_modify(|progress| progress.scheduled = span.positions.end);
                return;
            }
            Err(ScheduleError::Twice { .. }) => assert!(scheduled > computed),
            Err(ScheduleError::TooMany { .. }) => assert!(n == Tokens::ZERO || n > left),
            Err(ScheduleError::OverLimit { need, limit, .. }) => assert!(need > limit),
            Err(ScheduleError::Alloc(AllocError::OutOfPages { need, free })) => {
                assert!(need > free && free == self.sim.cache.available(claim));
            }
            Err(ScheduleError::Alloc(AllocError::NeverFits { need, total })) => assert!(need > total),
            Err(error) => panic!("{error}"),
        }
        let after = (self.sim.cache.counts().used, self.sim.cache.sequence(seq).map(|seq| seq.pages()));
        assert_eq!(after, (before.0.used, before.1), "a refusal took something");
    }

    pub(super) fn complete(&mut self) {
        self.sim.run();
        for progress in self.progress.values_mut() {
            *progress = Progress { computed: progress.scheduled, fresh: false, ..*progress };
        }
    }

    fn fail(&mut self, after: usize) {
        let size = self.page_size();
        self.sim.crash(after);
        for (seq, progress) in &mut self.progress {
            let computed = self.sim.cache.sequence(*seq).expect("a failure ends no sequence").computed();
            if progress.fresh {
                assert_eq!(size.offset_of(computed), Tokens::ZERO, "only whole public pages are kept");
            } else {
                assert_eq!(computed, progress.computed, "{seq} is not where it was before the step");
            }
            *progress = Progress { computed, scheduled: computed, fresh: false };
        }
    }

    fn fork(&mut self, at: u8) {
        let seq = match self.choose(at) {
            Ok(seq) => seq,
            Err(nobody) => {
                return assert_eq!(self.sim.cache.fork(nobody.0), Err(ForkError::Unknown(nobody)));
            }
        };
        let progress = self.progress[&seq];
        if progress.fresh || progress.scheduled > progress.computed {
            return assert_eq!(self.sim.cache.fork(seq), Err(ForkError::InFlight(seq)));
        }
        let child = self.sim.fork(seq);
        assert_eq!(child, SeqId(self.next_id), "ids are counted up");
        self.next_id += 1;
        self.progress.insert(child, progress);
    }

    pub(super) fn preempt(&mut self, at: u8) -> Option<(u8, Prompt)> {
        let seq = match self.choose(at) {
            Ok(seq) => seq,
            Err(nobody) => {
                assert_eq!(self.sim.cache.free(nobody.0), Err(ReleaseError::Unknown(nobody)));
                return None;
            }
        };
        let Progress { computed, scheduled, .. } = self.progress[&seq];
        if scheduled > computed {
            assert_eq!(self.sim.cache.free(seq), Err(ReleaseError::InFlight(seq)));
            return None;
        }
        self.progress.remove(&seq);
        let known = self.sim.known.remove(&seq).expect("known while it runs");
        let prompt = self.sim.cache.preempt(seq).expect("it runs and is not in flight");
        assert_eq!(prompt.tokens(), known.tokens);
        Some((known.salt, prompt))
    }

    fn pin(&mut self, salt: u8, tokens: &[u32]) {
        let prompt = self.sim.prompt(salt, tokens);
        match self.sim.cache.pin(&prompt) {
            Ok((pin, covered)) => {
                assert!(covered > Tokens::ZERO && covered <= prompt.len());
                assert_eq!(self.page_size().offset_of(covered), Tokens::ZERO);
                // A lookup stops short of the last token: one more, and all that is pinned can be found.
                let longer = [&tokens[..covered.as_usize()], &[u32::MAX]].concat();
                self.pins.push((pin, self.sim.prompt(salt, &longer), covered));
            }
            Err(PinError::NotCached) => {}
            Err(PinError::OverQuota { need, pinned, quota }) => assert!(pinned + need > quota),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn unpin(&mut self, at: u8) {
        match choose(self.pins.len(), at).filter(|_| at != NOBODY) {
            Some(at) => self.sim.cache.unpin(self.pins.swap_remove(at).0).expect("a pin there is"),
            None => {
                let nothing = PinId(u64::MAX);
                assert_eq!(self.sim.cache.unpin(nothing), Err(PinError::Unknown(nothing)));
            }
        }
    }

    pub(super) fn evict(&mut self, pages: Pages) {
        let before = self.sim.cache.snapshot();
        let evicted = self.sim.cache.evict(pages);
        assert_eq!(evicted, pages.min(before.evictable));
        assert_eq!(self.sim.cache.counts().cached, before.pages.cached - evicted);
    }

    fn hold(&mut self, at: u8, group: u8, index: Pages) {
        let seq = match self.choose(at) {
            Ok(seq) => seq,
            Err(nobody) => {
                let refused = self.sim.cache.hold(nobody.0, GroupId(0), index).map(drop);
                return assert_eq!(refused, Err(nobody));
            }
        };
        let group = GroupId(u16::from(group) % self.sim.cache.settings().windows.len() as u16);
        let handle = self.sim.cache.hold(seq, group, index).expect("a sequence there is");
        let Progress { computed, fresh, .. } = self.progress[&seq];
        let full = index < self.page_size().full_pages(computed);
        let there = self.sim.cache.sequence(seq).expect("the same").table(group).page(index).filter(|_| full);
        // A sequence admitted in the open step may count on pages that are yet to be filled.
        let found = handle.as_ref().map(PageRef::id);
        assert!(found == there || fresh && found.is_none(), "{found:?} instead of {there:?}");
        if let Some(page) = handle {
            let first = index.0 * self.page_size().tokens().0;
            let known = &self.sim.known[&seq];
            let positions = first..first + self.page_size().tokens().0;
            let expected: Vec<u64> = positions.map(|at| contents(known, group.0, at)).collect();
            assert_eq!(self.sim.read_page(page.id()), expected, "{page:?} is held before it is filled");
            self.contents.push(expected);
            self.sim.outside.push(page);
        }
    }
}

/// An index below `len`, if there is one.
fn choose(len: usize, at: u8) -> Option<usize> {
    usize::from(at).checked_rem(len)
}
