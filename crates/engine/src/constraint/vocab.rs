//! A tokenizer as llguidance sees it.

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use octavo_text::{Markup, Tokenizer};

/// Texts that a tokenizer must cut into tokens of just these bytes before it is trusted with forced text.
const PROBES: [&str; 6] = ["{\"a\": [1, 2.5]}", "a", " a", "true", "\n  \"", "é"];

/// A tokenizer and the tree of its tokens' bytes.
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
    canonical: bool,
}

impl Vocabulary {
    /// `eos` is not empty, and its tokens exist.
    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Self {
        let size = u32::try_from(tokenizer.vocab_size()).expect("token ids are 32 bits wide");
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, eos[0]), &words).with_eos_tokens(eos);
        // Some tokenizers put a space before every text, which is wrong in the middle of one.
        let canonical = PROBES.iter().all(|probe| exact_tokens(tokenizer, probe).is_some());
        Self { tokenizer: tokenizer.clone(), trie, canonical }
    }
}

/// The bytes of a token. A special token is kept apart from text that spells its name.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if tokenizer.is_special(id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER][..], bytes].concat()
    } else {
        bytes.to_vec()
    }
}

/// The tokens of `text` if they stand for its bytes, no more and no less.
fn exact_tokens(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    let tokens = tokenizer.encode(text, Markup::Literal).ok()?;
    let bytes = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token));
    bytes.eq(text.as_bytes()).then_some(tokens)
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = exact_tokens(&self.tokenizer, text);
            tokens.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}
