//! Text to token ids and back.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokenizers::DecoderWrapper;

use crate::config::TokenizerConfig;
use crate::stream::TextStream;
use crate::vocab::{TokenKind, Vocab};

const FILE: &str = "tokenizer.json";

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(
        "there is no {file}; give the directory of a model in Hugging Face layout (tokenizer.json, config.json, *.safetensors)"
    )]
    Missing { file: String },
    #[error("cannot read {file}: {source}; check the file's permissions")]
    Unreadable { file: String, source: std::io::Error },
    #[error("{file} is not a tokenizer this program can read: {reason}; download the model's files again")]
    Broken { file: String, reason: String },
    #[error(
        "{file} has no token {token:?}, which tokenizer_config.json names as its {role}; the two files belong to different models"
    )]
    UnknownToken { file: String, role: &'static str, token: String },
    #[error(
        "{file} has a decoder that strips the end of a text (Strip with a stop above 0), which is not supported: while a text grows, nobody knows its end"
    )]
    StripsEnd { file: String },
}

/// Why a text could not be turned into tokens.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("the tokenizer cannot encode this text: {reason}")]
    Unencodable { reason: String },
}

/// Why tokens could not be turned into text.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("the tokenizer cannot decode these tokens: {reason}")]
    Undecodable { reason: String },
}

/// What happens to special tokens on the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They leave no text.
    Skip,
    /// They appear as written: `<|im_end|>`.
    Show,
}

/// What the text `<|im_end|>` means on the way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// The special token of that name.
    Parse,
    /// Ten characters like any others: for text that must not be able to end a message.
    Literal,
}

/// A model's tokenizer. Cloning shares it.
///
/// Invariant: an encoding holds exactly the text's tokens, never padded or truncated, whatever the file asks for.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parse: tokenizers::Tokenizer,
    /// The same tokenizer blind to special tokens; made when first asked for, since few requests want it.
    literal: OnceLock<tokenizers::Tokenizer>,
    vocab: Vocab,
    bos: Option<u32>,
    eos: Option<u32>,
    frame: Frame,
}

/// What a prompt begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// The tokenizer itself puts this token first.
    Own(u32),
    /// The configuration wants this token first, and the tokenizer does not put it there.
    Prepend(u32),
    /// Only what the text says.
    Nothing,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`.
    pub fn from_dir(dir: &Path, config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let path = dir.join(FILE);
        let file = path.display().to_string();
        match fs::read(&path) {
            Ok(json) => Self::build(&json, config, &file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(TokenizerError::Missing { file })
            }
            Err(source) => Err(TokenizerError::Unreadable { file, source }),
        }
    }

    /// The same from the bytes of a `tokenizer.json`.
    pub fn from_slice(json: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        Self::build(json, config, FILE)
    }

    fn build(json: &[u8], config: &TokenizerConfig, file: &str) -> Result<Self, TokenizerError> {
        let broken = |error: tokenizers::Error| TokenizerError::Broken {
            file: file.into(),
            reason: error.to_string(),
        };
        let mut parse = tokenizers::Tokenizer::from_bytes(json).map_err(broken)?;
        if parse.get_decoder().is_some_and(strips_end) {
            return Err(TokenizerError::StripsEnd { file: file.into() });
        }
        // Training settings that some files still carry; a prompt must neither be cut nor padded.
        parse.with_truncation(None).map_err(broken)?.with_padding(None);
        let named =
            |role: &'static str| match config.token(role) {
                None => Ok(None),
                Some(token) => parse.token_to_id(token).map(Some).ok_or_else(|| {
                    TokenizerError::UnknownToken { file: file.into(), role, token: token.into() }
                }),
            };
        let (bos, eos) = (named("bos_token")?, named("eos_token")?);
        let own = own_first_token(&parse).map_err(broken)?;
        let vocab = Vocab::new(&parse)
            .map_err(|error| TokenizerError::Broken { file: file.into(), reason: error.to_string() })?;
        let frame = frame(own, bos, config.add_bos());
        let bos = bos.or(own);
        Ok(Self(Arc::new(Inner { parse, literal: OnceLock::new(), vocab, bos, eos, frame })))
    }

    /// One past the largest token id. A model's embedding may have more rows, never fewer.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab.len()
    }

    /// The begin-of-text token, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.0.bos
    }

    /// The end token that `tokenizer_config.json` names. A model's `generation_config.json` may name others.
    pub fn eos(&self) -> Option<u32> {
        self.0.eos
    }

    /// The id of a token given as the tokenizer writes it, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.parse.token_to_id(token)
    }

    /// The token of an id as the tokenizer writes it; for a byte-level one, in its byte alphabet (`Ġthe`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.0.parse.id_to_token(id)
    }

    /// The bytes a token stands for in the middle of a text: `" the"`, or part of a character. Nothing for an
    /// unknown id; a special token's name for a special one.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.vocab.bytes(id)
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.0.vocab.kind(id) == TokenKind::Special
    }

    /// The tokens of `text` and nothing around them.
    pub fn encode(&self, text: &str, markup: Markup) -> Result<Vec<u32>, EncodeError> {
        encode(self.instance(markup), text, false)
    }

    /// The tokens of a prompt to be continued: begins with the begin-of-text token where the model wants one, and
    /// has it once even if the text spells it out.
    pub fn encode_prompt(&self, text: &str, markup: Markup) -> Result<Vec<u32>, EncodeError> {
        let tokenizer = self.instance(markup);
        let mut ids = encode(tokenizer, text, matches!(self.0.frame, Frame::Own(_)))?;
        match self.0.frame {
            Frame::Own(first) if ids.starts_with(&[first, first]) => drop(ids.remove(0)),
            Frame::Prepend(first) if ids.first() != Some(&first) => ids.insert(0, first),
            _ => {}
        }
        Ok(ids)
    }

    /// The tokens of a rendered chat template, which decides alone what a conversation begins with: what it left
    /// out the model was trained without, so nothing is added here, whatever the tokenizer does to plain prompts.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, EncodeError> {
        self.encode(rendered, Markup::Parse)
    }

    /// Whether [`Tokenizer::encode_prompt`] puts a token before the text's own.
    pub fn adds_bos(&self) -> bool {
        self.0.frame != Frame::Nothing
    }

    /// The text of `ids`; unknown ids leave none, bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, DecodeError> {
        let skip = special == SpecialTokens::Skip;
        let silent = |&id: &u32| match self.0.vocab.kind(id) {
            TokenKind::Unknown => true,
            TokenKind::Special => skip,
            TokenKind::Text | TokenKind::Byte => false,
        };
        // Some decoders panic on an empty list.
        if ids.iter().all(silent) {
            return Ok(String::new());
        }
        self.0.parse.decode(ids, skip).map_err(|error| DecodeError::Undecodable { reason: error.to_string() })
    }

    /// Reads tokens one at a time; see [`TextStream`].
    pub fn stream(&self, special: SpecialTokens) -> TextStream {
        TextStream::new(self.clone(), special)
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.0.vocab
    }

    fn instance(&self, markup: Markup) -> &tokenizers::Tokenizer {
        match markup {
            Markup::Parse => &self.0.parse,
            Markup::Literal => self.0.literal.get_or_init(|| {
                let mut literal = self.0.parse.clone();
                literal.set_encode_special_tokens(true);
                literal
            }),
        }
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, framed: bool) -> Result<Vec<u32>, EncodeError> {
    // Without offsets: nobody asks where in the text a token stood.
    let encoding = tokenizer
        .encode_fast(text, framed)
        .map_err(|error| EncodeError::Unencodable { reason: error.to_string() })?;
    Ok(encoding.get_ids().to_vec())
}

fn strips_end(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::Strip(strip) => strip.stop > 0,
        DecoderWrapper::Sequence(steps) => steps.get_decoders().iter().any(strips_end),
        _ => false,
    }
}

/// The token that the tokenizer's post-processor puts before a text, found by looking at what it does.
fn own_first_token(tokenizer: &tokenizers::Tokenizer) -> Result<Option<u32>, tokenizers::Error> {
    let plain = tokenizer.encode_fast("a", false)?;
    let framed = tokenizer.encode_fast("a", true)?;
    let first = framed.get_ids().first().copied();
    Ok(first.filter(|_| !framed.get_ids().starts_with(plain.get_ids())))
}

/// `add_bos_token` is the model's stated intention and wins over what the tokenizer's file does by itself.
fn frame(own: Option<u32>, bos: Option<u32>, wanted: Option<bool>) -> Frame {
    match (own, bos, wanted) {
        (Some(own), Some(bos), Some(false)) if own == bos => Frame::Nothing,
        (Some(own), _, _) => Frame::Own(own),
        (None, Some(bos), Some(true)) => Frame::Prepend(bos),
        (None, _, _) => Frame::Nothing,
    }
}
