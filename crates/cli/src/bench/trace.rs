//! `octavo bench trace`: how close each eviction policy comes to the best possible on a recorded load.

use super::belady::optimal_hits;
use super::measure::progress;
use super::report::{Goal, Report, Table};
use super::trace_file::{Request, Trace};
use anyhow::{Context, Result, bail};
use octavo_kv::{AdmitError, AllocError, Claim, KvCache, PolicyKind, Prompt, Reuse, Scope, Settings};
use octavo_types::{PageSize, Pages};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How much of the possible reuse does each eviction policy keep?
///
/// Replays a trace of requests through the cache, one after another, at several capacities. A page stands for
/// one of the trace's blocks; what the model answers is not cached. Prints the share of blocks that were
/// found, for each policy, beside what the best possible eviction (Belady's, leaves first) and a cache
/// without limit would find. JSON keys: requests, blocks, distinct_blocks, rows (capacity, infinite, opt and
/// one a policy).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File of JSON lines with `timestamp` (milliseconds) and `hash_ids` (the prompt's blocks), as in
    /// Mooncake's conversation_trace.jsonl
    #[arg(value_name = "TRACE")]
    path: PathBuf,
    /// Cache sizes in blocks of the trace
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BLOCKS,...",
        default_value = "1000,2000,5000,10000,20000,50000",
        value_parser = clap::value_parser!(u32).range(1..=100_000_000)
    )]
    capacities: Vec<u32>,
}

/// A block of the trace is a page of two tokens that both carry its id. (With pages of one token the last
/// token of a prompt, which is never looked up, would be a page of its own.)
const PAGE: u32 = 2;

/// Shares of all blocks, 0 to 1.
#[derive(Debug, Serialize)]
struct Row {
    capacity: u32,
    infinite: f64,
    opt: f64,
    #[serde(flatten)]
    policies: BTreeMap<&'static str, f64>,
    /// Requests of more blocks than the cache has: all of their blocks count as missed.
    requests_refused: u64,
}

#[derive(Debug, Serialize)]
struct Figures {
    requests: usize,
    blocks: u64,
    distinct_blocks: usize,
    rows: Vec<Row>,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let trace = Trace::read(&args.path)?;
    let bar = progress((args.capacities.len() * (1 + PolicyKind::ALL.len())) as u64);
    let mut rows = Vec::new();
    for &capacity in &args.capacities {
        bar.set_message(format!("{capacity} blocks"));
        let share = |hits: u64| hits as f64 / trace.blocks() as f64;
        let opt = share(optimal_hits(&trace, capacity));
        bar.inc(1);
        let mut row = Row {
            capacity,
            infinite: share(trace.repeated_blocks()),
            opt,
            policies: BTreeMap::new(),
            requests_refused: 0,
        };
        for policy in PolicyKind::ALL {
            let replayed = replay(&trace, capacity, policy)?;
            row.policies.insert(policy.name(), share(replayed.hits));
            row.requests_refused = replayed.refused;
            bar.inc(1);
        }
        rows.push(row);
    }
    bar.finish_and_clear();
    let figures = Figures {
        requests: trace.requests().len(),
        blocks: trace.blocks(),
        distinct_blocks: trace.distinct_blocks(),
        rows,
    };
    let conditions = format!(
        "{} requests one after another, {} blocks, {} of them distinct",
        figures.requests, figures.blocks, figures.distinct_blocks
    );
    let question = "how much of the possible reuse does each eviction policy keep?";
    Report::new("trace", question, conditions, &figures, figures.tables(), figures.goals())
}

/// What a replay found.
#[derive(Debug, PartialEq, Eq)]
struct Replayed {
    hits: u64,
    refused: u64,
}

fn replay(trace: &Trace, capacity: u32, policy: PolicyKind) -> Result<Replayed> {
    let page_size = PageSize::new(PAGE).expect("more than none");
    // One page more than there are blocks, for the last token of the request that runs.
    let settings = Settings { page_size, policy, ..Settings::new(Pages(capacity) + Pages(1)) };
    let mut cache = KvCache::new(settings).context("no cache of this capacity")?;
    let mut replayed = Replayed { hits: 0, refused: 0 };
    for request in trace.requests() {
        match found_by(&mut cache, request, page_size)? {
            Some(hits) => replayed.hits += hits,
            None => replayed.refused += 1,
        }
    }
    Ok(replayed)
}

/// Runs one request from its arrival to its end; returns how many blocks it found, or `None` if the cache has
/// no room for it.
fn found_by(cache: &mut KvCache, request: &Request, page_size: PageSize) -> Result<Option<u64>> {
    cache.tick(request.arrival);
    let blocks = request.blocks.iter().flat_map(|block| [block.0; PAGE as usize]);
    // The last token of a prompt is always computed: one more, so that every block can be found.
    let tokens = blocks.chain([0]).collect();
    let prompt = Prompt::new(tokens, Scope::default(), page_size)?;
    let len = prompt.len();
    let (seq, hit) = match cache.admit(prompt, Reuse::Longest) {
        Err(AdmitError::Alloc(AllocError::NeverFits { .. })) => return Ok(None),
        admitted => admitted?,
    };
    cache.schedule(seq, len - hit.tokens, Claim::New)?;
    cache.complete();
    cache.free(seq)?;
    if hit.tokens.0 % PAGE != 0 {
        bail!("the cache found {} of a prompt, which is no whole block", hit.tokens);
    }
    Ok(Some(u64::from(hit.tokens.0 / PAGE)))
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let policies = PolicyKind::ALL.map(PolicyKind::name);
        let headings = ["blocks", "infinite", "opt"].into_iter().chain(policies).chain(["refused"]);
        let mut table = Table::new("Share of blocks found", headings);
        for row in &self.rows {
            let shares = [row.infinite, row.opt].into_iter().chain(policies.map(|name| row.policies[name]));
            let cells = [row.capacity.to_string()]
                .into_iter()
                .chain(shares.map(|share| format!("{share:.3}")))
                .chain([row.requests_refused.to_string()]);
            table.row(cells);
        }
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let above = |row: &Row| row.policies.values().map(|share| share - row.opt).fold(f64::MIN, f64::max);
        let most = self.rows.iter().map(above).fold(f64::MIN, f64::max);
        vec![Goal::at_most(0.0, most, "no policy finds more than the optimum (the nearest one, less opt)")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(requests: &[&[u64]]) -> Trace {
        let mut trace = Trace::default();
        (0..).zip(requests).for_each(|(at, hashes)| trace.push(at, hashes));
        trace
    }

    #[test]
    fn lru_gives_up_the_block_used_longest_ago() {
        // Room for two blocks: 1 is used again before 3 comes, so 2 goes.
        let trace = trace(&[&[1], &[2], &[1], &[3], &[1], &[2]]);
        let lru = |capacity| replay(&trace, capacity, PolicyKind::Lru).unwrap().hits;
        assert_eq!([1, 2, 3].map(lru), [0, 2, 3]);
    }

    #[test]
    fn the_end_of_a_prompt_goes_before_its_start() {
        let trace = trace(&[&[1, 2, 3], &[9], &[1, 2, 3]]);
        for policy in [PolicyKind::Lru, PolicyKind::Priority] {
            assert_eq!(replay(&trace, 3, policy).unwrap(), Replayed { hits: 2, refused: 0 }, "{policy}");
        }
    }

    #[test]
    fn a_prompt_is_found_to_its_last_block() {
        let trace = trace(&[&[1, 2, 3], &[1, 2, 3]]);
        for policy in PolicyKind::ALL {
            assert_eq!(replay(&trace, 3, policy).unwrap().hits, 3, "{policy}");
        }
    }

    #[test]
    fn a_request_larger_than_the_cache_is_refused_and_leaves_it_alone() {
        let trace = trace(&[&[1, 2], &[1, 2, 3, 4], &[1, 2]]);
        for policy in PolicyKind::ALL {
            assert_eq!(replay(&trace, 3, policy).unwrap(), Replayed { hits: 2, refused: 1 }, "{policy}");
        }
    }
}
