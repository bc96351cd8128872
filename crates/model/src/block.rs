use crate::{Architecture, ModelConfig, gemma3, llama, qwen3};

/// What an architecture does differently in the one decoder: names of tensors, and which optional steps there are.
///
/// ```text
///   x += [after_attention](attention([head_norms], input(x)))
///   x += [after_mlp](mlp(before_mlp(x)))
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// What the tensors of the text model may be called, up to the names below; the first that is there counts.
    pub prefixes: &'static [&'static str],
    /// Added to the weights of every norm: 1 where they are stored as the distance from it.
    pub norm_plus: f32,
    /// Whether embeddings are multiplied by the square root of their width.
    pub scaled_embedding: bool,
    pub input_norm: &'static str,
    pub after_attention: Option<&'static str>,
    pub before_mlp: &'static str,
    pub after_mlp: Option<&'static str>,
    /// Norms of every query head and of every key head.
    pub head_norms: Option<[&'static str; 2]>,
}

impl Block {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        match config.architecture() {
            Architecture::Llama => llama::BLOCK,
            Architecture::Qwen3 => qwen3::BLOCK,
            Architecture::Gemma3 => gemma3::BLOCK,
        }
    }
}
