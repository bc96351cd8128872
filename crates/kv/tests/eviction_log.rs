//! What is logged of an eviction. Alone in its process: whether an event is wanted is remembered for all threads, by what the
//! first of them listened to.

use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
use octavo_types::{PageSize, Pages, Tokens};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};

/// Collects every event's fields as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn an_eviction_is_logged_with_the_pages_it_reclaimed() {
    let mut cache = KvCache::new(Settings::new(Pages(4))).unwrap();
    let prompt = Prompt::new((0..48).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
    let (seq, _) = cache.admit(prompt, Reuse::Longest).unwrap();
    cache.schedule(seq, Tokens(48), Claim::New).unwrap();
    cache.complete();
    cache.free(seq).unwrap();
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || cache.evict(Pages(9)));
    let lines = log.0.lock().unwrap();
    for field in ["message=evicted cached pages", "policy=\"lru\"", "reclaimed=3", "evictions=1"] {
        assert!(lines.iter().any(|line| line == field), "no {field} in {lines:?}");
    }
}
