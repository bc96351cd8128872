//! After a step has run: tokens are chosen, become text, and end what they end.

use crate::constraint::{Constraint, ConstraintError, Progress};
use crate::engine::{Engine, Events};
use crate::event::{Event, Failure, FinishReason, Finished, NewToken};
use crate::queue::Waiting;
use crate::request::RequestId;
use crate::runner::Logits;
use crate::sampler::{Sampled, TokenLogprobs, TokenMask, logprobs_of};
use crate::task::{Running, Task};
use octavo_types::{Timestamp, Tokens};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A choice made, and what it ends.
struct Chosen {
    sampled: Sampled,
    text: String,
    end: Option<End>,
}

const NO_NUMBERS: &str = "the model computed no number for any token: its weights may be damaged, or too large for the precision they are computed in";

/// What the step gave to choose from.
enum Given<'a> {
    /// The device has chosen.
    Token(u32),
    Logits(&'a mut [f32]),
}

struct End {
    reason: FinishReason,
    /// Whether the token itself is part of the text.
    counts: bool,
}

impl Engine {
    /// Takes what the step computed, sequence by sequence. What goes wrong with one fails its request alone.
    pub(crate) fn post_process(&mut self, events: &mut Events) {
        let mut failed: Vec<(RequestId, Failure)> = Vec::new();
        // Outside of what may panic: the next sequence needs them, too.
        let mut logits = std::mem::take(&mut self.logits);
        let mut at = 0;
        while at < self.running.len() {
            let one = AssertUnwindSafe(|| self.take_result(at, &mut logits, events));
            let result = catch_unwind(one).unwrap_or_else(|panic| {
                Err(Failure::Step(format!("choosing a token panicked: {}", crate::recover::words(&*panic))))
            });
            if let Err(failure) = result {
                failed.push((self.running[at].task.id(), failure));
            }
            at += 1;
        }
        self.logits = logits;
        for (id, failure) in failed {
            self.fail_request(id, failure, events);
        }
    }

    /// Makes what was chosen part of its sequence.
    pub(crate) fn add_chosen(&mut self, events: &mut Events) {
        for (seq, token) in std::mem::take(&mut self.chosen) {
            let Err(error) = self.cache.append(seq, token) else { continue };
            if let Some(running) = self.running.iter().find(|running| running.seq == seq) {
                let id = running.task.id();
                self.fail_request(id, Failure::Step(error.to_string()), events);
            }
        }
    }

    fn take_result(&mut self, at: usize, logits: &mut Logits, events: &mut Events) -> Result<(), Failure> {
        let Some(span) = self.running[at].span.filter(|_| self.running[at].finished.is_none()) else {
            return Ok(());
        };
        let seq = self.running[at].seq;
        let sequence = self.cache.sequence(seq).expect("running");
        let (computed, known) = (sequence.computed(), sequence.prompt().len());
        self.report_progress(at, span, computed, logits, events);
        if computed < known {
            return Ok(());
        }
        self.running[at].reading = false;
        let row = self.batch.logits_of(span).end - 1;
        if let Some(token) = logits.token(row) {
            return self.choose(at, Given::Token(token), known, events);
        }
        if self.running[at].task.forks_to_come() > 0 {
            self.fork_choices(at, logits.row(row), known, events)?;
        }
        self.choose(at, Given::Logits(logits.row_mut(row)), known, events)
    }

    /// Says how much of a prompt has been read, and how likely its tokens were if that was asked for.
    fn report_progress(
        &mut self,
        at: usize,
        span: usize,
        computed: Tokens,
        logits: &Logits,
        events: &mut Events,
    ) {
        let task = &mut self.running[at].task;
        if task.generated > 0 || task.choice > 0 {
            return;
        }
        let (id, total) = (task.id(), task.shared.prompt_len);
        let cached = self.groups.get(&id).map_or(Tokens::ZERO, |group| group.usage.cached_tokens);
        // What is read again after a preemption is no news.
        if computed > task.progress {
            task.progress = computed;
            events.push((id, Event::Prefill { done: computed, total, cached }));
        }
        if let Some(top) = task.shared.request.prompt_logprobs {
            let rows = self.batch.logits_of(span);
            let first = computed.as_usize() - rows.len();
            let prompt = &task.shared.request.prompt;
            for (row, position) in rows.zip(first + 1..) {
                if let Some(&token) = prompt.get(position) {
                    task.prompt_logprobs[position] = Some(logprobs_of(logits.row(row), token, top));
                }
            }
            if computed >= total {
                let all = std::mem::take(&mut task.prompt_logprobs);
                events.push((id, Event::PromptLogprobs(all)));
            }
        }
    }

    /// The other choices of a request begin where its prompt ends. One that finds no room waits for it.
    fn fork_choices(
        &mut self,
        at: usize,
        logits: &[f32],
        known: Tokens,
        events: &mut Events,
    ) -> Result<(), Failure> {
        let seq = self.running[at].seq;
        for choice in 1..=self.running[at].task.forks_to_come() {
            let task = Box::new(self.running[at].task.fork(choice, self.tokenizer.as_ref()));
            match self.cache.fork(seq) {
                Ok(fork) => {
                    let place = self.running.partition_point(|other| other.order() < task.order);
                    let mut running = Running::new(task, fork);
                    running.reading = false;
                    self.running.insert(place, running);
                    self.choose(place, Given::Logits(&mut logits.to_vec()), known, events)?;
                }
                Err(_) => {
                    let prompt = self.cache.sequence(seq).expect("running").prompt().clone();
                    self.queue.push(Waiting { task, prompt, place: None });
                }
            }
        }
        Ok(())
    }

    /// Chooses the token after the `known` ones of a sequence, and passes it on.
    fn choose(
        &mut self,
        at: usize,
        given: Given<'_>,
        known: Tokens,
        events: &mut Events,
    ) -> Result<(), Failure> {
        let (now, max_len) = (self.now, self.config.max_len);
        let running = &mut self.running[at];
        let (seq, id) = (running.seq, running.task.id());
        if running.task.shared.request.max_tokens == 0 {
            self.finish(at, FinishReason::Length, events);
            return Ok(());
        }
        let Chosen { sampled, text, end } = choose_token(&mut running.task, given, known, max_len)?;
        // A token that ends the text is part of how likely it is.
        if let Some(logprobs) = &sampled.logprobs {
            running.task.logprob += f64::from(logprobs.logprob);
            running.task.scored += 1;
        }
        if end.as_ref().is_none_or(|end| end.counts) {
            self.note_token(at, now);
            let running = &mut self.running[at];
            running.task.generated += 1;
            let choice = running.task.choice;
            let asked = running.task.shared.request.sampling.logprobs.is_some();
            let logprobs: Option<TokenLogprobs> = sampled.logprobs.filter(|_| asked);
            let event = Event::Token(NewToken { choice, token: sampled.token, text, logprobs });
            self.tell(id, choice, event, events);
        }
        match end {
            Some(end) => self.finish(at, end.reason, events),
            None => self.chosen.push((seq, sampled.token)),
        }
        Ok(())
    }

    fn note_token(&mut self, at: usize, now: Timestamp) {
        let task = &mut self.running[at].task;
        self.metrics.generation_tokens.add(1);
        if let Some(last) = task.last_token.replace(now) {
            self.metrics.inter_token_latency.observe_time(now.since(last));
        }
        if let Some(group) = self.groups.get_mut(&task.id()) {
            group.token(now, &self.metrics);
        }
    }

    fn tell(&mut self, id: RequestId, choice: u32, event: Event, events: &mut Events) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.tell(choice, event, &mut |event| events.push((id, event)));
        }
    }

    /// A choice has ended; with the last one the request has.
    fn finish(&mut self, at: usize, reason: FinishReason, events: &mut Events) {
        let running = &mut self.running[at];
        let (text, matched) = running.task.text.take().map(|rest| rest.finish()).unwrap_or_default();
        let reason = if matched.is_some() { FinishReason::Stop } else { reason };
        running.finished = Some(reason);
        let (id, choice) = (running.task.id(), running.task.choice);
        let finished = Finished { choice, reason, text, matched };
        self.tell(id, choice, Event::Finished(finished), events);
        let task = &self.running[at].task;
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.ends(task) {
            events.extend(group.best().into_iter().map(|event| (id, event)));
            let usage = group.close(self.now, &self.metrics, Some(reason));
            events.push((id, Event::Done(usage)));
            self.groups.remove(&id);
        }
    }
}

/// Chooses, if the device has not, and looks for what ends the text.
fn choose_token(
    task: &mut Task,
    given: Given<'_>,
    known: Tokens,
    max_len: Tokens,
) -> Result<Chosen, Failure> {
    let sampled = match given {
        Given::Token(token) => Sampled { token, logprobs: None },
        Given::Logits(logits) => sample(task, logits, known)?,
    };
    let shared = task.shared.clone();
    let request = &shared.request;
    let token = sampled.token;
    let ends = |constraint: &Constraint| constraint.end_tokens().contains(&token);
    if request.stop_tokens.binary_search(&token).is_ok() || task.constraint.as_ref().is_some_and(ends) {
        let end = End { reason: FinishReason::Stop, counts: false };
        return Ok(Chosen { sampled, text: String::new(), end: Some(end) });
    }
    let mut complete = false;
    if let Some(constraint) = &mut task.constraint {
        constraint.accept(token).map_err(ended_by_grammar)?;
        complete = constraint.progress() == Progress::MustEnd;
    }
    let may_end = task.generated >= request.min_tokens;
    let text = task.text.as_mut().map(|text| text.push(token, may_end));
    let (text, matched) = text.unwrap_or_default();
    let enough = task.generated + 1 >= request.max_tokens || known + Tokens(1) >= max_len;
    let reason = if complete || matched.is_some() {
        Some(FinishReason::Stop)
    } else {
        enough.then_some(FinishReason::Length)
    };
    let end = reason.map(|reason| End { reason, counts: true });
    Ok(Chosen { sampled, text, end })
}

/// Chooses by the sampler within the grammar.
fn sample(task: &mut Task, logits: &mut [f32], known: Tokens) -> Result<Sampled, Failure> {
    // NaN is not above anything.
    if !logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
        return Err(Failure::Step(NO_NUMBERS.into()));
    }
    let shared = task.shared.clone();
    let request = &shared.request;
    // What must not end the text yet, or not at all: not before nothing else is allowed.
    let mut unwanted = Vec::new();
    if task.generated < request.min_tokens {
        unwanted.extend_from_slice(&request.stop_tokens);
    }
    if let Some(constraint) = &task.constraint {
        let ends = constraint.end_tokens().iter();
        unwanted.extend(ends.filter(|end| request.stop_tokens.binary_search(end).is_err()));
    }
    // The model's distribution, if it is asked for and about to be lost.
    let raw = task.sampler.params().logprobs.filter(|_| !unwanted.is_empty());
    let raw = raw.map(|top| (logits.to_vec(), top));
    for stop in unwanted {
        if let Some(logit) = logits.get_mut(stop as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    let mask: Option<&TokenMask> = match &mut task.constraint {
        Some(constraint) => Some(constraint.mask().map_err(ended_by_grammar)?),
        None => None,
    };
    let sampled = task.sampler.sample(logits, known.0, mask);
    let mut sampled = sampled.map_err(|error| Failure::Constraint(error.to_string()))?;
    if let Some((raw, top)) = raw {
        sampled.logprobs = Some(logprobs_of(&raw, sampled.token, top));
    }
    Ok(sampled)
}

fn ended_by_grammar(error: ConstraintError) -> Failure {
    match error {
        ConstraintError::TooComplex { reason } => Failure::TooComplex(reason),
        error => Failure::Constraint(error.to_string()),
    }
}
