use crate::evict::PolicyKind;
use crate::free_list::MAX_PAGES;
use octavo_types::{Bytes, KvSpec, PageSize, Pages, Tokens};

/// How a cache is set up. [`Settings::new`] has the defaults; [`KvCache::new`](crate::KvCache::new) refuses
/// what cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Pages in the pool.
    pub total: Pages,
    pub page_size: PageSize,
    /// Bytes a page takes in the physical half; only for the statistics.
    pub page_bytes: Bytes,
    /// One a layer group: how far back its layers look, or `None` for everything.
    pub windows: Vec<Option<Tokens>>,
    /// Free pages that only running sequences may take.
    pub reserve: Pages,
    /// The most pages one sequence may hold.
    pub sequence_limit: Option<Pages>,
    /// Whether prefixes are kept and looked up.
    pub prefix_cache: bool,
    /// The most idle pages kept for what they contain.
    pub cached_limit: Option<Pages>,
    /// The most pages that pins may keep from being evicted.
    pub pin_quota: Pages,
    pub policy: PolicyKind,
    /// How many evicted pages are remembered: to tell "evicted" from "never seen", and for policies that learn.
    pub remember_evicted: usize,
}

/// Why a cache cannot be set up like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("the pool has no pages: give it memory for at least one page ({page_bytes})")]
    NoPages { page_bytes: Bytes },
    #[error("{total} are more than a pool can count ({max}): use larger pages", max = MAX_PAGES - Pages(1))]
    TooManyPages { total: Pages },
    #[error("the cache needs at least one layer group")]
    NoGroups,
    #[error("{groups} layer groups are more than a cache can count ({max})", max = u16::MAX)]
    TooManyGroups { groups: usize },
    #[error("layer group {group} has a window of no tokens: it must see at least its own")]
    EmptyWindow { group: usize },
    #[error("a reserve of {reserve} leaves no page of {total} for new requests: lower it")]
    ReserveTooLarge { reserve: Pages, total: Pages },
    #[error(
        "a limit of {limit} a sequence is less than the {groups} layer groups need for one token: raise it"
    )]
    SequenceLimitTooSmall { limit: Pages, groups: usize },
    #[error("pins could take {quota} of {total}, all that new requests may use: lower the quota")]
    PinQuotaTooLarge { quota: Pages, total: Pages },
}

impl Settings {
    /// A pool of `total` pages of sixteen tokens for a model of one full-attention group.
    pub fn new(total: Pages) -> Self {
        Self {
            total,
            page_size: PageSize::DEFAULT,
            page_bytes: Bytes::ZERO,
            windows: vec![None],
            reserve: Pages::ZERO,
            sequence_limit: None,
            prefix_cache: true,
            cached_limit: None,
            pin_quota: Pages(total.0 / 4),
            policy: PolicyKind::default(),
            remember_evicted: total.as_usize().saturating_mul(4).min(1 << 18),
        }
    }

    /// As many pages of `spec` as fit `budget`.
    pub fn for_model(spec: &KvSpec, budget: Bytes) -> Self {
        Self {
            page_size: spec.page_size(),
            page_bytes: spec.page_bytes(),
            windows: spec.windows(),
            ..Self::new(spec.pages_in(budget))
        }
    }

    /// Of all pages.
    pub fn bytes(&self) -> Bytes {
        Bytes(u64::from(self.total.0).saturating_mul(self.page_bytes.0))
    }

    /// The fewest pages with which a sequence of `tokens` can be computed, one token at a time. A window that begins
    /// with the last slot of a page reaches into one page more than it would fill.
    pub fn least_pages(&self, tokens: Tokens) -> Pages {
        let pages = self.windows.iter().map(|window| {
            let all = self.page_size.pages_for(tokens);
            let held = window.map_or(all, |window| {
                let others = self.page_size.pages_for(window.saturating_sub(Tokens(1)));
                all.min(others + Pages(1))
            });
            u64::from(held.0)
        });
        Pages(u32::try_from(pages.sum::<u64>()).unwrap_or(u32::MAX))
    }

    /// The longest sequence that can be computed, up to `most`.
    pub fn longest(&self, most: Tokens) -> Tokens {
        let (mut fits, mut too_long) = (0, u64::from(most.0) + 1);
        while fits + 1 < too_long {
            let middle = (fits + too_long) / 2;
            if self.least_pages(Tokens(middle as u32)) <= self.total {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        Tokens(fits as u32)
    }

    /// Whether a cache can be made of these. Making one checks the same.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let Self { total, reserve, pin_quota: quota, .. } = *self;
        if total == Pages::ZERO {
            return Err(SettingsError::NoPages { page_bytes: self.page_bytes });
        }
        if total >= MAX_PAGES {
            return Err(SettingsError::TooManyPages { total });
        }
        if self.windows.is_empty() {
            return Err(SettingsError::NoGroups);
        }
        let groups = self.windows.len();
        if groups > usize::from(u16::MAX) {
            return Err(SettingsError::TooManyGroups { groups });
        }
        if let Some(group) = self.windows.iter().position(|window| *window == Some(Tokens::ZERO)) {
            return Err(SettingsError::EmptyWindow { group });
        }
        if reserve >= total {
            return Err(SettingsError::ReserveTooLarge { reserve, total });
        }
        if let Some(limit) = self.sequence_limit.filter(|limit| limit.as_usize() < groups) {
            return Err(SettingsError::SequenceLimitTooSmall { limit, groups });
        }
        if quota >= total - reserve {
            return Err(SettingsError::PinQuotaTooLarge { quota, total });
        }
        Ok(())
    }
}
