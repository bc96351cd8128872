//! What every request handler sees.

use crate::config::ServerConfig;
use crate::limits::{Limits, Permit, Work};
use crate::metrics::Exporter;
use crate::wire::error::ApiError;
use crate::wire::prompt::Room;
use axum::http::StatusCode;
use octavo::{Answer, EngineHandle, KvSpec, NoAnswer, Texts};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) texts: Arc<Texts>,
    pub(crate) handle: EngineHandle,
    pub(crate) spec: KvSpec,
    pub(crate) config: ServerConfig,
    pub(crate) limits: Limits,
    pub(crate) exporter: Exporter,
    pub(crate) health: crate::health::Health,
    /// The first is shown.
    pub(crate) names: Vec<Arc<str>>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    longest_token: usize,
}

/// How long the engine may take to answer a question between two steps.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often one looks for its answer.
const GLANCE: Duration = Duration::from_millis(1);

impl App {
    /// Asks the engine how it is set up, and waits for the answer.
    pub(crate) fn new(
        (texts, handle, spec): (Arc<Texts>, EngineHandle, KvSpec),
        config: ServerConfig,
    ) -> Self {
        let mut names: Vec<Arc<str>> =
            config.options.model_names.iter().map(|name| name.as_str().into()).collect();
        if names.is_empty() {
            names.push(texts.name().into());
        }
        let tokenizer = texts.tokenizer();
        let longest = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).len()).max();
        Self {
            exporter: Exporter::new(&handle, &spec, &names[0], config.options.metrics_compat),
            limits: Limits::new(&config.options),
            health: crate::health::Health::default(),
            texts,
            handle,
            spec,
            config,
            names,
            started: now(),
            longest_token: longest.unwrap_or(1).max(1),
        }
    }

    /// The name the model is known by.
    pub(crate) fn model(&self) -> Arc<str> {
        self.names[0].clone()
    }

    /// Refuses a model that is not here.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if !self.names.iter().any(|name| **name == *asked) => {
                let names: Vec<String> = self.names.iter().map(|name| format!("{name:?}")).collect();
                let message = format!("there is no model {asked:?} here, only {}", names.join(", "));
                let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
                Err(error.with_param("model"))
            }
            _ => Ok(()),
        }
    }

    /// The most tokens a prompt may have.
    pub(crate) fn room(&self) -> Room {
        let max_len = self.handle.intake().max_len().0;
        let tokens = self.config.options.max_prompt_tokens.map_or(max_len, |most| most.min(max_len));
        Room { tokens, longest_token: self.longest_token }
    }

    /// Refuses a prompt that is longer than this server takes; the engine knows what the model takes.
    pub(crate) fn check_prompt(&self, tokens: &[u32]) -> Result<(), ApiError> {
        match self.config.options.max_prompt_tokens {
            Some(most) if tokens.len() > most as usize => {
                let message =
                    format!("the prompt has {} tokens, this server takes at most {most}", tokens.len());
                Err(ApiError::bad_request("context_length_exceeded", message).with_param("prompt"))
            }
            _ => Ok(()),
        }
    }

    /// Does work that takes a while off the async threads. It goes on if the caller goes away; what it returns is
    /// dropped then.
    pub(crate) async fn work<T, F>(self: &Arc<Self>, kind: Work, work: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    {
        let place = self.limits.place(kind).await;
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = work(&app);
            drop(place);
            result
        });
        done.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a request's work ended early");
            Err(ApiError::mistake())
        })
    }

    /// Asks the engine something that it answers between two steps. A client that goes away withdraws the question.
    pub(crate) async fn ask<T>(
        &self,
        question: impl FnOnce(&EngineHandle) -> Answer<T>,
    ) -> Result<T, ApiError> {
        let _turn = self.limits.question().await;
        let (mut answer, asked) = (question(&self.handle), Instant::now());
        loop {
            match answer.wait(Duration::ZERO) {
                Err(NoAnswer::Busy) if asked.elapsed() > ANSWER_WITHIN && answer.withdraw() => {
                    return Err(NoAnswer::Busy.into());
                }
                Err(NoAnswer::Busy) => tokio::time::sleep(GLANCE).await,
                answered => return Ok(answered?),
            }
        }
    }

    pub(crate) fn enter(&self) -> Result<Permit, ApiError> {
        self.limits.enter()
    }
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
