//! Prompts of completions: text or tokens, one or many.

use super::error::ApiError;
use octavo::{Markup, Texts};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// At least one prompt, in the order in which they are answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

impl Prompt {
    /// Its tokens; `room` bounds what is worth tokenising.
    pub(crate) fn encode(self, texts: &Texts, special: bool, room: Room) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Tokens(tokens) => Ok(tokens),
            Self::Text(text) => {
                room.check(text.len())?;
                let unencodable = |error: &dyn fmt::Display| ApiError::field("prompt", error);
                if special {
                    texts.encode_prompt(&text).map_err(|error| unencodable(&error))
                } else {
                    texts.tokenizer().encode(&text, Markup::Parse).map_err(|error| unencodable(&error))
                }
            }
        }
    }
}

/// Bytes that take neither long nor much memory to tokenise (200 times as much), whatever they are.
const TOGETHER: usize = 1 << 20;

/// How long a text can be and still fit: no token stands for more bytes than the longest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) tokens: u32,
    pub(crate) longest_token: usize,
}

impl Room {
    fn bytes(self) -> usize {
        (self.tokens as usize).saturating_mul(self.longest_token)
    }

    /// For texts that are only counted: [`TOGETHER`] at least, whatever the model takes.
    pub(crate) fn for_counting(self) -> Self {
        let tokens = u32::try_from(TOGETHER.div_ceil(self.longest_token.max(1))).unwrap_or(u32::MAX);
        Self { tokens: self.tokens.max(tokens), ..self }
    }

    /// All texts of a request are tokenised at one go: together they may be as long as a single one, or [`TOGETHER`].
    pub(crate) fn check_all(self, Prompts(prompts): &Prompts) -> Result<(), ApiError> {
        let (most, mut sum) = (self.bytes().max(TOGETHER), 0);
        for prompt in prompts {
            if let Prompt::Text(text) = prompt {
                self.check(text.len())?;
                sum += text.len();
            }
        }
        if sum <= most {
            return Ok(());
        }
        let message = format!(
            "the prompts have {sum} bytes together, one request may have at most {most}: send them in several"
        );
        Err(ApiError::field("prompt", message))
    }

    pub(crate) fn check(self, bytes: usize) -> Result<(), ApiError> {
        let most = self.bytes();
        if bytes <= most {
            return Ok(());
        }
        let message = format!(
            "the prompt has {bytes} bytes, and {most} are the most that is tokenised: {} tokens of at most {} bytes each",
            self.tokens, self.longest_token
        );
        Err(ApiError::bad_request("context_length_exceeded", message).with_param("prompt"))
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

const EXPECTED: &str = "a string, token ids, or a list of either";

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.into())]))
    }
    fn visit_string<E: Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text)]))
    }

    /// The first element says what the others must be.
    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Prompts, S::Error> {
        match seq.next_element()? {
            None => Err(S::Error::custom("there is no prompt in the list")),
            Some(Element::Token(first)) => Ok(Prompts(vec![Prompt::Tokens(rest(vec![first], &mut seq)?)])),
            Some(Element::Text(first)) => {
                let texts = rest(vec![first], &mut seq)?;
                Ok(Prompts(texts.into_iter().map(Prompt::Text).collect()))
            }
            Some(Element::Tokens(first)) => {
                let lists: Vec<Vec<u32>> = rest(vec![first], &mut seq)?;
                Ok(Prompts(lists.into_iter().map(Prompt::Tokens).collect()))
            }
        }
    }
}

fn rest<'de, T: Deserialize<'de>, S: SeqAccess<'de>>(
    mut found: Vec<T>,
    seq: &mut S,
) -> Result<Vec<T>, S::Error> {
    while let Some(next) = seq.next_element()? {
        found.push(next);
    }
    Ok(found)
}

/// The first element of a list.
enum Element {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or token ids")
            }
            fn visit_u64<E: Error>(self, token: u64) -> Result<Element, E> {
                let unknown = |_| E::custom(format_args!("{token} is not a token id"));
                u32::try_from(token).map(Element::Token).map_err(unknown)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.into()))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
                Ok(Element::Text(text))
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Element, S::Error> {
                Ok(Element::Tokens(rest(Vec::new(), &mut seq)?))
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fields::Fields;

    fn prompts(json: &str) -> Result<Prompts, ApiError> {
        let body = format!(r#"{{"prompt": {json}}}"#);
        Fields::parse(body.as_bytes())?.need("prompt")
    }

    #[test]
    fn a_prompt_is_text_or_tokens_one_or_many() {
        let text = |text: &str| Prompt::Text(text.into());
        for (json, expected) in [
            (r#""a""#, vec![text("a")]),
            (r#"["a", "b\n"]"#, vec![text("a"), text("b\n")]),
            ("[1, 2]", vec![Prompt::Tokens(vec![1, 2])]),
            ("[[1], [2, 3]]", vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]),
            (r#""""#, vec![text("")]),
        ] {
            assert_eq!(prompts(json).unwrap(), Prompts(expected), "{json}");
        }
    }

    #[test]
    fn a_prompt_of_another_type_is_refused_where_it_is_wrong() {
        for (json, path) in [
            ("[]", "prompt: there is no prompt"),
            ("3", "prompt: invalid type: integer `3`, expected a string"),
            ("{}", "prompt: invalid type: map"),
            ("[1, \"a\"]", "prompt[1]: "),
            ("[\"a\", 1]", "prompt[1]: "),
            ("[[1], [-1]]", "prompt[1][0]: "),
            ("[[1, 2.5]]", "prompt[0][1]: "),
            ("[4294967296]", "prompt[0]: 4294967296 is not a token id"),
            ("[null]", "prompt[0]: invalid type: null"),
            ("[[[1]]]", "prompt[0][0]: "),
        ] {
            let error = prompts(json).unwrap_err();
            assert!(error.message().starts_with(path), "{json}: {}", error.message());
        }
        assert!(prompts("null").unwrap_err().message().contains("required"));
    }

    #[test]
    fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
        let room = Room { tokens: 10, longest_token: 4 };
        assert!(room.check(40).is_ok());
        assert!(room.check(41).is_err());
        // Texts that are only counted may be longer, and as long as the model takes.
        assert_eq!(room.for_counting().bytes(), TOGETHER);
        let large = Room { tokens: TOGETHER as u32, longest_token: 4 };
        assert_eq!(large.for_counting().bytes(), 4 * TOGETHER);
    }

    #[test]
    fn texts_together_may_be_as_long_as_a_single_one() {
        let room = Room { tokens: TOGETHER as u32 / 2, longest_token: 4 };
        let mega = TOGETHER;
        let check = |lens: &[usize]| {
            room.check_all(&Prompts(lens.iter().map(|len| Prompt::Text("a".repeat(*len))).collect()))
        };
        assert!(check(&[mega, mega]).is_ok());
        assert_eq!(check(&[mega, mega + 1]).unwrap_err().code(), Some("invalid_value"));
        assert_eq!(check(&[1, 2 * mega + 1]).unwrap_err().code(), Some("context_length_exceeded"));
        let small = Room { tokens: 10, longest_token: 4 };
        assert!(small.check_all(&Prompts(vec![Prompt::Text("a".repeat(40)); 256])).is_ok());
        // Nothing is tokenised here.
        assert!(room.check_all(&Prompts(vec![Prompt::Tokens(vec![5; 30]); 30])).is_ok());
    }
}
