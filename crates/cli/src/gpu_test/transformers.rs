//! Models on the GPU against Hugging Face transformers on the same machine.

use super::conformance::open;
use super::parity::{TOLERANCE, compare, engine, folders, logits, tokens};
use anyhow::{Context, Result, bail};
use octavo_model::ModelConfig;
use octavo_types::KvDtype;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Reads `folder` and tokens from standard input, a model a line; prints logits as f32, little-endian.
const SCRIPT: &str = include_str!("logits.py");

pub(super) fn run(number: usize, models: &Path, demo: &Path, python: &Path) -> Result<()> {
    let check =
        Command::new(python).args(["-c", "import torch, transformers"]).stderr(Stdio::null()).status();
    if !check.is_ok_and(|status| status.success()) {
        println!("not run: {} has no torch and transformers; say --python", python.display());
        return Ok(());
    }
    let mut failed = Vec::new();
    for folder in folders(models)?.into_iter().chain([demo.to_owned()]) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let config = ModelConfig::from_dir(&folder)?;
        let tokens = tokens(&config);
        let expected = theirs(python, &folder, &tokens, config.vocab())?;
        let mut gpu = engine(open(number, true)?, &folder, KvDtype::F32)?;
        let (off, same) = compare(&logits(&mut gpu, &tokens)?, &expected);
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

fn theirs(python: &Path, folder: &Path, tokens: &[u32], vocab: usize) -> Result<Vec<Vec<f32>>> {
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start Python")?;
    let mut input = child.stdin.take().expect("piped");
    write!(input, "{}", serde_json::to_string(tokens)?).context("cannot write to Python")?;
    drop(input);
    let output = child.wait_with_output().context("cannot wait for Python")?;
    if !output.status.success() {
        bail!("transformers could not run {}", folder.display());
    }
    let values: Vec<f32> = output.stdout.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    if values.len() != tokens.len() * vocab {
        bail!("transformers gave {} logits for {} tokens of {vocab}", values.len(), tokens.len());
    }
    Ok(values.chunks(vocab).map(<[f32]>::to_vec).collect())
}
