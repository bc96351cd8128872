use super::raw::Raw;
use super::{Architecture, ConfigError, LayerConfig, RopeKind};
use octavo_types::Tokens;

/// One entry a layer.
pub(super) fn layers(
    raw: &Raw,
    architecture: Architecture,
    count: u32,
) -> Result<Vec<LayerConfig>, ConfigError> {
    let sliding = which_slide(raw, architecture, count)?;
    let window = match (sliding.contains(&true), window_size(raw, architecture)) {
        (false, _) => Tokens(0),
        (true, Some(0)) => return Err(ConfigError::value("sliding_window", 0, "must be at least 1")),
        (true, Some(window)) => Tokens(window),
        (true, None) => return Err(ConfigError::Missing("sliding_window")),
    };
    let layer = |slides| match slides {
        true => LayerConfig { window: Some(window), rope: RopeKind::Sliding },
        false => LayerConfig { window: None, rope: RopeKind::Full },
    };
    Ok(sliding.into_iter().map(layer).collect())
}

fn window_size(raw: &Raw, architecture: Architecture) -> Option<u32> {
    raw.sliding_window.unwrap_or_else(|| architecture.defaults().gemma.map(|gemma| gemma.window))
}

fn which_slide(raw: &Raw, architecture: Architecture, count: u32) -> Result<Vec<bool>, ConfigError> {
    if architecture == Architecture::Llama {
        return Ok(vec![false; count as usize]);
    }
    if let Some(types) = &raw.layer_types {
        let slides = listed(types, count)?;
        if architecture == Architecture::Qwen3
            && slides.contains(&true)
            && raw.use_sliding_window != Some(true)
        {
            let wanted =
                "layer_types has \"sliding_attention\"; set it, or make those layers \"full_attention\"";
            return Err(ConfigError::value("use_sliding_window", false, wanted));
        }
        return Ok(slides);
    }
    match architecture {
        Architecture::Gemma3 => patterned(raw, architecture, count),
        Architecture::Qwen3 if raw.use_sliding_window == Some(true) => {
            let first = raw.max_window_layers.unwrap_or(28);
            Ok((0..count).map(|layer| layer >= first).collect())
        }
        Architecture::Qwen3 | Architecture::Llama => Ok(vec![false; count as usize]),
    }
}

fn listed(types: &[String], count: u32) -> Result<Vec<bool>, ConfigError> {
    if types.len() != count as usize {
        let wanted = format!("num_hidden_layers is {count}");
        return Err(ConfigError::value("layer_types", format!("a list of {}", types.len()), wanted));
    }
    let slides = |kind: &String| match kind.as_str() {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => {
            let wanted = "\"full_attention\" and \"sliding_attention\" are supported";
            Err(ConfigError::value("layer_types", format!("\"{other}\""), wanted))
        }
    };
    types.iter().map(slides).collect()
}

/// Every `n`th layer sees everything.
fn patterned(raw: &Raw, architecture: Architecture, count: u32) -> Result<Vec<bool>, ConfigError> {
    let pattern = raw
        .sliding_window_pattern
        .or(raw.private_sliding_window_pattern)
        .or(architecture.defaults().gemma.map(|gemma| gemma.window_pattern));
    match pattern {
        Some(0) => Err(ConfigError::value("sliding_window_pattern", 0, "must be at least 1")),
        Some(every) => Ok((1..=count).map(|layer| layer % every != 0).collect()),
        None => Err(ConfigError::Missing("sliding_window_pattern")),
    }
}
