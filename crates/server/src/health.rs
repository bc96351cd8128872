//! Whether the engine is well.

use crate::state::App;
use crate::wire::cache::AuditBody;
use octavo::NoAnswer;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

impl Health {
    fn fresh(&self) -> Option<State> {
        let last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        last.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, state)| state.clone())
    }

    fn keep(&self, state: &State) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *last = Some((Instant::now(), state.clone()));
    }
}

/// Has the cache checked, unless that was done just now.
pub(crate) async fn look(app: &Arc<App>) -> State {
    if let Some(state) = app.health.fresh() {
        return state;
    }
    let handle = app.handle.clone();
    let answer = tokio::task::spawn_blocking(move || handle.audit(WITHIN)).await;
    let state = match answer {
        Ok(Ok(audit)) => State::Audited(audit.into()),
        Ok(Err(NoAnswer::Busy)) => State::Busy,
        Ok(Err(NoAnswer::Stopped)) | Err(_) => State::Stopped,
    };
    app.health.keep(&state);
    state
}
