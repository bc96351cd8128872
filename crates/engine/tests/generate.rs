//! Many requests at once, on the caller's thread.

mod fake;

use fake::{Bench, PageRunner, expected, prompt};
use octavo_engine::{Engine, EngineConfig, Event, FinishReason, Flow, Request, SubmitError};
use octavo_types::Tokens;

/// One may wait, two may run.
fn engine() -> Engine {
    let settings = Bench::pool(24, 4);
    let runner = PageRunner::new(settings.total, settings.page_size);
    let config = EngineConfig { max_waiting: 1, ..EngineConfig::new(2, Tokens(96)) };
    Engine::new(config, settings, Box::new(runner), None).unwrap()
}

#[test]
fn more_requests_than_may_wait_are_all_done_in_their_order() {
    let requests: Vec<_> = (0..9).map(|who| Request::new(prompt(who, 5), 3)).collect();
    let outputs = engine().generate(requests.clone(), &mut |_, _| Flow::Continue).unwrap();
    for (request, outputs) in requests.iter().zip(outputs) {
        assert_eq!(outputs.choices[0].tokens, expected(request, 0, Tokens(96)));
    }
}

#[test]
fn nothing_begins_if_one_of_them_cannot() {
    let mut engine = engine();
    let requests = vec![Request::new(prompt(1, 5), 3), Request::new(Vec::new(), 3)];
    let refused = engine.generate(requests, &mut |_, _| panic!("nothing happens"));
    assert_eq!(refused, Err(SubmitError::EmptyPrompt));
    assert!(!engine.has_work() && engine.intake().waiting() == 0);
}

#[test]
fn who_watches_may_end_one_of_them() {
    let requests = [1, 2].map(|who| Request::new(prompt(who, 5), 9));
    let outputs = engine().generate(requests.to_vec(), &mut |index, event| match event {
        Event::Token(_) if index == 0 => Flow::Cancel,
        _ => Flow::Continue,
    });
    let ends: Vec<_> = outputs.unwrap().into_iter().map(|mut outputs| outputs.choices.remove(0)).collect();
    assert_eq!((ends[0].finish, ends[0].tokens.len()), (Some(FinishReason::Cancelled), 1));
    assert_eq!((ends[1].finish, ends[1].tokens.len()), (Some(FinishReason::Length), 9));
}
