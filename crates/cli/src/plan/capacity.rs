//! The arithmetic: bytes, pages and sequences of one geometry in one precision.

use super::geometry::Geometry;
use crate::model_args::Dtype;
use octavo::{Bytes, KvSpec, PageSize, SpecError, Tokens};
use serde::Serialize;

/// One precision of a geometry, in a budget.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Precision {
    pub(super) precision: &'static str,
    /// Of all layers, quantisation parameters included.
    pub(super) bytes_per_token: u64,
    pub(super) parameter_bytes_per_token: u64,
    pub(super) share_of_f16: f64,
    pub(super) bytes_per_page: u64,
    /// Pages that the first sixteen (or however many) tokens take: one a layer group.
    pub(super) pages_per_full_page_of_tokens: u64,
    pub(super) pages: u64,
    /// Tokens of one sequence that has it all to itself; none where a sequence of any length fits.
    pub(super) longest_sequence: Option<u64>,
    pub(super) sequences: Vec<Sequences>,
}

/// How many sequences of one length fit at once.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Sequences {
    pub(super) length: u32,
    pub(super) bytes_each: u64,
    pub(super) paged: u64,
    pub(super) contiguous: u64,
}

/// What to plan for.
#[derive(Debug, Clone)]
pub(super) struct Plan<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) page_size: PageSize,
    pub(super) budget: Bytes,
    pub(super) lengths: &'a [Tokens],
    /// What a contiguous sequence reserves.
    pub(super) max_len: Tokens,
}

impl Plan<'_> {
    pub(super) fn precision(&self, dtype: Dtype) -> Result<Precision, SpecError> {
        let spec = self.geometry.spec(dtype.into(), self.page_size)?;
        let slot = PageSize::new(self.max_len.0).expect("a length is at least 1");
        let slots = self.geometry.spec(dtype.into(), slot)?;
        let pages = u64::from(spec.pages_in(self.budget).0);
        let contiguous = u64::from(slots.pages_in(self.budget).0) / slots.groups().len() as u64;
        let sequences = self.lengths.iter().map(|&length| {
            let each = pages_of(&spec, length);
            Sequences {
                length: length.0,
                bytes_each: each * spec.page_bytes().0,
                paged: pages / each,
                contiguous,
            }
        });
        let vectors = self.vectors_per_token();
        Ok(Precision {
            precision: dtype.name(),
            bytes_per_token: self.bytes_per_token(dtype),
            parameter_bytes_per_token: vectors * octavo::KvDtype::from(dtype).parameter_bytes(),
            share_of_f16: self.bytes_per_token(dtype) as f64 / self.bytes_per_token(Dtype::F16) as f64,
            bytes_per_page: spec.page_bytes().0,
            pages_per_full_page_of_tokens: spec.groups().len() as u64,
            pages,
            longest_sequence: longest(&spec, pages),
            sequences: sequences.collect(),
        })
    }

    /// Keys and values of one token, in all layers and heads.
    fn vectors_per_token(&self) -> u64 {
        2 * self.geometry.windows.len() as u64 * u64::from(self.geometry.kv_heads)
    }

    fn bytes_per_token(&self, dtype: Dtype) -> u64 {
        self.vectors_per_token() * octavo::KvDtype::from(dtype).vector_bytes(self.geometry.head_dim)
    }
}

/// Pages that a sequence of `length` holds while it decodes. A window that begins and ends within a page reaches into
/// one more than it would fill.
pub(super) fn pages_of(spec: &KvSpec, length: Tokens) -> u64 {
    let size = spec.page_size();
    let of_all = size.pages_for(length).0;
    let held = |window: Option<Tokens>| match window {
        Some(window) => of_all.min(size.pages_for(window - Tokens(1)).0 + 1),
        None => of_all,
    };
    spec.windows().into_iter().map(|window| u64::from(held(window))).sum()
}

/// The longest sequence that `pages` hold: windowed groups stop growing, and the others share the rest.
fn longest(spec: &KvSpec, pages: u64) -> Option<u64> {
    let size = u64::from(spec.page_size().tokens().0);
    let fits = |tokens: u64| pages_of(spec, Tokens(u32::try_from(tokens).unwrap_or(u32::MAX))) <= pages;
    if spec.windows().iter().all(Option::is_some) && fits(u32::MAX.into()) {
        return None;
    }
    let (mut low, mut high) = (0, u64::from(u32::MAX) / size + 1);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(middle * size) { low = middle } else { high = middle }
    }
    Some(low * size)
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Preset;
    use super::*;
    use octavo::KvDtype;

    fn spec(preset: Preset) -> KvSpec {
        preset.geometry().spec(KvDtype::Bf16, PageSize::DEFAULT).unwrap()
    }

    #[test]
    fn a_sequence_holds_a_page_a_group_for_every_sixteen_tokens() {
        let llama = spec(Preset::Llama32With3B);
        assert_eq!([1, 16, 17, 4096].map(|length| pages_of(&llama, Tokens(length))), [1, 1, 2, 256]);
    }

    #[test]
    fn windowed_groups_stop_growing_at_their_window_and_one_page() {
        let gemma = spec(Preset::Gemma3With1B);
        assert_eq!(pages_of(&gemma, Tokens(512)), 13 * 32);
        assert_eq!(pages_of(&gemma, Tokens(528)), 13 * 33);
        assert_eq!(pages_of(&gemma, Tokens(4096)), 2 * 256 + 11 * 33);
    }

    #[test]
    fn the_longest_sequence_takes_every_page_there_is() {
        assert_eq!(longest(&spec(Preset::Llama32With3B), 100), Some(1600));
        let gemma = spec(Preset::Gemma3With1B);
        let most = longest(&gemma, 1000).unwrap();
        assert!(pages_of(&gemma, Tokens(most as u32)) <= 1000);
        assert!(pages_of(&gemma, Tokens(most as u32 + 1)) > 1000);
        assert_eq!(longest(&gemma, 12), Some(0));
    }

    #[test]
    fn a_model_that_only_looks_back_a_window_goes_on_forever() {
        let narrow = Preset::Llama32With3B.geometry().narrowed(Tokens(1024));
        let spec = narrow.spec(KvDtype::F16, PageSize::DEFAULT).unwrap();
        assert_eq!(longest(&spec, 65), None);
        assert_eq!(longest(&spec, 64), Some(1024));
    }
}
