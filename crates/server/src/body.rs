//! Reading a request's body, within its limits.

use crate::limits::Limits;
use crate::state::App;
use crate::wire::error::ApiError;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use std::future::poll_fn;
use std::pin::Pin;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// A body and the memory it was given.
#[derive(Debug)]
pub(crate) struct JsonBody {
    bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl JsonBody {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of a request that sends JSON.
pub(crate) async fn read_json(app: &App, request: Request) -> Result<JsonBody, ApiError> {
    check_type(request.headers())?;
    let most = app.config.max_body;
    if declared_len(request.headers()).is_some_and(|len| len > most as u64) {
        return Err(too_large(most));
    }
    let read = read(request.into_body(), most, &app.limits);
    timeout(app.config.body_timeout, read).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", app.config.body_timeout.as_secs_f32());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
    })
}

async fn read(mut body: Body, most: usize, limits: &Limits) -> Result<JsonBody, ApiError> {
    let mut bytes = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let broken = |error| ApiError::bad_request("broken_body", format!("the body broke off: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(too_large(most));
        }
        let more = limits.body(data.len()).await;
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok(JsonBody { bytes, _room: room })
}

fn too_large(most: usize) -> ApiError {
    let message = format!("the body is larger than {most} bytes, the most that is read");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn declared_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON, or a client that does not say.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json") {
        return Ok(());
    }
    let message = format!("send Content-Type: application/json, not {essence:?}");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_json_is_read() {
        let check = |value: &'static str| {
            check_type(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]))
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"] {
            assert_eq!(check(bad).unwrap_err().status(), 415, "{bad}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
    }
}
