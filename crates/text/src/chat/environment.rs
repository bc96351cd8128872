//! The template engine, set up as Hugging Face sets up Jinja for chat templates.

use std::fmt::Write as _;

use chrono::Local;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::builtins::add_builtins;
use super::methods::call_method;
use super::print::print;

/// The message a template was looking at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageAt {
    /// Position in the conversation, from 0.
    pub index: usize,
    pub role: String,
}

/// What `raise_exception` was called with; travels as the source of the engine's error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Raised {
    pub(super) reason: String,
    pub(super) at: Option<MessageAt>,
}

pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(call_method);
    env.set_formatter(print);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    add_builtins(&mut env);
    env
}

fn raise_exception(state: &State, reason: String) -> Result<Value, Error> {
    let at = message_at(state);
    let raised = Raised { reason: reason.clone(), at };
    Err(Error::new(ErrorKind::InvalidOperation, reason).with_source(raised))
}

/// The message in the loop variable `message`, found again in `messages`.
///
/// Templates loop over all messages or over those after the first (`messages[1:]`), so the loop is taken to end
/// where the conversation ends. Where the message is not found there, the loop is another one (over a message's
/// parts, or backwards), and the first equal message is named.
fn message_at(state: &State) -> Option<MessageAt> {
    let message = state.lookup("message")?;
    let messages: Vec<Value> = state.lookup("messages")?.try_iter().ok()?.collect();
    let counter = |name| state.lookup("loop")?.get_attr(name).ok()?.as_usize();
    let from_end = || (messages.len() + counter("index0")?).checked_sub(counter("length")?);
    let index = from_end()
        .filter(|&index| messages.get(index) == Some(&message))
        .or_else(|| messages.iter().position(|other| *other == message))?;
    let role = message.get_attr("role").ok()?.to_string();
    Some(MessageAt { index, role })
}

/// The local time in a format of `strftime`.
fn strftime_now(format: String) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", Local::now().format(&format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?} is not a time format"))
    })?;
    Ok(text)
}
