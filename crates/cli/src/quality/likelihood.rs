//! How well a model expects a text, and how far two of its distributions lie apart.

use anyhow::{Result, ensure};
use octavo::{Llm, Tokens};

/// Log-probabilities at every position that is scored, one row of the vocabulary each, in the order of the text.
pub(super) type Distributions = Vec<Box<[f32]>>;

/// What a text cost in one precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Likelihood {
    pub(super) perplexity: f64,
    pub(super) mean_kl: f64,
    pub(super) max_kl: f64,
}

/// Sums over the positions of all windows.
#[derive(Debug, Default)]
struct Sums {
    positions: usize,
    /// Of the tokens that came.
    log_probability: f64,
    kl: f64,
    max_kl: f64,
}

/// Scores every window. With `reference`, divergences are taken from it; without, the distributions are returned to be
/// the reference of others.
pub(super) fn measure(
    llm: &mut Llm,
    windows: &[Vec<u32>],
    reference: Option<&Distributions>,
    progress: &mut dyn FnMut(),
) -> Result<(Likelihood, Distributions)> {
    let mut sums = Sums::default();
    let mut kept = Distributions::new();
    for window in windows {
        let mut each = |at: Tokens, logits: &[f32]| {
            let Some(&next) = window.get(at.as_usize() + 1) else { return };
            let row = log_softmax(logits);
            sums.log_probability += f64::from(row[next as usize]);
            match reference {
                Some(reference) => sums.add_kl(kl(&reference[sums.positions], &row)),
                None => kept.push(row),
            }
            sums.positions += 1;
        };
        llm.engine().score(window.clone(), &mut each)?;
        progress();
    }
    let likelihood = sums.finish();
    ensure!(
        likelihood.perplexity.is_finite(),
        "the model's logits are no numbers: its weights or this precision overflow"
    );
    Ok((likelihood, kept))
}

impl Sums {
    fn add_kl(&mut self, kl: f64) {
        self.kl += kl;
        self.max_kl = self.max_kl.max(kl);
    }

    fn finish(&self) -> Likelihood {
        let n = self.positions as f64;
        Likelihood {
            perplexity: (-self.log_probability / n).exp(),
            mean_kl: self.kl / n,
            max_kl: self.max_kl,
        }
    }
}

fn log_softmax(logits: &[f32]) -> Box<[f32]> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    let norm = most + sum.ln();
    logits.iter().map(|&logit| (f64::from(logit) - norm) as f32).collect()
}

/// Kullback-Leibler divergence in nats: what is lost by expecting `q` where `p` is true. Both are log-probabilities.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let terms = p.iter().zip(q).map(|(&p, &q)| (f64::from(p), f64::from(q)));
    let sum: f64 = terms.filter(|(p, _)| p.is_finite()).map(|(p, q)| p.exp() * (p - q)).sum();
    // Never below zero but for the rounding of the log-probabilities.
    sum.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_however_large_the_logits() {
        for logits in [vec![0.0, 1.0, -3.0], vec![1e4, 9.99e3, -1e4], vec![f32::NEG_INFINITY, 2.0, 2.0]] {
            let sum: f64 = log_softmax(&logits).iter().map(|&p| f64::from(p).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-3, "{logits:?}: {sum}");
        }
    }

    #[test]
    fn a_distribution_does_not_diverge_from_itself() {
        let row = log_softmax(&[0.5, -1.0, 3.0, f32::NEG_INFINITY]);
        assert_eq!(kl(&row, &row), 0.0);
    }

    #[test]
    fn divergence_is_that_of_a_case_done_by_hand() {
        let [half, p, q] = [0.5f32, 0.25, 0.75].map(f32::ln);
        let by_hand = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((kl(&[half, half], &[p, q]) - by_hand).abs() < 1e-7);
    }

    #[test]
    fn a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large() {
        let sums = Sums { positions: 10, log_probability: -10.0 * 6144f64.ln(), ..Sums::default() };
        assert!((sums.finish().perplexity - 6144.0).abs() < 1e-6);
    }
}
