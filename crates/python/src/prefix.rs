//! The cache that knows tokens: shared prefixes, forks, copy-on-write, eviction.

use crate::arena::{self, Arena, SharedArena};
use crate::errors::{self, runtime, value};
use crate::ints::{Ints, count, positive, same_length, tokens};
use crate::manager::padded;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArray3, PyReadonlyArray3};
use octavo_kv::{
    AdmitError, AppendError, Claim, ForkError, Hit, KvCache, PinError, PinId, Prompt, ReleaseError, Reuse,
    ScheduleError, Scope, Settings, Stop,
};
use octavo_types::{Bytes, GroupId, PageSize, Pages, SeqId, Timestamp, Tokens};
use pyo3::exceptions::{PyIndexError, PyKeyError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

struct State {
    cache: KvCache,
    started: Instant,
    /// Of the step's copies, those that are made.
    copied: usize,
    /// Whether tokens are scheduled.
    open: bool,
}

/// Below `octavo.kv_cache.PrefixCache`.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Prefixes {
    state: Mutex<State>,
    arena: Arc<SharedArena>,
    page_size: PageSize,
}

/// Tokens found, of these copied, and why there are no more.
type Found = (u32, u32, String);
/// Sequences, first positions, and every token's slot, one sequence after another.
type Scheduled<'py> = (Vec<i64>, Vec<u32>, Vec<u32>, Bound<'py, PyArray1<i32>>);

impl State {
    fn tick(&mut self) {
        let passed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.cache.tick(Timestamp(passed));
    }

    /// Makes the copies that were planned since the last call. What is copied from is full and read only, or shared
    /// and left alone by whoever would write to it, so that it may be done before the step is whole.
    fn copy(&mut self, arena: &SharedArena) {
        let copies = &self.cache.step().copies()[self.copied..];
        let copies: Vec<_> = copies.iter().map(|c| (c.from, c.to, c.slots.as_usize())).collect();
        self.copied += copies.len();
        if !copies.is_empty() {
            octavo_cpu::copy_pages(&mut arena.write(), &copies);
        }
    }

    fn slots(&self, seq: SeqId, start: Tokens, n: Tokens, out: &mut Vec<i32>) -> PyResult<()> {
        let size = self.cache.settings().page_size;
        let table = self.cache.sequence(seq).map_err(unknown)?.table(GroupId(0));
        let slots = start.checked_add(n).and_then(|end| table.slots(start..end, size)).ok_or_else(|| {
            let room = u64::from(table.end().0) * u64::from(size.tokens().0);
            PyIndexError::new_err(format!(
                "positions {} to {} of {seq} have no block: its blocks hold {room} tokens",
                start.0,
                u64::from(start.0) + u64::from(n.0)
            ))
        })?;
        out.extend(slots.iter().flat_map(|range| range.slots(size)).map(|slot| slot.0 as i32));
        Ok(())
    }
}

impl Prefixes {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        state.tick();
        state
    }

    fn lock_detached(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.tick();
        state
    }

    fn prompt(&self, tokens: &Ints, salt: &[u8], adapter: &[u8]) -> PyResult<Prompt> {
        let tokens = tokens.0.iter().map(token).collect::<PyResult<Vec<u32>>>()?;
        Prompt::new(tokens, Scope::new(salt, adapter), self.page_size).map_err(value)
    }
}

#[pymethods]
impl Prefixes {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "a cache has as many settings")]
    fn new(
        num_blocks: i64,
        block_size: i64,
        num_layers: i64,
        num_kv_heads: i64,
        head_dim: i64,
        dtype: &str,
        policy: &str,
        reserve: i64,
        sequence_limit: Option<i64>,
        cached_limit: Option<i64>,
        pin_quota: Option<i64>,
    ) -> PyResult<Self> {
        let spec = arena::spec(block_size, num_layers, num_kv_heads, head_dim, dtype)?;
        let page_size = spec.page_size();
        let total = arena::blocks(num_blocks, page_size)?;
        let defaults =
            Settings::for_model(&spec, Bytes(u64::from(total.0).saturating_mul(spec.page_bytes().0)));
        let pages = |name, n: Option<i64>| n.map(|n| count(name, n).map(Pages)).transpose();
        let settings = Settings {
            total,
            policy: policy.parse().map_err(value)?,
            reserve: Pages(count("reserve", reserve)?),
            sequence_limit: pages("sequence_limit", sequence_limit)?,
            cached_limit: pages("cached_limit", cached_limit)?,
            pin_quota: pages("pin_quota", pin_quota)?.unwrap_or(defaults.pin_quota),
            ..defaults
        };
        let arena = SharedArena::new(&spec, total)?;
        let cache = KvCache::new(settings).map_err(value)?;
        let state = State { cache, started: Instant::now(), copied: 0, open: false };
        Ok(Self { state: Mutex::new(state), arena, page_size })
    }

    #[getter]
    fn arena(&self) -> Arena {
        Arena(self.arena.clone())
    }

    fn lookup(&self, py: Python<'_>, tokens: Ints, salt: &[u8], adapter: &[u8]) -> PyResult<Found> {
        let prompt = py.detach(|| self.prompt(&tokens, salt, adapter))?;
        Ok(found(&self.lock(py).cache.lookup(&prompt)))
    }

    fn admit(
        &self,
        py: Python<'_>,
        tokens: Ints,
        salt: &[u8],
        adapter: &[u8],
        reuse: bool,
    ) -> PyResult<(u64, Found)> {
        let reuse = if reuse { Reuse::Longest } else { Reuse::Nothing };
        py.detach(|| {
            let prompt = self.prompt(&tokens, salt, adapter)?;
            let mut state = self.lock_detached();
            let (seq, hit) = state.cache.admit(prompt, reuse).map_err(admit_error)?;
            state.copy(&self.arena);
            Ok((seq.0, found(&hit)))
        })
    }

    fn append(&self, py: Python<'_>, seq_id: i64, tokens: Ints) -> PyResult<()> {
        let tokens = tokens.0.iter().map(token).collect::<PyResult<Vec<u32>>>()?;
        let (seq, mut state) = (seq(seq_id)?, self.lock(py));
        tokens.into_iter().try_for_each(|token| state.cache.append(seq, token)).map_err(append_error)
    }

    /// All sequences or none. A count of -1 stands for everything that is not computed yet.
    fn schedule<'py>(
        &self,
        py: Python<'py>,
        seq_ids: Vec<i64>,
        counts: Vec<i64>,
        running: bool,
    ) -> PyResult<Scheduled<'py>> {
        same_length([("sequences", seq_ids.len()), ("counts", counts.len())])?;
        let claim = if running { Claim::Running } else { Claim::New };
        let Planned { starts, counts, slots } = py.detach(|| {
            let mut state = self.lock_detached();
            if state.open {
                return Err(runtime("a step is open already: complete() or fail() it first"));
            }
            let planned = plan(&mut state, &seq_ids, &counts, claim);
            if planned.is_ok() {
                state.open = true;
                state.copy(&self.arena);
            } else if !state.cache.step().spans().is_empty() {
                state.cache.fail();
                state.copied = 0;
            }
            planned
        })?;
        Ok((seq_ids, starts, counts, slots.into_pyarray(py)))
    }

    /// What was scheduled is there.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, KvCache::complete)
    }

    /// What was scheduled is not there: every sequence is as before.
    fn fail(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, KvCache::fail)
    }

    fn fork(&self, py: Python<'_>, seq_id: i64) -> PyResult<u64> {
        let child = self.lock(py).cache.fork(seq(seq_id)?);
        child.map(|child| child.0).map_err(|error| match error {
            ForkError::Unknown(error) => unknown(error),
            ForkError::InFlight(_) | ForkError::Share(_) => runtime(error),
        })
    }

    fn free(&self, py: Python<'_>, seq_id: i64) -> PyResult<()> {
        let mut state = self.lock(py);
        state.cache.free(seq(seq_id)?).map_err(|error| match error {
            ReleaseError::Unknown(error) => unknown(error),
            ReleaseError::InFlight(_) => runtime(error),
        })?;
        // The copies that were planned for it are forgotten; those that are left were made.
        state.copied = state.cache.step().copies().len();
        Ok(())
    }

    /// Known tokens, and how many of them are in the cache.
    fn sequence(&self, py: Python<'_>, seq_id: i64) -> PyResult<(Vec<u32>, u32)> {
        let state = self.lock(py);
        let sequence = state.cache.sequence(seq(seq_id)?).map_err(unknown)?;
        Ok((sequence.tokens().to_vec(), sequence.computed().0))
    }

    fn ids(&self, py: Python<'_>) -> Vec<u64> {
        let mut ids: Vec<u64> = self.lock(py).cache.sequences().map(|(id, _)| id.0).collect();
        ids.sort_unstable();
        ids
    }

    fn tables<'py>(&self, py: Python<'py>, seq_ids: Vec<i64>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let state = self.lock(py);
        let table = |id: &i64| {
            let sequence = state.cache.sequence(seq(*id)?).map_err(unknown)?;
            Ok(sequence.table(GroupId(0)).pages().map(|page| page.0 as i32).collect())
        };
        let rows = seq_ids.iter().map(table).collect::<PyResult<Vec<Vec<i32>>>>()?;
        Ok(padded(&rows).into_pyarray(py))
    }

    fn slots<'py>(
        &self,
        py: Python<'py>,
        seq_ids: Vec<i64>,
        starts: Ints,
        counts: Ints,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        same_length([("sequences", seq_ids.len()), ("start_pos", starts.0.len())])?;
        same_length([("sequences", seq_ids.len()), ("num_tokens", counts.0.len())])?;
        let slots = py.detach(|| {
            let (state, mut slots) = (self.lock_detached(), Vec::new());
            for ((id, start), n) in seq_ids.iter().zip(&starts.0).zip(&counts.0) {
                let (start, n) = (tokens("start_pos", *start)?, tokens("num_tokens", *n)?);
                state.slots(seq(*id)?, start, n, &mut slots)?;
            }
            Ok::<_, PyErr>(slots)
        })?;
        Ok(slots.into_pyarray(py))
    }

    fn write(
        &self,
        py: Python<'_>,
        layer: i64,
        slots: Ints,
        keys: PyReadonlyArray3<'_, f32>,
        values: PyReadonlyArray3<'_, f32>,
    ) -> PyResult<()> {
        self.arena.store(py, layer, &slots.0, &keys, &values)
    }

    /// Everything computed of one layer of a sequence, decoded.
    fn read<'py>(
        &self,
        py: Python<'py>,
        seq_id: i64,
        layer: i64,
    ) -> PyResult<[Bound<'py, PyArray3<f32>>; 2]> {
        let layer = self.arena.check_layer(layer)?;
        let (pages, len) = {
            let state = self.lock(py);
            let sequence = state.cache.sequence(seq(seq_id)?).map_err(unknown)?;
            (sequence.table(GroupId(0)).pages().collect::<Vec<_>>(), sequence.computed())
        };
        self.arena.load(py, layer, &pages, 0..len.0)
    }

    fn evict(&self, py: Python<'_>, n: i64) -> PyResult<u32> {
        let n = positive("the number of blocks", n)?;
        Ok(self.lock(py).cache.evict(Pages(n)).0)
    }

    fn pin(&self, py: Python<'_>, tokens: Ints, salt: &[u8], adapter: &[u8]) -> PyResult<(u64, u32)> {
        let prompt = py.detach(|| self.prompt(&tokens, salt, adapter))?;
        let (pin, tokens) = self.lock(py).cache.pin(&prompt).map_err(runtime)?;
        Ok((pin.0, tokens.0))
    }

    fn unpin(&self, py: Python<'_>, pin: i64) -> PyResult<()> {
        let pin = u64::try_from(pin).map_err(|_| PyKeyError::new_err(format!("there is no pin {pin}")))?;
        self.lock(py).cache.unpin(PinId(pin)).map_err(|error| match error {
            PinError::Unknown(_) => PyKeyError::new_err(error.to_string()),
            PinError::NotCached | PinError::OverQuota { .. } => runtime(error),
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let snapshot = self.lock(py).cache.snapshot();
        let dict = PyDict::new(py);
        crate::stats::pages(&dict, &snapshot)?;
        dict.set_item("num_sequences", snapshot.sequences)?;
        crate::stats::prefixes(&dict, &snapshot.counters)?;
        Ok(dict)
    }

    /// Raises if the books do not agree with themselves.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py).cache.check().map(drop).map_err(runtime)
    }
}

impl Prefixes {
    fn end(&self, py: Python<'_>, how: impl FnOnce(&mut KvCache)) -> PyResult<()> {
        let mut state = self.lock(py);
        if !std::mem::replace(&mut state.open, false) {
            return Err(runtime("no step is open: schedule() something first"));
        }
        how(&mut state.cache);
        state.copied = 0;
        Ok(())
    }
}

/// Ids count up from 0.
fn seq(id: i64) -> PyResult<SeqId> {
    u64::try_from(id).map(SeqId).map_err(|_| {
        PyKeyError::new_err(format!("there is no sequence {id}: it was freed or never admitted"))
    })
}

fn token(token: &i64) -> PyResult<u32> {
    u32::try_from(*token)
        .map_err(|_| value(format!("{token} is no token: it must be between 0 and {}", u32::MAX)))
}

/// What a step computes: from where and how much of each sequence, and where all of it goes.
#[derive(Default)]
struct Planned {
    starts: Vec<u32>,
    counts: Vec<u32>,
    slots: Vec<i32>,
}

fn plan(state: &mut State, seq_ids: &[i64], counts: &[i64], claim: Claim) -> PyResult<Planned> {
    let mut planned = Planned::default();
    for (id, count) in seq_ids.iter().zip(counts) {
        let seq = seq(*id)?;
        let sequence = state.cache.sequence(seq).map_err(unknown)?;
        let left = sequence.prompt().len() - sequence.computed();
        let n = if *count == -1 { left } else { tokens("a count", *count)? };
        let span = state.cache.schedule(seq, n, claim).map_err(schedule_error)?;
        planned.starts.push(span.positions.start.0);
        planned.counts.push(n.0);
        state.slots(seq, span.positions.start, n, &mut planned.slots)?;
    }
    Ok(planned)
}

fn found(hit: &Hit) -> Found {
    let reason = match hit.stop {
        Stop::WholePrompt => "all but the last token is cached".to_owned(),
        Stop::PageNotFull { from } => format!("what follows token {} does not fill a block", from.0),
        Stop::Evicted { page, ago } => format!("block {} was evicted {} ms ago", page.0, ago.as_millis()),
        Stop::NeverSeen { page } => format!("block {} was never seen", page.0),
        Stop::Differs { at } => format!("token {} differs", at.0),
        Stop::NotLookedUp => "nothing was looked up".to_owned(),
    };
    (hit.tokens.0, hit.copied.0, reason)
}

fn unknown(error: octavo_kv::UnknownSequence) -> PyErr {
    PyKeyError::new_err(error.to_string())
}

fn admit_error(error: AdmitError) -> PyErr {
    match error {
        AdmitError::Alloc(error) => errors::alloc(error),
        AdmitError::PageSize { .. } | AdmitError::OverLimit { .. } => runtime(error),
    }
}

fn append_error(error: AppendError) -> PyErr {
    match error {
        AppendError::Unknown(error) => unknown(error),
        AppendError::TooLong(error) => value(error),
    }
}

fn schedule_error(error: ScheduleError) -> PyErr {
    match error {
        ScheduleError::Unknown(error) => unknown(error),
        ScheduleError::Alloc(error) => errors::alloc(error),
        ScheduleError::TooMany { .. } => value(error),
        ScheduleError::Twice { .. } | ScheduleError::OverLimit { .. } => runtime(error),
    }
}
