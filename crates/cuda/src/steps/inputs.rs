//! What a recorded step reads, as the device reads it: written straight from where the engine has it.

use super::plans::Plans;
use super::{NOWHERE, Need};
use crate::arena::CudaArena;
use crate::batch::{check, origins};
use crate::choose::PlainChoice;
use crate::plan::{Item, PlanKey};
use crate::stage::Writer;
use octavo_backend::{Choice, Step, TableView};

pub(super) struct Inputs<'a> {
    step: &'a Step<'a, CudaArena>,
    /// Rows that the step is filled up to.
    rows: usize,
    plans: &'a Plans,
    /// The index of the page in which each row is stored.
    own: Vec<u32>,
    /// Where each layer group's pages begin among those of all, and where the last one's end.
    bases: Vec<usize>,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(step: &'a Step<'a, CudaArena>, rows: usize, plans: &'a Plans) -> Self {
        let size = step.arena.layout().page_size;
        let mut bases = vec![0];
        for tables in step.tables {
            check(size, step.rows.spans, ranges(tables));
            bases.push(bases[bases.len() - 1] + tables.iter().map(|table| table.pages.len()).sum::<usize>());
        }
        let own = step.rows.spans.iter().map(|span| span.start / size as u32).collect();
        Self { step, rows, plans, own, bases }
    }

    fn items(&self, key: PlanKey) -> &[Item] {
        &self.plans.of(key).launches[0].items
    }

    pub(super) fn bytes(&self, need: Need) -> usize {
        let word = size_of::<u32>();
        match need {
            Need::Tokens | Need::Positions => self.rows * word,
            Need::Choices => self.rows * size_of::<Choice>(),
            Need::Pages => self.bases[self.bases.len() - 1] * word,
            Need::Slots(_) => 2 * self.rows * word,
            Need::Work(_, key) => size_of_val(self.items(key)),
        }
    }

    /// Filled up to the recorded rows.
    pub(super) fn write(&self, need: Need, out: &mut Writer<'_>) {
        let (step, spans) = (self.step, self.step.rows.spans);
        let more = self.rows - step.rows.tokens.len();
        match need {
            Need::Tokens => {
                out.put(step.rows.tokens);
                out.put_each(std::iter::repeat_n(0u32, more));
            }
            Need::Positions => {
                out.put_each(spans.iter().map(|span| span.start));
                out.put_each(std::iter::repeat_n(0u32, more));
            }
            Need::Choices => {
                out.put_each(step.choices.iter().map(|choice| PlainChoice(*choice)));
                out.put_each(std::iter::repeat_n(PlainChoice(Choice::LIKELIEST), more));
            }
            Need::Pages => {
                step.tables.iter().copied().flatten().for_each(|table| self.write_pages(table, out))
            }
            Need::Slots(group) => {
                let size = step.arena.layout().page_size as u32;
                for ((span, own), table) in spans.iter().zip(&self.own).zip(step.tables[group]) {
                    let page = table.pages[(own - table.first) as usize];
                    out.put(&[page.0, span.start - own * size]);
                }
                out.put_each(std::iter::repeat_n(NOWHERE, 2 * more));
            }
            Need::Work(group, key) => {
                let origins = origins(self.bases[group], ranges(step.tables[group]));
                out.put_each(self.items(key).iter().map(|item| item.over(&origins)));
            }
        }
    }

    fn write_pages(&self, table: &TableView<'_>, out: &mut Writer<'_>) {
        let last = table.pages.iter().map(|page| page.0).fold(0, u32::max);
        assert!((last as usize) < self.step.arena.pages(), "pages of the arena");
        out.put(table.pages);
    }
}

/// The index of the first page of each table, and how many it holds.
fn ranges(tables: &[TableView<'_>]) -> impl Iterator<Item = (u32, usize)> {
    tables.iter().map(|table| (table.first, table.pages.len()))
}
