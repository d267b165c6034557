//! Translates IT-API's errors to DAT's.

use privileged_api as it;

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

/// What this provider does not have.
pub(crate) const MODEL: Error = Error::new(ErrorType::ModelNotSupported, Subtype::None);
/// No memory.
pub(crate) const NO_MEMORY: Error = resources(Subtype::ResourceMemory);
/// The IA is closed.
pub(crate) const CLOSED: Error = handle(Subtype::InvalidHandleIa);
/// An upcall of a CNO's agent made a call that may wait.
pub(crate) const IN_UPCALL: Error = state(Subtype::None);

/// The DAT error of an IT-API error, for calls that have no more specific one.
pub(crate) const fn of(error: it::Error) -> Error {
    use it::Error as It;
    match error {
        It::InvalidIa => CLOSED,
        It::IaCatastrophe => Error::new(ErrorType::InternalError, Subtype::None),
        It::CallbackContext => IN_UPCALL,
        It::Abort => Error::new(ErrorType::Abort, Subtype::None),
        It::TimeoutExpired => Error::new(ErrorType::TimeoutExpired, Subtype::None),
        It::QueueEmpty => Error::new(ErrorType::QueueEmpty, Subtype::None),
        It::EvdQueueFull => Error::new(ErrorType::QueueFull, Subtype::None),
        It::InvalidPz => handle(Subtype::InvalidHandlePz),
        It::PzBusy => state(Subtype::InvalidStatePzInUse),
        It::InvalidLmr => handle(Subtype::InvalidHandleLmr),
        It::LmrBusy => state(Subtype::InvalidStateLmrInUse),
        It::InvalidRmr => handle(Subtype::InvalidHandleRmr),
        It::InvalidSrq => handle(Subtype::InvalidHandleSrq),
        It::SrqBusy => state(Subtype::InvalidStateSrqInUse),
        It::InvalidEp | It::InvalidEpType => handle(Subtype::InvalidHandleEp),
        It::InvalidEpState | It::CannotReset | It::EpBusy => state(Subtype::None),
        It::InvalidReqEvd | It::InvalidReqEvdState => handle(Subtype::InvalidHandleEvdRequest),
        It::InvalidRecvEvd | It::InvalidRecvEvdState => handle(Subtype::InvalidHandleEvdRecv),
        It::InvalidConnEvd => handle(Subtype::InvalidHandleEvdConn),
        It::InvalidEvd | It::InvalidSoftEvd | It::InvalidEvdType => handle(Subtype::InvalidHandle1),
        It::EvdBusy | It::InvalidEvdState => state(Subtype::InvalidStateEvdInUse),
        It::WaiterLimit | It::EvdWait => state(Subtype::InvalidStateEvdWaiter),
        It::InvalidListen => handle(Subtype::InvalidHandlePsp),
        It::InvalidCnEstId | It::InvalidUdSvcReqId => handle(Subtype::InvalidHandleCr),
        It::InvalidAh => handle(Subtype::InvalidHandle1),
        It::ConnQualBusy => Error::new(ErrorType::ConnQualInUse, Subtype::None),
        It::SrqNotSupported | It::OpNotSupported | It::InvalidSpigot => MODEL,
        It::NoPermission => Error::new(ErrorType::PrivilegesViolation, Subtype::None),
        It::InvalidAddress | It::InvalidNetaddr | It::InvalidSourcePath => {
            Error::new(ErrorType::InvalidAddress, Subtype::InvalidAddressMalformed)
        }
        It::Resources | It::ResourceLmrLength => NO_MEMORY,
        It::TooManyPosts => resources(Subtype::ResourceTep),
        It::ResourceQueueSize => resources(Subtype::ResourceTevd),
        // All other errors concern an argument.
        _ => parameter(Subtype::None),
    }
}

impl From<it::Error> for Error {
    fn from(error: it::Error) -> Error {
        of(error)
    }
}

impl From<rdma::OutOfResources> for Error {
    fn from(_: rdma::OutOfResources) -> Error {
        NO_MEMORY
    }
}

impl From<platform::OutOfMemory> for Error {
    fn from(_: platform::OutOfMemory) -> Error {
        NO_MEMORY
    }
}

impl From<alloc::collections::TryReserveError> for Error {
    fn from(_: alloc::collections::TryReserveError) -> Error {
        NO_MEMORY
    }
}

/// Replaces an error that concerns an unnamed argument by one that names `argument`.
pub(crate) fn as_argument(argument: Subtype) -> impl Fn(it::Error) -> Error {
    move |error| match of(error) {
        error if error == parameter(Subtype::None) => parameter(argument),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_named_where_nothing_else_is_wrong() {
        let named = as_argument(Subtype::InvalidArg3);
        assert_eq!(named(it::Error::InvalidPrivs), parameter(Subtype::InvalidArg3));
        assert_eq!(named(it::Error::InvalidPz), handle(Subtype::InvalidHandlePz));
        assert_eq!(named(it::Error::Resources), NO_MEMORY);
    }

    #[test]
    fn errors_that_no_consumer_can_provoke_at_will_have_their_types() {
        for (error, expected) in [
            (it::Error::ResourceQueueSize, resources(Subtype::ResourceTevd)),
            (it::Error::TooManyPosts, resources(Subtype::ResourceTep)),
            (it::Error::Resources, NO_MEMORY),
            (it::Error::ResourceLmrLength, NO_MEMORY),
            (it::Error::NoPermission, Error::new(ErrorType::PrivilegesViolation, Subtype::None)),
            (it::Error::InvalidAh, handle(Subtype::InvalidHandle1)),
        ] {
            assert_eq!(of(error), expected, "{error:?}");
        }
    }
}
