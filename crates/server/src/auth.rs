//! API keys.

use crate::config::ServerOptions;
use crate::wire::error::ApiError;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};

/// The keys that let in. Only their hashes are kept, which are compared in constant time.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    hashes: Vec<blake3::Hash>,
    open_health: bool,
    open_metrics: bool,
}

impl Keys {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let hashes = options.api_keys.iter().map(|key| blake3::hash(key.as_bytes())).collect();
        Self { hashes, open_health: options.open_health, open_metrics: options.open_metrics }
    }

    /// Whether a request for `path` may go on.
    pub(crate) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.hashes.is_empty() || self.is_open(path) {
            return Ok(());
        }
        let refused = |code, message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, code, message));
        let Some(key) = bearer(headers) else {
            return refused("missing_api_key", "send an API key as Authorization: Bearer KEY");
        };
        let hash = blake3::hash(key);
        // Every key is compared, so that the time does not tell which one came close.
        let known = self.hashes.iter().fold(false, |known, key| known | (*key == hash));
        if known { Ok(()) } else { refused("invalid_api_key", "this API key is not known here") }
    }

    fn is_open(&self, path: &str) -> bool {
        match path {
            "/" => true,
            "/health" | "/ready" | "/version" => self.open_health,
            "/metrics" => self.open_metrics,
            _ => false,
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(options: ServerOptions, path: &str, header: Option<&'static str>) -> bool {
        let keys = Keys::new(&options);
        let headers = header.map(|value| (AUTHORIZATION, HeaderValue::from_static(value)));
        keys.check(path, &HeaderMap::from_iter(headers)).is_ok()
    }

    fn two_keys() -> ServerOptions {
        ServerOptions { api_keys: vec!["alpha".into(), "beta".into()], ..ServerOptions::default() }
    }

    #[test]
    fn any_of_the_keys_lets_in_and_nothing_else_does() {
        for (header, expected) in [
            (Some("Bearer alpha"), true),
            (Some("bearer beta"), true),
            (Some("Bearer  alpha "), true),
            (Some("Bearer alph"), false),
            (Some("Bearer alphaa"), false),
            (Some("Bearer "), false),
            (Some("Basic alpha"), false),
            (Some("alpha"), false),
            (None, false),
        ] {
            assert_eq!(check(two_keys(), "/v1/models", header), expected, "{header:?}");
        }
    }

    #[test]
    fn without_keys_everybody_is_let_in() {
        assert!(check(ServerOptions::default(), "/v1/models", None));
    }

    #[test]
    fn health_and_metrics_are_open_unless_closed() {
        let closed = || ServerOptions { open_health: false, open_metrics: false, ..two_keys() };
        for path in ["/health", "/ready", "/version", "/metrics"] {
            assert!(check(two_keys(), path, None), "{path}");
            assert!(!check(closed(), path, None), "{path}");
        }
        assert!(check(closed(), "/", None));
    }
}
