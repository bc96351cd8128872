//! The engine: sequences in, tokens out, over any back end.
#![forbid(unsafe_code)]

mod sampler;

pub use sampler::{Sampler, SamplingError, SamplingParams};
