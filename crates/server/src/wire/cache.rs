//! The cache's state as JSON.

use octavo::{AuditReport, CacheReport, Counters, PageState, SequenceReport, Snapshot, TenantReport};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct CacheBody {
    pages: PagesBody,
    page_bytes: u64,
    /// Share of the pool in use, 0 to 1.
    utilisation: f64,
    /// Share of the slots in used pages that hold no token, 0 to 1.
    internal_fragmentation: f64,
    bytes: BytesBody,
    allocated_per_second: f64,
    freed_per_second: f64,
    counters: CountersBody,
    map: MapBody,
    sequences: Vec<SequenceBody>,
    waiting: usize,
    tenants: Vec<TenantBody>,
    last_audit: Option<AuditBody>,
}

/// `used + cached + reserved + free == total`; the others are part of these.
#[derive(Debug, Serialize)]
struct PagesBody {
    used: u32,
    cached: u32,
    reserved: u32,
    free: u32,
    total: u32,
    pinned: u32,
    evictable: u32,
    peak_used: u32,
}

#[derive(Debug, Serialize)]
struct BytesBody {
    used: u64,
    free: u64,
    peak: u64,
    total: u64,
}

#[derive(Debug, Serialize)]
struct CountersBody {
    pages_allocated: u64,
    pages_freed: u64,
    evictions: u64,
    evicted: EvictedBody,
    lookups: u64,
    hit_tokens: u64,
    missed_tokens: u64,
    lookup_stops: StopsBody,
    forks: u64,
    copies_on_write: u64,
    partial_copies: u64,
    computed_tokens: u64,
    failed_steps: u64,
    key_collisions: u64,
}

#[derive(Debug, Serialize)]
struct EvictedBody {
    old: u64,
    recent: u64,
    prefix: u64,
}

#[derive(Debug, Serialize)]
struct StopsBody {
    whole_prompt: u64,
    page_not_full: u64,
    evicted: u64,
    never_seen: u64,
    differs: u64,
    not_looked_up: u64,
}

/// One letter a page, in runs: `12.3u` is twelve free pages and three used ones.
#[derive(Debug, Serialize)]
struct MapBody {
    legend: Legend,
    runs: String,
}

#[derive(Debug, Serialize)]
struct Legend {
    free: char,
    cached: char,
    used: char,
    shared: char,
    pinned: char,
}

const LEGEND: Legend = Legend { free: '.', cached: 'c', used: 'u', shared: 's', pinned: 'p' };

#[derive(Debug, Serialize)]
struct SequenceBody {
    request: u64,
    choice: u32,
    tokens: u32,
    computed: u32,
    pages: u32,
}

#[derive(Debug, Serialize)]
struct TenantBody {
    tenant: String,
    sequences: usize,
    tokens: u64,
    pages: u64,
    cached_pages: u32,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct AuditBody {
    /// Seconds after the engine's start.
    at: f64,
    ok: bool,
    problem: Option<String>,
}

impl From<CacheReport> for CacheBody {
    fn from(report: CacheReport) -> Self {
        let snapshot = &report.snapshot;
        let page_bytes = snapshot.page_bytes.0;
        Self {
            pages: pages(snapshot),
            page_bytes,
            utilisation: snapshot.utilisation(),
            internal_fragmentation: snapshot.internal_fragmentation(),
            bytes: BytesBody {
                used: snapshot.bytes_used().0,
                free: snapshot.bytes_free().0,
                peak: snapshot.peak_bytes().0,
                total: u64::from(snapshot.pages.total.0).saturating_mul(page_bytes),
            },
            allocated_per_second: snapshot.allocated_per_second,
            freed_per_second: snapshot.freed_per_second,
            counters: counters(&snapshot.counters),
            map: MapBody { legend: LEGEND, runs: runs(&report.pages) },
            sequences: report.sequences.iter().map(sequence).collect(),
            waiting: report.waiting,
            tenants: report.tenants.into_iter().map(tenant).collect(),
            last_audit: report.last_audit.map(AuditBody::from),
        }
    }
}

fn pages(snapshot: &Snapshot) -> PagesBody {
    let counts = snapshot.pages;
    PagesBody {
        used: counts.used.0,
        cached: counts.cached.0,
        reserved: counts.reserved.0,
        free: counts.free.0,
        total: counts.total.0,
        pinned: snapshot.pinned.0,
        evictable: snapshot.evictable.0,
        peak_used: snapshot.peak_used.0,
    }
}

fn counters(counters: &Counters) -> CountersBody {
    let (evicted, stops) = (counters.evicted, counters.stops);
    CountersBody {
        pages_allocated: counters.allocated.total(),
        pages_freed: counters.freed.total(),
        evictions: counters.evictions,
        evicted: EvictedBody { old: evicted.old, recent: evicted.recent, prefix: evicted.prefix },
        lookups: counters.lookups,
        hit_tokens: counters.hit_tokens,
        missed_tokens: counters.missed_tokens,
        lookup_stops: StopsBody {
            whole_prompt: stops.whole_prompt,
            page_not_full: stops.page_not_full,
            evicted: stops.evicted,
            never_seen: stops.never_seen,
            differs: stops.differs,
            not_looked_up: stops.not_looked_up,
        },
        forks: counters.forks,
        copies_on_write: counters.copies_on_write,
        partial_copies: counters.partial_copies,
        computed_tokens: counters.computed_tokens,
        failed_steps: counters.failed_steps,
        key_collisions: counters.key_collisions,
    }
}

fn runs(pages: &[PageState]) -> String {
    let mut text = String::new();
    for run in pages.chunk_by(|a, b| a == b) {
        text.push_str(&run.len().to_string());
        text.push(match run[0] {
            PageState::Free => LEGEND.free,
            PageState::Cached => LEGEND.cached,
            PageState::Used => LEGEND.used,
            PageState::Shared => LEGEND.shared,
            PageState::Pinned => LEGEND.pinned,
        });
    }
    text
}

fn sequence(report: &SequenceReport) -> SequenceBody {
    SequenceBody {
        request: report.request.0,
        choice: report.choice,
        tokens: report.tokens.0,
        computed: report.computed.0,
        pages: report.pages.0,
    }
}

fn tenant(report: TenantReport) -> TenantBody {
    let TenantReport { tenant, sequences, tokens, pages, cached } = report;
    TenantBody { tenant, sequences, tokens, pages, cached_pages: cached.0 }
}

impl From<AuditReport> for AuditBody {
    fn from(report: AuditReport) -> Self {
        let AuditReport { at, problem } = report;
        Self::new(at.0 as f64 / 1e6, problem)
    }
}

impl AuditBody {
    pub(crate) fn new(at: f64, problem: Option<String>) -> Self {
        Self { at, ok: problem.is_none(), problem }
    }
    pub(crate) fn is_ok(&self) -> bool {
        self.ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbered::number;
    use octavo::{Bytes, Llm, Options, Pages, RequestId, Tokens};
    use serde_json::{json, to_value};
    use std::time::Duration;

    /// A cache that nobody has used, after a check of it.
    fn fresh() -> CacheReport {
        let handle = Llm::load(&Options::default(), &mut |_| {}).unwrap().serve().handle;
        handle.audit().wait(Duration::from_secs(60)).unwrap();
        handle.report().wait(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn every_number_goes_by_its_own_name() {
        let mut report = fresh();
        number(&mut report.snapshot);
        report.snapshot.page_bytes = Bytes(10);
        report.sequences = vec![SequenceReport {
            request: RequestId(1),
            choice: 2,
            tokens: Tokens(40),
            computed: Tokens(39),
            pages: Pages(3),
        }];
        report.tenants =
            vec![TenantReport { tenant: "t".into(), sequences: 1, tokens: 40, pages: 3, cached: Pages(2) }];
        (report.pages, report.waiting) = (vec![PageState::Used], 27);
        report.last_audit.as_mut().unwrap().at.0 = 2_500_000;
        let expected = json!({
            "pages": {"used": 20, "cached": 30, "reserved": 4, "free": 46, "total": 100, "pinned": 5,
                "evictable": 6, "peak_used": 70},
            "page_bytes": 10, "utilisation": 0.2, "internal_fragmentation": 0.25,
            "bytes": {"used": 200, "free": 560, "peak": 700, "total": 1000},
            "allocated_per_second": 1.5, "freed_per_second": 2.5,
            "counters": {
                "pages_allocated": 0, "pages_freed": 0, "evictions": 23,
                "evicted": {"old": 13, "recent": 14, "prefix": 15},
                "lookups": 25, "hit_tokens": 16, "missed_tokens": 17,
                "lookup_stops": {"whole_prompt": 7, "page_not_full": 8, "evicted": 9, "never_seen": 10,
                    "differs": 11, "not_looked_up": 12},
                "forks": 21, "copies_on_write": 18, "partial_copies": 19, "computed_tokens": 22,
                "failed_steps": 26, "key_collisions": 24,
            },
            "map": {"legend": {"free": ".", "cached": "c", "used": "u", "shared": "s", "pinned": "p"},
                "runs": "1u"},
            "sequences": [{"request": 1, "choice": 2, "tokens": 40, "computed": 39, "pages": 3}],
            "waiting": 27,
            "tenants": [{"tenant": "t", "sequences": 1, "tokens": 40, "pages": 3, "cached_pages": 2}],
            "last_audit": {"at": 2.5, "ok": true, "problem": null},
        });
        assert_eq!(to_value(CacheBody::from(report)).unwrap(), expected);
    }

    #[test]
    fn the_map_is_run_lengths_of_letters() {
        use PageState::{Cached, Free, Pinned, Shared, Used};
        assert_eq!(runs(&[Free, Free, Used, Shared, Shared, Shared, Cached, Pinned, Free]), "2.1u3s1c1p1.");
        assert_eq!(runs(&[]), "");
    }
}
