use crate::hub::HubError;
use crate::options::{Options, Resolved};
use crate::source::Parts;
use octavo_backend::BackendError;
use octavo_cpu::{Cpu, Level};
use octavo_engine::{Flow, GenerateError, Generator, ModelRunner, Output, Request, SamplingParams};
use octavo_kv::SettingsError;
use octavo_model::{GenerationConfig, Model, ModelConfig, Progress};
use octavo_text::{
    ChatInput, ChatTemplate, EncodeError, Markup, Message, RenderError, SpecialTokens, Tokenizer,
};
use octavo_types::{KvSpec, SpecError, Tokens};
use std::num::NonZeroUsize;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "{0} is not a directory: give the folder that holds the model's config.json, or a name like org/model"
    )]
    NoDirectory(PathBuf),
    #[error("a length of {asked} does not fit a model made for {most}: choose 1 to {}", most.0)]
    MaxLen { asked: Tokens, most: Tokens },
    #[error("{batch} sequences of {max_len} need more pages than can be counted: lower either")]
    TooManyPages { batch: u32, max_len: Tokens },
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
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

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
    Generate(#[from] GenerateError),
}

/// A model, ready to answer.
#[derive(Debug)]
pub struct Llm {
    name: String,
    config: ModelConfig,
    generation: GenerationConfig,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    spec: KvSpec,
    generator: Generator,
}

impl Llm {
    /// Loads a model; `progress` is told how far it has come.
    pub fn load(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Self, LoadError> {
        let Parts { name, config, generation, tokenizer, template, weights } = options.source.open()?;
        let Resolved { spec, settings, max_len } = options.resolve(&config)?;
        let one = NonZeroUsize::MIN;
        let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(one));
        let cpu = Cpu::new(threads, Level::detect());
        let model = Model::load(&cpu, config.clone(), &spec, &weights, options.weights, progress)?;
        let runner = ModelRunner::new(cpu, model, &spec, settings.total)?;
        let generator = Generator::new(settings, Box::new(runner), options.chunk, max_len)?;
        Ok(Self { name, config, generation, tokenizer, template, spec, generator })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
    pub fn kv_spec(&self) -> &KvSpec {
        &self.spec
    }
    pub fn generator(&mut self) -> &mut Generator {
        &mut self.generator
    }
    pub fn device(&self) -> String {
        self.generator.device()
    }

    /// As the model's makers would have it sampled.
    pub fn default_sampling(&self) -> SamplingParams {
        let generation = &self.generation;
        let base = SamplingParams::default();
        SamplingParams {
            temperature: match generation.do_sample {
                Some(false) => 0.0,
                Some(true) => generation.temperature.unwrap_or(1.0),
                None => generation.temperature.unwrap_or(0.0),
            },
            top_k: generation.top_k.map_or(base.top_k, |k| k as usize),
            top_p: generation.top_p.unwrap_or(base.top_p),
            min_p: generation.min_p.unwrap_or(base.min_p),
            repetition_penalty: generation.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        }
    }

    /// Tokens that end a text, by the model's own files.
    pub fn stop_tokens(&self) -> Vec<u32> {
        let mut stop: Vec<u32> = self.generation.eos.iter().chain(self.config.eos()).copied().collect();
        stop.extend(self.tokenizer.eos());
        stop.sort_unstable();
        stop.dedup();
        stop
    }

    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, LlmError> {
        Ok(self.tokenizer.encode_prompt(text, Markup::Parse)?)
    }

    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, LlmError> {
        let template = self.template.as_ref().ok_or(LlmError::NoTemplate)?;
        Ok(self.tokenizer.encode_chat(&template.render(&ChatInput::new(messages))?)?)
    }

    /// The likeliest continuation, as text.
    pub fn complete(&mut self, prompt: Vec<u32>, max_tokens: u32) -> Result<String, LlmError> {
        let stop_tokens = self.stop_tokens();
        let request = Request { prompt, sampling: SamplingParams::default(), max_tokens, stop_tokens };
        let outputs = self.generator.generate(vec![request], &mut |_| Flow::Continue)?;
        let Output { tokens, .. } = outputs.into_iter().next().expect("one request, one output");
        Ok(self.tokenizer.decode(&tokens, SpecialTokens::Skip)?)
    }
}
