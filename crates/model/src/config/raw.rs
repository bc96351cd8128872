use super::ids::OneOrMany;
use super::raw_rope::{RawRope, RawRopeParameters};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// `config.json` as it is written, every field optional. What is not listed here is ignored.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Raw {
    pub architectures: Vec<String>,
    pub text_config: Option<Box<Raw>>,

    pub hidden_size: Option<u32>,
    pub intermediate_size: Option<u32>,
    pub num_hidden_layers: Option<u32>,
    pub num_attention_heads: Option<u32>,
    #[serde(deserialize_with = "null_or_value")]
    pub num_key_value_heads: Said<u32>,
    pub head_dim: Option<u32>,
    pub vocab_size: Option<u32>,
    pub max_position_embeddings: Option<u32>,
    pub rms_norm_eps: Option<f64>,
    pub tie_word_embeddings: Option<bool>,
    pub query_pre_attn_scalar: Option<f64>,
    pub hidden_act: Option<String>,
    pub hidden_activation: Option<String>,
    pub dtype: Option<String>,
    pub torch_dtype: Option<String>,

    pub layer_types: Option<Vec<String>>,
    #[serde(deserialize_with = "null_or_value")]
    pub sliding_window: Said<u32>,
    pub sliding_window_pattern: Option<u32>,
    #[serde(rename = "_sliding_window_pattern")]
    pub private_sliding_window_pattern: Option<u32>,
    pub use_sliding_window: Option<bool>,
    pub max_window_layers: Option<u32>,

    pub rope_theta: Option<f64>,
    pub rope_local_base_freq: Option<f64>,
    pub rope_scaling: Option<RawRope>,
    pub rope_parameters: Option<RawRopeParameters>,
    pub partial_rotary_factor: Option<f64>,

    pub bos_token_id: Option<OneOrMany>,
    pub eos_token_id: Option<OneOrMany>,

    pub attention_bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    pub attn_logit_softcapping: Option<f64>,
    pub final_logit_softcapping: Option<f64>,
    pub use_bidirectional_attention: Option<bool>,
    pub quantization_config: Option<RawQuantization>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RawQuantization {
    pub quant_method: Option<String>,
}

/// A field where null means something else than silence: `None` where the file is silent, `Some(None)` for null.
pub(super) type Said<T> = Option<Option<T>>;

fn null_or_value<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Said<T>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Raw {
    /// Gemma's text model lies within a multimodal one, whose own fields complete it.
    pub(super) fn into_text(mut self) -> Self {
        let Some(mut text) = self.text_config.take().map(|text| *text) else { return self };
        text.architectures = self.architectures;
        text.dtype = text.dtype.or(text.torch_dtype).or(self.dtype).or(self.torch_dtype);
        text.torch_dtype = None;
        text.tie_word_embeddings = text.tie_word_embeddings.or(self.tie_word_embeddings);
        text.bos_token_id = text.bos_token_id.or(self.bos_token_id);
        text.eos_token_id = text.eos_token_id.or(self.eos_token_id);
        text.quantization_config = text.quantization_config.or(self.quantization_config);
        text
    }

    /// Fields whose presence changes the arithmetic in a way that is not implemented.
    pub(super) fn unsupported(&self) -> Option<&'static str> {
        let set = |value: Option<bool>| value == Some(true);
        let partial = |value: Option<f64>| value.is_some_and(|factor| factor != 1.0);
        let fields: BTreeMap<&'static str, bool> = BTreeMap::from([
            ("attention_bias", set(self.attention_bias)),
            ("mlp_bias", set(self.mlp_bias)),
            ("attn_logit_softcapping", self.attn_logit_softcapping.is_some()),
            ("final_logit_softcapping", self.final_logit_softcapping.is_some()),
            ("use_bidirectional_attention", set(self.use_bidirectional_attention)),
            ("partial_rotary_factor", partial(self.partial_rotary_factor)),
        ]);
        fields.into_iter().find_map(|(name, is_set)| is_set.then_some(name))
    }
}
