//! `octavo bench pool`: the plain allocator against the usual design.

use super::measure::{interleave, progress};
use super::pool_baseline::LockedAllocator;
use super::pool_work::{BATCH, Churn, scrambled, take_and_return};
use super::report::{Goal, Report, Table};
use anyhow::Result;
use indicatif::ProgressBar;
use octavo_kv::BlockAllocator;
use octavo_types::Pages;
use serde::Serialize;

/// What does it cost to take pages and to give them back?
///
/// Pages are allocated and freed in batches of 1, 8 and 64, by one thread and by two at once, from a pool
/// whose free pages lie in random order. The baseline is a mutex around a queue of free ids and a vector of
/// boxed blocks, run in turn with it. JSON keys: ns_per_page and ns_per_page_baseline (8 pages, 1 thread),
/// speedup (the same), speedup_2t (8 pages, 2 threads), flatness (1 000 000 pages over 1 000), cells, sizes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Pages in the pool that the threads share
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pages: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// A few short rounds and small pools, to see that everything works; the figures mean little
    #[arg(long, conflicts_with_all = ["pages", "rounds"])]
    quick: bool,
}

const BATCHES: [u32; 3] = [1, 8, 64];
const THREADS: [u32; 2] = [1, 2];

/// How much is measured.
struct Plan {
    shared: Pages,
    sizes: [Pages; 2],
    rounds: u32,
    /// Pages that a thread takes and gives back in a round; a multiple of every batch.
    pages_a_round: u32,
}

impl Plan {
    fn new(args: &Args) -> Self {
        if args.quick {
            let sizes = [Pages(1_000), Pages(10_000)];
            return Self { shared: Pages(1_000), sizes, rounds: 3, pages_a_round: 6_400 };
        }
        let sizes = [Pages(1_000), Pages(1_000_000)];
        Self { shared: Pages(args.pages), sizes, rounds: args.rounds, pages_a_round: 64_000 }
    }
}

/// Nanoseconds a page, here and in the baseline.
#[derive(Debug, Serialize)]
struct Pair {
    ns_per_page: f64,
    ns_per_page_baseline: f64,
    speedup: f64,
}

impl Pair {
    fn new(ns_per_page: f64, ns_per_page_baseline: f64) -> Self {
        Self { ns_per_page, ns_per_page_baseline, speedup: ns_per_page_baseline / ns_per_page }
    }

    fn cells(&self) -> [String; 3] {
        let Self { ns_per_page, ns_per_page_baseline, speedup } = self;
        [format!("{ns_per_page:.1}"), format!("{ns_per_page_baseline:.1}"), format!("{speedup:.2}x")]
    }
}

#[derive(Debug, Serialize)]
struct Cell {
    batch: u32,
    threads: u32,
    #[serde(flatten)]
    pair: Pair,
}

#[derive(Debug, Serialize)]
struct Size {
    pages: u32,
    /// A batch is taken and given back.
    plain: Pair,
    /// Half the pool is taken, and random batches are replaced.
    churn: Pair,
}

#[derive(Debug, Serialize)]
struct Figures {
    ns_per_page: f64,
    ns_per_page_baseline: f64,
    speedup: f64,
    speedup_2t: f64,
    /// The least of all cells, and sizes.
    speedup_least: f64,
    flatness: f64,
    flatness_churn: f64,
    flatness_churn_baseline: f64,
    pool_pages: u32,
    cells: Vec<Cell>,
    sizes: [Size; 2],
}

pub(super) fn run(args: &Args) -> Result<Report> {
    let plan = Plan::new(args);
    let bar = progress((BATCHES.len() * THREADS.len() + 2) as u64);
    let cells = measure_cells(&plan, &bar);
    let sizes = measure_sizes(&plan, &bar);
    bar.finish_and_clear();
    let figures = Figures::new(&plan, cells, sizes);
    let conditions = format!(
        "{} pages shared, free in random order; medians of {} rounds of {} pages a thread",
        plan.shared.0, plan.rounds, plan.pages_a_round
    );
    let question = "what does it cost to take pages and to give them back?";
    Report::new("pool", question, conditions, &figures, figures.tables(), figures.goals())
}

fn measure_cells(plan: &Plan, bar: &ProgressBar) -> Vec<Cell> {
    let ours: BlockAllocator = scrambled(plan.shared);
    let baseline: LockedAllocator = scrambled(plan.shared);
    let cells = THREADS.into_iter().flat_map(|threads| BATCHES.map(|batch| (threads, batch)));
    cells
        .map(|(threads, batch)| {
            bar.set_message(format!("batches of {batch}, threads: {threads}"));
            let [a, b] = interleave(
                plan.rounds,
                [&mut || take_and_return(&ours, batch, threads, plan.pages_a_round), &mut || {
                    take_and_return(&baseline, batch, threads, plan.pages_a_round)
                }],
            );
            bar.inc(1);
            Cell { batch, threads, pair: Pair::new(a, b) }
        })
        .collect()
}

/// Does a page cost the same in a large pool? Both sizes run in turn.
fn measure_sizes(plan: &Plan, bar: &ProgressBar) -> [Size; 2] {
    let [small, large] = plan.sizes;
    let n = plan.pages_a_round;
    bar.set_message("pool sizes");
    let ours = plan.sizes.map(scrambled::<BlockAllocator>);
    let baseline = plan.sizes.map(scrambled::<LockedAllocator>);
    let plain = interleave(
        plan.rounds,
        [
            &mut || take_and_return(&ours[0], BATCH, 1, n),
            &mut || take_and_return(&ours[1], BATCH, 1, n),
            &mut || take_and_return(&baseline[0], BATCH, 1, n),
            &mut || take_and_return(&baseline[1], BATCH, 1, n),
        ],
    );
    bar.inc(1);
    let mut ours = plan.sizes.map(Churn::<BlockAllocator>::new);
    let mut baseline = plan.sizes.map(Churn::<LockedAllocator>::new);
    let ([a, b], [c, d]) = (ours.each_mut(), baseline.each_mut());
    let churn = interleave(
        plan.rounds,
        [&mut || a.replace(n), &mut || b.replace(n), &mut || c.replace(n), &mut || d.replace(n)],
    );
    bar.inc(1);
    let size = |at: usize, pages: Pages| Size {
        pages: pages.0,
        plain: Pair::new(plain[at], plain[at + 2]),
        churn: Pair::new(churn[at], churn[at + 2]),
    };
    [size(0, small), size(1, large)]
}

impl Figures {
    fn new(plan: &Plan, cells: Vec<Cell>, sizes: [Size; 2]) -> Self {
        let at = |threads| {
            let is_it = |cell: &&Cell| cell.batch == BATCH && cell.threads == threads;
            &cells.iter().find(is_it).expect("every cell is measured").pair
        };
        let [small, large] = &sizes;
        Self {
            ns_per_page: at(1).ns_per_page,
            ns_per_page_baseline: at(1).ns_per_page_baseline,
            speedup: at(1).speedup,
            speedup_2t: at(2).speedup,
            speedup_least: cells
                .iter()
                .map(|cell| cell.pair.speedup)
                .chain(sizes.iter().flat_map(|size| [size.plain.speedup, size.churn.speedup]))
                .fold(f64::INFINITY, f64::min),
            flatness: large.plain.ns_per_page / small.plain.ns_per_page,
            flatness_churn: large.churn.ns_per_page / small.churn.ns_per_page,
            flatness_churn_baseline: large.churn.ns_per_page_baseline / small.churn.ns_per_page_baseline,
            pool_pages: plan.shared.0,
            cells,
            sizes,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let mut cells = Table::new(
            "Allocate and free, ns a page and thread",
            ["batch", "threads", "octavo", "baseline", "speedup"],
        );
        for Cell { batch, threads, pair } in &self.cells {
            cells.row([batch.to_string(), threads.to_string()].into_iter().chain(pair.cells()));
        }
        let mut sizes = Table::new(
            format!("By pool size, batches of {BATCH}, 1 thread, ns a page"),
            ["pages", "work", "octavo", "baseline", "speedup"],
        );
        for Size { pages, plain, churn } in &self.sizes {
            for (work, pair) in [("take, return", plain), ("replace in a half-full pool", churn)] {
                sizes.row([pages.to_string(), work.to_owned()].into_iter().chain(pair.cells()));
            }
        }
        vec![cells, sizes]
    }

    fn goals(&self) -> Vec<Goal> {
        let [small, large] = [&self.sizes[0], &self.sizes[1]].map(|size| size.pages);
        vec![
            Goal::at_most(45.0, self.ns_per_page, "under 45 ns a page (8 pages, 1 thread)"),
            Goal::at_least(0.9, self.speedup_least, "never below 0.9x of the baseline, in any cell"),
            Goal::at_least(1.3, self.speedup_2t, "at least 1.3x with two threads (8 pages)"),
            Goal::at_most(1.3, self.flatness, format!("flat within 1.3x from {small} pages to {large}")),
        ]
    }
}
