use super::errors::{AdvanceError, UpdateError, ViewError};
use super::pool::KvPool;
use super::step::{Growth, Step};
use super::{CacheView, Gathered};
use octavo_backend::Backend;
use octavo_types::{SeqId, Tokens};

/// What a step brings of each sequence.
#[derive(Debug)]
pub(super) enum Incoming {
    /// As many rows as the first layer has.
    AsGiven,
    One,
    /// So many tokens, and padding up to the same number of rows. One step.
    Padded(Vec<Tokens>),
    /// Nothing: the one step is over.
    Over,
}

/// All three views: they differ in what a step brings.
pub(super) struct View<'a, B: Backend> {
    pool: &'a mut KvPool<B>,
    sequences: Vec<(SeqId, Tokens)>,
    incoming: Incoming,
    /// The open step, from the first layer on.
    step: Option<Step>,
}

impl<'a, B: Backend> View<'a, B> {
    pub(super) fn new(
        pool: &'a mut KvPool<B>,
        slots: &[SeqId],
        incoming: Incoming,
    ) -> Result<Self, ViewError> {
        let mut sequences: Vec<(SeqId, Tokens)> = Vec::with_capacity(slots.len());
        for &seq in slots {
            if sequences.iter().any(|(other, _)| *other == seq) {
                return Err(ViewError::Twice(seq));
            }
            sequences.push((seq, pool.manager.get_seq_len(seq)?));
        }
        Ok(Self { pool, sequences, incoming, step: None })
    }

    /// Rows of each sequence, if the input is whole.
    fn rows(&self, keys: usize, values: usize) -> Result<usize, UpdateError> {
        let (width, batch) = (self.pool.width(), self.sequences.len());
        if keys != values {
            return Err(UpdateError::Halves { keys, values });
        }
        if !keys.is_multiple_of(width) {
            return Err(UpdateError::Width { got: keys, width });
        }
        let (got, rows) = (keys / width, (keys / width).checked_div(batch).unwrap_or(0));
        let (least, most) = self.wanted_rows()?;
        let need = rows.clamp(least, most);
        if got == need * batch { Ok(need) } else { Err(UpdateError::Rows { got, batch, need }) }
    }

    /// The fewest and the most rows of a sequence that a layer may bring now.
    fn wanted_rows(&self) -> Result<(usize, usize), UpdateError> {
        match (&self.step, &self.incoming) {
            (_, Incoming::Over) => Err(UpdateError::Over),
            (Some(step), _) => Ok((step.rows, step.rows)),
            (None, Incoming::AsGiven) => Ok((0, u32::MAX as usize)),
            (None, Incoming::One) => Ok((1, 1)),
            (None, Incoming::Padded(lens)) => {
                let longest = lens.iter().max().map_or(0, |len| len.as_usize());
                Ok((longest, u32::MAX as usize))
            }
        }
    }

    fn plan(&mut self, rows: usize) -> Result<Step, UpdateError> {
        let new = |index: usize| match &self.incoming {
            Incoming::Padded(lens) => lens[index],
            _ => Tokens(rows as u32),
        };
        let growth = self.sequences.iter().enumerate();
        let growth = growth.map(|(index, &(seq, len))| Growth { seq, len, new: new(index) }).collect();
        Step::plan(&mut self.pool.manager, self.pool.slot, growth, rows)
    }

    fn gather(&self, layer: usize) -> Result<Gathered, UpdateError> {
        let (step, width) = (self.step.as_ref().expect("stored before it is read"), self.pool.width());
        let (batch, len) = (self.sequences.len(), step.longest());
        let mut halves = [(); 2].map(|()| Vec::with_capacity(batch * len * width));
        for (index, (table, end)) in step.tables().enumerate() {
            let stored = self.pool.backend.gather(&self.pool.arena, layer, table, 0..end)?;
            for (half, stored) in halves.iter_mut().zip(stored) {
                half.extend(stored);
                half.resize((index + 1) * len * width, 0.0);
            }
        }
        let [keys, values] = halves;
        Ok(Gathered { keys, values, batch, len })
    }
}

impl<B: Backend> CacheView for View<'_, B> {
    fn update(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<Gathered, UpdateError> {
        self.store(layer, keys, values)?;
        self.gather(layer)
    }

    fn store(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), UpdateError> {
        let layers = self.pool.layers();
        if layer >= layers {
            return Err(UpdateError::Layer { layer, layers });
        }
        let rows = self.rows(keys.len(), values.len())?;
        let step = match self.step.take() {
            Some(step) => step,
            None => self.plan(rows)?,
        };
        let step = self.step.insert(step);
        let width = self.pool.width();
        let KvPool { backend, arena, .. } = &mut *self.pool;
        for (first_row, slots) in step.runs() {
            let part = first_row * width..(first_row + slots.len()) * width;
            backend.scatter(arena, layer, slots, [&keys[part.clone()], &values[part]])?;
        }
        Ok(())
    }

    fn advance(&mut self, n: Tokens) -> Result<(), AdvanceError> {
        let step = self.step.as_ref().ok_or(AdvanceError::NothingStored)?;
        if n.as_usize() != step.rows {
            return Err(AdvanceError::Count { asked: n, stored: step.rows });
        }
        for (growth, (seq, len)) in step.growth.iter().zip(&mut self.sequences) {
            self.pool.manager.advance(*seq, growth.new)?;
            *len += growth.new;
        }
        self.step = None;
        if matches!(self.incoming, Incoming::Padded(_)) {
            self.incoming = Incoming::Over;
        }
        Ok(())
    }

    fn seq_len(&self) -> Tokens {
        self.sequences.iter().map(|(_, len)| *len).max().unwrap_or(Tokens::ZERO)
    }

    fn is_paged(&self) -> bool {
        self.pool.slot.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CachePool;
    use octavo_backend::Reference;
    use octavo_types::{KvDtype, KvSpec, PageSize, Pages};

    /// With its sequences struck from the books after the first layer, a lookup would fail and a page could not be
    /// taken: what the other layers do then, they do from what the first one worked out.
    #[test]
    fn layers_after_the_first_look_nothing_up_and_take_nothing() {
        let spec = KvSpec::full_attention(4, 1, 2, KvDtype::F32, PageSize::new(2).unwrap()).unwrap();
        let mut pool = KvPool::paged(Reference, spec, Pages(8)).unwrap();
        let slots = [4, 1].map(|tokens| {
            let slot = pool.allocate_slot(Tokens(tokens)).unwrap();
            let (keys, values) = (vec![1.0; 2 * tokens as usize], vec![2.0; 2 * tokens as usize]);
            let mut view = pool.prefill_view(slot).unwrap();
            (0..4).for_each(|layer| view.store(layer, &keys, &values).unwrap());
            view.advance(Tokens(tokens)).unwrap();
            slot
        });
        let mut view = View::new(&mut pool, &slots, Incoming::One).unwrap();
        let (keys, values) = ([3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0]);
        let first = view.update(0, &keys, &values).unwrap();
        assert_eq!((view.pool.free_slot_count(), first.len), (4, 5));
        slots.into_iter().for_each(|slot| view.pool.manager.free_slot(slot).unwrap());
        let free = view.pool.free_slot_count();
        for layer in 1..4 {
            assert_eq!(view.update(layer, &keys, &values).unwrap(), first, "layer {layer}");
        }
        assert_eq!(view.pool.free_slot_count(), free);
        assert!(view.advance(Tokens(1)).is_err(), "the books were looked at here");
    }
}
