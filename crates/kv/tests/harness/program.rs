use super::input::Input;
use octavo_kv::{Claim, PolicyKind, Reuse, Settings};
use octavo_types::{Bytes, PageSize, Pages, Tokens};

/// A cache and what happens to it.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) settings: Settings,
    /// Whether freed pages are zeroed.
    pub(super) zeroing: bool,
    pub(super) ops: Vec<Op>,
}

/// `seq`, `pin` and so on choose among those there are, modulo their number; `NOBODY` is one there is not.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Admit {
        salt: u8,
        tokens: Vec<u32>,
        reuse: Reuse,
    },
    AdmitOtherPageSize,
    /// Admits one that was preempted.
    Resume {
        waiting: u8,
    },
    Append {
        seq: u8,
        token: u32,
    },
    Schedule {
        seq: u8,
        n: Tokens,
        claim: Claim,
    },
    Complete,
    /// The step is lost after this many of its copies and tokens.
    Fail {
        after: usize,
    },
    Fork {
        seq: u8,
    },
    Free {
        seq: u8,
    },
    Preempt {
        seq: u8,
    },
    Pin {
        salt: u8,
        tokens: Vec<u32>,
    },
    /// Pins what a sequence has.
    PinSequence {
        seq: u8,
    },
    Unpin {
        pin: u8,
    },
    Evict {
        pages: Pages,
    },
    Tick {
        micros: u64,
    },
    Hold {
        seq: u8,
        group: u8,
        index: Pages,
    },
    LetGo {
        handle: u8,
    },
}

pub(super) const NOBODY: u8 = u8::MAX;

/// Every operation is checked in time proportional to the pool: longer programs find no more.
const MOST_OPS: usize = 200;

impl Program {
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let (settings, zeroing) = (settings(&mut input), input.flag());
        let mut ops = Vec::new();
        while !input.is_empty() && ops.len() < MOST_OPS {
            ops.push(op(&mut input));
        }
        Self { settings, zeroing, ops }
    }
}

/// Settings that a cache accepts.
fn settings(input: &mut Input<'_>) -> Settings {
    let total = 1 + input.below(48);
    let reserve = input.below(total);
    let windows: Vec<_> = (0..=input.below(3)).map(|_| window(input)).collect();
    let groups = windows.len() as u32;
    Settings {
        page_size: PageSize::new(input.one_of(&[4, 1, 2, 3, 5, 7, 8, 16])).expect("one or more"),
        page_bytes: Bytes(input.u32().into()),
        sequence_limit: input.once_in(4).then(|| Pages(groups + input.below(24))),
        prefix_cache: !input.once_in(8),
        cached_limit: input.once_in(4).then(|| Pages(input.below(24))),
        pin_quota: Pages(input.below(total - reserve)),
        policy: input.one_of(&PolicyKind::ALL),
        remember_evicted: input.below(8) as usize,
        reserve: Pages(reserve),
        windows,
        ..Settings::new(Pages(total))
    }
}

fn window(input: &mut Input<'_>) -> Option<Tokens> {
    match input.below(8) {
        0..4 => None,
        4..7 => Some(Tokens(1 + input.below(24))),
        _ => Some(Tokens(u32::MAX)),
    }
}

fn op(input: &mut Input<'_>) -> Op {
    match input.below(32) {
        0..6 => {
            let reuse = if input.once_in(8) { Reuse::Nothing } else { Reuse::Longest };
            Op::Admit { salt: input.below(3) as u8, tokens: tokens(input), reuse }
        }
        6..13 => {
            let claim = if input.flag() { Claim::Running } else { Claim::New };
            Op::Schedule { seq: input.byte(), n: Tokens(some_or_all(input, 24)), claim }
        }
        13..18 => Op::Complete,
        18..20 => Op::Append { seq: input.byte(), token: input.below(3) },
        20 => Op::Fail { after: input.below(32) as usize },
        21 | 22 => Op::Fork { seq: input.byte() },
        23 => Op::Free { seq: input.byte() },
        24 => Op::Preempt { seq: input.byte() },
        25 => Op::Resume { waiting: input.byte() },
        26 => Op::Pin { salt: input.below(3) as u8, tokens: tokens(input) },
        27 => Op::PinSequence { seq: input.byte() },
        28 => Op::Unpin { pin: input.byte() },
        29 => Op::Evict { pages: Pages(some_or_all(input, 8)) },
        30 => Op::Hold { seq: input.byte(), group: input.byte(), index: Pages(input.below(8)) },
        _ => match input.below(4) {
            0 => Op::AdmitOtherPageSize,
            1 => Op::Tick { micros: input.u64() },
            2 => Op::Tick { micros: u64::from(input.byte()) << 17 },
            _ => Op::LetGo { handle: input.byte() },
        },
    }
}

fn some_or_all(input: &mut Input<'_>, most: u32) -> u32 {
    if input.once_in(16) { u32::MAX } else { input.below(most) }
}

/// Few tokens in runs, so that prompts share prefixes and differ in the middle of pages.
fn tokens(input: &mut Input<'_>) -> Vec<u32> {
    let runs = input.below(4);
    (0..runs).flat_map(|_| vec![input.below(3); input.below(20) as usize]).collect()
}
