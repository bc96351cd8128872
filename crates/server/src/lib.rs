//! Octavo over HTTP: the OpenAI API, the cache's state, metrics.
//!
//! [`serve`] answers on a listener until it is told to stop. A request's way: `routes` read the body within `limits`,
//! `wire` makes a valid request of it or an error that says what is wrong, [`job`] sends it to the engine, `reply` makes
//! JSON of the events, at once or through [`sse`]. Whoever goes away cancels what they asked for.
#![forbid(unsafe_code)]

mod auth;
mod body;
mod config;
mod ending;
mod health;
mod io;
mod job;
mod limits;
mod metrics;
#[cfg(test)]
mod numbered;
mod reply;
mod request_id;
mod room;
mod router;
mod routes;
mod serve;
mod sse;
mod state;
mod wire;

pub use config::{ConfigError, Cors, MetricsCompat, ServerConfig, ServerOptions};
pub use serve::{ServeError, serve};
