//! Where tokens live, against arithmetic too wide to overflow: units, slots, page sizes, page tables and
//! block tables.

use super::blocks;
use super::input::Input;
use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Sequence, Settings, Table};
use octavo_types::{Bytes, KvDtype, KvSpec, PageId, PageSize, Pages, SlotId, SlotRange, SpecError, Tokens};
use std::ops::Range;

/// Checks the numbers and tables that `bytes` stand for; panics where they are wrong.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    for _ in 0..64 {
        match input.below(7) {
            0 => check_units(input.u32(), input.u32()),
            1 => check_page_size(input.u32(), input.u32()),
            2 => check_slot(input.u32(), input.u32(), input.u32()),
            3 => check_split(input.u64(), input.u32()),
            4 => check_spec(&mut input),
            5 => check_tables(&mut input),
            _ => blocks::check(&mut input),
        }
        if input.is_empty() {
            return;
        }
    }
}

fn narrow(wide: u128) -> Option<u32> {
    u32::try_from(wide).ok()
}

fn check_units(a: u32, b: u32) {
    let sum = narrow(u128::from(a) + u128::from(b));
    let difference = u128::from(a).checked_sub(b.into()).and_then(narrow);
    assert_eq!(Tokens(a).checked_add(Tokens(b)), sum.map(Tokens));
    assert_eq!(Pages(a).checked_sub(Pages(b)), difference.map(Pages));
    assert_eq!(Pages(a).saturating_sub(Pages(b)), Pages(difference.unwrap_or(0)));
    if let Some(sum) = sum {
        assert_eq!([Pages(a), Pages(b)].into_iter().sum::<Pages>(), Pages(sum));
    }
}

fn check_page_size(size: u32, n: u32) {
    let Some(page_size) = PageSize::new(size) else { return assert_eq!(size, 0) };
    let (wide_size, wide_n) = (u128::from(size), u128::from(n));
    assert_eq!(Some(page_size.pages_for(Tokens(n)).0), narrow(wide_n.div_ceil(wide_size)));
    assert_eq!(Some(page_size.full_pages(Tokens(n)).0), narrow(wide_n / wide_size));
    assert_eq!(Some(page_size.page_of(Tokens(n)).0), narrow(wide_n / wide_size));
    assert_eq!(Some(page_size.offset_of(Tokens(n)).0), narrow(wide_n % wide_size));
    assert_eq!(page_size.tokens_in(Pages(n)).map(|tokens| tokens.0), narrow(wide_n * wide_size));
}

fn check_slot(page: u32, offset: u32, size: u32) {
    let Some(page_size) = PageSize::new(size) else { return };
    let offset = offset % size;
    let slot = SlotId::new(PageId(page), Tokens(offset), page_size);
    assert_eq!(u128::from(slot.0), u128::from(page) * u128::from(size) + u128::from(offset));
    assert_eq!(slot.split(page_size), Some((PageId(page), Tokens(offset))));
    let end = offset.saturating_add(3).min(size);
    let slots: Vec<_> = SlotRange { page: PageId(page), offsets: offset..end }.slots(page_size).collect();
    let expected: Vec<_> = (0..u64::from(end - offset)).map(|ahead| SlotId(slot.0 + ahead)).collect();
    assert_eq!(slots, expected);
}

fn check_split(slot: u64, size: u32) {
    let Some(page_size) = PageSize::new(size) else { return };
    let page = narrow(u128::from(slot) / u128::from(size));
    match SlotId(slot).split(page_size) {
        Some((found, offset)) => {
            assert_eq!(Some(found.0), page);
            assert_eq!(SlotId::new(found, offset, page_size), SlotId(slot));
        }
        None => assert_eq!(page, None),
    }
}

fn check_spec(input: &mut Input<'_>) {
    let windows: Vec<_> = (0..input.below(9)).map(|_| input.flag().then_some(Tokens(7))).collect();
    let (heads, dim) = (input.u32(), input.u32());
    let dtype = input.one_of(&[KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8]);
    let Some(page_size) = PageSize::new(input.u32()) else { return };
    let budget = input.u64();
    let spec = match KvSpec::new(&windows, heads, dim, dtype, page_size) {
        Ok(spec) => spec,
        Err(SpecError::NoLayers) => return assert!(windows.is_empty()),
        Err(SpecError::Zero(_)) => return assert!(heads == 0 || dim == 0),
        Err(SpecError::TooLarge) => {
            let most = token_bytes(8, heads, dim, dtype) * u128::from(page_size.tokens().0);
            return assert!(most > u128::from(u64::MAX));
        }
        Err(error) => panic!("{error}"),
    };
    let layers: usize = spec.groups().iter().map(|group| group.layers.len()).sum();
    assert_eq!(layers, windows.len());
    let bytes = token_bytes(spec.layers_per_page(), heads, dim, dtype) * u128::from(page_size.tokens().0);
    assert_eq!(u128::from(spec.page_bytes().0), bytes);
    let pages = narrow(u128::from(budget) / bytes).unwrap_or(u32::MAX);
    assert_eq!(spec.pages_in(Bytes(budget)), Pages(pages));
}

/// Keys and values of one token in `layers` layers.
fn token_bytes(layers: u32, heads: u32, dim: u32, dtype: KvDtype) -> u128 {
    let element = match dtype {
        KvDtype::F32 => 4,
        KvDtype::F16 | KvDtype::Bf16 => 2,
        KvDtype::Fp8 | KvDtype::Int8 => 1,
    };
    let parameters = if element == 1 { 4 } else { 0 };
    u128::from(layers) * 2 * u128::from(heads) * (u128::from(dim) * element + parameters)
}

/// Tables of a real sequence, of pages as large as they can be.
fn check_tables(input: &mut Input<'_>) {
    let Some(page_size) = PageSize::new(if input.flag() { input.u32() } else { input.below(9) }) else {
        return;
    };
    let windows = (0..=input.below(2)).map(|_| input.flag().then(|| Tokens(1 + input.below(20)))).collect();
    let settings = Settings { page_size, windows, prefix_cache: false, ..Settings::new(Pages(128)) };
    let mut cache = KvCache::new(settings).expect("settings that work");
    let prompt = vec![0; 1 + input.below(40) as usize];
    let prompt = Prompt::new(prompt, Scope::default(), page_size).expect("not too long");
    let mut left = prompt.len();
    let (seq, _) = cache.admit(prompt, Reuse::Longest).expect("it fits");
    while left > Tokens::ZERO {
        let n = left.min(Tokens(1 + input.below(16)));
        left -= n;
        cache.schedule(seq, n, Claim::Running).expect("it fits");
        check_sequence(cache.sequence(seq).expect("admitted"), page_size, input);
        cache.complete();
        check_sequence(cache.sequence(seq).expect("admitted"), page_size, input);
    }
}

fn check_sequence(sequence: &Sequence, size: PageSize, input: &mut Input<'_>) {
    for table in sequence.tables() {
        let (a, b) = (input.below(64), input.below(64));
        check_range(table, Tokens(a)..Tokens(b), size);
        let far = input.u32();
        check_range(table, Tokens(far)..Tokens(far.saturating_add(b)), size);
        check_range(table, table_start(table, size)..sequence.scheduled(), size);
        assert_eq!(table.pages().count(), table.held().as_usize());
        assert_eq!(table.slot(sequence.scheduled(), size).is_some(), has_room(sequence, size));
    }
}

/// The first position that a table holds.
fn table_start(table: &Table, size: PageSize) -> Tokens {
    size.tokens_in(table.first()).expect("no further than the sequence")
}

/// Whether the next token lies in the page that the last one lies in.
fn has_room(sequence: &Sequence, size: PageSize) -> bool {
    size.offset_of(sequence.scheduled()) > Tokens::ZERO
}

fn check_range(table: &Table, positions: Range<Tokens>, size: PageSize) {
    let expected: Option<Vec<u128>> =
        (positions.start.0..positions.end.0).map(|at| naive_slot(table, at, size)).collect();
    let found = table.slots(positions.clone(), size).map(|ranges| {
        ranges.iter().flat_map(|range| range.slots(size)).map(|slot| u128::from(slot.0)).collect::<Vec<_>>()
    });
    assert_eq!(found, expected, "{positions:?}");
    for at in positions.start.0..positions.end.0 {
        let slot = table.slot(Tokens(at), size).map(|slot| u128::from(slot.0));
        assert_eq!(slot, naive_slot(table, at, size), "position {at}");
    }
}

/// `page * size + offset`, the page counted off from the first that the table holds.
fn naive_slot(table: &Table, position: u32, size: PageSize) -> Option<u128> {
    let (position, size) = (u128::from(position), u128::from(size.tokens().0));
    let index = (position / size).checked_sub(u128::from(table.first().0))?;
    let page = table.pages().nth(usize::try_from(index).ok()?)?;
    Some(u128::from(page.0) * size + position % size)
}
