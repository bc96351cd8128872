//! Request traces: one JSON object a line, as Mooncake publishes them.
//!
//! ```text
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
//! ```
//!
//! `timestamp` counts milliseconds; `hash_ids` names the blocks of the prompt, in order. Other fields are
//! ignored.

use anyhow::{Context, Result, bail};
use octavo_types::Timestamp;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A block together with all that come before it in its prompt: equal ids mean equal prefixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct BlockId(pub(super) u32);

impl BlockId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) arrival: Timestamp,
    pub(super) blocks: Vec<BlockId>,
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    requests: Vec<Request>,
    /// By the prefix before and the name of the block.
    ids: HashMap<(Option<BlockId>, u64), BlockId>,
    blocks: u64,
}

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    hash_ids: Vec<u64>,
}

impl Trace {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| {
            format!("cannot open the trace {name}: give the path of a file of JSON lines, such as Mooncake's")
        })?;
        let mut trace = Self::default();
        for (number, line) in (1u64..).zip(BufReader::new(file).lines()) {
            let line = line.with_context(|| format!("cannot read line {number} of {name}"))?;
            if line.trim().is_empty() {
                continue;
            }
            let Line { timestamp, hash_ids } = serde_json::from_str(&line).with_context(|| {
                format!(
                    "line {number} of {name} is no request: it must be a JSON object with `timestamp` \
                     (milliseconds) and `hash_ids` (a list of numbers); correct the line or remove it"
                )
            })?;
            trace.push(timestamp, &hash_ids);
        }
        if trace.blocks == 0 {
            bail!("the trace {name} has no blocks: a line needs at least one number in `hash_ids`");
        }
        Ok(trace)
    }

    /// Adds a request that arrives `milliseconds` after the start.
    pub(super) fn push(&mut self, milliseconds: u64, hashes: &[u64]) {
        let mut before = None;
        let blocks: Vec<BlockId> = hashes
            .iter()
            .map(|hash| {
                let next = BlockId(self.ids.len() as u32);
                let id = *self.ids.entry((before, *hash)).or_insert(next);
                before = Some(id);
                id
            })
            .collect();
        self.blocks += blocks.len() as u64;
        self.requests.push(Request { arrival: Timestamp(milliseconds.saturating_mul(1_000)), blocks });
    }

    pub(super) fn requests(&self) -> &[Request] {
        &self.requests
    }
    /// Blocks of all requests together.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }
    pub(super) fn distinct_blocks(&self) -> usize {
        self.ids.len()
    }
    /// Blocks that a cache without limit finds: all but the first of each.
    pub(super) fn repeated_blocks(&self) -> u64 {
        self.blocks - self.ids.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_the_same_only_after_the_same_blocks() {
        let mut trace = Trace::default();
        trace.push(0, &[7, 8]);
        trace.push(2, &[7, 8, 8]);
        trace.push(3, &[8]);
        let ids: Vec<Vec<u32>> =
            trace.requests().iter().map(|request| request.blocks.iter().map(|id| id.0).collect()).collect();
        assert_eq!(ids, [vec![0, 1], vec![0, 1, 2], vec![3]]);
        assert_eq!((trace.blocks(), trace.distinct_blocks(), trace.repeated_blocks()), (6, 4, 2));
        assert_eq!(trace.requests()[1].arrival, Timestamp(2_000));
    }
}
