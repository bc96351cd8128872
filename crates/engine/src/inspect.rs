//! Looking into a running engine, and its cache's pins.

use crate::engine::Engine;
use crate::report::{CacheReport, PageState, PinReport, SequenceReport, TenantReport, tenant_of};
use octavo_kv::{PageUse, PinError, PinId, Prompt, Scope};
use octavo_types::{PageId, Pages, Tokens};
use std::collections::HashMap;

impl Engine {
    /// The cache as it is between steps.
    pub fn report(&self) -> CacheReport {
        let snapshot = self.cache.snapshot();
        let mut sequences = Vec::new();
        let mut tenants: HashMap<Scope, TenantReport> = HashMap::new();
        for running in self.running.iter().filter(|running| running.finished.is_none()) {
            let sequence = self.cache.sequence(running.seq).expect("running");
            let tokens = sequence.prompt().len();
            let pages = sequence.pages();
            let (request, choice) = (running.task.id(), running.task.choice);
            let computed = sequence.computed();
            sequences.push(SequenceReport { request, choice, tokens, computed, pages });
            let scope = sequence.prompt().scope();
            let tenant = tenants.entry(scope).or_insert_with(|| TenantReport::of(scope));
            tenant.sequences += 1;
            tenant.tokens += u64::from(tokens.0);
            tenant.pages += u64::from(pages.0);
        }
        for (scope, cached) in self.cache.cached_by_scope() {
            tenants.entry(scope).or_insert_with(|| TenantReport::of(scope)).cached = cached;
        }
        let mut tenants: Vec<TenantReport> = tenants.into_values().collect();
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        CacheReport {
            pages: self.page_states(),
            snapshot,
            sequences,
            tenants,
            waiting: self.queue.len(),
            last_audit: self.last_audit.clone(),
        }
    }

    fn page_states(&self) -> Vec<PageState> {
        let total = self.cache.settings().total;
        (0..total.0).map(|page| self.page_state(PageId(page))).collect()
    }

    fn page_state(&self, page: PageId) -> PageState {
        match self.cache.page_use(page) {
            None => PageState::Free,
            Some(PageUse { pinned: true, .. }) => PageState::Pinned,
            Some(PageUse { cached: true, .. }) => PageState::Cached,
            Some(PageUse { holders: 0, .. }) => PageState::Free,
            Some(PageUse { holders: 1, .. }) => PageState::Used,
            Some(_) => PageState::Shared,
        }
    }

    /// All pins, the oldest first.
    pub fn pins(&self) -> Vec<PinReport> {
        let report = |pin: octavo_kv::Pin| PinReport {
            id: pin.id,
            tenant: tenant_of(pin.scope),
            tokens: pin.tokens,
            pages: pin.pages,
        };
        self.cache.pins().map(report).collect()
    }

    // Whoever is told of a change below finds it in the metrics.

    pub fn pin(&mut self, prompt: &Prompt) -> Result<(PinId, Tokens), PinError> {
        let pinned = self.cache.pin(prompt);
        self.show();
        pinned
    }
    pub fn unpin(&mut self, pin: PinId) -> Result<(), PinError> {
        let unpinned = self.cache.unpin(pin);
        self.show();
        unpinned
    }
    /// Forgets every cached prefix that nobody uses or pinned.
    pub fn drop_prefixes(&mut self) -> Pages {
        let all = self.cache.settings().total;
        let dropped = self.cache.evict(all);
        self.show();
        dropped
    }
}

impl TenantReport {
    fn of(scope: Scope) -> Self {
        Self { tenant: tenant_of(scope), ..Self::default() }
    }
}
