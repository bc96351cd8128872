use crate::Source;
use crate::device::Device;
use crate::gpu;
use crate::llm::LoadError;
use octavo_backend::WeightFormat;
use octavo_engine::{Batching, EngineConfig};
use octavo_kv::{PolicyKind, Settings};
use octavo_model::ModelConfig;
use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, Tokens};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Memory that is free where the cache will lie, and how much of it an automatic cache may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) free: Bytes,
    pub(crate) share: f64,
}

/// How keys and values are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvBackend {
    /// Pages taken as sequences grow, shared by those with equal beginnings.
    #[default]
    Paged,
    /// One page a sequence, as long as the longest it may become.
    Contiguous,
}

/// How much memory keys and values may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvMemory {
    /// Enough for `max_batch` sequences of the full length, or as much as there is room for.
    #[default]
    Automatic,
    Bytes(Bytes),
    /// The contiguous back end, which has slots, takes it for `Automatic`.
    Pages(Pages),
}

/// How to load and run a model. The default runs the built-in one on all cores.
#[derive(Clone, Debug)]
pub struct Options {
    pub source: Source,
    pub device: Device,
    /// Where kernels that were compiled for a GPU are kept, in a folder of their own; none compiles them each time.
    pub kernel_cache: Option<PathBuf>,
    /// A sequence's results have the same bits whatever runs beside it. On the CPU that always holds; a GPU is faster
    /// without.
    pub deterministic: bool,
    /// None for one a core.
    pub threads: Option<NonZeroUsize>,
    pub weights: WeightFormat,
    pub kv_backend: KvBackend,
    pub kv_dtype: KvDtype,
    /// Ignored by the contiguous back end.
    pub page_size: PageSize,
    /// No layer looks further back than this.
    pub kv_window: Option<Tokens>,
    pub kv_memory: KvMemory,
    /// Take the cache's memory from the system at the start, not when pages are first written. A GPU's is always taken
    /// at the start.
    pub commit_kv: bool,
    pub policy: PolicyKind,
    pub prefix_cache: bool,
    /// The most memory that prefixes keep which nobody uses at the moment; none for all that is not needed otherwise.
    pub cached_memory: Option<Bytes>,
    /// Zero pages before anybody else gets them.
    pub zero_freed: bool,
    /// None for what the model was made for.
    pub max_len: Option<Tokens>,
    /// Sequences that run at once.
    pub max_batch: u32,
    pub batching: Batching,
    /// The share of the free pages that new prompts may take while others run.
    pub prompt_share: f32,
    /// The fewest and the most prompt tokens in one step.
    pub chunk: (Tokens, Tokens),
    /// The longest gap between two tokens of running requests while a prompt is read.
    pub max_itl: Option<Duration>,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Waiting so long counts as much as one step of priority.
    pub aging: Duration,
    /// For requests that name none.
    pub time_limit: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        let engine = EngineConfig::new(1, Tokens(1));
        Self {
            source: Source::default(),
            device: Device::default(),
            kernel_cache: None,
            deterministic: false,
            threads: None,
            weights: WeightFormat::default(),
            kv_backend: KvBackend::default(),
            kv_dtype: KvDtype::F16,
            page_size: PageSize::DEFAULT,
            kv_window: None,
            kv_memory: KvMemory::default(),
            commit_kv: false,
            policy: PolicyKind::default(),
            prefix_cache: true,
            cached_memory: None,
            zero_freed: false,
            max_len: None,
            max_batch: 1,
            batching: engine.batching,
            prompt_share: engine.prompt_share,
            chunk: engine.chunk,
            max_itl: engine.max_itl,
            max_waiting: engine.max_waiting,
            aging: engine.aging,
            time_limit: engine.time_limit,
        }
    }
}

/// The options, worked out for one model.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) spec: KvSpec,
    pub(crate) settings: Settings,
    pub(crate) engine: EngineConfig,
    /// What was decided in the user's stead and may surprise.
    pub(crate) notes: Vec<String>,
}

impl Options {
    /// Refuses what no model runs with here: a GPU that was asked for by its number and is not there, or cannot be used like
    /// this. Loading refuses the same; this is for who has to get the model first.
    pub fn check(&self) -> Result<(), LoadError> {
        match self.device {
            Device::Cuda(number) => Ok(gpu::check(number, self)?),
            Device::Auto | Device::Cpu => Ok(()),
        }
    }

    /// The longest a sequence may be, and the geometry of the cache.
    pub(crate) fn geometry(&self, config: &ModelConfig) -> Result<(Tokens, KvSpec), LoadError> {
        let most = config.max_positions();
        let max_len = self.max_len.unwrap_or(most);
        if max_len > most || max_len == Tokens::ZERO {
            return Err(LoadError::MaxLen { asked: max_len, most });
        }
        let slot = PageSize::new(max_len.0).expect("at least one token");
        let page_size = if self.kv_backend == KvBackend::Paged { self.page_size } else { slot };
        Ok((max_len, config.kv_spec(self.kv_dtype, page_size, self.kv_window)?))
    }

    /// `room` is none where the system does not say.
    pub(crate) fn resolve(&self, config: &ModelConfig, room: Option<Room>) -> Result<Resolved, LoadError> {
        let (max_len, spec) = self.geometry(config)?;
        let paged = self.kv_backend == KvBackend::Paged;
        let mut notes = Vec::new();
        let total = match self.kv_memory {
            KvMemory::Bytes(budget) => spec.pages_in(budget),
            KvMemory::Pages(pages) if paged => pages,
            KvMemory::Pages(_) | KvMemory::Automatic => {
                self.automatic_pages(&spec, max_len, room, &mut notes)?
            }
        };
        let most = u64::from(total.0).saturating_mul(spec.page_bytes().0);
        if let Some(room) = room.filter(|room| most > room.free.0) {
            notes.push(format!(
                "the KV cache may grow to {:.1} GB, but only {:.1} GB of memory are available: the system may end the program when it does; say a smaller --kv-memory or --num-pages",
                most as f64 / 1e9,
                room.free.0 as f64 / 1e9
            ));
        }
        if !paged && matches!(self.kv_memory, KvMemory::Pages(_)) {
            notes.push(format!("the contiguous back end has one slot a sequence, {} here, and ignores the number of pages: say --max-batch-size or --kv-memory", total.0));
        }
        let settings = Settings {
            total,
            policy: self.policy,
            prefix_cache: paged && self.prefix_cache,
            cached_limit: self.cached_memory.map(|memory| spec.pages_in(memory)),
            reserve: if paged { Pages(total.0 / 64).min(Pages(self.max_batch)) } else { Pages::ZERO },
            ..Settings::for_model(&spec, Bytes(most))
        };
        if !settings.prefix_cache {
            let idle = self.options_for_prefixes();
            notes.extend(idle.map(|option| format!("this cache keeps no prefixes: {option} does nothing")));
        }
        let fits = settings.longest(max_len);
        let mut engine = self.engine_config(max_len);
        if self.max_len.is_none() && fits < max_len && fits > Tokens::ZERO {
            notes.push(format!("the KV cache holds {fits} of one sequence, so that is the longest it may be (the model was made for {max_len}): give it more memory for more"));
            engine.max_len = fits;
        }
        // An engine would say the same, after the weights.
        engine.check(&settings)?;
        Ok(Resolved { spec, settings, engine, notes })
    }

    /// What was asked for that matters only where prefixes are kept.
    fn options_for_prefixes(&self) -> impl Iterator<Item = &'static str> {
        let limited = self.cached_memory.map(|_| "--cached-memory");
        let ordered = (self.policy != PolicyKind::default()).then_some("--eviction");
        limited.into_iter().chain(ordered)
    }

    fn engine_config(&self, max_len: Tokens) -> EngineConfig {
        EngineConfig {
            max_batch: self.max_batch,
            max_len,
            batching: self.batching,
            prompt_share: self.prompt_share,
            chunk: self.chunk,
            max_itl: self.max_itl,
            max_waiting: self.max_waiting,
            aging: self.aging,
            time_limit: self.time_limit,
            zero_freed: self.zero_freed,
        }
    }

    /// Enough for a full batch of full length, but no more than there is room for.
    fn automatic_pages(
        &self,
        spec: &KvSpec,
        max_len: Tokens,
        room: Option<Room>,
        notes: &mut Vec<String>,
    ) -> Result<Pages, LoadError> {
        let all = self.pages_for_a_full_batch(spec, max_len)?;
        let Some(Room { free, share }) = room else { return Ok(all) };
        let fit = spec.pages_in(Bytes((free.0 as f64 * share) as u64));
        if all <= fit {
            return Ok(all);
        }
        notes.push(format!(
            "the KV cache takes {} % of the {:.1} GB of memory available, which is less than {} sequences of {max_len} need: say --kv-memory for another size",
            (share * 100.0).round(),
            free.0 as f64 / 1e9,
            self.max_batch,
        ));
        Ok(fit)
    }

    /// A windowed group holds no more than its window and the chunk that moves it on, plus a page begun at each end, and
    /// never more than the whole sequence.
    fn pages_for_a_full_batch(&self, spec: &KvSpec, max_len: Tokens) -> Result<Pages, LoadError> {
        let size = spec.page_size();
        let whole = u64::from(size.pages_for(max_len).0);
        let pages = spec.windows().into_iter().map(|window| match window {
            Some(window) => {
                let held = window.checked_add(self.chunk.1).map_or(max_len, |held| held.min(max_len));
                (u64::from(size.pages_for(held).0) + 1).min(whole)
            }
            None => whole,
        });
        let total = pages.sum::<u64>().checked_mul(self.max_batch.max(1).into());
        let total = total.and_then(|total| u32::try_from(total).ok());
        total.map(Pages).ok_or(LoadError::TooManyPages { batch: self.max_batch, max_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    /// What people are told of a cache of so many bytes beside so much memory.
    fn notes(cache: u64, free: u64) -> Vec<String> {
        let config = Source::BuiltIn.config().unwrap();
        let options = Options { kv_memory: KvMemory::Bytes(Bytes(cache)), ..Options::default() };
        options.resolve(&config, Some(Room { free: Bytes(free), share: 0.5 })).unwrap().notes
    }

    #[test]
    fn what_is_asked_of_the_engine_and_its_cache_reaches_them() {
        let config = Source::BuiltIn.config().unwrap();
        let options = Options {
            batching: Batching::Static,
            prompt_share: 0.5,
            chunk: (Tokens(3), Tokens(4)),
            max_itl: Some(Duration::from_millis(5)),
            max_waiting: 6,
            aging: Duration::from_secs(7),
            time_limit: Some(Duration::from_secs(8)),
            zero_freed: true,
            max_len: Some(Tokens(90)),
            max_batch: 10,
            policy: PolicyKind::Adaptive,
            ..Options::default()
        };
        let Resolved { settings, engine, .. } = options.resolve(&config, None).unwrap();
        let EngineConfig { batching, prompt_share, chunk, max_itl, max_waiting, .. } = engine;
        assert_eq!((batching, prompt_share, chunk), (options.batching, 0.5, options.chunk));
        assert_eq!((max_itl, max_waiting), (options.max_itl, 6));
        assert_eq!((engine.aging, engine.time_limit), (options.aging, options.time_limit));
        assert_eq!((engine.zero_freed, engine.max_len, engine.max_batch), (true, Tokens(90), 10));
        assert_eq!((settings.policy, settings.prefix_cache), (PolicyKind::Adaptive, true));
        let none = Options { max_len: Some(Tokens::ZERO), ..Options::default() };
        let error = none.resolve(&config, None).unwrap_err().to_string();
        assert!(error.contains("choose 2 to 4096"), "{error}");
    }

    /// A page in sixty-four, but no more than a page a sequence; slots are whole from the start.
    #[test]
    fn a_little_is_kept_for_sequences_that_grow() {
        let config = Source::BuiltIn.config().unwrap();
        let reserve = |pages, max_batch, kv_backend| {
            let kv_memory = KvMemory::Pages(Pages(pages));
            let options = Options { kv_memory, max_batch, kv_backend, ..Options::default() };
            options.resolve(&config, None).unwrap().settings.reserve
        };
        assert_eq!(reserve(640, 16, KvBackend::Paged), Pages(10));
        assert_eq!(reserve(640, 3, KvBackend::Paged), Pages(3));
        assert_eq!(reserve(640, 640, KvBackend::Contiguous), Pages::ZERO);
    }

    #[test]
    fn an_automatic_cache_that_memory_cuts_short_says_by_how_much() {
        let config = Source::BuiltIn.config().unwrap();
        let room = Some(Room { free: Bytes(100_000_000), share: 0.6 });
        let options = Options { max_batch: 16, ..Options::default() };
        let Resolved { settings, notes, .. } = options.resolve(&config, room).unwrap();
        assert_eq!(settings.total, Pages(60_000_000 / 65_536));
        let expected =
            "takes 60 % of the 0.1 GB of memory available, which is less than 16 sequences of 4096";
        assert!(notes[0].contains(expected), "{notes:?}");
    }

    #[test]
    fn cached_prefixes_keep_no_more_than_was_said() {
        let config = Source::BuiltIn.config().unwrap();
        let limit = |cached_memory| {
            let options = Options { cached_memory, ..Options::default() };
            let Resolved { spec, settings, .. } = options.resolve(&config, None).unwrap();
            settings.cached_limit.map(|pages| spec.page_bytes().0 * u64::from(pages.0))
        };
        assert_eq!(limit(None), None);
        assert!((15 << 20..=16 << 20).contains(&limit(Some(Bytes(16 << 20))).unwrap()));
    }

    /// Their bytes are more than can be counted.
    #[test]
    fn absurd_numbers_of_absurd_pages_do_not_overflow() {
        let config = Source::BuiltIn.config().unwrap();
        let options = Options {
            page_size: PageSize::new(4_000_000_000).unwrap(),
            kv_memory: KvMemory::Pages(Pages(4_000_000_000)),
            ..Options::default()
        };
        let resolved = options.resolve(&config, Some(Room { free: Bytes(1 << 30), share: 0.5 })).unwrap();
        assert_eq!(resolved.settings.total, Pages(4_000_000_000));
    }

    #[test]
    fn a_cache_beyond_the_memory_there_is_is_warned_of() {
        assert_eq!(notes(8 << 30, 9 << 30), Vec::<String>::new());
        let warned = notes(900 << 30, 9 << 30);
        assert!(warned[0].contains("may grow to 966.4 GB, but only 9.7 GB"), "{warned:?}");
    }
}
