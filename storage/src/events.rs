//! Event dispatchers whose callbacks wake the thread that serves them.

use alloc::boxed::Box;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use platform::Platform;
use privileged_api::{EvdHandle, Ia};

use crate::Error;
use crate::error::Calling;

/// How long a callback may take: all that it does is to leave a mark and raise a signal.
const CALLBACK: Duration = Duration::from_secs(1);
/// How often the end of a callback is looked for.
const NAP: Duration = Duration::from_micros(100);

/// Makes the callbacks of event dispatchers call a routine, which wakes the thread.
pub(crate) fn attach(
    ia: &Ia,
    evds: &[EvdHandle],
    routine: impl Fn() + Clone + Send + Sync + 'static,
) -> Result<(), Error> {
    evds.iter().try_for_each(|&evd| {
        let routine = routine.clone();
        let callback = Box::new(move |_: &Ia, _: EvdHandle| routine());
        ia.evd_callback_attach(evd, callback).calling("it_evd_callback_attach")
    })
}

/// Frees event dispatchers, which nothing feeds any more. One whose callback runs cannot be freed,
/// so this waits for the callback's end.
pub(crate) fn free(ia: &Ia, platform: &dyn Platform, evds: &[EvdHandle]) {
    for &evd in evds {
        // Each call fails if the IA is dead, and the first one if there is no callback.
        let _ = ia.evd_callback_detach(evd);
        let deadline = platform.now() + CALLBACK;
        while ia.evd_free(evd) == Err(privileged_api::Error::InvalidEvdState) && platform.now() < deadline {
            platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + NAP));
        }
    }
}
