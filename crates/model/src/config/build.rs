use super::architecture::Defaults;
use super::ids::OneOrMany;
use super::layers::layers;
use super::raw::Raw;
use super::rope::Ropes;
use super::{Architecture, ConfigError, ModelConfig};
use octavo_backend::WeightDtype;
use octavo_types::Tokens;

/// Far above every real model; a corrupt file must not make us allocate without bound.
const MOST_LAYERS: u32 = 4096;
const LARGEST_SIZE: u32 = 1 << 24;

impl TryFrom<Raw> for ModelConfig {
    type Error = ConfigError;

    fn try_from(raw: Raw) -> Result<Self, ConfigError> {
        let raw = raw.into_text();
        let architecture = Architecture::of(&raw)?;
        let defaults = architecture.defaults();
        refuse_unsupported(&raw)?;
        let sizes = Geometry::new(&raw, &defaults)?;
        let max_positions = max_positions(&raw, &defaults)?;
        let ropes = Ropes::new(&raw, &defaults, max_positions)?;
        let count = size("num_hidden_layers", raw.num_hidden_layers, None)?;
        if count > MOST_LAYERS {
            let wanted = format!("at most {MOST_LAYERS} are possible");
            return Err(ConfigError::value("num_hidden_layers", count, wanted));
        }
        Ok(Self {
            architecture,
            hidden: sizes.hidden,
            intermediate: size("intermediate_size", raw.intermediate_size, None)?,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            vocab: size("vocab_size", raw.vocab_size, defaults.gemma.as_ref().map(|gemma| gemma.vocab))?,
            max_positions,
            norm_eps: norm_eps(&raw)?,
            activation: architecture.activation(&raw)?,
            attention_scale: attention_scale(&raw, &defaults, sizes.head_dim)?,
            tied: raw.tie_word_embeddings.unwrap_or(defaults.tied),
            layers: layers(&raw, architecture, count)?,
            rope_full: ropes.full,
            rope_sliding: ropes.sliding,
            dtype: raw.dtype.as_deref().or(raw.torch_dtype.as_deref()).and_then(weight_dtype),
            bos: raw.bos_token_id.map(OneOrMany::into_vec).unwrap_or_default(),
            eos: raw.eos_token_id.map(OneOrMany::into_vec).unwrap_or_default(),
        })
    }
}

fn refuse_unsupported(raw: &Raw) -> Result<(), ConfigError> {
    if let Some(quantisation) = &raw.quantization_config {
        let method = quantisation.quant_method.clone().unwrap_or_else(|| "an unnamed method".to_owned());
        return Err(ConfigError::Quantised(method));
    }
    raw.unsupported().map_or(Ok(()), |field| Err(ConfigError::Unsupported(field)))
}

/// The sizes that depend on each other.
struct Geometry {
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
}

impl Geometry {
    fn new(raw: &Raw, defaults: &Defaults) -> Result<Self, ConfigError> {
        let gemma = defaults.gemma.as_ref();
        let hidden = size("hidden_size", raw.hidden_size, None)?;
        let heads = size("num_attention_heads", raw.num_attention_heads, gemma.map(|gemma| gemma.heads))?;
        let kv_usual = match raw.num_key_value_heads {
            None => defaults.kv_heads.or(Some(heads)),
            Some(_) => gemma.is_none().then_some(heads),
        };
        let kv_heads = size("num_key_value_heads", raw.num_key_value_heads.flatten(), kv_usual)?;
        if !heads.is_multiple_of(kv_heads) {
            let wanted = format!("num_attention_heads ({heads}) must be a multiple of it");
            return Err(ConfigError::value("num_key_value_heads", kv_heads, wanted));
        }
        let own = raw.head_dim.or(defaults.head_dim);
        let head_dim = size("head_dim", own, Some(hidden / heads))?;
        if own.is_none() && !hidden.is_multiple_of(heads) {
            let wanted = format!("must be a multiple of num_attention_heads ({heads}) without a head_dim");
            return Err(ConfigError::value("hidden_size", hidden, wanted));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(ConfigError::value("head_dim", head_dim, "must be even"));
        }
        Ok(Self { hidden, heads, kv_heads, head_dim })
    }
}

fn size(field: &'static str, value: Option<u32>, usual: Option<u32>) -> Result<u32, ConfigError> {
    match value.or(usual) {
        None => Err(ConfigError::Missing(field)),
        Some(0) => Err(ConfigError::value(field, 0, "must be at least 1")),
        Some(value) if value > LARGEST_SIZE => {
            Err(ConfigError::value(field, value, format!("at most {LARGEST_SIZE} are possible")))
        }
        Some(value) => Ok(value),
    }
}

fn max_positions(raw: &Raw, defaults: &Defaults) -> Result<Tokens, ConfigError> {
    match raw.max_position_embeddings.unwrap_or(defaults.max_positions) {
        0 => Err(ConfigError::value("max_position_embeddings", 0, "must be at least 1")),
        positions => Ok(Tokens(positions)),
    }
}

fn norm_eps(raw: &Raw) -> Result<f32, ConfigError> {
    match raw.rms_norm_eps.unwrap_or(1e-6) {
        eps if eps.is_finite() && eps >= 0.0 => Ok(eps as f32),
        eps => Err(ConfigError::value("rms_norm_eps", eps, "must not be negative")),
    }
}

fn attention_scale(raw: &Raw, defaults: &Defaults, head_dim: u32) -> Result<f32, ConfigError> {
    let Some(gemma) = &defaults.gemma else {
        return Ok(f64::from(head_dim).powf(-0.5) as f32);
    };
    let scalar = raw.query_pre_attn_scalar.unwrap_or(gemma.query_pre_attn_scalar);
    if !(scalar.is_finite() && scalar > 0.0) {
        return Err(ConfigError::value("query_pre_attn_scalar", scalar, "must be positive"));
    }
    Ok(scalar.powf(-0.5) as f32)
}

fn weight_dtype(name: &str) -> Option<WeightDtype> {
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(WeightDtype::F32),
        "float16" => Some(WeightDtype::F16),
        "bfloat16" => Some(WeightDtype::Bf16),
        _ => None,
    }
}
