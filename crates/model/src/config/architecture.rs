use super::ConfigError;
use super::raw::Raw;
use octavo_backend::Activation;

/// The families of models that can be run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Architecture {
    Llama,
    Qwen3,
    Gemma3,
}

/// What an architecture takes where `config.json` is silent.
pub(super) struct Defaults {
    pub max_positions: u32,
    pub rope_theta: f64,
    /// Set where windowed layers have a rope of their own.
    pub local_rope_theta: Option<f64>,
    pub activation: &'static str,
    pub tied: bool,
    /// None where every query head has its own.
    pub kv_heads: Option<u32>,
    /// None where the heads share the hidden size.
    pub head_dim: Option<u32>,
    /// What only Gemma has, or may leave out.
    pub gemma: Option<GemmaDefaults>,
}

pub(super) struct GemmaDefaults {
    pub heads: u32,
    pub vocab: u32,
    pub window: u32,
    pub window_pattern: u32,
    pub query_pre_attn_scalar: f64,
}

const NAMES: [(&str, Architecture); 4] = [
    ("LlamaForCausalLM", Architecture::Llama),
    ("Qwen3ForCausalLM", Architecture::Qwen3),
    ("Gemma3ForCausalLM", Architecture::Gemma3),
    ("Gemma3ForConditionalGeneration", Architecture::Gemma3),
];

impl Architecture {
    /// The names `config.json` may give, as a list to show.
    pub fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    pub(super) fn of(raw: &Raw) -> Result<Self, ConfigError> {
        let known = raw.architectures.iter().find_map(|name| NAMES.iter().find(|(known, _)| known == name));
        match (known, raw.architectures.first()) {
            (Some(&(_, architecture)), _) => Ok(architecture),
            (None, Some(found)) => Err(ConfigError::Architecture { found: found.clone() }),
            (None, None) => Err(ConfigError::Missing("architectures")),
        }
    }

    pub(super) fn defaults(self) -> Defaults {
        match self {
            Self::Llama => Defaults {
                max_positions: 2048,
                rope_theta: 10_000.0,
                local_rope_theta: None,
                activation: "silu",
                tied: false,
                kv_heads: None,
                head_dim: None,
                gemma: None,
            },
            Self::Qwen3 => Defaults {
                max_positions: 32_768,
                kv_heads: Some(32),
                head_dim: Some(128),
                ..Self::Llama.defaults()
            },
            Self::Gemma3 => Defaults {
                max_positions: 131_072,
                rope_theta: 1_000_000.0,
                local_rope_theta: Some(10_000.0),
                activation: "gelu_pytorch_tanh",
                tied: true,
                kv_heads: Some(4),
                head_dim: Some(256),
                gemma: Some(GemmaDefaults {
                    heads: 8,
                    vocab: 262_208,
                    window: 4096,
                    window_pattern: 6,
                    query_pre_attn_scalar: 256.0,
                }),
            },
        }
    }

    /// The field that names the activation; the other one means nothing to the architecture.
    pub(super) fn activation(self, raw: &Raw) -> Result<Activation, ConfigError> {
        let name = match self {
            Self::Llama | Self::Qwen3 => raw.hidden_act.as_deref(),
            Self::Gemma3 => raw.hidden_activation.as_deref(),
        };
        activation(name.unwrap_or(self.defaults().activation))
    }
}

fn activation(name: &str) -> Result<Activation, ConfigError> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::Gelu),
        other => Err(ConfigError::Activation(other.to_owned())),
    }
}
