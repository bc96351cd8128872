//! Template text in the dialect this engine reads.

/// The text of a template as this engine is to parse it.
pub(super) fn prepared(source: &str) -> String {
    without_generation_tags(&with_plain_line_ends(source))
}

/// Jinja reads every kind of line end as a new line.
fn with_plain_line_ends(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, which mark the answer for training and print nothing, by
/// a condition that always holds.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = &tag[2..tag.len() - 2];
        match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replace("generation", " if true ")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", " endif ")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn generation_tags_become_conditions_and_keep_their_whitespace_marks() {
        let source = "a{%- generation -%}{{ '{% x %}' }} {%endgeneration%}b{% if generation %}c{% endif %}{%";
        let expected = "a{%-  if true  -%}{{ '{% x %}' }} {% endif %}b{% if generation %}c{% endif %}{%";
        assert_eq!(without_generation_tags(source), expected);
    }
}
