//! What the benches of the CPU share: their options, the threads, and the ceilings measured on these threads.

use crate::model_args::parse_threads;
use octavo_cpu::ceiling::{Memory, bf16_peak, fma_peak};
use octavo_cpu::{Cpu, Level, Pool};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

// Not a documentation comment: it would take the place of the bench's own in the help.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// Threads to compute with [default: one a core]
    #[arg(long, value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// Rounds; the median counts [default: 9; of attention 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,
    /// A few short rounds on small sizes, to see that everything works; the figures mean little
    #[arg(long, conflicts_with = "rounds")]
    pub(super) quick: bool,
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
    pub(super) fn new(args: &MachineArgs, rounds: u32) -> Self {
        let cpu = Cpu::new(args.threads.unwrap_or_else(Pool::usual), Level::detect());
        let (bytes, millis, rounds) =
            if args.quick { (READ_QUICK, 1, 2) } else { (READ, 40, args.rounds.unwrap_or(rounds)) };
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
