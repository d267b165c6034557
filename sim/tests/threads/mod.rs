//! Threads of a simulation.

use std::sync::Arc;

use platform::{Platform, Signal};

/// A thread that was started.
pub struct Running(Arc<Signal>);

impl Running {
    /// Runs `body` in a thread of its own.
    pub fn spawn(platform: &Arc<dyn Platform>, body: impl FnOnce() + Send + 'static) -> Running {
        let ended = Arc::new(Signal::new(platform.clone()));
        let end = ended.clone();
        let body = move || {
            body();
            end.raise();
        };
        platform.spawn("other", Box::new(body)).expect("a thread");
        Running(ended)
    }

    /// Waits for its end.
    pub fn join(self) {
        while self.0.value() == 0 {
            self.0.wait(0, None);
        }
    }
}
