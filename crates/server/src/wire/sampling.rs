//! How a request wants its tokens chosen.

use super::error::ApiError;
use super::fields::Fields;
use octavo::SamplingParams;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was said; the rest is the model's default.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Arc<[(u32, f32)]>,
    seed: Option<u64>,
}

impl Sampling {
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            temperature: fields.take("temperature")?,
            top_p: fields.take("top_p")?,
            top_k: top_k(fields)?,
            min_p: fields.take("min_p")?,
            repetition_penalty: fields.take("repetition_penalty")?,
            presence_penalty: fields.take("presence_penalty")?,
            frequency_penalty: fields.take("frequency_penalty")?,
            logit_bias: logit_bias(fields)?,
            // Any 64 bits will do.
            seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
        })
    }

    /// These over `base`. Without a seed every request draws other numbers.
    pub(crate) fn over(&self, base: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            ..base
        }
    }

    /// Refuses a bias for a token that does not exist.
    pub(crate) fn check_vocabulary(&self, vocabulary: usize) -> Result<(), ApiError> {
        match self.logit_bias.iter().find(|(token, _)| *token as usize >= vocabulary) {
            None => Ok(()),
            Some((token, _)) => {
                let path = format!("logit_bias.{token}");
                Err(ApiError::field(path, format_args!("the vocabulary has {vocabulary} tokens")))
            }
        }
    }
}

/// 0 and vLLM's -1 mean all.
fn top_k(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    match fields.take::<i64>("top_k")? {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(k) => match usize::try_from(k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(ApiError::field("top_k", format_args!("{k} is neither -1 nor a count"))),
        },
    }
}

fn logit_bias(fields: &mut Fields<'_>) -> Result<Arc<[(u32, f32)]>, ApiError> {
    let named: BTreeMap<String, f32> = fields.take("logit_bias")?.unwrap_or_default();
    let mut biases = BTreeMap::new();
    for (token, bias) in named {
        let path = format!("logit_bias.{token}");
        let Ok(token) = token.parse() else {
            return Err(ApiError::field(path, "keys are token ids"));
        };
        if !(-100.0..=100.0).contains(&bias) {
            return Err(ApiError::field(path, format_args!("{bias} is not between -100 and 100")));
        }
        if biases.insert(token, bias).is_some() {
            return Err(ApiError::field(path, format_args!("token {token} has another bias already")));
        }
    }
    Ok(biases.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(body: &str) -> Result<Sampling, ApiError> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let sampling = Sampling::take(&mut fields)?;
        fields.end().map(|()| sampling)
    }

    #[test]
    fn what_is_not_said_is_the_models_default() {
        let base = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.3,
            ..SamplingParams::default()
        };
        let said =
            sampling(r#"{"temperature": 0, "top_k": -1, "seed": -1, "logit_bias": {"7": -100}}"#).unwrap();
        let params = said.over(base.clone());
        let logit_bias = [(7, -100.0)].into();
        assert_eq!(params, SamplingParams { temperature: 0.0, top_k: 0, seed: u64::MAX, logit_bias, ..base });
    }

    #[test]
    fn without_a_seed_requests_draw_other_numbers() {
        let none = sampling("{}").unwrap();
        assert_ne!(none.over(SamplingParams::default()).seed, none.over(SamplingParams::default()).seed);
    }

    #[test]
    fn a_bias_out_of_range_is_refused_by_name() {
        for (body, path) in [
            (r#"{"logit_bias": {"5": 101}}"#, "logit_bias.5"),
            (r#"{"logit_bias": {"5": 1e300}}"#, "logit_bias.5"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias.x"),
            (r#"{"logit_bias": {"7": 100, "07": 100}}"#, "logit_bias.7"),
            (r#"{"logit_bias": {"-1": 1}}"#, "logit_bias.-1"),
            (r#"{"logit_bias": {"4294967296": 1}}"#, "logit_bias.4294967296"),
            (r#"{"top_k": -2}"#, "top_k"),
        ] {
            let error = sampling(body).unwrap_err();
            assert!(error.message().starts_with(path), "{body}: {}", error.message());
        }
        let sampling = sampling(r#"{"logit_bias": {"50": 1}}"#).unwrap();
        assert!(sampling.check_vocabulary(50).is_err());
        assert!(sampling.check_vocabulary(51).is_ok());
    }
}
