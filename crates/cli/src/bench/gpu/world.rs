//! A model of random weights on the device, and sequences for it.

use anyhow::Result;
use octavo_backend::{
    Backend, BackendError, Choice, PageLayout, Random, Rows, Span, TableView, WeightFormat,
};
use octavo_cuda::bench::Bench;
use octavo_cuda::{Cuda, CudaArena};
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages, Tokens};
use std::ops::Range;

/// The model.
pub(in crate::bench) fn load(bench: &Bench, config: &ModelConfig, spec: &KvSpec) -> Result<Model<Cuda>> {
    bench.invent_weights();
    let weights = Weights::blank(config.vocab().max(2 * config.intermediate()) * config.hidden());
    let format = WeightFormat::AsStored;
    Ok(Model::load(bench.cuda(), config.clone(), spec, &weights, format, &mut |_| {})?)
}

pub(super) fn spec(config: &ModelConfig, dtype: KvDtype) -> Result<KvSpec> {
    Ok(config.kv_spec(dtype, PageSize::DEFAULT, None)?)
}

/// Tokens by which sequences may be shorter or longer.
pub(super) const SPARE: u32 = 16;

/// Sequences of the same length, their pages in random order.
pub(super) struct Sequences {
    arena: CudaArena,
    context: u32,
    /// By layer group and sequence: the index of the first page held, and the pages.
    tables: Vec<Vec<(u32, Vec<PageId>)>>,
    /// Of all keys and values at this length.
    pub(super) bytes: u64,
}

impl Sequences {
    /// Bytes that it would take.
    pub(super) fn need(spec: &KvSpec, batch: usize, context: u32) -> u64 {
        bytes_of(spec, batch, spared(context))
    }

    pub(super) fn new(bench: &Bench, spec: &KvSpec, batch: usize, context: u32) -> Result<Self> {
        let bytes = bytes_of(spec, batch, context..context);
        let pages = Pages(u32::try_from(Self::need(spec, batch, context) / spec.page_bytes().0)?);
        let arena = bench.cuda().arena(PageLayout::new(spec), pages)?;
        bench.fill_pages(&arena)?;
        let mut order: Vec<PageId> = (0..pages.0).map(PageId).collect();
        Random::new(5).shuffle(&mut order);
        let tables = (0..spec.groups().len()).map(|group| {
            let (first, count) = held(spec, group, spared(context));
            (0..batch).map(|_| (first, order.split_off(order.len() - count as usize))).collect()
        });
        Ok(Self { tables: tables.collect(), arena, context, bytes })
    }

    /// One token of each sequence, the last.
    pub(super) fn decode(&mut self, bench: &Bench, model: &mut Model<Cuda>) -> Result<()> {
        self.decode_to(bench, model, self.context)
    }

    /// One token of each sequence, which is `length` tokens long with it.
    pub(super) fn decode_to(&mut self, bench: &Bench, model: &mut Model<Cuda>, length: u32) -> Result<()> {
        assert!(length.abs_diff(self.context) <= SPARE, "pages for this length");
        self.step(bench, model, length - 1..length)?;
        bench.cuda().chosen(self.tables[0].len())?;
        Ok(())
    }

    /// The first `tokens` of every sequence, `chunk` a step. Nothing is waited for.
    pub(super) fn prefill(
        &mut self,
        bench: &Bench,
        model: &mut Model<Cuda>,
        tokens: u32,
        chunk: u32,
    ) -> Result<(), BackendError> {
        (0..tokens)
            .step_by(chunk as usize)
            .try_for_each(|at| self.step(bench, model, at..tokens.min(at + chunk)))
    }

    /// These positions of every sequence, and the token that comes next.
    fn step(
        &mut self,
        bench: &Bench,
        model: &mut Model<Cuda>,
        positions: Range<u32>,
    ) -> Result<(), BackendError> {
        let Self { arena, tables, .. } = self;
        let (batch, rows) = (tables[0].len(), positions.len());
        let span = |i| Span { first_row: i * rows, rows, start: positions.start };
        let spans: Vec<Span> = (0..batch).map(span).collect();
        let vocab = model.config().vocab() as u32;
        let tokens: Vec<u32> = (0..(batch * rows) as u32).map(|i| i * 97 % vocab).collect();
        let wanted: Vec<u32> = (1..=batch).map(|i| (i * rows - 1) as u32).collect();
        let tables: Vec<Vec<TableView<'_>>> = tables
            .iter()
            .map(|group| group.iter().map(|(first, pages)| TableView { first: *first, pages }).collect())
            .collect();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        let rows = Rows { apart: true, ..Rows::new(&tokens, &spans) };
        let choices = vec![Choice::LIKELIEST; batch];
        model.forward_and_choose(bench.cuda(), rows, &tables, arena, &wanted, &choices)?;
        Ok(())
    }
}

fn spared(context: u32) -> Range<u32> {
    context.saturating_sub(SPARE)..context + SPARE
}

/// Of the pages that so many sequences hold while they grow through these lengths.
fn bytes_of(spec: &KvSpec, batch: usize, lengths: Range<u32>) -> u64 {
    let pages = |group| u64::from(held(spec, group, lengths.clone()).1);
    (0..spec.groups().len()).map(pages).sum::<u64>() * batch as u64 * spec.page_bytes().0
}

/// The index of the first page that a sequence of these lengths holds in a group, and how many.
fn held(spec: &KvSpec, group: usize, lengths: Range<u32>) -> (u32, u32) {
    let size = spec.page_size();
    let first = spec.groups()[group].window.map_or(0, |window| lengths.start.saturating_sub(window.0));
    let first = size.page_of(Tokens(first)).0;
    (first, size.pages_for(Tokens(lengths.end)).0 - first)
}
