//! A model on a thread of its own.

use crate::errors::{runtime, value};
use crate::options;
use crate::stats;
use octavo::{
    Answer, ChatInput, EngineHandle, Files, Hub, Llm, LlmError, LoadError, Loading, Message, NoAnswer,
    Options, RequestId, Source, Texts,
};
use pyo3::exceptions::{PyFileNotFoundError, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at whether Ctrl-C was pressed.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);
/// The same, of an engine that is about to end.
const BLINK: Duration = Duration::from_millis(5);
/// What the main thread of a program usually has.
const STACK: usize = 8 << 20;

/// Below `octavo.LLM`. The engine's thread never touches Python.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct Engine {
    pub(crate) texts: Arc<Texts>,
    handle: EngineHandle,
    thread: Mutex<Option<JoinHandle<()>>>,
    notes: Vec<String>,
    /// A fork has the handle, but not the thread.
    process: u32,
}

impl Engine {
    /// Unless it was closed, or belongs to the process that this one was forked from.
    pub(crate) fn handle(&self) -> PyResult<&EngineHandle> {
        self.check_process()?;
        if self.handle.intake().is_closed() {
            return Err(runtime("this LLM is closed"));
        }
        Ok(&self.handle)
    }

    /// A process that was forked has no thread that computes.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(runtime("this LLM belongs to another process: make one in each"))
    }

    /// Waits until the engine is between two steps, looking for Ctrl-C meanwhile.
    fn ask<T: Send>(&self, py: Python<'_>, question: impl FnOnce(&EngineHandle) -> Answer<T>) -> PyResult<T> {
        let mut answer = question(self.handle()?);
        loop {
            match py.detach(|| answer.wait(GLANCE)) {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Busy) => py.check_signals()?,
                // Most likely it was closed meanwhile.
                Err(NoAnswer::Stopped) => {
                    return Err(self.handle().err().unwrap_or(runtime(NoAnswer::Stopped)));
                }
            }
        }
    }
}

#[pymethods]
impl Engine {
    #[new]
    fn new(
        py: Python<'_>,
        model: Option<PathBuf>,
        options: options::Raw,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let hub = Hub::from_vars(|name| std::env::var_os(name));
        let options = options.options(&hub)?;
        let llm = load(py, model, hub, options, progress.as_ref())?;
        let notes = llm.notes().to_vec();
        let serving = llm.serve();
        Ok(Self {
            texts: serving.texts,
            handle: serving.handle,
            thread: Mutex::new(Some(serving.thread)),
            notes,
            process: std::process::id(),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        self.texts.name()
    }
    #[getter]
    fn device(&self) -> &str {
        self.handle.device()
    }
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
    #[getter]
    fn max_len(&self) -> u32 {
        self.handle.intake().max_len().0
    }
    #[getter]
    fn closed(&self) -> bool {
        self.handle.intake().is_closed()
    }

    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        py.detach(|| self.texts.encode_prompt(text)).map_err(value)
    }

    /// Messages, tools and template variables as JSON.
    #[pyo3(signature = (messages, tools=None, extra=None))]
    fn encode_chat(
        &self,
        py: Python<'_>,
        messages: &str,
        tools: Option<&str>,
        extra: Option<&str>,
    ) -> PyResult<Vec<u32>> {
        let messages: Vec<Message> =
            serde_json::from_str(messages).map_err(|error| value(format!("messages: {error}")))?;
        let tools: Vec<serde_json::Value> = tools
            .map_or(Ok(Vec::new()), serde_json::from_str)
            .map_err(|error| value(format!("tools: {error}")))?;
        let extra: Option<serde_json::Map<String, serde_json::Value>> = extra
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| value(format!("template variables: {error}")))?;
        let input = ChatInput { tools: &tools, extra: extra.as_ref(), ..ChatInput::new(&messages) };
        py.detach(|| self.texts.encode_chat_input(&input)).map_err(|error| match error {
            LlmError::NoTemplate => runtime(error),
            _ => value(error),
        })
    }

    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        // A model may generate tokens that its tokenizer knows nothing of, and the other way round.
        let known = self.texts.tokenizer().vocab_size().max(self.texts.config().vocab());
        if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
            return Err(value(format!("there is no token {token}: the vocabulary has {known}")));
        }
        py.detach(|| self.texts.decode(&tokens)).map_err(value)
    }

    /// Tokens to special text too, for people who look at single ones.
    fn token(&self, id: u32) -> Option<String> {
        self.texts.tokenizer().token(id)
    }

    /// As it is between two steps.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.ask(py, EngineHandle::report)?;
        let running: HashSet<RequestId> = report.sequences.iter().map(|sequence| sequence.request).collect();
        let snapshot = report.snapshot;
        let dict = PyDict::new(py);
        dict.set_item("requests_running", running.len())?;
        dict.set_item("requests_waiting", report.waiting)?;
        dict.set_item("sequences_running", report.sequences.len())?;
        stats::engine(&dict, self.handle.metrics())?;
        stats::pages(&dict, &snapshot)?;
        stats::prefixes(&dict, &snapshot.counters)?;
        Ok(dict)
    }

    /// Forgets the prefixes that nobody uses; says how many blocks that freed.
    fn drop_prefixes(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.ask(py, EngineHandle::drop_prefixes)?.0)
    }

    /// What is wrong with the cache, if anything.
    fn audit(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.ask(py, EngineHandle::audit)?.problem)
    }

    /// Ends what runs, within so many seconds, and waits for the thread.
    fn close(&self, py: Python<'_>, within: f64) -> PyResult<()> {
        let within = options::seconds("within", within)?;
        if self.process != std::process::id() {
            return Ok(());
        }
        self.handle.stop(within);
        let kept = || self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = kept().take() else { return Ok(()) };
        while !thread.is_finished() {
            if let Err(interrupt) = py.check_signals() {
                // It can be waited for again.
                *kept() = Some(thread);
                return Err(interrupt);
            }
            py.detach(|| std::thread::sleep(BLINK));
        }
        // A thread that panicked has ended as well, and said so.
        let _ = thread.join();
        Ok(())
    }
}

/// What is loaded, how much of it is done, and how much there is.
type At = (String, u64, u64);

/// Loads on a thread of its own, so that Ctrl-C is heard whatever that waits for. Once nobody listens any more, a download
/// ends, and what else was begun is done and dropped.
fn load(
    py: Python<'_>,
    model: Option<PathBuf>,
    hub: Hub,
    options: Options,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Llm> {
    let (sender, mut told) = channel();
    let loading = std::thread::Builder::new()
        .name("octavo-loader".into())
        .stack_size(STACK)
        .spawn(move || load_and_tell(model, &hub, options, &sender))?;
    loop {
        match py.detach(|| next(&mut told)) {
            Ok(at) => {
                py.check_signals()?;
                progress.map(|progress| progress.call1(py, at)).transpose()?;
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let loaded = py.detach(|| loading.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    loaded.map_err(load_error)
}

/// A receiver is for one thread at a time.
fn next(told: &mut Receiver<At>) -> Result<At, RecvTimeoutError> {
    told.recv_timeout(GLANCE)
}

fn load_and_tell(
    model: Option<PathBuf>,
    hub: &Hub,
    options: Options,
    told: &Sender<At>,
) -> Result<Llm, LoadError> {
    let tell = |what: &str, done, total| match told.send((what.to_owned(), done, total)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let source = match model {
        None => Source::BuiltIn,
        Some(model) => {
            Source::named(&model, hub, Files::All, &mut |at| tell(at.file, at.bytes_done, at.bytes_total))?
        }
    };
    Llm::load(&Options { source, ..options }, &mut |at| {
        let _ = match at {
            Loading::Weights(at) => tell("weights", at.bytes_done, at.bytes_total),
            Loading::WarmUp { done, total } => tell("steps", done as u64, total as u64),
            Loading::Commit { done, total } => tell("pages", done as u64, total as u64),
        };
    })
}

fn load_error(error: LoadError) -> PyErr {
    let said = octavo::said(&error);
    match error {
        LoadError::NoDirectory(_) => PyFileNotFoundError::new_err(said),
        LoadError::Backend(octavo_backend::BackendError::OutOfMemory(_)) => PyMemoryError::new_err(said),
        LoadError::MaxLen { .. }
        | LoadError::TooManyPages { .. }
        | LoadError::TooManyThreads(_)
        | LoadError::Engine(_)
        | LoadError::Spec(_) => value(said),
        _ => runtime(said),
    }
}
