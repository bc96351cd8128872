use super::ConfigError;
use super::architecture::Defaults;
use super::raw::Raw;
use super::raw_rope::{RawRope, RawRopeParameters};
use octavo_types::Tokens;

/// Rotary embedding of one kind of layer. A value that exists is valid.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    theta: f64,
    scaling: RopeScaling,
}

/// How the frequencies are stretched beyond the context the model was trained on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_positions: f64 },
}

impl Rope {
    pub fn theta(&self) -> f64 {
        self.theta
    }
    pub fn scaling(&self) -> RopeScaling {
        self.scaling
    }

    /// Angle a position of each pair of elements of a head, and the factor on cosines and sines.
    ///
    /// Rounded step by step as the original does it, in f32: a difference in the last bit of a frequency grows
    /// with the position.
    pub fn inv_freq(&self, head_dim: u32) -> (Vec<f32>, f32) {
        let frequency = |i: u32| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            self.scaled(1.0 / (self.theta.powf(f64::from(exponent)) as f32))
        };
        ((0..head_dim / 2).map(frequency).collect(), 1.0)
    }

    fn scaled(&self, frequency: f32) -> f32 {
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor as f32,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                let [factor, low, high, positions] =
                    [factor, low_freq_factor, high_freq_factor, original_positions].map(|x| x as f32);
                let wavelength = std::f32::consts::TAU / frequency;
                if wavelength > positions / low {
                    frequency / factor
                } else if wavelength < positions / high {
                    frequency
                } else {
                    let smooth = (positions / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }

    fn new(raw: &RawRope, theta: f64, positions: Tokens) -> Result<Self, ConfigError> {
        let theta = raw.rope_theta.unwrap_or(theta);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(ConfigError::value("rope_theta", theta, "must be positive"));
        }
        if raw.partial_rotary_factor.is_some_and(|factor| factor != 1.0) {
            return Err(ConfigError::Unsupported("partial_rotary_factor"));
        }
        Ok(Self { theta, scaling: RopeScaling::new(raw, positions)? })
    }
}

impl RopeScaling {
    fn new(raw: &RawRope, positions: Tokens) -> Result<Self, ConfigError> {
        match raw.rope_type.as_deref().or(raw.old_type.as_deref()) {
            None | Some("default") => Ok(Self::None),
            Some("linear") => Ok(Self::Linear { factor: positive("rope factor", raw.factor)? }),
            Some("llama3") => Self::llama3(raw, positions),
            Some(other) => Err(ConfigError::RopeScaling(other.to_owned())),
        }
    }

    /// Without `original_max_position_embeddings`, those are the `positions` of the model itself.
    fn llama3(raw: &RawRope, positions: Tokens) -> Result<Self, ConfigError> {
        let low_freq_factor = positive("low_freq_factor", raw.low_freq_factor)?;
        let high_freq_factor = positive("high_freq_factor", raw.high_freq_factor)?;
        if high_freq_factor <= low_freq_factor {
            let wanted = format!("must be above low_freq_factor ({low_freq_factor})");
            return Err(ConfigError::value("high_freq_factor", high_freq_factor, wanted));
        }
        Ok(Self::Llama3 {
            factor: positive("rope factor", raw.factor)?,
            low_freq_factor,
            high_freq_factor,
            original_positions: positive(
                "original_max_position_embeddings",
                raw.original_max_position_embeddings.or(Some(f64::from(positions.0))),
            )?,
        })
    }
}

fn positive(field: &'static str, value: Option<f64>) -> Result<f64, ConfigError> {
    match value {
        None => Err(ConfigError::Missing(field)),
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(ConfigError::value(field, value, "must be positive")),
    }
}

/// The ropes of the layers that see everything and of those with a window.
pub(super) struct Ropes {
    pub full: Rope,
    pub sliding: Rope,
}

impl Ropes {
    pub(super) fn new(raw: &Raw, defaults: &Defaults, positions: Tokens) -> Result<Self, ConfigError> {
        let theta = raw.rope_theta.unwrap_or(defaults.rope_theta);
        let rope =
            |own: Option<&RawRope>, theta| Rope::new(own.unwrap_or(&RawRope::default()), theta, positions);
        let scaling = raw.rope_scaling.as_ref().filter(|scaling| **scaling != RawRope::default());
        let (full, sliding) = match (&raw.rope_parameters, defaults.local_rope_theta) {
            (None, _) => (scaling, None),
            (Some(RawRopeParameters::One(one)), None) => (Some(one), None),
            (Some(RawRopeParameters::PerLayerType(each)), Some(_)) => {
                (each.full_attention.as_ref(), each.sliding_attention.as_ref())
            }
            (Some(parameters), _) => return Err(parameters.misplaced()),
        };
        let full = rope(full, theta)?;
        if scaling.is_some() && rope(scaling, theta)? != full {
            return Err(ConfigError::TwoRopes);
        }
        let sliding = match defaults.local_rope_theta {
            None => full,
            Some(local) => rope(sliding, raw.rope_local_base_freq.unwrap_or(local))?,
        };
        Ok(Self { full, sliding })
    }
}

impl RawRopeParameters {
    /// An architecture has one rope, or one for each kind of layer; it does not read the other form.
    fn misplaced(&self) -> ConfigError {
        let (found, wanted) = match self {
            Self::PerLayerType(_) => ("by layer type", "this architecture has one rope for all layers"),
            Self::One(_) => (
                "for all layers",
                "this architecture has one for \"full_attention\" and another for \"sliding_attention\"",
            ),
        };
        ConfigError::value("rope_parameters", found, wanted)
    }
}
