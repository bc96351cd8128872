//! The two text formats of Prometheus.

use std::collections::HashSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// What Prometheus asks for today.
    OpenMetrics,
    /// What everything else reads.
    Classic,
}

impl Format {
    /// The format that a client accepts.
    pub(crate) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// `text` is OpenMetrics. There a counter is described without the `_total` that its samples have; before, with it.
    pub(crate) fn of(self, text: String) -> String {
        if self == Self::OpenMetrics {
            return text;
        }
        let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let counters: HashSet<&str> = typed.filter_map(|rest| rest.strip_suffix(" counter")).collect();
        let mut classic = String::with_capacity(text.len());
        for line in text.lines().filter(|line| *line != "# EOF") {
            match described(line) {
                Some((head, name, rest)) if counters.contains(name) => {
                    classic.extend([head, name, "_total", rest, "\n"]);
                }
                _ => classic.extend([line, "\n"]),
            }
        }
        classic
    }
}

/// `# HELP name text` in three parts: up to the name, the name, what follows.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let start = line.strip_prefix("# HELP ").or(line.strip_prefix("# TYPE "))?;
    let name = start.split(' ').next()?;
    let head = &line[..line.len() - start.len()];
    Some((head, name, &start[name.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str =
        "# HELP a Things\n# TYPE a counter\na_total 3\n# HELP b Others\n# TYPE b gauge\nb 1\n# EOF\n";

    #[test]
    fn the_classic_format_describes_counters_by_their_samples_names() {
        let classic = "# HELP a_total Things\n# TYPE a_total counter\na_total 3\n# HELP b Others\n# TYPE b gauge\nb 1\n";
        assert_eq!(Format::Classic.of(OPEN.into()), classic);
        assert_eq!(Format::OpenMetrics.of(OPEN.into()), OPEN);
    }

    #[test]
    fn whoever_does_not_ask_for_the_new_format_gets_the_classic_one() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Classic);
        assert_eq!(Format::accepted(""), Format::Classic);
    }
}
