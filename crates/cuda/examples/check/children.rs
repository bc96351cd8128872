//! A part in a process of its own: an error of the device outlives everything but that.

use crate::parts::Report;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

/// After this a part is taken for hung.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the part, shows what it prints, and takes over its results.
pub(crate) fn run(name: &'static str, cases: &str, report: &mut Report) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .arg(format!("{name}:{cases}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child of it");
    let output = child.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || show(BufReader::new(output)));
    let mut waited = Duration::ZERO;
    while waited < LIMIT && !child.try_wait().is_ok_and(|status| status.is_some()) {
        std::thread::sleep(Duration::from_millis(20));
        waited += Duration::from_millis(20);
    }
    if waited >= LIMIT {
        println!("{name} was stopped after {} s", LIMIT.as_secs());
        let _ = child.kill();
    }
    let succeeded = child.wait().is_ok_and(|status| status.success());
    let last = reader.join().unwrap_or_default();
    if !succeeded {
        report.failures.push(name.into());
    }
    report.take_over(serde_json::from_str(&last).unwrap_or(Value::Null));
}

/// Prints line by line; the last one, which is for programs, is returned instead.
fn show(output: impl BufRead) -> String {
    let mut last = String::new();
    for line in output.lines().map_while(Result::ok) {
        if !last.is_empty() {
            println!("{last}");
        }
        last = line;
    }
    last
}
