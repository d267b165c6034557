//! When the routine of [`Disk::watch`](crate::Disk::watch) is due.

use alloc::sync::Arc;

/// The routine.
pub(crate) type Routine = Arc<dyn Fn() + Send + Sync>;

/// The routine, and whether the consumer waits for its call. A disk has it under its lock, and
/// calls the routine outside of it.
pub(crate) struct Watch {
    routine: Option<Routine>,
    /// The consumer may sleep until the routine is called.
    armed: bool,
}

impl Watch {
    /// No routine, and not armed.
    pub(crate) const fn new() -> Watch {
        Watch { routine: None, armed: false }
    }

    /// Replaces the routine.
    pub(crate) fn set(&mut self, routine: Option<Routine>) -> Option<Routine> {
        core::mem::replace(&mut self.routine, routine)
    }

    /// The consumer wants the next call.
    pub(crate) fn arm(&mut self) {
        self.armed = true;
    }

    /// Completions are ready: what the disk has to call.
    #[must_use]
    pub(crate) fn ready(&mut self) -> Option<Routine> {
        core::mem::take(&mut self.armed).then(|| self.routine.clone()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routine_is_due_once_until_a_poll_finds_nothing() {
        let mut watch = Watch::new();
        let routine: Routine = Arc::new(|| ());
        assert!(watch.set(Some(routine.clone())).is_none());
        assert!(watch.ready().is_none(), "it is not armed");
        watch.arm();
        assert!(watch.ready().is_some());
        assert!(watch.ready().is_none());
        watch.arm();
        assert!(watch.ready().is_some_and(|due| Arc::ptr_eq(&due, &routine)));
        watch.arm();
        assert!(watch.set(None).is_some());
        assert!(watch.ready().is_none());
        assert!(watch.set(Some(routine)).is_none());
        assert!(watch.ready().is_none(), "it is not armed again");
    }
}
