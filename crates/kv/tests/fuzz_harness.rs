//! The fuzz targets' programs on a stable toolchain: over pseudo-random bytes, and over inputs that were kept.

mod harness;
mod support;

use harness::{manager, slots};
use std::fs;
use std::path::Path;

/// Runs `count` inputs of up to `longest` bytes each, the same ones every time.
fn run_random(count: u64, longest: u64, run: fn(&[u8])) {
    for seed in 1..=count {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 24
        };
        let len = next() % longest;
        let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        run(&bytes);
    }
}

/// Runs every file in `fuzz/seeds` that was kept for `target`.
fn run_kept(target: &str, run: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut kept = 0;
    for entry in fs::read_dir(directory).expect("a directory a target") {
        let path = entry.expect("a readable directory").path();
        println!("{}", path.display());
        run(&fs::read(path).expect("a readable file"));
        kept += 1;
    }
    assert!(kept > 0, "no seeds for {target}");
}

#[test]
fn random_operations_keep_the_cache_consistent() {
    run_random(6000, 600, manager::run);
}

#[test]
fn random_places_agree_with_wide_arithmetic() {
    run_random(20_000, 300, slots::run);
}

#[test]
fn inputs_kept_from_fuzzing_still_pass() {
    run_kept("manager", manager::run);
    run_kept("slots", slots::run);
}

#[test]
fn no_bytes_are_a_program_too() {
    manager::run(&[]);
    slots::run(&[]);
}
