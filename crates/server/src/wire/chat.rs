//! `POST /v1/chat/completions`.

use super::error::ApiError;
use super::fields::Fields;
use super::message;
use super::options::Options;
use super::prompt::Room;
use octavo::{ChatInput, Content, LlmError, MAX_LOGPROBS, Message, Part, Texts};
use serde_json::{Map, Value};

/// A request that can be tried. It exists only if every field is right.
#[derive(Debug, Clone)]
pub(crate) struct ChatRequest {
    pub(crate) conversation: Conversation,
    pub(crate) options: Options,
    pub(crate) logprobs: Option<u8>,
}

/// What the chat template makes a prompt of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    tools: Vec<Value>,
    kwargs: Map<String, Value>,
    generation_prompt: bool,
}

const UNSUPPORTED: &[(&str, &str)] = &[
    ("audio", "only text is written"),
    ("continue_final_message", "use /v1/completions to continue a text"),
    ("echo", "only on /v1/completions"),
    ("function_call", "use tools"),
    ("functions", "use tools"),
    ("reasoning_effort", "give the template's own variables in chat_template_kwargs"),
    ("suffix", "text cannot be inserted"),
    ("verbosity", "it has no meaning for this model"),
    ("web_search_options", "nothing is searched"),
];

impl ChatRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            conversation: Conversation::take(&mut fields)?,
            options: Options::take(&mut fields, &["max_completion_tokens", "max_tokens"])?,
            logprobs: logprobs(&mut fields)?,
        };
        if let Some(modalities) = fields.take::<Vec<String>>("modalities")?
            && modalities.iter().any(|modality| modality != "text")
        {
            return Err(ApiError::unsupported("modalities", "only text is written"));
        }
        for (name, why) in UNSUPPORTED {
            fields.refuse(name, why)?;
        }
        fields.end()?;
        if request.options.max_tokens == Some(0) {
            return Err(ApiError::field(request.options.limit_name, "0 leaves nothing to answer"));
        }
        Ok(request)
    }
}

impl Conversation {
    /// The fields that make up the prompt.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut tools: Vec<Value> = fields.take_json("tools")?.unwrap_or_default();
        tools.iter().enumerate().try_for_each(|(at, tool)| check_tool(at, tool))?;
        match fields.take_json::<Value>("tool_choice")? {
            None => {}
            Some(choice) if choice == "auto" => {}
            // A model that is told of no tools calls none.
            Some(choice) if choice == "none" => tools.clear(),
            Some(_) => {
                let message = "only \"auto\" and \"none\": the model decides whether it calls a tool";
                return Err(ApiError::unsupported("tool_choice", message));
            }
        }
        Ok(Self {
            messages: message::take(fields)?,
            tools,
            kwargs: kwargs(fields)?,
            generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
        })
    }

    /// Bytes that a template may make text of.
    fn len(&self) -> usize {
        let messages: usize = self.messages.iter().map(text_len).sum();
        messages + json_len(self.tools.iter()) + json_len(self.kwargs.values())
    }

    pub(crate) fn encode(&self, texts: &Texts, room: Room) -> Result<Vec<u32>, ApiError> {
        room.check(self.len())?;
        let input = ChatInput {
            messages: &self.messages,
            tools: &self.tools,
            add_generation_prompt: self.generation_prompt,
            extra: Some(&self.kwargs),
        };
        let refused = |error| match error {
            LlmError::NoTemplate => ApiError::bad_request("no_chat_template", error.to_string()),
            error => ApiError::field("messages", error),
        };
        let text = texts.render_chat(&input).map_err(refused)?;
        // A template adds to every message, however short.
        room.check(text.len())?;
        texts.encode_rendered(&text).map_err(refused)
    }
}

/// What a template is given by fields of their own.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Further variables of the template.
fn kwargs(fields: &mut Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let kwargs: Map<String, Value> = fields.take_json("chat_template_kwargs")?.unwrap_or_default();
    match RESERVED.into_iter().find(|name| kwargs.contains_key(*name)) {
        None => Ok(kwargs),
        Some(name) => {
            let message = format!("not here: use the request's own field {name}");
            Err(ApiError::field(format!("chat_template_kwargs.{name}"), message))
        }
    }
}

/// Only what every template may rely on.
fn check_tool(at: usize, tool: &Value) -> Result<(), ApiError> {
    let path = |field: &str| format!("tools[{at}]{field}");
    if !tool.is_object() {
        return Err(ApiError::field(path(""), "a tool is a JSON object"));
    }
    match &tool["type"] {
        Value::String(kind) if kind == "function" => {}
        Value::String(kind) => {
            return Err(ApiError::unsupported(path(".type"), format_args!("{kind:?}: only \"function\"")));
        }
        _ => return Err(ApiError::field(path(".type"), "this field is required: \"function\"")),
    }
    if !tool["function"].is_object() {
        return Err(ApiError::field(path(".function"), "an object with the function's name is required"));
    }
    match &tool["function"]["name"] {
        Value::String(name) if !name.is_empty() => Ok(()),
        _ => Err(ApiError::field(path(".function.name"), "a string is required")),
    }
}

fn text_len(message: &Message) -> usize {
    let text = match &message.content {
        None => 0,
        Some(Content::Text(text)) => text.len(),
        Some(Content::Parts(parts)) => parts.iter().map(|Part::Text { text }| text.len()).sum(),
    };
    text + json_len(message.rest.values())
}

fn json_len<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    values.map(|value| value.to_string().len()).sum()
}

/// `logprobs` says whether, `top_logprobs` how many alternatives.
fn logprobs(fields: &mut Fields<'_>) -> Result<Option<u8>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    match fields.take::<u64>("top_logprobs")? {
        None => Ok(wanted.then_some(0)),
        Some(top) if top > MAX_LOGPROBS.into() => {
            Err(ApiError::field("top_logprobs", format_args!("{top} is more than {MAX_LOGPROBS}")))
        }
        Some(0) if !wanted => Ok(None),
        Some(_) if !wanted => Err(ApiError::field("top_logprobs", "only with logprobs: true")),
        Some(top) => Ok(Some(top as u8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(rest: &str) -> Result<ChatRequest, ApiError> {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "hi"}}]{rest}}}"#);
        ChatRequest::parse(body.as_bytes())
    }

    #[test]
    fn messages_are_all_that_must_be_there() {
        let request = chat("").unwrap();
        assert_eq!(request.logprobs, None);
        assert!(request.conversation.generation_prompt);
        assert!(ChatRequest::parse(b"{}").is_err());
    }

    #[test]
    fn tools_reach_the_template_unless_none_is_chosen() {
        let tools = r#", "tools": [{"type": "function", "function": {"name": "f"}}]"#;
        for chosen in [tools.into(), format!(r#"{tools}, "tool_choice": "auto""#)] {
            assert_eq!(chat(&chosen).unwrap().conversation.tools.len(), 1, "{chosen}");
        }
        let none = chat(&format!(r#"{tools}, "tool_choice": "none""#)).unwrap();
        assert!(none.conversation.tools.is_empty());
    }

    #[test]
    fn logprobs_count_their_alternatives() {
        for (rest, expected) in [
            (r#", "logprobs": true"#, Some(0)),
            (r#", "logprobs": true, "top_logprobs": 20"#, Some(20)),
            (r#", "logprobs": false, "top_logprobs": 0"#, None),
        ] {
            assert_eq!(chat(rest).unwrap().logprobs, expected, "{rest}");
        }
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_name() {
        for (rest, param) in [
            (r#""tool_choice": "required""#, "tool_choice"),
            (r#""tool_choice": {"type": "function", "function": {"name": "f"}}"#, "tool_choice"),
            (r#""tools": [3]"#, "tools[0]"),
            (r#""functions": [{"name": "f"}]"#, "functions"),
            (r#""audio": {"voice": "x"}"#, "audio"),
            (r#""modalities": ["text", "audio"]"#, "modalities"),
            (r#""top_logprobs": 2"#, "top_logprobs"),
            (r#""logprobs": true, "top_logprobs": 21"#, "top_logprobs"),
            (r#""logprobs": 3"#, "logprobs"),
            (r#""max_tokens": 0"#, "max_tokens"),
            (r#""max_completion_tokens": 0"#, "max_completion_tokens"),
            (r#""max_completion_tokens": 0, "max_tokens": 5"#, "max_completion_tokens"),
            (r#""tools": [{}]"#, "tools[0].type"),
            (r#""tools": [{"type": "web"}]"#, "tools[0].type"),
            (r#""tools": [{"type": "function"}]"#, "tools[0].function"),
            (r#""tools": [{"type": "function", "function": 5}]"#, "tools[0].function"),
            (r#""tools": [{"type": "function", "function": {"name": 5}}]"#, "tools[0].function.name"),
            (r#""tools": [{"type": "function", "function": {"name": ""}}]"#, "tools[0].function.name"),
            (r#""web_search_options": {}"#, "web_search_options"),
            (r#""user": 5"#, "user"),
            (r#""chat_template_kwargs": {"messages": []}"#, "chat_template_kwargs.messages"),
            (r#""chat_template_kwargs": {"tools": null}"#, "chat_template_kwargs.tools"),
            (
                r#""chat_template_kwargs": {"a": 1, "add_generation_prompt": false}"#,
                "chat_template_kwargs.add_generation_prompt",
            ),
            (r#""prompt": "x""#, "prompt"),
            (r#""reasoning_effort": "high""#, "reasoning_effort"),
            (r#""chat_template_kwargs": 3"#, "chat_template_kwargs"),
        ] {
            let error = chat(&format!(", {rest}")).expect_err(rest);
            assert!(error.body().contains(&format!("\"param\":\"{param}\"")), "{rest}: {}", error.body());
        }
        chat(r#", "modalities": ["text"], "audio": null, "parallel_tool_calls": true"#).unwrap();
    }
}
