//! Letting new requests in, and those back that gave way.

use crate::engine::{Engine, Events};
use crate::event::Failure;
use crate::intake::Place;
use crate::plan::{Others, Planned};
use crate::queue::Waiting;
use crate::request::RequestId;
use crate::task::{Running, Task};
use octavo_kv::{Claim, Hit, Prompt, Reuse};
use octavo_types::{Pages, SeqId, Tokens};

/// The first in the queue, and why it was not admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    id: RequestId,
    /// Pages that could be had then.
    room: Pages,
    /// Steps there had been.
    step: u64,
}

/// Steps after which the first in the queue is looked at even if there is no more room than before.
const LOOK_AGAIN: u64 = 16;

impl Engine {
    /// In the order of the queue, as long as the batch, the chunk and the pages have room. Each is put into the step
    /// before the next is looked at, so that the next can share what this one is about to compute.
    pub(crate) fn admit(&mut self, budget: &mut Tokens, events: &mut Events) {
        while *budget > Tokens::ZERO && self.may_admit() {
            let waiting = self.queue.pop_first().expect("may_admit saw it");
            if !self.admit_one(waiting, budget, events) {
                return;
            }
        }
    }

    fn may_admit(&self) -> bool {
        let Some(first) = self.queue.first() else { return false };
        let forks = |task: &Task| task.forks_to_come() as usize;
        let to_come: usize = self.running.iter().map(|running| forks(&running.task)).sum();
        let after = self.running.len() + to_come + 1 + forks(&first.task);
        if after > self.config.max_batch as usize {
            return false;
        }
        match self.blocked_with {
            Some(blocked) if blocked.id == first.task.id() && !self.running.is_empty() => {
                // There is more now, or others may have computed what it needs by now.
                self.room() > blocked.room || self.metrics.steps.get() >= blocked.step + LOOK_AGAIN
            }
            _ => true,
        }
    }

    /// Pages that new prompts could have, by eviction too.
    fn room(&self) -> Pages {
        self.cache.available(Claim::New).saturating_sub(self.promised())
    }

    /// Whether to go on with the next.
    fn admit_one(&mut self, waiting: Waiting, budget: &mut Tokens, events: &mut Events) -> bool {
        let Waiting { task, prompt, place } = waiting;
        let id = task.id();
        let reuse = if task.wants_prompt_logprobs() { Reuse::Nothing } else { Reuse::Longest };
        let (len, before) = (prompt.len(), self.room());
        let (seq, hit) = match self.cache.admit_uncounted(prompt, reuse) {
            Ok(admitted) => admitted,
            Err(error) => {
                self.fail_request(id, Failure::Step(error.to_string()), events);
                return true;
            }
        };
        let at = self.running.partition_point(|other| other.order() < task.order);
        let fits = self.fits(seq, &task, len);
        self.running.insert(at, Running::new(task, seq));
        if !fits || self.plan_chunk(at, budget, Others::Stay, events) == Planned::NoRoom {
            if self.running.len() == 1 {
                // Nobody else is in its way: whether it can run at all is for the last resort to say.
                self.note_admission(seq, hit);
                return false;
            }
            self.send_back(at, place);
            self.blocked_with = Some(Blocked { id, room: before, step: self.metrics.steps.get() });
            return false;
        }
        drop(place);
        self.blocked_with = None;
        self.note_admission(seq, hit);
        true
    }

    /// The share of new prompts. What there is can be had where nothing else runs, and where nobody can ever need the rest,
    /// as where a sequence takes a slot whatever its length.
    fn fits(&self, seq: SeqId, task: &Task, len: Tokens) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let held = self.cache.sequence(seq).expect("just admitted").pages();
        let need = self.pages_for(len).saturating_sub(held);
        let room = self.room();
        let share = self.config.prompt_share;
        // A share such as 0.9 is a little less than that in binary: nine of ten pages are within it all the same.
        let within = f64::from(need.0) <= f64::from(room.0) * f64::from(share + f32::EPSILON);
        let most = self.most_pages(seq, task).saturating_sub(held.0.into());
        within || most + self.growth() <= room.0.into()
    }

    /// The most pages that those running may still take, beside what is promised to their prompts.
    fn growth(&self) -> u64 {
        let pages = self.running.iter().map(|running| {
            let held = self.cache.sequence(running.seq).expect("running").pages();
            let most = self.most_pages(running.seq, &running.task);
            let promised = if running.reading { self.promised_to(running) } else { Pages::ZERO };
            most.saturating_sub((held + promised).0.into())
        });
        pages.sum()
    }

    /// The most pages a sequence can come to hold, its choices to come among them: each may copy the shared page it
    /// writes into.
    fn most_pages(&self, seq: SeqId, task: &Task) -> u64 {
        let known = self.cache.sequence(seq).expect("running").prompt().len();
        let left = task.shared.request.max_tokens.saturating_sub(task.generated);
        let end =
            known.checked_add(Tokens(left)).map_or(self.config.max_len, |end| end.min(self.config.max_len));
        let groups = self.cache.settings().windows.len() as u32;
        let forks = u64::from(task.forks_to_come());
        let each = (self.pages_for(end) + Pages(groups)).saturating_sub(self.pages_for(known));
        u64::from(self.pages_for(end).0) + u64::from(each.0) * forks
    }

    /// Undoes an admission: it waits where it waited.
    fn send_back(&mut self, at: usize, place: Option<Place>) {
        let Running { task, seq, .. } = self.running.remove(at);
        let prompt: Prompt = self.cache.preempt(seq).expect("it is not in the step");
        self.queue.push(Waiting { task, prompt, place });
    }

    /// A request's lookup counts when it is first admitted; what one that gave way finds again is no hit.
    fn note_admission(&mut self, seq: SeqId, hit: Hit) {
        let Some(running) = self.running.iter().find(|running| running.seq == seq) else { return };
        let task = &running.task;
        let recomputed = task.computed_before.saturating_sub(hit.tokens);
        self.metrics.tokens_recomputed.add(recomputed.0.into());
        let Some(group) = self.groups.get_mut(&task.id()) else { return };
        if group.starts(self.now, hit.tokens) {
            self.cache.count_lookup(seq, &hit).expect("it runs");
            self.intake.note_wait(group.usage.queued);
            self.metrics.prompt_tokens.add(task.shared.prompt_len.0.into());
            self.metrics.prompt_tokens_cached.add(hit.tokens.0.into());
        }
    }
}
