//! The block tables of a [`CacheManager`], against the same arithmetic in 128 bits.

use super::input::Input;
use octavo_kv::{
    AllocError, AllocateSequenceError, CacheManager, ExtendError, PositionError, UnknownSequence,
};
use octavo_types::{KvDtype, KvSpec, PageSize, Pages, SeqId, Tokens};
use std::collections::BTreeMap;

/// Runs a few operations on a manager whose blocks may be as large as they can be.
pub(super) fn check(input: &mut Input<'_>) {
    let size = if input.flag() { input.u32() } else { input.below(9) };
    let Some(page_size) = PageSize::new(size) else { return };
    let total = 1 + input.below(16);
    let mut blocks = Blocks::new(page_size, total);
    for _ in 0..input.below(32) {
        blocks.apply(input);
        blocks.check(input);
    }
}

/// Length and number of blocks of a sequence.
type Expected = (u128, u128);

struct Blocks {
    manager: CacheManager,
    expected: BTreeMap<SeqId, Expected>,
    next: u64,
    size: u128,
    total: u128,
}

impl Blocks {
    fn new(page_size: PageSize, total: u32) -> Self {
        let spec = KvSpec::full_attention(1, 1, 1, KvDtype::F32, page_size).expect("a small model");
        Self {
            manager: CacheManager::new(spec, Pages(total)).expect("a few blocks"),
            expected: BTreeMap::new(),
            next: 0,
            size: page_size.tokens().0.into(),
            total: total.into(),
        }
    }

    fn apply(&mut self, input: &mut Input<'_>) {
        let seq = self.choose(input.byte());
        let n = Tokens(if input.flag() { input.u32() } else { input.below(40) });
        match input.below(6) {
            0 => self.begin_as(SeqId(input.u64()), n),
            1 => self.begin(n),
            2 => self.extend(seq, n, Tokens::ZERO),
            3 => self.extend(seq, n, n),
            4 => self.advance(seq, n),
            _ => {
                let known = self.expected.remove(&seq).is_some();
                assert_eq!(self.manager.free_sequence(seq).is_ok(), known);
            }
        }
    }

    /// One of the sequences, or one there is not.
    fn choose(&self, at: u8) -> SeqId {
        let at = usize::from(at) % (self.expected.len() + 1);
        self.expected.keys().nth(at).copied().unwrap_or(SeqId(u64::MAX))
    }

    fn free(&self) -> u128 {
        self.total - self.expected.values().map(|(_, blocks)| blocks).sum::<u128>()
    }

    /// What taking `need` blocks should come to.
    fn room_for(&self, need: u128) -> Result<(), AllocError> {
        let pages = |n: u128| Pages(u32::try_from(n).expect("no more than there are positions"));
        let (need_pages, total) = (pages(need), pages(self.total));
        if need > self.total {
            return Err(AllocError::NeverFits { need: need_pages, total });
        }
        if need > self.free() {
            return Err(AllocError::OutOfPages { need: need_pages, free: pages(self.free()) });
        }
        Ok(())
    }

    fn begin_as(&mut self, seq: SeqId, n: Tokens) {
        let need = u128::from(n.0).div_ceil(self.size);
        let expected = if seq.0 > i64::MAX as u64 {
            Err(AllocateSequenceError::IdTooLarge(seq))
        } else if self.expected.contains_key(&seq) {
            Err(AllocateSequenceError::Exists(seq))
        } else {
            self.next = self.next.max(seq.0 + 1);
            self.room_for(need).map_err(AllocateSequenceError::from)
        };
        let found = self.manager.allocate_sequence(seq, n).map(drop);
        assert_eq!(found, expected);
        if found.is_ok() {
            self.expected.insert(seq, (n.0.into(), need));
        }
    }

    fn begin(&mut self, n: Tokens) {
        let need = u128::from(n.0).div_ceil(self.size);
        let seq = SeqId(self.next);
        self.next += 1;
        let expected = self.room_for(need).map(|()| seq);
        assert_eq!(self.manager.allocate_slot(n), expected);
        if expected.is_ok() {
            self.expected.insert(seq, (0, need));
        }
    }

    /// Takes blocks for `n` more tokens, and counts `counted` of them: none or all.
    fn extend(&mut self, seq: SeqId, n: Tokens, counted: Tokens) {
        let expected = self.extended(seq, n);
        let found = if counted == Tokens::ZERO {
            self.manager.reserve(seq, n)
        } else {
            self.manager.extend_sequence(seq, n)
        };
        assert_eq!(found, expected.clone().map(drop));
        if let Ok((len, blocks)) = expected {
            self.expected.insert(seq, (len + u128::from(counted.0), blocks));
        }
    }

    fn extended(&self, seq: SeqId, n: Tokens) -> Result<Expected, ExtendError> {
        let &(len, blocks) = self.expected.get(&seq).ok_or(UnknownSequence(seq))?;
        let end = len + u128::from(n.0);
        if end > u128::from(u32::MAX) {
            return Err(ExtendError::TooLong { seq, len: Tokens(len as u32), more: n });
        }
        let missing = end.div_ceil(self.size).saturating_sub(blocks);
        self.room_for(missing)?;
        Ok((len, blocks + missing))
    }

    fn advance(&mut self, seq: SeqId, n: Tokens) {
        let found = self.manager.advance(seq, n);
        let Some((len, blocks)) = self.expected.get_mut(&seq) else {
            return assert_eq!(found, Err(PositionError::Unknown(UnknownSequence(seq))));
        };
        let end = *len + u128::from(n.0);
        let room = (*blocks * self.size).min(u32::MAX.into());
        assert_eq!(found.is_ok(), end <= room, "{end} of {room}");
        if found.is_ok() {
            *len = end;
        }
    }

    fn check(&self, input: &mut Input<'_>) {
        self.manager.check().expect("consistent");
        assert_eq!(self.manager.audit_blocks(), []);
        assert_eq!(self.manager.active_seq_count(), self.expected.len());
        assert_eq!(u128::from(self.manager.free_slot_count().0), self.free());
        let capacity = (self.free() * self.size).min(u32::MAX.into());
        assert_eq!(u128::from(self.manager.free_token_capacity().0), capacity);
        let stats = self.manager.get_stats();
        assert!((0.0..=100.0).contains(&stats.internal_fragmentation_percent), "{stats:?}");
        for (&seq, &(len, blocks)) in &self.expected {
            assert_eq!(self.manager.get_seq_len(seq).map(|len| len.0.into()), Ok(len));
            assert_eq!(self.manager.block_table(seq).map(|table| table.len().0.into()), Ok(blocks));
        }
        let seq = self.choose(input.byte());
        let start = if input.flag() { input.u32() } else { input.below(40) };
        self.check_slots(seq, start, input.below(40));
    }

    fn check_slots(&self, seq: SeqId, start: u32, n: u32) {
        let found = self.manager.slot_mapping(seq, Tokens(start), Tokens(n));
        let Ok(table) = self.manager.block_table(seq) else {
            return assert_eq!(found, Err(PositionError::Unknown(UnknownSequence(seq))));
        };
        let positions = u128::from(start)..u128::from(start) + u128::from(n);
        let room = (table.as_slice().len() as u128 * self.size).min(u32::MAX.into());
        if n > 0 && positions.end > room {
            return assert!(matches!(found, Err(PositionError::NoBlock { .. })), "{found:?}");
        }
        let expected = positions.map(|at| {
            let page = table.as_slice()[(at / self.size) as usize];
            u128::from(page.0) * self.size + at % self.size
        });
        let found = found.expect("every position has a block");
        assert!(found.iter().map(|slot| u128::from(slot.0)).eq(expected));
    }
}
