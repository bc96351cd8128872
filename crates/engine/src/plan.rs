//! Planning a step: retire, free, budget, admit.
//!
//! Sequences that run come first: one token of each that decodes, then prompts under way, in the order of their
//! requests; what is left of the step's chunk goes to new requests. When pages run out, the youngest gives way.

use crate::batch::Wanted;
use crate::config::Batching;
use crate::engine::{Engine, Events};
use crate::event::Failure;
use crate::pace::chunk_for;
use crate::queue::Waiting;
use crate::request::RequestId;
use crate::task::{Running, Task};
use octavo_kv::{AllocError, Claim, Reuse, ScheduleError};
use octavo_types::{Pages, Tokens};

/// Logits of prompts are kept to this many bytes a step, but for a row of each.
const PROMPT_LOGITS: usize = 64 << 20;

/// How an attempt to put a sequence into the step went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planned {
    Yes,
    NoRoom,
    /// It was the reason itself and is gone.
    Gone,
}

/// What happens to younger sequences that are not in the step when pages lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Others {
    GiveWay,
    Stay,
}

/// Whether fewer tokens at a time could do.
pub(crate) fn is_for_lack_of_pages(error: &ScheduleError) -> bool {
    use ScheduleError::{Alloc, OverLimit};
    matches!(error, Alloc(AllocError::OutOfPages { .. }) | OverLimit { .. })
}

impl Engine {
    /// Fills the open step. An empty step afterwards means that there is nothing to compute.
    pub(crate) fn plan(&mut self, events: &mut Events) {
        self.wanted.clear();
        self.prompt_tokens = Tokens::ZERO;
        self.retire(events);
        self.batch_closed &= !self.running.is_empty();
        self.make_way();
        self.plan_decodes(events);
        let mut budget = self.chunk_budget();
        self.plan_prompts(&mut budget, events);
        if !self.batch_closed {
            let before = self.running.len();
            self.admit(&mut budget, events);
            // A static batch is complete once there is nobody to add.
            let added = self.running.len() > before || budget == Tokens::ZERO;
            self.batch_closed = self.config.batching == Batching::Static && !added;
        }
        if self.cache.step().spans().is_empty() {
            self.last_resort(events);
        }
    }

    /// Frees what has ended before the next step does, for whoever looks into the cache between steps.
    pub fn settle(&mut self) {
        self.free_finished();
        if !self.has_work() {
            self.publish();
        }
    }

    fn free_finished(&mut self) {
        let cache = &mut self.cache;
        self.running.retain_mut(|running| {
            running.span = None;
            if running.finished.is_some() {
                cache.free(running.seq).expect("no step is open");
            }
            running.finished.is_none()
        });
    }

    /// Takes out what has ended, was cancelled or is late, and frees its pages: they serve this step already.
    fn retire(&mut self, events: &mut Events) {
        self.free_finished();
        for id in std::mem::take(&mut self.cancelled) {
            self.end_cancelled(id, events);
        }
        let now = self.now;
        let mut late = self.queue.late(now);
        let running = self.running.iter().filter(|running| running.deadline.is_some_and(|by| by <= now));
        late.extend(running.map(|running| running.task.id()));
        for id in late {
            let limit = self.limit_of(id);
            self.fail_request(id, Failure::TimeLimit(limit), events);
        }
    }

    fn left(&self, at: usize) -> Tokens {
        let sequence = self.cache.sequence(self.running[at].seq).expect("running");
        sequence.prompt().len() - sequence.computed()
    }

    /// The first of all found no room for its prompt in the last step, and those that decode come before it: one that never
    /// runs out of pages itself, because its window lets go of one whenever it takes one, would keep it waiting.
    fn make_way(&mut self) {
        if std::mem::take(&mut self.first_waits) && self.running.len() > 1 {
            self.preempt(self.running.len() - 1);
        }
    }

    /// One token of every sequence that decodes.
    fn plan_decodes(&mut self, events: &mut Events) {
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].reading {
                at += 1;
                continue;
            }
            match self.plan_span(at, Tokens(1), Claim::Running, Others::GiveWay, events) {
                Planned::Yes => at += 1,
                // Nobody younger is left: it gives way itself, unless it is alone and the last resort is next.
                Planned::NoRoom if self.running.len() > 1 => self.preempt(at),
                Planned::NoRoom => at += 1,
                Planned::Gone => {}
            }
        }
    }

    /// Prompt tokens this step may read.
    fn chunk_budget(&self) -> Tokens {
        let settings = self.cache.settings();
        let room = self.cache.available(Claim::New).saturating_sub(self.promised());
        let chunk = chunk_for(&self.config, room, settings.total);
        match self.config.max_itl {
            Some(limit) if !self.cache.step().spans().is_empty() => chunk.min(self.pace.span_within(limit)),
            _ => chunk,
        }
    }

    /// Goes on with prompts that have been read in part.
    fn plan_prompts(&mut self, budget: &mut Tokens, events: &mut Events) {
        let mut at = 0;
        while at < self.running.len() && *budget > Tokens::ZERO {
            if !self.running[at].reading {
                at += 1;
                continue;
            }
            let planned = self.plan_chunk(at, budget, Others::GiveWay, events);
            self.first_waits |= at == 0 && planned == Planned::NoRoom;
            if planned != Planned::Gone {
                at += 1;
            }
        }
    }

    /// As much of a prompt as the budget and the pages allow.
    pub(crate) fn plan_chunk(
        &mut self,
        at: usize,
        budget: &mut Tokens,
        others: Others,
        events: &mut Events,
    ) -> Planned {
        let mut n = self.span_of(at, *budget);
        // The first of all is to finish, whatever it takes.
        let claim = if at == 0 { Claim::Running } else { Claim::New };
        loop {
            match self.plan_span(at, n, claim, others, events) {
                Planned::Yes => {
                    *budget = budget.saturating_sub(n);
                    self.prompt_tokens += n;
                    return Planned::Yes;
                }
                Planned::NoRoom if n > Tokens(1) => n = Tokens(n.0 / 2),
                other => return other,
            }
        }
    }

    /// The next span of a prompt: whole pages, unless it ends the prompt.
    fn span_of(&self, at: usize, budget: Tokens) -> Tokens {
        let running = &self.running[at];
        let left = self.left(at);
        let mut most = left.min(budget);
        if running.task.wants_prompt_logprobs() {
            let rows = PROMPT_LOGITS / (self.runner.vocab() * size_of::<f32>());
            most = most.min(Tokens(rows.saturating_sub(self.prompt_rows()).max(1) as u32));
        }
        let start = self.cache.sequence(running.seq).expect("running").computed();
        let over = self.cache.settings().page_size.offset_of(start + most);
        if most < left && over < most { most - over } else { most }
    }

    /// Rows of the open step whose logits are all wanted.
    fn prompt_rows(&self) -> usize {
        let spans = self.cache.step().spans().iter().zip(&self.wanted);
        let all = spans.filter(|(_, wanted)| **wanted == Wanted::All);
        all.map(|(span, _)| (span.positions.end - span.positions.start).as_usize()).sum()
    }

    /// Puts `n` tokens of a sequence into the step. Where pages lack, younger sequences give theirs.
    fn plan_span(
        &mut self,
        at: usize,
        n: Tokens,
        claim: Claim,
        others: Others,
        events: &mut Events,
    ) -> Planned {
        loop {
            let seq = self.running[at].seq;
            match self.cache.schedule(seq, n, claim) {
                Ok(span) => {
                    let wanted = self.wanted_of(at, span.positions.end);
                    self.running[at].span = Some(self.wanted.len());
                    self.wanted.push(wanted);
                    return Planned::Yes;
                }
                Err(ScheduleError::Alloc(AllocError::OutOfPages { .. })) => {
                    let younger = self.running.iter().rposition(|other| other.span.is_none());
                    match younger.filter(|younger| *younger > at && others == Others::GiveWay) {
                        Some(younger) => self.preempt(younger),
                        None => return Planned::NoRoom,
                    }
                }
                Err(error) if is_for_lack_of_pages(&error) && n > Tokens(1) => return Planned::NoRoom,
                Err(error) => {
                    let id = self.running[at].task.id();
                    self.fail_request(id, Failure::Step(error.to_string()), events);
                    return Planned::Gone;
                }
            }
        }
    }

    /// What is wanted of a sequence that is computed up to `end`.
    fn wanted_of(&self, at: usize, end: Tokens) -> Wanted {
        let Running { seq, task, .. } = &self.running[at];
        let known = self.cache.sequence(*seq).expect("running").prompt().len();
        if task.wants_prompt_logprobs() {
            return Wanted::All;
        }
        if end < known {
            return Wanted::Nothing;
        }
        task.choice_from_raw(known).map_or(Wanted::Last, Wanted::Token)
    }

    /// Takes a sequence's pages; what they contain stays cached while there is room.
    pub(crate) fn preempt(&mut self, at: usize) {
        let Running { mut task, seq, .. } = self.running.remove(at);
        task.computed_before = self.cache.sequence(seq).expect("running").computed();
        let prompt = self.cache.preempt(seq).expect("it is not in the step");
        self.count_preemption(&task);
        self.queue.push(Waiting { task, prompt, place: None });
        self.blocked_with = None;
    }

    fn count_preemption(&mut self, task: &Task) {
        self.metrics.preemptions.add(1);
        if let Some(group) = self.groups.get_mut(&task.id()) {
            group.usage.preemptions += 1;
        }
        tracing::debug!(request = task.id().0, choice = task.choice, "preempted");
    }

    /// Nothing could be planned though something runs: the first gets everything, and starts over without what it
    /// shares with the cache if that is in its way.
    fn last_resort(&mut self, events: &mut Events) {
        while !self.running.is_empty() {
            while self.running.len() > 1 {
                self.preempt(self.running.len() - 1);
            }
            let id = self.running[0].task.id();
            let mut budget = self.config.chunk.0;
            if self.plan_chunk(0, &mut budget, Others::Stay, events) == Planned::Yes {
                return;
            }
            if self.running.first().is_some_and(|first| first.started_over) {
                // It has run out again, and would every time.
                self.fail_alone(id, events);
                continue;
            }
            if !self.start_over(events) {
                continue;
            }
            match self.plan_chunk(0, &mut budget, Others::Stay, events) {
                Planned::Yes => return,
                Planned::Gone => {}
                Planned::NoRoom => self.fail_alone(id, events),
            }
        }
    }

    /// Fails the only request that runs, because there is not enough for it.
    fn fail_alone(&mut self, id: RequestId, events: &mut Events) {
        let sequence = self.cache.sequence(self.running[0].seq).expect("running");
        let settings = self.cache.settings();
        let need = settings.least_pages(sequence.prompt().len());
        let free = sequence.pages() + self.cache.available(Claim::Running);
        self.fail_request(id, Failure::OutOfPages { need, free }, events);
    }

    /// Admits the only sequence again, alone with its own pages. Whether there still is one.
    fn start_over(&mut self, events: &mut Events) -> bool {
        let Some(Running { task, seq, .. }) = self.running.pop() else { return false };
        let computed = self.cache.sequence(seq).expect("running").computed();
        self.metrics.tokens_recomputed.add(computed.0.into());
        self.count_preemption(&task);
        let prompt = self.cache.preempt(seq).expect("it is not in the step");
        match self.cache.admit_uncounted(prompt, Reuse::Nothing) {
            Ok((seq, _)) => {
                self.running.push(Running { started_over: true, ..Running::new(task, seq) });
                true
            }
            Err(error) => {
                self.fail_request(task.id(), Failure::Step(error.to_string()), events);
                false
            }
        }
    }

    /// Pages that prompts under way have yet to take.
    pub(crate) fn promised(&self) -> Pages {
        self.running.iter().filter(|running| running.reading).map(|running| self.promised_to(running)).sum()
    }

    pub(crate) fn promised_to(&self, running: &Running) -> Pages {
        let sequence = self.cache.sequence(running.seq).expect("running");
        self.pages_for(sequence.prompt().len()).saturating_sub(sequence.pages())
    }

    /// Pages that reading a prompt of so many tokens takes, chunk by chunk.
    pub(crate) fn pages_for(&self, len: Tokens) -> Pages {
        let settings = self.cache.settings();
        let size = settings.page_size;
        let pages = settings.windows.iter().map(|window| match window {
            Some(window) => {
                let held = window.0.saturating_add(self.config.chunk.1.0).saturating_add(size.tokens().0);
                size.pages_for(len.min(Tokens(held)))
            }
            None => size.pages_for(len),
        });
        pages.sum()
    }
}
