//! A whole answer.

use super::body::{ChoiceBody, Form, Head, MessageBody, finish_reason};
use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use super::offset::Offset;
use crate::job::Job;
use crate::wire::error::ApiError;
use crate::wire::usage::UsageBody;
use octavo::{Event, Finished, Texts, TokenLogprobs};
use std::sync::Arc;

/// What an answer is made from beside its events.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) head: Head,
    pub(crate) texts: Arc<Texts>,
    /// For each prompt.
    pub(crate) choices: u32,
    pub(crate) logprobs: bool,
    /// The stop strings.
    pub(crate) stops: Vec<String>,
    /// The prompts, where they come before their answers.
    pub(crate) echo: Vec<Echo>,
}

#[derive(Debug, Default)]
pub(crate) struct Echo {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    /// Come with the events.
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
}

/// One choice as far as it is known.
#[derive(Debug, Default)]
struct Gathered {
    text: String,
    tokens: Vec<TokenLogprobs>,
    finished: Option<Finished>,
}

/// Waits for the end of a job and writes its answer.
pub(crate) async fn collect(mut job: Job, mut asked: Asked, prompts: u32) -> Result<String, ApiError> {
    let mut usage = UsageBody::default();
    let mut choices: Vec<Gathered> = (0..prompts * asked.choices).map(|_| Gathered::default()).collect();
    while let Some(next) = job.next().await {
        let (prompt, event) = next?;
        let at = |choice: u32| (prompt * asked.choices + choice) as usize;
        match event {
            Event::Prefill { .. } | Event::Failed(_) => {}
            Event::PromptLogprobs(logprobs) => asked.keep_prompt_logprobs(prompt, logprobs),
            Event::Token(token) => {
                let choice = &mut choices[at(token.choice)];
                choice.text.push_str(&token.text);
                choice.tokens.extend(token.logprobs);
            }
            Event::Finished(finished) => {
                let choice = &mut choices[at(finished.choice)];
                choice.text.push_str(&finished.text);
                choice.finished = Some(finished);
            }
            Event::Done(took) => usage.add(&took),
        }
    }
    let choices: Vec<ChoiceBody> =
        (0..).zip(choices).map(|(index, choice)| asked.whole(index, choice)).collect();
    Ok(asked.head.answer(&choices, usage))
}

impl Asked {
    pub(crate) fn keep_prompt_logprobs(&mut self, prompt: u32, logprobs: Vec<Option<TokenLogprobs>>) {
        if let Some(echo) = self.echo.get_mut(prompt as usize) {
            echo.logprobs = logprobs;
        }
    }

    /// The stop string that ended a choice.
    pub(crate) fn stop_string(&self, matched: Option<usize>) -> Option<String> {
        matched.and_then(|at| self.stops.get(at)).cloned()
    }

    fn whole(&self, index: u32, choice: Gathered) -> ChoiceBody {
        let Gathered { text, tokens, finished } = choice;
        let reason = finished.as_ref().map(|finished| finish_reason(finished.reason));
        let stop_reason = finished.and_then(|finished| self.stop_string(finished.matched));
        match self.head.form {
            Form::Completion => {
                let (echo, mut logprobs, mut offset) = self.echo(index);
                for token in &tokens {
                    logprobs.push(token, self.texts.tokenizer(), &mut offset);
                }
                let text = echo + &text;
                let logprobs = self.logprobs.then_some(logprobs);
                ChoiceBody::Text { index, text, logprobs, finish_reason: reason, stop_reason }
            }
            Form::Chat => {
                let message = MessageBody { role: "assistant", content: text, refusal: None };
                let logprobs = self.chat_logprobs(&tokens);
                ChoiceBody::Message { index, message, logprobs, finish_reason: reason, stop_reason }
            }
        }
    }

    pub(crate) fn chat_logprobs(&self, tokens: &[TokenLogprobs]) -> Option<ChatLogprobs> {
        let mut logprobs = ChatLogprobs::default();
        tokens.iter().for_each(|token| logprobs.push(token, self.texts.tokenizer()));
        self.logprobs.then_some(logprobs)
    }

    /// The prompt of a choice, if it is to be repeated: its text, its logprobs, and where the answer begins.
    pub(crate) fn echo(&self, index: u32) -> (String, CompletionLogprobs, Offset) {
        let mut logprobs = CompletionLogprobs::default();
        let mut offset = Offset::default();
        let Some(echo) = self.echo.get((index / self.choices) as usize) else {
            return (String::new(), logprobs, offset);
        };
        let tokenizer = self.texts.tokenizer();
        for (at, &token) in echo.tokens.iter().enumerate() {
            match echo.logprobs.get(at) {
                Some(Some(likely)) => logprobs.push(likely, tokenizer, &mut offset),
                _ => logprobs.push_unknown(token, tokenizer, &mut offset),
            }
        }
        offset.end();
        (echo.text.clone(), logprobs, offset)
    }
}
