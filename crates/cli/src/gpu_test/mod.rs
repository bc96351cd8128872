//! `octavo gpu-test`: everything that shows that the CUDA back end is right and fast, from this one binary, on a
//! machine that has a GPU and nothing of Rust. `cargo xtask gpu-test` calls it.

mod blocks;
mod conformance;
mod demo;
mod parity;
mod tokens;
mod traffic;
mod transformers;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use octavo::Device;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

/// Test the CUDA back end on this machine's GPU, and measure it
///
/// Prints Markdown: the conformance suite, logits and tokens against the CPU and, where Python has it, against
/// transformers, then every bench. Each part runs in a process of its own, since an error of the device ends the process that met it.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// Which GPU: cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Device,
    /// Folder of the fixture models, `tests/fixtures/models` of the project
    #[arg(long, value_name = "FOLDER", default_value = "tests/fixtures/models")]
    models: PathBuf,
    /// Folder of the built-in model, for transformers
    #[arg(long, value_name = "FOLDER", default_value = "models/demo")]
    demo: PathBuf,
    /// A Python that has torch and transformers
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// This part alone; may be given more than once
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// A part that takes longer is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Run the part within this process
    #[arg(long, hide = true, requires = "part")]
    within: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The conformance suite, with bits that do not depend on the batch
    ConformanceDeterministic,
    /// The same as the back end usually runs, bits left out
    Conformance,
    /// Logits and tokens against the CPU in f32
    Parity,
    /// The built-in model with keys and values in every precision, against the CPU in f32
    Demo,
    /// The built-in model: the same tokens alone, in a crowd and from the cache
    Tokens,
    /// The fixture models: the same bits alone and among others in a pool far too small
    Traffic,
    /// Copies and reshapes of blocks, against the CPU
    Blocks,
    /// Logits against transformers
    Transformers,
    Attention,
    Step,
    StepDeterministic,
    Prefill,
    Offline,
    Serving,
    Long,
}

impl Part {
    /// The arguments of the bench that it is.
    fn bench(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Attention => &["attention"],
            Self::Step => &["step"],
            Self::StepDeterministic => &["step", "--deterministic"],
            Self::Prefill => &["prefill"],
            Self::Offline => &["offline"],
            Self::Serving => &["serving"],
            Self::Long => &["long"],
            _ => return None,
        })
    }
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let Device::Cuda(number) = command.device else { bail!("--device cuda or cuda:N") };
    if command.within {
        return command.part.iter().try_for_each(|part| match part {
            Part::ConformanceDeterministic => conformance::run(number, true),
            Part::Conformance => conformance::run(number, false),
            Part::Parity => parity::run(number, &command.models),
            Part::Demo => demo::run(command.device),
            Part::Tokens => tokens::run(command.device),
            Part::Traffic => traffic::run(number, &command.models),
            Part::Blocks => blocks::run(number),
            Part::Transformers => transformers::run(number, &command.models, &command.demo, &command.python),
            bench => bail!("{bench:?} is a bench: `octavo bench` runs it"),
        });
    }
    let parts = if command.part.is_empty() { Part::value_variants() } else { &command.part[..] };
    println!("# {}, {}\n", conformance::device_name(number)?, date());
    let mut failed = Vec::new();
    for part in parts {
        let name = part.to_possible_value().expect("none is skipped").get_name().to_owned();
        println!("## {name}\n\n```text");
        std::io::stdout().flush().context("cannot write to standard output")?;
        let (succeeded, took) = run_part(command, *part, &name)?;
        println!("```\n{} in {took:.1} s\n", if succeeded { "passed" } else { "FAILED" });
        if !succeeded {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Whether it succeeded, and the seconds it took.
fn run_part(command: &Command, part: Part, name: &str) -> Result<(bool, f64)> {
    let mut process = Process::new(std::env::current_exe().context("this program's own file")?);
    process.stdin(Stdio::null());
    match part.bench() {
        Some(bench) => process.arg("bench").args(bench),
        None => process
            .args(["gpu-test", "--within", "--part", name, "--models"])
            .arg(&command.models)
            .arg("--demo")
            .arg(&command.demo)
            .arg("--python")
            .arg(&command.python),
    };
    process.args(["--device", &command.device.to_string()]);
    let start = Instant::now();
    let mut child = process.spawn().context("cannot start a part")?;
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for a part")? {
            break status.success();
        }
        if start.elapsed() > Duration::from_secs(command.limit) {
            println!("stopped after {} s", command.limit);
            child.kill().and_then(|()| child.wait()).context("cannot stop a part")?;
            break false;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Ok((status, start.elapsed().as_secs_f64()))
}

/// Where compiled kernels are kept.
fn kernel_cache() -> Option<PathBuf> {
    octavo::Hub::from_vars(|name| std::env::var_os(name)).user_caches().map(Into::into)
}

/// Today, as in 2026-11-15.
fn date() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let days = now.map_or(0, |now| now.as_secs() / 86_400);
    let (year, month, day) = civil(days as i64);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day counted from 1970-01-01 (the usual algorithm, by eras of 400 years from 1 March).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_772), (2026, 11, 15));
    }
}
