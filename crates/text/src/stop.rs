//! Strings that end a text.
//!
//! Text comes in pieces that know nothing of stop strings: one may end in the middle of a piece, or begin in one and
//! end three later. What could still become a stop string is held back; everything else goes out at once.

use std::sync::Arc;

/// The most stop strings a request may have.
pub const MAX_STOPS: usize = 16;
/// The longest a stop string may be, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Why a list of stop strings is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    #[error("{count} stop strings: there can be at most {MAX_STOPS}")]
    TooMany { count: usize },
    #[error("stop string {index} is empty; leave it out")]
    Empty { index: usize },
    #[error("stop string {index} has {bytes} bytes: it can have at most {MAX_STOP_BYTES}")]
    TooLong { index: usize, bytes: usize },
}

/// What becomes of the stop string itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    /// The text ends before it.
    Drop,
    /// The text ends with it.
    Keep,
}

/// What one piece of text released.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pushed {
    /// Safe to show: no stop string can begin in it any more.
    pub text: String,
    /// Which stop string ended the text.
    pub stopped: Option<usize>,
}

/// Looks for stop strings in a text that arrives in pieces.
///
/// The text ends where a stop string is first complete; of several complete at the same byte the longest counts, of
/// equal ones the first in the list. So the result does not depend on how the text is cut into pieces. A byte of
/// text costs the same few steps for each stop string, however often they nearly match.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Arc<[Pattern]>,
    /// For each pattern, how much of it the text ends with.
    matched: Vec<usize>,
    /// Invariant: the longest end of the text that begins a stop string; shorter than the longest of them.
    held: String,
    stop_text: StopText,
    stopped: Option<usize>,
}

impl StopStrings {
    pub fn new<S: AsRef<str>>(stops: &[S], stop_text: StopText) -> Result<Self, StopError> {
        if stops.len() > MAX_STOPS {
            return Err(StopError::TooMany { count: stops.len() });
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.as_ref().len() {
                0 => return Err(StopError::Empty { index }),
                1..=MAX_STOP_BYTES => {}
                bytes => return Err(StopError::TooLong { index, bytes }),
            }
        }
        let patterns: Arc<[Pattern]> = stops.iter().map(|stop| Pattern::new(stop.as_ref())).collect();
        let matched = vec![0; patterns.len()];
        Ok(Self { patterns, matched, held: String::new(), stop_text, stopped: None })
    }

    /// Takes the next piece of text. After a stop string nothing more comes out.
    pub fn push(&mut self, piece: &str) -> Pushed {
        if self.stopped.is_some() {
            return Pushed { text: String::new(), stopped: self.stopped };
        }
        let mut text = std::mem::take(&mut self.held);
        let before = text.len();
        text.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                self.stopped = Some(index);
                let end = before + at + 1;
                text.truncate(match self.stop_text {
                    StopText::Drop => end - self.patterns[index].bytes.len(),
                    StopText::Keep => end,
                });
                return Pushed { text, stopped: self.stopped };
            }
        }
        Pushed { text: self.release(text), stopped: None }
    }

    /// Takes the next piece of a text that may not end yet: a stop string that is complete in it is text like any
    /// other. One that begins in it can end the text later.
    pub fn pass(&mut self, piece: &str) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        for byte in piece.bytes() {
            if self.step(byte).is_some() {
                for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
                    *matched = pattern.unfinished(*matched);
                }
            }
        }
        self.release(text)
    }

    /// The part of `text` in which no stop string can begin any more; the rest is held back.
    fn release(&mut self, mut text: String) -> String {
        // A stop string begins with the first byte of a character, and so does what may become one.
        let hold = self.matched.iter().copied().max().unwrap_or(0);
        self.held = text.split_off(text.len() - hold);
        text
    }

    /// What was held back, now that the text has ended by itself.
    pub fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }

    /// Text that waits for what follows it.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Takes one byte into every pattern; says which is now complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for (index, (pattern, matched)) in self.patterns.iter().zip(&mut self.matched).enumerate() {
            *matched = pattern.step(*matched, byte);
            let longer = complete.is_none_or(|best| pattern.bytes.len() > self.patterns[best].bytes.len());
            if *matched == pattern.bytes.len() && longer {
                complete = Some(index);
            }
        }
        complete
    }
}

/// A stop string prepared for Knuth, Morris and Pratt's search.
#[derive(Debug)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `borders[n]`: the longest proper prefix that the first `n + 1` bytes also end with.
    borders: Box<[usize]>,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let mut pattern = Self { bytes: stop.as_bytes().into(), borders: vec![0; stop.len()].into() };
        for at in 1..pattern.bytes.len() {
            pattern.borders[at] = pattern.step(pattern.borders[at - 1], pattern.bytes[at]);
        }
        pattern
    }

    /// How much of the pattern the text ends with, after `byte`, if it ended with `matched` bytes of it before.
    /// `matched` is less than the whole pattern: the search ends there.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.bytes[matched] != byte {
            matched = self.borders[matched - 1];
        }
        if self.bytes[matched] == byte { matched + 1 } else { 0 }
    }

    /// The same, once a whole match has been let go: what of the pattern may be under way.
    fn unfinished(&self, matched: usize) -> usize {
        if matched == self.bytes.len() { self.borders[matched - 1] } else { matched }
    }
}
