//! `octavo bench capacity`: how many sequences run at once in the memory of eight full-length slots.

use super::null_runner::NullRunner;
use super::report::{Goal, Report, Table};
use anyhow::Result;
use octavo_engine::{Engine, EngineConfig, Events, Request};
use octavo_kv::Settings;
use octavo_types::{PageSize, Pages, Timestamp, Tokens};
use serde::Serialize;

/// How many sequences run at once in the memory of eight slots of 4096 tokens?
///
/// The whole engine over a model that computes nothing, no limit on the batch: more requests than can run, all of one
/// length, and the most that ran at once. A fifth of the free pages is kept for sequences that grow unless nobody can
/// come to need it, as here, where every request's end is known. JSON keys: cells (length, contiguous, paged, ratio, claimed, of_claim).
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

const SLOTS: u32 = 8;
const MAX_LEN: u32 = 4096;

#[derive(Debug, Serialize)]
struct Cell {
    length: u32,
    contiguous: u32,
    paged: u32,
    ratio: f64,
    /// What pages promise: tokens in all over tokens a sequence.
    claimed: f64,
    of_claim: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    cells: Vec<Cell>,
}

pub(super) fn run(_: &Args) -> Result<Report> {
    let mut cells = Vec::new();
    for length in [256, 512, 1024, 2048, 4096] {
        let contiguous = most_at_once(length, PageSize::new(MAX_LEN).expect("not zero"))?;
        let paged = most_at_once(length, PageSize::DEFAULT)?;
        let ratio = f64::from(paged) / f64::from(contiguous);
        let claimed = f64::from(MAX_LEN) / f64::from(length);
        cells.push(Cell { length, contiguous, paged, ratio, claimed, of_claim: ratio / claimed });
    }
    let figures = Figures { cells };
    let question = "how many sequences run at once in the memory of eight slots of 4096 tokens?";
    let conditions = "32 768 tokens of memory, batch unlimited".to_owned();
    let short = figures.cells.iter().filter(|cell| cell.length < MAX_LEN);
    let least = short.map(|cell| cell.of_claim).fold(f64::INFINITY, f64::min);
    let full = figures.cells.last().expect("there are lengths").of_claim;
    let goals = vec![
        Goal::at_least(0.95, least, "0.95 or more of 16x, 8x, 4x and 2x"),
        Goal::at_least(0.95 * 0.8, full, "at the full length, the same less the fifth kept free"),
    ];
    Report::new("capacity", question, conditions, &figures, vec![figures.table()], goals)
}

impl Figures {
    fn table(&self) -> Table {
        let headings = ["tokens a sequence", "contiguous", "pages of 16", "ratio", "claimed", "of the claim"];
        let mut table = Table::new("Sequences that ran at once", headings);
        for cell in &self.cells {
            table.row([
                cell.length.to_string(),
                cell.contiguous.to_string(),
                cell.paged.to_string(),
                format!("{:.2}x", cell.ratio),
                format!("{:.0}x", cell.claimed),
                format!("{:.2}", cell.of_claim),
            ]);
        }
        table
    }
}

/// The most sequences of `length` tokens that decode at the same time, in the memory of all slots.
fn most_at_once(length: u32, page_size: PageSize) -> Result<u32> {
    let tokens = SLOTS * MAX_LEN;
    let requests = 2 * tokens / length;
    let total = Pages(tokens / page_size.tokens().0);
    let paged = page_size == PageSize::DEFAULT;
    let settings = Settings { page_size, prefix_cache: paged, ..Settings::new(total) };
    let config = EngineConfig {
        chunk: (Tokens(tokens), Tokens(tokens)),
        ..EngineConfig::new(requests, Tokens(MAX_LEN))
    };
    let mut engine = Engine::new(config, settings, Box::new(NullRunner::new(1 << 16, 1)), None)?;
    // Nearly all of a sequence is prompt, so that it has its length from the start.
    let generated = 8;
    for n in 0..requests {
        let prompt = (0..length - generated).map(|token| (token * 7 + n * 131) % 65_000).collect();
        let accepted = engine.intake().accept(Request::new(prompt, generated))?;
        engine.submit(accepted);
    }
    let (mut most, mut at, mut events) = (0, 0, Events::new());
    while engine.has_work() {
        engine.step(Timestamp(at), &mut events);
        at += 1_000;
        most = most.max(engine.cache().sequences().count() as u32);
    }
    Ok(most)
}
