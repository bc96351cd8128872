use super::*;
use crate::emulated::{Emulated, emulated};
use crate::kernels::Kernel;
use crate::plan::Tuning;
use octavo_backend::{Backend, Choice, PageLayout, Rows, Span, WeightFormat};
use octavo_engine::{Engine, EngineConfig, Flow, ModelRunner, Request};
use octavo_kv::Settings;
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{Bytes, KvDtype, KvSpec, PageId, PageSize, Pages, Tokens};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn a_step_is_filled_up_to_the_next_rung() {
    let found = [1, 2, 3, 5, 16, 17, 25, 33, 49, 255, 256].map(|rows| rung(rows).unwrap());
    assert_eq!(found, [1, 2, 4, 8, 16, 24, 32, 48, 64, 256, 256]);
    assert_eq!([rung(0), rung(257)], [None, None]);
}

fn load(cuda: &Cuda, name: &str) -> (Model<Cuda>, KvSpec) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
    let config = ModelConfig::from_dir(&folder).unwrap();
    let spec = config.kv_spec(KvDtype::F16, PageSize::new(PAGE).unwrap(), None).unwrap();
    let weights = Weights::open(&folder).unwrap();
    let model = Model::load(cuda, config, &spec, &weights, WeightFormat::AsStored, &mut |_| {}).unwrap();
    (model, spec)
}

/// A fixture's model, and sequences of it that have all the pages they will need.
struct World {
    cuda: Cuda,
    model: Model<Cuda>,
    arena: CudaArena,
    /// Of each layer group.
    windows: Vec<Option<u32>>,
    sequences: Vec<Vec<u32>>,
    /// How many of its first pages the last sequence has of the one before it.
    shared: usize,
}

const PAGES_EACH: u32 = 6;
const PAGE: u32 = 16;

/// No page that has left the window, and none for what comes later.
fn held<'a>(window: Option<u32>, span: &Span, pages: &'a [PageId]) -> TableView<'a> {
    let first = window.map_or(0, |window| (span.start + 1).saturating_sub(window) / PAGE);
    TableView { first, pages: &pages[first as usize..span.end().div_ceil(PAGE) as usize] }
}

impl World {
    fn new(cuda: Cuda, name: &str) -> Self {
        let (model, spec) = load(&cuda, name);
        let windows: Vec<_> = spec.groups().iter().map(|group| group.window.map(|window| window.0)).collect();
        let pages = Pages(5 * PAGES_EACH * windows.len() as u32);
        let arena = cuda.arena(PageLayout::new(&spec), pages).unwrap();
        // Where nothing was stored is nothing but zeros: a page read by mistake changes results all the same.
        let sequences = [3, 20, 40].map(|len| (0..len).map(|i| i * 7 % 50 + 1).collect()).to_vec();
        Self { cuda, model, arena, windows, sequences, shared: 0 }
    }

    /// The last `rows` tokens of each of the `who`; the tokens and the logits of each.
    fn step(&mut self, who: &[usize], rows: impl Fn(usize) -> usize) -> Vec<(Option<u32>, Vec<f32>)> {
        let (mut tokens, mut spans, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for &at in who {
            let own = &self.sequences[at];
            let (first_row, rows) = (tokens.len(), rows(own.len()));
            spans.push(Span { first_row, rows, start: (own.len() - rows) as u32 });
            tokens.extend_from_slice(&own[own.len() - rows..]);
            wanted.push(tokens.len() as u32 - 1);
        }
        // Neighbours in a sequence are not neighbours in the arena.
        let pages = |at: usize, group: usize| {
            let shared = if at + 1 == self.sequences.len() { self.shared as u32 } else { 0 };
            let owner = |i| if i < shared { at - 1 } else { at };
            let first = |i| ((owner(i) * self.windows.len() + group) as u32 + 1) * PAGES_EACH;
            (0..PAGES_EACH).map(|i| PageId(first(i) - 1 - i)).collect::<Vec<_>>()
        };
        let pages: Vec<Vec<Vec<PageId>>> =
            (0..self.windows.len()).map(|group| who.iter().map(|at| pages(*at, group)).collect()).collect();
        let tables: Vec<Vec<TableView<'_>>> = self
            .windows
            .iter()
            .zip(&pages)
            .map(|(window, group)| {
                group.iter().zip(&spans).map(|(pages, span)| held(*window, span, pages)).collect()
            })
            .collect();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        let choices: Vec<Choice> = who
            .iter()
            .map(|&at| Choice { uniform: 0.37, temperature: at as f32 * 0.6, ..Choice::LIKELIEST })
            .collect();
        let rows = Rows::new(&tokens, &spans);
        let Self { cuda, model, arena, .. } = self;
        let out = model.forward_and_choose(cuda, rows, &tables, arena, &wanted, &choices).unwrap();
        let chosen = cuda.chosen(who.len()).unwrap();
        let logits = |row| {
            let mut logits = Vec::new();
            cuda.read_row(out, row, &mut logits).unwrap();
            logits
        };
        chosen.into_iter().enumerate().map(|(row, token)| (token, logits(row))).collect()
    }

    /// Steps of all sequences, each of which goes on by a token before it.
    fn decode(&mut self, steps: usize) -> Vec<(Option<u32>, Vec<f32>)> {
        let step = |_| {
            self.sequences.iter_mut().for_each(|sequence| sequence.push(7));
            self.step(&[0, 1, 2], |_| 1)
        };
        (0..steps).flat_map(step).collect()
    }

    /// Reads the prompts, then decodes with as many sequences as each number says.
    fn run(&mut self, batches: &[usize]) -> Vec<(Option<u32>, Vec<f32>)> {
        let mut all = self.step(&[0, 1, 2], |len| len);
        let mut now = all.clone();
        for &batch in batches {
            for (sequence, (token, _)) in self.sequences.iter_mut().zip(&now) {
                sequence.push(token.expect("a token") % 50);
            }
            let who: Vec<usize> = (0..batch).collect();
            now = self.step(&who, |_| 1);
            all.extend(now.clone());
        }
        all
    }
}

fn launched() -> Cuda {
    Cuda::on(Arc::new(Emulated::default()), true, false)
}

/// Three sequences in a step for four, then two, three again, and one.
const BATCHES: [usize; 7] = [3, 3, 2, 2, 3, 1, 1];

#[test]
fn a_replayed_step_has_the_bits_of_one_that_is_launched() {
    for name in ["qwen3-gqa", "gemma3-gqa"] {
        let mut replayed = World::new(emulated(true), name);
        let found = replayed.run(&BATCHES);
        assert_eq!(replayed.cuda.replays().0, 4, "all but the first of each size");
        assert!(found == World::new(launched(), name).run(&BATCHES), "{name}");
    }
}

/// The last row sees, to the end of a page, what the one before it stores in the same step. Of some layers the first page has
/// left the window.
#[test]
fn a_step_that_sees_what_it_stores_is_not_replayed() {
    let sharing = |cuda| {
        let mut world = World::new(cuda, "gemma3-gqa");
        world.sequences[1] = (1..=3 * PAGE - 2).collect();
        world.run(&[3, 3]);
        let mut replays = vec![world.cuda.replays().0];
        world.sequences[2] = world.sequences[1].clone();
        world.sequences[2].push(9);
        world.shared = 3;
        let mut found = Vec::new();
        for _ in 0..2 {
            found.push(world.step(&[0, 1, 2], |_| 1));
            replays.push(world.cuda.replays().0);
            world.sequences.iter_mut().for_each(|sequence| sequence.push(5));
        }
        (found, replays)
    };
    let (found, replays) = sharing(emulated(true));
    assert_eq!(replays, [1, 1, 2], "the step after it is replayed again");
    assert!(found == sharing(launched()).0);
}

#[test]
fn a_step_that_broke_off_while_it_was_recorded_is_forgotten() {
    let mut world = World::new(emulated(true), "qwen3-gqa");
    let prompts = world.step(&[0, 1, 2], |len| len);
    world.cuda.device.record().unwrap();
    let kind = Kind { model: 0, arena: 0, rows: 4, shapes: Vec::new() };
    world.cuda.steps.borrow_mut().current =
        Some(Current { kind, groups: Vec::new(), needs: Vec::new(), inputs: Some(Vec::new()) });
    assert!(world.step(&[0, 1, 2], |len| len) == prompts);
}

/// Sums of products that lie apart, of rows that fill the step up, too.
#[test]
fn a_replayed_step_adds_the_parts_of_products() {
    for name in ["qwen3-gqa", "gemma3-gqa"] {
        let run = |graphs| {
            let cuda = Cuda::on(Arc::new(Emulated::default()), false, graphs);
            cuda.tuning.set(Tuning { product_parts: 3, ..Tuning::default() });
            World::new(cuda, name).run(&[3, 3, 1])
        };
        assert!(run(true) == run(false), "{name}");
    }
}

/// A prompt of sixteen tokens has as many rows as a step of sixteen sequences, whose products are timed when they first
/// come: nobody who waits for a prompt should wait for that.
#[test]
fn products_of_prompts_do_not_recur_and_those_of_recorded_steps_do() {
    let device = Arc::new(Emulated::default());
    let mut world = World::new(Cuda::on(device.clone(), true, true), "qwen3-gqa");
    let products = || device.products.each_ref().map(|count| count.load(Ordering::Relaxed) > 0);
    world.step(&[1], |_| 16);
    assert_eq!(products(), [false, true], "a prompt");
    device.products[1].store(0, Ordering::Relaxed);
    world.step(&[0, 1], |_| 1);
    assert_eq!(products(), [true, false], "a step that is recorded");
}

#[test]
fn the_next_step_is_planned_while_the_last_one_runs() {
    let mut world = World::new(emulated(true), "gemma3-gqa");
    world.run(&[3, 3]);
    let ahead = |world: &World| world.cuda.steps.borrow_mut().ahead.take();
    let planned = ahead(&world).expect("a plan after a replay");
    let spans: Vec<Span> = (0..)
        .zip(&world.sequences)
        .map(|(first_row, own)| Span { first_row, rows: 1, start: own.len() as u32 })
        .collect();
    let keys: Vec<PlanKey> = world.cuda.steps.borrow().known[0].plans.iter().map(|(_, key)| *key).collect();
    assert!(keys.len() > 2 && planned.all().count() == 2, "two kinds of layers: {}", keys.len());
    let processors = world.cuda.device.processors();
    let key = keys[0];
    assert_eq!(planned, Plans::new(processors, PAGE as usize, spans, keys), "as if it were made then");
    let other = PlanKey { group: key.group + 1, ..key };
    let are_for = |key: PlanKey| planned.are_for(PAGE as usize, &planned.spans, [key].into_iter());
    assert!(are_for(key) && !are_for(other), "another model's layers");
}

/// The third decode step, before which `change` may change what was planned for it.
fn third_step(change: impl FnOnce(&mut Plans)) -> Vec<(Option<u32>, Vec<f32>)> {
    let mut world = World::new(emulated(true), "qwen3-gqa");
    world.run(&[3, 3]);
    change(world.cuda.steps.borrow_mut().ahead.as_mut().expect("a plan after a replay"));
    world.decode(1)
}

#[test]
fn a_plan_made_ahead_is_used_for_the_lengths_it_was_made_for_alone() {
    // What is wrong with it shows only where it is used.
    let spoil = |ahead: &mut Plans| {
        let mut turned = ahead.spans.clone();
        turned.iter_mut().zip(ahead.spans.iter().rev()).for_each(|(span, other)| span.start = other.start);
        let keys = ahead.all().map(|(key, _)| *key);
        ahead.plans = Plans::new(ahead.processors, PAGE as usize, turned, keys).plans;
    };
    let right = third_step(|_| {});
    assert!(third_step(spoil) != right, "it was not used");
    let other_lengths = third_step(|ahead| {
        spoil(ahead);
        ahead.spans[1].start += 1;
    });
    assert!(other_lengths == right, "it was used for other lengths");
}

#[test]
fn recordings_end_when_what_they_use_moves() {
    let mut world = World::new(emulated(true), "llama-gqa");
    world.run(&[3, 3]);
    let before = world.cuda.replays().0;
    // Thirty rows more than the buffers had: they move.
    world.sequences[0].extend(1..=70);
    world.run(&[3, 3]);
    assert_eq!(world.cuda.replays().0, before + 1);
}

/// Where sums of parts lie, which are more than ever before.
#[test]
fn recordings_end_when_room_for_parts_moves() {
    let run = |cuda: Cuda| {
        let mut world = World::new(cuda, "llama-gqa");
        let all = [20, 40, 60].map(|len| (1..=len).collect::<Vec<u32>>());
        world.sequences = all.to_vec();
        world.run(&[]);
        world.cuda.tuning.set(Tuning { part_tiles: 1, ..Tuning::default() });
        world.sequences.iter_mut().zip([3, 20, 33]).for_each(|(sequence, len)| sequence.truncate(len));
        let mut found = world.decode(2);
        let before = world.cuda.replays().0;
        world.sequences = all.to_vec();
        found.extend(world.decode(1));
        (found, world.cuda.replays().0 - before)
    };
    let ((found, replays), (launched, _)) = (run(emulated(true)), run(launched()));
    assert!(found == launched);
    assert_eq!(replays, 0);
}

/// Inputs that grow have room for twice what they were recorded with.
#[test]
fn a_recording_that_is_too_small_for_a_step_is_made_anew() {
    let run = |cuda| {
        let mut world = World::new(cuda, "qwen3-window");
        let all = [92, 20, 30].map(|len| (1..=len).collect::<Vec<u32>>());
        world.sequences = all.to_vec();
        world.run(&[]);
        world.sequences.iter_mut().for_each(|sequence| sequence.truncate(3));
        let mut found = world.decode(2);
        world.sequences = all.to_vec();
        let before = world.cuda.replays().0;
        let replays = [1, 1, 1].map(|steps| {
            found.extend(world.decode(steps));
            world.cuda.replays().0 - before
        });
        (found, replays)
    };
    let ((found, replays), (launched, _)) = (run(emulated(true)), run(launched()));
    assert!(found == launched);
    assert_eq!(replays, [0, 1, 2]);
}

#[test]
fn inputs_that_may_still_be_copied_are_waited_for() {
    let device = Arc::new(Emulated::default());
    let mut world = World::new(Cuda::on(device.clone(), true, true), "llama-gqa");
    world.run(&[3, 3, 3]);
    let waits = || device.waits.load(Ordering::Relaxed);
    assert_eq!((world.cuda.replays().0, waits()), (2, 0), "whoever has the tokens has waited");
    // As if nobody had asked for the last step's.
    world.cuda.steps.borrow_mut().stage.in_flight = true;
    world.cuda.chosen(0).unwrap();
    world.decode(1);
    assert_eq!((world.cuda.replays().0, waits()), (3, 1), "to ask for no token is not to wait");
}

/// Of two sequences with so many rows and a page each, and so many choices.
fn with_step<T>(
    arena: &CudaArena,
    [rows, choices]: [usize; 2],
    pages: [PageId; 2],
    run: impl FnOnce(&Step<'_, CudaArena>) -> T,
) -> T {
    let spans = [0, 1].map(|i| Span { first_row: i * rows, rows, start: 0 });
    let tokens = vec![1; 2 * rows];
    let tables = pages.each_ref().map(|page| TableView { first: 0, pages: std::slice::from_ref(page) });
    let choices = vec![Choice::LIKELIEST; choices];
    let rows = Rows::new(&tokens, &spans);
    run(&Step { model: 1, rows, tables: &[&tables], arena, choices: &choices })
}

const APART: [PageId; 2] = [PageId(0), PageId(1)];

fn small_arena(cuda: &Cuda) -> CudaArena {
    let dtype = KvDtype::F16;
    let layout = PageLayout { layers: 1, kv_heads: 1, page_size: PAGE as usize, head_dim: 16, dtype };
    cuda.arena(layout, Pages(2)).unwrap()
}

#[test]
fn only_steps_with_a_row_and_a_token_for_every_sequence_are_recorded() {
    let cuda = emulated(true);
    let arena = small_arena(&cuda);
    let recorded = |cuda: &Cuda, shape| with_step(&arena, shape, APART, |step| cuda.recorded_rows(step));
    assert_eq!(recorded(&cuda, [1, 2]), Some(2));
    assert_eq!(recorded(&cuda, [1, 0]), None, "no tokens");
    assert_eq!(recorded(&cuda, [2, 4]), None, "tokens after each row of a prompt");
    assert_eq!(recorded(&launched(), [1, 2]), None, "recording is off");
}

#[test]
fn a_step_that_fails_says_so_and_leaves_no_recording() {
    let cuda = emulated(true);
    let arena = small_arena(&cuda);
    let failed = || Err(BackendError::Device("a launch".into()));
    with_step(&arena, [2, 0], APART, |step| {
        assert_eq!(cuda.begin(step).unwrap(), Pass::Run);
        cuda.end(failed()).unwrap_err();
    });
    with_step(&arena, [1, 2], APART, |step| {
        assert_eq!(cuda.begin(step).unwrap(), Pass::Run);
        cuda.end(failed()).unwrap_err();
        assert_eq!(cuda.begin(step).unwrap(), Pass::Run);
        assert_eq!(cuda.end(Ok(())).unwrap(), Pass::Run, "once more, recorded");
        cuda.end(failed()).unwrap_err();
    });
    assert!(cuda.steps.borrow().recordings.is_empty());
}

#[test]
#[should_panic(expected = "pages of the arena")]
fn a_replayed_step_reads_no_page_beyond_the_arena() {
    let cuda = emulated(true);
    let arena = small_arena(&cuda);
    let mut stage = Stage::default();
    stage.reserve(&cuda.device, 64).unwrap();
    with_step(&arena, [1, 2], [PageId(0), PageId(2)], |step| {
        let plans = Plans::new(cuda.device.processors(), PAGE as usize, step.rows.spans.to_vec(), []);
        let place = Place { at: 0, capacity: 64 };
        Inputs::new(step, 2, &plans).write(Need::Pages, &mut stage.at(place));
    });
}

#[test]
fn another_arena_is_not_what_a_recording_knows() {
    let mut world = World::new(emulated(true), "llama-gqa");
    world.run(&[3, 3]);
    let before = world.cuda.replays().0;
    let layout = *world.arena.layout();
    let other = world.cuda.arena(layout, Pages(world.arena.pages() as u32)).unwrap();
    let _old = std::mem::replace(&mut world.arena, other);
    let mut anew = World::new(launched(), "llama-gqa");
    let rest = world.sequences.clone();
    anew.sequences = rest;
    assert!(world.run(&[3]) == anew.run(&[3]));
    assert_eq!(world.cuda.replays().0, before);
}

#[test]
fn a_rehearsal_asks_for_the_kernels_of_what_follows_and_runs_none() {
    let world = |device: &Arc<Emulated>| World::new(Cuda::on(device.clone(), false, true), "gemma3-gqa");
    let device = Arc::new(Emulated::default());
    let mut rehearsed = world(&device);
    device.ran.lock().unwrap().clear();
    rehearsed.cuda.rehearse(true).unwrap();
    rehearsed.step(&[0, 1, 2], |len| len);
    rehearsed.step(&[0, 1, 2], |_| 1);
    let asked = device.rehearsed.lock().unwrap().clone().expect("a rehearsal");
    rehearsed.cuda.rehearse(false).unwrap();
    assert!(device.ran.lock().unwrap().is_empty(), "nothing runs");
    assert_eq!(device.recordings.load(Ordering::Relaxed), 0);
    assert!(rehearsed.run(&[3, 3]) == world(&Arc::default()).run(&[3, 3]), "nothing is left of it");
    assert_eq!(rehearsed.cuda.replays().0, 1);
    let late: Vec<Kernel> = device.ran.lock().unwrap().difference(&asked).copied().collect();
    assert!(late.is_empty(), "not asked for before: {late:?}");
}

#[test]
fn after_the_warm_up_an_engine_records_nothing() {
    let device = Arc::new(Emulated::default());
    let cuda = Cuda::on(device.clone(), false, true);
    let (model, spec) = load(&cuda, "qwen3-gqa");
    let total = Pages(8);
    let settings = Settings::for_model(&spec, Bytes(u64::from(total.0) * spec.page_bytes().0));
    let config = EngineConfig::new(2, Tokens(48));
    let mut runner = ModelRunner::new(cuda, model, &spec, total).unwrap();
    let mut told = Vec::new();
    runner.warm_up(&settings, &config, &mut |done, total| told.push((done, total))).unwrap();
    // Chunks at the beginning and the end, and all; twice one sequence and two, of one token and of 48.
    assert_eq!(told, (0..=11).map(|done| (done, 11)).collect::<Vec<_>>());
    let recorded = device.recordings.load(Ordering::Relaxed);
    assert!(recorded >= 2, "one sequence, and two");
    let mut engine = Engine::new(config, settings, Box::new(runner), None).unwrap();
    let prompt = |len: u32| (1..=len).collect::<Vec<u32>>();
    // The second decodes on alone.
    let requests = vec![Request::new(prompt(15), 3), Request::new(prompt(31), 5)];
    let outputs = engine.generate(requests, &mut |_, _| Flow::Continue).unwrap();
    assert!(outputs.iter().all(|output| output.failure.is_none()), "{outputs:?}");
    assert_eq!(device.recordings.load(Ordering::Relaxed), recorded);
}
