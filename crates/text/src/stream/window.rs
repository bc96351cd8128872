//! Decoders whose text for a token depends on its neighbours: decode a short window, give out what is new.

use super::bytes::ends_in_part;
use crate::tokenizer::{SpecialTokens, Tokenizer};
use crate::vocab::{Decoding, TokenKind};

/// Tokens kept as context. One would do for most decoders; a few more outlast those that strip several leading
/// spaces from whatever comes first.
const CONTEXT: usize = 4;
/// A character has at most four bytes, so what may be part of one has at most three.
const MOST_OF_A_PART: usize = 3;

/// The last tokens of a sequence, and how much of their text was given out.
///
/// Invariant: `ids`, but for those that came since text was last given out, decode to `shown`, and all of that was
/// given out or stands before the window's first character. Special tokens that leave no text are never in `ids`, so
/// each id counts.
#[derive(Debug, Default)]
pub(super) struct Window {
    ids: Vec<u32>,
    shown: String,
}

impl Window {
    pub(super) fn push(&mut self, id: u32, tokenizer: &Tokenizer) -> String {
        self.ids.push(id);
        // A run of byte tokens is a character, several, or all invalid: only its end tells.
        if tokenizer.vocab().kind(id) == TokenKind::Byte {
            return String::new();
        }
        let text = decode(&self.ids, tokenizer);
        if self.may_be_cut(&text, tokenizer) {
            return String::new();
        }
        let new = self.after_shown(&text).to_owned();
        if !new.is_empty() {
            self.advance(text, tokenizer);
        }
        new
    }

    pub(super) fn finish(self, tokenizer: &Tokenizer) -> String {
        let text = decode(&self.ids, tokenizer);
        self.after_shown(&text).to_owned()
    }

    /// Whether more tokens could make a character of what the text ends with.
    fn may_be_cut(&self, text: &str, tokenizer: &Tokenizer) -> bool {
        let mixed = tokenizer.vocab().decoding() == Decoding::Mixed;
        if !mixed || !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return false;
        }
        let backwards = self.ids.iter().rev().flat_map(|&id| tokenizer.token_bytes(id).iter().rev());
        let mut tail: Vec<u8> = backwards.copied().take(MOST_OF_A_PART).collect();
        tail.reverse();
        ends_in_part(&tail)
    }

    /// What `text` adds to what was shown. A decoder that rewrites the past cannot take back what was given out,
    /// so only the part after the common beginning counts.
    fn after_shown<'a>(&self, text: &'a str) -> &'a str {
        if let Some(new) = text.strip_prefix(self.shown.as_str()) {
            return new;
        }
        let same = text.chars().zip(self.shown.chars()).take_while(|(a, b)| a == b);
        &text[same.map(|(c, _)| c.len_utf8()).sum()..]
    }

    fn advance(&mut self, text: String, tokenizer: &Tokenizer) {
        let drop = self.ids.len().saturating_sub(CONTEXT);
        let context = decode(&self.ids[drop..], tokenizer);
        // Context without text may be what a decoder strips at the beginning; then the next token would lose its
        // leading space, so the window stays until it has something to show.
        if context.is_empty() {
            self.shown = text;
        } else {
            self.ids.drain(..drop);
            self.shown = context;
        }
    }
}

/// A token that its own decoder rejects still reaches the reader, as the tokenizer writes it.
fn decode(ids: &[u32], tokenizer: &Tokenizer) -> String {
    tokenizer.decode(ids, SpecialTokens::Show).unwrap_or_else(|_| {
        ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.token_bytes(id))).collect()
    })
}
