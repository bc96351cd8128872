//! Models on the GPU against the same models on the CPU, which computes in f32.

use super::conformance::open;
use anyhow::{Context, Result, bail};
use octavo_backend::{Backend, WeightFormat};
use octavo_cpu::{Cpu, Level};
use octavo_engine::{Engine, EngineConfig, Flow, ModelRunner, Request, SamplingParams};
use octavo_kv::Settings;
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{Bytes, KvDtype, PageSize, Pages, Tokens};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// How far logits in bf16 may be from those in f32: the typical difference as a share of the typical logit.
pub(super) const TOLERANCE: f32 = 0.03;
const TOKENS: u32 = 96;
const GENERATED: u32 = 24;

/// The fixture models, in order.
pub(super) fn folders(models: &Path) -> Result<Vec<PathBuf>> {
    let read = std::fs::read_dir(models).with_context(|| format!("cannot read {}", models.display()))?;
    let mut folders: Vec<PathBuf> = read.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    folders.sort();
    Ok(folders)
}

/// Tokens to run, the same everywhere.
pub(super) fn tokens(config: &ModelConfig) -> Vec<u32> {
    let vocab = config.vocab() as u32;
    (0..TOKENS.min(config.max_positions().0 - GENERATED - 1))
        .map(|i| (i * i * 31 + 7 * i + 1) % vocab)
        .collect()
}

/// An engine over a model in a folder.
pub(super) fn engine<B: Backend + 'static>(backend: B, folder: &Path, dtype: KvDtype) -> Result<Engine> {
    let config = ModelConfig::from_dir(folder)?;
    let spec = config.kv_spec(dtype, PageSize::DEFAULT, None)?;
    let weights = Weights::open(folder)?;
    let format = WeightFormat::AsStored;
    let model = Model::load(&backend, config.clone(), &spec, &weights, format, &mut |_| {})?;
    let total = Pages(256 * spec.groups().len() as u32);
    let settings =
        Settings { total, ..Settings::for_model(&spec, Bytes(u64::from(total.0) * spec.page_bytes().0)) };
    let runner = ModelRunner::new(backend, model, &spec, total)?;
    let max_len = config.max_positions().min(Tokens(TOKENS + GENERATED));
    Ok(Engine::new(EngineConfig::new(4, max_len), settings, Box::new(runner), None)?)
}

/// The logits of every token.
pub(super) fn logits(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    engine.score(tokens.to_vec(), &mut |_, row| rows.push(row.to_vec()))?;
    Ok(rows)
}

/// The typical difference as a share of the typical logit, and the share of rows whose likeliest token is the same.
pub(super) fn compare(found: &[Vec<f32>], expected: &[Vec<f32>]) -> (f32, f32) {
    let squares =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let off = squares(&mut pairs.map(|(a, b)| a - b)) / squares(&mut expected.iter().flatten().copied());
    let likeliest = octavo_backend::choice::likeliest;
    let same = found.iter().zip(expected).filter(|(a, b)| likeliest(a) == likeliest(b)).count();
    (off.sqrt() as f32, same as f32 / expected.len() as f32)
}

pub(super) fn run(number: usize, models: &Path) -> Result<()> {
    let mut failed = Vec::new();
    for folder in folders(models)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tokens = tokens(&ModelConfig::from_dir(&folder)?);
        let cpu = Cpu::new(NonZeroUsize::MIN, Level::detect());
        let expected = logits(&mut engine(cpu, &folder, KvDtype::F32)?, &tokens)?;
        for deterministic in [true, false] {
            let mut gpu = engine(open(number, deterministic)?, &folder, KvDtype::F32)?;
            let (off, same) = compare(&logits(&mut gpu, &tokens)?, &expected);
            let chosen = chosen_as_computed(&mut gpu, &tokens)?;
            let mode = if deterministic { "deterministic" } else { "usual" };
            println!(
                "{name}, {mode}: logits off by {:.2} %, the likeliest token the same in {:.0} % of rows, tokens chosen on the device {}",
                100.0 * off,
                100.0 * same,
                if chosen { "as from its logits" } else { "DIFFER from its logits" }
            );
            if off.is_nan() || off > TOLERANCE || !chosen {
                failed.push(name.clone());
            }
        }
    }
    if !failed.is_empty() {
        bail!("not as on the CPU: {}", failed.join(", "));
    }
    Ok(())
}

/// Whether requests whose tokens the device chooses, in replayed steps, get those of requests whose logits are read
/// back, because they ask how likely each was.
fn chosen_as_computed(engine: &mut Engine, prompt: &[u32]) -> Result<bool> {
    let request = |temperature, logprobs| Request {
        sampling: SamplingParams {
            temperature,
            top_p: 0.95,
            seed: 11,
            logprobs,
            ..SamplingParams::default()
        },
        ..Request::new(prompt.to_vec(), GENERATED)
    };
    let mut said = |logprobs| {
        let requests = vec![request(0.0, logprobs), request(1.0, logprobs), request(1.0, logprobs)];
        let outputs = engine.generate(requests, &mut |_, _| Flow::Continue)?;
        anyhow::Ok(outputs.into_iter().map(|output| output.choices[0].tokens.clone()).collect::<Vec<_>>())
    };
    Ok(said(None)? == said(Some(0))?)
}
