//! How many prompt tokens a step reads.
//!
//! Memory decides between the smallest and the largest chunk; a limit on the gap between tokens of running requests
//! splits a chunk further, by how long steps took lately.

use crate::config::EngineConfig;
use octavo_types::{Pages, Tokens};
use std::time::Duration;

/// The chunk for this much room: the smallest with none, the largest with the whole pool.
pub(crate) fn chunk_for(config: &EngineConfig, room: Pages, total: Pages) -> Tokens {
    let (least, most) = config.chunk;
    let range = u64::from((most - least).0);
    let more = range * u64::from(room.min(total).0) / u64::from(total.0.max(1));
    least + Tokens(more as u32)
}

/// What steps cost lately, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// A step that reads no prompt.
    decode: Option<f64>,
    /// One more prompt token in a step.
    prompt_token: Option<f64>,
}

/// Read beside decodes while nothing is known about this machine.
const FIRST_SPAN: Tokens = Tokens(32);
/// Fewer would not get anywhere.
const LEAST_SPAN: Tokens = Tokens(8);
/// Of the limit: a step also plans, samples and may be slower than the last.
const AIM: f64 = 0.7;

impl Pace {
    pub(crate) fn note(&mut self, prompt_tokens: Tokens, took: Duration) {
        let took = took.as_secs_f64();
        let blend = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| 0.5 * old + 0.5 * new));
        if prompt_tokens == Tokens::ZERO {
            self.decode = blend(self.decode, took);
        } else {
            let each = (took - self.decode.unwrap_or(0.0)).max(0.0) / f64::from(prompt_tokens.0);
            // Attention makes later tokens of a long prompt dearer: never believe in less than the last.
            self.prompt_token = blend(self.prompt_token, each).map(|blended| blended.max(each));
        }
    }

    /// The most prompt tokens beside decodes so that the step stays within `max_itl`.
    pub(crate) fn span_within(&self, max_itl: Duration) -> Tokens {
        let Some(each) = self.prompt_token else { return FIRST_SPAN };
        let left = AIM * max_itl.as_secs_f64() - self.decode.unwrap_or(0.0);
        let fit = (left / each.max(1e-9)).round().clamp(0.0, f64::from(u32::MAX)) as u32;
        Tokens(fit).max(LEAST_SPAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_with_room_and_stay_between_512_and_2048() {
        let config = EngineConfig::new(8, Tokens(100_000));
        let chunks: Vec<u32> = (0..=120).map(|room| chunk_for(&config, Pages(room), Pages(100)).0).collect();
        assert_eq!(chunks[0], 512);
        assert_eq!(chunks[50], 512 + 768);
        assert_eq!(chunks[100..], [2048; 21]);
        assert!(chunks.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn spans_follow_what_steps_cost() {
        let mut pace = Pace::default();
        let limit = Duration::from_millis(100);
        assert_eq!(pace.span_within(limit), FIRST_SPAN);
        pace.note(Tokens::ZERO, Duration::from_millis(20));
        pace.note(Tokens(100), Duration::from_millis(120));
        let fit = pace.span_within(limit).0;
        assert!((49..=50).contains(&fit), "0.7 x 100 ms less 20 ms, at 1 ms a token: {fit}");
        pace.note(Tokens(50), Duration::from_millis(120));
        let fit = pace.span_within(limit).0;
        assert!((24..=25).contains(&fit), "dearer tokens count at once: {fit}");
        pace.note(Tokens::ZERO, Duration::from_millis(40));
        let fit = pace.span_within(limit).0;
        assert!((19..=20).contains(&fit), "40 ms are left, at 2 ms a token: {fit}");
        pace.note(Tokens(100), Duration::from_millis(130));
        let fit = pace.span_within(limit).0;
        assert!((26..=27).contains(&fit), "cheaper ones by half, 1.5 ms: {fit}");
        assert_eq!(pace.span_within(Duration::from_millis(1)), LEAST_SPAN);
    }
}
