//! A model's chat template: parsed once, rendered for each conversation.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde_json::{Map, json};

use super::environment::{MessageAt, Raised, environment};
use super::form::MessageForm;
use super::message::ChatInput;
use super::source::prepared;
use crate::config::{ConfigError, TokenizerConfig};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Why a model has no usable chat template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error(
        "{file} has no chat template: this model continues text and does not chat; use the completions interface, or put a chat_template.jinja beside its files"
    )]
    Missing { file: String },
    #[error(
        "the chat template {name:?} in {file} does not parse at line {line}: {reason}; correct it, or put a chat_template.jinja beside the model's files"
    )]
    Syntax { file: String, name: String, line: usize, reason: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The template itself refused, with a reason its author wrote for people.
    #[error("the model's chat template refuses {}: {reason}", place(.at))]
    Raised { reason: String, at: Option<MessageAt> },
    /// The template asks for something the conversation does not have, or that this engine does not know.
    #[error("the model's chat template fails at line {line}: {reason}")]
    Failed { line: usize, reason: String },
    /// A fault of the engine that renders, which the template brings out.
    #[error("the model's chat template makes the template engine panic: {reason}")]
    Panicked { reason: String },
}

fn place(at: &Option<MessageAt>) -> String {
    match at {
        Some(MessageAt { index, role }) => format!("message {} (role {role:?})", index + 1),
        None => "the conversation".into(),
    }
}

/// A model's chat templates, of which there is at least one.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    special: BTreeMap<String, String>,
    default: Variant,
    tool_use: Option<Variant>,
}

#[derive(Debug, Clone, Copy)]
struct Variant {
    name: &'static str,
    form: MessageForm,
}

impl ChatTemplate {
    /// Reads the configuration and the templates in `dir`; see [`TokenizerConfig::from_dir`].
    pub fn from_dir(dir: &Path) -> Result<Self, TemplateError> {
        Self::from_config(&TokenizerConfig::from_dir(dir)?)
    }

    /// The templates named `default` and `tool_use`; the special tokens are variables in both.
    pub fn from_config(config: &TokenizerConfig) -> Result<Self, TemplateError> {
        let mut env = environment();
        for name in [DEFAULT, TOOL_USE] {
            let Some(template) = config.template(name) else { continue };
            env.add_template_owned(name, prepared(&template.source)).map_err(|error| {
                TemplateError::Syntax {
                    file: template.file.clone(),
                    name: name.into(),
                    line: error.line().unwrap_or(1),
                    reason: error.detail().map_or_else(|| error.kind().to_string(), str::to_owned),
                }
            })?;
        }
        let special = config.special();
        let variant = |name| Self::variant(&env, &special, name);
        let tool_use = variant(TOOL_USE);
        let Some(default) = variant(DEFAULT).or(tool_use) else {
            return Err(TemplateError::Missing { file: config.origin().into() });
        };
        Ok(Self { env, special, default, tool_use })
    }

    /// The text of a conversation. With tools, the template made for them where the model has one.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, RenderError> {
        let variant =
            if input.tools.is_empty() { self.default } else { self.tool_use.unwrap_or(self.default) };
        let messages: Vec<_> = input.messages.iter().map(|message| variant.form.value(message)).collect();
        let mut context = variables(&self.special);
        context.extend(input.extra.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        context.insert("messages".into(), json!(messages));
        // None rather than an empty list: templates ask `tools is not none` as often as `if tools`.
        let tools = if input.tools.is_empty() { json!(null) } else { json!(input.tools) };
        context.insert("tools".into(), tools);
        context.insert("documents".into(), context.get("documents").cloned().unwrap_or_default());
        context.insert("add_generation_prompt".into(), json!(input.add_generation_prompt));
        render(&self.env, variant.name, context)
    }

    fn variant(
        env: &Environment<'_>,
        special: &BTreeMap<String, String>,
        name: &'static str,
    ) -> Option<Variant> {
        env.get_template(name).ok()?;
        let form = MessageForm::probe(|messages| {
            let mut context = variables(special);
            context.insert("messages".into(), messages);
            context.insert("tools".into(), json!(null));
            context.insert("add_generation_prompt".into(), json!(false));
            render(env, name, context).ok()
        });
        Some(Variant { name, form })
    }
}

fn variables(special: &BTreeMap<String, String>) -> Map<String, serde_json::Value> {
    special.iter().map(|(name, token)| (name.clone(), json!(token))).collect()
}

fn render(
    env: &Environment<'_>,
    name: &str,
    context: Map<String, serde_json::Value>,
) -> Result<String, RenderError> {
    let render = || env.get_template(name)?.render(Value::from(Serde(context)));
    // Nothing outlives a rendering that a panic could leave half done.
    match catch_unwind(AssertUnwindSafe(render)) {
        Ok(result) => result.map_err(explain),
        Err(panic) => Err(RenderError::Panicked { reason: words(&*panic).to_owned() }),
    }
}

/// What a panic says of itself.
fn words(panic: &(dyn Any + Send)) -> &str {
    let formatted = panic.downcast_ref::<String>().map(String::as_str);
    formatted.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

/// Finds what the template itself raised, however deep in macros it did.
fn explain(error: minijinja::Error) -> RenderError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised { reason, at }) = cause.downcast_ref::<Raised>() {
            return RenderError::Raised { reason: reason.clone(), at: at.clone() };
        }
        source = cause.source();
    }
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    RenderError::Failed { line: error.line().unwrap_or(1), reason }
}
