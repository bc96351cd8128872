//! Which path leads where, and what all of them pass through.

use crate::body::read_out;
use crate::config::AllowedOrigins;
use crate::request_id::identify;
use crate::routes::{cache, generate, health, home, metrics, models, tokenize};
use crate::state::App;
use crate::wire::chat::ChatRequest;
use crate::wire::completion::CompletionRequest;
use crate::wire::error::ApiError;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, Any as AnyOf, CorsLayer};

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(home::home))
        .route("/v1/completions", post(generate::<CompletionRequest>))
        .route("/v1/chat/completions", post(generate::<ChatRequest>))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/cache", get(cache::report))
        .route("/v1/cache/prefixes", delete(cache::drop_prefixes))
        .route("/v1/cache/pins", get(cache::pins).post(cache::pin))
        .route("/v1/cache/pins/{id}", delete(cache::unpin))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::metrics))
        .method_not_allowed_fallback(wrong_method)
        .fallback(not_found)
        .layer(from_fn_with_state(app.clone(), let_in))
        .layer(cors(&app.config.origins))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), identify))
        .layer(from_fn(read_out))
        .with_state(app)
}

async fn let_in(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.config.keys.check(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "unknown_path", format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(panic = words, "a handler panicked");
    ApiError::mistake().into_response()
}

fn cors(allowed: &AllowedOrigins) -> CorsLayer {
    let origins = match allowed {
        // Without a header a browser lets pages of this server read answers, and no others.
        AllowedOrigins::None => return CorsLayer::new(),
        AllowedOrigins::Any => AllowOrigin::from(AnyOf),
        AllowedOrigins::These(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // `*` does not cover the header that keys come in.
        .allow_headers(tower_http::cors::AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), axum::http::header::RETRY_AFTER])
        .max_age(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_answer_that_says_nothing_of_it() {
        for panic in
            [Box::new("secret") as Box<dyn Any + Send>, Box::new(String::from("secret")), Box::new(3)]
        {
            let answer = panicked(panic);
            assert_eq!(answer.status(), 500);
            assert_eq!(answer.headers()["content-type"], "application/json");
            let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
            assert!(!String::from_utf8_lossy(&body).contains("secret"), "{body:?}");
        }
    }
}
