//! Decode steps that are recorded once and replayed.
//!
//! A step in which every sequence has one row and gets one token is filled up to the next of a ladder of sizes.
//! The first of a kind runs twice: launched, which compiles and allocates whatever it needs and notes which inputs its
//! operations ask for, and then recorded, with those inputs at fixed places of the [`Stage`]. Later steps of that kind
//! write their inputs into the stage, copy it, and replay. A recording holds addresses: when anything it may use has
//! moved it is dropped.
//!
//! What is replayed reads the positions before a row's own without waiting for what the step stores. A step in which one
//! row sees what another stores is therefore launched: see [`Filling`].

mod filling;
mod inputs;
mod plans;

use crate::arena::CudaArena;
use crate::backend::Cuda;
use crate::device::{Processors, Recorded};
use crate::memory::{Memory, Plain};
use crate::plan::{Plan, PlanKey, Shape};
use crate::stage::{Place, Stage, places};
use filling::Filling;
use inputs::Inputs;
use octavo_backend::{BackendError, Pass, Step, TableView};
use plans::Plans;

/// Rows of recorded steps: these, then multiples of the last step up to [`LARGEST`].
const SMALL: [usize; 7] = [1, 2, 4, 8, 16, 24, 32];
const EVERY: usize = 16;
const LARGEST: usize = 256;
/// Where a row that fills a step up is stored: as in `cu/rotate.cu`.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The size that a step of so many rows is filled up to; `None` where it is not recorded.
pub(crate) fn rung(rows: usize) -> Option<usize> {
    let small = SMALL.into_iter().find(|size| *size >= rows);
    small.or(Some(rows.next_multiple_of(EVERY))).filter(|size| rows > 0 && *size <= LARGEST)
}

/// Something a recorded step reads that changes from step to step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Tokens,
    Positions,
    Choices,
    /// The pages of all layer groups, one after another.
    Pages,
    /// Of a layer group.
    Slots(usize),
    /// Of attention over a layer group.
    Work(usize, PlanKey),
}

impl Need {
    /// Whether it grows with the sequences.
    fn grows(self) -> bool {
        matches!(self, Self::Pages | Self::Work(..))
    }
}

/// What a recording is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kind {
    model: u64,
    arena: u64,
    rows: usize,
    /// Of each attention, in the order of [`Known::plans`]; they depend on the lengths.
    shapes: Vec<Shape>,
}

#[derive(Debug)]
struct Recording {
    kind: Kind,
    inputs: Vec<(Need, Place)>,
    /// Of all inputs.
    bytes: usize,
    replay: Box<dyn Recorded>,
}

/// What a model's layers ask for, noted when it first ran.
#[derive(Debug)]
struct Known {
    model: u64,
    plans: Vec<(usize, PlanKey)>,
}

/// The step whose operations are being called.
#[derive(Debug)]
struct Current {
    kind: Kind,
    /// Addresses by which an operation's tables are told apart.
    groups: Vec<usize>,
    /// With their bytes, in the order in which they were first asked for.
    needs: Vec<(Need, usize)>,
    /// Once it is recorded.
    inputs: Option<Vec<(Need, Place)>>,
}

#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Every step is launched operation by operation.
    off: bool,
    filling: Filling,
    stage: Stage,
    recordings: Vec<Recording>,
    known: Vec<Known>,
    current: Option<Current>,
    /// A step is under way that is not recorded, as others are.
    passes_once: bool,
    /// Nothing is run, and so nothing recorded.
    pub(crate) rehearsing: bool,
    /// Of the step that may come next, made while the last one ran.
    ahead: Option<Plans>,
    /// How often something that recordings use had moved when they were made.
    moves: u64,
    replays: u64,
    /// The recording that was replayed last.
    last: Option<usize>,
}

/// An input of an operation on the device.
pub(crate) struct Input {
    pub(crate) address: u64,
    pub(crate) count: usize,
    _own: Option<Memory>,
}

impl Steps {
    pub(crate) fn new(graphs: bool) -> Self {
        Self { off: !graphs, ..Self::default() }
    }

    /// The device has done everything that was asked before.
    pub(crate) fn waited(&mut self) {
        self.stage.in_flight = false;
    }

    pub(crate) fn replays(&self) -> (u64, usize) {
        let last = self.last.and_then(|last| self.recordings.get(last));
        (self.replays, last.map_or(0, |recording| recording.replay.kernels()))
    }

    /// Drops the recordings.
    pub(crate) fn forget(&mut self) {
        self.recordings.clear();
        self.last = None;
    }

    /// What was replayed last, once more.
    pub(crate) fn replay_again(&self) -> Result<(), BackendError> {
        let last = self.last.and_then(|last| self.recordings.get(last));
        last.map_or(Ok(()), |recording| recording.replay.replay())
    }

    /// Whether no row of one token sees what another one stores. Looking takes long where there are many pages.
    fn is_apart(&mut self, step: &Step<'_, CudaArena>) -> bool {
        let is_known = step.rows.apart;
        debug_assert!(!is_known || !self.filling.is_seen_in(step), "a page that another sequence fills");
        is_known || !self.filling.is_seen_in(step)
    }

    fn plans_of(&self, model: u64) -> Option<&[(usize, PlanKey)]> {
        self.known.iter().find(|known| known.model == model).map(|known| &known.plans[..])
    }

    /// The plans of a step and what kind it is, if the model is known.
    fn plan(
        &mut self,
        processors: Processors,
        step: &Step<'_, CudaArena>,
        rows: usize,
    ) -> Option<(Plans, Kind)> {
        let ahead = self.ahead.take();
        let known = self.plans_of(step.model)?;
        let (size, spans) = (step.arena.layout().page_size, step.rows.spans);
        let keys = || known.iter().map(|(_, key)| *key);
        let plans = ahead
            .filter(|ahead| ahead.are_for(size, spans, keys()))
            .unwrap_or_else(|| Plans::new(processors, size, spans.to_vec(), keys()));
        let shapes = keys().flat_map(|key| plans.of(key).shapes()).collect();
        let kind = Kind { model: step.model, arena: step.arena.address(), rows, shapes };
        Some((plans, kind))
    }
}

impl Cuda {
    /// Rows of the buffers of the step under way that has `rows` of its own.
    pub(crate) fn padded(&self, rows: usize) -> usize {
        self.steps.borrow().current.as_ref().map_or(rows, |current| current.kind.rows)
    }

    /// An operation reads so many bytes of this. Where the step is being recorded: the address at which they will be.
    pub(crate) fn staged(&self, need: Need, bytes: usize) -> Option<u64> {
        let mut steps = self.steps.borrow_mut();
        let Steps { stage, current, .. } = &mut *steps;
        let current = current.as_mut()?;
        if let Some(inputs) = &current.inputs {
            let (_, place) = inputs.iter().find(|(other, _)| *other == need).expect("asked for before");
            return Some(stage.address(*place));
        }
        if !current.needs.iter().any(|(other, _)| *other == need) {
            current.needs.push((need, bytes));
        }
        None
    }

    /// Where an operation finds `values`, which are all rows' where the step is recorded.
    pub(crate) fn input<T: Plain>(
        &self,
        need: Need,
        rows: usize,
        values: &[T],
    ) -> Result<Input, BackendError> {
        match self.staged(need, rows * size_of::<T>()) {
            Some(address) => Ok(Input { address, count: rows, _own: None }),
            None => {
                let own = Memory::of(&self.device, values)?;
                Ok(Input { address: own.address(), count: values.len(), _own: Some(own) })
            }
        }
    }

    /// The same for attention, whose launch depends on the lengths.
    pub(crate) fn staged_work(&self, group: Option<usize>, key: PlanKey, plan: &Plan) -> Option<u64> {
        let [launch] = &plan.launches[..] else { return None };
        let need = Need::Work(group?, key);
        let mut steps = self.steps.borrow_mut();
        if let Some(current) = steps.current.as_mut().filter(|current| current.inputs.is_none())
            && !current.needs.iter().any(|(other, _)| *other == need)
        {
            current.kind.shapes.push(launch.shape);
        }
        drop(steps);
        self.staged(need, size_of_val(&launch.items[..]))
    }

    /// The layer group of the step under way that has these tables.
    pub(crate) fn group_of(&self, tables: &[TableView<'_>]) -> Option<usize> {
        let steps = self.steps.borrow();
        steps.current.as_ref()?.groups.iter().position(|group| *group == tables.as_ptr().addr())
    }

    /// How many rows a step is filled up to, if it is one that is recorded.
    pub(crate) fn recorded_rows(&self, step: &Step<'_, CudaArena>) -> Option<usize> {
        let decodes = step.rows.spans.iter().all(|span| span.rows == 1);
        let one_token_each = step.choices.len() == step.rows.tokens.len();
        let mut steps = self.steps.borrow_mut();
        let may_be = decodes && one_token_each && !steps.off;
        rung(step.rows.tokens.len()).filter(|_| may_be && steps.is_apart(step))
    }

    pub(crate) fn begin_step(&self, step: &Step<'_, CudaArena>) -> Result<Pass, BackendError> {
        let rows = self.recorded_rows(step);
        let mut steps = self.steps.borrow_mut();
        // A step that broke off while it was recorded.
        if steps.current.take().is_some_and(|current| current.inputs.is_some()) {
            let _ = self.device.recorded();
        }
        steps.passes_once = rows.is_none() && !steps.off;
        drop(steps);
        let Some(rows) = rows else { return Ok(Pass::Run) };
        self.drop_stale()?;
        if self.replay(step, rows)? {
            return Ok(Pass::Done);
        }
        let kind = Kind { model: step.model, arena: step.arena.address(), rows, shapes: Vec::new() };
        let groups = step.tables.iter().map(|tables| tables.as_ptr().addr()).collect();
        let pages =
            step.tables.iter().flat_map(|tables| *tables).map(|table| table.pages.len()).sum::<usize>();
        let needs = vec![(Need::Pages, pages * size_of::<u32>())];
        self.steps.borrow_mut().current = Some(Current { kind, groups, needs, inputs: None });
        Ok(Pass::Run)
    }

    /// Recordings hold addresses: those made before anything moved are dropped.
    fn drop_stale(&self) -> Result<(), BackendError> {
        let moves = self.moves();
        let mut steps = self.steps.borrow_mut();
        if steps.stage.in_flight {
            self.device.wait()?;
            steps.waited();
        }
        if steps.moves != moves {
            steps.forget();
            steps.moves = moves;
        }
        Ok(())
    }

    fn moves(&self) -> u64 {
        self.device.moves() + self.scratch.borrow().moves()
    }

    /// Whether there was a recording.
    fn replay(&self, step: &Step<'_, CudaArena>, rows: usize) -> Result<bool, BackendError> {
        let Some((plans, kind)) = self.steps.borrow_mut().plan(self.device.processors(), step, rows) else {
            return Ok(false);
        };
        for (key, plan) in plans.all() {
            self.scratch.borrow_mut().reserve(&self.device, plan.room(key.kv_heads, key.head_dim))?;
        }
        self.drop_stale()?;
        let inputs = Inputs::new(step, rows, &plans);
        let mut steps = self.steps.borrow_mut();
        let Steps { stage, recordings, replays, last, ahead, .. } = &mut *steps;
        let Some(at) = recordings.iter().position(|recording| recording.kind == kind) else {
            return Ok(false);
        };
        let recording = &recordings[at];
        if recording.inputs.iter().any(|(need, place)| inputs.bytes(*need) > place.capacity) {
            recordings.remove(at);
            *last = None;
            return Ok(false);
        }
        for (need, place) in &recording.inputs {
            inputs.write(*need, &mut stage.at(*place));
        }
        stage.send(&*self.device, recording.bytes)?;
        recording.replay.replay()?;
        *replays += 1;
        *last = Some(at);
        // The device is at work, and its tokens are not waited for yet.
        *ahead = Some(plans.next());
        Ok(true)
    }

    /// Whether the step under way is one of rows that hardly come again: a prompt's, beside others or not.
    pub(crate) fn passes_once(&self) -> bool {
        self.steps.borrow().passes_once
    }

    pub(crate) fn end_pass(&self, ran: Result<(), BackendError>) -> Result<Pass, BackendError> {
        self.steps.borrow_mut().passes_once = false;
        let Some(mut current) = self.steps.borrow_mut().current.take() else {
            return ran.map(|()| Pass::Done);
        };
        if current.inputs.is_some() {
            return self.keep(current, ran);
        }
        ran?;
        if self.steps.borrow().rehearsing {
            return Ok(Pass::Done);
        }
        let capacity = |(need, bytes): &(Need, usize)| if need.grows() { 2 * bytes } else { *bytes };
        let (places, bytes) = places(current.needs.iter().map(capacity));
        self.steps.borrow_mut().stage.reserve(&self.device, bytes)?;
        self.drop_stale()?;
        let needs = current.needs.iter().map(|(need, _)| *need);
        current.inputs = Some(needs.zip(places).collect());
        self.steps.borrow_mut().current = Some(current);
        self.device.record()?;
        Ok(Pass::Run)
    }

    /// What was recorded serves later steps; the results of this one were computed before.
    fn keep(&self, current: Current, ran: Result<(), BackendError>) -> Result<Pass, BackendError> {
        let recorded = self.device.recorded();
        ran?;
        let replay = recorded?;
        let Current { kind, inputs, .. } = current;
        let inputs = inputs.expect("it was recorded");
        let bytes = inputs.iter().map(|(_, place)| place.at + place.capacity).max().unwrap_or(0);
        let mut steps = self.steps.borrow_mut();
        if steps.plans_of(kind.model).is_none() {
            let plan = |(need, _): &(Need, Place)| match need {
                Need::Work(group, key) => Some((*group, *key)),
                _ => None,
            };
            steps.known.push(Known { model: kind.model, plans: inputs.iter().filter_map(plan).collect() });
        }
        steps.recordings.push(Recording { kind, inputs, bytes, replay });
        Ok(Pass::Done)
    }
}

#[cfg(test)]
mod tests;
