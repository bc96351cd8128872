//! The pool: every part once, panics passed on, nobody left behind.

use octavo_cpu::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn pool(threads: usize) -> Pool {
    Pool::new(threads.try_into().unwrap())
}

fn count(pool: &Pool, parts: usize) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    pool.run(parts, &|part| {
        counts[part].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_part_is_called_once() {
    for threads in 1..=4 {
        let pool = pool(threads);
        assert_eq!(pool.threads(), threads);
        for parts in [0, 1, 2, 3, 7, 100] {
            assert_eq!(count(&pool, parts), vec![1; parts], "{threads} threads");
        }
    }
}

#[test]
fn many_short_jobs_in_a_row_lose_nothing() {
    let pool = pool(3);
    for round in 0..20_000 {
        let parts = 2 + round % 5;
        assert_eq!(count(&pool, parts), vec![1; parts], "round {round}");
    }
}

#[test]
fn threads_that_went_to_sleep_wake_up_again() {
    let pool = pool(3);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(count(&pool, 50), vec![1; 50]);
    }
}

#[test]
fn other_threads_take_part() {
    let pool = pool(2);
    let barrier = std::sync::Barrier::new(2);
    pool.run(2, &|_| {
        barrier.wait();
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 2, 3] {
        let pool = pool(threads);
        for bad in 0..6 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(6, &|part| assert!(part != bad, "part {part} failed"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("part {bad} failed"));
            assert_eq!(count(&pool, 9), vec![1; 9]);
        }
    }
}

#[test]
fn a_panic_of_every_part_is_still_one_panic() {
    let pool = pool(3);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.run(50, &|_| panic!("all")))).is_err());
    assert_eq!(count(&pool, 9), vec![1; 9]);
}

#[test]
fn a_call_from_within_a_task_runs_on_its_own_thread() {
    let pool = pool(2);
    let total = AtomicUsize::new(0);
    pool.run(4, &|_| {
        pool.run(5, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 20);
}

#[test]
fn calls_from_several_threads_at_once_all_finish() {
    let pool = pool(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..300).for_each(|_| assert_eq!(count(&pool, 8), vec![1; 8])));
        }
    });
}

#[test]
fn chunks_cover_the_slice_in_order() {
    let mut data = vec![0; 103];
    pool(3).run_chunks(&mut data, 10, &|i, chunk| {
        assert_eq!(chunk.len(), if i == 10 { 3 } else { 10 });
        chunk.fill(i);
    });
    assert!(data.iter().enumerate().all(|(i, value)| *value == i / 10));
}

#[test]
fn ranges_cover_all_items_once_and_get_shorter() {
    for threads in 1..=3 {
        for items in [0, 1, 2, 5, 24, 1000] {
            let ranges = Mutex::new(Vec::new());
            pool(threads).run_ranges(&vec![3; items], &|range| ranges.lock().unwrap().push(range));
            let mut ranges = ranges.into_inner().unwrap();
            ranges.sort_by_key(|range| range.start);
            assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), Vec::from_iter(0..items));
            assert!(ranges.is_sorted_by(|a, b| a.len() >= b.len() && !b.is_empty()), "{ranges:?}");
            assert!(ranges.last().is_none_or(|last| last.len() == 1), "{ranges:?}");
        }
    }
}

#[test]
fn a_range_ends_with_a_heavy_item() {
    let ranges = Mutex::new(Vec::new());
    // Of 110 in all, two threads take 28 first; 10 are left then, and 3 are a share of them.
    pool(2)
        .run_ranges(&[1, 1, 98, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], &|range| ranges.lock().unwrap().push(range));
    let mut ranges = ranges.into_inner().unwrap();
    ranges.sort_by_key(|range| range.start);
    assert_eq!(ranges[..3], [0..3, 3..6, 6..8]);
}

#[test]
fn a_pool_can_be_dropped_asleep_awake_or_unused() {
    drop(pool(4));
    let used = pool(4);
    count(&used, 10);
    drop(used);
    let slept = pool(4);
    std::thread::sleep(Duration::from_millis(5));
    drop(slept);
}
