//! The engine: many requests, one step after another.
//!
//! ```text
//!   submit → waiting ──admit──→ running ──step──→ … ──finish──→ retired
//!               ↑───preempt────────┘
//! ```
//!
//! A step is [`plan`](Engine::plan) (retire, free, budget, admit), commit (lay the batch out), run, post-process.
//! Nothing here reads a clock or starts a thread but to time the parts of a step and what grammars take: whoever drives
//! the engine says what time it is.

use crate::admit::Blocked;
use crate::batch::{Batch, Wanted};
use crate::config::{ConfigError, EngineConfig};
use crate::event::Event;
use crate::group::Group;
use crate::intake::Intake;
use crate::metrics::Metrics;
use crate::pace::Pace;
use crate::queue::{Queue, Waiting};
use crate::report::AuditReport;
use crate::request::{Accepted, RequestId};
use crate::runner::{Logits, Runner};
use crate::task::{Running, Task};
use crate::zeroing::{self, Freed};
use octavo_kv::{KvCache, Settings};
use octavo_text::Tokenizer;
use octavo_types::{SeqId, Timestamp, Tokens};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events of a step, in order.
pub type Events = Vec<(RequestId, Event)>;

/// Invariants: `running` is sorted by order and holds at most `max_batch` tasks; a request with a task in `running` or
/// `queue` has a group, and no other request has one, but for finished tasks that wait to be retired.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) intake: Arc<Intake>,
    pub(crate) metrics: Arc<Metrics>,
    /// None where only token ids go in and out.
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) cache: KvCache,
    /// Where pages are zeroed.
    pub(crate) freed: Option<Freed>,
    pub(crate) runner: Box<dyn Runner>,
    pub(crate) queue: Queue,
    pub(crate) running: Vec<Running>,
    pub(crate) groups: HashMap<RequestId, Group>,
    /// Requests to be cancelled when the next step is planned.
    pub(crate) cancelled: Vec<RequestId>,
    pub(crate) batch: Batch,
    /// One a span of the open step.
    pub(crate) wanted: Vec<Wanted>,
    /// Prompt tokens in the open step.
    pub(crate) prompt_tokens: Tokens,
    pub(crate) logits: Logits,
    /// Tokens chosen in this step, for sequences that go on.
    pub(crate) chosen: Vec<(SeqId, u32)>,
    pub(crate) pace: Pace,
    /// Why the first in the queue was not admitted when it was last looked at.
    pub(crate) blocked_with: Option<Blocked>,
    /// Whether the first in the last step found no room for its prompt.
    pub(crate) first_waits: bool,
    /// Whether a static batch takes no more.
    pub(crate) batch_closed: bool,
    pub(crate) now: Timestamp,
    pub(crate) last_audit: Option<AuditReport>,
    pub(crate) steps_at_audit: u64,
    pub(crate) is_lost: bool,
    published: Option<Timestamp>,
}

/// What a step did, and how long its parts took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Sequences in it.
    pub sequences: usize,
    /// Tokens computed, and how many of them were of prompts.
    pub tokens: usize,
    pub prompt_tokens: Tokens,
    /// Plan and commit.
    pub plan: Duration,
    pub run: Duration,
    /// Publishing what was computed, adding what was chosen.
    pub publish: Duration,
    /// Choosing tokens, their text, stop rules, events.
    pub sample: Duration,
}

impl Engine {
    /// `settings` must be those the runner has pages for.
    pub fn new(
        config: EngineConfig,
        settings: Settings,
        runner: Box<dyn Runner>,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, ConfigError> {
        config.check(&settings)?;
        let freed = config.zero_freed.then(Freed::default);
        let cache = zeroing::cache(settings.clone(), freed.as_ref())?;
        let vocab = runner.vocab();
        let intake = Intake::new(settings, config.max_len, config.max_batch, vocab, config.max_waiting);
        Ok(Self {
            intake: Arc::new(intake),
            metrics: Arc::default(),
            tokenizer,
            cache,
            freed,
            runner,
            queue: Queue::default(),
            running: Vec::new(),
            groups: HashMap::new(),
            cancelled: Vec::new(),
            batch: Batch::default(),
            wanted: Vec::new(),
            prompt_tokens: Tokens::ZERO,
            logits: Logits::default(),
            chosen: Vec::new(),
            pace: Pace::default(),
            blocked_with: None,
            first_waits: false,
            batch_closed: false,
            now: Timestamp::default(),
            last_audit: None,
            steps_at_audit: 0,
            is_lost: false,
            published: None,
            config,
        })
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }
    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }
    pub fn device(&self) -> String {
        self.runner.device()
    }

    /// Says what time it is. Time never goes back: an earlier one is ignored.
    pub fn tick(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.cache.tick(self.now);
    }

    /// Queues a request, which arrives at the time last told. Its events come out of the steps that follow.
    pub fn submit(&mut self, accepted: Accepted) {
        let arrival = self.now;
        let EngineConfig { aging, time_limit, .. } = self.config;
        let Accepted { id, request, prompt, place } = accepted;
        let tokenizer = self.tokenizer.as_ref();
        let task = Box::new(Task::new(id, request, prompt.len(), arrival, tokenizer, aging, time_limit));
        let request = &task.shared.request;
        self.metrics.request_prompt_tokens.observe(f64::from(task.shared.prompt_len.0));
        self.metrics.request_choices.observe(f64::from(request.choices));
        self.metrics.request_max_tokens.observe(f64::from(request.max_tokens));
        self.groups.insert(task.id(), Group::new(&task, arrival));
        self.queue.push(Waiting { task, prompt, place: Some(place) });
    }

    /// Ends a request when the next step is planned. One that has ended already is left alone.
    pub fn cancel(&mut self, id: RequestId) {
        if self.groups.contains_key(&id) {
            self.cancelled.push(id);
        }
    }

    /// Whether the device is gone: no step will run again.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether a step would do anything.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || !self.queue.is_empty()
    }

    /// One step. What happened is added to `events`.
    pub fn step(&mut self, now: Timestamp, events: &mut Events) -> StepReport {
        self.step_telling(now, events, &mut |_| {})
    }

    /// The same, and what can be told before the step has run is: `tell` gets what `events` held and what planning
    /// added while the device computes. Where it computes nothing, or not by itself, that is before.
    pub fn step_telling(
        &mut self,
        now: Timestamp,
        events: &mut Events,
        tell: &mut dyn FnMut(&mut Events),
    ) -> StepReport {
        let began = Instant::now();
        self.tick(now);
        self.plan(events);
        let mut report = StepReport::default();
        if !self.cache.step().is_empty() {
            self.commit();
            report.sequences = self.wanted.len();
            report.tokens = self.batch.rows().tokens.len();
            report.prompt_tokens = self.prompt_tokens;
            report.plan = began.elapsed();
            let started = self.start();
            tell(events);
            let ran = started.and_then(|()| self.wait());
            report.run = began.elapsed() - report.plan;
            self.now = Timestamp(self.now.0.saturating_add(began.elapsed().as_micros() as u64));
            let mark = Instant::now();
            match ran {
                Ok(()) => {
                    self.cache.complete();
                    report.publish = mark.elapsed();
                    self.post_process(events);
                    report.sample = mark.elapsed() - report.publish;
                    self.add_chosen(events);
                    report.publish = mark.elapsed() - report.sample;
                }
                Err(broken) => self.recover(&broken, events),
            }
            self.note(&report);
        } else {
            tell(events);
        }
        self.publish();
        report
    }

    /// Lays the planned step out for the runner.
    fn commit(&mut self) {
        let wanted = &self.wanted;
        self.batch.fill(&self.cache, |span| wanted[span]);
    }

    fn note(&mut self, report: &StepReport) {
        let metrics = &self.metrics;
        metrics.steps.add(1);
        metrics.step_tokens.observe(report.tokens as f64);
        metrics.plan_time.observe_time(report.plan);
        metrics.run_time.observe_time(report.run);
        metrics.post_time.observe_time(report.publish + report.sample);
        if self.prompt_tokens > Tokens::ZERO {
            metrics.chunk.observe(f64::from(self.prompt_tokens.0));
        }
        self.pace.note(self.prompt_tokens, report.plan + report.run + report.publish + report.sample);
    }

    /// Shows the state of things to whoever reads the metrics, ten times a second at most.
    pub(crate) fn publish(&mut self) {
        let due = self.published.is_none_or(|at| self.now.since(at) >= Duration::from_millis(100));
        if due || !self.has_work() {
            self.show();
        }
    }

    /// The same, now.
    pub(crate) fn show(&mut self) {
        self.published = Some(self.now);
        let ids = self.running.iter().filter(|running| running.finished.is_none());
        let mut ids: Vec<RequestId> = ids.map(|running| running.task.id()).collect();
        self.metrics.sequences_running.set(ids.len() as u64);
        ids.sort_unstable();
        ids.dedup();
        self.metrics.requests_running.set(ids.len() as u64);
        let waiting = self.queue.requests().filter(|id| ids.binary_search(id).is_err());
        let mut waiting: Vec<RequestId> = waiting.collect();
        waiting.dedup();
        self.metrics.requests_waiting.set(waiting.len() as u64);
        self.metrics.note_pages(&self.cache.take_page_times());
        self.metrics.set_cache(self.cache.snapshot());
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device())
            .field("running", &self.running.len())
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}
