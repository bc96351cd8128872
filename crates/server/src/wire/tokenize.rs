//! `POST /tokenize` and `/detokenize`, in the shapes of vLLM.

use super::chat::Conversation;
use super::error::ApiError;
use super::fields::Fields;
use super::options;
use super::prompt::{Prompt, Room};
use octavo::{Scope, Texts};
use serde::Serialize;

/// A text or a conversation.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Prompt { prompt: Prompt, special_tokens: bool },
    Conversation(Conversation),
}

#[derive(Debug, Clone)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) source: Source,
    pub(crate) strings: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    pub(crate) count: usize,
    pub(crate) max_model_len: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) token_strs: Option<Vec<String>>,
}

#[derive(Debug, Clone)]
pub(crate) struct DetokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) tokens: Vec<u32>,
}

/// A prefix to pin.
#[derive(Debug, Clone)]
pub(crate) struct PinRequest {
    pub(crate) model: Option<String>,
    pub(crate) source: Source,
    pub(crate) scope: Scope,
}

impl Source {
    /// `tokens` is the name under which token ids are accepted, if they are.
    fn take(fields: &mut Fields<'_>, tokens: Option<&str>) -> Result<Self, ApiError> {
        let names = tokens.into_iter().chain(["prompt", "messages"]);
        let (given, missing): (Vec<&str>, Vec<&str>) = names.partition(|name| fields.has(name));
        fields.ignore(&missing);
        if let [first, second, ..] = given[..] {
            return Err(ApiError::field(
                second,
                format_args!("only one of {first} and {second} can be given"),
            ));
        }
        if let Some(tokens) = tokens.map(|name| fields.take(name)).transpose()?.flatten() {
            return Ok(Self::Prompt { prompt: Prompt::Tokens(tokens), special_tokens: false });
        }
        if let Some(text) = fields.take("prompt")? {
            let special_tokens = fields.take("add_special_tokens")?.unwrap_or(true);
            return Ok(Self::Prompt { prompt: Prompt::Text(text), special_tokens });
        }
        match Conversation::take(fields) {
            Ok(conversation) => {
                fields.refuse("continue_final_message", "not supported")?;
                fields
                    .refuse("add_special_tokens", "the chat template says what a conversation begins with")?;
                Ok(Self::Conversation(conversation))
            }
            Err(error) if error.message().starts_with("messages: this field is required") => {
                Err(ApiError::field("prompt", format_args!("one of {} is required", missing.join(", "))))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn encode(self, texts: &Texts, room: Room) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Prompt { prompt, special_tokens } => prompt.encode(texts, special_tokens, room),
            Self::Conversation(conversation) => conversation.encode(texts, room),
        }
    }
}

impl TokenizeRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.take("model")?,
            source: Source::take(&mut fields, None)?,
            strings: fields.take("return_token_strs")?.unwrap_or(false),
        };
        fields.end().map(|()| request)
    }
}

impl DetokenizeRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self { model: fields.take("model")?, tokens: fields.need("tokens")? };
        fields.end().map(|()| request)
    }
}

impl PinRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.take("model")?,
            source: Source::take(&mut fields, Some("tokens"))?,
            scope: options::scope(&mut fields)?,
        };
        fields.end().map(|()| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_or_a_conversation_can_be_tokenised() {
        for body in [
            r#"{"model": "m", "prompt": "a", "add_special_tokens": false}"#,
            r#"{"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false}"#,
        ] {
            let request = TokenizeRequest::parse(body.as_bytes()).expect(body);
            assert!(!matches!(request.source, Source::Prompt { special_tokens: true, .. }), "{body}");
        }
        let plain = TokenizeRequest::parse(br#"{"prompt": "a"}"#).unwrap();
        assert!(matches!(plain.source, Source::Prompt { special_tokens: true, .. }));
        for body in ["{}", r#"{"prompt": 3}"#, r#"{"prompt": "a", "messages": []}"#, r#"{"messages": []}"#] {
            TokenizeRequest::parse(body.as_bytes()).expect_err(body);
        }
    }

    #[test]
    fn one_source_is_wanted() {
        let both = br#"{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}"#;
        let error = TokenizeRequest::parse(both).unwrap_err();
        assert_eq!(error.message(), "messages: only one of prompt and messages can be given");
        let error = PinRequest::parse(br#"{"prompt": "a", "tokens": [1]}"#).unwrap_err();
        assert_eq!(error.message(), "prompt: only one of tokens and prompt can be given");
        TokenizeRequest::parse(br#"{"prompt": "a", "messages": null}"#).unwrap();
        let error = TokenizeRequest::parse(b"{}").unwrap_err();
        assert_eq!(error.message(), "prompt: one of prompt, messages is required");
        let error = PinRequest::parse(b"{}").unwrap_err();
        assert_eq!(error.message(), "prompt: one of tokens, prompt, messages is required");
    }

    #[test]
    fn what_would_change_the_tokens_and_cannot_be_had_is_refused() {
        let of = |more: &str| {
            let body = format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], {more}}}"#);
            TokenizeRequest::parse(body.as_bytes()).expect_err(more).message().to_owned()
        };
        assert!(of(r#""add_special_tokens": true"#).starts_with("add_special_tokens: "));
        assert!(of(r#""continue_final_message": true"#).starts_with("continue_final_message: "));
        assert_eq!(of(r#""x": 1"#), "unknown or unsupported: x");
    }

    #[test]
    fn a_pin_takes_tokens_too() {
        let pin = PinRequest::parse(br#"{"tokens": [1, 2], "cache_salt": "a"}"#).unwrap();
        assert_eq!(pin.scope, Scope::new(b"a", b""));
        assert!(
            matches!(pin.source, Source::Prompt { prompt: Prompt::Tokens(tokens), .. } if tokens == [1, 2])
        );
    }
}
