//! Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use octavo::{Failure, NoAnswer, SamplingError, SubmitError};
use serde::Serialize;
use std::time::Duration;

/// Why a request is not answered, for whoever sent it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

/// Texts of the client's own are cut to this, so that an error is never as long as the body it refuses.
const LONGEST_MESSAGE: usize = 500;
const LONGEST_PATH: usize = 200;
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let message = shorten(message.into());
        Self { status, kind, message, param: None, code: Some(code), retry_after: None }
    }

    /// The field `param` is wrong; `message` says what is.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = shorten_path(param.into());
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", format!("{param}: {message}"));
        Self { param: Some(param), ..error }
    }

    /// The field `param` asks for something that is not done here.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        Self { code: Some("unsupported_value"), ..Self::field(param, message) }
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// What the log alone tells more of.
    pub(crate) fn mistake() -> Self {
        Self::internal("the server made a mistake; it has been logged")
    }

    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        Self { retry_after: Some(retry_after), ..error }
    }

    pub(crate) fn stopped() -> Self {
        Self::unavailable("engine_stopped", "the engine has stopped", Duration::from_secs(5))
    }

    pub(crate) fn with_param(self, param: impl Into<String>) -> Self {
        Self { param: Some(shorten(param.into())), ..self }
    }

    /// Where the engine says `prompt`, the client may know it by another name.
    pub(crate) fn with_prompt_as(self, name: impl FnOnce() -> String) -> Self {
        if self.param.as_deref() == Some("prompt") { self.with_param(name()) } else { self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
    pub(crate) fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// The JSON text.
    pub(crate) fn body(&self) -> String {
        let Self { kind, message, param, code, .. } = self;
        let error = Inner { message, kind, param: param.as_deref(), code: *code };
        serde_json::to_string(&Body { error }).expect("strings become JSON")
    }
}

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

/// Its beginning and its end: room is left for what is wrong there.
fn shorten_path(path: String) -> String {
    if path.len() <= LONGEST_PATH {
        return path;
    }
    let (head, tail) = (path.floor_char_boundary(LONGEST_PATH / 2), path.len() - LONGEST_PATH / 2);
    format!("{}…{}", &path[..head], &path[path.ceil_char_boundary(tail)..])
}

fn shorten(mut text: String) -> String {
    if text.len() > LONGEST_MESSAGE {
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        text.push('…');
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], self.body()).into_response();
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up; 0 would invite the same answer again.
            let seconds = after.as_millis().div_ceil(1000).clamp(1, 3600) as u64;
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::GATEWAY_TIMEOUT {
            // OpenAI's clients would send it again, to wait as long for nothing.
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response.extensions_mut().insert(Refusal { code: self.code, why: self.message });
        response
    }
}

/// Goes with an answer that is an error, for the log.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: Option<&'static str>,
    /// No longer than a message may be.
    pub(crate) why: String,
}

/// Which setting bounds the choices of a request.
const A_BATCH: &str = ", as many as a batch holds (--max-batch-size)";

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { retry_after, .. } => {
                Self::unavailable("queue_full", message, retry_after)
            }
            SubmitError::ShuttingDown => Self::unavailable("shutting_down", message, Duration::from_secs(5)),
            SubmitError::PromptTooLong { .. }
            | SubmitError::NeverFits { .. }
            | SubmitError::OverLimit { .. }
            | SubmitError::TooLong(_) => {
                Self::bad_request("context_length_exceeded", message).with_param("prompt")
            }
            SubmitError::EmptyPrompt | SubmitError::NoSuchToken { .. } => Self::field("prompt", message),
            SubmitError::Choices { .. } => Self::field("n", format_args!("{message}{A_BATCH}")),
            SubmitError::BestOfTooMany { .. } => Self::field("best_of", format_args!("{message}{A_BATCH}")),
            SubmitError::BestOf { .. } => Self::field("best_of", message),
            SubmitError::Sampling(SamplingError { name, value, range }) => {
                Self::field(name, format_args!("{value} is out of range: it must be {range}"))
            }
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::Step(_) => Self::internal(message),
            Failure::TimeLimit(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, "time_limit", message),
            Failure::OutOfPages { .. } => Self::bad_request("kv_cache_exceeded", message),
            Failure::Constraint(_) => Self::bad_request("grammar_dead_end", message),
            Failure::TooComplex(_) => Self::bad_request("grammar_too_complex", message),
            Failure::ShuttingDown => Self::unavailable("shutting_down", message, Duration::from_secs(5)),
        }
    }
}

impl From<NoAnswer> for ApiError {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Busy => Self::unavailable("engine_busy", error.to_string(), Duration::from_secs(1)),
            NoAnswer::Stopped => Self::stopped(),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), "invalid_path", rejection.body_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::Pages;

    #[test]
    fn an_error_has_the_four_fields_of_openai() {
        let error = ApiError::field("messages[0].role", "missing");
        let json: serde_json::Value = serde_json::from_str(&error.body()).unwrap();
        let expected = serde_json::json!({"error": {
            "message": "messages[0].role: missing", "type": "invalid_request_error",
            "param": "messages[0].role", "code": "invalid_value",
        }});
        assert_eq!(json, expected);
    }

    #[test]
    fn every_failure_has_its_status_type_and_code() {
        let (need, free) = (Pages(2), Pages(1));
        for (error, status, kind, code) in [
            (Failure::Step("x".into()).into(), 500, "server_error", "internal_error"),
            (Failure::TimeLimit(Duration::ZERO).into(), 504, "timeout_error", "time_limit"),
            (Failure::OutOfPages { need, free }.into(), 400, "invalid_request_error", "kv_cache_exceeded"),
            (Failure::Constraint("x".into()).into(), 400, "invalid_request_error", "grammar_dead_end"),
            (Failure::TooComplex("x".into()).into(), 400, "invalid_request_error", "grammar_too_complex"),
            (Failure::ShuttingDown.into(), 503, "overloaded_error", "shutting_down"),
            (SubmitError::ShuttingDown.into(), 503, "overloaded_error", "shutting_down"),
            (NoAnswer::Busy.into(), 503, "overloaded_error", "engine_busy"),
            (NoAnswer::Stopped.into(), 503, "overloaded_error", "engine_stopped"),
            (ApiError::unsupported("n", "no"), 400, "invalid_request_error", "unsupported_value"),
        ] {
            let error: ApiError = error;
            assert_eq!((error.status.as_u16(), error.kind, error.code), (status, kind, Some(code)));
            assert_eq!(error.retry_after.is_some(), status == 503, "{code}");
        }
    }

    #[test]
    fn an_error_is_never_as_long_as_the_body_it_refuses() {
        let error = ApiError::field("é".repeat(100_000), "ü".repeat(100_000));
        assert!(error.body().len() < 3 * LONGEST_MESSAGE, "{}", error.body().len());
        let error = ApiError::mistake().with_param("é".repeat(100_000));
        assert!(error.body().len() < 2 * LONGEST_MESSAGE, "{}", error.body().len());
    }

    #[test]
    fn what_is_wrong_is_told_however_long_the_path_is() {
        let path = format!("guided_json{}", ".items".repeat(3000));
        let message = ApiError::field(path, "nested too deep").message;
        assert!(message.starts_with("guided_json.items.items"), "{message}");
        assert!(message.ends_with(".items: nested too deep"), "{message}");
    }

    #[test]
    fn retry_after_is_at_least_a_second_and_rounds_up() {
        for (millis, seconds) in [(0, "1"), (1000, "1"), (1001, "2"), (u64::MAX, "3600")] {
            let error = ApiError::unavailable("queue_full", "full", Duration::from_millis(millis));
            assert_eq!(error.into_response().headers()[RETRY_AFTER], seconds);
        }
        let full = SubmitError::QueueFull { waiting: 3, retry_after: Duration::from_secs(7) };
        assert_eq!(ApiError::from(full).into_response().headers()[RETRY_AFTER], "7");
    }
}
