use super::json;
use crate::body::read_json;
use crate::limits::Work;
use crate::state::App;
use crate::wire::error::ApiError;
use crate::wire::prompt::Room;
use crate::wire::tokenize::{DetokenizeRequest, TokenizeRequest, Tokenized};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use octavo::SpecialTokens;
use serde::Serialize;
use std::sync::Arc;

pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let tokenized = app.work(Work::Tokens, move |app| {
        let _permit = permit;
        let TokenizeRequest { model, source, strings } = TokenizeRequest::parse(body.bytes())?;
        app.check_model(model.as_deref())?;
        // Texts that do not fit the model are counted too.
        let room = Room { tokens: app.handle.intake().max_len().0, ..app.room() };
        let tokens = source.encode(&app.texts, room.for_counting())?;
        let name = |id: &u32| app.texts.tokenizer().token(*id).unwrap_or_default();
        let token_strs = strings.then(|| tokens.iter().map(name).collect());
        let max_model_len = app.handle.intake().max_len().0;
        Ok(Tokenized { count: tokens.len(), max_model_len, tokens, token_strs })
    });
    Ok(json(StatusCode::OK, &tokenized.await?))
}

#[derive(Debug, Serialize)]
struct Detokenized {
    prompt: String,
}

pub(crate) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let detokenized = app.work(Work::Tokens, move |app| {
        let _permit = permit;
        let DetokenizeRequest { model, tokens } = DetokenizeRequest::parse(body.bytes())?;
        app.check_model(model.as_deref())?;
        let tokenizer = app.texts.tokenizer();
        if let Some(at) = tokens.iter().position(|token| *token as usize >= tokenizer.vocab_size()) {
            let message = format!("there is no token {}", tokens[at]);
            return Err(ApiError::field(format!("tokens[{at}]"), message));
        }
        // What was tokenised comes back whole, special tokens too.
        let prompt = tokenizer.decode(&tokens, SpecialTokens::Show);
        Ok(Detokenized { prompt: prompt.map_err(|error| ApiError::field("tokens", error))? })
    });
    Ok(json(StatusCode::OK, &detokenized.await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerOptions;
    use crate::router::router;
    use axum::body::Body;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use octavo::{Llm, Options};
    use std::time::Duration;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    const COMPLETION: (&str, &str) = ("/v1/completions", r#"{"prompt": "a", "max_tokens": 1}"#);
    const TOKENS: [(&str, &str); 2] =
        [("/tokenize", r#"{"prompt": "a"}"#), ("/detokenize", r#"{"tokens": [5]}"#)];

    fn app() -> Arc<App> {
        let serving = Llm::load(&Options::default(), &mut |_| {}).unwrap().serve();
        let parts = (serving.texts, serving.handle, serving.spec);
        Arc::new(App::new(parts, ServerOptions::default().try_into().unwrap()))
    }

    fn post(app: &Arc<App>, (path, body): (&str, &'static str)) -> JoinHandle<StatusCode> {
        let request = Request::post(path).body(Body::from(body)).unwrap();
        let service = TowerToHyperService::new(router(app.clone()));
        tokio::spawn(async move { service.call(request).await.unwrap().status() })
    }

    async fn answered(request: JoinHandle<StatusCode>) {
        let status = timeout(Duration::from_secs(60), request).await.expect("it does not wait").unwrap();
        assert_eq!(status, 200);
    }

    /// Every place that there is.
    async fn all<P>(take: impl AsyncFn() -> P) -> Vec<P> {
        let mut places = Vec::new();
        while let Ok(place) = timeout(Duration::ZERO, take()).await {
            places.push(place);
        }
        places
    }

    #[tokio::test]
    async fn generation_and_those_who_only_want_tokens_do_not_wait_for_each_other() {
        let app = app();
        let places = all(async || app.limits.place(Work::Tokens).await).await;
        let waiting = TOKENS.map(|request| post(&app, request));
        answered(post(&app, COMPLETION)).await;
        assert!(waiting.iter().all(|request| !request.is_finished()));
        drop(places);
        for request in waiting {
            answered(request).await;
        }
        let places = all(async || app.limits.place(Work::Request).await).await;
        let waiting = post(&app, COMPLETION);
        for request in TOKENS {
            answered(post(&app, request)).await;
        }
        assert!(!waiting.is_finished());
        drop(places);
        answered(waiting).await;
    }

    #[tokio::test]
    async fn who_waits_to_have_a_grammar_compiled_is_answered_at_the_time_limit() {
        let app = app();
        let _places = all(async || app.limits.place(Work::Grammar).await).await;
        let body = r#"{"prompt": "a", "max_tokens": 1, "guided_regex": "a", "time_limit_ms": 30}"#;
        let late = post(&app, ("/v1/completions", body));
        assert_eq!(timeout(Duration::from_secs(60), late).await.expect("an answer").unwrap(), 504);
    }
}
