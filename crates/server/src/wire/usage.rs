//! What an answer took.

use octavo::Usage;
use serde::Serialize;

/// OpenAI's `usage`, over all prompts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UsageBody {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

impl UsageBody {
    pub(crate) fn add(&mut self, usage: &Usage) {
        self.prompt_tokens += u64::from(usage.prompt_tokens.0);
        self.completion_tokens += usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        self.prompt_tokens_details.cached_tokens += u64::from(usage.cached_tokens.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::Tokens;

    #[test]
    fn usage_adds_up_over_prompts() {
        let mut body = UsageBody::default();
        let (prompt_tokens, cached_tokens) = (Tokens(10), Tokens(4));
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 3, ..Usage::default() };
        body.add(&usage);
        body.add(&usage);
        let expected = serde_json::json!({
            "prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26,
            "prompt_tokens_details": {"cached_tokens": 8},
        });
        assert_eq!(serde_json::to_value(body).unwrap(), expected);
    }
}
