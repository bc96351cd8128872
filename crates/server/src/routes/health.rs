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
    answer(health::look(&app).await)
}

fn answer(found: Found) -> Response {
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
    let why_not = if app.handle.intake().is_closed() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerOptions;
    use octavo::{Llm, Options, Serving};
    use std::time::Duration;

    fn audited(problem: Option<&str>) -> Found {
        Found::Audited(AuditBody::new(1.0, problem.map(str::to_owned)))
    }

    async fn body(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_cache_that_disagrees_with_itself_is_said_and_answers_503() {
        assert_eq!(answer(audited(None)).status(), StatusCode::OK);
        assert_eq!(answer(Found::Busy).status(), StatusCode::OK);
        assert_eq!(answer(Found::Stopped).status(), StatusCode::SERVICE_UNAVAILABLE);
        let bad = answer(audited(Some("page 7 is held twice")));
        assert_eq!(bad.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = body(bad).await;
        assert!(text.contains("inconsistent") && text.contains("page 7 is held twice"), "{text}");
        for (found, status) in [(audited(None), "ok"), (Found::Busy, "busy"), (Found::Stopped, "stopped")] {
            let text = body(answer(found)).await;
            assert!(text.starts_with(&format!(r#"{{"status":"{status}","last_audit":"#)), "{text}");
        }
    }

    #[tokio::test]
    async fn a_server_whose_engine_has_ended_is_neither_well_nor_ready() {
        let Serving { texts, handle, spec, thread } =
            Llm::load(&Options::default(), &mut |_| {}).unwrap().serve();
        let config = ServerOptions::default().try_into().unwrap();
        let app = Arc::new(App::new((texts, handle.clone(), spec), config));
        assert_eq!(ready(State(app.clone())).await.status(), StatusCode::OK);
        handle.stop(Duration::ZERO);
        thread.join().unwrap();
        let text = body(ready(State(app.clone())).await).await;
        assert_eq!(text, r#"{"ready":false,"why_not":"shutting down"}"#);
        // What the last look found would still count.
        let mut app = Arc::into_inner(app).unwrap();
        app.health = health::Health::default();
        assert_eq!(super::health(State(Arc::new(app))).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
