//! Steps that are run before anybody waits for one: a device that compiles, times and records what it meets for the
//! first time does so then.

use crate::config::EngineConfig;
use crate::runner::ModelRunner;
use octavo_backend::{Backend, BackendError, Choice, Rows, Span, TableView};
use octavo_kv::Settings;
use octavo_types::{PageId, Tokens};
use std::ops::Range;

/// Lengths of sequences: what a device does for short ones may not be what it does for long. From the last on it may
/// need more room, and each length stands for those up to twice as long.
const LENGTHS: [u32; 4] = [1, 256, 1024, 4096];
/// The most sequences: larger steps take long enough for whatever comes first.
const MOST: u32 = 256;
/// Rows of prompts, beside the most that a step reads.
const CHUNKS: [u32; 3] = [2, 64, 512];
/// What a step makes room for may end what earlier ones recorded: a second round records those again.
const ROUNDS: usize = 2;

impl<B: Backend> ModelRunner<B> {
    /// Runs steps as an engine of this configuration may meet them: of up to 256 sequences, each as long as they can
    /// be with all their pages in the pool. `progress` is told how many of how many are done. Makes room for the
    /// largest step, too. Nothing is done where the device records nothing.
    ///
    /// What is left for later are sequences that share so many pages that together they are longer than the pool, and
    /// prompts in chunks of other sizes.
    ///
    /// Before anything is in the pages: what they hold afterwards is undefined.
    pub fn warm_up(
        &mut self,
        settings: &Settings,
        config: &EngineConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), BackendError> {
        if !self.backend.warms_up() {
            return Ok(());
        }
        // Steps may be filled up.
        let most = (config.max_batch as usize).next_multiple_of(32);
        self.model.reserve(&self.backend, most + config.chunk.1.as_usize(), most)?;
        let chunks = chunks(config.chunk.1.0, config.max_len.0).into_iter().map(|positions| (1, positions));
        let decodes = self.decodes(settings, config);
        let met: Vec<_> = chunks.chain(decodes.iter().cloned()).collect();
        let again = std::iter::repeat_n(decodes, ROUNDS - 1).flatten();
        let steps: Vec<_> = met.iter().cloned().chain(again).collect();
        progress(0, steps.len());
        self.rehearse(settings, met)?;
        for (done, (batch, positions)) in steps.iter().enumerate() {
            self.any_step(settings, *batch, positions.clone())?;
            progress(done + 1, steps.len());
        }
        Ok(())
    }

    /// Has the device get ready for what these steps need.
    fn rehearse(&mut self, settings: &Settings, steps: Vec<(u32, Range<u32>)>) -> Result<(), BackendError> {
        self.backend.rehearse(true)?;
        let mut steps = steps.into_iter();
        let rehearsed = steps.try_for_each(|(batch, positions)| self.any_step(settings, batch, positions));
        // Whatever went wrong, nothing runs until it has ended.
        self.backend.rehearse(false)?;
        rehearsed
    }

    /// Steps of one token a sequence: how many sequences, and which position of each. The largest first, after which
    /// there is room for most others.
    fn decodes(&self, settings: &Settings, config: &EngineConfig) -> Vec<(u32, Range<u32>)> {
        let mut steps = Vec::new();
        let mut batch = 1;
        while batch <= config.max_batch.min(MOST) {
            let fits = |length: &u32| {
                let pages = u64::from(settings.least_pages(Tokens(*length)).0);
                u64::from(batch) * pages <= u64::from(settings.total.0)
            };
            let lengths = lengths(config.max_len.0).into_iter().filter(fits);
            steps.extend(lengths.map(|length| (batch, length - 1..length)));
            batch = self.filled_up(batch) + 1;
        }
        steps.reverse();
        steps
    }

    /// The sequences that a step of so many is recorded for.
    fn filled_up(&self, batch: u32) -> u32 {
        let count = batch as usize;
        let spans: Vec<Span> = (0..count).map(|first_row| Span { first_row, rows: 1, start: 0 }).collect();
        let tokens = vec![0; count];
        let rows = Rows::new(&tokens, &spans);
        let choices = vec![Choice::LIKELIEST; count];
        self.model.rows_for(&self.backend, rows, &[], &self.arena, &choices) as u32
    }

    /// These positions of so many sequences, all of whose pages are the first, but for the last one, in which they store:
    /// what a step stores elsewhere is read by nobody in it.
    fn any_step(
        &mut self,
        settings: &Settings,
        batch: u32,
        positions: Range<u32>,
    ) -> Result<(), BackendError> {
        let (count, rows) = (batch as usize, positions.len());
        let span = |i| Span { first_row: i * rows, rows, start: positions.start };
        let spans: Vec<Span> = (0..count).map(span).collect();
        let mut pages = vec![PageId(0); settings.page_size.pages_for(Tokens(positions.end)).as_usize()];
        if let [_, .., last] = &mut pages[..] {
            *last = PageId(1);
        }
        let tables = settings.windows.iter().map(|window| {
            let seen = window.map_or(0, |window| (positions.start + 1).saturating_sub(window.0));
            let first = settings.page_size.page_of(Tokens(seen)).0;
            vec![TableView { first, pages: &pages[first as usize..] }; count]
        });
        let tables: Vec<Vec<TableView<'_>>> = tables.collect();
        let tables: Vec<&[TableView<'_>]> = tables.iter().map(Vec::as_slice).collect();
        let tokens = vec![0; count * rows];
        let wanted: Vec<u32> = (1..=count).map(|i| (i * rows - 1) as u32).collect();
        let rows = Rows::new(&tokens, &spans);
        let choices = vec![Choice::LIKELIEST; count];
        let Self { backend, model, arena, .. } = self;
        model.forward_and_choose(backend, rows, &tables, arena, &wanted, &choices)?;
        backend.chosen(count)?;
        Ok(())
    }
}

/// Positions of a prompt that a step reads: at the beginning, and at the end of the longest, where there is most to
/// attend to.
fn chunks(chunk: u32, max_len: u32) -> Vec<Range<u32>> {
    let most = chunk.min(max_len);
    let rows = CHUNKS.into_iter().take_while(|rows| *rows < most).chain([most]);
    let mut chunks: Vec<_> = rows.flat_map(|rows| [0..rows, max_len - rows..max_len]).collect();
    chunks.dedup();
    chunks
}

/// Up to the longest, which is among them.
fn lengths(max_len: u32) -> Vec<u32> {
    let longer = std::iter::successors(Some(LENGTHS[3]), |length| length.checked_mul(2)).skip(1);
    let shorter = LENGTHS.into_iter().chain(longer).take_while(|length| *length < max_len);
    shorter.chain([max_len]).collect()
}

#[cfg(test)]
mod tests {
    use super::{chunks, lengths};

    #[test]
    fn prompts_are_read_at_their_beginning_and_at_the_end_of_the_longest() {
        assert_eq!(chunks(2048, 48), [0..2, 46..48, 0..48]);
        assert_eq!(chunks(100, 4000), [0..2, 3998..4000, 0..64, 3936..4000, 0..100, 3900..4000]);
    }

    #[test]
    fn every_length_is_at_most_twice_one_that_was_met_or_short() {
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(200), [1, 200]);
        assert_eq!(lengths(4096), [1, 256, 1024, 4096]);
        assert_eq!(lengths(20_000), [1, 256, 1024, 4096, 8192, 16_384, 20_000]);
        assert_eq!(lengths(u32::MAX).last(), Some(&u32::MAX));
    }
}
