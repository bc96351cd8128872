use super::{Started, begin, head};
use crate::body::read_json;
use crate::job::Job;
use crate::limits::Permit;
use crate::reply::body::Form;
use crate::reply::collect::Asked;
use crate::request_id::RequestId;
use crate::state::App;
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::wire::options::Defaults;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let permit = app.enter()?;
    let body = read_json(&app, request).await?;
    let parse = move || ChatRequest::parse(body.bytes());
    let has_grammar = |request: &ChatRequest| request.options.grammar_field().is_some();
    let started =
        begin(&app, parse, has_grammar, move |app, request| start(app, &id, request, permit)).await?;
    started.answer(&app).await
}

fn start(app: &App, id: &RequestId, request: ChatRequest, permit: Permit) -> Result<Started, ApiError> {
    let ChatRequest { conversation, options, logprobs } = request;
    app.check_model(options.model.as_deref())?;
    let prompt = conversation.encode(&app.texts, app.room());
    let prompt = prompt.and_then(|prompt| app.check_prompt(&prompt).map(|()| prompt));
    let prompt = prompt.map_err(|error| error.with_prompt_as(|| "messages".into()))?;
    let max_len = app.handle.intake().max_len();
    let defaults = Defaults { max_len, max_tokens: None, logprobs, prompt_logprobs: None };
    let requests = options.requests(vec![prompt], defaults, &app.texts)?;
    let job = Job::start(&app.handle, requests, permit, id, options.grammar_field());
    let job = job.map_err(|error| error.with_prompt_as(|| "messages".into()))?;
    let asked = Asked {
        head: head(app, Form::Chat, id),
        texts: app.texts.clone(),
        choices: options.choices,
        logprobs: logprobs.is_some(),
        stops: options.stops,
        echo: Vec::new(),
    };
    Ok(Started { job, asked, prompts: 1, stream: options.stream })
}
