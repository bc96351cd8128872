//! Pages that a step fills, and whether it reads them.

use crate::arena::CudaArena;
use octavo_backend::{Span, Step, TableView};

/// For every page of the arena whether a row of the step at hand fills it. Kept, because many steps may ask.
#[derive(Debug, Default)]
pub(super) struct Filling(Vec<bool>);

impl Filling {
    /// Whether a row sees a page that another one fills: a page may be shared from the moment on at which it is planned to be
    /// full, with a sequence that begins in the same step.
    pub(super) fn is_seen_in(&mut self, step: &Step<'_, CudaArena>) -> bool {
        let size = step.arena.layout().page_size as u32;
        let rows = || step.tables.iter().flat_map(|tables| step.rows.spans.iter().zip(*tables));
        let own = |span: &Span, table: &TableView<'_>| (span.start / size - table.first) as usize;
        let fills = |span: &Span| (span.start + 1).is_multiple_of(size);
        if !step.rows.spans.iter().any(fills) {
            return false;
        }
        let Self(filled) = self;
        filled.resize(step.arena.pages(), false);
        let mark = |filled: &mut [bool], mark| {
            for (span, table) in rows().filter(|(span, _)| fills(span)) {
                filled[table.pages[own(span, table)].index()] = mark;
            }
        };
        mark(filled, true);
        let mut before_own = rows().flat_map(|(span, table)| &table.pages[..own(span, table)]);
        let is_seen = before_own.any(|page| filled[page.index()]);
        mark(filled, false);
        is_seen
    }
}
