//! A model on an NVIDIA GPU.

use crate::device::DeviceError;
use crate::llm::LoadError;
use crate::load::{Job, Loaded, Loading};
use crate::options::{KvBackend, Options, Room};
use octavo_backend::{Backend, BackendError, PageLayout, WeightFormat};
use octavo_cuda::{Cuda, FIRST_WITH_FP8, OpenError};
use octavo_engine::ModelRunner;
use octavo_model::Model;
use octavo_types::{Bytes, KvDtype};

/// How much of the memory that is free beside the weights an automatic cache may take; the rest is for activations.
const SHARE: f64 = 0.9;

pub(crate) fn load(
    number: usize,
    job: Job<'_>,
    progress: &mut dyn FnMut(Loading),
) -> Result<Loaded, LoadError> {
    let options = octavo_cuda::Options {
        deterministic: job.options.deterministic,
        cache: job.options.kernel_cache.clone(),
        ..octavo_cuda::Options::default()
    };
    let cuda = Cuda::open(number, options).map_err(not_opened)?;
    check_options(job.options)?;
    let capability = cuda.capability();
    let (options, note) = options_for(job.options, capability);
    let (_, spec) = options.geometry(job.config)?;
    cuda.check(&PageLayout::new(&spec), job.config.heads())?;
    put(cuda, Job { options: &options, ..job }, note, Cuda::free_memory, progress)
}

/// What is refused with this GPU whatever the model.
pub(crate) fn check(number: usize, options: &Options) -> Result<(), DeviceError> {
    Cuda::find(number).map_err(not_opened)?;
    check_options(options)
}

fn not_opened(error: OpenError) -> DeviceError {
    DeviceError::NotOpened { why: error.to_string(), has_device: error.has_device() }
}

/// What the kernels are not for.
fn check_options(options: &Options) -> Result<(), DeviceError> {
    if options.weights != WeightFormat::AsStored {
        return Err(DeviceError::ConvertedWeights);
    }
    let size = options.page_size.tokens().0;
    if options.kv_backend == KvBackend::Paged && ![16, 32].contains(&size) {
        return Err(DeviceError::PageSize(size));
    }
    Ok(())
}

/// The options with what a device of this compute capability has in the place of what it lacks.
fn options_for(asked: &Options, capability: (i32, i32)) -> (Options, Option<String>) {
    let (kv_dtype, note) = kv_dtype_for(asked.kv_dtype, capability);
    (Options { kv_dtype, ..asked.clone() }, note)
}

/// How a device of this compute capability stores keys and values that were asked for in `asked`.
fn kv_dtype_for(asked: KvDtype, capability: (i32, i32)) -> (KvDtype, Option<String>) {
    if asked != KvDtype::Fp8 || capability >= FIRST_WITH_FP8 {
        return (asked, None);
    }
    let ((major, minor), (needed_major, needed_minor)) = (capability, FIRST_WITH_FP8);
    let note = format!(
        "the KV cache is int8 and not fp8, which needs compute capability {needed_major}.{needed_minor} and this GPU has {major}.{minor}: it takes the same room"
    );
    (KvDtype::Int8, Some(note))
}

/// The weights first: the cache may have what they leave.
fn put<B: Backend + 'static>(
    backend: B,
    job: Job<'_>,
    note: Option<String>,
    free: impl Fn(&B) -> Result<Bytes, BackendError>,
    progress: &mut dyn FnMut(Loading),
) -> Result<Loaded, LoadError> {
    let Job { options, config, weights } = job;
    let (_, spec) = options.geometry(config)?;
    let mut loaded = |at| progress(Loading::Weights(at));
    let model = Model::load(&backend, config.clone(), &spec, weights, options.weights, &mut loaded)?;
    let room = Room { free: free(&backend)?, share: SHARE };
    let mut resolved = options.resolve(config, Some(room))?;
    resolved.notes.extend(note);
    let mut runner = ModelRunner::new(backend, model, &spec, resolved.settings.total)?;
    if options.max_batch > 1 {
        // Nobody waits yet; a single answer would wait longer for this than it saves.
        let mut warmed = |done, total| progress(Loading::WarmUp { done, total });
        runner.warm_up(&resolved.settings, &resolved.engine, &mut warmed)?;
    }
    Ok(Loaded { runner: Box::new(runner), resolved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Parts, Source};
    use octavo_cpu::{Cpu, Level};
    use octavo_engine::{Engine, Flow, Request};
    use octavo_types::{PageSize, Tokens};
    use std::num::NonZeroUsize;

    /// The built-in model on something that says it is a GPU of this compute capability with this much memory free.
    fn on_a_gpu_that_reports(capability: (i32, i32), free: Bytes, asked: &Options) -> Loaded {
        let Parts { config, weights, .. } = Source::BuiltIn.open().unwrap();
        let (options, note) = options_for(asked, capability);
        let job = Job { options: &options, config: &config, weights: &weights };
        let device = Cpu::new(NonZeroUsize::MIN, Level::detect());
        put(device, job, note, |_| Ok(free), &mut |_| {}).unwrap()
    }

    #[test]
    fn fp8_is_kept_where_the_device_has_it_and_becomes_int8_where_not() {
        for capability in [(8, 9), (9, 0), (12, 1)] {
            assert_eq!(kv_dtype_for(KvDtype::Fp8, capability), (KvDtype::Fp8, None));
        }
        let (dtype, note) = kv_dtype_for(KvDtype::Fp8, (8, 6));
        assert_eq!(dtype, KvDtype::Int8);
        assert!(note.unwrap().contains("needs compute capability 8.9 and this GPU has 8.6"));
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Int8] {
            assert_eq!(kv_dtype_for(dtype, (8, 0)), (dtype, None));
        }
    }

    #[test]
    fn a_device_without_fp8_takes_int8_says_so_and_goes_on() {
        let asked = Options { kv_dtype: KvDtype::Fp8, ..Options::default() };
        let Loaded { runner, resolved } = on_a_gpu_that_reports((8, 0), Bytes(1 << 30), &asked);
        assert_eq!(resolved.spec.dtype(), KvDtype::Int8);
        assert!(resolved.notes[0].contains("int8 and not fp8"), "{:?}", resolved.notes);
        let mut engine = Engine::new(resolved.engine, resolved.settings, runner, None).unwrap();
        let outputs =
            engine.generate(vec![Request::new(vec![1, 2, 3], 4)], &mut |_, _| Flow::Continue).unwrap();
        assert!(outputs[0].failure.is_none() && !outputs[0].choices[0].tokens.is_empty());
    }

    #[test]
    fn an_automatic_cache_takes_nine_tenths_of_what_is_free_or_what_a_full_batch_needs() {
        let asked = Options { max_batch: 64, max_len: Some(Tokens(1024)), ..Options::default() };
        let pages = |free| {
            let resolved = on_a_gpu_that_reports((9, 0), free, &asked).resolved;
            (resolved.settings.total.0, u64::from(resolved.settings.total.0) * resolved.spec.page_bytes().0)
        };
        assert_eq!(pages(Bytes(1 << 40)).0, 64 * 1024 / 16);
        let (_, bytes) = pages(Bytes(10_000_000));
        assert!((8_000_000..=9_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_the_kernels_are_not_for_is_refused_with_what_to_do() {
        let refused = |options| check_options(&options).unwrap_err().to_string();
        let base = Options::default;
        assert!(refused(Options { weights: WeightFormat::Int8, ..base() }).contains("--weights stored"));
        let pages = |size| Options { page_size: PageSize::new(size).unwrap(), ..base() };
        assert!(refused(pages(8)).contains("--page-size 16 or 32"));
        assert!([16, 32].into_iter().all(|size| check_options(&pages(size)).is_ok()));
        assert!(check_options(&Options { kv_backend: KvBackend::Contiguous, ..pages(8) }).is_ok());
    }
}
