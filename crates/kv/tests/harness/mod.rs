//! Programs made of bytes: what the fuzz targets run, and what a plain test runs over pseudo-random bytes.
//!
//! Any bytes are a program, so a fuzzer wastes none; equal bytes are equal programs, so a failure can be kept
//! as a file.

mod blocks;
mod checks;
mod input;
pub(crate) mod manager;
mod program;
pub(crate) mod slots;
