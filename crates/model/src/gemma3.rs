//! Gemma 3: norms on both sides of attention and of the MLP, whose weights are stored less one; norms on every query
//! and key head; scaled embeddings. Which layers have a window, and which rope, is in the configuration.

use crate::block::Block;
use crate::qwen3;

pub(crate) const BLOCK: Block = Block {
    // Alone; within a multimodal model; within one saved by newer versions of its library.
    prefixes: &["model.", "language_model.model.", "model.language_model."],
    norm_plus: 1.0,
    scaled_embedding: true,
    after_attention: Some("post_attention_layernorm"),
    before_mlp: "pre_feedforward_layernorm",
    after_mlp: Some("post_feedforward_layernorm"),
    ..qwen3::BLOCK
};
