//! Pages that may keep nothing of whoever had them: the runner zeroes them before the next step, and so before whoever gets
//! them next writes or reads anything.

use octavo_kv::{KvCache, Scrub, Settings, SettingsError};
use octavo_types::PageId;
use std::sync::{Arc, Mutex, PoisonError};

/// Freed, and not zeroed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freed(Arc<Mutex<Vec<PageId>>>);

impl Freed {
    pub(crate) fn take(&self) -> Vec<PageId> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Scrub for Freed {
    fn zero(&self, pages: &[PageId]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(pages);
    }
}

/// An empty cache; what it frees is noted if `freed` is there.
pub(crate) fn cache(settings: Settings, freed: Option<&Freed>) -> Result<KvCache, SettingsError> {
    match freed {
        Some(freed) => KvCache::with_scrub(settings, Box::new(freed.clone())),
        None => KvCache::new(settings),
    }
}
