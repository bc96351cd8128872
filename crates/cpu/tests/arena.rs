//! The arena takes memory as pages are written, not as it is made.
#![cfg(target_os = "linux")]

use octavo_backend::PageLayout;
use octavo_cpu::Arena;
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages};

/// Bytes of memory that back this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split(' ').nth(1).expect("its second field").parse().expect("a number");
    pages * 4096
}

/// A resident size that is read while other things happen, too: a few MiB do not matter here.
const NOISE: usize = 8 << 20;

fn check(kv_heads: u32, pages: u32) {
    let spec =
        KvSpec::full_attention(16, kv_heads, 128, KvDtype::F16, PageSize::DEFAULT).expect("a geometry");
    let layout = PageLayout::new(&spec);
    let bytes = pages as usize * layout.page_bytes();
    let before = resident();
    let mut arena = Arena::new(layout, Pages(pages)).expect("address space");
    assert!(resident() < before + NOISE, "{bytes} bytes were committed at once");
    let mut written = 0;
    for part in [16, 8, 4] {
        for page in written..pages / part {
            arena.page_mut(PageId(page)).fill(1);
        }
        written = pages / part;
        let (grown, wanted) = (resident() - before, written as usize * layout.page_bytes());
        assert!(grown.abs_diff(wanted) < NOISE, "{grown} bytes for {wanted} written");
    }
}

#[test]
fn resident_memory_grows_with_the_pages_that_were_written() {
    // 48 MiB in small pages of the OS, then 1 GiB in huge ones where there are any.
    check(1, 384);
    check(8, 1024);
}
