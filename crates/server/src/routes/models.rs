use super::json;
use crate::state::App;
use crate::wire::error::ApiError;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;

#[derive(Debug, Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The name among them that is the model's own.
    root: &'a str,
    max_model_len: u32,
}

#[derive(Debug, Serialize)]
struct Models<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

fn model<'a>(app: &'a App, name: &'a str) -> Model<'a> {
    Model {
        id: name,
        object: "model",
        created: app.started,
        owned_by: "octavo",
        root: app.texts.name(),
        max_model_len: app.handle.intake().max_len().0,
    }
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data = app.names.iter().map(|name| model(&app, name)).collect();
    json(StatusCode::OK, &Models { object: "list", data })
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    app.check_model(Some(&id))?;
    Ok(json(StatusCode::OK, &model(&app, &id)))
}
