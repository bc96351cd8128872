//! Kernels that are noted instead of launched, and then compiled side by side: one takes up to a second, and a model's
//! steps need dozens.

use super::compile::Compiler;
use crate::kernels::Kernel;
use octavo_backend::BackendError;
use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

#[derive(Default)]
pub(super) struct Rehearsal {
    /// While one is under way.
    asked: Option<HashSet<Kernel>>,
    /// Compiled and not yet loaded.
    images: HashMap<Kernel, Vec<u8>>,
}

impl Rehearsal {
    pub(super) fn begin(&mut self) {
        self.asked = Some(HashSet::new());
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether a rehearsal is under way, which has noted the kernel.
    pub(super) fn note(&mut self, kernel: Kernel) -> bool {
        self.asked.as_mut().map(|asked| asked.insert(kernel)).is_some()
    }

    pub(super) fn end(&mut self, compiler: &Compiler) -> Result<(), BackendError> {
        let asked: Vec<Kernel> = self.asked.take().into_iter().flatten().collect();
        self.images.extend(compile_all(compiler, &asked)?);
        Ok(())
    }

    /// What was compiled for a kernel.
    pub(super) fn take(&mut self, kernel: &Kernel) -> Option<Vec<u8>> {
        self.images.remove(kernel)
    }
}

pub(super) fn compile_all(
    compiler: &Compiler,
    kernels: &[Kernel],
) -> Result<Vec<(Kernel, Vec<u8>)>, BackendError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(kernels.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let turns = std::iter::from_fn(|| kernels.get(next.fetch_add(1, Ordering::Relaxed)));
        turns.map(|kernel| Ok((*kernel, compiler.compile(kernel)?))).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done =
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::ANGLES;
    use crate::gpu::compile::tests::has_compiler;
    use crate::pages::ZERO;

    #[test]
    fn what_was_asked_for_is_compiled_and_nothing_is_noted_afterwards() {
        if !has_compiler() {
            return;
        }
        let mut rehearsal = Rehearsal::default();
        assert!(!rehearsal.note(ZERO) && !rehearsal.is_under_way());
        rehearsal.begin();
        assert!([ZERO, ANGLES, ANGLES].map(|kernel| rehearsal.note(kernel)) == [true; 3]);
        rehearsal.end(&Compiler::new((9, 0), None)).unwrap();
        assert!(!rehearsal.note(ZERO) && !rehearsal.is_under_way());
        assert!([ZERO, ANGLES].map(|kernel| rehearsal.take(&kernel)).iter().flatten().all(|i| !i.is_empty()));
        assert_eq!(rehearsal.take(&ANGLES), None, "loaded once");
    }
}
