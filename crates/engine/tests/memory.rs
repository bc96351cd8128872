//! Resident memory follows the tokens, not the length that was reserved. Alone in its process, so that nothing else
//! allocates meanwhile.
#![cfg(target_os = "linux")]

use octavo_backend::{AttentionSpec, Backend, Heads, PageLayout, Rows, Span, TableView};
use octavo_cpu::{Cpu, Level};
use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
use octavo_types::{GroupId, KvDtype, KvSpec, PageId, PageSize, Tokens};
use std::num::NonZeroUsize;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_hundred_tokens_of_two_hundred_thousand_take_seven_pages_and_under_50_mb() {
    // Llama-3.2-3B: 28 layers, 8 key-value heads of 128.
    let spec = KvSpec::full_attention(28, 8, 128, KvDtype::F16, PageSize::DEFAULT).unwrap();
    let pages = spec.page_size().pages_for(Tokens(200_000));
    let mut cache = KvCache::new(Settings::new(pages)).unwrap();
    let cpu = Cpu::new(NonZeroUsize::MIN, Level::detect());
    let mut arena = cpu.arena(PageLayout::new(&spec), pages).unwrap();
    let heads = Heads { q: 24, kv: 8, dim: 128 };
    let mut qkv = cpu.buf(100, heads.qkv_cols()).unwrap();
    let mut angles = cpu.buf(100, 128).unwrap();
    let before = resident_bytes();

    let prompt = Prompt::new((0..100).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
    let (seq, _) = cache.admit(prompt, Reuse::Longest).unwrap();
    cache.schedule(seq, Tokens(100), Claim::New).unwrap();
    let table: Vec<PageId> = cache.sequence(seq).unwrap().table(GroupId(0)).pages().collect();
    assert_eq!(table.len(), 7);
    let tokens: Vec<u32> = (0..100).collect();
    let spans = [Span { first_row: 0, rows: 100, start: 0 }];
    let rows = Rows::new(&tokens, &spans);
    cpu.angles(&spans, &[0.1; 64], 1.0, &mut angles).unwrap();
    for layer in 0..28 {
        let spec = AttentionSpec { heads, scale: 1.0, window: None, layer };
        let tables = [TableView { first: 0, pages: &table }];
        cpu.rotate_and_store(&mut qkv, None, &angles, &spec, rows, &tables, &mut arena).unwrap();
    }
    cache.complete();

    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 50_000_000, "{grown} bytes for 100 tokens");
    assert!(grown >= 7 * spec.page_bytes().0 / 2, "{grown} bytes: were the pages written at all?");
}
