//! Server-sent events: the framing, and a body that writes them as they come.

use crate::job::Job;
use crate::reply::stream::Writer;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// What ends a stream.
pub(crate) const DONE: &str = "[DONE]";
/// Clients skip comments.
const ALIVE: &[u8] = b": still here\n\n";
/// Events that are there at the same time share a frame up to this.
const FRAME: usize = 16 << 10;

/// One event. `data` is JSON, which holds no line break.
pub(crate) fn write_event(out: &mut Vec<u8>, data: &str) {
    debug_assert!(!data.contains(['\n', '\r']), "a line break would end the event early");
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// An answer as a stream.
pub(crate) fn respond(job: Job, writer: Writer, keep_alive: Duration) -> Response {
    let alive = Box::pin(sleep(keep_alive));
    let body = Body::new(SseBody { job: Some(job), writer, keep_alive, alive });
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that would otherwise collect an answer before they pass it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Reads a job as fast as its client reads. Whoever drops it, as a server does with a client that is gone, cancels the
/// job.
#[derive(Debug)]
struct SseBody {
    /// `None` once all is written.
    job: Option<Job>,
    writer: Writer,
    keep_alive: Duration,
    alive: Pin<Box<Sleep>>,
}

impl SseBody {
    /// Writes what is there, until a frame is full; `true` if the job has ended.
    fn collect(&mut self, out: &mut Vec<u8>, cx: &mut Context<'_>) -> bool {
        let Some(job) = &mut self.job else { return true };
        while out.len() < FRAME {
            match job.poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(None) => {
                    self.writer.end(out);
                    return true;
                }
                Poll::Ready(Some(Ok((prompt, event)))) => self.writer.event(prompt, event, out),
                Poll::Ready(Some(Err(error))) => {
                    self.writer.fail(&error, out);
                    return true;
                }
            }
        }
        false
    }
}

impl HttpBody for SseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.job.is_none() {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        if this.collect(&mut out, cx) {
            this.job = None;
        }
        if out.is_empty() {
            ready!(this.alive.as_mut().poll(cx));
            out.extend_from_slice(ALIVE);
        }
        this.alive.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.job.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data_and_an_empty_one() {
        let mut out = Vec::new();
        write_event(&mut out, "{\"a\":1}");
        write_event(&mut out, DONE);
        assert_eq!(out, b"data: {\"a\":1}\n\ndata: [DONE]\n\n");
    }
}
