//! A request as a whole: how far its choices are, and what it took.

use crate::event::{Event, FinishReason, Usage};
use crate::metrics::Metrics;
use crate::task::Task;
use octavo_types::{Timestamp, Tokens};

#[derive(Debug)]
pub(crate) struct Group {
    choices: u32,
    best_of: u32,
    /// Choices that have not ended.
    open: u32,
    arrival: Timestamp,
    first_step: Option<Timestamp>,
    first_token: Option<Timestamp>,
    pub(crate) usage: Usage,
    /// Events of each choice, where the best are chosen at the end.
    held: Vec<Vec<Event>>,
    /// Mean logprob of each choice that has ended.
    scores: Vec<Option<f64>>,
}

impl Group {
    pub(crate) fn new(task: &Task, arrival: Timestamp) -> Self {
        let request = &task.shared.request;
        let (choices, best_of) = (request.choices, request.best_of);
        let chosen_late = best_of > choices;
        Self {
            choices,
            best_of,
            open: best_of,
            arrival,
            first_step: None,
            first_token: None,
            usage: Usage { prompt_tokens: task.shared.prompt_len, ..Usage::default() },
            held: if chosen_late { vec![Vec::new(); best_of as usize] } else { Vec::new() },
            scores: vec![None; best_of as usize],
        }
    }

    /// Its first step is being planned. Whether this is news.
    pub(crate) fn starts(&mut self, now: Timestamp, cached: Tokens) -> bool {
        if self.first_step.is_some() {
            return false;
        }
        self.first_step = Some(now);
        self.usage.queued = now.since(self.arrival);
        self.usage.cached_tokens = cached;
        true
    }

    pub(crate) fn token(&mut self, now: Timestamp, metrics: &Metrics) {
        self.usage.completion_tokens += 1;
        if self.first_token.is_none() {
            self.first_token = Some(now);
            metrics.time_to_first_token.observe_time(now.since(self.arrival));
        }
    }

    /// Passes an event of a choice on, or keeps it until the best are chosen.
    pub(crate) fn tell(&mut self, choice: u32, event: Event, push: &mut dyn FnMut(Event)) {
        match self.held.get_mut(choice as usize) {
            Some(held) => held.push(event),
            None => push(event),
        }
    }

    /// A choice has ended. Whether it was the last.
    pub(crate) fn ends(&mut self, task: &Task) -> bool {
        self.scores[task.choice as usize] = Some(task.logprob / f64::from(task.scored.max(1)));
        self.open -= 1;
        self.open == 0
    }

    /// Choices whose end has not been told. Where the best are chosen at the end, that is all of them.
    pub(crate) fn open_choices(&self) -> Vec<u32> {
        let untold = |choice: &u32| !self.held.is_empty() || self.scores[*choice as usize].is_none();
        (0..self.choices).filter(untold).collect()
    }

    /// The events of the best choices, numbered anew.
    pub(crate) fn best(&mut self) -> Vec<Event> {
        let mut ranked: Vec<u32> = (0..self.best_of).collect();
        let score = |choice: &u32| self.scores[*choice as usize].unwrap_or(f64::NEG_INFINITY);
        ranked.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let mut events = Vec::new();
        for (choice, best) in (0..self.choices).zip(ranked) {
            let Some(held) = self.held.get_mut(best as usize) else { return events };
            events.extend(held.drain(..).map(|event| renumbered(event, choice)));
        }
        events
    }

    /// Everything it took, now that it has ended.
    pub(crate) fn close(&mut self, now: Timestamp, metrics: &Metrics, reason: Option<FinishReason>) -> Usage {
        let first_step = self.first_step.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        if self.first_step.is_none() {
            self.usage.queued = now.since(self.arrival);
        }
        self.usage.prefill = first_token.since(first_step);
        self.usage.decode = now.since(first_token);
        match reason {
            Some(reason) => metrics.finished.count(reason),
            None => metrics.finished.error.add(1),
        }
        metrics.request_ended(&self.usage);
        self.usage
    }
}

fn renumbered(event: Event, choice: u32) -> Event {
    match event {
        Event::Token(token) => Event::Token(crate::event::NewToken { choice, ..token }),
        Event::Finished(end) => Event::Finished(crate::event::Finished { choice, ..end }),
        other => other,
    }
}
