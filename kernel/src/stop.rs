//! The launcher's request to an image to end by itself.
//!
//! The launcher owns the guest's memory. An image that listens tells it the address of a word, and
//! the launcher writes there when the user ends it. It cannot raise an interrupt, so a thread looks
//! at the word.

use alloc::format;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use crate::{launcher, thread};

/// The time between two looks at the word.
const PERIOD: Duration = Duration::from_millis(50);

/// Not 0 once the launcher asks. All memory lies at its bus address.
static WORD: AtomicU32 = AtomicU32::new(0);

/// The launcher's request that this image ends, which may come.
#[derive(Debug)]
pub struct StopRequest(());

/// Tells the launcher that this image ends by itself when it is asked to: by Ctrl-C, SIGTERM or
/// SIGHUP. To be called before the image says that it is ready.
///
/// From then on the launcher gives the image 10 s. An image that does not listen is ended at once.
pub fn listen_for_stop() -> StopRequest {
    launcher::control(&format!("stop-word {}", WORD.as_ptr().addr()));
    StopRequest(())
}

impl StopRequest {
    /// Blocks the calling thread until the request comes; without a launcher for ever.
    pub fn wait(self) {
        // Acquire: all that the launcher wrote before is visible.
        while WORD.load(Ordering::Acquire) == 0 {
            thread::sleep(PERIOD);
        }
    }
}
