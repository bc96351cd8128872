//! A model's way with words: everything about it that is not on a device.

use crate::llm::LlmError;
use octavo_engine::{CompilerError, Constraint, Grammar, GrammarCompiler, SamplingParams};
use octavo_model::{GenerationConfig, ModelConfig};
use octavo_text::{ChatInput, ChatTemplate, Markup, Message, SpecialTokens, Tokenizer};
use std::sync::OnceLock;

/// Shared by all who talk to a model, on any thread.
pub struct Texts {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    pub(crate) generation: GenerationConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    /// Made when the first grammar is asked for.
    pub(crate) compiler: OnceLock<Result<GrammarCompiler, CompilerError>>,
}

impl Texts {
    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
    /// Whether the model was made for chat.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// As the model's makers would have it sampled.
    pub fn default_sampling(&self) -> SamplingParams {
        default_sampling(&self.generation)
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
        self.encode_chat_input(&ChatInput::new(messages))
    }

    /// A conversation with tools and variables for the template.
    pub fn encode_chat_input(&self, input: &ChatInput<'_>) -> Result<Vec<u32>, LlmError> {
        self.encode_rendered(&self.render_chat(input)?)
    }

    /// What the template makes of a conversation.
    pub fn render_chat(&self, input: &ChatInput<'_>) -> Result<String, LlmError> {
        let template = self.template.as_ref().ok_or(LlmError::NoTemplate)?;
        Ok(template.render(input)?)
    }

    /// The tokens of that.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, LlmError> {
        Ok(self.tokenizer.encode_chat(text)?)
    }

    pub fn decode(&self, tokens: &[u32]) -> Result<String, LlmError> {
        Ok(self.tokenizer.decode(tokens, SpecialTokens::Skip)?)
    }

    /// Makes a grammar ready for a request. May take a while: not for the engine's thread.
    pub fn grammar(&self, grammar: &Grammar) -> Result<Constraint, LlmError> {
        let make = || GrammarCompiler::new(&self.tokenizer, &self.stop_tokens());
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)?;
        Ok(compiler.compile(grammar)?)
    }
}

/// What the model's makers say of sampling, over what is usual.
pub(crate) fn default_sampling(generation: &GenerationConfig) -> SamplingParams {
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

impl std::fmt::Debug for Texts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Texts").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built_in;
    use crate::source::{Parts, Source};

    fn sampling(json: &str) -> SamplingParams {
        default_sampling(&GenerationConfig::from_json(json).unwrap())
    }

    #[test]
    fn sampling_is_as_the_makers_would_have_it() {
        let all = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05,
            "repetition_penalty": 1.1}"#;
        let expected = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.1,
            ..SamplingParams::default()
        };
        assert_eq!(sampling(all), expected);
        let temperature = |json| sampling(json).temperature;
        assert_eq!(temperature(r#"{"do_sample": false, "temperature": 0.6}"#), 0.0);
        assert_eq!(temperature(r#"{"do_sample": true}"#), 1.0);
        assert_eq!(temperature(r#"{"temperature": 0.6}"#), 0.6);
        assert_eq!(temperature("{}"), 0.0);
    }

    #[test]
    fn a_text_ends_where_any_of_the_models_files_says_so() {
        let Parts { name, tokenizer, template, .. } = Source::BuiltIn.open().unwrap();
        let config = built_in::CONFIG.replace("\"eos_token_id\": 2", "\"eos_token_id\": 9");
        let config = ModelConfig::from_json(&config).unwrap();
        let generation = GenerationConfig::from_json(r#"{"eos_token_id": [7, 5, 9]}"#).unwrap();
        let texts = Texts { name, config, generation, tokenizer, template, compiler: OnceLock::new() };
        assert_eq!(texts.stop_tokens(), [2, 5, 7, 9]);
        assert_eq!(texts.encode_prompt("<|im_end|>").unwrap().last(), Some(&2), "as the tokenizer writes it");
    }
}
