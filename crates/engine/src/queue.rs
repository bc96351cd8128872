//! Requests that wait, and those that gave their pages up for others.

use crate::intake::Place;
use crate::request::RequestId;
use crate::task::{Order, Task};
use octavo_kv::Prompt;
use octavo_types::Timestamp;
use std::collections::BTreeMap;

/// A task without a sequence.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) task: Box<Task>,
    /// All its tokens, generated ones too.
    pub(crate) prompt: Prompt,
    /// Until its first step; those that ran before are not turned away.
    pub(crate) place: Option<Place>,
}

/// In the order they go.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tasks: BTreeMap<Order, Waiting>,
    /// No task that waits must have ended before this.
    next_deadline: Option<Timestamp>,
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        if let Some(deadline) = waiting.task.shared.deadline {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        }
        self.tasks.insert(waiting.task.order, waiting);
    }

    pub(crate) fn first(&self) -> Option<&Waiting> {
        self.tasks.first_key_value().map(|(_, waiting)| waiting)
    }
    pub(crate) fn pop_first(&mut self) -> Option<Waiting> {
        self.tasks.pop_first().map(|(_, waiting)| waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Takes out every choice of a request.
    pub(crate) fn remove(&mut self, id: RequestId) {
        self.tasks.retain(|_, waiting| waiting.task.id() != id);
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.tasks.values().map(|waiting| waiting.task.id())
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(|waiting| &*waiting.task)
    }

    /// Requests whose time is over. Looks at them only once the first deadline has passed.
    pub(crate) fn late(&mut self, now: Timestamp) -> Vec<RequestId> {
        if self.next_deadline.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let deadlines = || self.tasks.values().filter_map(|w| Some((w.task.shared.deadline?, w.task.id())));
        self.next_deadline =
            deadlines().map(|(deadline, _)| deadline).filter(|deadline| *deadline > now).min();
        deadlines().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| id).collect()
    }
}
