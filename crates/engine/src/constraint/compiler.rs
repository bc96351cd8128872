//! From a grammar to a constraint.

use super::Constraint;
use super::grammar::{Grammar, GrammarError, readable};
use super::vocab::Vocabulary;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use octavo_text::Tokenizer;
use std::sync::Arc;

/// Enough for the recursion of the longest chain of rules that is let through, whatever thread asks: 8000 rules take
/// less than a quarter of it. Only what is used takes memory.
const STACK: usize = 128 << 20;

/// Why there can be no structured output with a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompilerError {
    #[error("structured output needs at least one end token")]
    NoEndToken,
    #[error("end token {token} is not in the tokenizer, which has {vocab} tokens")]
    UnknownEndToken { token: u32, vocab: usize },
    #[error("structured output does not work with this tokenizer: {reason}")]
    Tokenizer { reason: String },
}

/// Compiles grammars for one tokenizer. Cloning shares it; any thread may use it.
#[derive(Clone)]
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    ends: Arc<[u32]>,
}

impl GrammarCompiler {
    /// Takes a fraction of a second for a large vocabulary. A text may end with any token of `eos`.
    pub fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Result<Self, CompilerError> {
        let vocab = tokenizer.vocab_size();
        if eos.is_empty() {
            return Err(CompilerError::NoEndToken);
        }
        if let Some(&token) = eos.iter().find(|token| **token as usize >= vocab) {
            return Err(CompilerError::UnknownEndToken { token, vocab });
        }
        let env: TokEnv = Arc::new(Vocabulary::new(tokenizer, eos));
        let mut factory = ParserFactory::new_simple(&env)
            .map_err(|error| CompilerError::Tokenizer { reason: readable(&error.to_string()) })?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory: Arc::new(factory), ends: eos.into() })
    }

    /// A constraint at the beginning of its text. Bounded in time and memory, but not for the engine thread: a large
    /// schema may take tens of milliseconds.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let source = grammar.checked()?;
        let invalid = |reason: String| GrammarError::Invalid { kind: grammar.kind(), reason };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = builder.spawn_scoped(scope, || self.build(source));
            match thread.map(|thread| thread.join()) {
                Ok(Ok(built)) => built.map_err(invalid),
                Ok(Err(_)) => Err(invalid(readable("panic:"))),
                Err(error) => Err(invalid(error.to_string())),
            }
        })
    }

    fn build(&self, source: TopLevelGrammar) -> Result<Constraint, String> {
        let parser = self.factory.create_parser(source).map_err(|error| readable(&format!("{error:#}")))?;
        let mut constraint = Constraint::new(Matcher::new(Ok(parser)), self.ends.clone());
        // The first mask costs the most: here rather than in a step. It also shows a grammar that allows nothing.
        constraint.mask().map_err(|error| error.to_string())?;
        Ok(constraint)
    }
}

/// The defaults allow a mask about 20 ms at the very most; text that must follow is bounded by the lexer's states. One takes
/// 1 to 2 kB: at most 100 MB a request.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 50_000, verbose_errors: false, ..ParserLimits::default() }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vocab = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("GrammarCompiler").field("vocab", &vocab).finish()
    }
}
