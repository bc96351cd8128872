//! Sequences whose keys and values fill pages in random order, and steps of a model over them.

use super::machine::Machine;
use super::measure::{SEED, time};
use anyhow::{Result, bail};
use octavo_backend::{Backend, PageLayout, Random, Rows, Span, TableView, codec};
use octavo_cpu::{Arena, Cpu};
use octavo_model::Model;
use octavo_types::{KvSpec, PageId, Pages};
use std::ops::Range;

/// The cache of some sequences.
#[derive(Debug)]
pub(super) struct Sequences {
    pub(super) arena: Arena,
    /// The pages of each.
    pub(super) tables: Vec<Vec<PageId>>,
}

/// Rows of a step: the same number for each sequence, at the same position.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) sequences: Range<usize>,
    pub(super) start: usize,
    pub(super) rows_each: usize,
}

impl Sequences {
    /// One sequence for each of `lengths`, with room for so many tokens. `spec` has one layer group.
    pub(super) fn new(spec: &KvSpec, lengths: &[usize]) -> Result<Self> {
        let layout = PageLayout::new(spec);
        let needs: Vec<usize> = lengths.iter().map(|tokens| tokens.div_ceil(layout.page_size)).collect();
        let total: usize = needs.iter().sum();
        let Ok(pages) = u32::try_from(total) else { bail!("{total} pages are too many") };
        let mut arena = Arena::new(layout, Pages(pages))?;
        let mut random = Random::new(SEED);
        fill(&mut arena, &mut random);
        let mut order: Vec<PageId> = (0..pages).map(PageId).collect();
        random.shuffle(&mut order);
        let tables = needs.iter().map(|pages| order.split_off(order.len() - pages)).collect();
        Ok(Self { arena, tables })
    }

    pub(super) fn tables(&self, of: Range<usize>) -> Vec<TableView<'_>> {
        self.tables[of].iter().map(|pages| TableView { first: 0, pages }).collect()
    }

    /// Bytes of keys and values, all layers together.
    pub(super) fn bytes(&self) -> usize {
        self.arena.pages() * self.arena.layout().page_bytes()
    }

    /// Seconds of one step, from tokens to the logits of every sequence's last row.
    pub(super) fn run(
        &mut self,
        machine: &Machine,
        model: &mut Model<Cpu>,
        step: &Step,
        logits: &mut Vec<f32>,
    ) -> Result<f64> {
        let spans = step.spans();
        let vocab = model.config().vocab() as u32;
        let tokens: Vec<u32> = (0..spans.len() * step.rows_each).map(|i| i as u32 * 97 % vocab).collect();
        let wanted: Vec<u32> = spans.iter().map(|span| (span.first_row + span.rows - 1) as u32).collect();
        let Self { arena, tables } = self;
        let tables: Vec<_> =
            tables[step.sequences.clone()].iter().map(|pages| TableView { first: 0, pages }).collect();
        let rows = Rows::new(&tokens, &spans);
        let (took, result) = time(|| {
            let out = model.forward(&machine.cpu, rows, &[&tables], arena, &wanted)?;
            machine.cpu.read(out, logits)
        });
        result?;
        Ok(took.as_secs_f64())
    }
}

impl Step {
    /// The spans, one a sequence.
    pub(super) fn spans(&self) -> Vec<Span> {
        let span = |i| Span { first_row: i * self.rows_each, rows: self.rows_each, start: self.start as u32 };
        (0..self.sequences.len()).map(span).collect()
    }
}

/// Writes every page, so that it has memory of its own: a page that was never written is read from nowhere.
fn fill(arena: &mut Arena, random: &mut Random) {
    let layout = *arena.layout();
    let rows = layout.layers * 2 * layout.kv_heads * layout.page_size;
    let mut page = vec![0; layout.page_bytes()];
    let (elements, parameters) = page.split_at_mut(rows * layout.row_bytes());
    for slot in 0..rows {
        codec::encode(
            layout.dtype,
            &random.values(layout.head_dim, 1.0),
            &mut elements[slot * layout.row_bytes()..][..layout.row_bytes()],
            &mut parameters[slot * layout.parameter_bytes()..][..layout.parameter_bytes()],
        );
    }
    for i in 0..arena.pages() {
        arena.page_mut(PageId(i as u32)).copy_from_slice(&page);
    }
}
