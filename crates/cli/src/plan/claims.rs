//! The memory tables of the two plans that this cache follows, recomputed from the real geometries.
//!
//! The *paging plan* has a table of bytes a block and of cache sizes, and one of capacity against a contiguous cache.
//! The *long-context plan* has a budget for 200 000 tokens, and shares of FP16's memory by precision.

use super::capacity::{Plan, pages_of};
use super::geometry::{Geometry, Preset};
use super::words::{bytes, grouped, times};
use crate::model_args::Dtype;
use crate::report::{Report, Table};
use anyhow::Result;
use octavo::{Bytes, KvDtype, PageSize, Tokens};
use serde::Serialize;

const BLOCKS: u64 = 2048;
const SLOTS: u64 = 8;
const SLOT_LEN: Tokens = Tokens(4096);
const MAX_BATCH: u64 = 32;
const LONG: Tokens = Tokens(200_000);
const LONG_LIMIT: u64 = 4_000_000_000;

#[derive(Debug, Serialize)]
struct Figures {
    blocks: Vec<Block>,
    capacity: Vec<Capacity>,
    long_context: Vec<LongContext>,
    long_context_limit_bytes: u64,
    shares_of_f16: Vec<Share>,
}

/// A line of the paging plan's table of block sizes.
#[derive(Debug, Serialize)]
struct Block {
    model: String,
    bytes_per_token: u64,
    claimed_bytes_per_block: u64,
    bytes_per_block: u64,
    claimed_cache_bytes: u64,
    cache_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Capacity {
    average_length: u32,
    contiguous: u64,
    paged: u64,
    claimed_gain: u64,
    gain: f64,
    gain_in_a_batch_of_32: f64,
}

#[derive(Debug, Serialize)]
struct LongContext {
    what: &'static str,
    bytes: u64,
    bytes_with_scales: u64,
    fits: bool,
}

#[derive(Debug, Serialize)]
struct Share {
    head_dim: u32,
    precision: &'static str,
    claimed: f64,
    data: f64,
    with_parameters: f64,
}

pub(super) fn report() -> Result<Report> {
    let figures = Figures {
        blocks: blocks()?,
        capacity: capacity()?,
        long_context: long_context(),
        long_context_limit_bytes: LONG_LIMIT,
        shares_of_f16: shares(),
    };
    let tables = vec![
        blocks_table(&figures.blocks)?,
        capacity_table(&figures.capacity),
        long_table(&figures.long_context),
        shares_table(&figures.shares_of_f16)?,
    ];
    let question = "do the memory tables of the plans this cache follows hold?";
    let conditions = "Recomputed from the models' own geometries; sizes in powers of 1000.".into();
    Report::of_command("plan --claims", question, conditions, &figures, tables, Vec::new())
}

/// bf16, blocks of sixteen tokens of all layers.
fn blocks() -> Result<Vec<Block>> {
    let claims = [
        (Preset::Llama32With3B, 1_120, 2_200_000_000),
        (Preset::Qwen3With4B, 1_440, 2_900_000_000),
        (Preset::Gemma3With1B, 260, 500_000_000),
    ];
    let block = |(preset, claimed_bytes_per_block, claimed_cache_bytes): (Preset, u64, u64)| {
        let geometry = preset.geometry();
        let bytes_per_token = plan(&geometry, Bytes::ZERO, &[]).precision(Dtype::Bf16)?.bytes_per_token;
        let bytes_per_block = 16 * bytes_per_token;
        Ok(Block {
            model: geometry.name.clone(),
            bytes_per_token,
            claimed_bytes_per_block,
            bytes_per_block,
            claimed_cache_bytes,
            cache_bytes: BLOCKS * bytes_per_block,
        })
    };
    claims.into_iter().map(block).collect()
}

fn plan<'a>(geometry: &'a Geometry, budget: Bytes, lengths: &'a [Tokens]) -> Plan<'a> {
    Plan { geometry, page_size: PageSize::DEFAULT, budget, lengths, max_len: SLOT_LEN }
}

fn blocks_table(blocks: &[Block]) -> Result<Table> {
    let headings = [
        "model",
        "bytes a token",
        "a block, claimed",
        "a block",
        "2048 blocks, claimed",
        "2048 blocks",
        "off by",
    ];
    let mut table = Table::new(
        "The paging plan's block sizes: bf16, blocks of 16 tokens, 32 768 tokens in all",
        headings,
    );
    for b in blocks {
        table.row([
            b.model.clone(),
            grouped(b.bytes_per_token),
            format!("{:.2} kB", b.claimed_bytes_per_block as f64 / 1e3),
            bytes(b.bytes_per_block),
            bytes(b.claimed_cache_bytes),
            bytes(b.cache_bytes),
            times(b.cache_bytes, b.claimed_cache_bytes),
        ]);
    }
    table.note("Wrong: its column of block sizes has the KiB of one token divided by 100 (112 KiB became 1.12 KB), and");
    table.note("its cache sizes take them for MB. Its formula is right, and gives the figures here.");
    let gemma = Preset::Gemma3With1B.geometry();
    let spec = gemma.spec(KvDtype::Bf16, PageSize::DEFAULT)?;
    let held = pages_of(&spec, SLOT_LEN);
    let every = u64::from(PageSize::DEFAULT.pages_for(SLOT_LEN).0) * spec.groups().len() as u64;
    table.note(format!(
        "Gemma-3-1B needs less here: 22 of its 26 layers keep a window of 512, so that {SLOT_LEN} take {} of {} pages ({} less).",
        held,
        every,
        times(every, held)
    ));
    Ok(table)
}

/// Eight contiguous slots of 4096 tokens, and the same bytes in pages.
fn capacity() -> Result<Vec<Capacity>> {
    let geometry = Preset::Llama32With3B.geometry();
    let lengths = [256, 512, 1024, 2048, 4096].map(Tokens);
    let token = plan(&geometry, Bytes::ZERO, &[]).precision(Dtype::Bf16)?.bytes_per_token;
    let budget = Bytes(token * u64::from(SLOT_LEN.0) * SLOTS);
    let fits = plan(&geometry, budget, &lengths).precision(Dtype::Bf16)?.sequences;
    let row = |(fit, claimed_gain): (super::capacity::Sequences, u64)| Capacity {
        average_length: fit.length,
        contiguous: fit.contiguous,
        paged: fit.paged,
        claimed_gain,
        gain: fit.paged as f64 / fit.contiguous as f64,
        gain_in_a_batch_of_32: fit.paged.min(MAX_BATCH) as f64 / fit.contiguous as f64,
    };
    Ok(fits.into_iter().zip([16, 8, 4, 2, 1]).map(row).collect())
}

fn capacity_table(rows: &[Capacity]) -> Table {
    let headings = ["average length", "contiguous", "paged", "gain, claimed", "gain", "in a batch of 32"];
    let mut table =
        Table::new("The paging plan's capacity: the memory of 8 contiguous slots of 4096 tokens", headings);
    for row in rows {
        table.row([
            grouped(row.average_length.into()),
            grouped(row.contiguous),
            grouped(row.paged),
            format!("{}x", row.claimed_gain),
            format!("{}x", row.gain),
            format!("{}x", row.gain_in_a_batch_of_32),
        ]);
    }
    table.note("Right for memory. Its heading says max_batch_size=32, which would end the gain at 4x: the figures are those of");
    table.note("a batch without a limit.");
    table
}

/// Bytes of `LONG` in eight bits, without and with a scale a vector.
fn in_fp8(layers: u64, kv_heads: u64, head_dim: u32) -> (u64, u64) {
    let vectors = 2 * layers * kv_heads * u64::from(LONG.0);
    (vectors * u64::from(head_dim), vectors * KvDtype::Fp8.vector_bytes(head_dim))
}

fn long_context() -> Vec<LongContext> {
    let qwen = Preset::Qwen3With06B.geometry();
    let real = in_fp8(qwen.windows.len() as u64, qwen.kv_heads.into(), qwen.head_dim);
    let rows = [
        ("as the plan reckons: 24 layers, a width of 2048 / 4 = 512", in_fp8(24, 4, 128)),
        ("as the plan describes it: 24 layers, 2 KV heads of 128", in_fp8(24, 2, 128)),
        ("the real Qwen3-0.6B: 28 layers, 8 KV heads of 128", real),
    ];
    let row = |(what, (bytes, bytes_with_scales))| LongContext {
        what,
        bytes,
        bytes_with_scales,
        fits: bytes_with_scales <= LONG_LIMIT,
    };
    rows.into_iter().map(row).collect()
}

fn long_table(rows: &[LongContext]) -> Table {
    let headings = ["geometry", "fp8", "with scales", "within 4 GB"];
    let mut table = Table::new("The long-context plan's 200 000 tokens in FP8, at most 4 GB", headings);
    for row in rows {
        let fits = if row.fits { "yes" } else { "NO" };
        table.row([row.what.into(), bytes(row.bytes), bytes(row.bytes_with_scales), fits.to_string()]);
    }
    table.note("Wrong: its own arithmetic (2 x 24 x 200 000 x 2048 / 4, said to be 4.8 GB) is over its limit of 4 GB. The two KV heads");
    table.note("it speaks of meet the limit; the model it names has eight and does not.");
    table
}

fn shares() -> Vec<Share> {
    let claims = [(Dtype::F16, 1.0), (Dtype::Fp8, 0.5), (Dtype::Int8, 0.5)];
    let of = |head_dim: u32| {
        claims.into_iter().map(move |(dtype, claimed)| {
            let kv = KvDtype::from(dtype);
            let f16 = KvDtype::F16.vector_bytes(head_dim) as f64;
            let all = kv.vector_bytes(head_dim);
            Share {
                head_dim,
                precision: dtype.name(),
                claimed,
                data: (all - kv.parameter_bytes()) as f64 / f16,
                with_parameters: all as f64 / f16,
            }
        })
    };
    [64, 128, 256].into_iter().flat_map(of).collect()
}

fn shares_table(rows: &[Share]) -> Result<Table> {
    let headings = ["precision", "head dim", "claimed", "data", "with scales and zero points"];
    let mut table = Table::new("The long-context plan's memory by precision, against f16", headings);
    for row in rows {
        table.row([
            row.precision.to_string(),
            row.head_dim.to_string(),
            format!("{:.0} %", 100.0 * row.claimed),
            format!("{:.0} %", 100.0 * row.data),
            format!("{} %", 100.0 * row.with_parameters),
        ]);
    }
    let narrow = Preset::Qwen3With06B.geometry().narrowed(SLOT_LEN);
    let spec = narrow.spec(KvDtype::F16, PageSize::DEFAULT)?;
    let [short, long] =
        [SLOT_LEN, Tokens(1_000_000)].map(|length| pages_of(&spec, length) * spec.page_bytes().0);
    table.note(format!(
        "\"Constant\" with a sliding window holds: Qwen3-0.6B in f16 with a window of 4096 takes {} at 4096 tokens and {} at",
        bytes(short),
        bytes(long)
    ));
    table.note("1 000 000: the window and one page, for it rarely ends where a page does.");
    Ok(table)
}
