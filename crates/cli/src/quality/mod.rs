//! `octavo quality`: what a KV precision costs, on real text, against f16.

mod likelihood;
mod recall;

use crate::model_args::{Dtype, Weights, parse_threads, source};
use crate::plan::grouped;
use crate::report::{Goal, Report, Sink, Table};
use anyhow::{Context, Result, bail, ensure};
use likelihood::{Distributions, Likelihood};
use octavo::{Files, Hub, Llm, Markup, Options, Source, Tokens};
use recall::Question;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Written for this purpose: a guided tour of Rust's standard library, which the built-in model has not seen.
const TEXT: &str = include_str!("../../assets/quality-text.md");
const BASELINE: Dtype = Dtype::F16;
/// Rows of logits that are in memory at once.
const CHUNK: Tokens = Tokens(128);
/// Room for a conversation, where the model has it.
const CONVERSATION: Tokens = Tokens(4096);

/// Measure what a KV precision costs, on real text, against f16
///
/// Perplexity and Kullback-Leibler divergence over a text, and how many questions about earlier parts of a
/// conversation are answered word for word. The distributions of f16 are kept in memory: 4 bytes a token of the text
/// and word of the vocabulary.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// Directory of a model in Hugging Face layout, or its name on the hub: org/name or org/name@revision [default:
    /// the built-in model]
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Threads to compute with [default: one a core]
    #[arg(long, value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// How weights are kept
    #[arg(long, value_enum, default_value = "stored")]
    weights: Weights,
    /// Text to read [default: one about Rust's standard library, which is part of the program]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Read no more than the first N tokens of the text
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: Option<u32>,
    /// The text is read in windows of this many tokens, each from an empty cache
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Precisions to measure; f16 is always one of them
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32,f16,bf16,fp8,int8")]
    precisions: Vec<Dtype>,
    /// Conversations with `messages` and the `answer` that is right, one JSON object a line [default: the built-in
    /// model's own]
    #[arg(long, value_name = "FILE")]
    recall: Option<PathBuf>,
    /// Ask no more than the first N of them; 0 for none
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Write the figures as one JSON object to FILE as well; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What one precision costs.
#[derive(Debug, Clone, Serialize)]
struct Row {
    precision: &'static str,
    bytes_per_token: u64,
    share_of_f16: f64,
    perplexity: f64,
    perplexity_change_percent: f64,
    mean_kl: f64,
    max_kl: f64,
    recall_right: Option<usize>,
    recall: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Figures {
    model: String,
    text: String,
    tokens: usize,
    predicted: usize,
    window: u32,
    conversations: usize,
    rows: Vec<Row>,
}

/// One precision as it was measured.
struct Measured {
    dtype: Dtype,
    bytes_per_token: u64,
    likelihood: Likelihood,
    right: usize,
}

pub(crate) fn run(command: &Command, hub: &Hub) -> Result<()> {
    let sink = Sink::open(command.json.as_deref())?;
    let text = command.read_text()?;
    let asked = command.recall.as_deref().map(recall::read).transpose()?;
    let source = source(command.model.as_deref(), hub, Files::All)?;
    let most = source.config()?.max_positions();
    if command.window > most.0 {
        bail!("windows of {} do not fit a model made for {most}: lower --window", Tokens(command.window));
    }
    let questions = command.questions(asked, &source)?;
    let options = Options {
        source,
        threads: command.threads,
        weights: command.weights.into(),
        prefix_cache: false,
        max_len: Some(CONVERSATION.max(Tokens(command.window)).min(most)),
        chunk: (CHUNK, CHUNK),
        ..Options::default()
    };
    sink.write(&command.measure(&options, &text, &questions)?)
}

impl Command {
    fn read_text(&self) -> Result<String> {
        match &self.text {
            None => Ok(TEXT.into()),
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
            }
        }
    }

    /// Those that were asked for, or the model's own.
    fn questions(&self, asked: Option<Vec<Question>>, source: &Source) -> Result<Vec<Question>> {
        let mut questions = match (asked, source.recall()) {
            (Some(asked), _) => asked,
            (None, Some(own)) => recall::parse(own, "the built-in conversations")?,
            (None, None) => Vec::new(),
        };
        questions.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(questions)
    }

    /// The baseline first: the others are measured against it.
    fn order(&self) -> Vec<Dtype> {
        let others = Dtype::ALL.into_iter().filter(|dtype| *dtype != BASELINE);
        [BASELINE].into_iter().chain(others.filter(|dtype| self.precisions.contains(dtype))).collect()
    }

    fn measure(&self, options: &Options, text: &str, questions: &[Question]) -> Result<Report> {
        let bar = crate::progress::bar("measuring");
        let mut reference: Option<Distributions> = None;
        let mut measured = Vec::new();
        let mut windows = Vec::new();
        for dtype in self.order() {
            let mut llm = Llm::load(&Options { kv_dtype: dtype.into(), ..options.clone() }, &mut |_| {})?;
            if windows.is_empty() {
                windows = self.windows(&llm, text)?;
                bar.set_length(((windows.len() + questions.len()) * self.order().len()) as u64);
            }
            let mut step = || bar.inc(1);
            let (likelihood, kept) = likelihood::measure(&mut llm, &windows, reference.as_ref(), &mut step)?;
            reference.get_or_insert(kept);
            let right = recall::measure(&mut llm, questions, &mut step)?;
            measured.push(Measured { dtype, bytes_per_token: bytes_per_token(&llm), likelihood, right });
        }
        bar.finish_and_clear();
        self.report(options.source.name(), &windows, questions.len(), &measured)
    }

    /// The text in windows, each of which begins as the model wants a text to begin.
    fn windows(&self, llm: &Llm, text: &str) -> Result<Vec<Vec<u32>>> {
        let tokenizer = llm.tokenizer();
        let mut tokens = tokenizer.encode(text, Markup::Literal)?;
        tokens.truncate(self.tokens.map_or(usize::MAX, |most| most as usize));
        let first: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        let each = (self.window as usize - first.len()).max(1);
        // A window of one token predicts nothing.
        let cut = tokens.chunks(each).map(|chunk| [&first, chunk].concat()).filter(|window| window.len() > 1);
        let windows: Vec<Vec<u32>> = cut.collect();
        ensure!(!windows.is_empty(), "the text has fewer than two tokens: there is nothing to predict");
        Ok(windows)
    }

    fn report(&self, model: String, windows: &[Vec<u32>], asked: usize, all: &[Measured]) -> Result<Report> {
        let rows = rows(all, asked);
        let tokens = windows.iter().map(Vec::len).sum();
        let text = self.text.as_ref().map_or_else(
            || "a tour of Rust's standard library (part of the program)".into(),
            |path| path.display().to_string(),
        );
        let conditions = format!(
            "{model}; text: {text}, {tokens} tokens in windows of {}; recall: {}",
            self.window,
            if asked == 0 { "not asked".into() } else { format!("{asked} conversations") },
        );
        let (table, goals) = (table(&rows), goals(&rows));
        let predicted = tokens - windows.len();
        let figures =
            Figures { model, text, tokens, predicted, window: self.window, conversations: asked, rows };
        let question = "what does a KV precision cost, against f16?";
        Report::of_command("quality", question, conditions, &figures, vec![table], goals)
    }
}

fn bytes_per_token(llm: &Llm) -> u64 {
    let spec = llm.kv_spec();
    spec.page_bytes().0 * spec.groups().len() as u64 / u64::from(spec.page_size().tokens().0)
}

/// In the order of the precisions' widths.
fn rows(all: &[Measured], asked: usize) -> Vec<Row> {
    let baseline = &all[0];
    let row = |m: &Measured| Row {
        precision: m.dtype.name(),
        bytes_per_token: m.bytes_per_token,
        share_of_f16: m.bytes_per_token as f64 / baseline.bytes_per_token as f64,
        perplexity: m.likelihood.perplexity,
        perplexity_change_percent: 100.0 * (m.likelihood.perplexity / baseline.likelihood.perplexity - 1.0),
        mean_kl: m.likelihood.mean_kl,
        max_kl: m.likelihood.max_kl,
        recall_right: (asked > 0).then_some(m.right),
        recall: (asked > 0).then(|| m.right as f64 / asked as f64),
    };
    let find = |dtype| all.iter().find(|m| m.dtype == dtype);
    Dtype::ALL.into_iter().filter_map(find).map(row).collect()
}

fn table(rows: &[Row]) -> Table {
    let headings =
        ["precision", "bytes a token", "of f16", "perplexity", "change", "mean KL", "max KL", "recall"];
    let mut table = Table::new("Cost by precision", headings);
    for row in rows {
        table.row([
            row.precision.to_string(),
            grouped(row.bytes_per_token),
            format!("{:.2} %", 100.0 * row.share_of_f16),
            format!("{:.4}", row.perplexity),
            format!("{:+.3} %", row.perplexity_change_percent),
            format!("{:.2e}", row.mean_kl),
            format!("{:.2e}", row.max_kl),
            row.recall.map_or_else(|| "-".into(), |recall| format!("{:.1} %", 100.0 * recall)),
        ]);
    }
    table
}

/// Eight bits are to cost half the memory and next to nothing else.
fn goals(rows: &[Row]) -> Vec<Goal> {
    let eight_bits = rows.iter().filter(|row| ["fp8", "int8"].contains(&row.precision));
    let of = |row: &Row| {
        let name = row.precision;
        let change = row.perplexity_change_percent.abs();
        [
            Goal::at_most(2.0, change, format!("{name}: perplexity within 2 % of f16, in %")),
            Goal::at_most(0.55, row.share_of_f16, format!("{name}: about half the bytes of f16")),
        ]
    };
    eight_bits.flat_map(of).collect()
}
