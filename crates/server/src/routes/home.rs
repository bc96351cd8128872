use crate::state::App;
use axum::extract::State;
use axum::response::Html;
use std::sync::Arc;

const PAGE: &str = include_str!("home.html");

/// Says what this is.
pub(crate) async fn home(State(app): State<Arc<App>>) -> Html<String> {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let page = PAGE.replace("{version}", env!("CARGO_PKG_VERSION"));
    Html(page.replace("{model}", &escape(&app.names[0])).replace("{device}", &escape(app.handle.device())))
}
