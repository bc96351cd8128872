//! Whether the engine is well.

use crate::state::App;
use crate::wire::cache::AuditBody;
use octavo::NoAnswer;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// What the last look at the engine found, so that frequent probes cost nothing.
#[derive(Debug, Default)]
pub(crate) struct Health {
    last: Mutex<Option<(Instant, State)>>,
}

#[derive(Debug, Clone)]
pub(crate) enum State {
    Audited(AuditBody),
    /// In a step that takes long.
    Busy,
    Stopped,
}

/// For so long a look counts.
const FRESH: Duration = Duration::from_secs(2);
/// Probes do not wait for long steps.
const WITHIN: Duration = Duration::from_millis(500);

impl State {
    pub(crate) fn is_well(&self) -> bool {
        match self {
            Self::Audited(audit) => audit.is_ok(),
            Self::Busy => true,
            Self::Stopped => false,
        }
    }
}

/// Has the cache checked, unless that was done just now. Those who ask at the same time share the answer.
pub(crate) async fn look(app: &Arc<App>) -> State {
    let mut last = app.health.last.lock().await;
    if let Some((at, state)) = &*last
        && at.elapsed() < FRESH
    {
        return state.clone();
    }
    let handle = app.handle.clone();
    let answer = tokio::task::spawn_blocking(move || handle.audit().wait(WITHIN)).await;
    let state = match answer {
        Ok(Ok(audit)) => State::Audited(audit.into()),
        Ok(Err(NoAnswer::Busy)) => State::Busy,
        Ok(Err(NoAnswer::Stopped)) | Err(_) => State::Stopped,
    };
    *last = Some((Instant::now(), state.clone()));
    state
}
