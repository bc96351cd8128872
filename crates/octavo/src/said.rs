/// An error and its causes, but for those that it has told itself.
pub fn said(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).fold(String::new(), |mut text, cause| {
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Told(&'static str, #[source] Option<Box<Told>>);

    #[test]
    fn causes_follow_unless_they_were_told() {
        let cause = |text, source| Some(Box::new(Told(text, source)));
        let error = Told("cannot load a.json: no such file", cause("no such file", cause("code 2", None)));
        assert_eq!(said(&error), "cannot load a.json: no such file: code 2");
    }
}
