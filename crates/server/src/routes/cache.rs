use super::json;
use crate::body::read_json;
use crate::limits::Work;
use crate::state::App;
use crate::wire::cache::CacheBody;
use crate::wire::error::ApiError;
use crate::wire::tokenize::PinRequest;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use octavo::{PinError, PinId, Prompt};
use serde::Serialize;
use std::sync::Arc;

pub(crate) async fn report(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let report = app.ask(|handle| handle.report()).await?;
    Ok(json(StatusCode::OK, &CacheBody::from(report)))
}

#[derive(Debug, Serialize)]
struct Dropped {
    freed_pages: u32,
}

/// Forgets every cached prefix that nobody uses or pinned.
pub(crate) async fn drop_prefixes(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let freed = app.ask(|handle| handle.drop_prefixes()).await?;
    Ok(json(StatusCode::OK, &Dropped { freed_pages: freed.0 }))
}

#[derive(Debug, Serialize)]
struct Pinned {
    id: u64,
    object: &'static str,
    /// Only whole pages that are cached can be pinned.
    pinned_tokens: u32,
    prompt_tokens: u32,
}

pub(crate) async fn pin(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    if !app.handle.intake().settings().prefix_cache {
        let message = "the prefix cache is off: there is nothing to pin";
        return Err(ApiError::new(StatusCode::CONFLICT, "prefix_cache_off", message));
    }
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let prompt = app.work(Work::Request, move |app| {
        let _permit = permit;
        let PinRequest { model, source, scope } = PinRequest::parse(body.bytes())?;
        app.check_model(model.as_deref())?;
        let tokens = source.encode(&app.texts, app.room())?;
        Prompt::new(tokens, scope, app.spec.page_size()).map_err(|error| ApiError::field("prompt", error))
    });
    let prompt = prompt.await?;
    let prompt_tokens = prompt.len().0;
    let (id, pinned) = app.ask(move |handle| handle.pin(prompt)).await??;
    let body = Pinned { id: id.0, object: "cache.pin", pinned_tokens: pinned.0, prompt_tokens };
    Ok(json(StatusCode::CREATED, &body))
}

#[derive(Debug, Serialize)]
struct Unpinned {
    id: u64,
    object: &'static str,
    deleted: bool,
}

pub(crate) async fn unpin(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    let Ok(id) = id.parse() else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "no_such_pin", format!("there is no pin {id:?}")));
    };
    app.ask(move |handle| handle.unpin(PinId(id))).await??;
    Ok(json(StatusCode::OK, &Unpinned { id, object: "cache.pin", deleted: true }))
}

impl From<PinError> for ApiError {
    fn from(error: PinError) -> Self {
        let (status, code) = match error {
            PinError::NotCached => (StatusCode::CONFLICT, "not_cached"),
            PinError::OverQuota { .. } => (StatusCode::CONFLICT, "over_quota"),
            PinError::Unknown(_) => (StatusCode::NOT_FOUND, "no_such_pin"),
        };
        Self::new(status, code, error.to_string())
    }
}
