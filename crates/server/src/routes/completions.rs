use super::{Generate, Started, head};
use crate::job::Job;
use crate::limits::Permit;
use crate::reply::body::Form;
use crate::reply::collect::{Asked, Echo};
use crate::request_id::RequestId;
use crate::state::App;
use crate::wire::completion::{CompletionRequest, MAX_TOKENS};
use crate::wire::error::ApiError;
use crate::wire::options::{Defaults, Options};
use crate::wire::prompt::{Prompt, Prompts, Room};

impl Generate for CompletionRequest {
    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        Self::parse(body)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn start(self, app: &App, id: &RequestId, permit: Permit) -> Result<Started, ApiError> {
        let Self { prompts, options, logprobs, echo, special_tokens } = self;
        app.check_model(options.model.as_deref())?;
        let prompts = encode(app, prompts, special_tokens)?;
        let count = prompts.len() as u32;
        let echo = if echo {
            prompts.iter().map(|tokens| repeat(app, tokens)).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let defaults = Defaults {
            max_len: app.handle.intake().max_len(),
            max_tokens: Some(MAX_TOKENS),
            logprobs,
            prompt_logprobs: logprobs.filter(|_| !echo.is_empty()),
        };
        let requests = options.requests(prompts, defaults, &app.texts)?;
        let job = Job::start(&app.handle, requests, permit, id, options.grammar_field())?;
        let asked = Asked {
            head: head(app, Form::Completion, id),
            texts: app.texts.clone(),
            choices: options.choices,
            logprobs: logprobs.is_some(),
            stops: options.stops,
            echo,
        };
        Ok(Started { job, asked, prompts: count, stream: options.stream })
    }
}

fn encode(app: &App, prompts: Prompts, special_tokens: bool) -> Result<Vec<Vec<u32>>, ApiError> {
    let (count, most) = (prompts.0.len(), app.config.options.max_prompts);
    if count > most {
        let message = format!("{count} prompts: one request may have at most {most}");
        return Err(ApiError::field("prompt", message));
    }
    let waiting = app.handle.intake().max_waiting();
    if count > waiting {
        let message =
            format!("{count} prompts, and at most {waiting} requests may wait here: send fewer at once");
        return Err(ApiError::field("prompt", message));
    }
    let room = app.room();
    // By what the model takes, however little of it a single prompt may have here.
    Room { tokens: app.handle.intake().max_len().0, ..room }.check_all(&prompts)?;
    let encode = |prompt: Prompt| {
        let tokens = prompt.encode(&app.texts, special_tokens, room)?;
        app.check_prompt(&tokens).map(|()| tokens)
    };
    prompts.0.into_iter().map(encode).collect()
}

fn repeat(app: &App, tokens: &[u32]) -> Result<Echo, ApiError> {
    let text = app.texts.decode(tokens).map_err(|error| ApiError::field("prompt", error))?;
    Ok(Echo { text, tokens: tokens.into(), logprobs: Vec::new() })
}
