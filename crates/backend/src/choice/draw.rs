//! A token by chance.

use super::Choice;
use super::scan::{exp, largest, likeliest, sum_by};

/// Weights added up before looking closer.
const BLOCK: usize = 256;
/// How many of the likeliest to look at for `top_p`, until they are enough: few tokens carry nearly all the weight.
const FRONTS: [usize; 3] = [32, 512, usize::MAX];

/// Draws by `uniform`. `logits` becomes weights.
pub(super) fn draw(choice: &Choice, logits: &mut [f32]) -> Option<u32> {
    let most = likeliest(logits)?;
    weigh(logits, logits[most as usize], choice.temperature, choice.min_p);
    let token = if choice.keeps_all() {
        pick_of_all(logits, choice.uniform)
    } else {
        pick(&keep_likeliest(logits, choice.top_k as usize, choice.top_p), choice.uniform)
    };
    token.or(Some(most))
}

/// Scaled so that the likeliest weighs 1: exp cannot overflow, and min_p compares directly.
fn weigh(logits: &mut [f32], top: f32, temperature: f32, min: f32) {
    for logit in logits {
        let weight = exp((*logit - top) / temperature);
        *logit = if weight >= min { weight } else { 0.0 };
    }
}

/// The token at which the weights, added up by token, pass a fraction of their sum.
fn pick_of_all(weights: &[f32], uniform: f64) -> Option<u32> {
    let sum = |block: &[f32]| sum_by(block, |weight| weight);
    // The sum of the blocks' sums, not of the weights: the same roundings as below.
    let mut left = uniform * weights.chunks(BLOCK).map(sum).sum::<f64>();
    let mut last = None;
    for (index, block) in weights.chunks(BLOCK).enumerate() {
        let sum = sum(block);
        if sum == 0.0 {
            continue;
        }
        if left < sum {
            let tokens = block.iter().copied().zip((index * BLOCK) as u32..);
            return pick(&tokens.filter(|(weight, _)| *weight > 0.0).collect::<Vec<_>>(), left / sum);
        }
        left -= sum;
        last = Some(index * BLOCK);
    }
    // Rounding left nothing to stop at: the last that weighs anything.
    let start = last?;
    let at = weights[start..].iter().take(BLOCK).rposition(|weight| *weight > 0.0)?;
    Some((start + at) as u32)
}

fn pick(kept: &[(f32, u32)], uniform: f64) -> Option<u32> {
    let mut left = uniform * total(kept);
    for &(weight, token) in kept {
        left -= f64::from(weight);
        if left < 0.0 {
            return Some(token);
        }
    }
    kept.last().map(|(_, token)| *token)
}

fn total(kept: &[(f32, u32)]) -> f64 {
    kept.iter().map(|(weight, _)| f64::from(*weight)).sum()
}

/// The `top_k` heaviest in order, cut where their share reaches `top_p`.
pub fn keep_likeliest(weights: &[f32], top_k: usize, top_p: f32) -> Vec<(f32, u32)> {
    if top_k > 0 {
        let mut kept = largest(weights, top_k, 0.0);
        let enough = total(&kept) * f64::from(top_p);
        cut(&mut kept, enough);
        return kept;
    }
    let enough = sum_by(weights, |weight| weight) * f64::from(top_p);
    let mut kept = Vec::new();
    for front in FRONTS {
        kept = largest(weights, front, 0.0);
        if cut(&mut kept, enough) {
            break;
        }
    }
    kept
}

/// Keeps the first whose weights reach `enough`; says whether they do.
fn cut(kept: &mut Vec<(f32, u32)>, enough: f64) -> bool {
    let mut sum = 0.0;
    let reached = kept.iter().position(|(weight, _)| {
        sum += f64::from(*weight);
        sum >= enough
    });
    kept.truncate(reached.map_or(kept.len(), |at| at + 1));
    reached.is_some()
}
