//! Keys of pages, and prompts that carry theirs.
//!
//! A page's key is the BLAKE3 hash of its tokens, keyed with the key of the page before it; the first page's
//! parent is the root key of the request's [`Scope`]. So a key names a whole prefix within one scope, and two
//! scopes never share a key.

use octavo_types::{PageSize, Pages, Tokens};
use std::fmt;

/// 256 bits that name a prefix: a scope and every token up to the end of one page.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageKey([u8; 32]);

impl PageKey {
    /// The key of the page that follows this one with `tokens`. `scratch` is only room to work in.
    fn child(&self, tokens: &[u32], scratch: &mut Vec<u8>) -> Self {
        scratch.clear();
        scratch.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        Self(*blake3::keyed_hash(&self.0, scratch).as_bytes())
    }

    /// Already uniform, so a hash table needs no more than a slice of it.
    pub(crate) fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageKey({:016x}…)", self.short())
    }
}

/// Who may share cached pages with whom: requests of equal salt and adapter, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scope(PageKey);

impl Scope {
    /// `salt` separates tenants, `adapter` separates weights that compute other keys and values from the same
    /// tokens. Both may be empty.
    pub fn new(salt: &[u8], adapter: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("octavo kv 2026-11 prefix scope");
        hasher.update(&(salt.len() as u64).to_le_bytes());
        hasher.update(salt);
        hasher.update(adapter);
        Self(PageKey(*hasher.finalize().as_bytes()))
    }

    pub(crate) fn root(&self) -> PageKey {
        self.0
    }
    /// The scope whose root has this key.
    pub(crate) fn of_root(key: PageKey) -> Self {
        Self(key)
    }
}

/// A short name for people: neither salt nor adapter can be told from it.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.short())
    }
}

impl Default for Scope {
    /// No salt, no adapter.
    fn default() -> Self {
        Self::new(b"", b"")
    }
}

/// Tokens with the keys of their full pages. Hashing happens here and only here, once a page, on whatever
/// thread makes the prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    scope: Scope,
    page_size: PageSize,
    tokens: Vec<u32>,
    /// One a full page.
    keys: Vec<PageKey>,
    scratch: Vec<u8>,
}

/// More tokens than a position can count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} tokens are more than a sequence can hold ({max})", max = u32::MAX)]
pub struct TooLong(pub usize);

impl Prompt {
    pub fn new(tokens: Vec<u32>, scope: Scope, page_size: PageSize) -> Result<Self, TooLong> {
        Tokens::of_len(tokens.len()).ok_or(TooLong(tokens.len()))?;
        let full = tokens.len() / page_size.as_usize();
        let mut prompt =
            Self { scope, page_size, tokens, keys: Vec::with_capacity(full), scratch: Vec::new() };
        prompt.hash_full_pages();
        Ok(prompt)
    }

    /// Adds a token, as decoding does.
    pub fn push(&mut self, token: u32) -> Result<(), TooLong> {
        let len = self.tokens.len() + 1;
        Tokens::of_len(len).ok_or(TooLong(len))?;
        self.tokens.push(token);
        if len.is_multiple_of(self.page_size.as_usize()) {
            self.hash_full_pages();
        }
        Ok(())
    }

    fn hash_full_pages(&mut self) {
        let mut parent = self.keys.last().copied().unwrap_or(self.scope.root());
        let size = self.page_size.as_usize();
        for page in self.tokens[self.keys.len() * size..].chunks_exact(size) {
            parent = parent.child(page, &mut self.scratch);
            self.keys.push(parent);
        }
    }

    /// The same tokens under a key that is not theirs.
    #[cfg(test)]
    pub(crate) fn with_forged_key(mut self, index: Pages, key: PageKey) -> Self {
        self.keys[index.as_usize()] = key;
        self
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    pub fn len(&self) -> Tokens {
        Tokens(self.tokens.len() as u32)
    }
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
    /// Key of full page `index`, in the order of the tokens. Panics if there is none.
    pub fn key(&self, index: Pages) -> PageKey {
        self.keys[index.as_usize()]
    }
    /// Tokens of page `index`; fewer than a page at the end. Panics beyond it.
    pub fn page(&self, index: Pages) -> &[u32] {
        let size = self.page_size.as_usize();
        let start = index.as_usize() * size;
        &self.tokens[start..(start + size).min(self.tokens.len())]
    }
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(tokens: &[u32], scope: Scope) -> Vec<PageKey> {
        Prompt::new(tokens.to_vec(), scope, PageSize::new(4).unwrap()).unwrap().keys
    }

    #[test]
    fn a_key_depends_on_every_token_before_it_and_on_none_after() {
        let base: Vec<u32> = (0..12).collect();
        let key = keys(&base, Scope::default());
        assert_eq!(key.len(), 3);
        for changed in 0..12 {
            let mut other = base.clone();
            other[changed] += 1;
            for (page, (a, b)) in key.iter().zip(keys(&other, Scope::default())).enumerate() {
                assert_eq!(*a == b, page < changed / 4, "token {changed}, page {page}");
            }
        }
    }

    #[test]
    fn equal_pages_at_other_places_have_other_keys() {
        let key = keys(&[7; 8], Scope::default());
        assert_ne!(key[0], key[1]);
    }

    #[test]
    fn salts_and_adapters_never_meet() {
        let scopes = [
            Scope::default(),
            Scope::new(b"a", b""),
            Scope::new(b"", b"a"),
            Scope::new(b"ab", b"c"),
            Scope::new(b"a", b"bc"),
        ];
        for (i, a) in scopes.iter().enumerate() {
            for (j, b) in scopes.iter().enumerate() {
                assert_eq!(keys(&[1, 2, 3, 4], *a) == keys(&[1, 2, 3, 4], *b), i == j);
            }
        }
    }

    #[test]
    fn tokens_pushed_one_by_one_give_the_keys_of_the_whole() {
        let tokens: Vec<u32> = (0..11).collect();
        let mut grown =
            Prompt::new(tokens[..3].to_vec(), Scope::default(), PageSize::new(4).unwrap()).unwrap();
        for &token in &tokens[3..] {
            grown.push(token).unwrap();
        }
        assert_eq!(grown.keys, keys(&tokens, Scope::default()));
        assert_eq!(grown.page(Pages(2)), &[8, 9, 10]);
    }
}
