use std::num::NonZeroUsize;

/// Threads for kernels.
#[derive(Debug)]
pub struct Pool {
    threads: NonZeroUsize,
}

impl Pool {
    pub fn new(threads: NonZeroUsize) -> Self {
        Self { threads }
    }

    pub fn threads(&self) -> usize {
        self.threads.get()
    }

    /// Calls `task(0..parts)`, each once, spread over the threads; returns when all are done.
    pub fn run(&self, parts: usize, task: &(dyn Fn(usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            loop {
                let part = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                task(part);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.get().min(parts) {
                scope.spawn(work);
            }
            work();
        });
    }
}
