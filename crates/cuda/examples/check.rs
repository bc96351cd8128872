//! Everything about a GPU in one run: `check [part ...]`, all parts unless some are named. `sweep:Gemma` is that part's
//! cases with `Gemma` in their names; `sweep:Gemma@3` measures the fourth choice first (several processes, each with
//! another one first, compile all kernels together).
//!
//! Each part has a process of its own: one that fails is reported and the others go on. The last line of output is the results as JSON.

#[path = "check/children.rs"]
mod children;
#[path = "check/parts.rs"]
mod parts;
#[path = "check/sweep.rs"]
mod sweep;

use octavo_cuda::Options;
use octavo_cuda::bench::Bench;
use parts::{Part, Report};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let wanted: Vec<(&str, &str)> = wanted.iter().map(|w| w.split_once(':').unwrap_or((w, ""))).collect();
    let unknown = wanted.iter().find(|(name, _)| !parts::ALL.iter().any(|part| part.name == *name));
    if let Some((name, _)) = unknown {
        let names: Vec<_> = parts::ALL.iter().map(|part| part.name).collect();
        eprintln!("no part {name}; there are {}", names.join(", "));
        std::process::exit(2);
    }
    let named = |name: &str| parts::ALL.iter().find(|part| part.name == name);
    let chosen: Vec<(&Part, &str)> = match &wanted[..] {
        [] => parts::ALL.iter().map(|part| (part, "")).collect(),
        some => some.iter().filter_map(|(name, cases)| named(name).map(|part| (part, *cases))).collect(),
    };
    let mut report = Report::default();
    match chosen[..] {
        [(part, cases)] => {
            report.cases = cases.into();
            run(part, &mut report);
        }
        _ => chosen.iter().for_each(|(part, cases)| children::run(part.name, cases, &mut report)),
    }
    println!("\n{} parts failed: {:?}", report.failures.len(), report.failures);
    println!("{}", report.json());
    std::process::exit(i32::from(!report.failures.is_empty()));
}

fn run(part: &Part, report: &mut Report) {
    println!("\n== {}", part.name);
    let start = Instant::now();
    let options = Options { deterministic: part.deterministic, cache: cache(), ..Options::default() };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let bench = Bench::open(0, options).map_err(|error| error.to_string())?;
        (part.run)(&bench, report)
    }));
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(panic) => Some(message(&*panic)),
    };
    if let Some(failure) = failure {
        println!("FAILED: {failure}");
        report.failures.push(part.name.into());
    }
    println!("({:.1} s)", start.elapsed().as_secs_f64());
}

fn cache() -> Option<std::path::PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cache"));
    std::env::var_os("XDG_CACHE_HOME").map(Into::into).or_else(home)
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}
