//! What every back end must pass.
//!
//! ```ignore
//! // tests/conformance.rs of a back end: one test for each property below.
//! octavo_backend::conformance!(MyBackend::new());
//! ```
//!
//! Two kinds of properties. *Near the reference*: each operation against [`Reference`](crate::Reference), within a
//! stated [`Tolerance`]. *The same bits*: a row's results compared with `==` between one way of running it and
//! another (alone or in a batch, one chunk or many, these pages or those), see the crate's documentation.
//!
//! Inputs come from [`Random`](crate::Random) and are exact in bf16, so that back ends that keep activations in
//! sixteen bits are measured by the same suite. Weights in a format that a back end refuses, as
//! [`Unsupported`](crate::BackendError::Unsupported), are left out.

mod attention;
mod bits;
mod choice;
mod compare;
mod dense;
mod linear;
mod pages;
mod transfer;
mod world;

pub use attention::{
    angles_match_the_reference, attention_matches_the_reference, rotation_matches_the_reference,
    stale_contents_of_pages_never_reach_a_result,
};
pub use bits::{
    attention_alone_equals_attention_in_a_batch, dense_rows_alone_equal_rows_in_a_batch,
    one_chunk_equals_many, pages_that_left_the_window_do_not_matter,
    where_pages_lie_and_how_large_they_are_does_not_matter,
};
pub use choice::tokens_are_those_of_the_definition;
pub use dense::{
    activations_match_the_reference, buffers_resize_and_read_back, embeddings_match_the_reference,
    norms_match_the_reference, rows_are_picked_exactly,
};
pub use linear::{gated_products_match_the_reference, linear_matches_the_reference};
pub use pages::{
    copied_pages_attend_like_their_originals, copies_run_one_after_another,
    storing_touches_its_own_slots_only, what_is_gathered_is_what_was_encoded,
    what_is_written_at_slots_is_gathered_in_token_order, zeroed_pages_decode_to_zero,
};

/// How far a back end may be from the reference.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Norms, activations, rotations: relative to the largest result of the row (of the head, where heads are
    /// treated one by one).
    pub elementwise: f32,
    /// Products with weights in f16 and f32: relative to `Σ|x·w|`.
    pub linear: f32,
    /// Products with weights in bf16: the same measure. A back end may round the activations to bf16 too.
    pub linear_bf16: f32,
    /// Products with weights in [`Int8`](crate::WeightFormat::Int8): the same measure. A back end may quantise the
    /// activations too.
    pub linear_int8: f32,
    /// Attention: relative to the largest value (as in keys and values), which is 1.
    pub attention: f32,
    /// Attention over keys and values in fp8: the same measure. A back end may round queries and weights to bf16.
    pub attention_fp8: f32,
}

impl Tolerance {
    /// For back ends that compute in f32.
    pub const F32: Self = Self {
        elementwise: 1e-5,
        linear: 1e-5,
        linear_bf16: 4e-3,
        linear_int8: 1e-2,
        attention: 5e-5,
        attention_fp8: 4e-3,
    };
    /// For back ends that keep activations in bf16.
    pub const BF16: Self = Self {
        elementwise: 1e-2,
        linear: 1e-2,
        linear_bf16: 1e-2,
        linear_int8: 2e-2,
        attention: 1e-2,
        attention_fp8: 1e-2,
    };
}

/// Writes one test for each property of the suite. The first argument makes a back end and is evaluated in each
/// test; the second is a [`Tolerance`], that of f32 unless told.
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance!($backend, $crate::conformance::Tolerance::F32);
    };
    ($backend:expr, $tolerance:expr) => {
        $crate::conformance!(@each tests $backend, $tolerance);
    };
    (@each $what:ident $($of:tt)*) => {
        $crate::conformance!(@$what $($of)*;
            buffers_resize_and_read_back, embeddings_match_the_reference, norms_match_the_reference,
            activations_match_the_reference, rows_are_picked_exactly, linear_matches_the_reference,
            gated_products_match_the_reference,
            angles_match_the_reference, rotation_matches_the_reference, attention_matches_the_reference,
            stale_contents_of_pages_never_reach_a_result, dense_rows_alone_equal_rows_in_a_batch,
            attention_alone_equals_attention_in_a_batch, one_chunk_equals_many,
            where_pages_lie_and_how_large_they_are_does_not_matter, pages_that_left_the_window_do_not_matter,
            what_is_gathered_is_what_was_encoded, what_is_written_at_slots_is_gathered_in_token_order,
            storing_touches_its_own_slots_only,
            copied_pages_attend_like_their_originals, copies_run_one_after_another, zeroed_pages_decode_to_zero,
            tokens_are_those_of_the_definition,
        );
    };
    (@tests $backend:expr, $tolerance:expr; $($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::$name(&$backend, $tolerance);
            }
        )*
    };
    (@calls $each:expr, $property:ty; $($name:ident,)*) => {
        $($each(stringify!($name), $name as $property);)*
    };
}

/// A property of the suite; panics where a back end lacks it.
pub type Property<B> = fn(&B, Tolerance);

/// Those that compare bits between one way of running and another: a back end may have a mode without.
pub const BITS: [&str; 6] = [
    "dense_rows_alone_equal_rows_in_a_batch",
    "attention_alone_equals_attention_in_a_batch",
    "one_chunk_equals_many",
    "where_pages_lie_and_how_large_they_are_does_not_matter",
    "pages_that_left_the_window_do_not_matter",
    "copied_pages_attend_like_their_originals",
];

/// Every property with its name, where a test for each is not wanted.
pub fn properties<B: crate::Backend>() -> Vec<(&'static str, Property<B>)> {
    let mut all: Vec<(&'static str, Property<B>)> = Vec::new();
    let mut each = |name, property| all.push((name, property));
    crate::conformance!(@each calls each, Property<B>);
    all
}

/// The whole suite on one back end; panics at the first failure.
pub fn run_all<B: crate::Backend>(backend: &B, tolerance: Tolerance) {
    properties().into_iter().for_each(|(_, property)| property(backend, tolerance));
}
