//! A request's tokens and logprobs have the same bits however the engine ran it.

mod support;

use octavo_backend::WeightFormat;
use octavo_cpu::{Cpu, Level};
use octavo_engine::{Batching, Engine, EngineConfig, Flow, ModelRunner, Outputs, Request, SamplingParams};
use octavo_kv::Settings;
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, PageSize, Pages, Tokens};
use std::num::NonZeroUsize;
use support::{model_dir, tokens};

const MODELS: [&str; 2] = ["qwen3-gqa", "gemma3-mqa"];
const MAX_LEN: Tokens = Tokens(96);

/// How the engine is set up. The pages are those beyond the fewest for one sequence.
struct Rig {
    page_size: u32,
    more_pages: u32,
    prefix_cache: bool,
    config: EngineConfig,
}

impl Rig {
    fn roomy() -> Self {
        let config = EngineConfig::new(8, MAX_LEN);
        Self { page_size: 16, more_pages: 200, prefix_cache: true, config }
    }

    fn engine(self, name: &str) -> Engine {
        let dir = model_dir(name);
        let model = ModelConfig::from_dir(&dir).unwrap();
        let page_size = PageSize::new(self.page_size).unwrap();
        let spec = model.kv_spec(KvDtype::Fp8, page_size, None).unwrap();
        let cpu = Cpu::new(NonZeroUsize::MIN, Level::detect());
        let weights = Weights::open(&dir).unwrap();
        let model = Model::load(&cpu, model, &spec, &weights, WeightFormat::AsStored, &mut |_| {}).unwrap();
        let (windows, prefix_cache) = (spec.windows(), self.prefix_cache);
        let settings = Settings { page_size, windows, prefix_cache, ..Settings::new(Pages(100)) };
        let total = settings.least_pages(MAX_LEN) + Pages(self.more_pages);
        let settings = Settings { total, pin_quota: Pages(0), ..settings };
        let runner = ModelRunner::new(cpu, model, &spec, total).unwrap();
        Engine::new(self.config, settings, Box::new(runner), None).unwrap()
    }
}

/// Five requests, two of which begin alike; greedy and by chance.
fn requests() -> Vec<Request> {
    let alike = [tokens(33, 1), tokens(9, 2)].concat();
    let texts = [tokens(37, 1), alike, tokens(50, 3), tokens(1, 4), tokens(55, 5)];
    let requests = texts.into_iter().zip(0..).map(|(text, seed)| {
        let temperature = if seed % 2 == 0 { 0.0 } else { 1.0 };
        let sampling = SamplingParams { temperature, seed, logprobs: Some(5), ..SamplingParams::default() };
        Request { sampling, ..Request::new(text, 40) }
    });
    requests.collect()
}

/// Token, logprob and the five likeliest, in bits.
type Bits = Vec<(u32, u32, Vec<(u32, u32)>)>;

fn bits(outputs: &Outputs) -> Bits {
    assert_eq!(outputs.failure, None);
    let [choice] = &outputs.choices[..] else { panic!("one choice") };
    assert_eq!((choice.tokens.len(), choice.logprobs.len()), (40, 40));
    let bits = choice.tokens.iter().zip(&choice.logprobs).map(|(token, logprobs)| {
        let top = logprobs.top.iter().map(|(token, logprob)| (*token, logprob.to_bits()));
        (*token, logprobs.logprob.to_bits(), top.collect())
    });
    bits.collect()
}

/// Runs all requests at once and compares them with what they are alone.
fn assert_as_alone(name: &str, engine: &mut Engine) -> Vec<Outputs> {
    let outputs = engine.generate(requests(), &mut |_, _| Flow::Continue).unwrap();
    engine.cache().check().unwrap();
    for (at, (request, found)) in requests().into_iter().zip(&outputs).enumerate() {
        let mut engine = Rig { prefix_cache: false, ..Rig::roomy() }.engine(name);
        let alone = engine.generate(vec![request], &mut |_, _| Flow::Continue).unwrap();
        assert!(bits(&alone[0]) == bits(found), "{name}: request {at} differs");
    }
    outputs
}

#[test]
fn a_crowd_changes_no_bit() {
    for name in MODELS {
        assert_as_alone(name, &mut Rig::roomy().engine(name));
    }
}

/// Without logprobs nobody needs the logits, and the device chooses.
#[test]
fn tokens_that_the_device_chooses_are_those_of_the_sampler() {
    for name in MODELS {
        let mut by_device = requests();
        by_device.iter_mut().for_each(|request| request.sampling.logprobs = None);
        let [by_device, by_sampler] = [by_device, requests()].map(|requests| {
            Rig::roomy().engine(name).generate(requests, &mut |_, _| Flow::Continue).unwrap()
        });
        for (at, (device, sampler)) in by_device.iter().zip(&by_sampler).enumerate() {
            assert!(device.choices[0].logprobs.is_empty());
            assert_eq!(device.choices[0].tokens, sampler.choices[0].tokens, "{name}: request {at}");
        }
    }
}

#[test]
fn prompts_read_in_small_chunks_beside_others_change_no_bit() {
    for name in MODELS {
        let chunk = (Tokens(7), Tokens(7));
        let config = EngineConfig { chunk, ..EngineConfig::new(8, MAX_LEN) };
        assert_as_alone(name, &mut Rig { config, ..Rig::roomy() }.engine(name));
    }
}

#[test]
fn the_prefix_cache_changes_no_bit() {
    for name in MODELS {
        let mut engine = Rig::roomy().engine(name);
        assert_as_alone(name, &mut engine);
        let again = assert_as_alone(name, &mut engine);
        let cached = again.iter().map(|outputs| outputs.usage.cached_tokens.0);
        assert!(cached.clone().sum::<u32>() > 100, "{:?}", cached.collect::<Vec<_>>());
    }
}

#[test]
fn preemption_changes_no_bit() {
    for name in MODELS {
        let mut preemptions = 0;
        for more_pages in [0, 2, 4, 6] {
            let mut engine = Rig { more_pages, ..Rig::roomy() }.engine(name);
            let outputs = assert_as_alone(name, &mut engine);
            preemptions += outputs.iter().map(|outputs| outputs.usage.preemptions).sum::<u32>();
        }
        assert!(preemptions > 2, "{name}: the pools are not small enough");
    }
}

#[test]
fn static_batches_change_no_bit() {
    for name in MODELS {
        let config = EngineConfig { batching: Batching::Static, ..EngineConfig::new(2, MAX_LEN) };
        assert_as_alone(name, &mut Rig { config, ..Rig::roomy() }.engine(name));
    }
}

#[test]
fn one_page_a_slot_changes_no_bit() {
    for name in MODELS {
        let rig = Rig { page_size: MAX_LEN.0, more_pages: 6, prefix_cache: false, ..Rig::roomy() };
        assert_as_alone(name, &mut rig.engine(name));
    }
}
