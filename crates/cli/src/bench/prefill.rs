//! `octavo bench prefill`: a prompt of 512 tokens in one step.

use super::gpu::{self, DeviceArgs};
use super::machine::{Machine, MachineArgs, ROUNDS, percent};
use super::measure::{SEED, in_turn, progress};
use super::random_model::{Geometry, load, matrix};
use super::report::{Goal, Report, Table};
use super::sequences::{Sequences, Step};
use anyhow::Result;
use octavo_backend::{Random, WeightFormat};
use octavo_cpu::{Buf, Cpu, Matrix, gemm};
use octavo_model::{Model, ModelConfig};
use octavo_types::{KvDtype, PageSize};
use serde::Serialize;

/// How near does reading a prompt come to the peak of multiply-adds?
///
/// One step of 512 tokens through a model of Qwen3-0.6B's geometry with random weights in bf16, from tokens to the
/// logits of the last one, keys and values in f16; and the products of its layers alone. They run in turn with
/// multiply-adds in f32 and with dot products of bf16 (where the machine has none: the former), both on registers.
/// Takes 3 GiB of memory. On a GPU: 8192 tokens, Llama-3.2-3B's geometry, against the peak of the matrix library.
/// JSON keys: fraction_of_fma_peak (the whole step), fraction_of_fma_peak_products,
/// fraction_of_bf16_peak, fraction_of_bf16_peak_products, tokens_per_s, ms, gflops, gflops_products,
/// fma_peak_gflops, bf16_peak_gflops.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

const PROMPT: usize = 512;
const PROMPT_QUICK: usize = 48;
/// Layers whose products are run alone; together they have more weights than the last cache holds.
const LAYERS: usize = 4;

/// Whose turn it is.
#[derive(Clone, Copy)]
enum Turn {
    Fma,
    Bf16,
    Products,
    Whole,
}

#[derive(Debug, Serialize)]
struct Figures {
    fraction_of_fma_peak: f64,
    fraction_of_fma_peak_products: f64,
    fraction_of_bf16_peak: f64,
    fraction_of_bf16_peak_products: f64,
    tokens: usize,
    tokens_per_s: f64,
    ms: f64,
    gflops: f64,
    gflops_products: f64,
    fma_peak_gflops: f64,
    bf16_peak_gflops: f64,
}

pub(super) fn run(args: &Args) -> Result<Report> {
    if let Some(bench) = args.device.open(&args.machine)? {
        return gpu::prefill::run(&bench);
    }
    let machine = Machine::new(&args.machine, ROUNDS);
    let geometry = Geometry::new(args.machine.quick());
    let tokens = if args.machine.quick() { PROMPT_QUICK } else { PROMPT };
    let mut whole = Whole::new(&machine, &geometry, tokens)?;
    let mut products = Products::new(&machine, &geometry, tokens);
    let bar = progress(u64::from(machine.rounds) + 1);
    bar.set_message("reading a prompt");
    let turns = [Turn::Fma, Turn::Bf16, Turn::Products, Turn::Whole];
    let [fma, bf16, products_seconds, seconds] = in_turn(machine.rounds, turns, |turn| match turn {
        Turn::Fma => Ok(machine.fma_peak()),
        Turn::Bf16 => Ok(machine.bf16_peak()),
        Turn::Products => Ok(machine.seconds(|| products.run(&machine))),
        Turn::Whole => {
            bar.inc(1);
            whole.run(&machine)
        }
    })?;
    bar.finish_and_clear();
    let work = operations(&geometry, whole.model.config(), tokens);
    let figures =
        Figures::new(tokens, [fma, bf16], [products.operations(), products_seconds], [work, seconds]);
    let conditions = format!("{} geometry, random weights, {}", geometry.name, machine.conditions());
    let question = "how near does reading a prompt come to the peak of multiply-adds?";
    Report::new("prefill", question, conditions, &figures, figures.tables(), figures.goals())
}

/// The model and a sequence with room for the prompt.
struct Whole {
    model: Model<Cpu>,
    cache: Sequences,
    step: Step,
    logits: Vec<f32>,
}

impl Whole {
    fn new(machine: &Machine, geometry: &Geometry, tokens: usize) -> Result<Self> {
        let config = geometry.config()?;
        let spec = config.kv_spec(KvDtype::F16, PageSize::DEFAULT, None)?;
        let weights = geometry.weights(machine.pool())?;
        let model = load(machine, &config, &spec, &weights, WeightFormat::AsStored)?;
        let cache = Sequences::new(&spec, &[tokens])?;
        let step = Step { sequences: 0..1, start: 0, rows_each: tokens };
        Ok(Self { model, cache, step, logits: Vec::new() })
    }

    /// Seconds of the step.
    fn run(&mut self, machine: &Machine) -> Result<f64> {
        self.cache.run(machine, &mut self.model, &self.step, &mut self.logits)
    }
}

/// A product with its operands: weights, activations, result.
type Product = (Matrix, Buf, Buf);

/// The products of some layers.
struct Products(Vec<Product>);

impl Products {
    fn new(machine: &Machine, geometry: &Geometry, rows: usize) -> Self {
        let mut random = Random::new(SEED);
        let mut product = |shape: [usize; 2]| {
            let mut x = Buf::new(rows, shape[1]);
            x.data_mut().copy_from_slice(&random.values(rows * shape[1], 1.0));
            (matrix(machine.pool(), shape, WeightFormat::AsStored), x, Buf::new(rows, shape[0]))
        };
        let [layer @ .., _head] = geometry.products();
        Self((0..LAYERS).flat_map(|_| layer).map(|(_, shape)| product(shape)).collect())
    }

    fn run(&mut self, machine: &Machine) {
        for (weights, x, out) in &mut self.0 {
            gemm(machine.cpu.level(), machine.pool(), weights, x, out);
        }
    }

    /// Floating-point operations of a run.
    fn operations(&self) -> f64 {
        self.0.iter().map(|(weights, x, _)| 2.0 * (weights.rows() * weights.cols() * x.rows()) as f64).sum()
    }
}

/// Floating-point operations that the step cannot do without: of the last layer, only what the last token's logits
/// need; of attention, only what each token may see.
fn operations(geometry: &Geometry, config: &ModelConfig, tokens: usize) -> f64 {
    let [qkv, o, gate_up, down, head] =
        geometry.products().map(|(_, [out, inputs])| (2 * out * inputs) as f64);
    let (layers, n) = (config.layers().len() as f64, tokens as f64);
    let rest = o + gate_up + down;
    let seen = n * (n + 1.0) / 2.0;
    let attention = 4.0 * (config.heads().q * config.heads().dim) as f64 * seen;
    layers * (n * qkv + attention) + (layers - 1.0) * n * rest + rest + head
}

impl Figures {
    /// Of the products and of the whole: operations and seconds.
    fn new(
        tokens: usize,
        [fma, bf16]: [f64; 2],
        products: [f64; 2],
        [operations, seconds]: [f64; 2],
    ) -> Self {
        let (gflops, gflops_products) = (operations / seconds / 1e9, products[0] / products[1] / 1e9);
        Self {
            fraction_of_fma_peak: gflops / fma,
            fraction_of_fma_peak_products: gflops_products / fma,
            fraction_of_bf16_peak: gflops / bf16,
            fraction_of_bf16_peak_products: gflops_products / bf16,
            tokens,
            tokens_per_s: tokens as f64 / seconds,
            ms: seconds * 1e3,
            gflops,
            gflops_products,
            fma_peak_gflops: fma,
            bf16_peak_gflops: bf16,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let title = format!(
            "A prompt of {} tokens; at most {:.0} GFLOP/s in f32 and {:.0} in bf16",
            self.tokens, self.fma_peak_gflops, self.bf16_peak_gflops
        );
        let headings = ["work", "GFLOP/s", "of f32 peak", "of bf16 peak", "ms", "tokens/s"];
        let mut table = Table::new(title, headings);
        table.row([
            "products alone".to_owned(),
            format!("{:.0}", self.gflops_products),
            percent(self.fraction_of_fma_peak_products),
            percent(self.fraction_of_bf16_peak_products),
            String::new(),
            String::new(),
        ]);
        table.row([
            "the whole step".to_owned(),
            format!("{:.0}", self.gflops),
            percent(self.fraction_of_fma_peak),
            percent(self.fraction_of_bf16_peak),
            format!("{:.0}", self.ms),
            format!("{:.1}", self.tokens_per_s),
        ]);
        vec![table]
    }

    fn goals(&self) -> Vec<Goal> {
        let (products, whole) = (self.fraction_of_fma_peak_products, self.fraction_of_fma_peak);
        vec![
            Goal::at_least(0.7, products, "products at 0.70 or more of the multiply-add peak"),
            Goal::at_least(0.6, whole, "the whole step at 0.60 or more of the multiply-add peak"),
        ]
    }
}
