//! Checks that the cache agrees with itself.

use crate::cache::KvCache;
use crate::plan::Span;
use octavo_types::{PageId, Pages, SeqId, Tokens};
use std::collections::HashSet;
use std::time::Duration;

/// What is wrong, in words for the log. The cache can go on: the page concerned stays out of circulation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cache is inconsistent: {0}")]
pub struct Inconsistent(pub String);

/// What an audit found that is unusual but not wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    /// Pages held by a handle outside every sequence and the open step.
    pub held_outside: Vec<PageId>,
}

/// How often, and how far apart, pages are looked for that are on their way back.
const LOOKS: usize = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Where a page is, as far as the pool and the cache say. Exactly one is true of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Free,
    Returned,
    Idle,
    Held,
}

impl KvCache {
    /// Goes through everything, in time proportional to the pool. Tests call it after every operation, a
    /// server after every failed step.
    pub fn check(&self) -> Result<Audit, Inconsistent> {
        self.audit().map_err(Inconsistent)
    }

    fn audit(&self) -> Result<Audit, String> {
        let places = self.places()?;
        self.index.check()?;
        self.pins.check()?;
        for (id, _) in self.sequences() {
            self.check_sequence(id)?;
        }
        if !self.counts().add_up() {
            return Err(format!("{:?} do not add up", self.counts()));
        }
        let idle = places.iter().filter(|place| **place == Place::Idle).count();
        if idle != self.cached.as_usize() {
            return Err(format!("{idle} pages are cached, {} were counted", self.cached));
        }
        if self.step.is_empty() && !self.step.pending.is_empty() {
            return Err("keys are pending outside a step".into());
        }
        let mut held = vec![0u32; places.len()];
        let in_tables = self.sequences.values().flat_map(|sequence| &sequence.tables).flat_map(|t| t.pages());
        in_tables.for_each(|page| held[page.index()] += 1);
        self.check_apart(&held)?;
        self.step.held().for_each(|page| held[page.index()] += 1);
        let mut audit = Audit::default();
        let mut leaving = Vec::new();
        for (page, (place, held)) in (0..).map(PageId).zip(places.into_iter().zip(held)) {
            let refs = self.pool.refs(page).map_err(|error| error.to_string())?;
            if place == Place::Held && (held, refs) == (0, 0) {
                leaving.push(page);
            } else {
                self.check_page(page, place, [held, refs], &mut audit)?;
            }
        }
        self.check_return(&leaving)?;
        Ok(audit)
    }

    /// Where the step says that its sequences are apart, what it fills is held by one of them; `held` counts tables.
    fn check_apart(&self, held: &[u32]) -> Result<(), String> {
        let size = self.settings.page_size;
        for Span { seq, positions } in self.step.spans().iter().filter(|_| self.step.is_apart()) {
            let filled = size.page_of(positions.start).0..size.pages_for(positions.end).0;
            let sequence = self.sequences.get(seq).ok_or_else(|| format!("{seq} is in the step and gone"))?;
            for table in &sequence.tables {
                let mut filled = filled.clone().filter_map(|index| table.page(Pages(index)));
                if let Some(page) = filled.find(|page| held[page.index()] != 1) {
                    return Err(format!("{seq} fills {page}, which {} tables hold", held[page.index()]));
                }
            }
        }
        Ok(())
    }

    /// Pages whose last holder, on another thread, may have let go of them since the pool was looked at: it lowers the
    /// count, and then puts the page back.
    fn check_return(&self, leaving: &[PageId]) -> Result<(), String> {
        for _ in 0..LOOKS {
            let returned: HashSet<PageId> = self.pool.walk().1.collect();
            if leaving.iter().all(|page| returned.contains(page)) {
                return Ok(());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Err(format!("{leaving:?} have no holder and do not come back"))
    }

    fn places(&self) -> Result<Vec<Place>, String> {
        let mut places = vec![None; self.settings.total.as_usize()];
        let (free, returned) = self.pool.walk();
        let stacked =
            free.map(|page| (page, Place::Free)).chain(returned.map(|page| (page, Place::Returned)));
        for (page, place) in stacked {
            if let Some(before) = places[page.index()].replace(place) {
                return Err(format!("{page} is {before:?} and {place:?}"));
            }
        }
        for (page, place) in (0..).map(PageId).zip(&mut places) {
            match (self.info[page.index()].idle, *place) {
                (true, Some(before)) => return Err(format!("{page} is cached and {before:?}")),
                (true, None) => *place = Some(Place::Idle),
                (false, _) => {}
            }
        }
        Ok(places.into_iter().map(|place| place.unwrap_or(Place::Held)).collect())
    }

    fn check_page(
        &self,
        page: PageId,
        place: Place,
        [held, refs]: [u32; 2],
        audit: &mut Audit,
    ) -> Result<(), String> {
        if (place == Place::Held) != (refs > 0) || held > refs {
            return Err(format!("{page} is {place:?} with {refs} references, {held} of them known"));
        }
        if refs > held {
            audit.held_outside.push(page);
        }
        let home = self.index.home(page);
        let in_step = self.step.pending.iter().any(|pending| pending.id() == page);
        if home.is_some_and(|home| home.pending) != in_step {
            return Err(format!("{page} is pending in the index or in the step alone"));
        }
        if home.is_some() && place == Place::Free || home.is_none() && place == Place::Idle {
            return Err(format!("{page} is {place:?}, indexed as {home:?}"));
        }
        let evictable = place == Place::Idle && !self.pins.is_pinned(page);
        if self.policy.contains(page) != evictable {
            return Err(format!("{page} is {place:?}; the policy has it: {}", !evictable));
        }
        if self.pins.is_pinned(page) && !self.index.is_public(page) {
            return Err(format!("{page} is pinned without contents"));
        }
        Ok(())
    }

    fn check_sequence(&self, id: SeqId) -> Result<(), String> {
        let sequence = &self.sequences[&id];
        let size = self.settings.page_size;
        if sequence.computed > sequence.scheduled || sequence.scheduled > sequence.prompt.len() {
            return Err(format!("{id} has computed more than it has"));
        }
        for (group, table) in self.group_ids().zip(&sequence.tables) {
            let needed = self.index.first_needed(group, sequence.computed);
            if table.end() != size.pages_for(sequence.scheduled) || table.first() > needed {
                return Err(format!("{id} has pages {:?}..{:?} of {group:?}", table.first(), table.end()));
            }
            if !table.agrees() {
                return Err(format!("{id} names other pages than it holds in {group:?}"));
            }
            if let Some(open) = table.open() {
                let refs = self.pool.refs(open.id());
                let full = size.offset_of(sequence.scheduled) == Tokens::ZERO;
                if refs != Ok(1) || self.index.home(open.id()).is_some() || full {
                    return Err(format!("{id} writes {} which others may read", open.id()));
                }
            }
        }
        self.check_cursor(id)
    }

    /// The cursor is as deep below the root as the sequence has full pages, and names the same prefix.
    fn check_cursor(&self, id: SeqId) -> Result<(), String> {
        let sequence = &self.sequences[&id];
        let Some(cursor) = sequence.cursor else { return Ok(()) };
        let full = self.settings.page_size.full_pages(sequence.scheduled);
        let last = full
            .checked_sub(Pages(1))
            .map_or(sequence.prompt.scope().root(), |last| sequence.prompt.key(last));
        if self.index.key(cursor) != last {
            return Err(format!("{id} ends in another prefix than the index says"));
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_page_that_nobody_holds_and_that_does_not_come_back_is_found() {
        let cache = KvCache::new(Settings::new(Pages(4))).unwrap();
        let page = cache.pool.take(Pages(1), None).unwrap().remove(0);
        let id = page.id();
        std::mem::forget(page);
        cache.check().unwrap();
        cache.pool.set_refs(id, 0);
        let wrong = cache.check().unwrap_err().to_string();
        assert!(wrong.contains("do not come back"), "{wrong}");
    }
}
