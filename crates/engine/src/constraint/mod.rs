//! Text that follows a grammar: which tokens may come next, given those that came.
//!
//! A [`GrammarCompiler`] is made once for a tokenizer. It turns a request's [`Grammar`] into a [`Constraint`], away
//! from the engine thread, since that may take tens of milliseconds. Each step then asks the constraint for its
//! [`TokenMask`], samples under it, and tells the constraint the token. A constraint knows tokens alone, no pages and
//! no positions: preemption leaves it as it is, and a fork clones it.

mod compiler;
mod grammar;
mod schema;
mod vocab;
mod work;

pub use compiler::{CompilerError, GrammarCompiler};
pub use grammar::{Grammar, GrammarError};

use crate::sampler::TokenMask;
use llguidance::Matcher;
use llguidance::api::StopReason;
use std::sync::Arc;
use std::time::Instant;
use work::Work;

/// Where a text stands in its grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something must follow.
    Unfinished,
    /// It may end here, or go on.
    MayEnd,
    /// Nothing can follow but an end token.
    MustEnd,
}

/// Why a constraint cannot go on. The request ends; the engine does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error("the grammar does not allow token {token} here")]
    NotAllowed { token: u32 },
    #[error("the tokenizer has no token that continues the text as the grammar wants")]
    NothingAllowed,
    #[error("the grammar takes too much work to follow: {reason}")]
    TooComplex { reason: String },
}

/// What one text may say, given what it has said. Clones go their own ways.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    mask: TokenMask,
    /// Whether `mask` is that of the current state.
    masked: bool,
    /// Tokens that must follow, the next one last. Kept, because the compiler cuts all text that must follow into
    /// tokens whenever it is asked for one of them.
    ahead: Vec<u32>,
    ends: Arc<[u32]>,
    work: Work,
}

impl Constraint {
    fn new(matcher: Matcher, ends: Arc<[u32]>) -> Self {
        Self {
            matcher,
            mask: TokenMask::default(),
            masked: false,
            ahead: Vec::new(),
            ends,
            work: Work::default(),
        }
    }

    /// The tokens that a text may end with, where it may end.
    pub fn end_tokens(&self) -> &Arc<[u32]> {
        &self.ends
    }

    /// The tokens that may come next: never none. Where the text must end, the end tokens. The same until a token is
    /// accepted, and computed once.
    pub fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        if !self.masked {
            let began = Instant::now();
            self.find_mask()?;
            self.work.add(began.elapsed())?;
            self.masked = true;
        }
        Ok(&self.mask)
    }

    fn find_mask(&mut self) -> Result<(), ConstraintError> {
        if self.ahead.is_empty() && !self.matcher.is_stopped() {
            self.ahead = self.matcher.compute_ff_tokens();
            self.ahead.reverse();
        }
        match self.ahead.last() {
            Some(&token) => {
                self.mask.allow_only(token);
                Ok(())
            }
            None => self.compute_mask(),
        }
    }

    fn compute_mask(&mut self) -> Result<(), ConstraintError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| Self::failure(&error))?;
        self.mask.copy_from_words(mask.as_slice());
        if self.mask.is_empty() { Err(ConstraintError::NothingAllowed) } else { Ok(()) }
    }

    /// Takes the next token of the text. A token that is not allowed changes nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.mask()?.allows(token) {
            return Err(ConstraintError::NotAllowed { token });
        }
        // Once the text must end, the parser takes no more tokens, end tokens included.
        if !self.matcher.is_stopped() {
            let began = Instant::now();
            self.matcher.consume_token(token).map_err(|error| Self::failure(&error))?;
            self.ahead.pop();
            self.masked = false;
            self.work.add_token();
            self.work.add(began.elapsed())?;
        }
        Ok(())
    }

    /// Where the text stands.
    pub fn progress(&mut self) -> Progress {
        if self.matcher.is_stopped() {
            return if self.matcher.stop_reason().is_ok() { Progress::MustEnd } else { Progress::Unfinished };
        }
        match self.matcher.is_accepting() {
            Ok(true) => Progress::MayEnd,
            _ => Progress::Unfinished,
        }
    }

    /// Whether the text is whole as it stands.
    pub fn is_complete(&mut self) -> bool {
        self.progress() != Progress::Unfinished
    }

    /// Tokens that must follow, whatever the model says; often none. They have to be accepted like any others.
    pub fn forced(&mut self) -> Vec<u32> {
        match self.mask() {
            Ok(_) => self.ahead.iter().rev().copied().collect(),
            Err(_) => Vec::new(),
        }
    }

    fn failure(error: &dyn std::fmt::Display) -> ConstraintError {
        // A matcher that failed keeps the words of its reason alone.
        match grammar::readable(&error.to_string()) {
            reason if reason == StopReason::NoExtensionBias.to_string() => ConstraintError::NothingAllowed,
            reason => ConstraintError::TooComplex { reason },
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stop = self.matcher.stop_reason();
        f.debug_struct("Constraint").field("allowed", &self.mask.count()).field("stop", &stop).finish()
    }
}
