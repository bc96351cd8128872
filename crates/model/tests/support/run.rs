//! Runs sequences through a model with the simplest of page tables.

use octavo_backend::{Backend, PageLayout, Rows, Span, TableView, WeightFormat};
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages, Tokens};
use std::path::Path;

/// How a model is run.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) page_size: u32,
    pub(crate) kv: KvDtype,
    pub(crate) format: WeightFormat,
    /// No layer looks further back.
    pub(crate) window: Option<Tokens>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { page_size: 16, kv: KvDtype::F32, format: WeightFormat::AsStored, window: None }
    }
}

/// Tokens of one sequence stored so far, and its pages, `[group][page]`.
pub(crate) struct Sequence {
    len: u32,
    pages: Vec<Vec<PageId>>,
}

pub(crate) struct Session<B: Backend> {
    backend: B,
    pub(crate) model: Model<B>,
    spec: KvSpec,
    arena: B::Arena,
    /// Handed out from the end.
    free: Vec<PageId>,
}

/// A sequence of a batch, its new tokens, and how many of the last ones logits are wanted of.
pub(crate) type Part<'a> = (&'a mut Sequence, &'a [u32], usize);

impl<B: Backend> Session<B> {
    pub(crate) fn open(backend: B, dir: &Path, setup: Setup) -> Self {
        Self::with_config(backend, ModelConfig::from_dir(dir).unwrap(), dir, setup)
    }

    pub(crate) fn with_config(backend: B, config: ModelConfig, dir: &Path, setup: Setup) -> Self {
        let weights = Weights::open(dir).unwrap();
        let spec = config.kv_spec(setup.kv, PageSize::new(setup.page_size).unwrap(), setup.window).unwrap();
        let model = Model::load(&backend, config, &spec, &weights, setup.format, &mut |_| {}).unwrap();
        let pages = 8192 / setup.page_size * spec.groups().len() as u32;
        let arena = backend.arena(PageLayout::new(&spec), Pages(pages)).unwrap();
        // Neighbours in a sequence are not neighbours in the arena.
        let free = (0..pages).map(|i| PageId((i * 7919) % pages)).collect::<Vec<_>>();
        Self { backend, model, spec, arena, free }
    }

    pub(crate) fn sequence(&self) -> Sequence {
        Sequence { len: 0, pages: vec![Vec::new(); self.spec.groups().len()] }
    }

    /// One step over a batch: the logits wanted, `[rows][vocab]`.
    pub(crate) fn step(&mut self, batch: &mut [Part<'_>]) -> Vec<Vec<f32>> {
        let (mut tokens, mut spans, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, new, last) in batch.iter_mut() {
            spans.push(Span { first_row: tokens.len(), rows: new.len(), start: sequence.len });
            tokens.extend_from_slice(new);
            wanted.extend((tokens.len() - *last..tokens.len()).map(|row| row as u32));
            self.grow(sequence, new.len() as u32);
        }
        let tables: Vec<Vec<TableView<'_>>> =
            (0..self.spec.groups().len()).map(|group| self.tables(batch, &spans, group)).collect();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        let rows = Rows::new(&tokens, &spans);
        let logits = self.model.forward(&self.backend, rows, &tables, &mut self.arena, &wanted).unwrap();
        let mut out = Vec::new();
        self.backend.read(logits, &mut out).unwrap();
        assert_eq!(out.len(), wanted.len() * self.model.config().vocab());
        out.chunks(self.model.config().vocab()).map(<[f32]>::to_vec).collect()
    }

    fn grow(&mut self, sequence: &mut Sequence, by: u32) {
        sequence.len += by;
        let need = self.spec.page_size().pages_for(Tokens(sequence.len)).as_usize();
        for pages in &mut sequence.pages {
            while pages.len() < need {
                pages.push(self.free.pop().expect("the pool is large enough"));
            }
        }
    }

    /// Tables without the pages that have left the window of the group.
    fn tables<'a>(&self, batch: &'a [Part<'_>], spans: &[Span], group: usize) -> Vec<TableView<'a>> {
        let window = self.spec.groups()[group].window;
        let table = |((sequence, _, _), span): (&'a Part<'_>, &Span)| {
            let start = window.map_or(0, |window| (span.start + 1).saturating_sub(window.0));
            let first = self.spec.page_size().page_of(Tokens(start)).0;
            TableView { first, pages: &sequence.pages[group][first as usize..] }
        };
        batch.iter().zip(spans).map(table).collect()
    }

    /// The logits of every token, the sequence cut into chunks of at most `chunk` tokens.
    pub(crate) fn all_logits(&mut self, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
        let mut sequence = self.sequence();
        let step = |new: &[u32]| self.step(&mut [(&mut sequence, new, new.len())]);
        tokens.chunks(chunk).flat_map(step).collect()
    }

    /// The most likely continuation.
    pub(crate) fn greedy(&mut self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut sequence = self.sequence();
        let (mut new, mut out) = (prompt.to_vec(), Vec::new());
        while out.len() < count {
            let logits = self.step(&mut [(&mut sequence, &new, 1)]);
            out.push(argmax(&logits[0]));
            new = vec![*out.last().unwrap()];
        }
        out
    }
}

pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as u32
}

/// The largest difference, as a share of the largest logit.
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    let difference = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(difference.is_finite());
    difference / largest
}

/// The typical difference, as a share of the typical logit.
pub(crate) fn spread(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
    let difference = squares(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}
