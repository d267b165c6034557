//! The errors that more than one call returns, and those of the stack below in DAT's terms.

use kernel_agent::PostError;

use crate::ret::{Error, ErrorType, Subtype};

/// A handle that names no object of its type.
pub(crate) const fn handle(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidHandle, subtype)
}

/// A bad argument.
pub(crate) const fn parameter(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidParameter, subtype)
}

/// An object in a state in which the call is not allowed.
pub(crate) const fn state(subtype: Subtype) -> Error {
    Error::new(ErrorType::InvalidState, subtype)
}

/// A lack of resources.
pub(crate) const fn resources(subtype: Subtype) -> Error {
    Error::new(ErrorType::InsufficientResources, subtype)
}

pub(crate) const MODEL: Error = Error::new(ErrorType::ModelNotSupported, Subtype::None);
pub(crate) const NO_MEMORY: Error = resources(Subtype::ResourceMemory);
pub(crate) const CLOSED: Error = handle(Subtype::InvalidHandleIa);
pub(crate) const IN_UPCALL: Error = state(Subtype::None);
/// A queue of events cannot be that long, or is full.
pub(crate) const EVENTS: Error = resources(Subtype::ResourceTevd);

rdma::common_errors! {
    Error: out of resources NO_MEMORY, disabled ErrorType::InternalError.into(), freed CLOSED
}

/// The error of a request that was not posted, unless the endpoint's state or its end is the
/// reason.
pub(crate) const fn of_post(error: PostError) -> Error {
    match error {
        PostError::QueueFull => resources(Subtype::ResourceTep),
        PostError::LinksInFlight => NO_MEMORY,
        PostError::State | PostError::Busy => state(Subtype::None),
        PostError::Kind | PostError::Gone => handle(Subtype::InvalidHandleEp),
        PostError::Segment => handle(Subtype::InvalidHandleLmr),
        PostError::Segments | PostError::BadList(_) => parameter(Subtype::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_that_fails_has_the_type_of_its_reason() {
        for (error, expected) in [
            (PostError::QueueFull, resources(Subtype::ResourceTep)),
            (PostError::LinksInFlight, NO_MEMORY),
            (PostError::Busy, state(Subtype::None)),
            (PostError::Gone, handle(Subtype::InvalidHandleEp)),
            (PostError::Segments, parameter(Subtype::None)),
        ] {
            assert_eq!(of_post(error), expected, "{error:?}");
        }
    }
}
