//! What each path does.

pub(crate) mod cache;
mod chat;
mod completions;
pub(crate) mod health;
pub(crate) mod home;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod tokenize;

use crate::body::read_json;
use crate::job::Job;
use crate::limits::{Permit, Work};
use crate::reply::body::{Form, Head};
use crate::reply::collect::{Asked, collect};
use crate::reply::stream::Writer;
use crate::request_id::RequestId;
use crate::sse;
use crate::state::{App, now};
use crate::wire::error::ApiError;
use crate::wire::options::{Options, StreamOptions};
use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use octavo::Failure;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A request in the engine, and how its answer is to be written.
#[derive(Debug)]
pub(crate) struct Started {
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
                Ok(sse::respond(job, writer, app.config.options.keep_alive))
            }
            None => Ok(json_text(StatusCode::OK, collect(job, asked, prompts).await?)),
        }
    }
}

/// A request to generate, in one of OpenAI's two forms.
pub(crate) trait Generate: Sized + Send + 'static {
    fn parse(body: &[u8]) -> Result<Self, ApiError>;
    fn options(&self) -> &Options;
    fn start(self, app: &App, id: &RequestId, permit: Permit) -> Result<Started, ApiError>;
}

/// Parses a request, starts it and answers. One that has a grammar compiled waits for those who do the same, and for
/// nobody else; nobody else waits for it. At its time limit it is answered, though the compiler is not done with it.
pub(crate) async fn generate<R: Generate>(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let begun = app.work(Work::Request, move |app| {
        let request = R::parse(body.bytes())?;
        // Its room is for others from here on.
        drop(body);
        if request.options().grammar_field().is_some() {
            Ok(Err((request, id, permit)))
        } else {
            request.start(app, &id, permit).map(Ok)
        }
    });
    let started = match begun.await? {
        Ok(started) => started,
        Err((request, id, permit)) => {
            let limit = request.options().time_limit();
            let start = app.work(Work::Grammar, move |app| request.start(app, &id, permit));
            within(limit, start).await?
        }
    };
    started.answer(&app).await
}

/// What `work` comes to, unless it takes longer than it may.
async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match limit {
        None => work.await,
        Some(limit) => timeout(limit, work).await.unwrap_or_else(|_| Err(Failure::TimeLimit(limit).into())),
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
