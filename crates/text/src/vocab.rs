//! What each token stands for in bytes, worked out once when the tokenizer is loaded.

use tokenizers::DecoderWrapper;

/// How tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// Each token is a run of bytes, and text is those bytes read as UTF-8: no token depends on another.
    Bytes,
    /// Tokens are pieces of text, and a character outside the vocabulary is a run of byte tokens `<0xE4>`; the
    /// run is one unit, invalid as a whole or not at all.
    Fallback,
    /// A decoder in several steps, one of which reads bytes.
    Mixed,
    /// Tokens are pieces of text.
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// An id that no token has.
    Unknown,
    Text,
    /// One byte of a character: `<0xE4>`.
    Byte,
    Special,
}

/// More ids than any vocabulary has: a hundred times those of the largest known.
const MOST_IDS: u32 = 1 << 24;

#[derive(Debug, thiserror::Error)]
#[error("token {token:?} has the id {id}, and ids must be below {MOST_IDS}")]
pub(crate) struct IdTooLarge {
    token: String,
    id: u32,
}

/// Bytes and kind of every id in `0..len()`, bytes in one allocation.
///
/// Invariant: `ends` and `kinds` are equally long, `ends` never falls and ends at `bytes.len()`.
#[derive(Debug)]
pub(crate) struct Vocab {
    decoding: Decoding,
    kinds: Vec<TokenKind>,
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Vocab {
    /// Refuses ids that no model has rows for, with the token: every id up to the largest takes memory.
    pub(crate) fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Self, IdTooLarge> {
        let decoding = decoding(tokenizer.get_decoder());
        let vocab = tokenizer.get_vocab(true);
        if let Some((token, &id)) = vocab.iter().find(|(_, id)| **id >= MOST_IDS) {
            return Err(IdTooLarge { token: token.clone(), id });
        }
        let len = vocab.values().max().map_or(0, |&id| id + 1);
        let mut vocab = Self { decoding, kinds: Vec::new(), ends: Vec::new(), bytes: Vec::new() };
        let from_char = byte_of_char();
        for id in 0..len {
            let token = tokenizer.id_to_token(id);
            let kind = match &token {
                None => TokenKind::Unknown,
                Some(token) if tokenizer.get_added_vocabulary().is_special_token(token) => TokenKind::Special,
                Some(token) if decoding == Decoding::Fallback && fallback_byte(token).is_some() => {
                    TokenKind::Byte
                }
                Some(_) => TokenKind::Text,
            };
            if let Some(token) = token {
                vocab.push_bytes(&token, &from_char);
            }
            vocab.kinds.push(kind);
            vocab.ends.push(u32::try_from(vocab.bytes.len()).expect("a vocabulary is under 4 GiB"));
        }
        Ok(vocab)
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn decoding(&self) -> Decoding {
        self.decoding
    }

    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unknown)
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..end as usize]
    }

    fn push_bytes(&mut self, token: &str, from_char: &[Option<u8>; CHARS]) {
        let start = self.bytes.len();
        match self.decoding {
            Decoding::Bytes | Decoding::Mixed => {
                for c in token.chars() {
                    let Some(byte) = from_char.get(c as usize).copied().flatten() else {
                        // A token added as plain text, not in the byte alphabet: it stands for itself.
                        self.bytes.truncate(start);
                        self.bytes.extend_from_slice(token.as_bytes());
                        return;
                    };
                    self.bytes.push(byte);
                }
            }
            Decoding::Fallback | Decoding::Text => match fallback_byte(token) {
                Some(byte) if self.decoding == Decoding::Fallback => self.bytes.push(byte),
                _ => self.bytes.extend_from_slice(token.replace('\u{2581}', " ").as_bytes()),
            },
        }
    }
}

fn decoding(decoder: Option<&DecoderWrapper>) -> Decoding {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Decoding::Bytes,
        Some(DecoderWrapper::ByteFallback(_)) => Decoding::Fallback,
        Some(DecoderWrapper::Sequence(steps)) => match steps.get_decoders() {
            [only] => decoding(Some(only)),
            steps if steps.iter().any(|step| matches!(step, DecoderWrapper::ByteLevel(_))) => Decoding::Mixed,
            steps if steps.iter().any(|step| matches!(step, DecoderWrapper::ByteFallback(_))) => {
                Decoding::Fallback
            }
            _ => Decoding::Text,
        },
        _ => Decoding::Text,
    }
}

/// The byte of a token such as `<0xE4>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

const CHARS: usize = 256 + 68;

/// The byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards in order.
fn byte_of_char() -> [Option<u8>; CHARS] {
    let mut table = [None; CHARS];
    let mut next = 256;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}
