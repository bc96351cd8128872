//! Every request has an id: in its answer, in the log, in what it generates.

use crate::state::App;
use crate::wire::error::Refusal;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::time::Instant;
use tracing::{Instrument, Span};

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Visible ASCII without quotes, and short: safe in a header and in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// The client's own if it is sane.
    fn of(headers: &HeaderMap) -> Self {
        let sane = |id: &&str| {
            let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
            (1..=128).contains(&id.len()) && id.bytes().all(fine)
        };
        match headers.get(HEADER).and_then(|value| value.to_str().ok()).filter(sane) {
            Some(id) => Self(id.into()),
            None => Self(format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)).into()),
        }
    }

    /// Puts the id on lines of the log, whatever their level.
    pub(crate) fn span(&self) -> Span {
        tracing::error_span!("request", id = %self)
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Gives a request its id, counts it and logs how it was answered.
pub(crate) async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let matched = request.extensions().get::<MatchedPath>();
    let path = matched.map_or("other", |path| path.as_str()).to_owned();
    let method = request.method().clone();
    let mut line = Line { span: id.span(), begun: Instant::now(), method, path, answer: None };
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).instrument(line.span.clone()).await;
    let status = response.status().as_u16();
    app.exporter.http.answered(&line.path, line.method.as_str(), status);
    line.answer = Some((status, response.extensions_mut().remove()));
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// What the log says of a request, once it is answered or its client is gone.
#[derive(Debug)]
struct Line {
    span: Span,
    begun: Instant,
    method: Method,
    path: String,
    /// `None` until there is one.
    answer: Option<(u16, Option<Refusal>)>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let Self { method, path, .. } = self;
        let (path, ms) = (path.as_str(), self.begun.elapsed().as_millis() as u64);
        match (&self.answer, path) {
            (None, _) => tracing::info!(%method, path, ms, "the client left before its answer"),
            (Some((status, Some(Refusal { code, why }))), _) => {
                tracing::info!(%method, path, status, code, why, ms, "answered");
            }
            (Some((status, None)), "/health" | "/ready" | "/metrics") => {
                tracing::debug!(%method, path, status, ms, "answered");
            }
            (Some((status, None)), _) => tracing::info!(%method, path, status, ms, "answered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_is_kept_and_others_are_replaced() {
        let of = |value: &'static [u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            RequestId::of(&HeaderMap::from_iter([(HEADER, value)])).to_string()
        };
        assert_eq!(of(b"abc-1_2.3:4"), "abc-1_2.3:4");
        assert_eq!(of(&[b'a'; 128]), "a".repeat(128));
        for bad in [&b""[..], b"a b", b"\"quoted\"", b"caf\xc3\xa9", &[b'a'; 129]] {
            assert_eq!(of(bad).len(), 32, "{bad:?}");
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }
}
