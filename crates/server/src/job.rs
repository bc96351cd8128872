//! A request under way: its events, and what ends it when nobody wants them any more.

use crate::ending::Ending;
use crate::limits::Permit;
use crate::request_id::RequestId;
use crate::wire::error::ApiError;
use octavo::{EngineHandle, Event, Failure, Request, Ticket};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The prompts of one HTTP request in the engine. Dropping it cancels what has not ended.
///
/// The channel has no bound of its own because its senders have one: a request makes at most a few events a token, and
/// its tokens are limited. So a client that reads slowly never holds up the engine.
#[derive(Debug)]
pub(crate) struct Job {
    events: UnboundedReceiver<(u32, Event)>,
    /// Prompts that have not ended.
    open: usize,
    /// The field that the grammar came in.
    grammar: Option<String>,
    ending: Ending,
    _tickets: Vec<Ticket>,
    _permit: Permit,
}

impl Job {
    /// Sends all requests or none: if one is refused, those before it are cancelled.
    pub(crate) fn start(
        handle: &EngineHandle,
        requests: Vec<Request>,
        permit: Permit,
        id: &RequestId,
        grammar: Option<&str>,
    ) -> Result<Self, ApiError> {
        let (sender, events) = unbounded_channel();
        let many = requests.len() > 1;
        let submit = |(index, request): (u32, Request)| {
            let sender = sender.clone();
            // Whoever went away has dropped the receiver, and the ticket with it.
            let sink = move |event| drop(sender.send((index, event)));
            let ticket = handle.submit(request, Box::new(sink)).map_err(ApiError::from);
            ticket.map_err(
                |error| if many { error.with_prompt_as(|| format!("prompt[{index}]")) } else { error },
            )
        };
        let tickets = (0..).zip(requests).map(submit).collect::<Result<Vec<_>, _>>()?;
        let (open, ending) = (tickets.len(), Ending::new(id, tickets.len()));
        let grammar = grammar.map(str::to_owned);
        Ok(Self { events, open, grammar, ending, _tickets: tickets, _permit: permit })
    }

    /// The next event and the prompt it belongs to; `None` when all have ended. A failure of one ends all.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(u32, Event), ApiError>>> {
        if self.open == 0 {
            return Poll::Ready(None);
        }
        let next = match self.events.poll_recv(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(next) => next,
        };
        Poll::Ready(Some(match next {
            // The engine drops a sink after the last event; before it only when its thread ends.
            None => {
                self.open = 0;
                self.ending.fail(ApiError::stopped());
                Err(ApiError::stopped())
            }
            Some((index, event)) => {
                self.ending.note(index, &event);
                if let Event::Failed(failure) = event {
                    self.open = 0;
                    return Poll::Ready(Some(Err(self.error(failure))));
                }
                self.open -= usize::from(event.is_last());
                if self.open == 0 {
                    self.ending.complete();
                }
                Ok((index, event))
            }
        }))
    }

    fn error(&self, failure: Failure) -> ApiError {
        let by_grammar = matches!(failure, Failure::Constraint(_) | Failure::TooComplex(_));
        let error = ApiError::from(failure);
        match &self.grammar {
            Some(field) if by_grammar => error.with_param(field.as_str()),
            _ => error,
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<(u32, Event), ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // What nobody read: how many tokens it was, and whether it failed before its client was gone.
        while let Ok((index, event)) = self.events.try_recv() {
            self.ending.note(index, &event);
        }
    }
}
