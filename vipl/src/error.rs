//! What calls return (page VIP_RETURN, 9.10.1). `VIP_SUCCESS` is `Ok`.

use core::fmt;

/// The return value of a call that succeeded.
#[doc(alias = "VIP_SUCCESS")]
pub const SUCCESS: u32 = 0;

rdma::enumeration! {
    /// Why a call failed. A call that failed changed nothing, unless its documentation says
    /// otherwise.
    #[doc(alias = "VIP_RETURN")]
    pub enum Error: u32 {
        /// Nothing is complete at the head of the queue, or in the completion queue.
        NotDone = 1, "VIP_NOT_DONE";
        /// A parameter is not valid, or the state of the object does not allow the call.
        InvalidParameter = 2, "VIP_INVALID_PARAMETER";
        /// Resources do not suffice, the object is in use, or the NIC is dead.
        ErrorResource = 3, "VIP_ERROR_RESOURCE";
        /// The time ran out.
        Timeout = 4, "VIP_TIMEOUT";
        /// The remote end rejected the connection (9.4.4 spells it VIP_REJECTED).
        Reject = 5, "VIP_REJECT" or "VIP_REJECTED";
        /// The reliability level is not supported, or not that of the remote end.
        InvalidReliabilityLevel = 6, "VIP_INVALID_RELIABILITY_LEVEL";
        /// The maximum transfer size is not supported, or not that of the remote end.
        InvalidMtu = 7, "VIP_INVALID_MTU";
        /// The quality of service is not supported, or not that of the remote end.
        InvalidQos = 8, "VIP_INVALID_QOS";
        /// The protection tag is not valid.
        InvalidPtag = 9, "VIP_INVALID_PTAG";
        /// RDMA Read was asked for where it is not supported.
        InvalidRdmaRead = 10, "VIP_INVALID_RDMAREAD";
    }
}

/// What a call returns.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// The error with this number of `VIP_RETURN`.
    pub const fn from_raw(raw: u32) -> Option<Error> {
        Error::from_number(raw)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Error {}

rdma::common_errors! {
    Error: out of resources Error::ErrorResource, disabled Error::ErrorResource, freed Error::InvalidParameter
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn numbers_are_those_of_the_enumeration() {
        for (number, &error) in (SUCCESS + 1..).zip(Error::ALL) {
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
