use crate::metrics::Format;
use crate::state::App;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let format = Format::accepted(accept);
    let content_type = HeaderValue::from_static(format.content_type());
    ([(CONTENT_TYPE, content_type)], app.exporter.text(format, app.limits.in_flight())).into_response()
}
