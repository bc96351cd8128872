//! How the server is set up.

use crate::auth::Keys;
use axum::http::HeaderValue;
use std::time::Duration;

/// Who may read answers in a browser.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cors {
    /// Pages of this server alone.
    #[default]
    Off,
    Any,
    /// Pages of these origins, such as `https://example.org`.
    Origins(Vec<String>),
}

/// Whose metric names are exported beside Octavo's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetricsCompat {
    None,
    #[default]
    Vllm,
}

/// How to set up a server; a [`ServerConfig`] is made of it.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Names that requests may give the model; the first is shown. The model's own if empty.
    pub model_names: Vec<String>,
    /// Whoever sends one of these is let in; everybody is if there is none.
    pub api_keys: Vec<String>,
    /// `/health`, `/ready` and `/version` need no key.
    pub open_health: bool,
    /// `/metrics` needs no key.
    pub open_metrics: bool,
    pub cors: Cors,
    pub metrics_compat: MetricsCompat,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// The most prompts in one request.
    pub max_prompts: usize,
    /// The most tokens in a prompt; as many as the model takes if `None`.
    pub max_prompt_tokens: Option<u32>,
    /// Requests under way at once, running or waiting.
    pub max_requests: usize,
    /// Open connections.
    pub max_connections: usize,
    /// How long a client may take to send a request's head, and a connection may be idle.
    pub header_timeout: Duration,
    /// How long a client may take to send a body.
    pub body_timeout: Duration,
    /// How long a client may leave an answer unread.
    pub stall_timeout: Duration,
    /// How often a stream that has nothing to say shows that it is alive.
    pub keep_alive: Duration,
    /// How long requests under way may take to end once the server is told to.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            model_names: Vec::new(),
            api_keys: Vec::new(),
            open_health: true,
            open_metrics: true,
            cors: Cors::default(),
            metrics_compat: MetricsCompat::default(),
            max_body: 8 << 20,
            max_prompts: 256,
            max_prompt_tokens: None,
            max_requests: 2048,
            max_connections: 4096,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(30),
        }
    }
}

/// Options that can be served.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Without the keys, of which only hashes are kept.
    pub(crate) options: ServerOptions,
    pub(crate) keys: Keys,
    pub(crate) origins: AllowedOrigins,
}

/// [`Cors`] as headers.
#[derive(Debug, Clone)]
pub(crate) enum AllowedOrigins {
    None,
    Any,
    These(Vec<HeaderValue>),
}

/// Why a server cannot be set up like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{0} must be at least {1}")]
    TooSmall(&'static str, &'static str),
    #[error("{0} can be at most {1}")]
    TooLarge(&'static str, &'static str),
    #[error("API key {0} is empty or holds something else than visible ASCII characters")]
    ApiKey(usize),
    #[error("a model's name cannot be empty")]
    ModelName,
    #[error("{0:?} is not an origin: write it like https://example.org, or * for all")]
    Origin(String),
}

impl TryFrom<ServerOptions> for ServerConfig {
    type Error = ConfigError;

    fn try_from(mut options: ServerOptions) -> Result<Self, ConfigError> {
        check_limits(&options)?;
        let visible = |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(at) = options.api_keys.iter().position(|key| !visible(key)) {
            return Err(ConfigError::ApiKey(at + 1));
        }
        if options.model_names.iter().any(String::is_empty) {
            return Err(ConfigError::ModelName);
        }
        let (keys, origins) = (Keys::new(&options), origins(&options.cors)?);
        options.api_keys.clear();
        Ok(Self { options, keys, origins })
    }
}

fn check_limits(options: &ServerOptions) -> Result<(), ConfigError> {
    let counts = [
        ("the number of prompts", options.max_prompts),
        ("the number of requests", options.max_requests),
        ("the number of connections", options.max_connections),
        ("the number of prompt tokens", options.max_prompt_tokens.unwrap_or(1) as usize),
    ];
    if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
        return Err(ConfigError::TooSmall(name, "1"));
    }
    if let Some((name, _)) = counts[1..3].iter().find(|(_, count)| *count > 1 << 20) {
        return Err(ConfigError::TooLarge(name, "1048576"));
    }
    if options.max_body < 1024 {
        return Err(ConfigError::TooSmall("the largest body", "1 KiB"));
    }
    if options.max_body > 1 << 30 {
        return Err(ConfigError::TooLarge("the largest body", "1 GiB"));
    }
    let times = [
        ("the time for a head", options.header_timeout),
        ("the time for a body", options.body_timeout),
        ("the time an answer may be left unread", options.stall_timeout),
        ("the time between signs of life", options.keep_alive),
    ];
    if let Some((name, _)) = times.iter().find(|(_, time)| *time < Duration::from_millis(1)) {
        return Err(ConfigError::TooSmall(name, "1 ms"));
    }
    let day = Duration::from_secs(24 * 3600);
    let all = times.into_iter().chain([("the time to end", options.drain)]);
    match all.into_iter().find(|(_, time)| *time > day) {
        Some((name, _)) => Err(ConfigError::TooLarge(name, "a day")),
        None => Ok(()),
    }
}

fn origins(cors: &Cors) -> Result<AllowedOrigins, ConfigError> {
    let origins = match cors {
        Cors::Off => return Ok(AllowedOrigins::None),
        Cors::Any => return Ok(AllowedOrigins::Any),
        Cors::Origins(origins) => origins,
    };
    let parse = |origin: &String| {
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        let good = !host.is_empty() && !host.contains('/');
        let value = HeaderValue::from_str(origin).ok().filter(|_| good);
        value.ok_or_else(|| ConfigError::Origin(origin.clone()))
    };
    origins.iter().map(parse).collect::<Result<_, _>>().map(AllowedOrigins::These)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_can_be_served() {
        ServerConfig::try_from(ServerOptions::default()).unwrap();
    }

    #[test]
    fn of_keys_only_hashes_are_kept() {
        let options = ServerOptions { api_keys: vec!["a-secret".into()], ..ServerOptions::default() };
        let config = ServerConfig::try_from(options).unwrap();
        assert!(!format!("{config:?}").contains("a-secret"));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let base = ServerOptions::default;
        let key = |key: &str| ServerOptions { api_keys: vec!["good".into(), key.into()], ..base() };
        let origin = |origin: &str| ServerOptions { cors: Cors::Origins(vec![origin.into()]), ..base() };
        for options in [
            key(""),
            key("with space"),
            key("é"),
            origin("example.org"),
            origin("https://example.org/"),
            origin("https://"),
            ServerOptions { max_body: 0, ..base() },
            ServerOptions { max_body: usize::MAX, ..base() },
            ServerOptions { max_requests: 0, ..base() },
            ServerOptions { max_requests: usize::MAX, ..base() },
            ServerOptions { max_connections: 0, ..base() },
            ServerOptions { max_connections: usize::MAX, ..base() },
            ServerOptions { max_prompts: 0, ..base() },
            ServerOptions { max_prompt_tokens: Some(0), ..base() },
            ServerOptions { header_timeout: Duration::ZERO, ..base() },
            ServerOptions { body_timeout: Duration::ZERO, ..base() },
            ServerOptions { stall_timeout: Duration::ZERO, ..base() },
            ServerOptions { keep_alive: Duration::ZERO, ..base() },
            ServerOptions { keep_alive: Duration::MAX, ..base() },
            ServerOptions { drain: Duration::MAX, ..base() },
            ServerOptions { model_names: vec![String::new()], ..base() },
        ] {
            assert!(ServerConfig::try_from(options.clone()).is_err(), "{options:?}");
        }
        ServerConfig::try_from(origin("http://localhost:3000")).unwrap();
        assert_eq!(ServerConfig::try_from(key("")).unwrap_err(), ConfigError::ApiKey(2));
    }

    #[test]
    fn the_least_and_the_most_that_can_work_do() {
        let (least, most, base) = (Duration::from_millis(1), 1 << 20, ServerOptions::default);
        for options in [
            ServerOptions { max_body: 1024, max_requests: 1, max_connections: 1, ..base() },
            ServerOptions { max_body: 1 << 30, max_requests: most, max_connections: most, ..base() },
            ServerOptions { keep_alive: least, drain: Duration::ZERO, ..base() },
        ] {
            ServerConfig::try_from(options).unwrap();
        }
    }
}
