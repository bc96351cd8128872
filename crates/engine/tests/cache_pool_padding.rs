//! A batch of prompts of different lengths: the padding never reaches the cache.

mod pools;

use octavo_backend::reference::ReferenceArena;
use octavo_backend::{Backend, Half, PageLayout, Reference};
use octavo_cpu::{Arena, RowAt};
use octavo_engine::{CachePool, KvPool, UpdateError};
use octavo_types::{KvDtype, PageId, Pages, SeqId, Tokens};
use pools::{DTYPES, HEADS, LAYERS, WIDTH, bits, cpu, recoded, rows, spec};
use std::collections::BTreeSet;

const LENS: [u32; 4] = [10, 20, 0, 17];
/// Rows of each sequence, more than the longest has.
const ROWS: usize = 23;

/// An arena whose bytes can be looked at.
trait Bytes {
    fn bytes(&self, page: PageId) -> &[u8];
    /// Where in a page the keys and values of a slot lie, and their parameters.
    fn places(layout: &PageLayout, slot: usize) -> Vec<usize>;
}
impl Bytes for ReferenceArena {
    fn bytes(&self, page: PageId) -> &[u8] {
        self.page(page)
    }
    fn places(layout: &PageLayout, slot: usize) -> Vec<usize> {
        let row = |(layer, half, head)| {
            let (row, parameters) = (layout.row_bytes(), layout.parameter_bytes());
            let row_at = layout.rows_at(layer, half, head) + slot * row;
            let parameters_at = layout.parameters_at(layer, half, head) + slot * parameters;
            (row_at..row_at + row).chain(parameters_at..parameters_at + parameters)
        };
        planes().flat_map(row).collect()
    }
}
impl Bytes for Arena {
    fn bytes(&self, page: PageId) -> &[u8] {
        self.page(page)
    }
    /// The bytes that storing rows of ones changes.
    fn places(layout: &PageLayout, slot: usize) -> Vec<usize> {
        let mut arena = Arena::new(*layout, Pages(1)).unwrap();
        let (row, parameters) = (vec![1; layout.row_bytes()], vec![1; layout.parameter_bytes()]);
        for (layer, half, head) in planes() {
            arena.store_row(RowAt { page: PageId(0), layer, half, head, slot }, &row, &parameters);
        }
        let page = arena.page(PageId(0));
        (0..page.len()).filter(|byte| page[*byte] == 1).collect()
    }
}

fn planes() -> impl Iterator<Item = (usize, Half, usize)> {
    (0..LAYERS).flat_map(|layer| {
        (0..HEADS).flat_map(move |head| [(layer, Half::Key, head), (layer, Half::Value, head)])
    })
}

fn snapshot<B: Backend<Arena: Bytes>>(pool: &KvPool<B>, pages: u32) -> Vec<Vec<u8>> {
    (0..pages).map(|page| pool.arena().bytes(PageId(page)).to_vec()).collect()
}

/// Fills the whole arena with 7.25, then prefills the batch; says which bytes changed and which were allowed to.
fn check<B: Backend<Arena: Bytes>>(mut pool: KvPool<B>, pages: u32, dtype: KvDtype) {
    let size = pool.spec().page_size().as_usize();
    fill(&mut pool, pages, size);
    let before = snapshot(&pool, pages);
    let slots = LENS.map(|len| pool.allocate_slot(Tokens(len)).unwrap());
    prefill(&mut pool, &slots, dtype);
    let layout = PageLayout::new(pool.spec());
    let mut allowed = BTreeSet::new();
    for (slot, len) in slots.iter().zip(LENS) {
        assert_eq!(pool.get_seq_len(*slot), Ok(Tokens(len)));
        let table = pool.block_table(*slot).unwrap().as_slice();
        for position in 0..len as usize {
            let page = table[position / size].index();
            let bytes = B::Arena::places(&layout, position % size);
            allowed.extend(bytes.into_iter().map(|byte| (page, byte)));
        }
    }
    let mut changed = 0;
    for (page, (before, after)) in before.iter().zip(snapshot(&pool, pages)).enumerate() {
        for (byte, (before, after)) in before.iter().zip(after).enumerate().filter(|(_, (a, b))| *a != b) {
            assert!(allowed.contains(&(page, byte)), "byte {byte} of page {page}: {before} became {after}");
            changed += 1;
        }
    }
    assert!(changed > allowed.len() / 2, "{changed} of {} bytes were written", allowed.len());
}

fn fill<B: Backend>(pool: &mut KvPool<B>, pages: u32, size: usize) {
    let all: Vec<SeqId> = (0..pages).map(|_| pool.allocate_slot(Tokens(size as u32)).unwrap()).collect();
    let sevens = vec![7.25; size * WIDTH];
    for slot in all {
        let mut view = pool.prefill_view(slot).unwrap();
        (0..LAYERS).for_each(|layer| view.store(layer, &sevens, &sevens).unwrap());
        drop(view);
        pool.free_slot(slot).unwrap();
    }
}

fn prefill(pool: &mut dyn CachePool, slots: &[SeqId], dtype: KvDtype) {
    let mut view = pool.batched_prefill_view(slots, &LENS.map(Tokens)).unwrap();
    for layer in 0..LAYERS {
        let [keys, values] = rows(layer as u64, slots.len() * ROWS);
        let read = view.update(layer, &keys, &values).unwrap();
        assert_eq!((read.batch, read.len), (4, 20), "as long as the longest of them");
        for (index, len) in LENS.into_iter().enumerate() {
            let tokens = recoded(dtype, &keys[index * ROWS * WIDTH..][..len as usize * WIDTH]);
            let expected = [tokens, vec![0.0; (20 - len as usize) * WIDTH]].concat();
            assert_eq!(bits(&read.keys[index * 20 * WIDTH..][..20 * WIDTH]), bits(&expected));
        }
    }
    view.advance(Tokens(ROWS as u32)).unwrap();
    let error = view.update(0, &[], &[]).unwrap_err();
    assert!(matches!(error, UpdateError::Over), "a second step has no lengths: {error}");
}

/// What the next test takes for granted.
#[test]
fn places_of_slots_have_no_byte_in_common() {
    for dtype in DTYPES {
        let layout = PageLayout::new(&spec(dtype));
        let mut taken = BTreeSet::new();
        for slot in 0..layout.page_size {
            let places = <Arena as Bytes>::places(&layout, slot);
            let bytes = 2 * LAYERS * HEADS * (layout.row_bytes() + layout.parameter_bytes());
            assert_eq!(places.len(), bytes, "slot {slot}, {dtype:?}");
            assert!(places.into_iter().all(|byte| taken.insert(byte)), "slot {slot}, {dtype:?}");
        }
    }
}

#[test]
fn a_batch_of_prompts_writes_its_tokens_and_no_other_byte() {
    for dtype in DTYPES {
        check(KvPool::paged(Reference, spec(dtype), Pages(9)).unwrap(), 9, dtype);
        check(KvPool::paged(cpu(), spec(dtype), Pages(9)).unwrap(), 9, dtype);
        check(KvPool::contiguous(Reference, &spec(dtype), 5, Tokens(40)).unwrap(), 5, dtype);
        check(KvPool::contiguous(cpu(), &spec(dtype), 5, Tokens(40)).unwrap(), 5, dtype);
    }
}

#[test]
fn fewer_rows_than_the_longest_prompt_are_refused() {
    let mut pool = KvPool::paged(Reference, spec(KvDtype::F16), Pages(9)).unwrap();
    let slots = LENS.map(|len| pool.allocate_slot(Tokens(len)).unwrap());
    let mut view = pool.batched_prefill_view(&slots, &LENS.map(Tokens)).unwrap();
    let [keys, values] = rows(0, 4 * 19);
    let error = view.update(0, &keys, &values).unwrap_err();
    assert_eq!(error.to_string(), "76 rows for 4 sequences: give 20 of each");
}
