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
