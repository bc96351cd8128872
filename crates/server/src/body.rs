//! Reading a request's body, within its limits.

use crate::room::BodyRoom;
use crate::state::App;
use crate::wire::error::ApiError;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Frame;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A body and the room it was given.
#[derive(Debug)]
pub(crate) struct JsonBody {
    bytes: Vec<u8>,
    _room: BodyRoom,
}

impl JsonBody {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of a request that sends JSON.
pub(crate) async fn read_json(app: &App, request: Request) -> Result<JsonBody, ApiError> {
    check_type(request.headers())?;
    check_encoding(request.headers())?;
    let (most, within) = (app.config.options.max_body, app.config.options.body_timeout);
    let declared = declared_len(request.headers()).unwrap_or(0);
    tokio::select! {
        body = read(request.into_body(), declared, most, app.limits.body()) => body,
        () = sleep(within) => {
            let message = format!("the body did not arrive within {} s", within.as_secs_f32());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
        // It would be refused when it is complete.
        error = app.limits.end() => Err(error),
    }
}

/// Many clients read an answer only after they have sent all they have; so much is thrown away for their sake.
const DISCARD: usize = 64 << 20;
const DISCARD_FOR: Duration = Duration::from_secs(2);

/// Answers, and takes in what is left of the body where the answer is an error, whoever made it.
pub(crate) async fn read_out(request: Request, next: Next) -> Response {
    // Such a client waits until it is told to send.
    let sends = !request.headers().contains_key(EXPECT);
    let (parts, body) = request.into_parts();
    let body = Kept(Arc::new(Mutex::new((body, sends))));
    let answer = next.run(Request::from_parts(parts, Body::new(body.clone()))).await;
    let (status, sends) = (answer.status(), body.inner().1);
    let refused = status.is_client_error() || status.is_server_error();
    if refused && sends && status != StatusCode::REQUEST_TIMEOUT {
        let _ = timeout(DISCARD_FOR, discard(&mut Body::new(body))).await;
    }
    answer
}

/// A body that is still at hand when whoever it was given to has dropped it, and whether the client sends it: from the
/// first time that somebody reads on, if not before.
#[derive(Clone, Debug)]
struct Kept(Arc<Mutex<(Body, bool)>>);

impl Kept {
    fn inner(&self) -> MutexGuard<'_, (Body, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut inner = self.inner();
        inner.1 = true;
        Pin::new(&mut inner.0).poll_frame(cx)
    }
}

async fn discard(body: &mut Body) {
    let mut left = DISCARD;
    while let Some(Ok(frame)) = next_frame(body).await {
        let len = frame.data_ref().map_or(0, |data| data.len());
        if len > left {
            return;
        }
        left -= len;
    }
}

/// Takes room for what was declared before it reads, and for more as it comes; whoever declares nothing says 0.
async fn read(mut body: Body, declared: u64, most: usize, mut room: BodyRoom) -> Result<JsonBody, ApiError> {
    if declared > most as u64 {
        return Err(too_large(most));
    }
    room.grow_to(declared as usize)?;
    let mut bytes = Vec::new();
    while let Some(frame) = next_frame(&mut body).await {
        let broken = |error| ApiError::bad_request("broken_body", format!("the body broke off: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(too_large(most));
        }
        room.grow_to(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(JsonBody { bytes, _room: room })
}

async fn next_frame(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
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

/// Nothing is unpacked: a small body could become a large one.
fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let plain = |value: &&HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    let Some(value) = values.into_iter().find(|value| !plain(value)) else { return Ok(()) };
    let message = format!("send the body as it is, without Content-Encoding: {value:?}");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn only_what_is_not_packed_is_read() {
        let check = |value: &'static str| {
            check_encoding(&HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(check("identity").is_ok() && check("Identity ").is_ok());
        for packed in ["gzip", "br", "identity, gzip", ""] {
            assert_eq!(check(packed).unwrap_err().status(), 415, "{packed}");
        }
        assert!(check_encoding(&HeaderMap::new()).is_ok());
        let mut two = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("identity"))]);
        two.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(check_encoding(&two).unwrap_err().status(), 415);
    }
}
