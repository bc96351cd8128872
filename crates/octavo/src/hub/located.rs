//! What a hub says about one file, as far as it can be believed.

use super::name::is_plain;
use ureq::Body;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use ureq::http::{HeaderMap, Response};

/// A file's name in the cache, and its length. The name is one part of a path and stays in its directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Located {
    etag: String,
    size: Option<u64>,
}

impl Located {
    /// As a redirect to a large file says it.
    pub(super) fn linked(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let Some(etag) = text(headers, "x-linked-etag") else { return Ok(None) };
        let size = text(headers, "x-linked-size").and_then(|size| size.parse().ok());
        Ok(Some(Self { etag: plain(etag)?, size }))
    }

    /// As the answer with the file itself says it, which was asked for its first byte alone.
    pub(super) fn of_answer(linked: Option<Self>, answer: &Response<Body>) -> Result<Self, String> {
        let headers = answer.headers();
        let etag = match linked {
            Some(linked) => linked.etag,
            None => plain(text(headers, ETAG.as_str()).ok_or("a file without an ETag")?)?,
        };
        let size = match answer.status().as_u16() {
            200 => text(headers, CONTENT_LENGTH.as_str()).and_then(|size| size.parse().ok()),
            _ => Span::of(headers).and_then(|span| span.total),
        };
        Ok(Self { etag, size: Some(size.ok_or("a file without a length")?) })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.size.is_some()
    }

    pub(super) fn etag(&self) -> &str {
        &self.etag
    }

    pub(super) fn size(&self) -> u64 {
        self.size.unwrap_or(0)
    }
}

/// `Content-Range`: which bytes of how many an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// None for a range that there is not.
    pub(super) from: Option<u64>,
    pub(super) total: Option<u64>,
}

impl Span {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(text(headers, CONTENT_RANGE.as_str())?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let from = range.split_once('-').and_then(|(from, _)| from.parse().ok());
        Some(Self { from, total: total.parse().ok() })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Without the sign of a weak one, and without quotes.
fn plain(etag: &str) -> Result<String, String> {
    let bare = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    if is_plain(bare) { Ok(bare.into()) } else { Err(format!("`{etag}` is no ETag of a file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_a_name_and_never_a_path() {
        assert_eq!(plain("\"ab-1\"").unwrap(), "ab-1");
        assert_eq!(plain("W/\"ab\"").unwrap(), "ab");
        let long = "a".repeat(300);
        for wrong in
            ["", "\"\"", "..", "\"../../x\"", "/etc/passwd", "a/b", "a\\b", "a b", "W/", "a:b", &long]
        {
            plain(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_range_says_where_it_starts_and_of_how_much() {
        let span = |from, total| Some(Span { from, total });
        assert_eq!(Span::parse("bytes 5-9/10"), span(Some(5), Some(10)));
        assert_eq!(Span::parse("bytes */10"), span(None, Some(10)));
        assert_eq!(Span::parse("bytes 5-9/*"), span(Some(5), None));
        assert_eq!(Span::parse("5-9/10"), None);
    }
}
