//! Finds the test that a row names.

use std::fs;
use std::path::Path;

/// Looks for `path::name`, or `path::module::name`; `path::doc` stands for the documentation tests of a file.
pub(super) fn find(test: &str, root: &Path) -> Result<(), String> {
    let (path, name) = test.split_once("::").ok_or_else(|| format!("`{test}` is not `path::name`"))?;
    let text = fs::read_to_string(root.join(path)).map_err(|_| format!("there is no file `{path}`"))?;
    let name = name.rsplit("::").next().unwrap_or(name);
    let found = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("rs") if name == "doc" => has_doc_test(&text),
        Some("rs") => has_rust_test(&text, name),
        Some("py") => has_python_test(&text, name),
        _ => return Err(format!("`{path}` is neither Rust nor Python")),
    };
    if found { Ok(()) } else { Err(format!("`{path}` has no test `{name}`")) }
}

/// Whether a function of this name has an attribute like `#[test]` or `#[tokio::test]`; `proptest!` wants it too.
fn has_rust_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let Some(start) = position_of(line, "fn", name) else { return false };
        let above = lines[..at].iter().rev().take_while(|line| !line.ends_with(['{', '}', ';']));
        above.chain([&&line[..start]]).any(|line| has_test_attribute(line))
    })
}

fn has_test_attribute(line: &str) -> bool {
    line.split("#[").skip(1).any(|attribute| {
        let path = attribute.split([']', '(']).next().unwrap_or_default().trim();
        path == "test" || path.ends_with("::test")
    })
}

fn has_python_test(text: &str, name: &str) -> bool {
    name.starts_with("test") && text.lines().any(|line| position_of(line.trim_start(), "def", name).is_some())
}

/// Where `keyword name` begins in a line, the name ending there.
fn position_of(line: &str, keyword: &str, name: &str) -> Option<usize> {
    let wanted = format!("{keyword} {name}");
    line.match_indices(&wanted)
        .map(|(start, _)| start)
        .find(|start| !continues(&line[start + wanted.len()..]) && !line[..*start].ends_with(is_word))
}

fn continues(rest: &str) -> bool {
    rest.starts_with(is_word)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a documentation comment opens a block of code that is compiled as Rust.
fn has_doc_test(text: &str) -> bool {
    let documentation = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    let mut inside = false;
    documentation.filter_map(|line| line.trim().strip_prefix("```")).any(|language| {
        inside = !inside;
        let words = language.split([',', ' ']);
        inside && words.into_iter().all(|word| matches!(word, "" | "rust" | "should_panic" | "no_run"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_counts_as_a_test_only_with_the_attribute() {
        let text = r#"
            fn helper() {}

            #[test]
            #[should_panic(expected = "slot 16")]
            /// A comment between {
            fn panics_at_the_edge() {}

            #[test] fn on_one_line() {}

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(9))]
                #[test]
                fn holds_for_all(a in 0..9u32) {}
            }

            #[tokio::test(flavor = "current_thread")]
            async fn waits() {}

            fn after_a_test() {}
            // #[test]
            fn switched_off() {}
        "#;
        for name in ["panics_at_the_edge", "on_one_line", "holds_for_all", "waits"] {
            assert!(has_rust_test(text, name), "{name}");
        }
        for name in ["helper", "after_a_test", "switched_off", "on_one", "one_line", "missing"] {
            assert!(!has_rust_test(text, name), "{name}");
        }
    }

    #[test]
    fn python_tests_are_functions_that_begin_with_test() {
        let text = "def test_a(x):\n    pass\nclass TestB:\n    def test_c(self):\n        pass\ndef helper(): pass\n";
        assert!(has_python_test(text, "test_a") && has_python_test(text, "test_c"));
        assert!(!has_python_test(text, "test") && !has_python_test(text, "helper"));
    }

    #[test]
    fn documentation_is_a_test_where_it_is_compiled() {
        assert!(has_doc_test("//! ```\n//! let x = 1;\n//! ```\n"));
        assert!(has_doc_test("/// ```text\n/// a\n/// ```\n/// ```no_run\n/// f();\n/// ```\n"));
        assert!(!has_doc_test("//! ```text\n//! no code\n//! ```\n"));
        assert!(!has_doc_test("// ```\n// f();\n// ```\n"));
    }
}
