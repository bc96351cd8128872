use super::json;
use crate::health::{self, State as Found};
use crate::state::App;
use crate::wire::cache::AuditBody;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;

#[derive(Debug, Serialize)]
struct HealthBody {
    status: &'static str,
    last_audit: Option<AuditBody>,
}

/// Whether the engine lives and its cache agrees with itself.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let found = health::look(&app).await;
    let well = found.is_well();
    let (status, last_audit) = match found {
        Found::Audited(audit) if well => ("ok", Some(audit)),
        Found::Audited(audit) => ("inconsistent", Some(audit)),
        Found::Busy => ("busy", None),
        Found::Stopped => ("stopped", None),
    };
    let code = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, &HealthBody { status, last_audit })
}

#[derive(Debug, Serialize)]
struct ReadyBody {
    ready: bool,
    why_not: Option<&'static str>,
}

/// Whether new requests are taken.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Response {
    let why_not = if app.limits.is_draining() || app.handle.intake().is_closed() {
        Some("shutting down")
    } else if !health::look(&app).await.is_well() {
        Some("the engine is not well: see /health")
    } else {
        None
    };
    let code = if why_not.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, &ReadyBody { ready: why_not.is_none(), why_not })
}

#[derive(Debug, Serialize)]
struct VersionBody<'a> {
    version: &'static str,
    device: &'a str,
}

pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    let body = VersionBody { version: env!("CARGO_PKG_VERSION"), device: app.handle.device() };
    json(StatusCode::OK, &body)
}
