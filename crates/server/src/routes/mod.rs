//! What each path does.

pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod health;
pub(crate) mod home;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod tokenize;

use crate::job::Job;
use crate::reply::body::{Form, Head};
use crate::reply::collect::{Asked, collect};
use crate::reply::stream::Writer;
use crate::request_id::RequestId;
use crate::sse;
use crate::state::{App, now};
use crate::wire::error::ApiError;
use crate::wire::options::StreamOptions;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::Arc;

/// A request in the engine, and how its answer is to be written.
#[derive(Debug)]
struct Started {
    job: Job,
    asked: Asked,
    prompts: u32,
    stream: Option<StreamOptions>,
}

impl Started {
    async fn answer(self, app: &App) -> Result<Response, ApiError> {
        let Self { job, asked, prompts, stream } = self;
        match stream {
            Some(options) => {
                let writer = Writer::new(asked, options, prompts);
                Ok(sse::respond(job, writer, app.config.keep_alive))
            }
            None => Ok(json_text(StatusCode::OK, collect(job, asked, prompts).await?)),
        }
    }
}

/// Parses a request and starts it. One that has a grammar compiled waits for those who do the same, and for nobody else;
/// nobody else waits for it.
async fn begin<R: Send + 'static>(
    app: &Arc<App>,
    parse: impl FnOnce() -> Result<R, ApiError> + Send + 'static,
    has_grammar: impl FnOnce(&R) -> bool + Send + 'static,
    start: impl FnOnce(&App, R) -> Result<Started, ApiError> + Send + 'static,
) -> Result<Started, ApiError> {
    let begun = app.work(move |app| {
        let request = parse()?;
        if has_grammar(&request) { Ok(Err((request, start))) } else { start(app, request).map(Ok) }
    });
    match begun.await? {
        Ok(started) => Ok(started),
        Err((request, start)) => app.work_on_grammar(move |app| start(app, request)).await,
    }
}

fn head(app: &App, form: Form, id: &RequestId) -> Head {
    let kind = match form {
        Form::Completion => "cmpl",
        Form::Chat => "chatcmpl",
    };
    Head { form, id: format!("{kind}-{id}"), created: now(), model: app.model() }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    json_text(status, serde_json::to_string(body).expect("plain data becomes JSON"))
}

fn json_text(status: StatusCode, body: String) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
