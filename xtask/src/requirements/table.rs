//! Reads the tables of requirements out of a Markdown text.

use super::Problem;
use std::fmt;
use std::str::FromStr;

/// One requirement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) line: usize,
    pub(super) id: String,
    pub(super) sentence: String,
    /// `path::name` each.
    pub(super) tests: Vec<String>,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Proved,
    Part,
    Open,
}

impl FromStr for State {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "proved" => Ok(Self::Proved),
            "part" => Ok(Self::Part),
            "open" => Ok(Self::Open),
            other => Err(format!("`{other}` is no state: use proved, part or open")),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proved => "proved",
            Self::Part => "part",
            Self::Open => "open",
        })
    }
}

/// The rows of all tables whose first column is headed `id`, and what could not be read. Other tables are left
/// alone.
pub(super) fn parse(text: &str) -> (Vec<Row>, Vec<Problem>) {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let mut of_requirements = None;
    for (line, content) in (1..).zip(text.lines()) {
        let Some(cells) = cells(content) else {
            of_requirements = None;
            continue;
        };
        let is_header = of_requirements.is_none();
        let wanted = *of_requirements.get_or_insert_with(|| cells[0] == "id");
        let is_rule = cells.iter().all(|cell| cell.chars().all(|c| matches!(c, '-' | ':')));
        if is_header || is_rule || !wanted {
            continue;
        }
        match row(line, &cells) {
            Ok(row) => rows.push(row),
            Err(what) => problems.push(Problem { line, what }),
        }
    }
    (rows, problems)
}

/// The cells of a line of a table; `None` for any other line.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in inner.chars() {
        match c {
            '|' if !escaped => cells.push(String::new()),
            _ => cells.last_mut().expect("never empty").push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    Some(cells.iter().map(|cell| cell.trim().to_owned()).collect())
}

fn row(line: usize, cells: &[String]) -> Result<Row, String> {
    let [id, sentence, tests, state] = cells else {
        return Err(format!("{} columns instead of id, scenario, tests and state", cells.len()));
    };
    let named = |what: String| format!("{id}: {what}");
    Ok(Row {
        line,
        id: id.clone(),
        sentence: sentence.clone(),
        tests: test_names(tests).map_err(named)?,
        state: state.parse().map_err(named)?,
    })
}

/// The names in a cell of `` `path::name` `` separated by commas; `-` stands for none.
fn test_names(cell: &str) -> Result<Vec<String>, String> {
    if cell.is_empty() || cell == "-" {
        return Ok(Vec::new());
    }
    cell.split(',')
        .map(|name| {
            let quoted = name.trim().strip_prefix('`').and_then(|name| name.strip_suffix('`'));
            quoted
                .filter(|name| name.contains("::") && !name.contains('`'))
                .map(str::to_owned)
                .ok_or_else(|| format!("cannot read `{}`: write tests as `path::name`", name.trim()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_id_sentence_tests_and_state() {
        let text = "\
| id | scenario | tests | state |
|:---|---|---|---|
| A1 | a \\| b | `a.rs::x`, `b.py::y` | part |
";
        let (rows, problems) = parse(text);
        assert_eq!(problems, []);
        let tests = vec!["a.rs::x".to_owned(), "b.py::y".to_owned()];
        let sentence = "a \\| b".to_owned();
        assert_eq!(rows, [Row { line: 3, id: "A1".into(), sentence, tests, state: State::Part }]);
    }

    #[test]
    fn tables_of_other_things_are_left_alone() {
        let text =
            "| state | meaning |\n|---|---|\n| open | not yet |\n\n| id | s | t | s |\n|---|---|---|---|\n";
        assert_eq!(parse(text), (vec![], vec![]));
    }

    #[test]
    fn a_row_that_cannot_be_read_is_named_with_its_line() {
        let read = |row: &str| {
            let (rows, problems) =
                parse(&format!("| id | scenario | tests | state |\n|---|---|---|---|\n{row}\n"));
            assert_eq!(rows, []);
            problems.into_iter().map(|Problem { line, what }| format!("{line}: {what}")).collect::<Vec<_>>()
        };
        assert_eq!(read("| A1 | s | - |"), ["3: 3 columns instead of id, scenario, tests and state"]);
        assert_eq!(read("| A1 | s | - | done |"), ["3: A1: `done` is no state: use proved, part or open"]);
        assert_eq!(
            read("| A1 | s | x.rs::y | open |"),
            ["3: A1: cannot read `x.rs::y`: write tests as `path::name`"]
        );
        assert_eq!(
            read("| A1 | s | `x.rs` | open |"),
            ["3: A1: cannot read ``x.rs``: write tests as `path::name`"]
        );
    }
}
