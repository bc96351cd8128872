//! `octavo plan`: how much fits, before anything is started.

mod capacity;
mod claims;
mod geometry;
mod words;

use crate::model_args::{Dtype, parse_memory};
use crate::report::{Report, Sink, Table};
use anyhow::{Result, bail};
use capacity::{Plan, Precision};
use geometry::{Geometry, GeometryArgs};
use octavo::{Bytes, Hub, PageSize, Tokens};
use serde::Serialize;
use std::path::PathBuf;
pub(crate) use words::grouped;

/// Without a model that says otherwise.
const MAX_LEN: Tokens = Tokens(4096);

/// Say how many tokens and sequences fit which memory
///
/// For each KV precision: bytes a token and a page, pages in the budget, and sequences of several lengths, in pages
/// and as reservations of the full length. Nothing is loaded: a model's config.json, a name or a few numbers are
/// enough.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    #[command(flatten)]
    geometry: GeometryArgs,
    /// Memory for keys and values, such as 512MB or 4GB
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "4GB")]
    kv_memory: u64,
    /// Lengths to plan for [default: 256, 512 and so on, up to the longest]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    lengths: Vec<u32>,
    /// The longest sequence, which a contiguous cache reserves for each [default: what the model was made for, else
    /// 4096]
    #[arg(long, visible_alias = "max-model-len", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_len: Option<u32>,
    /// Tokens a page
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    /// Let no layer look further back than this
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    kv_window: Option<u32>,
    /// Precision of the comparison of paged and contiguous
    #[arg(long, value_enum, default_value = "f16")]
    kv_dtype: Dtype,
    /// Recompute the memory tables of the two plans this cache follows, and say where they are wrong
    #[arg(long, conflicts_with_all = ["model", "preset", "layers", "lengths", "max_len", "page_size", "kv_window", "kv_memory", "kv_dtype"])]
    claims: bool,
    /// Write the figures as one JSON object to FILE as well; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the report says to programs.
#[derive(Debug, Serialize)]
struct Figures {
    model: String,
    layers: usize,
    q_heads: Option<u32>,
    kv_heads: u32,
    head_dim: u32,
    windowed_layers: usize,
    made_for: Option<u32>,
    page_size: u32,
    max_len: u32,
    kv_memory_bytes: u64,
    precisions: Vec<Precision>,
}

pub(crate) fn run(command: &Command, hub: &Hub) -> Result<()> {
    let sink = Sink::open(command.json.as_deref())?;
    let report = if command.claims { claims::report()? } else { command.report(hub)? };
    sink.write(&report)
}

impl Command {
    fn report(&self, hub: &Hub) -> Result<Report> {
        let mut geometry = self.geometry.geometry(hub)?;
        if let Some(window) = self.kv_window {
            geometry = geometry.narrowed(Tokens(window));
        }
        let max_len = self.max_len.map(Tokens).or(geometry.made_for).unwrap_or(MAX_LEN);
        let lengths = self.lengths(max_len)?;
        let page_size = PageSize::new(self.page_size).expect("at least 1");
        let budget = Bytes(self.kv_memory);
        let plan = Plan { geometry: &geometry, page_size, budget, lengths: &lengths, max_len };
        let precisions =
            Dtype::ALL.into_iter().map(|dtype| plan.precision(dtype)).collect::<Result<Vec<_>, _>>()?;
        if precisions.iter().all(|precision| precision.pages == 0) {
            bail!("{budget} hold no page of {}: give --kv-memory more", geometry.name);
        }
        let compared =
            precisions.iter().find(|p| p.precision == self.kv_dtype.name()).expect("all are there");
        let tables =
            vec![by_precision(&precisions, &geometry), by_length(&precisions), against(compared, max_len)];
        let conditions = conditions(&plan);
        let figures = figures(&plan, precisions);
        let question = "how many tokens and sequences fit this memory?";
        Report::of_command("plan", question, conditions, &figures, tables, Vec::new())
    }

    fn lengths(&self, max_len: Tokens) -> Result<Vec<Tokens>> {
        if let Some(length) = self.lengths.iter().find(|&&length| length > max_len.0) {
            bail!("a length of {length} is over the longest of {max_len}: raise --max-len");
        }
        if !self.lengths.is_empty() {
            return Ok(self.lengths.iter().copied().map(Tokens).collect());
        }
        let doubling = std::iter::successors(Some(256u32), |length| length.checked_mul(2));
        let shorter = doubling.take_while(|&length| length < max_len.0);
        Ok(shorter.chain([max_len.0]).map(Tokens).collect())
    }
}

fn figures(plan: &Plan<'_>, precisions: Vec<Precision>) -> Figures {
    let geometry = plan.geometry;
    Figures {
        model: geometry.name.clone(),
        layers: geometry.windows.len(),
        q_heads: geometry.q_heads,
        kv_heads: geometry.kv_heads,
        head_dim: geometry.head_dim,
        windowed_layers: windowed(geometry),
        made_for: geometry.made_for.map(|tokens| tokens.0),
        page_size: plan.page_size.tokens().0,
        max_len: plan.max_len.0,
        kv_memory_bytes: plan.budget.0,
        precisions,
    }
}

fn windowed(geometry: &Geometry) -> usize {
    geometry.windows.iter().flatten().count()
}

fn conditions(plan: &Plan<'_>) -> String {
    let Geometry { name, windows, q_heads, kv_heads, head_dim, made_for } = plan.geometry;
    let heads = if *kv_heads == 1 { "head" } else { "heads" };
    let mut text = format!("{name}: {} layers, {kv_heads} KV {heads} of {head_dim}", windows.len());
    if let Some(q_heads) = q_heads.filter(|q_heads| q_heads > kv_heads) {
        text += &format!(", shared by {q_heads} query heads ({}x less)", q_heads / kv_heads);
    }
    if windowed(plan.geometry) > 0 {
        text += &format!("; {} layers look back a window only", windowed(plan.geometry));
    }
    text += &format!(
        "\n{} for keys and values, pages of {}, sequences up to {}",
        words::bytes(plan.budget.0),
        plan.page_size.tokens(),
        plan.max_len
    );
    if let Some(made_for) = made_for.filter(|&made_for| plan.max_len > made_for) {
        text += &format!(" (the model was made for {made_for})");
    }
    text
}

fn by_precision(precisions: &[Precision], geometry: &Geometry) -> Table {
    let headings = [
        "precision",
        "bytes a token",
        "of them scales",
        "of f16",
        "bytes a page",
        "pages",
        "longest sequence",
    ];
    let mut table = Table::new("Memory by precision", headings);
    for p in precisions {
        let longest = p.longest_sequence.map_or_else(|| "any".into(), grouped);
        table.row([
            p.precision.to_string(),
            grouped(p.bytes_per_token),
            grouped(p.parameter_bytes_per_token),
            format!("{:.2} %", 100.0 * p.share_of_f16),
            grouped(p.bytes_per_page),
            grouped(p.pages),
            longest,
        ]);
    }
    let groups = precisions[0].pages_per_full_page_of_tokens;
    if groups > 1 {
        let per_page = geometry.windows.len() as u64 / groups;
        table.note(format!(
            "A page holds {per_page} layers: a sequence has {groups} page tables, one a group."
        ));
    }
    if windowed(geometry) > 0 {
        table.note(
            "Windowed layers stop growing at their window; a prompt's chunk adds its pages while it is read.",
        );
    }
    table
}

fn by_length(precisions: &[Precision]) -> Table {
    let headings = ["length"].into_iter().chain(precisions.iter().map(|p| p.precision));
    let mut table = Table::new("Sequences that fit at once, paged", headings);
    for (row, sequences) in precisions[0].sequences.iter().enumerate() {
        let cells = precisions.iter().map(|p| grouped(p.sequences[row].paged));
        table.row([grouped(sequences.length.into())].into_iter().chain(cells));
    }
    table
}

fn against(precision: &Precision, max_len: Tokens) -> Table {
    let title =
        format!("Paged against contiguous, {}: each contiguous one reserves {max_len}", precision.precision);
    let mut table = Table::new(title, ["average length", "memory each", "contiguous", "paged", "gain"]);
    for s in &precision.sequences {
        table.row([
            grouped(s.length.into()),
            words::bytes(s.bytes_each),
            grouped(s.contiguous),
            grouped(s.paged),
            words::times(s.paged, s.contiguous),
        ]);
    }
    table
}
