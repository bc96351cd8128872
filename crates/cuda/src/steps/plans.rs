//! Attention's plans of a step: one for each key, however many layer groups there are.
//!
//! They depend on how long the sequences are, and not on their tokens or pages: while the device computes a step, those
//! of the next are made on the guess that every sequence goes on by one token. Where that is wrong, because one has
//! ended or joined, they are made anew: the same either way.

use crate::device::Processors;
use crate::plan::{Plan, PlanKey};
use octavo_backend::Span;

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Plans {
    pub(super) processors: Processors,
    page_size: usize,
    pub(super) spans: Vec<Span>,
    pub(super) plans: Vec<(PlanKey, Plan)>,
}

impl Plans {
    pub(super) fn new(
        processors: Processors,
        page_size: usize,
        spans: Vec<Span>,
        keys: impl IntoIterator<Item = PlanKey>,
    ) -> Self {
        let mut plans: Vec<(PlanKey, Plan)> = Vec::new();
        for key in keys {
            if !plans.iter().any(|(other, _)| *other == key) {
                plans.push((key, Plan::new(processors, key, page_size, &spans)));
            }
        }
        Self { processors, page_size, spans, plans }
    }

    /// Those of the next step, if every sequence goes on by a token.
    pub(super) fn next(&self) -> Self {
        let next = |span: &Span| Span { start: span.start + 1, ..*span };
        let spans = self.spans.iter().map(next).collect();
        Self::new(self.processors, self.page_size, spans, self.plans.iter().map(|(key, _)| *key))
    }

    /// Whether these are what [`new`](Self::new) would make.
    pub(super) fn are_for(
        &self,
        page_size: usize,
        spans: &[Span],
        mut keys: impl Iterator<Item = PlanKey>,
    ) -> bool {
        self.page_size == page_size
            && self.spans == spans
            && keys.all(|key| self.plans.iter().any(|(other, _)| *other == key))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &(PlanKey, Plan)> {
        self.plans.iter()
    }

    pub(super) fn of(&self, key: PlanKey) -> &Plan {
        let found = self.plans.iter().find(|(other, _)| *other == key);
        &found.expect("planned for every key").1
    }
}
