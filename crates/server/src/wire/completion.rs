//! `POST /v1/completions`.

use super::error::ApiError;
use super::fields::Fields;
use super::options::Options;
use super::prompt::Prompts;
use octavo::MAX_LOGPROBS;

/// A request that can be tried. It exists only if every field is right.
#[derive(Debug, Clone)]
pub(crate) struct CompletionRequest {
    pub(crate) prompts: Prompts,
    pub(crate) options: Options,
    pub(crate) logprobs: Option<u8>,
    /// The prompt comes before the answer.
    pub(crate) echo: bool,
    /// The prompt begins as the model wants it.
    pub(crate) special_tokens: bool,
}

/// What OpenAI's API has always done.
pub(crate) const MAX_TOKENS: u32 = 16;

impl CompletionRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            prompts: fields.need("prompt")?,
            options: Options::take(&mut fields, &["max_tokens"])?,
            logprobs: logprobs(&mut fields)?,
            echo: fields.take("echo")?.unwrap_or(false),
            special_tokens: fields.take("add_special_tokens")?.unwrap_or(true),
        };
        fields.refuse("suffix", "text cannot be inserted, only continued")?;
        fields.end()?;
        if request.options.max_tokens == Some(0) && !request.echo {
            return Err(ApiError::field(
                "max_tokens",
                "0 leaves nothing to answer but an echo of the prompt",
            ));
        }
        Ok(request)
    }
}

/// How many alternatives each token comes with.
fn logprobs(fields: &mut Fields<'_>) -> Result<Option<u8>, ApiError> {
    let Some(count) = fields.take::<u64>("logprobs")? else { return Ok(None) };
    match u8::try_from(count) {
        Ok(count) if count <= MAX_LOGPROBS => Ok(Some(count)),
        _ => Err(ApiError::field("logprobs", format_args!("{count} is more than {MAX_LOGPROBS}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_all_that_must_be_there() {
        let request = CompletionRequest::parse(br#"{"prompt": "a"}"#).unwrap();
        assert_eq!((request.logprobs, request.echo, request.special_tokens), (None, false, true));
        assert!(CompletionRequest::parse(b"{}").is_err());
    }

    #[test]
    fn no_tokens_can_be_asked_for_only_with_an_echo() {
        assert!(CompletionRequest::parse(br#"{"prompt": "a", "max_tokens": 0}"#).is_err());
        assert!(CompletionRequest::parse(br#"{"prompt": "a", "max_tokens": 0, "echo": true}"#).is_ok());
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_name() {
        for (body, param) in [
            (r#"{"prompt": "a", "suffix": "b"}"#, "suffix"),
            (r#"{"prompt": "a", "logprobs": 21}"#, "logprobs"),
            (r#"{"prompt": "a", "messages": []}"#, "messages"),
            (r#"{"prompt": "a", "max_completion_tokens": 5}"#, "max_completion_tokens"),
        ] {
            let error = CompletionRequest::parse(body.as_bytes()).unwrap_err();
            assert!(error.body().contains(&format!("\"param\":\"{param}\"")), "{body}: {}", error.body());
        }
        assert!(CompletionRequest::parse(br#"{"prompt": "a", "suffix": null, "logprobs": 20}"#).is_ok());
    }
}
