//! An answer chunk by chunk.

use super::body::{ChoiceBody, DeltaBody, Form, Progress, finish_reason};
use super::collect::Asked;
use super::logprobs::CompletionLogprobs;
use super::offset::Offset;
use crate::sse::{DONE, write_event};
use crate::wire::error::ApiError;
use crate::wire::options::StreamOptions;
use crate::wire::usage::UsageBody;
use octavo::{Event, Finished, TokenLogprobs};

/// Makes server-sent events of the engine's.
#[derive(Debug)]
pub(crate) struct Writer {
    asked: Asked,
    options: StreamOptions,
    usage: UsageBody,
    /// Whether the choices of a prompt have begun, by prompt.
    begun: Vec<bool>,
    /// How far the text of each choice has come, for logprobs.
    offsets: Vec<Offset>,
}

impl Writer {
    pub(crate) fn new(asked: Asked, options: StreamOptions, prompts: u32) -> Self {
        let begun = vec![false; prompts as usize];
        let offsets = vec![Offset::default(); (prompts * asked.choices) as usize];
        Self { asked, options, usage: UsageBody::default(), begun, offsets }
    }

    pub(crate) fn event(&mut self, prompt: u32, event: Event, out: &mut Vec<u8>) {
        let index = |choice: u32| prompt * self.asked.choices + choice;
        match event {
            Event::Prefill { done, total, cached } if self.options.progress => {
                let progress = Progress {
                    index: prompt,
                    prompt_tokens: total.0,
                    processed_tokens: done.0,
                    cached_tokens: cached.0,
                };
                self.send(&[], Some(progress), out);
            }
            Event::Prefill { .. } | Event::Failed(_) => {}
            Event::PromptLogprobs(logprobs) => self.asked.keep_prompt_logprobs(prompt, logprobs),
            Event::Token(token) => {
                let index = index(token.choice);
                self.begin(prompt, out);
                if !token.text.is_empty() || token.logprobs.is_some() {
                    self.delta(index, token.text, token.logprobs.as_slice(), None, out);
                }
            }
            Event::Finished(finished) => {
                let index = index(finished.choice);
                self.begin(prompt, out);
                self.finish(index, finished, out);
            }
            Event::Done(usage) => self.usage.add(&usage),
        }
    }

    /// All prompts have ended.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        if self.options.usage {
            let chunk = self.asked.head.chunk(&[], Some(Some(self.usage)), None);
            write_event(out, &chunk);
        }
        write_event(out, DONE);
    }

    pub(crate) fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, &error.body());
        write_event(out, DONE);
    }

    /// What comes before the first token of a prompt's choices. They begin in order, whichever has a token first: OpenAI's
    /// clients keep a list of choices, and add to it whatever begins.
    fn begin(&mut self, prompt: u32, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun[prompt as usize], true) {
            let first = prompt * self.asked.choices;
            (first..first + self.asked.choices).for_each(|index| self.begin_choice(index, out));
        }
    }

    /// The role, or the prompt to be repeated.
    fn begin_choice(&mut self, index: u32, out: &mut Vec<u8>) {
        let choice = match self.asked.head.form {
            Form::Chat => {
                let delta = DeltaBody { role: Some("assistant"), content: Some(String::new()) };
                ChoiceBody::Delta { index, delta, logprobs: None, finish_reason: None, stop_reason: None }
            }
            Form::Completion if self.asked.echo.is_empty() => return,
            Form::Completion => {
                let (text, logprobs, offset) = self.asked.echo(index);
                self.offsets[index as usize] = offset;
                let logprobs = self.asked.logprobs.then_some(logprobs);
                ChoiceBody::Text { index, text, logprobs, finish_reason: None, stop_reason: None }
            }
        };
        self.send(&[choice], None, out);
    }

    fn finish(&mut self, index: u32, finished: Finished, out: &mut Vec<u8>) {
        let Finished { reason, text, matched, .. } = finished;
        let end = Some((finish_reason(reason), self.asked.stop_string(matched)));
        if self.asked.head.form == Form::Chat && !text.is_empty() {
            self.delta(index, text, &[], None, out);
            self.delta(index, String::new(), &[], end, out);
        } else {
            self.delta(index, text, &[], end, out);
        }
    }

    fn delta(
        &mut self,
        index: u32,
        text: String,
        tokens: &[TokenLogprobs],
        end: Option<(&'static str, Option<String>)>,
        out: &mut Vec<u8>,
    ) {
        let (finish_reason, stop_reason) = match end {
            Some((reason, matched)) => (Some(reason), matched),
            None => (None, None),
        };
        let choice = match self.asked.head.form {
            Form::Completion => {
                let logprobs = self.completion_logprobs(index, tokens);
                ChoiceBody::Text { index, text, logprobs, finish_reason, stop_reason }
            }
            Form::Chat => {
                let logprobs = if tokens.is_empty() { None } else { self.asked.chat_logprobs(tokens) };
                let content = finish_reason.is_none().then_some(text);
                let delta = DeltaBody { role: None, content };
                ChoiceBody::Delta { index, delta, logprobs, finish_reason, stop_reason }
            }
        };
        self.send(&[choice], None, out);
    }

    fn completion_logprobs(&mut self, index: u32, tokens: &[TokenLogprobs]) -> Option<CompletionLogprobs> {
        if tokens.is_empty() {
            return None;
        }
        let mut logprobs = CompletionLogprobs::default();
        let offset = &mut self.offsets[index as usize];
        for token in tokens {
            logprobs.push(token, self.asked.texts.tokenizer(), offset);
        }
        Some(logprobs)
    }

    fn send(&self, choices: &[ChoiceBody], progress: Option<Progress>, out: &mut Vec<u8>) {
        let usage = self.options.usage.then_some(None);
        write_event(out, &self.asked.head.chunk(choices, usage, progress));
    }
}
