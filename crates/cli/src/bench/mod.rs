//! `octavo bench`: the figures this project claims, each measured beside what it is compared with.
//!
//! A bench answers one written question. It returns a [`Report`]: tables for people, one object for programs,
//! and its goals with whether they are met.

mod attention;
mod belady;
mod capacity;
mod decode;
mod gemm;
mod gpu;
mod machine;
mod measure;
mod null_runner;
mod offline;
mod pool;
mod pool_baseline;
mod pool_work;
mod prefill;
mod prefix;
mod prefix_work;
mod random_model;
mod scheduler;
mod sequences;
mod serving;
mod serving_load;
mod trace;
mod trace_file;

use crate::report::{self, Report, Sink};
use anyhow::Result;
use clap::Subcommand;
use std::path::PathBuf;

/// Measure parts of the engine, each beside what it is compared with
///
/// Prints a table with the goals and whether they are met; with --json the same as one JSON object. Use a
/// release build on a quiet machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    bench: Bench,
    /// Write the figures as one JSON object to FILE as well; `-` prints it instead of the tables
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Pool(pool::Args),
    Prefix(prefix::Args),
    Trace(trace::Args),
    Gemm(gemm::Args),
    Attention(attention::Args),
    Decode(decode::Args),
    Prefill(prefill::Args),
    Scheduler(scheduler::Args),
    Capacity(capacity::Args),
    Serving(serving::Args),
    Offline(offline::Args),
    Step(gpu::step::Args),
    Long(gpu::long::Args),
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let sink = Sink::open(command.json.as_deref())?;
    let report: Report = match &command.bench {
        Bench::Pool(args) => pool::run(args)?,
        Bench::Prefix(args) => prefix::run(args)?,
        Bench::Trace(args) => trace::run(args)?,
        Bench::Gemm(args) => gemm::run(args)?,
        Bench::Attention(args) => attention::run(args)?,
        Bench::Decode(args) => decode::run(args)?,
        Bench::Prefill(args) => prefill::run(args)?,
        Bench::Scheduler(args) => scheduler::run(args)?,
        Bench::Capacity(args) => capacity::run(args)?,
        Bench::Serving(args) => serving::run(args)?,
        Bench::Offline(args) => offline::run(args)?,
        Bench::Long(args) => gpu::long::run(args)?,
        Bench::Step(args) => gpu::step::run(args)?,
    };
    sink.write(&report)
}
