//! Which tokens may come next.

/// A set of tokens, one bit each. Tokens past its end are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Token `t` is bit `t % 32` of word `t / 32`.
    words: Vec<u32>,
}

/// The mask allows no token that the model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token of the model's vocabulary is allowed here")]
pub struct NothingAllowed;

impl TokenMask {
    /// Token `t` is allowed if bit `t % 32` of word `t / 32` is set. The set takes the memory of this one.
    pub fn copy_from_words(&mut self, words: &[u32]) {
        self.words.clear();
        self.words.extend_from_slice(words);
    }

    /// Allows this token and no other.
    pub(crate) fn allow_only(&mut self, token: u32) {
        self.words.clear();
        self.allow(token);
    }

    pub fn allows(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    pub fn allow(&mut self, token: u32) {
        let at = token as usize / 32;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (token % 32);
    }

    /// The lowest allowed token.
    pub fn first(&self) -> Option<u32> {
        let at = self.words.iter().position(|word| *word != 0)?;
        Some(at as u32 * 32 + self.words[at].trailing_zeros())
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// How many tokens are allowed.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The allowed tokens, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.words).flat_map(|(at, &word)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 32 + bit)
        })
    }

    /// Makes every token that is not allowed impossible.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (block, word) in logits.chunks_mut(32).zip(words) {
            // Most words are all of one kind.
            match word {
                u32::MAX => {}
                0 => block.fill(f32::NEG_INFINITY),
                _ => (0..).zip(block).filter(|(bit, _)| word >> bit & 1 == 0).for_each(|(_, logit)| {
                    *logit = f32::NEG_INFINITY;
                }),
            }
        }
    }
}

impl FromIterator<u32> for TokenMask {
    fn from_iter<T: IntoIterator<Item = u32>>(tokens: T) -> Self {
        let mut mask = Self::default();
        tokens.into_iter().for_each(|token| mask.allow(token));
        mask
    }
}
