//! What calls return (page VIP_RETURN, 9.10.1). `VIP_SUCCESS` is `Ok`.

use core::fmt;

/// The return value of a call that succeeded.
#[doc(alias = "VIP_SUCCESS")]
pub const SUCCESS: u32 = 0;

/// Why a call failed. A call that failed changed nothing, unless its documentation says otherwise.
#[doc(alias = "VIP_RETURN")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Error {
    /// No descriptor is complete at the head of the queue, or the completion queue is empty.
    #[doc(alias = "VIP_NOT_DONE")]
    NotDone = 1,
    /// A parameter is not valid, or the state of the object does not allow the call.
    #[doc(alias = "VIP_INVALID_PARAMETER")]
    InvalidParameter = 2,
    /// Resources do not suffice, the object is in use, or the NIC is dead.
    #[doc(alias = "VIP_ERROR_RESOURCE")]
    ErrorResource = 3,
    /// The time ran out.
    #[doc(alias = "VIP_TIMEOUT")]
    Timeout = 4,
    /// The remote end rejected the connection (9.4.4 spells it VIP_REJECTED).
    #[doc(alias = "VIP_REJECT")]
    #[doc(alias = "VIP_REJECTED")]
    Reject = 5,
    /// The reliability level is not supported, or not that of the remote end.
    #[doc(alias = "VIP_INVALID_RELIABILITY_LEVEL")]
    InvalidReliabilityLevel = 6,
    /// The maximum transfer size is not supported, or not that of the remote end.
    #[doc(alias = "VIP_INVALID_MTU")]
    InvalidMtu = 7,
    /// The quality of service is not supported, or not that of the remote end.
    #[doc(alias = "VIP_INVALID_QOS")]
    InvalidQos = 8,
    /// The protection tag is not valid.
    #[doc(alias = "VIP_INVALID_PTAG")]
    InvalidPtag = 9,
    /// RDMA Read was asked for where it is not supported.
    #[doc(alias = "VIP_INVALID_RDMAREAD")]
    InvalidRdmaRead = 10,
}

/// What a call returns.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// The number of `VIP_RETURN`.
    pub const fn as_raw(self) -> u32 {
        self as u32
    }

    /// The error with this number of `VIP_RETURN`.
    pub const fn from_raw(raw: u32) -> Option<Error> {
        Some(match raw {
            1 => Error::NotDone,
            2 => Error::InvalidParameter,
            3 => Error::ErrorResource,
            4 => Error::Timeout,
            5 => Error::Reject,
            6 => Error::InvalidReliabilityLevel,
            7 => Error::InvalidMtu,
            8 => Error::InvalidQos,
            9 => Error::InvalidPtag,
            10 => Error::InvalidRdmaRead,
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NotDone => "nothing is complete",
            Error::InvalidParameter => "a parameter is not valid",
            Error::ErrorResource => "resources do not suffice",
            Error::Timeout => "the time ran out",
            Error::Reject => "the remote end rejected the connection",
            Error::InvalidReliabilityLevel => "the reliability level is not valid",
            Error::InvalidMtu => "the maximum transfer size is not valid",
            Error::InvalidQos => "the quality of service is not valid",
            Error::InvalidPtag => "the protection tag is not valid",
            Error::InvalidRdmaRead => "RDMA Read is not supported",
        })
    }
}

impl core::error::Error for Error {}

impl From<platform::OutOfMemory> for Error {
    fn from(_: platform::OutOfMemory) -> Error {
        Error::ErrorResource
    }
}

impl From<rdma::OutOfResources> for Error {
    fn from(_: rdma::OutOfResources) -> Error {
        Error::ErrorResource
    }
}

impl From<alloc::collections::TryReserveError> for Error {
    fn from(_: alloc::collections::TryReserveError) -> Error {
        Error::ErrorResource
    }
}

impl From<rdma::Ended> for Error {
    fn from(ended: rdma::Ended) -> Error {
        match ended {
            rdma::Ended::Disabled => Error::ErrorResource,
            rdma::Ended::Freed => Error::InvalidParameter,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn numbers_are_those_of_the_enumeration() {
        let all = [
            Error::NotDone,
            Error::InvalidParameter,
            Error::ErrorResource,
            Error::Timeout,
            Error::Reject,
            Error::InvalidReliabilityLevel,
            Error::InvalidMtu,
            Error::InvalidQos,
            Error::InvalidPtag,
            Error::InvalidRdmaRead,
        ];
        for (number, error) in (SUCCESS + 1..).zip(all) {
            assert_eq!(error.as_raw(), number);
            assert_eq!(Error::from_raw(number), Some(error));
        }
        assert_eq!((Error::from_raw(SUCCESS), Error::from_raw(11)), (None, None));
    }

    #[test]
    fn each_error_has_a_text_of_its_own() {
        let texts: Vec<String> = (SUCCESS + 1..).map_while(Error::from_raw).map(|e| e.to_string()).collect();
        assert_eq!(texts.len(), 10);
        for (at, text) in texts.iter().enumerate() {
            assert!(!text.is_empty() && !texts[..at].contains(text), "{text:?}");
        }
    }
}
