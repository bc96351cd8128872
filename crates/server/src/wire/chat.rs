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
            return Err(ApiError::field("max_tokens", "0 leaves nothing to answer"));
        }
        Ok(request)
    }
}

impl Conversation {
    /// The fields that make up the prompt.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut tools: Vec<Value> = fields.take_json("tools")?.unwrap_or_default();
        if let Some(at) = tools.iter().position(|tool| !tool.is_object()) {
            return Err(ApiError::field(format!("tools[{at}]"), "a tool is a JSON object"));
        }
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
            kwargs: fields.take_json("chat_template_kwargs")?.unwrap_or_default(),
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
        texts.encode_chat_input(&input).map_err(|error| match error {
            LlmError::NoTemplate => ApiError::bad_request("no_chat_template", error.to_string()),
            error => ApiError::field("messages", error),
        })
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
        assert_eq!(chat(tools).unwrap().conversation.tools.len(), 1);
        let none = chat(&format!(r#"{tools}, "tool_choice": "none""#)).unwrap();
        assert!(none.conversation.tools.is_empty());
    }

    #[test]
    fn logprobs_count_their_alternatives() {
        for (rest, expected) in [
            (r#", "logprobs": true"#, Some(0)),
            (r#", "logprobs": true, "top_logprobs": 5"#, Some(5)),
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
