//! When the cache's memory is taken from the system. Alone in its process, so that nothing else allocates meanwhile.
#![cfg(target_os = "linux")]

use octavo::{Bytes, KvMemory, Llm, Loading, Options};

const MEMORY: u64 = 256 << 20;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// How much more memory the process has with the built-in model loaded, and how many pages of it were told of.
fn load(commit_kv: bool) -> (u64, usize) {
    let options = Options { kv_memory: KvMemory::Bytes(Bytes(MEMORY)), commit_kv, ..Options::default() };
    let (before, mut told) = (resident_bytes(), 0);
    let llm = Llm::load(&options, &mut |at| {
        if let Loading::Commit { done, .. } = at {
            told = done;
        }
    });
    let grown = resident_bytes().saturating_sub(before);
    drop(llm.unwrap());
    (grown, told)
}

#[test]
fn the_cache_takes_its_memory_at_the_start_if_asked_to_and_else_as_it_is_used() {
    let (lazy, none) = load(false);
    let (taken, pages) = load(true);
    assert_eq!(none, 0);
    assert!(pages > 1000, "{pages} pages were taken");
    assert!(taken >= MEMORY, "{taken} bytes with all pages");
    assert!(lazy < MEMORY / 2, "{lazy} bytes before anything is in the cache");
}
