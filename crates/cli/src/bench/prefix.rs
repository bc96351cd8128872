//! `octavo bench prefix`: what prefix caching costs a prompt that hits, one that misses, and the cache.

use super::measure::{interleave, progress};
use super::prefix_work::{Evicting, Filled};
use super::report::{Goal, Report, Table};
use anyhow::Result;
use indicatif::ProgressBar;
use octavo_kv::PolicyKind;
use octavo_types::{Pages, Tokens};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What does prefix caching cost, a page?
///
/// Prompts of 4 096 and 32 768 tokens, pages of 16: hashed and looked up in an index that holds many others,
/// once so that every page is found and verified and once so that none is; and inserted, into a pool with
/// room and into a full one. Then pages are evicted one by one, with a million cached, under each policy.
///
/// JSON keys, each an object by prompt length: ns_per_page_hash, ns_per_page_lookup_hit and
/// ns_per_page_lookup_miss (both with the hashing), ns_per_page_insert (admit, schedule and complete, without
/// it), ns_per_page_insert_full (the same, each page in place of an evicted one); by policy: ns_evict,
/// ns_evict_by_64.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Pages of other prompts in the index
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(4_096..))]
    index_pages: u32,
    /// Cached pages while evicting
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(4_096..))]
    cached_pages: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// A few short rounds and a small cache, to see that everything works; the figures mean little
    #[arg(long, conflicts_with_all = ["index_pages", "cached_pages", "rounds"])]
    quick: bool,
}

/// How much is measured.
struct Plan {
    index_pages: Pages,
    cached_pages: Pages,
    rounds: u32,
}

impl Plan {
    fn new(args: &Args) -> Self {
        if args.quick {
            return Self { index_pages: Pages(4_096), cached_pages: Pages(4_096), rounds: 2 };
        }
        Self {
            index_pages: Pages(args.index_pages),
            cached_pages: Pages(args.cached_pages),
            rounds: args.rounds,
        }
    }
}

const LENGTHS: [Tokens; 2] = [Tokens(4_096), Tokens(32_768)];

/// Nanoseconds a page of a prompt.
struct Length {
    hash: f64,
    /// Finding and verifying every page.
    find: f64,
    /// Finding none.
    miss: f64,
    insert: f64,
    insert_full: f64,
}

/// Nanoseconds a page.
struct Eviction {
    single: f64,
    by_64: f64,
}

/// Figures by prompt length.
type ByLength = BTreeMap<u32, f64>;
/// Figures by policy.
type ByPolicy = BTreeMap<&'static str, f64>;

#[derive(Debug, Serialize)]
struct Figures {
    ns_per_page_hash: ByLength,
    ns_per_page_lookup_hit: ByLength,
    ns_per_page_lookup_miss: ByLength,
    /// How much of a miss is hashing: 0 to 1.
    miss_hash_share: ByLength,
    ns_per_page_insert: ByLength,
    ns_per_page_insert_full: ByLength,
    ns_evict: ByPolicy,
    ns_evict_by_64: ByPolicy,
    index_pages: u32,
    cached_pages: u32,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let plan = Plan::new(args);
    let bar = progress((LENGTHS.len() + PolicyKind::ALL.len()) as u64);
    let lengths = LENGTHS.map(|length| (length.0, measure_length(&plan, length, &bar)));
    let evictions = PolicyKind::ALL.map(|policy| (policy.name(), measure_eviction(&plan, policy, &bar)));
    bar.finish_and_clear();
    let figures = Figures::new(&plan, &lengths, &evictions);
    let conditions = format!(
        "pages of 16 tokens, {} of other prompts indexed, {} cached while evicting; medians of {} rounds",
        plan.index_pages.0, plan.cached_pages.0, plan.rounds
    );
    let question = "what does prefix caching cost?";
    Report::new("prefix", question, conditions, &figures, figures.tables(), figures.goals())
}

fn measure_length(plan: &Plan, length: Tokens, bar: &ProgressBar) -> Length {
    bar.set_message(format!("prompts of {length}"));
    let room = Pages(Filled::PAGES_A_ROUND.0 * (plan.rounds + 1));
    let mut roomy = Filled::new(length, plan.index_pages, room);
    let [hash, find, miss] =
        interleave(plan.rounds, [&mut || roomy.hash(), &mut || roomy.find(), &mut || roomy.miss()]);
    let mut full = Filled::new(length, plan.index_pages, Pages::ZERO);
    let [insert, insert_full] = interleave(plan.rounds, [&mut || roomy.insert(), &mut || full.insert()]);
    bar.inc(1);
    Length { hash, find, miss, insert, insert_full }
}

fn measure_eviction(plan: &Plan, policy: PolicyKind, bar: &ProgressBar) -> Eviction {
    bar.set_message(format!("evicting, {policy}"));
    let cache = RefCell::new(Evicting::new(policy, plan.cached_pages));
    let evict = |batch| cache.borrow_mut().evict(Pages(batch));
    let [single, by_64] = interleave(plan.rounds, [&mut || evict(1), &mut || evict(64)]);
    bar.inc(1);
    Eviction { single, by_64 }
}

impl Figures {
    fn new(plan: &Plan, lengths: &[(u32, Length)], evictions: &[(&'static str, Eviction)]) -> Self {
        let by_length = |figure: fn(&Length) -> f64| lengths.iter().map(|(n, l)| (*n, figure(l))).collect();
        let by_policy =
            |figure: fn(&Eviction) -> f64| evictions.iter().map(|(p, e)| (*p, figure(e))).collect();
        Self {
            ns_per_page_hash: by_length(|l| l.hash),
            ns_per_page_lookup_hit: by_length(|l| l.hash + l.find),
            ns_per_page_lookup_miss: by_length(|l| l.hash + l.miss),
            miss_hash_share: by_length(|l| l.hash / (l.hash + l.miss)),
            ns_per_page_insert: by_length(|l| l.insert),
            ns_per_page_insert_full: by_length(|l| l.insert_full),
            ns_evict: by_policy(|e| e.single),
            ns_evict_by_64: by_policy(|e| e.by_64),
            index_pages: plan.index_pages.0,
            cached_pages: plan.cached_pages.0,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let headings = LENGTHS.map(|length| length.to_string());
        let mut prompts = Table::new("A prompt, ns a page", ["".into()].into_iter().chain(headings));
        let rows = [
            ("hash", &self.ns_per_page_hash),
            ("hit: hash, look up, verify", &self.ns_per_page_lookup_hit),
            ("miss: hash, look up", &self.ns_per_page_lookup_miss),
            ("insert (admit, schedule, complete)", &self.ns_per_page_insert),
            ("insert into a full pool (evicts as many)", &self.ns_per_page_insert_full),
        ];
        for (name, figures) in rows {
            let cells = figures.values().map(|ns| format!("{ns:.1}"));
            prompts.row([name.to_owned()].into_iter().chain(cells));
        }
        let mut evictions = Table::new("An eviction, ns a page", ["policy", "one by one", "by 64"]);
        for policy in PolicyKind::ALL.map(PolicyKind::name) {
            let [single, by_64] = [&self.ns_evict, &self.ns_evict_by_64].map(|figures| figures[policy]);
            evictions.row([policy.to_owned(), format!("{single:.1}"), format!("{by_64:.1}")]);
        }
        vec![prompts, evictions]
    }

    fn goals(&self) -> Vec<Goal> {
        let most = |figures: &mut dyn Iterator<Item = &f64>| figures.copied().fold(f64::MIN, f64::max);
        let hit = most(&mut self.ns_per_page_lookup_hit.values());
        let evict = most(&mut self.ns_evict.values());
        let hash_share = self.miss_hash_share.values().copied().fold(f64::MAX, f64::min);
        vec![
            Goal::at_most(200.0, hit, "hashing, looking up and verifying a cached page under 200 ns"),
            Goal::at_most(500.0, evict, "an eviction under 500 ns, under every policy"),
            Goal::at_least(0.95, hash_share, "a miss pays for hashing only: at least 0.95 of it is hashing"),
        ]
    }
}
