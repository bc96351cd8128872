//! How likely tokens were, in the two forms of OpenAI.

use super::offset::Offset;
use octavo::{TokenLogprobs, Tokenizer};
use serde::{Serialize, Serializer};

/// JSON has no infinity; this is what OpenAI sends for "never".
const NEVER: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(NEVER)
}

/// The form of `/v1/completions`: lists side by side.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    top_logprobs: Vec<Option<ByName>>,
}

/// An object with a field a token, the likeliest first.
#[derive(Debug, Clone, Default, PartialEq)]
struct ByName(Vec<(String, f32)>);

impl ByName {
    /// Different tokens can have one name; the likelier keeps it.
    fn push(&mut self, name: String, logprob: f32) {
        if !self.0.iter().any(|(known, _)| *known == name) {
            self.0.push((name, finite(logprob)));
        }
    }
}

impl Serialize for ByName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

impl CompletionLogprobs {
    /// Adds a token that begins at `offset`, which moves to where the next one does.
    pub(crate) fn push(&mut self, token: &TokenLogprobs, tokenizer: &Tokenizer, offset: &mut Offset) {
        let name = |id: u32| printable(tokenizer.token_bytes(id));
        let mut top = ByName::default();
        token.top.iter().for_each(|(id, logprob)| top.push(name(*id), *logprob));
        // The chosen token is among them even if it is none of the likeliest.
        top.push(name(token.token), token.logprob);
        self.text_offset.push(offset.characters());
        self.token_logprobs.push(Some(finite(token.logprob)));
        self.tokens.push(name(token.token));
        self.top_logprobs.push(Some(top));
        pass(token.token, tokenizer, offset);
    }

    /// Adds a token of which nothing is known, as the first of a text.
    pub(crate) fn push_unknown(&mut self, token: u32, tokenizer: &Tokenizer, offset: &mut Offset) {
        self.text_offset.push(offset.characters());
        self.token_logprobs.push(None);
        self.tokens.push(printable(tokenizer.token_bytes(token)));
        self.top_logprobs.push(None);
        pass(token, tokenizer, offset);
    }
}

/// Special tokens leave no text.
fn pass(token: u32, tokenizer: &Tokenizer, offset: &mut Offset) {
    if !tokenizer.is_special(token) {
        offset.add(tokenizer.token_bytes(token));
    }
}

/// A token's text; of part of a character, its bytes as OpenAI writes them.
fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().fold("bytes:".into(), |text, byte| text + &format!("\\x{byte:02x}")),
    }
}

/// The form of `/v1/chat/completions`: one object a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: Likely,
    top_logprobs: Vec<Likely>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Likely {
    token: String,
    logprob: f32,
    /// Exact where the token is part of a character.
    bytes: Vec<u8>,
}

impl Likely {
    fn new(token: u32, logprob: f32, tokenizer: &Tokenizer) -> Self {
        let bytes = tokenizer.token_bytes(token);
        let token = String::from_utf8_lossy(bytes).into_owned();
        Self { token, logprob: finite(logprob), bytes: bytes.into() }
    }
}

impl ChatLogprobs {
    pub(crate) fn push(&mut self, token: &TokenLogprobs, tokenizer: &Tokenizer) {
        let likely = |(token, logprob): &(u32, f32)| Likely::new(*token, *logprob, tokenizer);
        self.content.push(ChatToken {
            token: likely(&(token.token, token.logprob)),
            top_logprobs: token.top.iter().map(likely).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::{Llm, Options};
    use serde_json::json;

    #[test]
    fn part_of_a_character_is_written_as_bytes() {
        assert_eq!(printable(b" the"), " the");
        assert_eq!(printable(&[0xe2, 0x80]), "bytes:\\xe2\\x80");
    }

    #[test]
    fn never_is_a_number() {
        assert_eq!(finite(f32::NEG_INFINITY), -9999.0);
        assert_eq!(finite(-0.5), -0.5);
    }

    #[test]
    fn a_token_that_is_none_of_the_likeliest_is_among_them_and_a_special_one_takes_no_place() {
        let texts = Llm::load(&Options::default(), &mut |_| {}).unwrap().serve().texts;
        let tokenizer = texts.tokenizer();
        let (special, a, b) = (2, 67, 68);
        assert!(tokenizer.is_special(special) && tokenizer.token_bytes(a) == b"a");
        let token =
            |token| TokenLogprobs { token, logprob: f32::NEG_INFINITY, rank: 9, top: vec![(a, -0.5)] };
        let (mut completion, mut chat) = (CompletionLogprobs::default(), ChatLogprobs::default());
        let mut offset = Offset::default();
        completion.push_unknown(special, tokenizer, &mut offset);
        for id in [special, a, b] {
            completion.push(&token(id), tokenizer, &mut offset);
        }
        chat.push(&token(b), tokenizer);
        let end = "<|im_end|>";
        let lists = json!({
            "text_offset": [0, 0, 0, 1], "tokens": [end, end, "a", "b"],
            "token_logprobs": [null, -9999.0, -9999.0, -9999.0],
            "top_logprobs": [null, {"a": -0.5, end: -9999.0}, {"a": -0.5}, {"a": -0.5, "b": -9999.0}],
        });
        assert_eq!(serde_json::to_value(completion).unwrap(), lists);
        let content = json!([{"token": "b", "logprob": -9999.0, "bytes": [98],
            "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}]);
        assert_eq!(serde_json::to_value(chat).unwrap(), json!({"content": content, "refusal": null}));
    }
}
