//! Where a token begins in its text.

/// Characters of a text whose bytes come token by token, counted as they are read: what is not UTF-8 is one character for
/// each part that `String::from_utf8_lossy` replaces.
///
/// Invariant: `held` is the beginning of a character that more bytes could complete.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Offset {
    complete: usize,
    held: Vec<u8>,
}

impl Offset {
    /// Characters that have begun.
    pub(crate) fn characters(&self) -> usize {
        self.complete + usize::from(!self.held.is_empty())
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.held);
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.complete += chunk.valid().chars().count();
            let broken = chunk.invalid();
            let is_last = chunks.peek().is_none();
            if is_last && std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none()) {
                self.held = broken.to_vec();
            } else if !broken.is_empty() {
                self.complete += 1;
            }
        }
    }

    /// The text ends; another may follow it.
    pub(crate) fn end(&mut self) {
        self.complete = self.characters();
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each of these begins.
    fn offsets(tokens: &[&[u8]]) -> Vec<usize> {
        let mut offset = Offset::default();
        let begin = |token: &&[u8]| {
            let at = offset.characters();
            offset.add(token);
            at
        };
        tokens.iter().map(begin).collect()
    }

    #[test]
    fn characters_count_where_they_begin_and_what_is_none_as_what_replaces_it() {
        assert_eq!(offsets(&[b"ab", "\u{e9}".as_bytes(), b"c"]), [0, 2, 3]);
        // Of four bytes, in three tokens.
        assert_eq!(offsets(&[b"\xf0\x9f", b"\x98", b"\x80", b"!"]), [0, 1, 1, 1]);
        // A byte that continues nothing, one that begins what never comes.
        assert_eq!(offsets(&[b"\x80", b"\xe1", b": u", b"3"]), [0, 1, 2, 5]);
        let mut offset = Offset::default();
        offset.add(b"\xe1");
        offset.end();
        offset.add(b"\x80");
        assert_eq!(offset.characters(), 2, "another text completes nothing");
    }
}
