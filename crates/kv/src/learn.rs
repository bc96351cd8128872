//! What the cache learns from a lookup: its counters, its index and its policy, once a request.

use crate::cache::{Hit, KvCache, UnknownSequence};
use crate::evict::Wanted;
use octavo_types::{Pages, SeqId};

impl KvCache {
    /// Counts what a sequence found when it was [admitted](Self::admit_uncounted), and has the policy learn from it. For
    /// the first admission of a request, in the step it was admitted in: what one that gave way finds again is mostly its own.
    pub fn count_lookup(&mut self, id: SeqId, hit: &Hit) -> Result<(), UnknownSequence> {
        let sequence = self.sequences.get(&id).ok_or(UnknownSequence(id))?;
        self.counters.count_lookup(sequence.prompt.len(), hit);
        let size = self.settings.page_size;
        let found = size.full_pages(hit.tokens - hit.copied);
        for table in &sequence.tables {
            for page in (table.first().0..found.0).filter_map(|index| table.page(Pages(index))) {
                self.info[page.index()].is_prefix = true;
            }
        }
        for page in self.step.sources_of(id) {
            self.info[page.index()].is_prefix = true;
        }
        // Tokens of it may be in the step already: the cursor is beyond what was found then.
        if let Some(cursor) = sequence.cursor {
            self.index.count_uses(cursor, size.full_pages(sequence.scheduled) - found, found);
        }
        (0..found.0).for_each(|_| self.policy.note(Wanted::Found));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::{Class, Idle, Lru, Policy};
    use crate::{Claim, Prompt, Reuse, Scope, Settings};
    use octavo_types::{PageId, PageSize, Tokens};
    use std::sync::{Arc, Mutex};

    /// What pages fared when they were wanted, and how often they had been when they became idle.
    type Told = (Vec<Wanted>, Vec<u32>);

    /// Least recently used, and what it was told.
    #[derive(Debug)]
    struct Listener(Lru, Arc<Mutex<Told>>);

    impl Policy for Listener {
        fn insert(&mut self, idle: Idle) {
            self.1.lock().unwrap().1.push(idle.uses);
            self.0.insert(idle);
        }
        fn remove(&mut self, page: PageId) {
            self.0.remove(page);
        }
        fn victim(&mut self) -> Option<(PageId, Class)> {
            self.0.victim()
        }
        fn len(&self) -> Pages {
            self.0.len()
        }
        fn contains(&self, page: PageId) -> bool {
            self.0.contains(page)
        }
        fn note(&mut self, wanted: Wanted) {
            self.1.lock().unwrap().0.push(wanted);
        }
    }

    #[test]
    fn a_policy_is_told_how_often_pages_were_wanted_and_whether_they_were_found_or_had_been_evicted() {
        let mut cache = KvCache::new(Settings::new(Pages(16))).unwrap();
        let told = Arc::new(Mutex::new(Told::default()));
        cache.policy = Box::new(Listener(Lru::new(Pages(16)), Arc::clone(&told)));
        let mut run = |evict: u32| {
            let prompt = Prompt::new((0..49).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
            let (seq, hit) = cache.admit(prompt, Reuse::Longest).unwrap();
            cache.schedule(seq, Tokens(49) - hit.tokens, Claim::New).unwrap();
            cache.complete();
            cache.free(seq).unwrap();
            cache.evict(Pages(evict));
            std::mem::take(&mut *told.lock().unwrap())
        };
        assert_eq!(run(0), (vec![], vec![1; 3]), "nothing was ever seen");
        assert_eq!(run(1), (vec![Wanted::Found; 3], vec![2; 3]));
        assert_eq!(run(3), (vec![Wanted::Found, Wanted::Found, Wanted::Evicted], vec![3; 3]));
        assert_eq!(run(0), (vec![Wanted::Evicted; 3], vec![4; 3]));
    }
}
