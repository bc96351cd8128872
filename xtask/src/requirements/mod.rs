//! The check of `docs/requirements.md`: every requirement has one row, and every test a row names exists.

mod locate;
mod table;

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use table::{Row, State};

const FILE: &str = "docs/requirements.md";

/// The requirements there are: a letter a document, and how many rows it has.
const SECTIONS: [(char, u32); 5] = [('A', 10), ('B', 11), ('C', 16), ('D', 19), ('E', 5)];

/// What the check found.
#[derive(Debug, Default)]
struct Report {
    proved: usize,
    part: usize,
    open: usize,
    errors: Vec<Problem>,
}

/// What is wrong, and in which line; line 0 is the file as a whole.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    line: usize,
    what: String,
}

/// Checks the file and prints how many requirements are proved.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let text =
        std::fs::read_to_string(workspace.root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let report = check(&text, &workspace.root);
    ensure!(report.errors.is_empty(), "{report}");
    println!("{report}");
    Ok(())
}

/// Checks `text`; the tests it names are looked for below `root`.
fn check(text: &str, root: &Path) -> Report {
    let (rows, mut errors) = table::parse(text);
    errors.extend(ids_missing_or_repeated(&rows));
    for row in &rows {
        errors.extend(row_problems(row, root).into_iter().map(|what| Problem { line: row.line, what }));
    }
    errors.sort_by_key(|problem| problem.line);
    let count = |state| rows.iter().filter(|row| row.state == state).count();
    Report { proved: count(State::Proved), part: count(State::Part), open: count(State::Open), errors }
}

fn ids_missing_or_repeated(rows: &[Row]) -> Vec<Problem> {
    let mut first_line: HashMap<String, Option<usize>> = SECTIONS
        .iter()
        .flat_map(|(letter, last)| (1..=*last).map(move |number| (format!("{letter}{number}"), None)))
        .collect();
    let mut problems = Vec::new();
    for Row { line, id, .. } in rows {
        match first_line.get_mut(id) {
            None => problems.push(Problem { line: *line, what: format!("there is no requirement {id}") }),
            Some(Some(first)) => {
                problems
                    .push(Problem { line: *line, what: format!("{id} has a row already, in line {first}") });
            }
            Some(unseen) => *unseen = Some(*line),
        }
    }
    let mut missing: Vec<String> =
        first_line.into_iter().filter(|(_, line)| line.is_none()).map(|(id, _)| id).collect();
    missing.sort_by_key(|id| (id.chars().next(), id.len(), id.clone()));
    problems.extend(missing.into_iter().map(|id| Problem { line: 0, what: format!("{id} has no row") }));
    problems
}

fn row_problems(row: &Row, root: &Path) -> Vec<String> {
    let id = &row.id;
    let mut problems: Vec<String> = row
        .tests
        .iter()
        .filter_map(|test| locate::find(test, root).err())
        .map(|reason| format!("{id}: {reason}"))
        .collect();
    if row.tests.is_empty() && row.state != State::Open {
        problems.push(format!("{id} is `{}` but names no test", row.state));
    }
    if row.sentence.is_empty() {
        problems.push(format!("{id} has no sentence"));
    }
    problems
}

/// The counts, or every error.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proved, part, open, errors } = self;
        if errors.is_empty() {
            return write!(
                f,
                "{} requirements: {proved} proved, {part} in part, {open} open",
                proved + part + open
            );
        }
        write!(f, "{FILE} has {} errors:", errors.len())?;
        errors.iter().try_for_each(|Problem { line, what }| match line {
            0 => write!(f, "\n  {what}"),
            line => write!(f, "\n  line {line}: {what}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rows open, but for the replacements: (id, tests, state).
    fn table(replaced: &[(&str, &str, &str)]) -> String {
        let mut text = String::from("# Requirements\n\n");
        for (letter, last) in SECTIONS {
            text += &format!("## {letter}\n| id | scenario | tests | state |\n|---|---|---|---|\n");
            for number in 1..=last {
                let id = format!("{letter}{number}");
                let row = replaced.iter().find(|(replaced, ..)| *replaced == id);
                let (_, tests, state) = *row.unwrap_or(&("", "-", "open"));
                text += &format!("| {id} | something holds | {tests} | {state} |\n");
            }
        }
        text
    }

    fn errors(text: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        check(text, root).errors.iter().map(|problem| format!("{}: {}", problem.line, problem.what)).collect()
    }

    /// A test that exists: the next one.
    const HERE: &str = "`xtask/src/requirements/mod.rs::a_complete_table_passes`";

    #[test]
    fn a_complete_table_passes() {
        let text = table(&[("A1", HERE, "proved"), ("C16", HERE, "part")]);
        let report = check(&text, Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
        assert_eq!(report.errors, []);
        assert_eq!(report.to_string(), "61 requirements: 1 proved, 1 in part, 59 open");
    }

    #[test]
    fn a_missing_id_is_named() {
        let text: String = table(&[])
            .lines()
            .filter(|line| !line.starts_with("| B10 "))
            .fold(String::new(), |all, line| all + line + "\n");
        assert_eq!(errors(&text), ["0: B10 has no row"]);
    }

    #[test]
    fn an_id_with_two_rows_is_named_with_both_lines() {
        let text = table(&[]) + "| A1 | once more | - | open |\n";
        assert_eq!(errors(&text), ["79: A1 has a row already, in line 6"]);
    }

    #[test]
    fn an_id_that_does_not_exist_is_refused() {
        assert_eq!(errors(&(table(&[]) + "| E6 | more | - | open |\n")), ["79: there is no requirement E6"]);
    }

    #[test]
    fn a_proved_row_without_a_test_is_refused() {
        assert_eq!(errors(&table(&[("A1", "-", "proved")])), ["6: A1 is `proved` but names no test"]);
        assert_eq!(errors(&table(&[("A1", "", "part")])), ["6: A1 is `part` but names no test"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_refused() {
        let text = table(&[("A2", "`xtask/src/requirements/mod.rs::no_such_test`", "proved")]);
        assert_eq!(errors(&text), ["7: A2: `xtask/src/requirements/mod.rs` has no test `no_such_test`"]);
        let text = table(&[("A2", &format!("{HERE}, `xtask/src/gone.rs::a_test`"), "proved")]);
        assert_eq!(errors(&text), ["7: A2: there is no file `xtask/src/gone.rs`"]);
    }
}
