//! The engine on a thread of its own, and the handle everybody else has.

use crate::answer::{Answer, Reply, question};
use crate::engine::{Engine, Events};
use crate::event::{Event, Failure};
use crate::intake::Intake;
use crate::metrics::Metrics;
use crate::report::{AuditReport, CacheReport, PinReport};
use crate::request::{Accepted, Request, RequestId, SubmitError};
use octavo_kv::{PinError, PinId, Prompt};
use octavo_types::{Pages, Timestamp, Tokens};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a request's events go, on the engine's thread: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

enum Command {
    Submit(Box<Accepted>, Sink),
    Cancel(RequestId),
    Report(Reply<CacheReport>),
    Audit(Reply<AuditReport>),
    Pin(Prompt, Reply<Result<(PinId, Tokens), PinError>>),
    Pins(Reply<Vec<PinReport>>),
    Unpin(PinId, Reply<Result<(), PinError>>),
    DropPrefixes(Reply<Pages>),
    /// Ends what runs, or cancels it at the deadline; then the thread ends.
    Stop {
        deadline: Instant,
    },
}

impl Command {
    fn is_question(&self) -> bool {
        !matches!(self, Self::Submit(..) | Self::Cancel(_) | Self::Stop { .. })
    }
}

/// Sends to an engine that runs on its own thread. Clones send to the same.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: Sender<Command>,
    intake: Arc<Intake>,
    metrics: Arc<Metrics>,
    device: Arc<str>,
}

/// A request under way; dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    id: RequestId,
    commands: Sender<Command>,
}

impl Ticket {
    pub fn id(&self) -> RequestId {
        self.id
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // An engine that is gone has nothing to cancel.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

impl EngineHandle {
    /// Moves the engine to a thread of its own. The thread ends after [`stop`](Self::stop), when the last handle and
    /// ticket are gone, or when the device is lost.
    pub fn spawn(engine: Engine) -> (Self, JoinHandle<()>) {
        let (commands, inbox) = channel();
        let (intake, metrics) = (engine.intake().clone(), engine.metrics().clone());
        let device = engine.device().into();
        let thread = std::thread::Builder::new().name("octavo-engine".into());
        let thread =
            thread.spawn(move || Service::new(engine, inbox).run()).expect("a thread can be started");
        (Self { commands, intake, metrics, device }, thread)
    }

    /// Checks a request and queues it. `sink` gets its events until the last one; then it is dropped.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let accepted = self.intake.accept(request)?;
        let id = accepted.id();
        let submit = Command::Submit(Box::new(accepted), sink);
        self.commands.send(submit).map_err(|_| SubmitError::ShuttingDown)?;
        Ok(Ticket { id, commands: self.commands.clone() })
    }

    pub fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
    pub fn device(&self) -> &str {
        &self.device
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer<T> {
        let (reply, answer) = question();
        // An engine that is gone drops the question, and whoever waits is told.
        let _ = self.commands.send(command(reply));
        answer
    }

    /// The cache, page by page.
    pub fn report(&self) -> Answer<CacheReport> {
        self.ask(Command::Report)
    }
    /// Checks that the cache agrees with itself.
    pub fn audit(&self) -> Answer<AuditReport> {
        self.ask(Command::Audit)
    }
    /// Keeps the cached pages of a prompt from eviction; says how many tokens that covers.
    pub fn pin(&self, prompt: Prompt) -> Answer<Result<(PinId, Tokens), PinError>> {
        self.ask(|reply| Command::Pin(prompt, reply))
    }
    /// All pins, the oldest first.
    pub fn pins(&self) -> Answer<Vec<PinReport>> {
        self.ask(Command::Pins)
    }
    pub fn unpin(&self, pin: PinId) -> Answer<Result<(), PinError>> {
        self.ask(|reply| Command::Unpin(pin, reply))
    }
    /// Forgets every cached prefix that nobody uses or pinned; says how many pages that freed.
    pub fn drop_prefixes(&self) -> Answer<Pages> {
        self.ask(Command::DropPrefixes)
    }

    /// Refuses new requests, lets those under way end, and cancels what is left after `within`.
    pub fn stop(&self, within: Duration) {
        self.intake.close();
        let deadline = Instant::now() + within.min(AGES);
        // An engine that is gone has stopped.
        let _ = self.commands.send(Command::Stop { deadline });
    }
}

/// Longer than anybody waits, and no more than clocks can tell.
const AGES: Duration = Duration::from_secs(u32::MAX as u64);

/// What runs on the thread.
struct Service {
    engine: Engine,
    inbox: Receiver<Command>,
    sinks: HashMap<RequestId, Sink>,
    events: Events,
    started: Instant,
    stop_by: Option<Instant>,
}

/// The most questions between two steps: some take as long as a step does, and those who wait for tokens come first.
const QUESTIONS: usize = 4;
/// How long an idle engine sleeps before it looks after itself.
const IDLE: Duration = Duration::from_millis(500);

impl Service {
    fn new(engine: Engine, inbox: Receiver<Command>) -> Self {
        let started = Instant::now();
        Self { engine, inbox, sinks: HashMap::new(), events: Events::new(), started, stop_by: None }
    }

    fn run(mut self) {
        while self.take_commands() {
            if self.stop_by.is_some_and(|deadline| Instant::now() >= deadline) {
                self.engine.fail_all(&mut self.events);
            }
            self.step();
            if self.engine.is_lost() {
                self.engine.fail_all(&mut self.events);
                deliver(&mut self.sinks, &mut self.events, &mut Vec::new());
                break;
            }
        }
        // Whoever was let in just before the door was closed.
        while let Ok(command) = self.inbox.try_recv() {
            if let Command::Submit(_, mut sink) = command {
                sink(Event::Failed(Failure::ShuttingDown));
            }
        }
    }

    /// One step; what the last one brought is delivered while the device computes this one.
    fn step(&mut self) {
        let now = self.now();
        let Self { engine, sinks, events, .. } = self;
        let mut broken = Vec::new();
        let mut tell = |events: &mut Events| deliver(sinks, events, &mut broken);
        engine.step_telling(now, events, &mut tell);
        // Those who are told that they are done find their pages free.
        engine.settle();
        if !engine.has_work() {
            tell(events);
        }
        broken.into_iter().for_each(|id| engine.cancel(id));
    }

    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Whether to go on. Blocks while there is nothing else to do.
    fn take_commands(&mut self) -> bool {
        let mut questions = 0;
        loop {
            if self.engine.has_work() && questions >= QUESTIONS {
                return true;
            }
            let command = if self.engine.has_work() {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(_) => return true,
                }
            } else if self.stop_by.is_some() {
                return false;
            } else {
                match self.inbox.recv_timeout(IDLE) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Timeout) => {
                        self.engine.idle(self.now());
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return false,
                }
            };
            questions += usize::from(command.is_question());
            self.obey(command);
        }
    }

    fn obey(&mut self, command: Command) {
        // An engine that had nothing to do does not know how late it is.
        self.engine.tick(self.now());
        match command {
            Command::Submit(accepted, sink) => {
                self.sinks.insert(accepted.id(), sink);
                self.engine.submit(*accepted);
            }
            Command::Cancel(id) => {
                if let Some(sink) = self.sinks.remove(&id) {
                    let_go(sink);
                    self.engine.cancel(id);
                }
            }
            Command::Report(reply) => reply.give(|| self.engine.report()),
            Command::Audit(reply) => reply.give(|| self.engine.audit()),
            Command::Pin(prompt, reply) => reply.give(|| self.engine.pin(&prompt)),
            Command::Pins(reply) => reply.give(|| self.engine.pins()),
            Command::Unpin(pin, reply) => reply.give(|| self.engine.unpin(pin)),
            Command::DropPrefixes(reply) => reply.give(|| self.engine.drop_prefixes()),
            Command::Stop { deadline } => self.stop_by = Some(deadline),
        }
    }
}

/// Passes events on. A sink that panics loses its request, and nobody else's.
fn deliver(sinks: &mut HashMap<RequestId, Sink>, events: &mut Events, broken: &mut Vec<RequestId>) {
    for (id, event) in events.drain(..) {
        let last = event.is_last();
        let Some(sink) = sinks.get_mut(&id) else { continue };
        let panicked = catch_unwind(AssertUnwindSafe(|| sink(event))).is_err();
        if panicked && !last {
            broken.push(id);
        }
        if last || panicked {
            sinks.remove(&id).into_iter().for_each(let_go);
        }
    }
}

/// A sink that panics when it is dropped harms nobody else either.
fn let_go(sink: Sink) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(sink)));
}
