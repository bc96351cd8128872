//! What the benches of the CPU share: their options, the threads, and the ceilings measured on these threads.

use crate::model_args::parse_threads;
use anyhow::{Result, bail};
use octavo_cpu::ceiling::{Memory, bf16_peak, fma_peak};
use octavo_cpu::{Cpu, Level, Pool};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

// Not a documentation comment: it would take the place of the bench's own in the help.
#[derive(Debug, clap::Args)]
pub(super) struct CpuArgs {
    /// Threads to compute with [default: one a core]
    #[arg(long, value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// Little work on small sizes, to see that everything works; the figures mean little
    #[arg(long)]
    pub(super) quick: bool,
}

// Not a documentation comment, as above.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    #[command(flatten)]
    cpu: CpuArgs,
    /// Rounds; the median counts [default: 9; of attention 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000), conflicts_with = "quick")]
    rounds: Option<u32>,
}

impl CpuArgs {
    /// Threads are the CPU's.
    pub(super) fn refuse_on_gpu(&self) -> Result<()> {
        refuse_on_gpu("--threads", self.threads.is_some())
    }
}

impl MachineArgs {
    pub(super) fn quick(&self) -> bool {
        self.cpu.quick
    }

    /// None of these is read where the bench of a GPU is another one.
    pub(super) fn refuse_on_gpu(&self) -> Result<()> {
        self.cpu.refuse_on_gpu()?;
        refuse_on_gpu("--rounds", self.rounds.is_some())?;
        refuse_on_gpu("--quick", self.quick())
    }
}

fn refuse_on_gpu(option: &str, given: bool) -> Result<()> {
    if given {
        bail!("{option} is for --device cpu: the bench of a GPU does not read it");
    }
    Ok(())
}

/// Rounds, if nobody says how many.
pub(super) const ROUNDS: u32 = 9;

/// Many times what the last cache holds.
const READ: usize = 512 << 20;
const READ_QUICK: usize = 4 << 20;

/// The CPU, and how long it is measured.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) cpu: Cpu,
    pub(super) rounds: u32,
    memory: Memory,
    /// A sample takes at least this long.
    patience: Duration,
}

impl Machine {
    /// Measured in as many rounds as were asked for, or else in `rounds`.
    pub(super) fn new(args: &MachineArgs, rounds: u32) -> Self {
        Self::with_rounds(&args.cpu, args.rounds.unwrap_or(rounds))
    }

    /// For benches that measure nothing in rounds.
    pub(super) fn of(args: &CpuArgs) -> Self {
        Self::with_rounds(args, 1)
    }

    fn with_rounds(args: &CpuArgs, rounds: u32) -> Self {
        let cpu = Cpu::new(args.threads.unwrap_or_else(Pool::usual), Level::detect());
        let (bytes, millis, rounds) = if args.quick { (READ_QUICK, 1, 2) } else { (READ, 40, rounds) };
        let memory = Memory::new(cpu.pool(), bytes);
        Self { cpu, rounds, memory, patience: Duration::from_millis(millis) }
    }

    pub(super) fn pool(&self) -> &Pool {
        self.cpu.pool()
    }

    /// GB/s of reading memory and doing nothing else: one sample.
    pub(super) fn read_bandwidth(&self) -> f64 {
        self.memory.read_bandwidth(self.pool(), self.patience)
    }

    /// GFLOP/s of multiply-adds on registers: one sample.
    pub(super) fn fma_peak(&self) -> f64 {
        fma_peak(self.pool(), self.patience)
    }

    /// GFLOP/s of dot products of bf16 on registers, or of multiply-adds where there are none: one sample.
    pub(super) fn bf16_peak(&self) -> f64 {
        bf16_peak(self.pool(), self.patience)
    }

    /// Seconds a call: one sample, as long as those of the ceilings.
    pub(super) fn seconds(&self, mut work: impl FnMut()) -> f64 {
        let begin = Instant::now();
        let mut calls = 0.0;
        while calls == 0.0 || begin.elapsed() < self.patience {
            work();
            calls += 1.0;
        }
        begin.elapsed().as_secs_f64() / calls
    }

    /// What the figures hold for.
    pub(super) fn conditions(&self) -> String {
        let Self { cpu, rounds, .. } = self;
        format!("{:?}, threads: {}, medians of {rounds} rounds", cpu.level(), cpu.pool().threads())
    }
}

/// A share as people read it.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
