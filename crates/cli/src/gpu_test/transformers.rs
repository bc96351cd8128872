//! Models on the GPU against Hugging Face transformers on the same machine.

use super::conformance::open;
use super::parity::{TOLERANCE, compare, engine, folders, logits, tokens};
use anyhow::{Context, Result, bail};
use octavo_model::ModelConfig;
use octavo_types::KvDtype;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("logits.py");

pub(super) fn run(number: usize, models: &Path, demo: &Path, python: &Path) -> Result<()> {
    let check =
        Command::new(python).args(["-c", "import torch, transformers"]).stderr(Stdio::null()).status();
    if !check.is_ok_and(|status| status.success()) {
        println!("not run: {} has no torch and transformers; say --python", python.display());
        return Ok(());
    }
    let mut cases = Vec::new();
    for folder in folders(models)?.into_iter().chain([demo.to_owned()]) {
        let config = ModelConfig::from_dir(&folder)?;
        cases.push(Case { tokens: tokens(&config), vocab: config.vocab(), folder });
    }
    let theirs = theirs(python, &cases)?;
    let mut failed = Vec::new();
    for (case, expected) in cases.iter().zip(theirs) {
        let name = case.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut gpu = engine(open(number, true)?, &case.folder, KvDtype::F32)?;
        let (off, same) = compare(&logits(&mut gpu, &case.tokens)?, &expected);
        println!(
            "{name}: logits off by {:.2} %, the likeliest token the same in {:.0} % of rows",
            100.0 * off,
            100.0 * same
        );
        if off.is_nan() || off > TOLERANCE {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("not as in transformers: {}", failed.join(", "));
    }
    Ok(())
}

struct Case {
    folder: PathBuf,
    tokens: Vec<u32>,
    vocab: usize,
}

/// The logits of every token, for each case.
fn theirs(python: &Path, cases: &[Case]) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start Python")?;
    let asked: Vec<_> = cases.iter().map(|case| (&case.folder, &case.tokens)).collect();
    let mut input = child.stdin.take().expect("piped");
    write!(input, "{}", serde_json::to_string(&asked)?).context("cannot write to Python")?;
    drop(input);
    let output = child.wait_with_output().context("cannot wait for Python")?;
    if !output.status.success() {
        bail!("transformers could not run the models");
    }
    let values: Vec<f32> = output.stdout.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let sizes = cases.iter().map(|case| case.tokens.len() * case.vocab);
    if values.len() != sizes.sum::<usize>() {
        bail!("transformers gave {} logits, which is not one for each token of each row", values.len());
    }
    let mut rest = &values[..];
    let take = |case: &Case| {
        let (own, others) = rest.split_at(case.tokens.len() * case.vocab);
        rest = others;
        own.chunks(case.vocab).map(<[f32]>::to_vec).collect()
    };
    Ok(cases.iter().map(take).collect())
}
