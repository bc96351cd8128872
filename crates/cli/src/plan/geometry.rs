//! Whose keys and values are planned for: a model's `config.json`, one known by name, or numbers.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use octavo::{Files, Hub, KvDtype, KvSpec, PageSize, Source, SpecError, Tokens};
use std::path::PathBuf;

/// Models known by name, so that nothing need be downloaded to plan for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    #[value(name = "llama-3.2-3b")]
    Llama32With3B,
    #[value(name = "qwen3-4b")]
    Qwen3With4B,
    #[value(name = "qwen3-0.6b")]
    Qwen3With06B,
    #[value(name = "gemma-3-1b")]
    Gemma3With1B,
}

/// The most heads, and elements of one: as of a `config.json`.
const MOST: i64 = 1 << 24;

#[derive(Debug, Args)]
pub(super) struct GeometryArgs {
    /// Directory of a model, or its name on the hub (org/name): only config.json is read [default: the built-in model]
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["preset", "layers"])]
    model: Option<PathBuf>,
    /// A model known by name
    #[arg(long, value_enum, conflicts_with = "layers", ignore_case = true)]
    preset: Option<Preset>,
    /// Layers of a model given by numbers
    #[arg(long, value_name = "N", requires_all = ["kv_heads", "head_dim"], value_parser = clap::value_parser!(u32).range(1..=4096))]
    layers: Option<u32>,
    /// Heads that have keys and values, with --layers
    #[arg(long, value_name = "N", requires = "layers", value_parser = clap::value_parser!(u32).range(1..=MOST))]
    kv_heads: Option<u32>,
    /// Elements of a head, with --layers
    #[arg(long, value_name = "N", requires = "layers", value_parser = clap::value_parser!(u32).range(1..=MOST))]
    head_dim: Option<u32>,
    /// Heads that ask, with --layers: shows what sharing KV heads saves
    #[arg(long, value_name = "N", requires = "layers", value_parser = clap::value_parser!(u32).range(1..=MOST))]
    q_heads: Option<u32>,
    /// How far back layers look, with --layers
    #[arg(long, value_name = "TOKENS", requires = "layers", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// Every Kth layer looks at everything all the same, with --window
    #[arg(long, value_name = "K", requires = "window", value_parser = clap::value_parser!(u32).range(1..))]
    global_every: Option<u32>,
}

/// Everything about a model that its cache depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) name: String,
    /// One a layer: how far back it looks.
    pub(super) windows: Vec<Option<Tokens>>,
    pub(super) q_heads: Option<u32>,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// The longest sequence it was made for, where anybody has said so.
    pub(super) made_for: Option<Tokens>,
}

impl Geometry {
    pub(super) fn spec(&self, dtype: KvDtype, page_size: PageSize) -> Result<KvSpec, SpecError> {
        KvSpec::new(&self.windows, self.kv_heads, self.head_dim, dtype, page_size)
    }

    /// No layer looks further back than `most`.
    pub(super) fn narrowed(mut self, most: Tokens) -> Self {
        for window in &mut self.windows {
            *window = Some(window.map_or(most, |own| own.min(most)));
        }
        self
    }

    fn of_numbers(
        name: &str,
        [layers, q_heads, kv_heads, head_dim]: [u32; 4],
        window: Option<(u32, u32)>,
    ) -> Self {
        let slides = |layer: u32| window.filter(|&(_, every)| every == 0 || !layer.is_multiple_of(every));
        let windows = (1..=layers).map(|layer| slides(layer).map(|(window, _)| Tokens(window))).collect();
        let q_heads = (q_heads > 0).then_some(q_heads);
        Self { name: name.into(), windows, q_heads, kv_heads, head_dim, made_for: None }
    }
}

impl Preset {
    pub(super) fn geometry(self) -> Geometry {
        let (name, numbers, window, made_for) = match self {
            Self::Llama32With3B => ("Llama-3.2-3B", [28, 24, 8, 128], None, 131_072),
            Self::Qwen3With4B => ("Qwen3-4B", [36, 32, 8, 128], None, 40_960),
            Self::Qwen3With06B => ("Qwen3-0.6B", [28, 16, 8, 128], None, 40_960),
            Self::Gemma3With1B => ("Gemma-3-1B", [26, 4, 1, 256], Some((512, 6)), 32_768),
        };
        Geometry { made_for: Some(Tokens(made_for)), ..Geometry::of_numbers(name, numbers, window) }
    }
}

impl GeometryArgs {
    pub(super) fn geometry(&self, hub: &Hub) -> Result<Geometry> {
        if let Some(preset) = self.preset {
            return Ok(preset.geometry());
        }
        match (self.layers, self.kv_heads, self.head_dim) {
            (Some(layers), Some(kv_heads), Some(head_dim)) => self.given(layers, kv_heads, head_dim),
            _ => of_source(&crate::model_args::source(self.model.as_deref(), hub, Files::Config)?),
        }
    }

    fn given(&self, layers: u32, kv_heads: u32, head_dim: u32) -> Result<Geometry> {
        let q_heads = self.q_heads.unwrap_or(0);
        if !q_heads.is_multiple_of(kv_heads) {
            bail!("{q_heads} query heads cannot share {kv_heads} KV heads evenly: give a multiple");
        }
        let window = self.window.map(|window| (window, self.global_every.unwrap_or(0)));
        Ok(Geometry::of_numbers("a model given by numbers", [layers, q_heads, kv_heads, head_dim], window))
    }
}

fn of_source(source: &Source) -> Result<Geometry> {
    let config = source.config()?;
    let heads = config.heads();
    let narrow = |n: usize| u32::try_from(n).expect("a configuration counts heads in 32 bits");
    Ok(Geometry {
        name: source.name(),
        windows: config.layers().iter().map(|layer| layer.window).collect(),
        q_heads: Some(narrow(heads.q)),
        kv_heads: narrow(heads.kv),
        head_dim: narrow(heads.dim),
        made_for: Some(config.max_positions()),
    })
}
