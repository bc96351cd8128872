use crate::Source;
use crate::llm::LoadError;
use octavo_backend::WeightFormat;
use octavo_kv::{PolicyKind, Settings};
use octavo_model::ModelConfig;
use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, Tokens};
use std::num::NonZeroUsize;

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
    /// Enough for `max_batch` sequences of the full length.
    #[default]
    Automatic,
    Bytes(Bytes),
    Pages(Pages),
}

/// How to load and run a model. The default runs the built-in one on all cores.
#[derive(Clone, Debug)]
pub struct Options {
    pub source: Source,
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
    pub policy: PolicyKind,
    pub prefix_cache: bool,
    /// None for what the model was made for.
    pub max_len: Option<Tokens>,
    /// Sequences that run at once.
    pub max_batch: u32,
    /// The most prompt tokens in one step.
    pub chunk: Tokens,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: Source::default(),
            threads: None,
            weights: WeightFormat::default(),
            kv_backend: KvBackend::default(),
            kv_dtype: KvDtype::F16,
            page_size: PageSize::DEFAULT,
            kv_window: None,
            kv_memory: KvMemory::default(),
            policy: PolicyKind::default(),
            prefix_cache: true,
            max_len: None,
            max_batch: 1,
            chunk: Tokens(512),
        }
    }
}

/// The options, worked out for one model.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) spec: KvSpec,
    pub(crate) settings: Settings,
    pub(crate) max_len: Tokens,
}

impl Options {
    pub(crate) fn resolve(&self, config: &ModelConfig) -> Result<Resolved, LoadError> {
        let most = config.max_positions();
        let max_len = self.max_len.unwrap_or(most);
        if max_len > most || max_len == Tokens::ZERO {
            return Err(LoadError::MaxLen { asked: max_len, most });
        }
        let paged = self.kv_backend == KvBackend::Paged;
        let slot = PageSize::new(max_len.0).expect("at least one token");
        let page_size = if paged { self.page_size } else { slot };
        let spec = config.kv_spec(self.kv_dtype, page_size, self.kv_window)?;
        let total = match self.kv_memory {
            KvMemory::Automatic => self.pages_for_a_full_batch(&spec, max_len)?,
            KvMemory::Bytes(budget) => spec.pages_in(budget),
            KvMemory::Pages(pages) => pages,
        };
        let settings = Settings {
            total,
            policy: self.policy,
            prefix_cache: paged && self.prefix_cache,
            ..Settings::for_model(&spec, Bytes(u64::from(total.0) * spec.page_bytes().0))
        };
        Ok(Resolved { spec, settings, max_len })
    }

    /// A windowed group holds no more than its window and the chunk that moves it on, plus a page begun at each end.
    fn pages_for_a_full_batch(&self, spec: &KvSpec, max_len: Tokens) -> Result<Pages, LoadError> {
        let size = spec.page_size();
        let pages = spec.windows().into_iter().map(|window| match window {
            Some(window) => {
                let held = window.checked_add(self.chunk).map_or(max_len, |held| held.min(max_len));
                u64::from(size.pages_for(held).0) + 1
            }
            None => u64::from(size.pages_for(max_len).0),
        });
        let total = pages.sum::<u64>().checked_mul(self.max_batch.max(1).into());
        let total = total.and_then(|total| u32::try_from(total).ok());
        total.map(Pages).ok_or(LoadError::TooManyPages { batch: self.max_batch, max_len })
    }
}
