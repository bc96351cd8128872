//! The fuzz targets' programs, from where the stable tests run them too.

#[path = "../../crates/kv/tests/harness/mod.rs"]
mod harness;
#[path = "../../crates/kv/tests/support/mod.rs"]
mod support;

/// Operations on a cache.
pub fn manager(bytes: &[u8]) {
    harness::manager::run(bytes);
}

/// Places of tokens.
pub fn slots(bytes: &[u8]) {
    harness::slots::run(bytes);
}
