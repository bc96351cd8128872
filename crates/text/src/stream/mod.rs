//! Tokens to text, one at a time.

mod bytes;
mod window;

use crate::tokenizer::{SpecialTokens, Tokenizer};
use crate::vocab::{Decoding, TokenKind};
use bytes::Utf8;
use window::Window;

/// Text of a sequence while it grows.
///
/// Invariant: what [`push`](Self::push) returned, joined, and then [`finish`](Self::finish), is the text that
/// [`Tokenizer::decode`] gives for all tokens at once; no later token changes text already given out, and no
/// piece splits a character. Memory and time a token do not grow with the sequence, but for a run of byte tokens, which
/// is kept until it ends.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    special: SpecialTokens,
    state: State,
}

#[derive(Debug)]
enum State {
    Bytes(Utf8),
    Window(Window),
}

impl TextStream {
    pub(crate) fn new(tokenizer: Tokenizer, special: SpecialTokens) -> Self {
        let state = match tokenizer.vocab().decoding() {
            Decoding::Bytes => State::Bytes(Utf8::default()),
            Decoding::Fallback | Decoding::Mixed | Decoding::Text => State::Window(Window::default()),
        };
        Self { tokenizer, special, state }
    }

    /// Takes the next token, and returns the text that is final with it, if any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        match self.tokenizer.vocab().kind(id) {
            // Decoding drops these before its decoder sees them.
            TokenKind::Unknown => return None,
            TokenKind::Special if self.special == SpecialTokens::Skip => return None,
            TokenKind::Special | TokenKind::Byte | TokenKind::Text => {}
        }
        let text = match &mut self.state {
            State::Bytes(utf8) => utf8.push(self.tokenizer.token_bytes(id)),
            State::Window(window) => window.push(id, &self.tokenizer),
        };
        (!text.is_empty()).then_some(text)
    }

    /// The text that was held back for a token that never came.
    pub fn finish(self) -> String {
        match self.state {
            State::Bytes(utf8) => utf8.finish(),
            State::Window(window) => window.finish(&self.tokenizer),
        }
    }
}
