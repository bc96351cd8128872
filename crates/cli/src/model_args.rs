//! The options that every command which runs a model shares.

use anyhow::Result;
use clap::{Args, ValueEnum};
use octavo::{
    Bytes, Device, Files, Hub, KvBackend, KvDtype, KvMemory, Llm, Options, PageSize, Pages, Source, Tokens,
    WeightFormat,
};
use octavo_cpu::Pool;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Backend {
    Paged,
    Contiguous,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
    Fp8,
    Int8,
}

impl Dtype {
    pub(crate) const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Fp8, Self::Int8];

    /// As the command line has it.
    pub(crate) fn name(self) -> &'static str {
        KvDtype::from(self).name()
    }
}

impl From<Dtype> for KvDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::Fp8 => Self::Fp8,
            Dtype::Int8 => Self::Int8,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Weights {
    /// As the files have them; beside bf16, activations are rounded to bf16 where they are multiplied
    Stored,
    /// Widened to 32 bits while loading: nothing is rounded but sums, for twice the memory
    F32,
    /// Quantised to eight bits while loading
    Int8,
}

impl From<Weights> for WeightFormat {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Stored => Self::AsStored,
            Weights::F32 => Self::F32,
            Weights::Int8 => Self::Int8,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Directory of a model in Hugging Face layout, or its name on the hub: org/name or org/name@revision [default:
    /// the built-in model]
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// What computes: auto (a GPU if there is one that can), cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Device,
    /// Make results independent, bit by bit, of what else runs at the same time; a GPU is slower with it, a CPU always
    /// does so
    #[arg(long)]
    deterministic: bool,
    /// Threads to compute with on the CPU [default: one a core]
    #[arg(long, value_parser = parse_threads)]
    threads: Option<NonZeroUsize>,
    /// How weights are kept
    #[arg(long, value_enum, default_value = "stored")]
    weights: Weights,
    /// How keys and values are laid out
    #[arg(long, value_enum, default_value = "paged")]
    kv_backend: Backend,
    /// Precision of keys and values
    #[arg(long, value_enum, default_value = "f16")]
    pub(crate) kv_dtype: Dtype,
    /// Tokens a page; the contiguous back end ignores it
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    /// Let no layer look further back than this: the pages of a sequence are constant memory for any length. What leaves
    /// the window stays cached while there is room for it, unless the cache keeps no prefixes (--no-prefix-cache)
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    kv_window: Option<u32>,
    /// Memory for keys and values, such as 512MB or 4GB [default: enough for a full batch of full length, at most 60 % of
    /// the memory available, or 90 % of a GPU's]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, conflicts_with = "num_pages")]
    kv_memory: Option<u64>,
    /// The same as a number of pages; the contiguous back end ignores it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_pages: Option<u32>,
    /// The most tokens a sequence may have [default: what the model was made for]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    max_model_len: Option<u32>,
    /// The most prompt tokens computed in one step [default: 512 to 2048, by the memory that is free]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    chunk: Option<u32>,
}

impl ModelArgs {
    /// But for the model itself.
    fn options(&self, hub: &Hub) -> Options {
        Options {
            device: self.device,
            kernel_cache: hub.user_caches().map(Path::to_owned),
            deterministic: self.deterministic,
            threads: self.threads,
            weights: self.weights.into(),
            kv_backend: match self.kv_backend {
                Backend::Paged => KvBackend::Paged,
                Backend::Contiguous => KvBackend::Contiguous,
            },
            kv_dtype: self.kv_dtype.into(),
            page_size: PageSize::new(self.page_size).expect("at least 1"),
            kv_window: self.kv_window.map(Tokens),
            kv_memory: match (self.kv_memory, self.num_pages) {
                (Some(bytes), _) => KvMemory::Bytes(Bytes(bytes)),
                (None, Some(pages)) => KvMemory::Pages(Pages(pages)),
                (None, None) => KvMemory::Automatic,
            },
            max_len: self.max_model_len.map(Tokens),
            chunk: self.chunk.map_or(Options::default().chunk, |chunk| (Tokens(chunk), Tokens(chunk))),
            ..Options::default()
        }
    }

    /// Loads the model, with a bar where it takes a while and somebody is looking.
    pub(crate) fn load(&self, hub: &Hub) -> Result<Llm> {
        self.load_with(hub, |options| options)
    }

    /// The same with options that `change` has changed. They are checked before anything is downloaded.
    pub(crate) fn load_with(&self, hub: &Hub, change: impl FnOnce(Options) -> Options) -> Result<Llm> {
        let options = change(self.options(hub));
        options.check()?;
        let options = Options { source: source(self.model.as_deref(), hub, Files::All)?, ..options };
        let mut shown = crate::progress::Load::default();
        let llm = Llm::load(&options, &mut |at| shown.update(at))?;
        drop(shown);
        for note in llm.notes() {
            crate::log::say(format_args!("note: {note}"));
        }
        Ok(llm)
    }
}

/// The model that the user named, its files downloaded where they are not here yet.
pub(crate) fn source(model: Option<&Path>, hub: &Hub, files: Files) -> Result<Source> {
    let Some(model) = model else { return Ok(Source::BuiltIn) };
    let mut shown = crate::progress::Downloads::default();
    Ok(Source::named(model, hub, files, &mut |at| {
        shown.update(at);
        ControlFlow::Continue(())
    })?)
}

/// No more than can be used.
pub(crate) fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads: Option<NonZeroUsize> = text.parse().ok().filter(|n: &NonZeroUsize| n.get() <= Pool::MOST);
    threads.ok_or_else(|| format!("`{text}` is no number of threads: choose 1 to {}", Pool::MOST))
}

/// `4096`, `512KB`, `1.5GB`, `2GiB`: powers of 1000 and of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        other => return Err(format!("`{other}` is no unit of memory: use KB, MB, GB, KiB, MiB or GiB")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is no size: write it like 512MB or 4GiB"))?;
    let bytes = number * factor;
    if bytes.is_finite() && bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(format!("`{text}` is more memory than any machine has"))
    }
}

/// A size of which something can be kept.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes > 0 {
        Ok(bytes)
    } else {
        Err("nothing can be kept in no memory: write it like 512MB or 4GiB".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: ModelArgs,
    }

    fn options(args: &[&str]) -> Options {
        let hub = Hub::from_vars(|name| (name == "XDG_CACHE_HOME").then(|| "/caches".into()));
        Cli::parse_from([&["octavo"], args].concat()).args.options(&hub)
    }

    #[test]
    fn every_option_is_the_models() {
        let asked = options(&[
            "--device=cuda:1",
            "--deterministic",
            "--threads=2",
            "--weights=int8",
            "--kv-backend=contiguous",
            "--kv-dtype=fp8",
            "--page-size=4",
            "--kv-window=5",
            "--kv-memory=6KB",
            "--max-model-len=7",
            "--chunk=8",
        ]);
        assert_eq!((asked.device, asked.deterministic), (Device::Cuda(1), true));
        assert_eq!((asked.threads, asked.weights), (NonZeroUsize::new(2), WeightFormat::Int8));
        assert_eq!((asked.kv_backend, asked.kv_dtype), (KvBackend::Contiguous, KvDtype::Fp8));
        assert_eq!((asked.page_size.tokens(), asked.kv_window), (Tokens(4), Some(Tokens(5))));
        assert_eq!((asked.kv_memory, asked.max_len), (KvMemory::Bytes(Bytes(6000)), Some(Tokens(7))));
        assert_eq!(asked.chunk, (Tokens(8), Tokens(8)));
        assert_eq!(asked.kernel_cache, Some("/caches".into()));
        assert_eq!(options(&["--num-pages=9"]).kv_memory, KvMemory::Pages(Pages(9)));
        assert_eq!(options(&["--weights=f32"]).weights, WeightFormat::F32);
        let (usual, own) = (options(&[]), Options::default());
        assert_eq!((usual.device, usual.deterministic), (own.device, own.deterministic));
        assert_eq!((usual.threads, usual.weights), (own.threads, own.weights));
        assert_eq!((usual.kv_backend, usual.kv_dtype), (own.kv_backend, own.kv_dtype));
        assert_eq!((usual.page_size, usual.kv_window), (own.page_size, own.kv_window));
        assert_eq!((usual.kv_memory, usual.max_len, usual.chunk), (own.kv_memory, own.max_len, own.chunk));
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        let cases = [
            ("4096", 4096),
            ("7B", 7),
            ("1kb", 1000),
            ("2k", 2000),
            ("5MB", 5_000_000),
            ("6m", 6_000_000),
            ("1.5GB", 1_500_000_000),
            ("3g", 3_000_000_000),
            ("1TB", 1_000_000_000_000),
            ("2t", 2_000_000_000_000),
            ("9KiB", 9 << 10),
            ("3 MiB", 3 << 20),
            ("2GiB", 2 << 30),
            ("1TiB", 1 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        assert!(parse_size("lots").unwrap_err().contains("lots"));
        assert!(parse_size("4 parsecs").unwrap_err().contains("parsecs"));
        assert!(parse_size("1..2GB").unwrap_err().contains("512MB"));
        assert!(parse_size("99999999999TB").unwrap_err().contains("more memory"));
    }
}
