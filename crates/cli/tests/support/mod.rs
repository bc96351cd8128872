//! The real binary, run as a user runs it.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use serde_json::Value;
use std::process::{Command, Output};

/// One of the binary's commands.
pub struct Octavo(pub &'static str);

impl Octavo {
    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_octavo")).arg(self.0).args(args).output().expect("the binary starts")
    }

    /// Standard output of a run that succeeds.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs with `--json -` and parses the whole of standard output.
    pub fn object(&self, args: &[&str]) -> Value {
        let text = self.text(&[args, &["--json", "-"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Standard error of a run that fails and prints nothing else.
    pub fn error_of(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}
