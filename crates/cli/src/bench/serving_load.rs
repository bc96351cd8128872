//! Loads for `octavo bench serving`: engines over a model of random weights, and requests driven through them.

use super::gpu;
use super::machine::{CpuArgs, Machine};
use super::measure::SEED;
use super::random_model::{Geometry, load};
use anyhow::{Result, bail};
use octavo::Device;
use octavo_backend::WeightFormat;
use octavo_cpu::{Cpu, Level};
use octavo_engine::{
    Engine, EngineConfig, Event, Events, ModelRunner, Request, RequestId, Runner, StepReport,
};
use octavo_kv::Settings;
use octavo_model::{ModelConfig, Weights};
use octavo_types::{Bytes, KvDtype, KvSpec, PageSize, Pages, Timestamp, Tokens};
use std::collections::HashMap;
use std::time::Instant;

/// A model's geometry on a device, ready to be loaded as often as needed.
pub(super) struct Rig {
    geometry: &'static str,
    config: ModelConfig,
    place: Place,
}

enum Place {
    /// With the weights in memory.
    Cpu {
        machine: Box<Machine>,
        weights: Weights,
    },
    Cuda {
        number: usize,
        deterministic: bool,
        name: String,
    },
}

// Not a documentation comment: it would take the place of the bench's own in the help.
#[derive(Debug, clap::Args)]
pub(super) struct RigArgs {
    #[command(flatten)]
    cpu: CpuArgs,
    /// What computes: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// On a GPU: a sequence's results may not depend on others
    #[arg(long)]
    deterministic: bool,
    /// On a GPU: the model whose name contains this, of those that `bench step` knows; the goals are for the usual one
    #[arg(long, value_name = "NAME")]
    geometry: Option<String>,
}

impl RigArgs {
    /// Sizes that only show that everything works.
    pub(super) fn quick(&self) -> bool {
        self.cpu.quick
    }
    pub(super) fn on_gpu(&self) -> bool {
        self.device != Device::Cpu
    }
    /// Whether goals were set for this.
    pub(super) fn is_usual(&self) -> bool {
        self.geometry.is_none()
    }
    fn geometry(&self) -> Result<&'static gpu::Geometry> {
        self.geometry.as_ref().map_or(Ok(&gpu::QWEN_06B), |part| gpu::only(part))
    }
}

/// How one engine differs from another.
#[derive(Debug, Clone)]
pub(super) struct Variant {
    pub(super) contiguous: bool,
    pub(super) prefix_cache: bool,
    /// Memory for keys and values, in tokens.
    pub(super) tokens: u32,
    pub(super) engine: EngineConfig,
}

impl Rig {
    pub(super) fn new(args: &RigArgs) -> Result<Self> {
        if args.on_gpu() {
            args.cpu.refuse_on_gpu()?;
        } else if args.geometry.is_some() {
            bail!("--geometry is for --device cuda: on the CPU it is Qwen3-0.6B's");
        }
        let geometry = args.geometry()?;
        if let Some(bench) = gpu::open(args.device, args.deterministic, true)? {
            let (Device::Cuda(number), deterministic) = (args.device, args.deterministic) else {
                bail!("--device cpu, cuda or cuda:N");
            };
            let name = octavo_backend::Backend::name(bench.cuda());
            let place = Place::Cuda { number, deterministic, name };
            return Ok(Self { geometry: geometry.name, config: geometry.config()?, place });
        }
        let (machine, geometry) = (Machine::of(&args.cpu), Geometry::new(args.quick()));
        let weights = geometry.weights(machine.pool())?;
        let place = Place::Cpu { machine: Box::new(machine), weights };
        Ok(Self { geometry: geometry.name, config: geometry.config()?, place })
    }

    pub(super) fn engine(&self, variant: &Variant) -> Result<Engine> {
        let Variant { contiguous, prefix_cache, tokens, ref engine } = *variant;
        let slot = PageSize::new(engine.max_len.0).expect("sequences have tokens");
        let page_size = if contiguous { slot } else { PageSize::DEFAULT };
        let spec = self.config.kv_spec(KvDtype::F16, page_size, None)?;
        // Each layer group has pages of its own for the same tokens.
        let total = Pages(tokens / page_size.tokens().0 * spec.groups().len() as u32);
        let budget = Bytes(u64::from(total.0) * spec.page_bytes().0);
        let settings = Settings { total, prefix_cache, ..Settings::for_model(&spec, budget) };
        let runner = self.runner(&spec, &settings, engine)?;
        Ok(Engine::new(engine.clone(), settings, runner, None)?)
    }

    fn runner(&self, spec: &KvSpec, settings: &Settings, engine: &EngineConfig) -> Result<Box<dyn Runner>> {
        let total = settings.total;
        match &self.place {
            Place::Cpu { machine, weights, .. } => {
                let model = load(machine, &self.config, spec, weights, WeightFormat::AsStored)?;
                let threads = machine.pool().threads();
                let cpu = Cpu::new(threads.try_into().expect("at least one thread"), Level::detect());
                let mut runner = ModelRunner::new(cpu, model, spec, total)?;
                runner.commit(total, &mut |_, _| {})?;
                Ok(Box::new(runner))
            }
            Place::Cuda { number, deterministic, .. } => {
                let bench = gpu::open(Device::Cuda(*number), *deterministic, true)?.expect("a GPU");
                let model = gpu::load(&bench, &self.config, spec)?;
                let mut runner = ModelRunner::new(bench.into_cuda(), model, spec, total)?;
                runner.warm_up(settings, engine, &mut |_, _| {})?;
                Ok(Box::new(runner))
            }
        }
    }

    pub(super) fn vocab(&self) -> u32 {
        self.config.vocab() as u32
    }

    /// What the figures hold for.
    pub(super) fn conditions(&self) -> String {
        match &self.place {
            Place::Cpu { machine, .. } => {
                format!("{} geometry, threads: {}", self.geometry, machine.pool().threads())
            }
            Place::Cuda { deterministic, name, .. } => {
                let mode = if *deterministic { ", deterministic" } else { "" };
                format!("{} geometry, {name}{mode}", self.geometry)
            }
        }
    }
}

/// When things happened to a request, in seconds from the start of its load.
#[derive(Debug, Clone, Default)]
pub(super) struct Life {
    pub(super) sent: f64,
    pub(super) tokens: Vec<f64>,
}

impl Life {
    pub(super) fn ttft(&self) -> f64 {
        self.tokens.first().map_or(f64::INFINITY, |first| first - self.sent)
    }
}

/// What running a load showed.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) seconds: f64,
    pub(super) steps: Vec<(StepReport, f64)>,
    pub(super) lives: Vec<Life>,
}

/// Runs requests to their end. Each is sent once so many tokens have been generated in all.
pub(super) fn run(engine: &mut Engine, requests: Vec<(u64, Request)>, tick: &dyn Fn()) -> Result<Ran> {
    let start = Instant::now();
    let mut ran = Ran::default();
    let mut index: HashMap<RequestId, usize> = HashMap::new();
    let mut to_come = requests.into_iter().peekable();
    let (mut generated, mut events) = (0, Events::new());
    loop {
        while let Some((_, request)) = to_come.next_if(|(after, _)| *after <= generated) {
            let accepted = engine.intake().accept(request)?;
            index.insert(accepted.id(), ran.lives.len());
            ran.lives.push(Life { sent: start.elapsed().as_secs_f64(), tokens: Vec::new() });
            engine.submit(accepted);
        }
        if !engine.has_work() {
            break;
        }
        let before = start.elapsed();
        let report = engine.step(Timestamp(before.as_micros() as u64), &mut events);
        let now = start.elapsed().as_secs_f64();
        if report.tokens > 0 {
            ran.steps.push((report, now - before.as_secs_f64()));
        }
        for (id, event) in events.drain(..) {
            match event {
                Event::Token(_) => {
                    generated += 1;
                    ran.lives[index[&id]].tokens.push(now);
                }
                Event::Failed(failure) => bail!("{id} failed: {failure}"),
                _ => {}
            }
        }
        tick();
    }
    ran.seconds = start.elapsed().as_secs_f64();
    Ok(ran)
}

/// Random tokens, the same in every run.
pub(super) struct Tokenish(fastrand::Rng, u32);

impl Tokenish {
    pub(super) fn new(vocab: u32) -> Self {
        Self(fastrand::Rng::with_seed(SEED), vocab)
    }
    pub(super) fn prompt(&mut self, len: u32) -> Vec<u32> {
        (0..len).map(|_| self.0.u32(..self.1)).collect()
    }
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0.u32(low..=high)
    }
}

/// An engine's settings for a batch of so many, sequences of at most `max_len`.
pub(super) fn config(max_batch: u32, max_len: u32) -> EngineConfig {
    EngineConfig::new(max_batch, Tokens(max_len))
}
