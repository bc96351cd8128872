//! Requests under way, as one Python thread waits for them.

use crate::engine::{Engine, GLANCE};
use crate::errors::{runtime, value};
use crate::sampling;
use crate::waker::{Bell, Waker};
use octavo::{Event, Failure, FinishReason, Outputs, Request, SubmitError, Ticket, TokenLogprobs};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Some requests, and what became of them so far. Dropping it cancels what still runs.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Run {
    engine: Py<Engine>,
    state: Mutex<State>,
    /// Requests to end, or all of them, from whatever thread: looked at by the one that waits.
    to_cancel: Mutex<Vec<Option<usize>>>,
    /// For whoever waits without a thread.
    bell: Option<Bell>,
}

struct State {
    /// None once everything has ended.
    events: Option<Receiver<(usize, Event)>>,
    sender: Option<Sender<(usize, Event)>>,
    bell: Option<Bell>,
    /// More than may wait are held back here.
    to_come: VecDeque<(usize, Request)>,
    /// One a request.
    tickets: Vec<Option<Ticket>>,
    outputs: Vec<Outputs>,
    left: usize,
    generated: u64,
}

#[pymethods]
impl Run {
    /// All requests are checked before any of them begins.
    #[new]
    fn new(
        py: Python<'_>,
        engine: Py<Engine>,
        prompts: Vec<Vec<u32>>,
        params: Vec<sampling::Raw>,
        waker: Option<&Bound<'_, Waker>>,
    ) -> PyResult<Self> {
        let bell = waker.map(|waker| waker.get().bell.clone());
        let inner = engine.get();
        let handle = inner.handle()?;
        let state = py.detach(|| {
            let requests = prompts.into_iter().zip(params);
            let requests = requests
                .map(|(prompt, params)| params.request(prompt, &inner.texts))
                .collect::<PyResult<Vec<_>>>()?;
            requests.iter().try_for_each(|request| handle.intake().check(request)).map_err(submit_error)?;
            let (sender, events) = channel();
            let count = requests.len();
            let mut state = State {
                events: Some(events),
                sender: Some(sender),
                bell: bell.clone(),
                to_come: requests.into_iter().enumerate().collect(),
                tickets: (0..count).map(|_| None).collect(),
                outputs: vec![Outputs::default(); count],
                left: count,
                generated: 0,
            };
            state.submit(inner)?;
            Ok::<_, PyErr>(state)
        })?;
        Ok(Self { engine, state: Mutex::new(state), to_cancel: Mutex::default(), bell })
    }

    /// Waits for something new, no longer than so many seconds, and returns it as a list of events; `None` once
    /// everything has ended. Without `detail` tokens are counted and not listed. Ctrl-C is raised from here.
    fn next<'py>(&self, py: Python<'py>, within: f64, detail: bool) -> PyResult<Option<Bound<'py, PyList>>> {
        let deadline = Instant::now() + crate::options::seconds("within", within)?;
        let engine = self.engine.get();
        engine.check_process()?;
        loop {
            let events = self.with(|state| {
                if state.left == 0 {
                    return Ok(None);
                }
                py.detach(|| {
                    state.submit(engine)?;
                    let left = deadline.saturating_duration_since(Instant::now());
                    Ok::<_, PyErr>(Some(state.take(left.min(GLANCE))))
                })
            })??;
            match events {
                None => return Ok(None),
                Some(events) if !events.is_empty() => return list(py, &events, detail).map(Some),
                Some(_) => py.check_signals()?,
            }
            if Instant::now() >= deadline {
                return Ok(Some(PyList::empty(py)));
            }
        }
    }

    /// Requests that have not ended, those held back because too many wait, and tokens generated so far.
    fn progress(&self) -> PyResult<(usize, usize, u64)> {
        self.with(|state| (state.left, state.to_come.len(), state.generated))
    }

    /// Ends everything, or one request; from any thread.
    #[pyo3(signature = (index=None))]
    fn cancel(&self, index: Option<usize>) {
        self.to_cancel().push(index);
        self.obey();
        // What was cancelled has no more events.
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// What has become of every request.
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let outputs = self.with(|state| state.outputs.clone())?;
        let list = PyList::empty(py);
        outputs.iter().try_for_each(|output| list.append(output_dict(py, output)?))?;
        Ok(list)
    }
}

impl Run {
    fn to_cancel(&self) -> MutexGuard<'_, Vec<Option<usize>>> {
        self.to_cancel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while another thread has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Two threads that wait for the same requests would each see a part of them: one is refused.
    fn with<T>(&self, ask: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        let told = ask(&mut *self.try_lock().ok_or_else(|| {
            runtime("another thread is waiting for this generation: use one from one thread at a time")
        })?);
        self.obey();
        Ok(told)
    }

    /// Ends what is to be ended, unless another thread has the state: that one comes here when it has let go, and
    /// finds what was asked for before.
    fn obey(&self) {
        while !self.to_cancel().is_empty() {
            let Some(mut state) = self.try_lock() else { return };
            for index in self.to_cancel().drain(..) {
                match index {
                    Some(index) => state.cancel(index),
                    None => (0..state.tickets.len()).for_each(|index| state.cancel(index)),
                }
            }
        }
    }
}

impl State {
    /// As many as may wait.
    fn submit(&mut self, engine: &Engine) -> PyResult<()> {
        while let Some((index, request)) = self.to_come.pop_front() {
            let Some(events) = self.sender.clone() else { break };
            let bell = self.bell.clone();
            let sink = Box::new(move |event| {
                // Nobody to tell is no error.
                let _ = events.send((index, event));
                if let Some(bell) = &bell {
                    bell.ring();
                }
            });
            let handle = engine.handle().map_err(|_| SubmitError::ShuttingDown);
            match handle.and_then(|handle| handle.submit(request.clone(), sink)) {
                Ok(ticket) => self.tickets[index] = Some(ticket),
                // Those who began are told by the engine.
                Err(SubmitError::ShuttingDown) => {
                    self.outputs[index].failure = Some(Failure::ShuttingDown);
                    self.left -= 1;
                }
                Err(SubmitError::QueueFull { .. }) => {
                    self.to_come.push_front((index, request));
                    return Ok(());
                }
                Err(error) => return Err(submit_error(error)),
            }
        }
        // The last sender is the engine's: when it is gone, so is whatever could still come.
        self.sender = None;
        Ok(())
    }

    /// What is there, or the first to come within `within` and whatever is there by then.
    fn take(&mut self, within: Duration) -> Vec<(usize, Event)> {
        let Some(events) = &self.events else { return Vec::new() };
        let mut taken = Vec::new();
        match events.recv_timeout(within) {
            Ok(event) => taken.push(event),
            Err(RecvTimeoutError::Timeout) => return taken,
            Err(RecvTimeoutError::Disconnected) => {
                // The engine went away without a word: whatever has not ended never will.
                for index in 0..self.tickets.len() {
                    self.cancel(index);
                }
                return taken;
            }
        }
        taken.extend(events.try_iter());
        for (index, event) in &taken {
            self.note(*index, event);
        }
        taken
    }

    fn note(&mut self, index: usize, event: &Event) {
        self.generated += u64::from(matches!(event, Event::Token(_)));
        if event.is_last() && self.tickets[index].take().is_some() {
            self.left -= 1;
        }
        self.outputs[index].take(event.clone());
    }

    fn cancel(&mut self, index: usize) {
        let before = self.to_come.len();
        self.to_come.retain(|(held, _)| *held != index);
        let was_held = self.to_come.len() < before;
        let ran = self.tickets.get_mut(index).is_some_and(|ticket| ticket.take().is_some());
        if !was_held && !ran {
            return;
        }
        self.left -= 1;
        let output = &mut self.outputs[index];
        if output.choices.is_empty() {
            output.choices.push(octavo::Output::default());
        }
        for choice in output.choices.iter_mut().filter(|choice| choice.finish.is_none()) {
            choice.finish = Some(FinishReason::Cancelled);
        }
    }
}

fn submit_error(error: SubmitError) -> PyErr {
    match error {
        SubmitError::QueueFull { .. } | SubmitError::ShuttingDown => runtime(error),
        _ => value(error),
    }
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

/// `(kind, request, …)` each; one of tokens alone where they are not listed, so that there is something.
fn list<'py>(py: Python<'py>, events: &[(usize, Event)], detail: bool) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (index, event) in events {
        let tuple = match event {
            Event::Prefill { done, total, cached } => {
                ("prefill", index, done.0, total.0, cached.0).into_bound_py_any(py)?
            }
            Event::Token(new) if detail => {
                let logprobs = new.logprobs.as_ref().map(|logprobs| logprob(py, logprobs)).transpose()?;
                ("token", index, new.choice, new.token, &new.text, logprobs).into_bound_py_any(py)?
            }
            Event::Finished(end) if detail => {
                ("finished", index, end.choice, reason(end.reason), &end.text).into_bound_py_any(py)?
            }
            Event::Done(_) => ("done", index).into_bound_py_any(py)?,
            Event::Failed(failure) => ("failed", index, failure.to_string()).into_bound_py_any(py)?,
            Event::Token(_) | Event::Finished(_) | Event::PromptLogprobs(_) => continue,
        };
        list.append(tuple)?;
    }
    if list.is_empty() && !events.is_empty() {
        list.append(("tokens",).into_bound_py_any(py)?)?;
    }
    Ok(list)
}

/// `(token, logprob, rank, [(token, logprob), …])`.
fn logprob<'py>(py: Python<'py>, logprobs: &TokenLogprobs) -> PyResult<Bound<'py, PyAny>> {
    (logprobs.token, logprobs.logprob, logprobs.rank, logprobs.top.clone()).into_bound_py_any(py)
}

fn output_dict<'py>(py: Python<'py>, output: &Outputs) -> PyResult<Bound<'py, PyDict>> {
    let choices = PyList::empty(py);
    for choice in &output.choices {
        let dict = PyDict::new(py);
        dict.set_item("text", &choice.text)?;
        dict.set_item("token_ids", &choice.tokens)?;
        dict.set_item("finish_reason", choice.finish.map(reason))?;
        dict.set_item("stop_index", choice.matched)?;
        let logprobs = choice.logprobs.iter().map(|logprobs| logprob(py, logprobs));
        dict.set_item("logprobs", logprobs.collect::<PyResult<Vec<_>>>()?)?;
        choices.append(dict)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("choices", choices)?;
    let prompt = output.prompt_logprobs.iter();
    let prompt = prompt.map(|entry| entry.as_ref().map(|entry| logprob(py, entry)).transpose());
    dict.set_item("prompt_logprobs", prompt.collect::<PyResult<Vec<_>>>()?)?;
    dict.set_item("error", output.failure.as_ref().map(ToString::to_string))?;
    let usage = output.usage;
    dict.set_item("prompt_tokens", usage.prompt_tokens.0)?;
    dict.set_item("cached_tokens", usage.cached_tokens.0)?;
    dict.set_item("completion_tokens", usage.completion_tokens)?;
    dict.set_item("queued", usage.queued.as_secs_f64())?;
    dict.set_item("prefill", usage.prefill.as_secs_f64())?;
    dict.set_item("decode", usage.decode.as_secs_f64())?;
    dict.set_item("preemptions", usage.preemptions)?;
    Ok(dict)
}
