//! Requests and scores in pools that are small for what they are asked: windows, limits, and what breaks off.

mod support;

use octavo_backend::WeightFormat;
use octavo_cpu::{Cpu, Level};
use octavo_engine::{
    Engine, EngineConfig, Event, Events, Flow, ModelRunner, Outputs, Request, SamplingParams, SubmitError,
};
use octavo_kv::Settings;
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, PageSize, Pages, Timestamp, Tokens};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::{model_dir, tokens};

/// Pages of four tokens; the settings of a model whose layers all see so many.
fn engine(window: Option<u32>, config: EngineConfig, settings: impl FnOnce(Settings) -> Settings) -> Engine {
    let folder = model_dir("qwen3-gqa");
    let model = ModelConfig::from_dir(&folder).unwrap();
    let page_size = PageSize::new(4).unwrap();
    let spec = model.kv_spec(KvDtype::F16, page_size, window.map(Tokens)).unwrap();
    let cpu = Cpu::new(NonZeroUsize::MIN, Level::detect());
    let weights = Weights::open(&folder).unwrap();
    let model = Model::load(&cpu, model, &spec, &weights, WeightFormat::AsStored, &mut |_| {}).unwrap();
    let plain =
        Settings { page_size, windows: spec.windows(), pin_quota: Pages(0), ..Settings::new(Pages(400)) };
    let settings = settings(plain);
    let runner = ModelRunner::new(cpu, model, &spec, settings.total).unwrap();
    Engine::new(config, settings, Box::new(runner), None).unwrap()
}

fn ask(engine: &mut Engine, request: Request) -> Outputs {
    engine.generate(vec![request], &mut |_, _| Flow::Continue).unwrap().remove(0)
}

/// A window of one token more than whole pages lets go of a page whenever it needs one: a sequence that decodes never runs
/// out, and would keep the first of all waiting for as long as it runs.
#[test]
fn what_comes_first_is_not_kept_waiting_by_what_needs_no_more_pages() {
    let chunk = (Tokens(1), Tokens(1));
    let config = EngineConfig { chunk, prompt_share: 1.0, ..EngineConfig::new(4, Tokens(500)) };
    let mut engine = engine(Some(17), config, |settings| Settings { total: Pages(8), ..settings });
    let mut events = Events::new();
    let mut now = 0;
    let mut step = |engine: &mut Engine| {
        now += 1000;
        engine.step(Timestamp(now), &mut events);
        engine.cache().check().unwrap();
        std::mem::take(&mut events)
    };
    let submit = |engine: &mut Engine, request| {
        let accepted = engine.intake().accept(request).unwrap();
        let id = accepted.id();
        engine.submit(accepted);
        id
    };
    let last = submit(&mut engine, Request::new((0..8).collect(), 200));
    let is_token = |event: &Event| matches!(event, Event::Token(_));
    while !step(&mut engine).iter().any(|(_, event)| is_token(event)) {}
    let first = submit(&mut engine, Request { priority: -5, ..Request::new((100..116).collect(), 5) });
    let mut of_last = 0;
    loop {
        let told = step(&mut engine);
        of_last += told.iter().filter(|(id, event)| *id == last && is_token(event)).count();
        if told.iter().any(|(id, event)| *id == first && is_token(event)) {
            break;
        }
    }
    assert!(of_last < 40, "the other one had {of_last} tokens meanwhile");
}

/// A prompt far longer than the pool takes no more than its window and a chunk, and one that decodes its window alone.
#[test]
fn what_a_window_lets_go_of_is_neither_kept_back_nor_waited_for() {
    let config = EngineConfig { chunk: (Tokens(64), Tokens(64)), ..EngineConfig::new(4, Tokens(500)) };
    let mut engine = engine(Some(16), config, |settings| Settings { total: Pages(32), ..settings });
    let mut ended = Vec::new();
    let requests = vec![
        Request::new(tokens(100, 1), 60),
        Request::new(tokens(300, 2), 1),
        Request::new(tokens(24, 3), 1),
    ];
    let outputs = engine.generate(requests, &mut |index, event| {
        if event.is_last() {
            ended.push(index);
        }
        Flow::Continue
    });
    assert!(
        outputs.unwrap().iter().all(|outputs| outputs.failure.is_none() && outputs.usage.preemptions == 0)
    );
    assert_eq!(ended, [1, 2, 0], "both others ran beside the first");
}

#[test]
fn a_text_is_scored_in_the_pages_that_its_window_needs() {
    let total =
        |settings: Settings| Settings { total: settings.least_pages(Tokens(400)) + Pages(4), ..settings };
    let config = EngineConfig::new(4, Tokens(400));
    let scores = |mut engine: Engine| {
        let mut scores = Vec::new();
        engine.score(tokens(300, 1), &mut |at, logits| scores.push((at, logits.to_vec()))).unwrap();
        engine.cache().check().unwrap();
        scores
    };
    let small = scores(engine(Some(16), config.clone(), total));
    assert_eq!(small.len(), 300);
    assert!(small == scores(engine(Some(16), config, |settings| settings)), "as in a large pool");
}

#[test]
fn a_prompt_is_cut_smaller_where_a_limit_has_no_room_for_a_chunk() {
    let config = EngineConfig::new(4, Tokens(400));
    let mut engine = engine(Some(16), config, |settings| {
        let limit = settings.least_pages(Tokens(400));
        Settings { sequence_limit: Some(limit), ..settings }
    });
    let outputs = ask(&mut engine, Request::new(tokens(300, 1), 2));
    assert!(outputs.failure.is_none() && outputs.choices[0].tokens.len() == 2, "{outputs:?}");
}

#[test]
fn scoring_that_breaks_off_leaves_nothing_behind() {
    let mut engine = engine(None, EngineConfig::new(4, Tokens(40)), |settings| settings);
    let broken = catch_unwind(AssertUnwindSafe(|| engine.score(vec![1, 2, 3], &mut |_, _| panic!("enough"))));
    assert!(broken.is_err());
    engine.cache().check().unwrap();
    assert_eq!((engine.cache().snapshot().sequences, engine.cache().counts().used), (0, Pages(0)));
    assert_eq!(ask(&mut engine, Request::new(vec![1, 2], 3)).choices[0].tokens.len(), 3);
}

#[test]
fn alternatives_of_prompts_are_as_limited_as_those_of_tokens() {
    let engine = engine(None, EngineConfig::new(4, Tokens(40)), |settings| settings);
    let request = Request { prompt_logprobs: Some(21), ..Request::new(vec![1, 2, 3], 1) };
    match engine.intake().check(&request) {
        Err(SubmitError::Sampling(error)) => assert_eq!(error.name, "prompt_logprobs"),
        other => panic!("{other:?}"),
    }
}

/// Half of the tokens end an answer: an empty one is as likely as its end, and not the best of all.
#[test]
fn the_token_that_ends_an_answer_counts_for_how_likely_it_is() {
    let mut engine = engine(None, EngineConfig::new(8, Tokens(40)), |settings| settings);
    let lengths = (0..20).map(|seed| {
        let sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        let stop_tokens = (0..100).collect();
        let request = Request { sampling, stop_tokens, best_of: 8, ..Request::new(vec![1, 2, 3], 8) };
        ask(&mut engine, request).choices[0].tokens.len()
    });
    let empty = lengths.filter(|len| *len == 0).count();
    assert!(empty < 20, "{empty} of 20 best answers are empty");
}
