//! A long day in a small pool.

mod fake;

use fake::{Bench, expected, prompt};
use octavo_engine::{EngineConfig, FinishReason, Request, RequestId, SamplingParams, SubmitError};
use octavo_types::Tokens;
use std::collections::HashSet;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32 % n
    }
}

fn request(random: &mut Random) -> Request {
    // One of a few prefixes, and something of its own.
    let (who, shared, own) = (random.below(8), 1 + random.below(50), random.below(30));
    let text = [prompt(who, shared as usize), prompt(random.below(64), own as usize)].concat();
    let choices = 1 + random.below(8) / 6;
    let best_of = choices + random.below(10) / 9;
    let temperature = if random.below(2) == 0 { 0.0 } else { 1.0 };
    let sampling =
        SamplingParams { temperature, seed: random.below(1000).into(), ..SamplingParams::default() };
    let stop_tokens = [random.below(64)].into();
    let priority = random.below(5) as i32 - 2;
    let request = Request::new(text, random.below(25));
    Request { choices, best_of, sampling, stop_tokens, priority, ..request }
}

#[test]
fn two_thousand_mixed_requests_through_a_pool_far_too_small_are_all_right() {
    let chunk = (Tokens(24), Tokens(48));
    let config = EngineConfig { chunk, max_waiting: 50, ..EngineConfig::new(8, Tokens(100)) };
    let mut bench = Bench::new(config, Bench::pool(36, 4));
    let mut random = Random(0x5eed);
    let mut cancelled: HashSet<RequestId> = HashSet::new();
    let mut refused = 0;
    while bench.requests.len() < 2000 {
        for _ in 0..random.below(4) {
            match bench.try_send(request(&mut random)) {
                Ok(_) => {}
                Err(SubmitError::QueueFull { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        if random.below(20) == 0 && !bench.requests.is_empty() {
            let back = u64::from(random.below(60));
            let id = RequestId((bench.requests.len() as u64).saturating_sub(1 + back));
            if bench.requests.contains_key(&id) && !bench.ended(id) {
                bench.engine.cancel(id);
                cancelled.insert(id);
            }
        }
        bench.step();
    }
    bench.run();
    check(&bench, &cancelled);
    bench.assert_nothing_left();
    let metrics = bench.engine.metrics();
    assert!(refused > 0 && cancelled.len() > 20, "{refused} refused, {} cancelled", cancelled.len());
    assert!(metrics.preemptions.get() > 100 && metrics.prompt_tokens_cached.get() > 1000);
}

fn check(bench: &Bench, cancelled: &HashSet<RequestId>) {
    let mut events: std::collections::HashMap<RequestId, octavo_engine::Outputs> = Default::default();
    for (_, id, event) in &bench.events {
        events.entry(*id).or_default().take(event.clone());
    }
    for (id, request) in &bench.requests {
        let outputs = &events[id];
        assert_eq!(outputs.failure, None, "{id}");
        let ends = outputs.choices.iter().map(|choice| choice.finish);
        let cut = ends.clone().any(|end| end == Some(FinishReason::Cancelled));
        assert!(cut == cancelled.contains(id) && ends.len() == request.choices as usize, "{id}: {outputs:?}");
        let alone: Vec<_> = (0..request.best_of).map(|n| expected(request, n, Tokens(100))).collect();
        for (choice, output) in outputs.choices.iter().enumerate() {
            assert!(output.finish.is_some(), "{id} has not ended");
            // The best of several may be any of them.
            let among = if request.best_of > request.choices { &alone[..] } else { &alone[choice..=choice] };
            let right = |alone: &Vec<u32>| {
                if cut { alone.starts_with(&output.tokens) } else { *alone == output.tokens }
            };
            assert!(among.iter().any(right), "{id} choice {choice}");
        }
    }
}
