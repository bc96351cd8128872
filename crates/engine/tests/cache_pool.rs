//! One interface, two ways to lay keys and values out: every test here runs on both, on two devices.

mod pools;

use octavo_engine::{AdvanceError, AllocateError, CachePool, UpdateError, ViewError};
use octavo_kv::{AllocError, ExtendError};
use octavo_types::{KvDtype, Pages, SeqId, Tokens};
use pools::{DTYPES, LAYERS, WIDTH, bits, decode, pools, prefill, recoded, rows};

fn on_each(test: impl Fn(&str, &mut dyn CachePool)) {
    for (name, mut pool) in pools(KvDtype::F16) {
        test(name, pool.as_mut());
    }
}

/// What a pool says of itself.
fn state(pool: &dyn CachePool) -> (usize, Option<Tokens>) {
    (pool.free_slot_count(), pool.free_token_capacity())
}

#[test]
fn a_slot_is_taken_and_given_back_and_its_id_never_used_again() {
    on_each(|name, pool| {
        let before = state(pool);
        let first = pool.allocate_slot(Tokens(10)).unwrap();
        assert_eq!(pool.free_slot_count(), before.0 - 1, "{name}");
        assert_eq!(pool.get_seq_len(first), Ok(Tokens(0)), "{name}");
        prefill(pool, first, 1, 10);
        assert_eq!(pool.get_seq_len(first), Ok(Tokens(10)), "{name}");
        pool.free_slot(first).unwrap();
        assert_eq!(state(pool), before, "{name}");
        assert!(pool.get_seq_len(first).is_err() && pool.free_slot(first).is_err(), "{name}");
        assert!(pool.prefill_view(first).is_err() && pool.decode_view(&[first]).is_err(), "{name}");
        assert_ne!(pool.allocate_slot(Tokens(10)).unwrap(), first, "{name}");
    });
}

#[test]
fn a_sequence_that_finds_no_room_leaves_no_trace() {
    on_each(|name, pool| {
        let empty = state(pool);
        let error = pool.allocate_slot(Tokens(1000)).unwrap_err();
        let expected = match pool.is_paged() {
            true => AllocateError::Alloc(AllocError::NeverFits { need: Pages(63), total: Pages(12) }),
            false => AllocateError::TooLong { asked: Tokens(1000), slot: Tokens(48) },
        };
        assert_eq!((error, state(pool)), (expected, empty), "{name}");
        let slots: Vec<SeqId> = (0..4).map(|_| pool.allocate_slot(Tokens(40)).unwrap()).collect();
        let full = state(pool);
        for _ in 0..3 {
            let error = pool.allocate_slot(Tokens(17)).unwrap_err();
            assert!(matches!(error, AllocateError::Alloc(AllocError::OutOfPages { .. })), "{name}: {error}");
            assert_eq!(state(pool), full, "{name}");
        }
        slots.into_iter().for_each(|slot| pool.free_slot(slot).unwrap());
        assert_eq!(state(pool), empty, "{name}");
    });
}

#[test]
fn only_a_paged_pool_counts_free_tokens_and_its_views_say_so_too() {
    on_each(|name, pool| {
        let paged = name.starts_with("paged");
        assert_eq!(pool.is_paged(), paged);
        assert_eq!(state(pool), if paged { (12, Some(Tokens(192))) } else { (4, None) });
        let slot = pool.allocate_slot(Tokens(0)).unwrap();
        assert_eq!(state(pool), if paged { (12, Some(Tokens(192))) } else { (3, None) }, "{name}");
        assert_eq!(pool.prefill_view(slot).unwrap().is_paged(), paged);
        assert_eq!(pool.decode_view(&[slot]).unwrap().is_paged(), paged);
        assert_eq!(pool.batched_prefill_view(&[slot], &[Tokens(1)]).unwrap().is_paged(), paged);
    });
}

/// A runner as an engine has it, with a mixed load: everything it read. It never asks what pool it has.
fn run(pool: &mut dyn CachePool) -> Vec<f32> {
    let mut read = Vec::new();
    let mut keep = |gathered: octavo_engine::Gathered| read.extend([gathered.keys, gathered.values].concat());
    let lens = [Tokens(5), Tokens(20), Tokens(16)];
    let batch = lens.map(|len| pool.allocate_slot(len).unwrap());
    let mut view = pool.batched_prefill_view(&batch, &lens).unwrap();
    for layer in 0..LAYERS {
        let [keys, values] = rows(100 + layer as u64, 3 * 24);
        keep(view.update(layer, &keys, &values).unwrap());
    }
    view.advance(Tokens(24)).unwrap();
    drop(view);
    for step in 0..14 {
        keep(decode(pool, &batch, 200 + 10 * step));
    }
    pool.free_slot(batch[1]).unwrap();
    let late = pool.allocate_slot(Tokens(33)).unwrap();
    for (seed, chunk) in [(400, 7), (410, 16), (420, 1), (430, 9)] {
        keep(prefill(pool, late, seed, chunk));
    }
    for step in 0..5 {
        keep(decode(pool, &[late, batch[2], batch[0]], 500 + 10 * step));
    }
    read
}

#[test]
fn one_runner_reads_the_same_bits_from_every_pool_in_every_precision() {
    for dtype in DTYPES {
        let runs: Vec<_> =
            pools(dtype).into_iter().map(|(name, mut pool)| (name, run(pool.as_mut()))).collect();
        assert!(runs[0].1.len() > 50_000 && runs[0].1.iter().all(|x| x.is_finite()));
        for (name, read) in &runs[1..] {
            assert!(bits(read) == bits(&runs[0].1), "{name}, {dtype:?}");
        }
    }
}

#[test]
fn a_prefill_gets_its_keys_and_values_back_as_they_are_stored() {
    for dtype in DTYPES {
        for (name, mut pool) in pools(dtype) {
            let slot = pool.allocate_slot(Tokens(40)).unwrap();
            let mut view = pool.prefill_view(slot).unwrap();
            for layer in 0..LAYERS {
                let [keys, values] = rows(layer as u64, 40);
                let read = view.update(layer, &keys, &values).unwrap();
                assert_eq!((read.batch, read.len), (1, 40));
                assert_eq!(bits(&read.keys), bits(&recoded(dtype, &keys)), "{name}, {dtype:?}");
                assert_eq!(bits(&read.values), bits(&recoded(dtype, &values)), "{name}, {dtype:?}");
                if dtype == KvDtype::F32 {
                    assert_eq!((bits(&read.keys), bits(&read.values)), (bits(&keys), bits(&values)));
                }
            }
            assert_eq!(view.seq_len(), Tokens(0), "{name}: counted before the step ended");
            view.advance(Tokens(40)).unwrap();
            assert_eq!(view.seq_len(), Tokens(40), "{name}");
        }
    }
}

#[test]
fn a_prompt_in_chunks_reads_what_the_whole_prompt_reads() {
    for dtype in DTYPES {
        for (name, mut pool) in pools(dtype) {
            let (whole, parts) =
                (pool.allocate_slot(Tokens(41)).unwrap(), pool.allocate_slot(Tokens(0)).unwrap());
            let [keys, values] = rows(7, 41);
            let expected = pool.prefill_view(whole).unwrap().update(1, &keys, &values).unwrap();
            let mut view = pool.prefill_view(parts).unwrap();
            let mut start = 0;
            for chunk in [1, 15, 1, 20, 4] {
                let part = start * WIDTH..(start + chunk) * WIDTH;
                start += chunk;
                let read = view.update(1, &keys[part.clone()], &values[part]).unwrap();
                assert_eq!(bits(&read.keys), bits(&expected.keys[..start * WIDTH]), "{name}, {dtype:?}");
                assert_eq!(bits(&read.values), bits(&expected.values[..start * WIDTH]), "{name}, {dtype:?}");
                view.advance(Tokens(chunk as u32)).unwrap();
            }
        }
    }
}

#[test]
fn a_decode_takes_a_page_at_the_boundary_only() {
    on_each(|name, pool| {
        for (tokens, taken) in [(15, [0, 1, 0]), (16, [1, 0, 0]), (31, [0, 1, 0]), (32, [1, 0, 0])] {
            let slot = pool.allocate_slot(Tokens(tokens)).unwrap();
            prefill(pool, slot, 3, tokens as usize);
            for (step, taken) in taken.into_iter().enumerate() {
                let before = pool.free_slot_count();
                let mut view = pool.decode_view(&[slot]).unwrap();
                for layer in 0..LAYERS {
                    view.update(layer, &[1.0; WIDTH], &[2.0; WIDTH]).unwrap();
                }
                view.advance(Tokens(1)).unwrap();
                drop(view);
                let taken = if pool.is_paged() { taken } else { 0 };
                assert_eq!(before - pool.free_slot_count(), taken, "{name}: {step} after {tokens}");
            }
            pool.free_slot(slot).unwrap();
        }
    });
}

#[test]
fn a_decode_reads_every_sequence_in_order_and_zeros_behind_the_shorter() {
    on_each(|name, pool| {
        let slots = [10, 30].map(|tokens| {
            let slot = pool.allocate_slot(Tokens(tokens)).unwrap();
            prefill(pool, slot, u64::from(tokens), tokens as usize);
            slot
        });
        assert_eq!(pool.decode_view(&slots).unwrap().seq_len(), Tokens(30));
        let read = decode(pool, &slots, 77);
        assert_eq!((read.batch, read.len), (2, 31), "{name}");
        let last = LAYERS as u64 - 1;
        let [new, _] = rows(77 + last, 2).map(|half| recoded(KvDtype::F16, &half));
        for (index, tokens) in [10, 30].into_iter().enumerate() {
            let [old, _] = rows(tokens as u64 + last, tokens).map(|half| recoded(KvDtype::F16, &half));
            let zeros = vec![0.0; (30 - tokens) * WIDTH];
            let expected = [old.as_slice(), &new[index * WIDTH..][..WIDTH], &zeros].concat();
            assert_eq!(bits(&read.keys[index * 31 * WIDTH..][..31 * WIDTH]), bits(&expected), "{name}");
        }
        assert_eq!(slots.map(|slot| pool.get_seq_len(slot).unwrap()), [Tokens(11), Tokens(31)], "{name}");
    });
}

#[test]
fn a_step_without_room_for_all_takes_nothing_and_succeeds_once_there_is() {
    on_each(|name, pool| {
        // Three sequences that fill 11 of 12 pages, two of them to the last slot; or three of four slots of 48.
        let lens = if pool.is_paged() { [80, 64, 20] } else { [48, 48, 20] };
        let slots = lens.map(|tokens| {
            let slot = pool.allocate_slot(Tokens(tokens)).unwrap();
            prefill(pool, slot, 5, tokens as usize);
            slot
        });
        let before = state(pool);
        let mut view = pool.decode_view(&slots).unwrap();
        let [keys, values] = rows(6, 3);
        let error = view.update(0, &keys, &values).unwrap_err();
        match view.is_paged() {
            true => assert!(matches!(
                error,
                UpdateError::Room(ExtendError::Alloc(AllocError::OutOfPages {
                    need: Pages(2),
                    free: Pages(1)
                }))
            )),
            false => assert!(matches!(error, UpdateError::TooLong { slot: Tokens(48), .. }), "{error}"),
        }
        assert_eq!(view.advance(Tokens(1)), Err(AdvanceError::NothingStored), "{name}");
        drop(view);
        assert_eq!(state(pool), before, "{name}");
        assert_eq!(slots.map(|slot| pool.get_seq_len(slot).unwrap().0), lens, "{name}");
        decode(pool, &slots[2..], 6);
        if pool.is_paged() {
            pool.free_slot(slots[2]).unwrap();
            decode(pool, &slots[..2], 6);
        }
    });
}

#[test]
fn a_view_that_is_dropped_leaves_its_sequences_as_long_as_they_were() {
    on_each(|name, pool| {
        let slot = pool.allocate_slot(Tokens(16)).unwrap();
        prefill(pool, slot, 1, 16);
        let [keys, values] = rows(99, 1);
        pool.decode_view(&[slot]).unwrap().update(0, &keys, &values).unwrap();
        assert_eq!(pool.get_seq_len(slot), Ok(Tokens(16)), "{name}");
        let free = pool.free_slot_count();
        let read = decode(pool, &[slot], 4);
        assert_eq!(pool.free_slot_count(), free, "{name}: the page of the dropped step is used");
        let [keys, _] = rows(4 + LAYERS as u64 - 1, 1);
        assert_eq!(bits(&read.keys[16 * WIDTH..]), bits(&recoded(KvDtype::F16, &keys)), "{name}");
    });
}

#[test]
fn what_does_not_fit_a_view_is_refused_with_what_would() {
    on_each(|_, pool| {
        let slots = [0; 2].map(|_| pool.allocate_slot(Tokens(8)).unwrap());
        let [one, other] = slots;
        assert_eq!(pool.decode_view(&[one, other, one]).err(), Some(ViewError::Twice(one)));
        for lens in [1, 3] {
            let error = pool.batched_prefill_view(&slots, &vec![Tokens(1); lens]).err();
            assert_eq!(error, Some(ViewError::Lengths { slots: 2, lens }));
        }
        let mut view = pool.decode_view(&slots).unwrap();
        let mut refused = |layer, keys: usize, values: usize| {
            view.update(layer, &vec![0.0; keys], &vec![0.0; values]).unwrap_err().to_string()
        };
        assert_eq!(refused(LAYERS, WIDTH, WIDTH), "there is no layer 3: the pool has 3");
        assert!(refused(0, 2 * WIDTH, WIDTH).contains("give as many of each"));
        assert!(refused(0, 2 * WIDTH + 1, 2 * WIDTH + 1).contains("not whole rows of 16"));
        assert_eq!(refused(0, WIDTH, WIDTH), "1 rows for 2 sequences: give 1 of each");
        assert_eq!(refused(0, 4 * WIDTH, 4 * WIDTH), "4 rows for 2 sequences: give 1 of each");
        drop(view);
        let mut view = pool.prefill_view(one).unwrap();
        view.store(0, &[0.0; 3 * WIDTH], &[0.0; 3 * WIDTH]).unwrap();
        let error = view.store(1, &[0.0; 2 * WIDTH], &[0.0; 2 * WIDTH]).unwrap_err();
        assert_eq!(error.to_string(), "2 rows for 1 sequences: give 3 of each");
        assert_eq!(view.advance(Tokens(2)), Err(AdvanceError::Count { asked: Tokens(2), stored: 3 }));
    });
}
