//! Qwen3: Llama, with a norm on every query and key head before it is rotated.

use crate::block::Block;
use crate::llama;

pub(crate) const BLOCK: Block =
    Block { head_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]), ..llama::BLOCK };
