//! What a call on the pool costs, and whom it can hold up. Both without a clock: by the shared memory it touches, of
//! which the pool's books consist.

use crate::sync::watched::{interrupted, touches};
use crate::{BlockAllocator, PageMut, Pool};
use octavo_types::{PageId, Pages, SeqId};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A pool all of whose blocks were taken, and all but `held` of them given back in no order.
fn blocks(total: u32, held: u32) -> BlockAllocator {
    let blocks = BlockAllocator::new(Pages(total));
    let all = blocks.allocate(Pages(total), None).unwrap();
    let scattered = (0..total).map(|i| all[(i * 7 % total) as usize]);
    scattered.skip(held as usize).for_each(|page| blocks.free(&[page]).unwrap());
    assert_eq!(blocks.num_allocated(), Pages(held));
    blocks
}

/// Touches of every call that takes, gives back or counts.
fn costs(blocks: &BlockAllocator) -> [u64; 9] {
    let (mut one, mut three) = (PageId(0), Vec::new());
    [
        touches(|| one = blocks.allocate_one(None).unwrap()),
        touches(|| three = blocks.allocate(Pages(3), Some(SeqId(1))).unwrap()),
        touches(|| blocks.add_ref(one).unwrap()),
        touches(|| blocks.free(&[one]).unwrap()),
        touches(|| blocks.free(&[one]).unwrap()),
        touches(|| blocks.free(&three).unwrap()),
        touches(|| blocks.free(&[one]).unwrap_err().to_string().clear()),
        touches(|| blocks.allocate(blocks.total(), None).unwrap_err().to_string().clear()),
        touches(|| assert_eq!(blocks.get_stats().peak_blocks, blocks.total())),
    ]
}

#[test]
fn taking_and_giving_back_cost_the_same_whatever_the_size_of_the_pool_and_however_full_it_is() {
    let small = costs(&blocks(8, 1));
    assert!(small.iter().all(|touches| (1..30).contains(touches)), "{small:?}");
    for (total, held) in [(8, 3), (1000, 1), (1000, 995), (100_000, 50_000)] {
        assert_eq!(costs(&blocks(total, held)), small, "{held} of {total} are held");
    }
}

#[test]
fn pages_that_are_dropped_and_reclaimed_cost_the_same_whatever_the_size_of_the_pool() {
    let costs = |total: u32| {
        let pool = Pool::new(Pages(total));
        drop(pool.take(Pages(total), None).unwrap());
        pool.reclaim();
        let mut pages = Vec::new();
        [
            touches(|| pages = pool.take(Pages(3), None).unwrap()),
            touches(|| pages.truncate(2)),
            touches(|| pages.clear()),
            touches(|| assert_eq!(pool.reclaim(), Pages(3))),
        ]
    };
    assert_eq!(costs(100_000), costs(8));
}

type Call = (&'static str, fn(&Shared));

/// The calls of a thread that uses a pool, each by itself.
fn calls() -> Vec<Call> {
    vec![
        ("allocate_one", |s| s.blocks.allocate_one(None).map(drop).unwrap()),
        ("allocate", |s| s.blocks.allocate(Pages(2), Some(SeqId(3))).map(drop).unwrap()),
        ("allocate too many", |s| {
            s.blocks.allocate(Pages(16), None).map(drop).unwrap_err().to_string().clear()
        }),
        ("free one", |s| s.blocks.free(&s.held[..1]).unwrap()),
        ("free", |s| s.blocks.free(&s.held).unwrap()),
        ("free_owned", |s| s.blocks.free_owned(SeqId(1), &s.held).unwrap()),
        ("force_free", |s| assert_eq!(s.blocks.force_free(&s.held), Pages(3))),
        ("get_stats", |s| assert_eq!(s.blocks.get_stats().total_blocks, Pages(16))),
        ("take, seal, share and drop", |s| {
            let page = s.pool.take(Pages(1), None).unwrap().remove(0).seal();
            drop(page.share().unwrap());
            drop(page.unseal().map(PageMut::seal));
        }),
        ("reclaim", |s| assert!(s.pool.reclaim() <= Pages(1))),
    ]
}

/// Sixteen blocks, three of them held and one of those twice; and a pool of pages, one of them on its way back.
struct Shared {
    blocks: BlockAllocator,
    held: Vec<PageId>,
    pool: Arc<Pool>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let blocks = BlockAllocator::new(Pages(16));
        let held = blocks.allocate(Pages(3), Some(SeqId(1))).unwrap();
        blocks.add_ref(held[2]).unwrap();
        let pool = Pool::new(Pages(8));
        drop(pool.take(Pages(1), None).unwrap());
        Arc::new(Self { blocks, held, pool })
    }

    /// All that another thread may want meanwhile.
    fn use_all(&self) {
        let pages = self.blocks.allocate(Pages(4), Some(SeqId(2))).unwrap();
        self.blocks.free(&pages[1..]).unwrap();
        self.blocks.free(&pages[..1]).unwrap();
        self.blocks.get_stats();
        drop(self.pool.take(Pages(2), None).unwrap());
        self.pool.reclaim();
    }
}

/// A call is stopped before each of its touches in turn, and another thread does all it wants meanwhile: with a lock
/// held anywhere it would wait until the test gives up.
#[test]
fn a_thread_that_is_stopped_anywhere_in_a_call_stops_no_other() {
    for (name, call) in calls() {
        let uninterrupted = Shared::new();
        for n in 0..touches(|| call(&uninterrupted)) {
            let shared = Shared::new();
            let other = Arc::clone(&shared);
            let meanwhile = move || {
                let (done, is_done) = channel();
                thread::spawn(move || {
                    other.use_all();
                    done.send(()).unwrap();
                });
                let waited = is_done.recv_timeout(Duration::from_secs(20));
                waited.unwrap_or_else(|_| panic!("nobody gets on while `{name}` is stopped at touch {n}"));
            };
            interrupted(n, meanwhile, || call(&shared));
            shared.blocks.check().unwrap();
            shared.pool.reclaim();
            assert_eq!(shared.pool.free(), Pages(8), "`{name}` stopped at touch {n}");
        }
    }
}

/// A lock that is let go before the next touch would pass the test above.
#[test]
fn the_pool_names_no_lock() {
    let sources = [
        include_str!("free_list.rs"),
        include_str!("page.rs"),
        include_str!("pool.rs"),
        include_str!("blocks/allocator.rs"),
    ];
    let locks = [
        "Mutex",
        "RwLock",
        "Condvar",
        "Barrier",
        "OnceLock",
        "LazyLock",
        "ReentrantLock",
        "spin_loop",
        "park",
    ];
    for lock in locks {
        assert!(sources.iter().all(|source| !source.contains(lock)), "{lock}");
    }
}
