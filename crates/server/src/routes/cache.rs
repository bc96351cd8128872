use super::json;
use crate::body::read_json;
use crate::limits::{Permit, Work};
use crate::state::App;
use crate::wire::cache::CacheBody;
use crate::wire::error::ApiError;
use crate::wire::tokenize::PinRequest;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use octavo::{PinError, PinId, PinReport, Prompt};
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

#[derive(Debug, Serialize)]
struct Pins {
    object: &'static str,
    data: Vec<Kept>,
}

/// A pin that is there.
#[derive(Debug, Serialize)]
struct Kept {
    id: u64,
    object: &'static str,
    pinned_tokens: u32,
    pages: u32,
    tenant: String,
}

pub(crate) async fn pins(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let kept = |pin: PinReport| {
        let PinReport { id, tenant, tokens, pages } = pin;
        Kept { id: id.0, object: "cache.pin", pinned_tokens: tokens.0, pages: pages.0, tenant }
    };
    let data = app.ask(|handle| handle.pins()).await?.into_iter().map(kept).collect();
    Ok(json(StatusCode::OK, &Pins { object: "list", data }))
}

pub(crate) async fn pin(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    if !app.handle.intake().settings().prefix_cache {
        let message = "the prefix cache is off: there is nothing to pin";
        return Err(ApiError::new(StatusCode::CONFLICT, "prefix_cache_off", message));
    }
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let begun = app.work(Work::Request, move |app| {
        let PinRequest { model, source, scope } = PinRequest::parse(body.bytes())?;
        app.check_model(model.as_deref())?;
        let tokens = source.encode(&app.texts, app.room())?;
        let prompt = Prompt::new(tokens, scope, app.spec.page_size());
        prompt.map(|prompt| (prompt, permit)).map_err(|error| ApiError::field("prompt", error))
    });
    let (prompt, permit) = begun.await?;
    let prompt_tokens = prompt.len().0;
    // A task goes on when the client goes away; what it returns is dropped then.
    let pinning = tokio::spawn(async move {
        let (id, tokens) = app.ask(move |handle| handle.pin(prompt)).await??;
        Ok::<_, ApiError>((NewPin { app, new: Some((id, permit)) }, tokens))
    });
    let (pin, pinned) = pinning.await.map_err(|_| ApiError::mistake())??;
    let body = Pinned { id: pin.tell().0, object: "cache.pin", pinned_tokens: pinned.0, prompt_tokens };
    Ok(json(StatusCode::CREATED, &body))
}

/// A pin whose client does not know it yet. Dropped, it is given up: nobody else would.
#[derive(Debug)]
struct NewPin {
    app: Arc<App>,
    new: Option<(PinId, Permit)>,
}

impl NewPin {
    /// What its client is told. From then on the pin is the client's own.
    fn tell(mut self) -> PinId {
        self.new.take().expect("told once").0
    }
}

impl Drop for NewPin {
    fn drop(&mut self) {
        let Some((id, permit)) = self.new.take() else { return };
        let app = self.app.clone();
        tokio::spawn(async move {
            let _ = app.ask(move |handle| handle.unpin(id)).await;
            drop(permit);
        });
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::Pages;

    #[test]
    fn a_pin_that_cannot_be_had_says_why() {
        let (need, pinned, quota) = (Pages(1), Pages(2), Pages(2));
        for (error, status, code) in [
            (PinError::NotCached, 409, "not_cached"),
            (PinError::OverQuota { need, pinned, quota }, 409, "over_quota"),
            (PinError::Unknown(PinId(7)), 404, "no_such_pin"),
        ] {
            let error = ApiError::from(error);
            assert_eq!((error.status().as_u16(), error.code()), (status, Some(code)));
        }
    }
}
