//! `octavo serve`: a model over the OpenAI API.

use crate::engine_args::EngineArgs;
use crate::model_args::parse_size;
use crate::plan::grouped;
use anyhow::{Context, Result};
use clap::ValueEnum;
use octavo::{Hub, Serving};
use octavo_server::{Cors, MetricsCompat, ServerConfig, ServerOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

/// Serve a model over the OpenAI API
///
/// Without options the built-in model is served on 127.0.0.1:8000. Every option is also an environment variable
/// (--max-batch-size is OCTAVO_MAX_BATCH_SIZE) and a key of the file given by --config (max-batch-size = 16); the command
/// line wins over the environment, and that over the file. A switch is turned off by =false (--deterministic=false),
/// wherever else it is on. What may be given several times is a list in the file; a variable that is empty counts as
/// none, but for OCTAVO_API_KEY, which is refused.
/// Ctrl-C or SIGTERM lets requests under way end; a second one ends at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    /// Read options from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on; 0.0.0.0 for all
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 for any free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    #[command(flatten)]
    engine: EngineArgs,
    /// Name of the model in the API; may be given several times [default: the model's own]
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// Let in only those who send this key as a bearer token; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// Ask for the key at /metrics, /health, /ready and /version as well
    #[arg(long)]
    protect_all: bool,
    /// Let pages of this origin call the API, such as https://example.org, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Whose metric names to export beside Octavo's own
    #[arg(long, value_enum, default_value = "vllm")]
    metrics_compat: Compat,
    /// The largest request body
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8MiB")]
    max_body: u64,
    /// The most tokens in a prompt [default: as many as the model takes]
    #[arg(long, value_name = "TOKENS")]
    max_prompt_tokens: Option<u32>,
    /// Requests under way at once, running or waiting
    #[arg(long, value_name = "N", default_value_t = 2048)]
    max_requests: usize,
    /// How long requests under way may take to end when the server stops
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// How much to log
    #[arg(long, value_enum, default_value = "info")]
    log: Log,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Compat {
    Vllm,
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Log {
    Error,
    Warn,
    Info,
    Debug,
}

pub(crate) fn run(command: &Command, hub: &Hub) -> Result<()> {
    crate::log::start(match command.log {
        Log::Error => tracing::Level::ERROR,
        Log::Warn => tracing::Level::WARN,
        Log::Info => tracing::Level::INFO,
        Log::Debug => tracing::Level::DEBUG,
    });
    let config = command.server_config()?;
    // Before the model is loaded: a port that is taken should not cost minutes.
    let listener = std::net::TcpListener::bind((without_brackets(&command.host), command.port))
        .with_context(|| {
            format!("cannot listen on {}:{}: choose another --host or --port", command.host, command.port)
        })?;
    listener.set_nonblocking(true).context("cannot listen")?;
    let address = listener.local_addr().context("cannot listen")?;
    let llm = command.engine.load(hub)?;
    let serving = llm.serve();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Before anybody is told of the server: a signal that nobody watches for ends it without draining.
    let stopped = {
        let _entered = runtime.enter();
        stopped()
    };
    greet(&serving, address, command);
    let served = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        octavo_server::serve(listener, serving, config, stopped).await?;
        anyhow::Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// An IPv6 address may be written as in an URL.
fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.filter(|inner| inner.contains(':')).unwrap_or(host)
}

impl Command {
    fn server_config(&self) -> Result<ServerConfig> {
        let cors = match self.cors_origin.as_slice() {
            [] => Cors::Off,
            origins if origins.iter().any(|origin| origin == "*") => Cors::Any,
            origins => Cors::Origins(origins.to_vec()),
        };
        let options = ServerOptions {
            model_names: self.served_model_name.clone(),
            api_keys: self.api_key.clone(),
            open_health: !self.protect_all,
            open_metrics: !self.protect_all,
            cors,
            metrics_compat: match self.metrics_compat {
                Compat::Vllm => MetricsCompat::Vllm,
                Compat::None => MetricsCompat::None,
            },
            max_body: usize::try_from(self.max_body).unwrap_or(usize::MAX),
            max_prompt_tokens: self.max_prompt_tokens,
            max_requests: self.max_requests,
            drain: Duration::from_secs(self.drain),
            ..ServerOptions::default()
        };
        Ok(ServerConfig::try_from(options)?)
    }
}

/// Until Ctrl-C or SIGTERM, which are watched for from now on. The second one does not wait.
fn stopped() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else {
            tracing::warn!("signals cannot be watched: the server ends without draining");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        crate::log::say("octavo: letting requests end; once more to end at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(130);
        });
    }
}

/// What runs, and how to call it.
fn greet(serving: &Serving, address: SocketAddr, command: &Command) {
    let name = command.served_model_name.first().map_or(serving.texts.name(), String::as_str);
    let settings = serving.handle.intake().settings();
    let megabytes = settings.page_bytes.0 as f64 * f64::from(settings.total.0) / 1e6;
    let memory =
        if megabytes < 1e3 { format!("{megabytes:.1} MB") } else { format!("{:.2} GB", megabytes / 1e3) };
    let key = if command.api_key.is_empty() { "" } else { " -H 'Authorization: Bearer KEY'" };
    let ask = if serving.texts.has_template() {
        format!(
            r#"v1/chat/completions -H 'Content-Type: application/json'{key} -d '{{"messages": [{{"role": "user", "content": "What does Vec::push do?"}}]}}'"#
        )
    } else {
        format!(
            r#"v1/completions -H 'Content-Type: application/json'{key} -d '{{"prompt": "Once upon a time", "max_tokens": 64}}'"#
        )
    };
    // Nobody may be reading; that is no reason not to serve.
    let _ = writeln!(
        std::io::stdout(),
        "octavo {} serves {name} on http://{address} ({})\n\
         KV cache: {} of {} tokens, {memory} at most, {} {}; batch {}, sequences of up to {} tokens\n\n\
         Try it:\n  curl http://{address}/{ask}\n\
         Or set base_url to http://{address}/v1 in any OpenAI client. /metrics, /v1/cache and /health show what goes on.",
        env!("CARGO_PKG_VERSION"),
        serving.handle.device(),
        settings.total,
        settings.page_size.tokens().0,
        serving.spec.dtype().name(),
        if settings.prefix_cache { "with prefix cache" } else { "without prefix cache" },
        command.engine.batch(),
        grouped(serving.handle.intake().max_len().0.into()),
    );
}

#[cfg(test)]
mod tests {
    use super::without_brackets;

    #[test]
    fn an_ipv6_address_may_be_in_brackets() {
        for (given, host) in [("[::1]", "::1"), ("::1", "::1"), ("localhost", "localhost"), ("[x]", "[x]")] {
            assert_eq!(without_brackets(given), host);
        }
    }
}
