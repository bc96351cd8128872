//! What to generate, from `octavo.SamplingParams`.

use crate::errors::value;
use crate::options::seconds;
use octavo::{Grammar, MAX_LOGPROBS, Request, SamplingParams, Scope, StopStrings, StopText, Texts};
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// The fields of `octavo.SamplingParams`, whose texts say what they are. None leaves it to the model.
#[derive(FromPyObject, Clone)]
pub(crate) struct Raw {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: f32,
    frequency_penalty: f32,
    logit_bias: BTreeMap<u32, f32>,
    seed: u64,
    logprobs: Option<u8>,
    prompt_logprobs: Option<u8>,
    max_tokens: u32,
    min_tokens: u32,
    stop: Vec<String>,
    include_stop: bool,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    n: u32,
    best_of: Option<u32>,
    json_schema: Option<String>,
    regex: Option<String>,
    grammar: Option<String>,
    choices: Option<Vec<String>>,
    salt: Vec<u8>,
    priority: i32,
    time_limit: Option<f64>,
}

impl Raw {
    /// May take a while where there is a grammar: not for holders of the GIL.
    pub(crate) fn request(self, prompt: Vec<u32>, texts: &Texts) -> PyResult<Request> {
        if let Some(most) = self.prompt_logprobs.filter(|most| *most > MAX_LOGPROBS) {
            return Err(value(format!("prompt_logprobs is {most}: it can be at most {MAX_LOGPROBS}")));
        }
        let grammar = self.constraint()?;
        let constraint = grammar.map(|grammar| texts.grammar(&grammar).map_err(value)).transpose()?;
        let defaults = texts.default_sampling();
        let kept = if self.include_stop { StopText::Keep } else { StopText::Drop };
        let mut stop_tokens = if self.ignore_eos { Vec::new() } else { texts.stop_tokens() };
        stop_tokens.extend(self.stop_token_ids);
        Ok(Request {
            scope: Scope::new(&self.salt, b""),
            sampling: SamplingParams {
                temperature: self.temperature.unwrap_or(defaults.temperature),
                top_k: self.top_k.unwrap_or(defaults.top_k),
                top_p: self.top_p.unwrap_or(defaults.top_p),
                min_p: self.min_p.unwrap_or(defaults.min_p),
                repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: self.logit_bias.into_iter().collect(),
                seed: self.seed,
                logprobs: self.logprobs,
            },
            min_tokens: self.min_tokens,
            stop_tokens: stop_tokens.into(),
            stop_strings: match self.stop.as_slice() {
                [] => None,
                stops => Some(StopStrings::new(stops, kept).map_err(value)?),
            },
            constraint,
            choices: self.n,
            best_of: self.best_of.unwrap_or(self.n),
            prompt_logprobs: self.prompt_logprobs,
            priority: self.priority,
            time_limit: self.time_limit.map(|limit| seconds("time_limit", limit)).transpose()?,
            ..Request::new(prompt, self.max_tokens)
        })
    }

    fn constraint(&self) -> PyResult<Option<Grammar>> {
        let schema = |text: &String| {
            let json = serde_json::from_str(text).map(Grammar::JsonSchema);
            json.map_err(|error| value(format!("json_schema: {error}")))
        };
        let mut asked = Vec::new();
        asked.extend(self.json_schema.as_ref().map(schema).transpose()?);
        asked.extend(self.regex.clone().map(Grammar::Regex));
        asked.extend(self.grammar.clone().map(Grammar::Lark));
        asked.extend(self.choices.clone().map(Grammar::Choice));
        if asked.len() > 1 {
            return Err(value("give one of json_schema, regex, grammar and choices"));
        }
        Ok(asked.pop())
    }
}
