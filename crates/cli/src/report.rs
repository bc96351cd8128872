//! What a command finds out, and the two ways it is written: tables for people, one JSON object for programs.

use crate::json::Json;
use crate::output::is_read;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;

/// Something a figure should reach.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Goal {
    goal: String,
    figure: f64,
    met: bool,
}

impl Goal {
    pub(crate) fn at_least(limit: f64, figure: f64, goal: impl Into<String>) -> Self {
        Self { goal: goal.into(), figure, met: figure >= limit }
    }
    pub(crate) fn at_most(limit: f64, figure: f64, goal: impl Into<String>) -> Self {
        Self { goal: goal.into(), figure, met: figure <= limit }
    }
}

/// Rows under headings, right-aligned but for the first column.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn new<H: ToString>(title: impl Into<String>, headings: impl IntoIterator<Item = H>) -> Self {
        let headings = headings.into_iter().map(|heading| heading.to_string()).collect();
        Self { title: title.into(), rows: vec![headings], notes: Vec::new() }
    }

    /// Adds a row of as many cells as there are headings.
    pub(crate) fn row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        assert_eq!(cells.len(), self.rows[0].len(), "cells in a row of {:?}", self.title);
        self.rows.push(cells);
    }

    /// Adds a line under the rows.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        writeln!(out, "\n{}", self.title)?;
        for row in &self.rows {
            let mut line = format!("  {:<w$}", row[0], w = width(0));
            for (column, cell) in row.iter().enumerate().skip(1) {
                line += &format!("  {cell:>w$}", w = width(column));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))
    }
}

/// Whose answer a report is.
#[derive(Debug, Clone, Copy)]
enum Of {
    /// `octavo bench NAME`: its figures hold for one build on one machine.
    Bench(&'static str),
    /// `octavo NAME`: its figures are the same everywhere.
    Command(&'static str),
}

/// The answer of one command.
#[derive(Debug)]
pub(crate) struct Report {
    of: Of,
    question: &'static str,
    /// What the figures hold for: sizes, rounds.
    conditions: String,
    tables: Vec<Table>,
    goals: Vec<Goal>,
    figures: Map<String, Value>,
}

impl Report {
    /// The answer of a bench. `figures` must serialize to an object; its keys are the report's.
    pub(crate) fn new(
        bench: &'static str,
        question: &'static str,
        conditions: String,
        figures: &impl Serialize,
        tables: Vec<Table>,
        goals: Vec<Goal>,
    ) -> Result<Self> {
        let figures = object(figures)?;
        Ok(Self { of: Of::Bench(bench), question, conditions, tables, goals, figures })
    }

    /// The answer of a command that is no bench; the same rule for `figures`.
    pub(crate) fn of_command(
        command: &'static str,
        question: &'static str,
        conditions: String,
        figures: &impl Serialize,
        tables: Vec<Table>,
        goals: Vec<Goal>,
    ) -> Result<Self> {
        let figures = object(figures)?;
        Ok(Self { of: Of::Command(command), question, conditions, tables, goals, figures })
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        match self.of {
            Of::Bench(name) => {
                object.insert("bench".into(), json!(name));
                object.insert("build".into(), json!(build()));
                object.insert("hardware_threads".into(), json!(hardware_threads()));
            }
            Of::Command(name) => {
                object.insert("command".into(), json!(name));
            }
        }
        object.extend(self.figures.clone());
        if !self.goals.is_empty() {
            object.insert("goals".into(), json!(self.goals));
            object.insert("goals_met".into(), json!(self.goals.iter().all(|goal| goal.met)));
        }
        Value::Object(object)
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (question, conditions) = (self.question, &self.conditions);
        match self.of {
            Of::Bench(name) => {
                writeln!(out, "octavo bench {name}: {question}")?;
                writeln!(out, "{conditions}; {} hardware threads, {} build", hardware_threads(), build())?;
            }
            Of::Command(name) => writeln!(out, "octavo {name}: {question}\n{conditions}")?,
        }
        for table in &self.tables {
            table.write(out)?;
        }
        if !self.goals.is_empty() {
            writeln!(out, "\nGoals")?;
        }
        for Goal { goal, figure, met } in &self.goals {
            let met = if *met { "met   " } else { "MISSED" };
            writeln!(out, "  {met}  {goal}: {}", figure_in_words(*figure))?;
        }
        Ok(())
    }
}

fn object(figures: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(figures).context("cannot write the figures as JSON")? {
        Value::Object(figures) => Ok(figures),
        other => anyhow::bail!("the figures of a report are no object but {other}"),
    }
}

/// Threads that the machine runs at once, as far as this process may use them; 0 where nobody knows.
fn hardware_threads() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// Three digits are more than a timing is worth.
fn figure_in_words(figure: f64) -> String {
    if figure.abs() >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.2}") }
}

/// Where a report goes. Opened before the bench runs, so that a wrong path costs no minutes.
#[derive(Debug)]
pub(crate) struct Sink(Option<Json>);

impl Sink {
    /// `-` stands for standard output, which then carries nothing but the object.
    pub(crate) fn open(json: Option<&Path>) -> Result<Self> {
        Ok(Self(json.map(Json::open).transpose()?))
    }

    pub(crate) fn write(self, report: &Report) -> Result<()> {
        let printed = match &self.0 {
            Some(Json::Printed) => Ok(true),
            _ => {
                let mut stdout = std::io::stdout().lock();
                is_read(report.write(&mut stdout).and_then(|()| stdout.flush()))
            }
        };
        // The file is written even if nobody could read the tables.
        let written = self.0.map_or(Ok(()), |json| json.write(format_args!("{:#}", report.to_json())));
        printed.and(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(goals: Vec<Goal>) -> Report {
        let mut table = Table::new("Figures", ["what", "ns"]);
        table.row(["a", "12.5"]);
        table.row(["longer", "3"]);
        let figures = json!({"ns": 12.5});
        Report::new("demo", "how long?", "two rounds".into(), &figures, vec![table], goals).unwrap()
    }

    #[test]
    fn columns_line_up_and_a_missed_goal_stands_out() {
        let mut text = Vec::new();
        report(vec![Goal::at_most(10.0, 12.5, "at most 10 ns")]).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("  what      ns\n  a       12.5\n  longer     3\n"), "{text}");
        assert!(text.contains("  MISSED  at most 10 ns: 12.50\n"), "{text}");
        let mut text = Vec::new();
        report(vec![Goal::at_most(123.4, 123.4, "so many")]).write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("  met     so many: 123\n"), "{text}");
        let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
        assert!(text.contains(build), "{text}");
    }

    #[test]
    fn the_object_has_the_figures_and_says_whether_all_goals_are_met() {
        let met = Goal::at_least(1.0, 1.0, "at least 1");
        let missed = Goal::at_least(1.0, 0.9, "at least 1");
        let object = report(vec![met.clone()]).to_json();
        assert_eq!((&object["ns"], &object["goals_met"]), (&json!(12.5), &json!(true)));
        assert_eq!(report(vec![met, missed]).to_json()["goals_met"], json!(false));
    }

    #[test]
    fn figures_that_are_no_object_are_refused() {
        let refused = Report::new("demo", "", String::new(), &json!([1]), Vec::new(), Vec::new());
        assert!(refused.unwrap_err().to_string().contains("no object"));
    }
}
