//! `octavo chat`: a conversation in the terminal.

use crate::engine_args::EngineArgs;
use crate::generate::SamplingArgs;
use crate::output::print;
use anyhow::{Context, Result, bail};
use octavo::{FinishReason, Hub, Llm, Message, Request};
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Talk to a model in the terminal
///
/// One line is one message. Earlier turns stay in the KV cache, so that only new text is read. /reset forgets the
/// conversation, /system TEXT sets the system message, /stats shows the cache, /quit or Ctrl-D ends. Ctrl-C ends an
/// answer and keeps what was said. Without --model the built-in model answers, which knows a little about Rust.
/// Options come from the environment and a file, and switches are turned off by =false, as for `octavo serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// Read options from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The most tokens in an answer
    #[arg(long, short = 'n', value_name = "N", default_value_t = 512)]
    max_tokens: u32,
}

/// A conversation so far.
struct Chat<'a> {
    command: &'a Command,
    llm: Llm,
    system: Option<String>,
    turns: Vec<Message>,
    interrupted: Arc<AtomicBool>,
    /// Somebody is looking: prompts and hints make sense.
    terminal: bool,
}

pub(crate) fn run(command: &Command, hub: &Hub) -> Result<()> {
    let llm = command.engine.load(hub)?;
    if !llm.texts().has_template() {
        bail!("{} has no chat template: use `octavo generate`", llm.name());
    }
    let interrupted = crate::interrupt::flag()?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if terminal {
        print(format_args!("{} on {}. /quit ends, /reset starts over.\n", llm.name(), llm.device()))?;
    }
    let mut chat =
        Chat { command, llm, system: command.system.clone(), turns: Vec::new(), interrupted, terminal };
    let (mut line, mut lines, mut skipped) = (Vec::new(), 0, 0);
    while chat.read(&mut line)? {
        lines += 1;
        let Ok(text) = std::str::from_utf8(&line) else {
            skipped += 1;
            crate::log::say(format_args!("octavo: line {lines} is not text in UTF-8 and was skipped"));
            continue;
        };
        if !chat.take(text.trim())? {
            break;
        }
    }
    if skipped > 0 && !terminal {
        bail!("{skipped} of {lines} lines on standard input were not text");
    }
    Ok(())
}

impl Chat<'_> {
    /// The next line; `false` at the end of the input.
    fn read(&self, line: &mut Vec<u8>) -> Result<bool> {
        if self.terminal {
            print("> ")?;
        }
        // What ended the last answer is over.
        self.interrupted.store(false, Ordering::Relaxed);
        line.clear();
        let read = std::io::stdin().lock().read_until(b'\n', line);
        Ok(read.context("cannot read standard input")? > 0)
    }

    /// Whether to go on.
    fn take(&mut self, line: &str) -> Result<bool> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", "") => {}
            ("/quit" | "/exit", _) => return Ok(false),
            ("/reset", _) => self.turns.clear(),
            ("/system", text) => self.system = (!text.is_empty()).then(|| text.to_owned()),
            ("/stats", _) => self.show_cache()?,
            (word, _) if word.starts_with('/') => {
                crate::log::say("there is /reset, /system TEXT, /stats and /quit")
            }
            _ => self.answer(line)?,
        }
        Ok(true)
    }

    fn show_cache(&mut self) -> Result<()> {
        let snapshot = self.llm.engine().cache().snapshot();
        let pages = snapshot.pages;
        print(format_args!(
            "pages: {} used, {} cached, {} reserved, {} free of {}; {} prompt tokens found in the cache so far\n",
            pages.used.0,
            pages.cached.0,
            pages.reserved.0,
            pages.free.0,
            pages.total.0,
            snapshot.counters.hit_tokens,
        ))?;
        Ok(())
    }

    /// Asks the model, and prints the answer as it comes. What cannot be answered is taken back.
    fn answer(&mut self, text: &str) -> Result<()> {
        self.turns.push(Message::new("user", text));
        match self.ask() {
            Ok(answer) => {
                self.turns.push(Message::new("assistant", answer));
                Ok(())
            }
            Err(error) => {
                self.turns.pop();
                if !self.terminal {
                    return Err(error);
                }
                crate::log::say(format_args!(
                    "octavo: {} (/reset starts over)",
                    octavo::said(error.as_ref())
                ));
                Ok(())
            }
        }
    }

    fn ask(&mut self) -> Result<String> {
        let system = self.system.iter().map(|text| Message::new("system", text.clone()));
        let messages: Vec<Message> = system.chain(self.turns.iter().cloned()).collect();
        let prompt = self.llm.encode_chat(&messages)?;
        let request = Request {
            sampling: self.command.sampling.over(self.llm.default_sampling()),
            stop_tokens: self.llm.stop_tokens().into(),
            ..Request::new(prompt, self.command.max_tokens)
        };
        self.interrupted.store(false, Ordering::Relaxed);
        let answer = crate::answer::run(&mut self.llm, request, false, &self.interrupted)?.output;
        if self.terminal && answer.finish == Some(FinishReason::Length) {
            crate::log::say(format_args!("(cut off after {} tokens)", answer.tokens.len()));
        }
        Ok(answer.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use octavo::SamplingParams;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        command: Command,
    }

    fn sampling(args: &[&str], base: SamplingParams) -> SamplingParams {
        Cli::parse_from([&["octavo"], args].concat()).command.sampling.over(base)
    }

    #[test]
    fn what_is_asked_of_sampling_is_taken_and_the_rest_is_the_models() {
        let all = SamplingParams {
            temperature: 0.1,
            top_k: 2,
            top_p: 0.3,
            min_p: 0.4,
            repetition_penalty: 1.5,
            presence_penalty: 0.6,
            frequency_penalty: 0.7,
            seed: 8,
            ..SamplingParams::default()
        };
        let args = [
            "--temperature=0.1",
            "--top-k=2",
            "--top-p=0.3",
            "--min-p=0.4",
            "--repetition-penalty=1.5",
            "--presence-penalty=0.6",
            "--frequency-penalty=0.7",
            "--seed=8",
        ];
        assert_eq!(sampling(&args, SamplingParams::default()), all);
        assert_eq!(sampling(&["--seed=8"], SamplingParams { seed: 9, ..all.clone() }), all);
    }
}
