use super::json;
use crate::body::read_json;
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
    let tokenized = app.work(move |app| {
        let _permit = permit;
        let TokenizeRequest { model, source, strings } = TokenizeRequest::parse(body.bytes())?;
        app.check_model(model.as_deref())?;
        // Texts that do not fit the model are counted too; a body's size is bound enough.
        let tokens = source.encode(&app.texts, Room { tokens: u32::MAX, ..app.room() })?;
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
    let detokenized = app.work(move |app| {
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
