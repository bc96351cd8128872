use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Rounds of waiting before a thread gives its core away: some tens of microseconds, longer than the pause between
/// two kernels of a step and shorter than anybody would mind.
const SPINS: usize = 2000;

/// Low bits of the state: workers inside the current job.
const ACTIVE: u64 = OPEN - 1;
/// Set while workers may enter the current job.
const OPEN: u64 = 1 << 16;
/// One job further; the bits from here up count jobs, for centuries.
const EPOCH: u64 = 1 << 17;

type Task<'a> = dyn Fn(usize) + Sync + 'a;
type Payload = Box<dyn Any + Send>;

/// Threads for kernels: they stay, spin a little for the next job, then sleep.
///
/// The calling thread works too, so a pool of one has no threads of its own. A worker that wakes up late finds the
/// job closed and is not waited for.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job it is.
    caller: Mutex<()>,
}

struct Shared {
    state: AtomicU64,
    /// The current job. Written by the caller while the job is closed and nobody is inside, read by workers that
    /// have counted themselves into `state` while it was open.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panicked: Mutex<Option<Payload>>,
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    parts: usize,
}

// SAFETY: the one field that is not Sync is `job`; its comment says who touches it when, and the release and acquire
// operations on `state` order those accesses. The task it points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: a job is a pointer to a Sync task, which any thread may call.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pool {
    /// The most threads: more than any machine has cores.
    pub const MOST: usize = 1024;

    /// One a core, as far as the system tells.
    pub fn usual() -> NonZeroUsize {
        let most = NonZeroUsize::new(Self::MOST).expect("some");
        std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).min(most)
    }

    /// A pool of `threads`, the caller's among them; at most [`MOST`](Self::MOST).
    pub fn new(threads: NonZeroUsize) -> Self {
        assert!(threads.get() <= Self::MOST, "{threads} threads");
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panicked: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            gate: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let spawn = |i: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("octavo-cpu-{i}"))
                .spawn(move || shared.serve())
                .expect("the system refuses a thread")
        };
        let workers = (1..threads.get()).map(spawn).collect();
        Self { shared, workers, caller: Mutex::new(()) }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(0..parts)`, each once, spread over the threads; returns when all are done.
    ///
    /// If a task panics, parts not yet begun are skipped and the first panic continues here; the pool stays usable.
    /// A call from within a task, or while another thread's call runs, does all parts on its own thread.
    pub fn run(&self, parts: usize, task: &(dyn Fn(usize) + Sync)) {
        let free = if parts > 1 && !self.workers.is_empty() { self.caller.try_lock().ok() } else { None };
        let Some(turn) = free else {
            return (0..parts).for_each(task);
        };
        self.shared.publish(task, parts);
        self.shared.work(task, parts);
        self.shared.close();
        let payload = lock(&self.shared.panicked).take();
        drop(turn);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Calls `task` for ranges of items, one for each of `weights`, spread over the threads: heavy ones first, for those
    /// who gain from what lies next to each other, lighter ones towards the end, so that all threads finish together.
    pub fn run_ranges(&self, weights: &[usize], task: &(dyn Fn(Range<usize>) + Sync)) {
        let mut bounds = vec![0];
        let mut left: usize = weights.iter().sum();
        let (mut share, mut taken) = (left.div_ceil(2 * self.threads()), 0);
        for (i, weight) in weights.iter().enumerate() {
            taken += weight;
            if taken >= share || i + 1 == weights.len() {
                bounds.push(i + 1);
                left -= taken;
                (share, taken) = (left.div_ceil(2 * self.threads()), 0);
            }
        }
        self.run(bounds.len() - 1, &|i| task(bounds[i]..bounds[i + 1]));
    }

    /// Calls `task(i, chunk)` for each chunk of `size` elements of `data`, the last one perhaps shorter.
    pub fn run_chunks<T: Send>(&self, data: &mut [T], size: usize, task: &(dyn Fn(usize, &mut [T]) + Sync)) {
        assert!(size > 0, "chunks of nothing");
        let (len, pieces) = (data.len(), Pieces::new(data));
        self.run(len.div_ceil(size), &|i| {
            // SAFETY: chunks do not overlap, and each part is called once.
            let chunk = unsafe { pieces.take(i * size..len.min((i + 1) * size)) };
            task(i, chunk);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.gate));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            worker.join().expect("a worker catches what its tasks throw");
        }
    }
}

impl Shared {
    fn publish(&self, task: &Task<'_>, parts: usize) {
        // SAFETY: only the lifetime is erased. Workers call the task between entering and leaving the job, and
        // `close`, which runs before the borrow ends whatever the tasks do, waits until all have left.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: this caller holds the pool's turn, the previous job is closed and nobody is inside.
        unsafe { *self.job.get() = Some(Job { task, parts }) };
        self.next.store(0, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) & !(ACTIVE | OPEN)) + EPOCH;
        // In one order with `sleepers`: either this thread sees the sleeper or the sleeper sees the job.
        self.state.store(epoch | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.gate));
            self.wake.notify_all();
        }
    }

    /// Takes parts until none is left. Panics are kept, not thrown.
    fn work(&self, task: &Task<'_>, parts: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                task(part);
            }
        }));
        if let Err(payload) = result {
            self.next.store(parts, Ordering::Relaxed);
            let mut kept = lock(&self.panicked);
            match *kept {
                None => *kept = Some(payload),
                // Dropped here, one that panics when it is dropped would take the thread with it.
                Some(_) => std::mem::forget(payload),
            }
        }
    }

    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waited = 0;
        while self.state.load(Ordering::Acquire) & ACTIVE != 0 {
            pause(&mut waited);
        }
    }

    /// A worker's life.
    fn serve(&self) {
        let mut seen = 0;
        while self.await_job(seen) {
            let Some(epoch) = self.enter(seen) else { continue };
            seen = epoch;
            // SAFETY: this worker has counted itself in, so the caller neither rewrites the job nor returns.
            let job = unsafe { (*self.job.get()).expect("an open job is set") };
            // SAFETY: as above: the task outlives this worker's stay.
            self.work(unsafe { &*job.task }, job.parts);
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Counts this worker in, unless the job is closed or the one already `seen`. The job's number if so.
    fn enter(&self, seen: u64) -> Option<u64> {
        let join = |state: u64| (state & OPEN != 0 && state / EPOCH != seen).then_some(state + 1);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).ok().map(|state| state / EPOCH)
    }

    /// Waits for an open job other than `seen`; false when the pool is being dropped.
    fn await_job(&self, seen: u64) -> bool {
        let ready = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN != 0 && state / EPOCH != seen) || self.stop.load(Ordering::SeqCst)
        };
        for _ in 0..SPINS {
            if ready() {
                return !self.stop.load(Ordering::SeqCst);
            }
            std::hint::spin_loop();
        }
        let mut gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        !self.stop.load(Ordering::SeqCst)
    }
}

/// Waits for a moment: first at full attention, then letting others have the core.
fn pause(waited: &mut usize) {
    *waited += 1;
    if *waited < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Nothing behind these locks can be left half done, so a panic while one was held does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where several threads write.
pub(crate) struct Target<T>(pub(crate) *mut T);
// SAFETY: whoever shares it writes to disjoint places.
unsafe impl<T> Sync for Target<T> {}

impl<T> Target<T> {
    pub(crate) fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// A slice whose parts go to several threads.
pub(crate) struct Pieces<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: an address; `take` makes its caller answer for what is done through it.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// # Safety
    /// No two ranges taken may overlap.
    #[allow(clippy::mut_from_ref, reason = "what the safety section is about")]
    pub(crate) unsafe fn take(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: within the slice, which is borrowed mutably for as long as this value lives; the caller promises
        // that nobody else has taken any of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
