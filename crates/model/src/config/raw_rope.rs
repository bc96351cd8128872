use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// One rope's settings, under either name of its kind.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RawRope {
    pub rope_type: Option<String>,
    #[serde(rename = "type")]
    pub old_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
}

/// `rope_parameters`: one rope, or one for each kind of layer.
#[derive(Debug, Clone)]
pub(super) enum RawRopeParameters {
    PerLayerType(PerLayerType),
    One(RawRope),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PerLayerType {
    pub full_attention: Option<RawRope>,
    pub sliding_attention: Option<RawRope>,
}

/// Which of the two it is shows in the names and in what lies under them; from there on it is that or an error.
impl<'de> Deserialize<'de> for RawRopeParameters {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let fields = Map::deserialize(from)?;
        let by_type = fields.iter().any(|(name, value)| name.ends_with("_attention") || value.is_object());
        let fields = Value::Object(fields);
        let parsed = match by_type {
            true => PerLayerType::deserialize(fields).map(Self::PerLayerType),
            false => RawRope::deserialize(fields).map(Self::One),
        };
        parsed.map_err(|error| D::Error::custom(format!("rope_parameters: {error}")))
    }
}
