use std::fmt;
use std::str::FromStr;

/// A model on the hub: `org/name`, or `org/name@revision` for a branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    repo: String,
    revision: String,
}

/// Not the name of a model on the hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no name of a model: write it like org/name or org/name@revision")]
pub struct NameError(String);

impl HubName {
    /// `org/name`.
    pub fn repo(&self) -> &str {
        &self.repo
    }
    /// `main` unless told.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

impl FromStr for HubName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = repo.split('/').collect();
        let is_name = parts.len() == 2 && parts.into_iter().all(is_plain);
        if is_name && revision.split('/').all(is_plain) {
            Ok(Self { repo: repo.into(), revision: revision.into() })
        } else {
            Err(NameError(text.into()))
        }
    }
}

/// File systems end at 255, and a file that is being downloaded has an ending more.
const LONGEST: usize = 200;

/// Something that is one part of a path, and stays in its directory.
pub(super) fn is_plain(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && part.len() <= LONGEST && !part.starts_with(['.', '-']) && part.chars().all(allowed)
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => write!(f, "{}", self.repo),
            revision => write!(f, "{}@{revision}", self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_organisation_and_perhaps_a_revision() {
        let name: HubName = "Qwen/Qwen3-0.6B".parse().unwrap();
        assert_eq!((name.repo(), name.revision()), ("Qwen/Qwen3-0.6B", "main"));
        let name: HubName = "org/name@refs/pr/1".parse().unwrap();
        assert_eq!((name.repo(), name.revision()), ("org/name", "refs/pr/1"));
        assert_eq!(name.to_string(), "org/name@refs/pr/1");
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_name() {
        let wrong = [
            "",
            "name",
            "a/b/c",
            "/etc/passwd",
            "../b",
            "a/..",
            "./b",
            "a/b@",
            "a/b@../x",
            "a/b c",
            "a\\b/c",
        ];
        for text in wrong {
            assert_eq!(text.parse::<HubName>(), Err(NameError(text.into())));
        }
    }
}
