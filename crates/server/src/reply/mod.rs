//! Answers: from the engine's events to JSON, at once or as a stream.

pub(crate) mod body;
pub(crate) mod collect;
pub(crate) mod logprobs;
pub(crate) mod offset;
pub(crate) mod stream;
