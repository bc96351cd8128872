//! When something goes wrong: only those concerned end, and no page is lost.

use crate::engine::{Engine, Events};
use crate::event::{Event, Failure, FinishReason, Finished};
use crate::report::AuditReport;
use crate::request::RequestId;
use crate::zeroing;
use octavo_backend::BackendError;
use octavo_kv::Scrub as _;
use octavo_types::{PageId, Timestamp};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Why a step did not run to its end.
pub(crate) struct Broken {
    pub(crate) reason: String,
    /// No later one will.
    is_lost: bool,
}

impl Broken {
    fn step(reason: String) -> Self {
        Self { reason, is_lost: false }
    }
}

/// A panic is an error like any other.
fn caught(run: impl FnOnce() -> Result<(), BackendError>) -> Result<(), Broken> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(ran) => ran.map_err(|error| Broken {
            is_lost: matches!(error, BackendError::Lost(_)),
            reason: error.to_string(),
        }),
        Err(panic) => Err(Broken::step(format!("panic: {}", words(&*panic)))),
    }
}

impl Engine {
    /// Starts the step.
    pub(crate) fn start(&mut self) -> Result<(), Broken> {
        self.zero_freed()?;
        let (runner, batch) = (&mut self.runner, &self.batch);
        caught(|| runner.start(batch))
    }

    /// Nobody has used them since: those of the open step are not in use yet. What could not be zeroed is tried again.
    pub(crate) fn zero_freed(&mut self) -> Result<(), Broken> {
        let Some(freed) = &self.freed else { return Ok(()) };
        let (runner, pages) = (&mut self.runner, freed.take());
        if pages.is_empty() {
            return Ok(());
        }
        caught(|| runner.zero(&pages)).inspect_err(|_| freed.zero(&pages))
    }

    /// Waits for what was started.
    pub(crate) fn wait(&mut self) -> Result<(), Broken> {
        let (runner, batch, logits) = (&mut self.runner, &self.batch, &mut self.logits);
        caught(|| runner.finish(batch, logits))?;
        let (found, wanted) = (self.logits.rows(), self.batch.wanted().len());
        if found != wanted {
            let reason = format!("the runner returned {found} rows of logits where {wanted} were wanted");
            return Err(Broken::step(reason));
        }
        Ok(())
    }

    /// The step failed: the requests in it fail, everything else goes on as if it had not been, unless no other step can.
    pub(crate) fn recover(&mut self, broken: &Broken, events: &mut Events) {
        let Broken { reason, is_lost } = broken;
        tracing::error!(reason, spans = self.wanted.len(), "a step failed");
        if *is_lost {
            self.is_lost = true;
            self.intake.close();
        }
        self.metrics.failed_steps.add(1);
        self.cache.fail();
        let concerned = self.running.iter().filter(|running| running.span.is_some());
        let concerned: Vec<RequestId> = concerned.map(|running| running.task.id()).collect();
        for id in concerned {
            self.fail_request(id, Failure::Step(reason.as_str().into()), events);
        }
        if self.audit().problem.is_some() {
            self.replace_cache(events);
        }
    }

    /// Ends a request in all its choices, with its reason as the last event.
    pub(crate) fn fail_request(&mut self, id: RequestId, failure: Failure, events: &mut Events) {
        self.drop_sequences(id);
        if let Some(mut group) = self.groups.remove(&id) {
            group.close(self.now, &self.metrics, None);
            events.push((id, Event::Failed(failure)));
        }
    }

    /// As failing, but because it was asked for.
    pub(crate) fn end_cancelled(&mut self, id: RequestId, events: &mut Events) {
        self.drop_sequences(id);
        let Some(mut group) = self.groups.remove(&id) else { return };
        let reason = FinishReason::Cancelled;
        for choice in group.open_choices() {
            let end = Finished { choice, reason, text: String::new(), matched: None };
            events.push((id, Event::Finished(end)));
        }
        let usage = group.close(self.now, &self.metrics, Some(reason));
        events.push((id, Event::Done(usage)));
    }

    /// Frees what a request holds. A sequence that is in the open step ends when the next is planned.
    fn drop_sequences(&mut self, id: RequestId) {
        self.queue.remove(id);
        self.blocked_with = None;
        let cache = &mut self.cache;
        self.running.retain_mut(|running| {
            if running.task.id() != id {
                return true;
            }
            if cache.free(running.seq).is_ok() {
                return false;
            }
            running.finished = Some(FinishReason::Cancelled);
            true
        });
    }

    /// Ends every request, because the engine stops.
    pub fn fail_all(&mut self, events: &mut Events) {
        let mut ids: Vec<RequestId> = self.groups.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.fail_request(id, Failure::ShuttingDown, events);
        }
    }

    pub(crate) fn limit_of(&self, id: RequestId) -> Duration {
        let running = self.running.iter().map(|running| &running.task.shared);
        let waiting = self.queue.tasks().map(|task| &task.shared);
        let request = running.chain(waiting).find(|shared| shared.id == id).map(|shared| &shared.request);
        request.and_then(|request| request.time_limit).or(self.config.time_limit).unwrap_or_default()
    }

    /// Goes through the cache and remembers what it found.
    pub fn audit(&mut self) -> AuditReport {
        let problem = self.cache.check().err().map(|error| error.to_string());
        if let Some(problem) = &problem {
            tracing::error!(problem, "the audit of the cache failed");
            self.metrics.failed_audits.add(1);
        }
        let report = AuditReport { at: self.now, problem };
        self.steps_at_audit = self.metrics.steps.get();
        self.last_audit = Some(report.clone());
        report
    }

    /// Nothing runs: a good time to look after things, and to show that nothing runs.
    pub fn idle(&mut self, now: Timestamp) {
        self.tick(now);
        if self.metrics.steps.get() != self.steps_at_audit && self.audit().problem.is_some() {
            self.replace_cache(&mut Vec::new());
        }
        if let Err(broken) = self.zero_freed() {
            tracing::error!(
                reason = broken.reason,
                "freed pages could not be zeroed; it is tried again before the next step"
            );
        }
        self.show();
    }

    /// A cache that disagrees with itself is not used any further: an empty one takes its place.
    fn replace_cache(&mut self, events: &mut Events) {
        tracing::error!("the cache is replaced by an empty one; all that ran is ended");
        let mut ids: Vec<RequestId> = self.running.iter().map(|running| running.task.id()).collect();
        ids.dedup();
        self.running.clear();
        for id in ids {
            let reason = "the cache was found inconsistent and was replaced";
            self.fail_request(id, Failure::Step(reason.into()), events);
        }
        let settings = self.cache.settings().clone();
        if let Some(freed) = &self.freed {
            freed.zero(&(0..settings.total.0).map(PageId).collect::<Vec<_>>());
        }
        self.cache = zeroing::cache(settings, self.freed.as_ref()).expect("these settings made the last one");
    }
}
