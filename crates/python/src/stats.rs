//! What caches and engines count, as dictionaries.

use octavo::Metrics;
use octavo_kv::{Counters, Snapshot};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Blocks by what they are there for: used, cached, reserved and free add up to the total.
pub(crate) fn pages(dict: &Bound<'_, PyDict>, snapshot: &Snapshot) -> PyResult<()> {
    let pages = snapshot.pages;
    dict.set_item("total_blocks", pages.total.0)?;
    dict.set_item("used_blocks", pages.used.0)?;
    dict.set_item("cached_blocks", pages.cached.0)?;
    dict.set_item("reserved_blocks", pages.reserved.0)?;
    dict.set_item("free_blocks", pages.free.0)?;
    dict.set_item("pinned_blocks", snapshot.pinned.0)?;
    dict.set_item("peak_blocks", snapshot.peak_used.0)?;
    dict.set_item("utilization", snapshot.utilisation())?;
    dict.set_item("internal_fragmentation_percent", 100.0 * snapshot.internal_fragmentation())
}

pub(crate) fn prefixes(dict: &Bound<'_, PyDict>, counters: &Counters) -> PyResult<()> {
    let seen = counters.hit_tokens + counters.missed_tokens;
    let rate = if seen == 0 { 0.0 } else { counters.hit_tokens as f64 / seen as f64 };
    dict.set_item("lookups", counters.lookups)?;
    dict.set_item("hit_tokens", counters.hit_tokens)?;
    dict.set_item("missed_tokens", counters.missed_tokens)?;
    dict.set_item("hit_rate", rate)?;
    dict.set_item("evictions", counters.evictions)?;
    dict.set_item("evicted_blocks", counters.evicted.total())?;
    dict.set_item("forks", counters.forks)?;
    dict.set_item("copies_on_write", counters.copies_on_write)?;
    dict.set_item("partial_copies", counters.partial_copies)?;
    dict.set_item("computed_tokens", counters.computed_tokens)
}

/// What was counted since the engine began.
pub(crate) fn engine(dict: &Bound<'_, PyDict>, metrics: &Metrics) -> PyResult<()> {
    dict.set_item("prompt_tokens", metrics.prompt_tokens.get())?;
    dict.set_item("prompt_tokens_cached", metrics.prompt_tokens_cached.get())?;
    dict.set_item("generation_tokens", metrics.generation_tokens.get())?;
    dict.set_item("preemptions", metrics.preemptions.get())?;
    dict.set_item("steps", metrics.steps.get())?;
    dict.set_item("finished_stop", metrics.finished.stop.get())?;
    dict.set_item("finished_length", metrics.finished.length.get())?;
    dict.set_item("finished_cancelled", metrics.finished.abort.get())?;
    dict.set_item("finished_error", metrics.finished.error.get())
}
