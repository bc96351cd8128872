//! Requests of many kinds through a pool far too small for them: each answer has the bits that it has alone, in an engine
//! with room for it.

use super::conformance::open;
use super::parity::folders;
use anyhow::{Context, Result, bail};
use fastrand::Rng;
use octavo_backend::{Backend, WeightFormat};
use octavo_engine::{Engine, EngineConfig, Events, Flow, ModelRunner, Outputs, Request, SamplingParams};
use octavo_kv::Settings;
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, PageSize, Pages, Timestamp, Tokens};
use std::collections::HashMap;
use std::path::Path;

const MAX_LEN: Tokens = Tokens(160);
const MAX_BATCH: u32 = 12;
const REQUESTS: usize = 30;
/// How keys and values are stored, and the tokens of a page.
const CACHES: [(KvDtype, u32); 4] =
    [(KvDtype::Bf16, 16), (KvDtype::F16, 32), (KvDtype::Fp8, 16), (KvDtype::Int8, 32)];

pub(super) fn run(number: usize, models: &Path) -> Result<()> {
    let mut differ = 0;
    for folder in folders(models)? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (dtype, page_size) in CACHES {
            let size = PageSize::new(page_size).context("a page has tokens")?;
            let passed = pass(&|| open(number, true), &folder, dtype, size)?;
            let Passed { answers, cached, preemptions, .. } = passed;
            println!(
                "{name}, {} in pages of {page_size}: {answers} answers with {preemptions} preemptions and {cached} tokens from the cache, {} differ from those alone",
                dtype.name(),
                passed.differ
            );
            differ += passed.differ;
        }
    }
    if differ > 0 {
        bail!("{differ} answers depend on what else runs");
    }
    Ok(())
}

/// What came of it.
#[derive(Debug)]
struct Passed {
    answers: usize,
    differ: usize,
    cached: u32,
    preemptions: u32,
}

fn pass<B: Backend + 'static>(
    open: &dyn Fn() -> Result<B>,
    folder: &Path,
    dtype: KvDtype,
    page_size: PageSize,
) -> Result<Passed> {
    let mut random = Rng::with_seed(3);
    let requests = requests(&ModelConfig::from_dir(folder)?, &mut random);
    let found = crowd(engine(open()?, folder, dtype, page_size, Pages(3))?, &requests, &mut random)?;
    let mut roomy = engine(open()?, folder, dtype, PageSize::DEFAULT, Pages(400))?;
    let mut passed = Passed { answers: requests.len(), differ: 0, cached: 0, preemptions: 0 };
    for (request, found) in requests.into_iter().zip(found) {
        roomy.drop_prefixes();
        let alone = roomy.generate(vec![request], &mut |_, _| Flow::Continue)?.swap_remove(0);
        if let Some(failure) = found.failure.or(alone.failure) {
            bail!("{failure}");
        }
        passed.differ +=
            usize::from((found.choices, found.prompt_logprobs) != (alone.choices, alone.prompt_logprobs));
        passed.cached += found.usage.cached_tokens.0;
        passed.preemptions += found.usage.preemptions;
    }
    Ok(passed)
}

/// With so many pages more than one sequence needs.
fn engine<B: Backend + 'static>(
    backend: B,
    folder: &Path,
    dtype: KvDtype,
    page_size: PageSize,
    more: Pages,
) -> Result<Engine> {
    let config = ModelConfig::from_dir(folder)?;
    let spec = config.kv_spec(dtype, page_size, None)?;
    let weights = Weights::open(folder)?;
    let engine = EngineConfig {
        chunk: (Tokens(20), Tokens(50)),
        ..EngineConfig::new(MAX_BATCH, config.max_positions().min(MAX_LEN))
    };
    let model = Model::load(&backend, config, &spec, &weights, WeightFormat::AsStored, &mut |_| {})?;
    let settings = Settings { page_size, windows: spec.windows(), ..Settings::new(Pages(1)) };
    let total = settings.least_pages(engine.max_len) + more;
    let settings = Settings { total, page_bytes: spec.page_bytes(), pin_quota: Pages(0), ..settings };
    let mut runner = ModelRunner::new(backend, model, &spec, total)?;
    runner.warm_up(&settings, &engine, &mut |_, _| {})?;
    Ok(Engine::new(engine, settings, Box::new(runner), None)?)
}

/// Greedy and by chance, with logprobs and without, some of several choices; many begin alike.
fn requests(config: &ModelConfig, random: &mut Rng) -> Vec<Request> {
    let vocab = config.vocab() as u32;
    let longest = config.max_positions().min(MAX_LEN).as_usize();
    let mut text = |length: usize| -> Vec<u32> { (0..length).map(|_| random.u32(0..vocab)).collect() };
    let beginnings: Vec<Vec<u32>> = (0..3).map(|_| text(longest / 2)).collect();
    let own: Vec<Vec<u32>> = (0..REQUESTS).map(|_| text(longest / 8)).collect();
    let request = |own: Vec<u32>| {
        let beginning = &beginnings[random.usize(0..beginnings.len())];
        let shared = &beginning[..random.usize(0..=beginning.len())];
        let prompt = [shared, &own[random.usize(1..own.len())..]].concat();
        let sampling = SamplingParams {
            temperature: if random.bool() { 0.0 } else { 1.0 },
            seed: random.u64(..),
            logprobs: random.bool().then_some(4),
            ..SamplingParams::default()
        };
        let choices = 1 + random.u32(0..4) / 3;
        let prompt_logprobs = (random.u32(0..5) == 0).then_some(2);
        let request = Request::new(prompt, random.u32(1..60));
        Request { sampling, choices, best_of: choices, prompt_logprobs, ..request }
    };
    own.into_iter().map(request).collect()
}

/// The outputs of requests that come one after the other while others run.
fn crowd(mut engine: Engine, requests: &[Request], random: &mut Rng) -> Result<Vec<Outputs>> {
    let mut outputs: Vec<Outputs> = requests.iter().map(|_| Outputs::default()).collect();
    let (mut places, mut events) = (HashMap::new(), Events::new());
    let mut waiting = requests.iter().enumerate();
    for step in 0.. {
        for (place, request) in waiting.by_ref().take(random.usize(0..2)) {
            let accepted = engine.intake().accept(request.clone())?;
            places.insert(accepted.id(), place);
            engine.submit(accepted);
        }
        engine.step(Timestamp(step), &mut events);
        engine.cache().check()?;
        for (id, event) in events.drain(..) {
            outputs[places[&id]].take(event);
        }
        if waiting.len() == 0 && !engine.has_work() {
            break;
        }
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_cpu::{Cpu, Level};
    use std::num::NonZeroUsize;

    #[test]
    fn on_the_cpu_no_answer_depends_on_what_else_runs() {
        for name in ["qwen3-gqa", "gemma3-mqa"] {
            let folder =
                Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models")).join(name);
            let cpu = || Ok(Cpu::new(NonZeroUsize::MIN, Level::detect()));
            let passed = pass(&cpu, &folder, KvDtype::Fp8, PageSize::DEFAULT).unwrap();
            assert_eq!((passed.answers, passed.differ), (REQUESTS, 0), "{name}");
            assert!(passed.preemptions > 3 && passed.cached > 100, "{name}: {passed:?}");
        }
    }
}
