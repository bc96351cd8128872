use crate::device::DeviceError;
use crate::hub::HubError;
use crate::load::{Job, Loaded, Loading};
use crate::options::{Options, Resolved};
use crate::source::Parts;
use crate::texts::{Texts, default_sampling};
use octavo_backend::BackendError;
use octavo_cpu::Pool;
use octavo_engine::{
    CompilerError, Engine, EngineHandle, Failure, Flow, GrammarError, Outputs, Request, SamplingError,
    SamplingParams, ScoreError, SubmitError,
};
use octavo_model::ModelConfig;
use octavo_text::{EncodeError, Message, RenderError, Tokenizer};
use octavo_types::{Bytes, KvSpec, SpecError, Tokens};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "{0} is not a directory: give the folder that holds the model's config.json, or a name like org/model"
    )]
    NoDirectory(PathBuf),
    #[error("generation_config.json of the model: {0}; correct the file or remove it")]
    Defaults(SamplingError),
    #[error("a length of {asked} does not fit a model made for {most}: choose 2 to {}", most.0)]
    MaxLen { asked: Tokens, most: Tokens },
    #[error("{batch} sequences of {max_len} need more pages than can be counted: lower either")]
    TooManyPages { batch: u32, max_len: Tokens },
    #[error("{0} threads are more than can be used: choose 1 to {most}", most = Pool::MOST)]
    TooManyThreads(NonZeroUsize),
    #[error(
        "{:.1} GB of KV cache are to be taken at the start, and only {:.1} GB of memory are available: choose less, or let it grow",
        asked.0 as f64 / 1e9, free.0 as f64 / 1e9
    )]
    CommitTooMuch { asked: Bytes, free: Bytes },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Config(#[from] octavo_model::ConfigError),
    #[error(transparent)]
    Weights(#[from] octavo_model::LoadError),
    #[error(transparent)]
    Texts(#[from] octavo_text::ConfigError),
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::TokenizerError),
    #[error(transparent)]
    Template(#[from] octavo_text::TemplateError),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Engine(#[from] octavo_engine::ConfigError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a loaded model did not answer.
#[derive(Debug, thiserror::Error)]
pub enum LlmError {
    #[error("this model has no chat template: give it a plain prompt")]
    NoTemplate,
    #[error(transparent)]
    Render(#[from] RenderError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Decode(#[from] octavo_text::DecodeError),
    #[error(transparent)]
    Refused(#[from] SubmitError),
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    #[error(transparent)]
    Score(#[from] ScoreError),
}

/// A model, ready to answer on the caller's thread.
#[derive(Debug)]
pub struct Llm {
    texts: Arc<Texts>,
    spec: KvSpec,
    engine: Engine,
    notes: Vec<String>,
}

/// A model on a thread of its own, for many callers.
#[derive(Debug)]
pub struct Serving {
    pub texts: Arc<Texts>,
    pub handle: EngineHandle,
    pub spec: KvSpec,
    /// Ends after [`EngineHandle::stop`].
    pub thread: JoinHandle<()>,
}

impl Llm {
    /// Loads a model; `progress` is told how far it has come.
    pub fn load(options: &Options, progress: &mut dyn FnMut(Loading)) -> Result<Self, LoadError> {
        let Parts { name, config, generation, tokenizer, template, weights } = options.source.open()?;
        default_sampling(&generation).validate().map_err(LoadError::Defaults)?;
        let job = Job { options, config: &config, weights: &weights };
        let Loaded { runner, resolved } = job.load(progress)?;
        let Resolved { spec, settings, engine, notes } = resolved;
        let engine = Engine::new(engine, settings, runner, Some(tokenizer.clone()))?;
        let compiler = OnceLock::new();
        let texts = Texts { name, config, generation, tokenizer, template, compiler };
        Ok(Self { texts: Arc::new(texts), spec, engine, notes })
    }

    /// Puts the engine on a thread of its own.
    pub fn serve(self) -> Serving {
        let (handle, thread) = EngineHandle::spawn(self.engine);
        Serving { texts: self.texts, handle, spec: self.spec, thread }
    }

    /// What was decided in the user's stead and may surprise.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
    pub fn texts(&self) -> &Arc<Texts> {
        &self.texts
    }
    pub fn name(&self) -> &str {
        self.texts.name()
    }
    pub fn config(&self) -> &ModelConfig {
        self.texts.config()
    }
    pub fn tokenizer(&self) -> &Tokenizer {
        self.texts.tokenizer()
    }
    pub fn kv_spec(&self) -> &KvSpec {
        &self.spec
    }
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }
    pub fn device(&self) -> String {
        self.engine.device()
    }
    pub fn default_sampling(&self) -> SamplingParams {
        self.texts.default_sampling()
    }
    pub fn stop_tokens(&self) -> Vec<u32> {
        self.texts.stop_tokens()
    }
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, LlmError> {
        self.texts.encode_prompt(text)
    }
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, LlmError> {
        self.texts.encode_chat(messages)
    }

    /// The likeliest continuation, as text.
    pub fn complete(&mut self, prompt: Vec<u32>, max_tokens: u32) -> Result<String, LlmError> {
        let request = Request { stop_tokens: self.stop_tokens().into(), ..Request::new(prompt, max_tokens) };
        let mut outputs = self.engine.generate(vec![request], &mut |_, _| Flow::Continue)?;
        let Outputs { mut choices, failure, .. } = outputs.remove(0);
        match failure {
            Some(failure) => Err(failure.into()),
            None => Ok(choices.remove(0).text),
        }
    }
}
