//! The use of an object by another object of the agent.

use alloc::sync::Arc;

use platform::use_count::{Counted, Use};

use crate::Error;

/// Begins to use an object; [`Error::Gone`] if it is destroyed or about to be.
pub(crate) fn begin_use<T: Counted>(object: &Arc<T>) -> Result<Use<T>, Error> {
    Use::begin(object.clone()).ok_or(Error::Gone)
}
