//! Choosing a token from logits: the one definition that the engine uses and devices follow bit by bit.

mod draw;
mod scan;

pub use draw::keep_likeliest;
pub use scan::{exp, largest, likeliest, sum_by};

/// The most tokens that a device puts in order.
pub const MOST_KEPT: u32 = 1024;

/// How one token is chosen. Equal logits and an equal choice give the same token on every device.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
pub struct Choice {
    /// In [0, 1): the chance by which a token is drawn.
    pub uniform: f64,
    /// 0 chooses the likeliest token.
    pub temperature: f32,
    /// Only the k likeliest; 0 for all.
    pub top_k: u32,
    /// Only the likeliest whose probabilities add up to this.
    pub top_p: f32,
    /// Only those at least this fraction as likely as the likeliest.
    pub min_p: f32,
}

impl Choice {
    pub const LIKELIEST: Self = Self { uniform: 0.0, temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// The token; none where every logit is NaN or minus infinity. `logits` is changed.
    pub fn of(&self, logits: &mut [f32]) -> Option<u32> {
        if self.temperature == 0.0 { likeliest(logits) } else { draw::draw(self, logits) }
    }

    /// Whether no more than [`MOST_KEPT`] tokens need to be put in order, whatever the logits.
    pub fn keeps_few(&self) -> bool {
        self.temperature == 0.0 || self.keeps_all() || (1..=MOST_KEPT).contains(&self.top_k)
    }

    fn keeps_all(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0
    }
}
