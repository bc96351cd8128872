//! The JSON of answers and of chunks of them.

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::wire::usage::UsageBody;
use octavo::FinishReason;
use serde::Serialize;
use std::sync::Arc;

/// Which of the two APIs an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Completion,
    Chat,
}

/// What is the same in every part of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) form: Form,
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: Arc<str>,
}

#[derive(Debug, Serialize)]
struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [ChoiceBody],
    /// Where a stream ends with usage, its other chunks say null.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
}

/// How much of a prompt has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    /// Which of the request's prompts.
    pub(crate) index: u32,
    pub(crate) prompt_tokens: u32,
    pub(crate) processed_tokens: u32,
    pub(crate) cached_tokens: u32,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ChoiceBody {
    /// Of a completion, whole or a chunk.
    Text {
        index: u32,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: Option<&'static str>,
        stop_reason: Option<String>,
    },
    Message {
        index: u32,
        message: MessageBody,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
        stop_reason: Option<String>,
    },
    Delta {
        index: u32,
        delta: DeltaBody,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_reason: Option<String>,
    },
}

#[derive(Debug, Serialize)]
pub(crate) struct MessageBody {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    pub(crate) refusal: Option<()>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct DeltaBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
}

impl Head {
    /// A whole answer.
    pub(crate) fn answer(&self, choices: &[ChoiceBody], usage: UsageBody) -> String {
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion",
        };
        self.json(object, choices, Some(Some(usage)), None)
    }

    /// One chunk of a stream. `usage` is `None` in a stream without.
    pub(crate) fn chunk(
        &self,
        choices: &[ChoiceBody],
        usage: Option<Option<UsageBody>>,
        progress: Option<Progress>,
    ) -> String {
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        self.json(object, choices, usage, progress)
    }

    fn json(
        &self,
        object: &'static str,
        choices: &[ChoiceBody],
        usage: Option<Option<UsageBody>>,
        progress: Option<Progress>,
    ) -> String {
        let Self { id, created, model, .. } = self;
        let envelope = Envelope { id, object, created: *created, model, choices, usage, progress };
        serde_json::to_string(&envelope).expect("strings and numbers become JSON")
    }
}

pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "abort",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn head(form: Form) -> Head {
        Head { form, id: "x-1".into(), created: 7, model: "m".into() }
    }

    #[test]
    fn an_answer_has_the_shape_of_openai() {
        let message = MessageBody { role: "assistant", content: "hi".into(), refusal: None };
        let choice = ChoiceBody::Message {
            index: 0,
            message,
            logprobs: None,
            finish_reason: Some("stop"),
            stop_reason: None,
        };
        let json: Value =
            serde_json::from_str(&head(Form::Chat).answer(&[choice], UsageBody::default())).unwrap();
        let expected = json!({
            "id": "x-1", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                "logprobs": null, "finish_reason": "stop", "stop_reason": null,
            }],
            "usage": {
                "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_chunk_says_usage_only_in_a_stream_that_ends_with_it() {
        let without = head(Form::Chat).chunk(&[], None, None);
        assert!(!without.contains("usage"), "{without}");
        assert!(without.contains("chat.completion.chunk"), "{without}");
        let with = head(Form::Completion).chunk(&[], Some(None), None);
        assert!(with.contains("\"usage\":null"), "{with}");
    }
}
