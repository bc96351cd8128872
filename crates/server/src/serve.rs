//! Connections: accepting them, and ending in good order.

use crate::config::ServerConfig;
use crate::io::Impatient;
use crate::router::router;
use crate::state::App;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use octavo::Serving;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Why a server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the engine's thread panicked; the log says why")]
    EnginePanicked,
    #[error("the engine has stopped by itself; the log says why")]
    EngineStopped,
}

/// What clients have to take the end of their answers once everything has been computed.
const FLUSH: Duration = Duration::from_secs(5);
/// How often somebody looks whether the engine's thread is still there.
const LOOK_AT_ENGINE: Duration = Duration::from_millis(200);
/// How often the drain looks whether all requests have ended.
const LOOK: Duration = Duration::from_millis(20);

/// Answers requests on `listener` until `shutdown` completes, or the engine ends by itself. From then on `/ready` says 503 and new requests are
/// refused; those under way have [`ServerOptions::drain`](crate::ServerOptions::drain) to end before they are cancelled.
/// Returns when the engine has stopped.
pub async fn serve(
    listener: TcpListener,
    serving: Serving,
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let drain = config.options.drain;
    let parts = (serving.texts.clone(), serving.handle.clone(), serving.spec.clone());
    let app = tokio::task::spawn_blocking(move || App::new(parts, config)).await;
    let app = Arc::new(app.map_err(|_| ServeError::EnginePanicked)?);
    let mut server = Server::new(listener, app.clone());
    let stopped_by_itself = tokio::select! {
        () = shutdown => false,
        () = end_of(&serving.thread) => true,
        never = server.accept() => match never {},
    };
    tracing::info!(in_flight = app.limits.in_flight(), "shutting down");
    app.limits.drain();
    app.handle.stop(drain);
    // Whoever asks meanwhile is told, rather than left without an answer.
    tokio::select! {
        () = idle(&app, Instant::now() + drain + FLUSH) => {}
        never = server.accept() => match never {},
    }
    server.close().await;
    drop(app);
    join(serving.thread).await?;
    if stopped_by_itself { Err(ServeError::EngineStopped) } else { Ok(()) }
}

async fn end_of(thread: &JoinHandle<()>) {
    while !thread.is_finished() {
        sleep(LOOK_AT_ENGINE).await;
    }
}

/// Until nothing is under way, but no longer than `deadline`.
async fn idle(app: &App, deadline: Instant) {
    while app.limits.in_flight() > 0 && Instant::now() < deadline {
        sleep(LOOK).await;
    }
}

/// Waits a while for the engine's thread. One that hangs in a step is left to the end of the process.
async fn join(thread: JoinHandle<()>) -> Result<(), ServeError> {
    let deadline = Instant::now() + FLUSH;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            tracing::warn!("the engine is still in a step");
            return Ok(());
        }
        sleep(LOOK).await;
    }
    thread.join().map_err(|_| ServeError::EnginePanicked)
}

struct Server {
    listener: TcpListener,
    router: Router,
    app: Arc<App>,
    slots: Arc<Semaphore>,
    connections: GracefulShutdown,
    tasks: JoinSet<()>,
}

impl Server {
    fn new(listener: TcpListener, app: Arc<App>) -> Self {
        let slots = Arc::new(Semaphore::new(app.config.options.max_connections));
        let router = router(app.clone());
        let (connections, tasks) = (GracefulShutdown::new(), JoinSet::new());
        Self { listener, router, app, slots, connections, tasks }
    }

    /// Takes connections for as long as it is polled.
    async fn accept(&mut self) -> Infallible {
        loop {
            let slot = self.slots.clone().acquire_owned().await.expect("never closed");
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let connection = self.connection(stream, peer);
                    let counted = self.app.exporter.http.connection();
                    self.tasks.spawn(async move {
                        connection.await;
                        drop((slot, counted));
                    });
                }
                Err(error) => {
                    // Out of file handles, most likely: some will be given back.
                    tracing::warn!(%error, "cannot take a connection");
                    sleep_until(Instant::now() + Duration::from_millis(100)).await;
                }
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn connection(&self, stream: TcpStream, peer: SocketAddr) -> impl Future<Output = ()> + use<> {
        let options = &self.app.config.options;
        // Tokens go out as they come; without it they would wait for each other.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(Impatient::new(stream, options.stall_timeout));
        let service = TowerToHyperService::new(self.router.clone());
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(options.header_timeout);
        let connection = self.connections.watch(http.serve_connection(io, service));
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, %error, "a connection broke off");
            }
        }
    }

    /// Lets answers that are complete reach their clients, and cuts off the rest.
    async fn close(self) {
        let Self { listener, connections, mut tasks, .. } = self;
        // Whoever comes now is refused, rather than left to wait.
        drop(listener);
        if timeout(FLUSH, connections.shutdown()).await.is_err() {
            tracing::warn!(connections = tasks.len(), "cutting off clients that do not read");
        }
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
    }
}
