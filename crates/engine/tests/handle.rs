//! The engine on its own thread.

mod fake;

use fake::{Bench, Fault, PageRunner, expected, prompt};
use octavo_backend::BackendError;
use octavo_engine::{
    Batch, Engine, EngineConfig, EngineHandle, Event, Failure, Logits, NoAnswer, Outputs, Request, Runner,
    Sink, SubmitError,
};
use octavo_kv::{PinError, Prompt, Scope};
use octavo_types::{PageId, Pages, Tokens};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

/// Twenty-four pages of four tokens; a row takes `pace`.
fn start(pace: Duration) -> (EngineHandle, JoinHandle<()>) {
    let settings = Bench::pool(24, 4);
    let mut runner = PageRunner::new(settings.total, settings.page_size);
    runner.pace = pace;
    let config = EngineConfig { max_waiting: 1000, ..EngineConfig::new(4, Tokens(96)) };
    EngineHandle::spawn(Engine::new(config, settings, Box::new(runner), None).unwrap())
}

fn sink() -> (Sink, Receiver<Event>) {
    let (send, events) = channel();
    (Box::new(move |event| drop(send.send(event))), events)
}

/// Everything up to the last event.
fn outputs(events: &Receiver<Event>) -> Outputs {
    let mut outputs = Outputs::default();
    loop {
        let event = events.recv_timeout(SOON).expect("an engine ends what it accepted");
        let last = event.is_last();
        outputs.take(event);
        if last {
            assert!(events.recv_timeout(SOON).is_err(), "nothing follows, and the sink is dropped");
            return outputs;
        }
    }
}

/// Asks until the answer is right.
fn wait_until(handle: &EngineHandle, right: impl Fn(&octavo_engine::CacheReport) -> bool) {
    let began = Instant::now();
    while !right(&handle.report().wait(SOON).unwrap()) {
        assert!(began.elapsed() < SOON, "it never happened");
    }
}

#[test]
fn events_come_in_order() {
    let (handle, thread) = start(Duration::ZERO);
    let (sink, events) = sink();
    let request = Request::new(prompt(1, 10), 4);
    let ticket = handle.submit(request.clone(), sink).unwrap();
    let all: Vec<Event> = events.iter().collect();
    let tokens = expected(&request, 0, Tokens(96));
    assert!(matches!(all[0], Event::Prefill { done: Tokens(10), total: Tokens(10), .. }));
    for (event, token) in all[1..].iter().zip(&tokens) {
        assert!(matches!(event, Event::Token(new) if new.token == *token), "{event:?}");
    }
    assert!(matches!(all[5], Event::Finished(_)) && matches!(all[6], Event::Done(_)) && all.len() == 7);
    drop(ticket);
    handle.stop(SOON);
    thread.join().unwrap();
}

/// Notes when steps start and finish.
struct Noting {
    runner: PageRunner,
    order: Sender<Noted>,
}

#[derive(Debug, PartialEq)]
enum Noted {
    Start,
    Finish,
    Told(Event),
}

impl Runner for Noting {
    fn start(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.order.send(Noted::Start).unwrap();
        self.runner.start(batch)
    }
    fn finish(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        self.order.send(Noted::Finish).unwrap();
        self.runner.finish(batch, logits)
    }
    fn zero(&mut self, pages: &[PageId]) -> Result<(), BackendError> {
        self.runner.zero(pages)
    }
    fn vocab(&self) -> usize {
        self.runner.vocab()
    }
    fn device(&self) -> String {
        self.runner.device()
    }
}

#[test]
fn what_a_step_brought_is_told_while_the_device_computes_the_next() {
    let settings = Bench::pool(24, 4);
    let (order, noted) = channel();
    let runner = PageRunner::new(settings.total, settings.page_size);
    let runner = Box::new(Noting { runner, order: order.clone() });
    let engine = Engine::new(EngineConfig::new(4, Tokens(96)), settings, runner, None).unwrap();
    let (handle, thread) = EngineHandle::spawn(engine);
    let request = Request::new(prompt(1, 10), 3);
    let tokens = expected(&request, 0, Tokens(96));
    let told = order.clone();
    let ticket =
        handle.submit(request, Box::new(move |event| told.send(Noted::Told(event)).unwrap())).unwrap();
    drop(order);
    handle.stop(SOON);
    thread.join().unwrap();
    drop((ticket, handle));
    let noted: Vec<Noted> = noted.iter().collect();
    let is_token =
        |noted: &Noted, token| matches!(noted, Noted::Told(Event::Token(new)) if new.token == token);
    use Noted::{Finish, Start};
    assert_eq!([&noted[0], &noted[1], &noted[2]], [&Start, &Finish, &Start], "{noted:?}");
    assert!(matches!(noted[3], Noted::Told(Event::Prefill { .. })) && is_token(&noted[4], tokens[0]));
    assert_eq!([&noted[5], &noted[6]], [&Finish, &Start], "{noted:?}");
    assert!(is_token(&noted[7], tokens[1]) && noted[8] == Finish, "{noted:?}");
    // Nothing follows the last step.
    assert!(is_token(&noted[9], tokens[2]) && matches!(noted[11], Noted::Told(Event::Done(_))), "{noted:?}");
}

#[test]
fn an_engine_whose_device_is_lost_ends_instead_of_failing_one_request_after_another() {
    let settings = Bench::pool(24, 4);
    let mut runner = PageRunner::new(settings.total, settings.page_size);
    runner.pace = Duration::from_millis(2);
    runner.faults.at(3, Fault::Lost);
    let config = EngineConfig::new(1, Tokens(96));
    let engine = Engine::new(config, settings, Box::new(runner), None).unwrap();
    let (handle, thread) = EngineHandle::spawn(engine);
    let (sinks, events): (Vec<_>, Vec<_>) = (0..2).map(|_| sink()).unzip();
    let tickets: Vec<_> =
        sinks.into_iter().map(|sink| handle.submit(Request::new(prompt(1, 10), 20), sink).unwrap()).collect();
    let failures: Vec<_> = events.iter().map(|events| outputs(events).failure.expect("a failure")).collect();
    assert!(matches!(&failures[0], Failure::Step(why) if why.contains("fell off the bus")), "{failures:?}");
    assert!(matches!(failures[1], Failure::ShuttingDown), "it waited: {failures:?}");
    thread.join().unwrap();
    assert!(matches!(handle.audit().wait(SOON), Err(NoAnswer::Stopped)));
    assert!(matches!(handle.submit(Request::new(prompt(1, 4), 1), sink().0), Err(SubmitError::ShuttingDown)));
    drop(tickets);
}

#[test]
fn a_sink_that_panics_when_it_is_dropped_harms_nobody_else() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a sink that does not go quietly");
        }
    }
    let (handle, thread) = start(Duration::ZERO);
    let bomb = Bomb;
    let armed = handle.submit(Request::new(prompt(1, 4), 2), Box::new(move |_| _ = &bomb)).unwrap();
    let bomb = Bomb;
    drop(handle.submit(Request::new(prompt(3, 4), 90), Box::new(move |_| _ = &bomb)).unwrap());
    let (other, events) = sink();
    let ticket = handle.submit(Request::new(prompt(2, 10), 20), other).unwrap();
    assert!(outputs(&events).failure.is_none());
    drop((armed, ticket));
    handle.stop(SOON);
    thread.join().unwrap();
}

#[test]
fn a_sink_that_panics_ends_its_request_and_no_other() {
    let (handle, thread) = start(Duration::ZERO);
    let fails = |event| assert!(!matches!(event, Event::Token(_)), "a sink that has enough");
    let broken = handle.submit(Request::new(prompt(1, 4), 90), Box::new(fails)).unwrap();
    let (other, events) = sink();
    let request = Request::new(prompt(2, 10), 20);
    let ticket = handle.submit(request.clone(), other).unwrap();
    assert_eq!(outputs(&events).choices[0].tokens, expected(&request, 0, Tokens(96)));
    wait_until(&handle, |report| report.sequences.is_empty());
    assert_eq!((handle.metrics().finished.abort.get(), handle.metrics().finished.length.get()), (1, 1));
    drop((broken, ticket));
    handle.stop(SOON);
    thread.join().unwrap();
}

/// Two hundred questions are asked at the first token; a few are answered before each of the next ones.
#[test]
fn questions_do_not_keep_those_waiting_who_wait_for_tokens() {
    let (handle, thread) = start(Duration::ZERO);
    let (asker, mut answers) = (handle.clone(), Vec::new());
    let (tell, told) = channel();
    let sink = move |event: Event| match event {
        Event::Token(_) if answers.is_empty() => answers.extend((0..200).map(|_| asker.report())),
        Event::Done(_) => {
            let answered = answers.iter_mut().filter_map(|answer| answer.wait(Duration::ZERO).ok());
            tell.send(answered.count()).unwrap();
        }
        _ => {}
    };
    let ticket = handle.submit(Request::new(prompt(1, 4), 3), Box::new(sink)).unwrap();
    let answered = told.recv_timeout(SOON).unwrap();
    assert!(0 < answered && answered < 20, "{answered} questions were answered before three tokens came");
    drop(ticket);
    handle.stop(SOON);
    thread.join().unwrap();
}

#[test]
fn dropping_a_ticket_ends_its_request_and_frees_its_pages() {
    let (handle, thread) = start(Duration::from_millis(2));
    let (gone, never_ends) = sink();
    let ticket = handle.submit(Request::new(prompt(1, 5), 90), gone).unwrap();
    wait_until(&handle, |report| report.sequences.len() == 1);
    drop(ticket);
    wait_until(&handle, |report| report.sequences.is_empty() && report.snapshot.pages.used == Pages(0));
    let events: Vec<Event> = never_ends.iter().collect();
    assert!(!events.iter().any(Event::is_last), "nobody is there to hear how it ended");
    assert_eq!(handle.metrics().finished.abort.get(), 1);
    handle.stop(SOON);
    thread.join().unwrap();
}

#[test]
fn dropping_every_handle_and_ticket_ends_the_thread() {
    let (handle, thread) = start(Duration::from_millis(1));
    let (sink, _events) = sink();
    let ticket = handle.submit(Request::new(prompt(1, 5), 90), sink).unwrap();
    drop((handle, ticket));
    thread.join().unwrap();
}

#[test]
fn stopping_lets_those_under_way_end_and_takes_no_others() {
    let (handle, thread) = start(Duration::from_millis(1));
    let requests: Vec<_> = (0..8).map(|who| Request::new(prompt(who, 5), 6)).collect();
    let under_way: Vec<_> = requests
        .iter()
        .map(|request| {
            let (sink, events) = sink();
            (handle.submit(request.clone(), sink).unwrap(), events)
        })
        .collect();
    handle.stop(SOON);
    let refused = handle.submit(Request::new(prompt(1, 5), 6), sink().0).unwrap_err();
    assert_eq!(refused, SubmitError::ShuttingDown);
    for (request, (_, events)) in requests.iter().zip(&under_way) {
        let outputs = outputs(events);
        assert_eq!(outputs.failure, None);
        assert_eq!(outputs.choices[0].tokens, expected(request, 0, Tokens(96)));
    }
    thread.join().unwrap();
    assert_eq!(handle.report().wait(SOON).unwrap_err(), NoAnswer::Stopped);
    assert_eq!(handle.intake().waiting(), 0);
}

#[test]
fn what_has_not_ended_by_the_deadline_is_told_that_the_engine_stops() {
    let (handle, thread) = start(Duration::from_millis(5));
    let under_way: Vec<_> = (0..6)
        .map(|who| {
            let (sink, events) = sink();
            (handle.submit(Request::new(prompt(who, 5), 90), sink).unwrap(), events)
        })
        .collect();
    wait_until(&handle, |report| !report.sequences.is_empty());
    handle.stop(Duration::ZERO);
    for (_, events) in &under_way {
        assert_eq!(outputs(events).failure, Some(Failure::ShuttingDown));
    }
    thread.join().unwrap();
    assert_eq!(handle.intake().waiting(), 0);
}

#[test]
fn the_cache_can_be_looked_at_pinned_and_emptied() {
    let (handle, thread) = start(Duration::ZERO);
    let (sink, events) = sink();
    let ticket = handle.submit(Request::new(prompt(1, 20), 1), sink).unwrap();
    outputs(&events);
    drop(ticket);
    wait_until(&handle, |report| report.snapshot.pages.used == Pages(0));
    assert_eq!(handle.audit().wait(SOON).unwrap().problem, None);
    assert!(handle.report().wait(SOON).unwrap().last_audit.is_some());
    let size = Bench::pool(24, 4).page_size;
    let cached = Prompt::new(prompt(1, 20), Scope::default(), size).unwrap();
    let (pin, covered) = handle.pin(cached).wait(SOON).unwrap().unwrap();
    assert_eq!(covered, Tokens(20));
    assert_eq!(handle.drop_prefixes().wait(SOON).unwrap(), Pages(0), "pinned pages stay");
    handle.unpin(pin).wait(SOON).unwrap().unwrap();
    assert_eq!(handle.unpin(pin).wait(SOON).unwrap(), Err(PinError::Unknown(pin)));
    assert_eq!(handle.drop_prefixes().wait(SOON).unwrap(), Pages(5));
    assert_eq!(handle.report().wait(SOON).unwrap().snapshot.pages.free, Pages(24));
    handle.stop(SOON);
    thread.join().unwrap();
}

#[test]
fn a_question_that_nobody_waits_for_is_not_answered() {
    let (handle, thread) = start(Duration::ZERO);
    let ((send, events), (go, gate)) = (channel(), channel());
    // The engine waits in the midst of a step, as soon as the prompt is cached.
    let sink = Box::new(move |event: Event| {
        let holds = matches!(event, Event::Token(_));
        send.send(event).unwrap();
        if holds {
            gate.recv().unwrap();
        }
    });
    let _ticket = handle.submit(Request::new(prompt(1, 20), 1), sink).unwrap();
    while !matches!(events.recv_timeout(SOON).unwrap(), Event::Token(_)) {}
    let size = Bench::pool(24, 4).page_size;
    let cached = Prompt::new(prompt(1, 20), Scope::default(), size).unwrap();
    drop(handle.pin(cached.clone()));
    let mut late = handle.pin(cached);
    assert_eq!(late.wait(Duration::ZERO).unwrap_err(), NoAnswer::Busy);
    go.send(()).unwrap();
    let (pin, covered) = late.wait(SOON).unwrap().unwrap();
    assert_eq!(covered, Tokens(20));
    handle.unpin(pin).wait(SOON).unwrap().unwrap();
    assert_eq!(handle.drop_prefixes().wait(SOON).unwrap(), Pages(5), "no pin is left that nobody knows");
    // However long one would wait.
    handle.stop(Duration::MAX);
    thread.join().unwrap();
}

#[test]
fn many_threads_send_at_once() {
    let (handle, thread) = start(Duration::ZERO);
    let senders: Vec<_> = (0..8)
        .map(|who| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                for len in 1..20 {
                    let request = Request::new(prompt(who, 3 * len), 1 + who);
                    let (sink, events) = sink();
                    let ticket = handle.submit(request.clone(), sink).unwrap();
                    let outputs = outputs(&events);
                    assert_eq!(outputs.choices[0].tokens, expected(&request, 0, Tokens(96)));
                    drop(ticket);
                }
            })
        })
        .collect();
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    handle.stop(SOON);
    thread.join().unwrap();
    assert_eq!(handle.metrics().finished.length.get(), 8 * 19);
}

#[test]
fn a_request_that_comes_after_a_long_silence_has_all_its_time() {
    let (handle, thread) = start(Duration::ZERO);
    std::thread::sleep(Duration::from_millis(1200));
    let (sink, events) = sink();
    let limited = Request { time_limit: Some(Duration::from_secs(1)), ..Request::new(prompt(1, 5), 3) };
    let _ticket = handle.submit(limited, sink).unwrap();
    let outputs = outputs(&events);
    assert_eq!(outputs.failure, None);
    assert!(outputs.usage.queued < Duration::from_secs(1), "{:?}", outputs.usage);
    handle.stop(SOON);
    thread.join().unwrap();
}
