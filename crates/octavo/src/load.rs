//! Puts a model on a device, and falls back to the CPU where that was left open.

use crate::device::Device;
use crate::gpu;
use crate::llm::LoadError;
use crate::memory;
use crate::options::{Options, Resolved, Room};
use octavo_cpu::{Cpu, Level, Pool};
use octavo_engine::{ModelRunner, Runner};
use octavo_model::{Model, ModelConfig, Progress, Weights};

/// How much of the memory that is available an automatic cache may take.
const SHARE: f64 = 0.6;

/// What is to be loaded.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) options: &'a Options,
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
}

/// How far loading has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loading {
    Weights(Progress),
    /// Steps on a GPU that answer nobody: kernels are compiled, ways to multiply timed, and launches recorded. After the
    /// weights, and only where more than one sequence may run at once.
    WarmUp {
        done: usize,
        total: usize,
    },
    /// Pages of the cache that the system has given memory, where [`Options::commit_kv`] asks for all of them.
    Commit {
        done: usize,
        total: usize,
    },
}

/// A model on its device, and the options as they came out there.
pub(crate) struct Loaded {
    pub(crate) runner: Box<dyn Runner>,
    pub(crate) resolved: Resolved,
}

impl Job<'_> {
    pub(crate) fn load(self, progress: &mut dyn FnMut(Loading)) -> Result<Loaded, LoadError> {
        match self.options.device {
            Device::Cpu => self.on_cpu(progress),
            Device::Cuda(number) => gpu::load(number, self, progress),
            Device::Auto => {
                let on_gpu = gpu::load(0, self, progress);
                on_gpu.or_else(|error| self.instead(&error, progress))
            }
        }
    }

    /// What is wrong with the model itself is met again, and told by the CPU.
    fn instead(self, error: &LoadError, progress: &mut dyn FnMut(Loading)) -> Result<Loaded, LoadError> {
        let mut loaded = self.on_cpu(progress)?;
        if !matches!(error, LoadError::Device(error) if !error.surprises()) {
            loaded.resolved.notes.push(format!("this runs on the CPU and not on the GPU: {error}"));
        }
        Ok(loaded)
    }

    fn on_cpu(self, progress: &mut dyn FnMut(Loading)) -> Result<Loaded, LoadError> {
        let Self { options, config, weights } = self;
        let room = memory::available().map(|free| Room { free, share: SHARE });
        let resolved = options.resolve(config, room)?;
        let asked = resolved.settings.bytes();
        if let Some(Room { free, .. }) = room.filter(|room| options.commit_kv && asked > room.free) {
            return Err(LoadError::CommitTooMuch { asked, free });
        }
        let threads = options.threads.unwrap_or_else(Pool::usual);
        if threads.get() > Pool::MOST {
            return Err(LoadError::TooManyThreads(threads));
        }
        let cpu = Cpu::new(threads, Level::detect());
        let mut loaded = |at| progress(Loading::Weights(at));
        let model = Model::load(&cpu, config.clone(), &resolved.spec, weights, options.weights, &mut loaded)?;
        let mut runner = ModelRunner::new(cpu, model, &resolved.spec, resolved.settings.total)?;
        if options.commit_kv {
            let mut committed = |done, total| progress(Loading::Commit { done, total });
            runner.commit(resolved.settings.total, &mut committed)?;
        }
        Ok(Loaded { runner: Box::new(runner), resolved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceError;
    use crate::source::{Parts, Source};

    fn notes_after(error: DeviceError) -> Vec<String> {
        let Parts { config, weights, .. } = Source::BuiltIn.open().unwrap();
        let job = Job { options: &Options::default(), config: &config, weights: &weights };
        job.instead(&error.into(), &mut |_| {}).unwrap().resolved.notes
    }

    #[test]
    fn the_cpu_serves_and_says_why_only_where_there_is_a_gpu() {
        let closed = |has_device| DeviceError::NotOpened { why: "too old".into(), has_device };
        assert_eq!(notes_after(DeviceError::NotBuilt), Vec::<String>::new());
        assert_eq!(notes_after(closed(false)), Vec::<String>::new());
        assert!(notes_after(closed(true))[0].ends_with("not on the GPU: too old"));
        assert!(notes_after(DeviceError::ConvertedWeights)[0].contains("--weights stored"));
    }

    #[test]
    fn a_cache_to_be_taken_at_once_is_no_larger_than_memory() {
        let Parts { config, weights, .. } = Source::BuiltIn.open().unwrap();
        let kv_memory = crate::KvMemory::Bytes(octavo_types::Bytes(1 << 46));
        let options = Options { kv_memory, commit_kv: true, ..Options::default() };
        let job = Job { options: &options, config: &config, weights: &weights };
        let error =
            job.on_cpu(&mut |_| panic!("nothing is loaded")).err().expect("no such memory").to_string();
        assert!(error.starts_with("70368.7 GB of KV cache are to be taken at the start"), "{error}");
    }

    #[test]
    fn a_cache_that_is_too_small_is_refused_before_the_weights_are_loaded() {
        let Parts { config, weights, .. } = Source::BuiltIn.open().unwrap();
        let refused = |options: &Options| {
            let job = Job { options, config: &config, weights: &weights };
            job.on_cpu(&mut |_| panic!("nothing is loaded")).err().expect("too small").to_string()
        };
        let kv_memory = crate::KvMemory::Bytes(octavo_types::Bytes(1000));
        let none = refused(&Options { kv_memory, ..Options::default() });
        assert!(none.contains("no page"), "{none}");
        let (kv_memory, max_len) =
            (crate::KvMemory::Pages(octavo_types::Pages(5)), Some(octavo_types::Tokens(4000)));
        let few = refused(&Options { kv_memory, max_len, ..Options::default() });
        assert!(few.contains("4000"), "{few}");
    }

    #[test]
    fn more_threads_than_can_be_used_are_refused() {
        let Parts { config, weights, .. } = Source::BuiltIn.open().unwrap();
        let options = Options { threads: std::num::NonZeroUsize::new(Pool::MOST + 1), ..Options::default() };
        let job = Job { options: &options, config: &config, weights: &weights };
        let error = job.on_cpu(&mut |_| {}).err().expect("no such pool");
        assert_eq!(error.to_string(), "1025 threads are more than can be used: choose 1 to 1024");
    }
}
