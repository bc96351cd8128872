//! `octavo bench step`: whole decode steps on a GPU.

use super::profile::{self, Part};
use super::world::{self, SPARE, Sequences};
use super::{Geometry, open};
use crate::bench::measure::{Samples, progress, time};
use crate::report::{Goal, Report, Table};
use anyhow::{Result, bail};
use octavo::Device;
use octavo_backend::Backend;
use octavo_cuda::bench::Bench;
use serde::Serialize;

/// How near does a whole decode step come to what reading weights, keys and values takes?
///
/// One token each of 1, 24 and 256 sequences, 512 and 4096 tokens long, from tokens to the chosen ones, for the
/// geometries of four models with random weights in bf16. The floor is the bytes of weights, keys and values at the read
/// bandwidth measured in the same run, plus what each kernel of a replayed graph costs. The device's time is the median
/// of replays; that of the host is from tokens in to tokens out, of steps in which every sequence goes on by a token. What
/// lies between is what the host does not do while the device computes. JSON keys: cells, read_bandwidth_gb_s,
/// kernel_us, worst_over_floor_1, worst_over_floor (null where nothing of the kind was measured).
#[derive(Debug, clap::Args)]
pub(in crate::bench) struct Args {
    /// Which GPU: cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Device,
    /// Only the geometries whose names contain this
    #[arg(long, value_name = "NAME")]
    geometry: Option<String>,
    /// A sequence's results may not depend on others
    #[arg(long)]
    deterministic: bool,
    /// Launch every kernel by itself instead of replaying steps
    #[arg(long)]
    eager: bool,
    /// Show where the time of each step goes as well
    #[arg(long, conflicts_with = "eager")]
    profile: bool,
    /// Only this many sequences: 1, 24 or 256
    #[arg(long, value_name = "SEQUENCES")]
    batch: Option<usize>,
    /// Only this context: 512 or 4096
    #[arg(long, value_name = "TOKENS")]
    context: Option<u32>,
    /// Precision of keys and values
    #[arg(long, value_enum, default_value = "bf16")]
    kv_dtype: crate::model_args::Dtype,
}

const BATCHES: [usize; 3] = [1, 24, 256];
const CONTEXTS: [u32; 2] = [512, 4096];
/// What the weights and everything else but keys and values may need beside them.
const ASIDE: u64 = 2 << 30;

impl Args {
    fn wants(&self, batch: usize, context: u32) -> bool {
        self.batch.is_none_or(|only| only == batch) && self.context.is_none_or(|only| only == context)
    }

    fn geometries(&self) -> Result<Vec<&'static Geometry>> {
        super::named(self.geometry.as_deref().unwrap_or_default())
    }

    /// Before a device is opened.
    fn check(&self) -> Result<()> {
        self.geometries()?;
        if !BATCHES.iter().any(|&batch| CONTEXTS.iter().any(|&context| self.wants(batch, context))) {
            bail!("steps are measured for --batch 1, 24 and 256 and for --context 512 and 4096");
        }
        Ok(())
    }
}

#[derive(Debug, Serialize)]
struct Cell {
    geometry: &'static str,
    batch: usize,
    context: u32,
    /// By the device's clock; none where steps are not replayed.
    device_us: Option<f64>,
    /// From tokens in to tokens out.
    host_us: f64,
    weight_bytes: u64,
    kv_bytes: u64,
    kernels: usize,
    kernels_a_layer: f64,
    floor_us: f64,
    over_floor: f64,
    tokens_per_s: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Figures {
    device: String,
    read_bandwidth_gb_s: f64,
    kernel_us: f64,
    /// Of what was measured.
    worst_over_floor_1: Option<f64>,
    worst_over_floor: Option<f64>,
    cells: Vec<Cell>,
}

pub(in crate::bench) fn run(args: &Args) -> Result<Report> {
    args.check()?;
    let Some(bench) = open(args.device, args.deterministic, !args.eager)? else {
        bail!("steps on the CPU are measured by `octavo bench decode`");
    };
    let read = bench.read_ceiling(4 << 30)?;
    let kernel_us = bench.kernel_cost()?;
    let geometries = args.geometries()?;
    let bar = progress((geometries.len() * BATCHES.len() * CONTEXTS.len()) as u64);
    let mut cells = Vec::new();
    for geometry in geometries {
        bar.set_message(geometry.name);
        measure(&bench, geometry, args, [read, kernel_us], &mut cells, &|| bar.inc(1))?;
    }
    bar.finish_and_clear();
    if cells.is_empty() {
        bail!("none of these steps fits the memory that is free on {}", bench.cuda().name());
    }
    let worst = |one: bool| {
        let over = cells.iter().filter(|cell| (cell.batch == 1) == one).map(|cell| cell.over_floor);
        over.reduce(f64::max)
    };
    let figures = Figures {
        device: bench.cuda().name(),
        read_bandwidth_gb_s: read / 1e9,
        kernel_us,
        worst_over_floor_1: worst(true),
        worst_over_floor: worst(false),
        cells,
    };
    let conditions = format!(
        "{}, {} keys and values, {}{}",
        figures.device,
        args.kv_dtype.name(),
        if args.eager { "every kernel launched by itself" } else { "replayed steps" },
        if args.deterministic { ", deterministic" } else { "" },
    );
    let question = "how near does a whole decode step come to what reading weights, keys and values takes?";
    Report::new("step", question, conditions, &figures, figures.tables(), figures.goals())
}

/// All batches and contexts of one geometry that fit.
fn measure(
    bench: &Bench,
    geometry: &Geometry,
    args: &Args,
    [read, kernel_us]: [f64; 2],
    cells: &mut Vec<Cell>,
    tick: &dyn Fn(),
) -> Result<()> {
    let config = geometry.config()?;
    let spec = world::spec(&config, args.kv_dtype.into())?;
    let mut model = world::load(bench, &config, &spec)?;
    let weight_bytes = 2 * config.parameters();
    for (batch, context) in BATCHES.into_iter().flat_map(|batch| CONTEXTS.map(|context| (batch, context))) {
        tick();
        if !args.wants(batch, context) {
            continue;
        }
        if Sequences::need(&spec, batch, context) + ASIDE > bench.cuda().free_memory()?.0 {
            continue;
        }
        let mut sequences = Sequences::new(bench, &spec, batch, context)?;
        let mut host = Samples::default();
        let lengths = context - SPARE..context + SPARE;
        for length in lengths.clone() {
            let (took, done) = time(|| sequences.decode_to(bench, &mut model, length));
            done?;
            // The first are launched and recorded, and replayed without a plan made ahead.
            if length > lengths.start + 1 {
                host.push(took.as_secs_f64() * 1e6);
            }
        }
        sequences.decode(bench, &mut model)?;
        let kernels = bench.cuda().replays().1;
        let device_us = (kernels > 0).then(|| bench.last_step()).transpose()?;
        let (host_us, kv_bytes) = (host.median(), sequences.bytes);
        let floor_us = (weight_bytes + kv_bytes) as f64 / read * 1e6 + kernels as f64 * kernel_us;
        let us = device_us.unwrap_or(host_us);
        let parts = match args.profile {
            true => profile::run(bench, &mut model, &mut sequences, batch)?,
            false => Vec::new(),
        };
        cells.push(Cell {
            geometry: geometry.name,
            batch,
            context,
            device_us,
            host_us,
            weight_bytes,
            kv_bytes,
            kernels,
            kernels_a_layer: kernels as f64 / config.layers().len() as f64,
            floor_us,
            over_floor: us / floor_us,
            tokens_per_s: batch as f64 / host_us * 1e6,
            parts,
        });
    }
    Ok(())
}

impl Figures {
    fn tables(&self) -> Vec<Table> {
        let title = format!(
            "Steps; reading {:.0} GB/s, a kernel of a graph {:.2} us",
            self.read_bandwidth_gb_s, self.kernel_us
        );
        let headings = [
            "geometry",
            "batch x context",
            "device us",
            "host us",
            "floor us",
            "over floor",
            "kernels a layer",
            "tokens/s",
        ];
        let mut table = Table::new(title, headings);
        for cell in &self.cells {
            table.row([
                cell.geometry.to_owned(),
                format!("{} x {}", cell.batch, cell.context),
                cell.device_us.map_or("-".into(), |us| format!("{us:.0}")),
                format!("{:.0}", cell.host_us),
                format!("{:.0}", cell.floor_us),
                format!("{:.2}x", cell.over_floor),
                format!("{:.1}", cell.kernels_a_layer),
                format!("{:.0}", cell.tokens_per_s),
            ]);
        }
        let parts = self.cells.iter().filter(|cell| !cell.parts.is_empty()).map(|cell| {
            let title = format!("{}, {} x {}, part by part", cell.geometry, cell.batch, cell.context);
            profile::table(title, &cell.parts, self.read_bandwidth_gb_s * 1e9)
        });
        std::iter::once(table).chain(parts).collect()
    }

    fn goals(&self) -> Vec<Goal> {
        let goals = [
            (1.5, self.worst_over_floor_1, "one sequence at 1.5x the floor or less"),
            (1.3, self.worst_over_floor, "24 and 256 sequences at 1.3x the floor or less"),
        ];
        let reached =
            goals.into_iter().filter_map(|(most, worst, what)| Some(Goal::at_most(most, worst?, what)));
        reached.collect()
    }
}
