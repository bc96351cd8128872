//! An engine over the fake model, driven step by step, checked after every one.

use super::{Faults, Log, PageRunner, expected};
use octavo_engine::{Engine, EngineConfig, Event, Events, Outputs, Request, RequestId, SubmitError};
use octavo_kv::Settings;
use octavo_types::{PageSize, Pages, Timestamp, Tokens};
use std::collections::BTreeMap;

/// More steps than any test needs: an engine that gets nowhere fails instead of going on forever.
const MOST_STEPS: usize = 100_000;

#[derive(Debug)]
pub struct Bench {
    pub engine: Engine,
    pub log: Log,
    pub faults: Faults,
    /// Everything that happened, with the number of the step it happened in.
    pub events: Vec<(usize, RequestId, Event)>,
    pub requests: BTreeMap<RequestId, Request>,
    /// Steps of the engine, those that ran nothing too.
    pub steps: usize,
    /// Microseconds; a step takes a thousand.
    pub now: u64,
}

impl Bench {
    pub fn new(config: EngineConfig, settings: Settings) -> Self {
        Self::with_runner(config, settings, |_| {})
    }

    pub fn with_runner(
        config: EngineConfig,
        settings: Settings,
        change: impl FnOnce(&mut PageRunner),
    ) -> Self {
        let mut runner = PageRunner::new(settings.total, settings.page_size);
        change(&mut runner);
        let (log, faults) = (runner.log.clone(), runner.faults.clone());
        let engine = Engine::new(config, settings, Box::new(runner), None).unwrap();
        Self { engine, log, faults, events: Vec::new(), requests: BTreeMap::new(), steps: 0, now: 0 }
    }

    /// `total` pages of `page_size` tokens, `max_batch` sequences, each as long as the pool allows.
    pub fn small(total: u32, page_size: u32, max_batch: u32) -> Self {
        let settings = Self::pool(total, page_size);
        Self::new(EngineConfig::new(max_batch, Tokens(total * page_size)), settings)
    }

    pub fn pool(total: u32, page_size: u32) -> Settings {
        Settings { page_size: PageSize::new(page_size).unwrap(), ..Settings::new(Pages(total)) }
    }

    pub fn try_send(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        let accepted = self.engine.intake().accept(request.clone())?;
        let id = accepted.id();
        self.engine.submit(accepted);
        self.requests.insert(id, request);
        Ok(id)
    }

    pub fn send(&mut self, request: Request) -> RequestId {
        self.try_send(request).unwrap()
    }

    /// One step; the cache must agree with itself afterwards.
    pub fn step(&mut self) {
        self.now += 1000;
        let mut events = Events::new();
        self.engine.step(Timestamp(self.now), &mut events);
        let step = self.steps;
        self.events.extend(events.into_iter().map(|(id, event)| (step, id, event)));
        self.steps += 1;
        self.engine.cache().check().unwrap();
        assert!(self.engine.cache().counts().add_up(), "{:?}", self.engine.cache().counts());
    }

    /// Steps until nothing is left to do.
    pub fn run(&mut self) {
        while self.engine.has_work() {
            self.step();
            assert!(self.steps < MOST_STEPS, "no end in sight: {:?}", self.engine);
        }
    }

    pub fn run_steps(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    /// Steps until `until` holds.
    pub fn step_until(&mut self, until: impl Fn(&Self) -> bool) {
        while !until(self) {
            assert!(self.engine.has_work() && self.steps < MOST_STEPS, "it never happened");
            self.step();
        }
    }

    pub fn outputs(&self, id: RequestId) -> Outputs {
        let mut outputs = Outputs::default();
        let own = self.events.iter().filter(|(_, of, _)| *of == id);
        let mut last = false;
        for (_, _, event) in own {
            assert!(!last, "{id}: {event:?} came after the last event");
            last = event.is_last();
            outputs.take(event.clone());
        }
        outputs
    }

    pub fn tokens(&self, id: RequestId) -> Vec<u32> {
        self.outputs(id).choices.first().map_or(Vec::new(), |choice| choice.tokens.clone())
    }

    /// Whether its last event has come.
    pub fn ended(&self, id: RequestId) -> bool {
        self.events.iter().any(|(_, of, event)| *of == id && event.is_last())
    }

    /// The step in which its last event came.
    pub fn ended_in(&self, id: RequestId) -> usize {
        let last = |(_, of, event): &&(usize, RequestId, Event)| *of == id && event.is_last();
        self.events.iter().find(last).expect("it has ended").0
    }

    /// The step in which its first event came, which is the first it was in.
    pub fn began_in(&self, id: RequestId) -> usize {
        self.events.iter().find(|(_, of, _)| *of == id).expect("it has begun").0
    }

    /// Every choice of the request has the tokens it would have alone, to its end.
    pub fn assert_right(&self, id: RequestId) {
        let (request, outputs) = (&self.requests[&id], self.outputs(id));
        assert_eq!(outputs.failure, None, "{id}");
        assert!(self.ended(id), "{id} has not ended");
        assert_eq!(outputs.choices.len(), request.choices as usize, "{id}");
        let max_len = self.engine.config().max_len;
        for (choice, output) in (0..).zip(&outputs.choices) {
            assert!(output.finish.is_some(), "{id}, choice {choice}");
            assert_eq!(output.tokens, expected(request, choice, max_len), "{id}, choice {choice}");
        }
    }

    pub fn assert_all_right(&self) {
        self.requests.keys().for_each(|id| self.assert_right(*id));
    }

    /// Nothing is held, nothing waits, nothing is left over.
    pub fn assert_nothing_left(&mut self) {
        assert!(!self.engine.has_work());
        self.step();
        let cache = self.engine.cache();
        assert_eq!(cache.counts().used, Pages::ZERO);
        assert_eq!(cache.sequences().count(), 0);
        assert!(cache.check().unwrap().held_outside.is_empty());
        assert_eq!(self.engine.intake().waiting(), 0, "places in the queue");
        let metrics = self.engine.metrics();
        let gauges = [&metrics.requests_running, &metrics.sequences_running, &metrics.requests_waiting];
        assert_eq!(gauges.map(|gauge| gauge.get()), [0; 3]);
        assert_eq!(metrics.failed_audits.get(), 0);
    }

    pub fn used(&self) -> u32 {
        self.engine.cache().counts().used.0
    }
}
