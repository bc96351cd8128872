use super::{Generate, Started, head};
use crate::job::Job;
use crate::limits::Permit;
use crate::reply::body::Form;
use crate::reply::collect::Asked;
use crate::request_id::RequestId;
use crate::state::App;
use crate::wire::chat::ChatRequest;
use crate::wire::error::ApiError;
use crate::wire::options::{Defaults, Options};

impl Generate for ChatRequest {
    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        Self::parse(body)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn start(self, app: &App, id: &RequestId, permit: Permit) -> Result<Started, ApiError> {
        let Self { conversation, options, logprobs } = self;
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
}
