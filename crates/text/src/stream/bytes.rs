//! UTF-8 in pieces: the text of a byte stream as soon as it is certain.

/// Reads bytes as `String::from_utf8_lossy` does, whatever the pieces they come in.
///
/// Invariant: `held` is the beginning of a character that more bytes could complete, so at most three bytes.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    held: Vec<u8>,
}

impl Utf8 {
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    rest = after;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
        text
    }

    pub(super) fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

/// Whether the bytes end in the beginning of a character that more bytes could complete.
pub(super) fn ends_in_part(bytes: &[u8]) -> bool {
    let is_part = |bytes| {
        std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (0..bytes.len()).any(|start| is_part(&bytes[start..]))
}

#[cfg(test)]
mod tests {
    use super::{Utf8, ends_in_part};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_ends_in_part_is_what_would_be_held_back(bytes in prop::collection::vec(any::<u8>(), 0..6)) {
            let mut utf8 = Utf8::default();
            utf8.push(&bytes);
            prop_assert_eq!(ends_in_part(&bytes), !utf8.held.is_empty());
        }

        #[test]
        fn bytes_in_any_pieces_read_as_the_whole_does(
            pieces in prop::collection::vec(
                prop_oneof![prop::collection::vec(any::<u8>(), 0..4), "\\PC{0,2}".prop_map(String::into_bytes)],
                0..24,
            ),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = pieces.concat();
            let (left, right) = whole.split_at(cut.index(whole.len() + 1));
            for parts in [pieces.clone(), vec![left.to_vec(), right.to_vec()], whole.chunks(1).map(Vec::from).collect()] {
                let mut utf8 = Utf8::default();
                let mut text = String::new();
                for part in &parts {
                    text += &utf8.push(part);
                    prop_assert!(utf8.held.len() <= 3);
                }
                text += &utf8.finish();
                prop_assert_eq!(&text, &String::from_utf8_lossy(&whole));
            }
        }
    }
}
