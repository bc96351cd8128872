use super::items::{items, linked};
use super::key::RESERVED;
use super::pieces::{SLACK, even, ranges};
use super::*;

#[test]
fn ranges_cover_the_tiles_once_and_in_order() {
    for (from, to, part, fixed) in
        [(0, 1, 32, true), (5, 100, 32, true), (0, 256, 16, false), (3, 50, 7, false)]
    {
        let ranges: Vec<_> = ranges([from, to], part, fixed).collect();
        assert_eq!((ranges[0][0], ranges[ranges.len() - 1][1]), (from, to));
        assert!(ranges.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{ranges:?}");
        assert!(ranges.iter().all(|r| r[0] < r[1] && r[1] - r[0] <= part), "{ranges:?}");
        assert!(!fixed || ranges.iter().skip(1).all(|r| r[0] % part == 0), "{ranges:?}");
    }
}

fn work(tiles: &[u32]) -> Vec<Work> {
    let of = |(row, &n): (usize, &u32)| Work { row, rows: 1, position: 16 * n - 1, table: 0, tiles: [0, n] };
    tiles.iter().enumerate().map(of).collect()
}

/// Tiles of each share.
fn dealt(pieces: &[Piece], shares: usize) -> Vec<u32> {
    let starts = starts(pieces, shares);
    let tiles = |p: &Piece| p.tiles[1] - p.tiles[0];
    starts.windows(2).map(|s| pieces[s[0]..s[1]].iter().map(tiles).sum()).collect()
}

#[test]
fn even_shares_cover_every_tile_once_and_differ_by_little() {
    for (tiles, shares) in [
        (vec![256; 64], 66),
        (vec![64; 256], 33),
        (vec![2048; 8], 33),
        (vec![12_500], 132),
        (vec![500, 100, 30, 7, 1, 1], 5),
    ] {
        let work = work(&tiles);
        let pieces = even(&work, shares);
        for (w, own) in work.iter().zip(pieces.chunk_by(|a, b| a.work.row == b.work.row)) {
            assert_eq!((own[0].tiles[0], own[own.len() - 1].tiles[1]), (0, w.tiles[1]));
            assert!(own.windows(2).all(|pair| pair[0].tiles[1] == pair[1].tiles[0]), "{own:?}");
        }
        let (dealt, mean) = (dealt(&pieces, shares), tiles.iter().sum::<u32>() / shares as u32);
        let most = dealt.iter().max().unwrap();
        assert!(*most <= mean + 2 * (mean / SLACK as u32).max(1) + 1, "{dealt:?} of {tiles:?}");
    }
}

#[test]
fn whole_sequences_are_dealt_in_order() {
    let pieces = cut(&work(&[9, 4, 3, 2, 1, 1]), Cuts::Parts(u32::MAX));
    assert_eq!(starts(&pieces, 2), [0, 1, 6]);
    assert_eq!(dealt(&pieces, 2), [9, 11]);
}

#[test]
fn a_block_finds_all_items_of_its_share() {
    let pieces = cut(&work(&[9, 4, 3, 2, 1, 1]), Cuts::Parts(u32::MAX));
    let linked = linked(&items(&pieces).0, &starts(&pieces, 2), 2);
    let mut rows = Vec::new();
    for share in 0..2 {
        let (mut at, mut own) = (share, Vec::new());
        loop {
            own.push(linked[at].row);
            at = linked[at].next as usize;
            if at == 0 {
                break;
            }
        }
        rows.push(own);
    }
    assert_eq!(rows, [vec![0], vec![1, 2, 3, 4, 5]]);
}

/// Of one part, of as many as are merged at once and one more, and of several groups.
#[test]
fn no_two_works_share_a_place_for_parts_or_a_counter() {
    let pieces = cut(&work(&[33, 17, 16, 2, 1, 40]), Cuts::Parts(1));
    let (items, all_parts, all_counters) = items(&pieces);
    let (mut next_part, mut next_counter) = (0, 0);
    for own in items.chunk_by(|a, b| a.row == b.row).filter(|own| own.len() > 1) {
        // As in `cu/parts.cuh`: a place for each group, and a counter for each and for all of them.
        let (parts, groups) = (own.len() as i32, own.len().div_ceil(16) as i32);
        let groups = if parts > 16 { groups } else { 0 };
        assert_eq!(own.iter().map(|item| item.part).collect::<Vec<_>>(), (0..parts).collect::<Vec<_>>());
        let same = (next_part, parts, next_counter);
        assert!(own.iter().all(|item| (item.first_part, item.parts, item.counter) == same), "{own:?}");
        next_part += parts + groups;
        next_counter += groups + 1;
    }
    assert_eq!((all_parts, all_counters), (next_part as usize, next_counter as usize));
}

/// Of layers in which bits may not depend on the batch.
fn alike(window: u32) -> PlanKey {
    PlanKey {
        window,
        kv_heads: 1,
        group: 2,
        head_dim: 64,
        element_bytes: 2,
        deterministic: true,
        groups: false,
        tuning: Tuning::default(),
    }
}

/// A row's parts end where they do when it comes alone, from whichever tile on it sees.
#[test]
fn parts_end_at_fixed_tiles_where_bits_may_not_depend_on_the_batch() {
    for (window, rows) in [(0, 1), (900, 1), (0, 3), (900, 3)] {
        let span = Span { first_row: 0, rows, start: 1700 };
        let plan = Plan::new(Processors::MANY, alike(window), 16, &[span]);
        let mut ends: Vec<_> = plan.launches[0].items.iter().map(|item| item.tile1 as u32).collect();
        ends.retain(|end| *end > 0);
        ends.sort_unstable();
        let fixed: Vec<u32> = if window == 0 { vec![32, 64, 96] } else { vec![64, 96] };
        assert_eq!(ends, [&fixed[..], &[107]].concat(), "{rows} rows, window {window}");
    }
}

/// Decoding, a few rows, a chunk; short and long, alone and many.
#[test]
fn no_block_has_more_columns_or_shared_memory_than_there_is_room_for() {
    // Of compute capability 8.6, 8.9 and 12; of 8.0; of 9.0 and 10.
    for (head_dim, shared) in
        (16..=256).step_by(16).flat_map(|dim| [99, 163, 227].map(|kib| (dim, kib << 10)))
    {
        for group in 1..=crate::MAX_GROUP {
            for (element_bytes, kv_heads, deterministic, page_size) in
                [1, 2, 4].into_iter().flat_map(|bytes| {
                    [(bytes, 1, false, 16), (bytes, 8, false, 16), (bytes, 2, true, 16), (bytes, 2, false, 4)]
                })
            {
                let (groups, tuning) =
                    (kv_heads == 8 && shared == Processors::MANY.shared, Tuning::default());
                let key = PlanKey {
                    window: 0,
                    kv_heads,
                    group,
                    head_dim,
                    element_bytes,
                    deterministic,
                    groups,
                    tuning,
                };
                for (batch, rows, start) in
                    [(1, 1, 3000), (200, 1, 700), (80, 1, 9000), (3, 2, 50), (2, 300, 0)]
                {
                    let span = |i| Span { first_row: i * rows, rows, start };
                    let spans: Vec<Span> = (0..batch).map(span).collect();
                    let plan = Plan::new(Processors { count: 132, shared }, key, page_size, &spans);
                    for shape in plan.shapes() {
                        assert!(shape.shared + RESERVED <= shared, "{shape:?} of {key:?}");
                        assert!(shape.columns <= shape.program.columns(), "{shape:?} of {key:?}");
                    }
                }
                let [narrow, wide] =
                    key.blocks().map(|n| key.options(n, Paging::Tiles, Tuning::default(), shared).warps);
                assert!(!deterministic || narrow == wide, "the order of sums: {key:?}");
            }
        }
    }
}

#[test]
fn chunks_in_f32_of_wide_heads_are_left_to_the_kernel_for_few_columns() {
    let is_chunk = |head_dim, element_bytes| {
        let key = PlanKey {
            window: 0,
            kv_heads: 1,
            group: 2,
            head_dim,
            element_bytes,
            deterministic: false,
            groups: false,
            tuning: Tuning::default(),
        };
        let plan = Plan::new(Processors::MANY, key, 16, &[Span { first_row: 0, rows: 300, start: 0 }]);
        plan.shapes().all(|shape| matches!(shape.program, Program::Chunk(_)))
    };
    assert!(is_chunk(128, 4) && is_chunk(256, 2) && is_chunk(256, 1));
    assert!(!is_chunk(256, 4) && !is_chunk(144, 4));
}

#[test]
fn a_launch_looks_the_same_whatever_the_lengths() {
    let key = PlanKey {
        window: 0,
        kv_heads: 8,
        group: 3,
        head_dim: 128,
        element_bytes: 2,
        deterministic: false,
        groups: true,
        tuning: Tuning::default(),
    };
    let plan = |context: u32| {
        let spans: Vec<_> =
            (0..24).map(|i| Span { first_row: i, rows: 1, start: context + i as u32 }).collect();
        Plan::new(Processors::MANY, key, 16, &spans)
    };
    let shapes = |context| plan(context).shapes().collect::<Vec<_>>();
    assert_eq!(shapes(300), shapes(1500));
    assert_ne!(plan(300).launches[0].items, plan(1500).launches[0].items);
}

#[test]
fn tiles_that_lie_in_several_pages_are_looked_for_page_by_page() {
    let paging = |size| {
        let span = Span { first_row: 0, rows: 1, start: 40 };
        match Plan::new(Processors::MANY, alike(0), size, &[span]).launches[0].shape.program {
            Program::Columns(options) => options.paging,
            Program::Chunk(_) => panic!("a row is no chunk"),
        }
    };
    assert_eq!([1, 8, 24, 40].map(paging), [Paging::Small; 4]);
    assert_eq!([16, 48, 256].map(paging), [Paging::Tiles, Paging::Large, Paging::Large]);
}
