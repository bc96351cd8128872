//! Llama 2 and 3: a norm before attention and a norm before the MLP.

use crate::block::Block;

pub(crate) const BLOCK: Block = Block {
    prefixes: &["model."],
    norm_plus: 0.0,
    scaled_embedding: false,
    input_norm: "input_layernorm",
    after_attention: None,
    before_mlp: "post_attention_layernorm",
    after_mlp: None,
    head_norms: None,
};
