//! What calls return: the type and the subtype of an error (`DAT_SUCCESS` is `Ok`).
//!
//! C's `DAT_RETURN` is a number of 32 bits: two of class, 14 of type, 16 of subtype. [`Error`] has
//! the type and the subtype; [`Error::as_raw`] and [`Error::from_raw`] convert. DAT asks consumers
//! to compare by type, so an [`Error`] can be compared with an [`ErrorType`].

use core::fmt;

/// The return value of a call that succeeded.
#[doc(alias = "DAT_SUCCESS")]
pub const SUCCESS: u32 = 0;
/// The class of errors.
#[doc(alias = "DAT_CLASS_ERROR")]
pub const CLASS_ERROR: u32 = 0x8000_0000;
/// The class of warnings. No call returns a warning.
#[doc(alias = "DAT_CLASS_WARNING")]
pub const CLASS_WARNING: u32 = 0x4000_0000;
/// The bits of the type.
#[doc(alias = "DAT_TYPE_MASK")]
pub const TYPE_MASK: u32 = 0x3fff_0000;
/// The bits of the subtype.
#[doc(alias = "DAT_SUBTYPE_MASK")]
pub const SUBTYPE_MASK: u32 = 0x0000_ffff;

/// The type of a return value: [`SUCCESS`] or the number of an [`ErrorType`].
#[doc(alias = "DAT_GET_TYPE")]
pub const fn get_type(raw: u32) -> u32 {
    raw & TYPE_MASK
}

/// The subtype of a return value: the number of a [`Subtype`].
#[doc(alias = "DAT_GET_SUBTYPE")]
pub const fn get_subtype(raw: u32) -> u32 {
    raw & SUBTYPE_MASK
}

/// Whether a return value is of the class of warnings.
#[doc(alias = "DAT_IS_WARNING")]
pub const fn is_warning(raw: u32) -> bool {
    raw & CLASS_WARNING != 0
}

rdma::enumeration! {
    /// The type of an error.
    #[doc(alias = "DAT_RETURN_TYPE")]
    pub enum ErrorType: u32 {
        /// The operation ended early, because an object that it needs was freed.
        Abort = 0x0001_0000, "DAT_ABORT";
        /// Another service point has the connection qualifier.
        ConnQualInUse = 0x0002_0000, "DAT_CONN_QUAL_IN_USE";
        /// Resources are used up.
        InsufficientResources = 0x0003_0000, "DAT_INSUFFICIENT_RESOURCES";
        /// The provider has an internal error.
        InternalError = 0x0004_0000, "DAT_INTERNAL_ERROR";
        /// A handle is null, freed, foreign or of another type.
        InvalidHandle = 0x0005_0000, "DAT_INVALID_HANDLE";
        /// An argument is invalid.
        InvalidParameter = 0x0006_0000, "DAT_INVALID_PARAMETER";
        /// The state of an object does not allow the call.
        InvalidState = 0x0007_0000, "DAT_INVALID_STATE";
        /// A length is more than the object takes.
        LengthError = 0x0008_0000, "DAT_LENGTH_ERROR";
        /// The provider does not support what was asked for.
        ModelNotSupported = 0x0009_0000, "DAT_MODEL_NOT_SUPPORTED";
        /// No provider has this name, this version and this thread safety.
        ProviderNotFound = 0x000a_0000, "DAT_PROVIDER_NOT_FOUND" or "DAT_NAME_NOT_FOUND";
        /// The memory lacks a privilege that the request needs.
        PrivilegesViolation = 0x000b_0000, "DAT_PRIVILEGES_VIOLATION";
        /// The memory is in another protection zone than the request.
        ProtectionViolation = 0x000c_0000, "DAT_PROTECTION_VIOLATION";
        /// The queue is empty.
        QueueEmpty = 0x000d_0000, "DAT_QUEUE_EMPTY";
        /// The queue is full.
        QueueFull = 0x000e_0000, "DAT_QUEUE_FULL";
        /// The time is over.
        TimeoutExpired = 0x000f_0000, "DAT_TIMEOUT_EXPIRED";
        /// A provider of this name is registered already.
        ProviderAlreadyRegistered = 0x0010_0000, "DAT_PROVIDER_ALREADY_REGISTERED";
        /// The provider is in use.
        ProviderInUse = 0x0011_0000, "DAT_PROVIDER_IN_USE";
        /// The address of the remote IA cannot be used.
        InvalidAddress = 0x0012_0000, "DAT_INVALID_ADDRESS";
        /// The call was interrupted by a signal.
        InterruptedCall = 0x0013_0000, "DAT_INTERRUPTED_CALL";
        /// No connection qualifier is free.
        ConnQualUnavailable = 0x0014_0000, "DAT_CONN_QUAL_UNAVAILABLE";
        /// The port is in use.
        PortInUse = 0x0016_0000, "DAT_PORT_IN_USE";
        /// The provider does not support this kind of communication.
        CommNotSupported = 0x0017_0000, "DAT_COMM_NOT_SUPPORTED";
        /// An operation of the InfiniBand extensions failed.
        IbErr = 0x1000_0000, "DAT_IB_ERR" or "DAT_EXTENSION_BASE";
        /// The provider does not implement the call.
        NotImplemented = 0x3fff_0000, "DAT_NOT_IMPLEMENTED";
    }
}

rdma::enumeration! {
    /// What an error concerns.
    #[doc(alias = "DAT_RETURN_SUBTYPE")]
    pub enum Subtype: u16 {
        /// Nothing in particular.
        None = 0, "DAT_NO_SUBTYPE";
        /// The call was interrupted.
        SubInterrupted = 1, "DAT_SUB_INTERRUPTED";
        /// Memory.
        ResourceMemory = 2, "DAT_RESOURCE_MEMORY";
        /// The device.
        ResourceDevice = 3, "DAT_RESOURCE_DEVICE";
        /// Transport endpoints (queue pairs).
        ResourceTep = 4, "DAT_RESOURCE_TEP";
        /// Transport event dispatchers (completion queues).
        ResourceTevd = 5, "DAT_RESOURCE_TEVD";
        /// Protection domains.
        ResourceProtectionDomain = 6, "DAT_RESOURCE_PROTECTION_DOMAIN";
        /// Memory regions and windows of the device.
        ResourceMemoryRegion = 7, "DAT_RESOURCE_MEMORY_REGION";
        /// Error handlers.
        ResourceErrorHandler = 8, "DAT_RESOURCE_ERROR_HANDLER";
        /// Credits, such as those for outstanding RDMA Reads.
        ResourceCredits = 9, "DAT_RESOURCE_CREDITS";
        /// Shared receive queues.
        ResourceSrq = 10, "DAT_RESOURCE_SRQ";

        /// The handle of the IA.
        InvalidHandleIa = 11, "DAT_INVALID_HANDLE_IA";
        /// The handle of the endpoint.
        InvalidHandleEp = 12, "DAT_INVALID_HANDLE_EP";
        /// The handle or the context of the LMR.
        InvalidHandleLmr = 13, "DAT_INVALID_HANDLE_LMR";
        /// The handle of the RMR.
        InvalidHandleRmr = 14, "DAT_INVALID_HANDLE_RMR";
        /// The handle of the protection zone.
        InvalidHandlePz = 15, "DAT_INVALID_HANDLE_PZ";
        /// The handle of the public service point.
        InvalidHandlePsp = 16, "DAT_INVALID_HANDLE_PSP";
        /// The handle of the reserved service point.
        InvalidHandleRsp = 17, "DAT_INVALID_HANDLE_RSP";
        /// The handle of the connection request.
        InvalidHandleCr = 18, "DAT_INVALID_HANDLE_CR";
        /// The handle of the CNO.
        InvalidHandleCno = 19, "DAT_INVALID_HANDLE_CNO";
        /// The handle of the EVD for connection requests.
        InvalidHandleEvdCr = 20, "DAT_INVALID_HANDLE_EVD_CR";
        /// The handle of the EVD for completions of requests.
        InvalidHandleEvdRequest = 21, "DAT_INVALID_HANDLE_EVD_REQUEST";
        /// The handle of the EVD for completions of receives.
        InvalidHandleEvdRecv = 22, "DAT_INVALID_HANDLE_EVD_RECV";
        /// The handle of the EVD for connection events.
        InvalidHandleEvdConn = 23, "DAT_INVALID_HANDLE_EVD_CONN";
        /// The handle of the EVD for asynchronous events.
        InvalidHandleEvdAsync = 24, "DAT_INVALID_HANDLE_EVD_ASYNC";
        /// The handle of the shared receive queue.
        InvalidHandleSrq = 25, "DAT_INVALID_HANDLE_SRQ";
        /// The handle of the common service point.
        InvalidHandleCsp = 26, "DAT_INVALID_HANDLE_CSP";
        /// The first handle.
        InvalidHandle1 = 27, "DAT_INVALID_HANDLE1";
        /// The second handle.
        InvalidHandle2 = 28, "DAT_INVALID_HANDLE2";
        /// The third handle.
        InvalidHandle3 = 29, "DAT_INVALID_HANDLE3";
        /// The fourth handle.
        InvalidHandle4 = 30, "DAT_INVALID_HANDLE4";
        /// The fifth handle.
        InvalidHandle5 = 31, "DAT_INVALID_HANDLE5";
        /// The sixth handle.
        InvalidHandle6 = 32, "DAT_INVALID_HANDLE6";
        /// The seventh handle.
        InvalidHandle7 = 33, "DAT_INVALID_HANDLE7";
        /// The eighth handle.
        InvalidHandle8 = 34, "DAT_INVALID_HANDLE8";
        /// The ninth handle.
        InvalidHandle9 = 35, "DAT_INVALID_HANDLE9";
        /// The tenth handle.
        InvalidHandle10 = 36, "DAT_INVALID_HANDLE10";

        /// The first argument.
        InvalidArg1 = 37, "DAT_INVALID_ARG1";
        /// The second argument.
        InvalidArg2 = 38, "DAT_INVALID_ARG2";
        /// The third argument.
        InvalidArg3 = 39, "DAT_INVALID_ARG3";
        /// The fourth argument.
        InvalidArg4 = 40, "DAT_INVALID_ARG4";
        /// The fifth argument.
        InvalidArg5 = 41, "DAT_INVALID_ARG5";
        /// The sixth argument.
        InvalidArg6 = 42, "DAT_INVALID_ARG6";
        /// The seventh argument.
        InvalidArg7 = 43, "DAT_INVALID_ARG7";
        /// The eighth argument.
        InvalidArg8 = 44, "DAT_INVALID_ARG8";
        /// The ninth argument.
        InvalidArg9 = 45, "DAT_INVALID_ARG9";
        /// The tenth argument.
        InvalidArg10 = 46, "DAT_INVALID_ARG10";

        /// The endpoint is unconnected.
        InvalidStateEpUnconnected = 47, "DAT_INVALID_STATE_EP_UNCONNECTED";
        /// The endpoint asked for a connection, and waits for the answer.
        InvalidStateEpActConnPending = 48, "DAT_INVALID_STATE_EP_ACTCONNPENDING";
        /// The endpoint has a connection request that is not answered yet.
        InvalidStateEpPassConnPending = 49, "DAT_INVALID_STATE_EP_PASSCONNPENDING";
        /// The provider made the endpoint for a connection request that is not answered yet.
        InvalidStateEpTentConnPending = 50, "DAT_INVALID_STATE_EP_TENTCONNPENDING";
        /// The endpoint is connected.
        InvalidStateEpConnected = 51, "DAT_INVALID_STATE_EP_CONNECTED";
        /// The endpoint is disconnected.
        InvalidStateEpDisconnected = 52, "DAT_INVALID_STATE_EP_DISCONNECTED";
        /// A reserved service point has the endpoint.
        InvalidStateEpReserved = 53, "DAT_INVALID_STATE_EP_RESERVED";
        /// The endpoint accepted a connection that is not established yet.
        InvalidStateEpComplPending = 54, "DAT_INVALID_STATE_EP_COMPLPENDING";
        /// The endpoint is about to disconnect.
        InvalidStateEpDiscPending = 55, "DAT_INVALID_STATE_EP_DISCPENDING";
        /// The provider has the endpoint.
        InvalidStateEpProviderControl = 56, "DAT_INVALID_STATE_EP_PROVIDERCONTROL";
        /// The endpoint lacks an attribute that the call needs.
        InvalidStateEpNotReady = 57, "DAT_INVALID_STATE_EP_NOTREADY";
        /// The receive watermarks of the endpoint.
        InvalidStateEpRecvWatermark = 58, "DAT_INVALID_STATE_EP_RECV_WATERMARK";
        /// The protection zone of the endpoint.
        InvalidStateEpPz = 59, "DAT_INVALID_STATE_EP_PZ";
        /// The EVD for completions of the endpoint's requests.
        InvalidStateEpEvdRequest = 60, "DAT_INVALID_STATE_EP_EVD_REQUEST";
        /// The EVD for completions of the endpoint's receives.
        InvalidStateEpEvdRecv = 61, "DAT_INVALID_STATE_EP_EVD_RECV";
        /// The EVD for connection events of the endpoint.
        InvalidStateEpEvdConnect = 62, "DAT_INVALID_STATE_EP_EVD_CONNECT";
        /// The endpoint is not configured.
        InvalidStateEpUnconfigured = 63, "DAT_INVALID_STATE_EP_UNCONFIGURED";
        /// The endpoint is not configured, and a reserved service point has it.
        InvalidStateEpUnconfReserved = 64, "DAT_INVALID_STATE_EP_UNCONFRESERVED";
        /// The endpoint is not configured, and has a connection request that is not answered yet.
        InvalidStateEpUnconfPassive = 65, "DAT_INVALID_STATE_EP_UNCONFPASSIVE";
        /// The endpoint is not configured, and the provider made it for a connection request.
        InvalidStateEpUnconfTentative = 66, "DAT_INVALID_STATE_EP_UNCONFTENTATIVE";
        /// The CNO is in use.
        InvalidStateCnoInUse = 67, "DAT_INVALID_STATE_CNO_IN_USE";
        /// The CNO is dead.
        InvalidStateCnoDead = 68, "DAT_INVALID_STATE_CNO_DEAD";
        /// The EVD is open.
        InvalidStateEvdOpen = 69, "DAT_INVALID_STATE_EVD_OPEN";
        /// The EVD is enabled.
        InvalidStateEvdEnabled = 70, "DAT_INVALID_STATE_EVD_ENABLED";
        /// The EVD is disabled.
        InvalidStateEvdDisabled = 71, "DAT_INVALID_STATE_EVD_DISABLED";
        /// The EVD is waitable.
        InvalidStateEvdWaitable = 72, "DAT_INVALID_STATE_EVD_WAITABLE";
        /// The EVD is unwaitable.
        InvalidStateEvdUnwaitable = 73, "DAT_INVALID_STATE_EVD_UNWAITABLE";
        /// The EVD is in use.
        InvalidStateEvdInUse = 74, "DAT_INVALID_STATE_EVD_IN_USE";
        /// Each event of the EVD notifies.
        InvalidStateEvdConfigNotify = 75, "DAT_INVALID_STATE_EVD_CONFIG_NOTIFY";
        /// Only solicited events of the EVD notify.
        InvalidStateEvdConfigSolicited = 76, "DAT_INVALID_STATE_EVD_CONFIG_SOLICITED";
        /// The threshold of the EVD notifies.
        InvalidStateEvdConfigThreshold = 77, "DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD";
        /// A thread waits on the EVD.
        InvalidStateEvdWaiter = 78, "DAT_INVALID_STATE_EVD_WAITER";
        /// An EVD for asynchronous events is required.
        InvalidStateEvdAsync = 79, "DAT_INVALID_STATE_EVD_ASYNC";
        /// The IA is in use.
        InvalidStateIaInUse = 80, "DAT_INVALID_STATE_IA_IN_USE";
        /// The LMR is in use.
        InvalidStateLmrInUse = 81, "DAT_INVALID_STATE_LMR_IN_USE";
        /// The LMR is free.
        InvalidStateLmrFree = 82, "DAT_INVALID_STATE_LMR_FREE";
        /// The protection zone is in use.
        InvalidStatePzInUse = 83, "DAT_INVALID_STATE_PZ_IN_USE";
        /// The protection zone is free.
        InvalidStatePzFree = 84, "DAT_INVALID_STATE_PZ_FREE";
        /// The shared receive queue is operational.
        InvalidStateSrqOperational = 85, "DAT_INVALID_STATE_SRQ_OPERATIONAL";
        /// The shared receive queue is in its error state.
        InvalidStateSrqError = 86, "DAT_INVALID_STATE_SRQ_ERROR";
        /// The shared receive queue is in use.
        InvalidStateSrqInUse = 87, "DAT_INVALID_STATE_SRQ_IN_USE";
        /// The shared receive queue is shut down.
        InvalidStateSrqShutdown = 88, "DAT_INVALID_STATE_SRQ_SHUTDOWN";

        /// Local read.
        PrivilegesRead = 89, "DAT_PRIVILEGES_READ";
        /// Local write.
        PrivilegesWrite = 90, "DAT_PRIVILEGES_WRITE";
        /// RDMA Read.
        PrivilegesRdmaRead = 91, "DAT_PRIVILEGES_RDMA_READ";
        /// RDMA Write.
        PrivilegesRdmaWrite = 92, "DAT_PRIVILEGES_RDMA_WRITE";
        /// Local read.
        ProtectionRead = 93, "DAT_PROTECTION_READ";
        /// Local write.
        ProtectionWrite = 94, "DAT_PROTECTION_WRITE";
        /// RDMA Read.
        ProtectionRdmaRead = 95, "DAT_PROTECTION_RDMA_READ";
        /// RDMA Write.
        ProtectionRdmaWrite = 96, "DAT_PROTECTION_RDMA_WRITE";

        /// The address is of a kind that DAT does not use, such as multicast.
        InvalidAddressUnsupported = 97, "DAT_INVALID_ADDRESS_UNSUPPORTED";
        /// No route leads to the address.
        InvalidAddressUnreachable = 98, "DAT_INVALID_ADDRESS_UNREACHABLE";
        /// The address is malformed.
        InvalidAddressMalformed = 99, "DAT_INVALID_ADDRESS_MALFORMED";

        /// No provider has the name.
        NameNotRegistered = 100, "DAT_NAME_NOT_REGISTERED";
        /// No provider of this name has the major version.
        MajorNotFound = 101, "DAT_MAJOR_NOT_FOUND";
        /// No provider of this name has the minor version.
        MinorNotFound = 102, "DAT_MINOR_NOT_FOUND";
        /// No provider of this name has the thread safety.
        ThreadSafetyNotFound = 103, "DAT_THREAD_SAFETY_NOT_FOUND";
    }
}

/// The error of a call that failed at once.
///
/// Two errors are equal when type and subtype are. Compare with an [`ErrorType`] to compare the
/// type only.
#[doc(alias = "DAT_RETURN")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error {
    kind: ErrorType,
    subtype: Subtype,
}

impl Error {
    /// The error of this type and subtype.
    #[doc(alias = "DAT_ERROR")]
    pub const fn new(kind: ErrorType, subtype: Subtype) -> Error {
        Error { kind, subtype }
    }

    /// The type.
    pub const fn kind(self) -> ErrorType {
        self.kind
    }

    /// The subtype.
    pub const fn subtype(self) -> Subtype {
        self.subtype
    }

    /// C's `DAT_RETURN`: the class of errors, the type and the subtype.
    pub const fn as_raw(self) -> u32 {
        CLASS_ERROR | self.kind as u32 | self.subtype as u32
    }

    /// The error of C's `DAT_RETURN`. None if the class is not that of errors, or the type or the
    /// subtype is unknown.
    pub const fn from_raw(raw: u32) -> Option<Error> {
        if raw & (CLASS_ERROR | CLASS_WARNING) != CLASS_ERROR {
            return None;
        }
        match (ErrorType::from_number(get_type(raw)), Subtype::from_number(get_subtype(raw))) {
            (Some(kind), Some(subtype)) => Some(Error { kind, subtype }),
            _ => None,
        }
    }
}

impl From<ErrorType> for Error {
    fn from(kind: ErrorType) -> Error {
        Error::new(kind, Subtype::None)
    }
}

impl PartialEq<ErrorType> for Error {
    fn eq(&self, kind: &ErrorType) -> bool {
        self.kind == *kind
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subtype {
            Subtype::None => self.kind.fmt(f),
            subtype => write!(f, "{:?}({subtype:?})", self.kind),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        clause(f, self.kind.text())?;
        match self.subtype {
            Subtype::None => write!(f, " ({})", self.kind.name()),
            subtype => {
                f.write_str(": ")?;
                clause(f, subtype.text())?;
                write!(f, " ({}, {})", self.kind.name(), subtype.name())
            }
        }
    }
}

impl core::error::Error for Error {}

/// Writes a sentence as a clause: without its full stop, and in lower case unless it starts with an
/// acronym.
fn clause(f: &mut fmt::Formatter<'_>, sentence: &str) -> fmt::Result {
    let text = sentence.strip_suffix('.').unwrap_or(sentence);
    match text.split_at_checked(1) {
        Some((first, rest)) if !rest.starts_with(|c: char| c.is_ascii_uppercase()) => {
            write!(f, "{}{rest}", first.as_bytes()[0].to_ascii_lowercase() as char)
        }
        _ => f.write_str(text),
    }
}

/// What every call returns.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// C's names of the type and of the subtype of a return value, with or without its class. Fails
/// with [`ErrorType::InvalidParameter`] if one of them is unknown.
#[doc(alias = "dat_strerror")]
pub fn strerror(value: u32) -> Result<(&'static str, &'static str)> {
    let major = match get_type(value) {
        SUCCESS => Some("DAT_SUCCESS"),
        number => ErrorType::from_number(number).map(ErrorType::name),
    };
    let minor = Subtype::from_number(get_subtype(value)).map(Subtype::name);
    major.zip(minor).ok_or(Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg1))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;
    use std::string::ToString;

    const BAD_VALUE: Error = Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg1);

    #[test]
    fn every_error_has_its_own_number() {
        for &kind in ErrorType::ALL {
            assert_eq!(get_type(kind as u32), kind as u32, "{kind:?} outside the type's bits");
            for &subtype in Subtype::ALL {
                let error = Error::new(kind, subtype);
                let raw = error.as_raw();
                assert_eq!(Error::from_raw(raw), Some(error));
                assert_eq!((get_type(raw), get_subtype(raw)), (kind as u32, subtype as u32));
                assert!(!is_warning(raw));
            }
        }
    }

    #[test]
    fn types_have_the_numbers_of_the_headers() {
        assert_eq!(ErrorType::Abort as u32, 0x0001_0000);
        assert_eq!(ErrorType::ProviderNotFound as u32, 0x000a_0000);
        assert_eq!(ErrorType::TimeoutExpired as u32, 0x000f_0000);
        assert_eq!(ErrorType::ConnQualUnavailable as u32, 0x0014_0000);
        assert_eq!(ErrorType::PortInUse as u32, 0x0016_0000);
        assert_eq!(ErrorType::CommNotSupported as u32, 0x0017_0000);
        assert_eq!(ErrorType::NotImplemented as u32, TYPE_MASK);
        assert_eq!(ErrorType::ALL.len(), 24);
    }

    #[test]
    fn subtypes_have_the_numbers_of_the_headers() {
        for (number, subtype) in Subtype::ALL.iter().enumerate() {
            assert_eq!(*subtype as usize, number, "{subtype:?}");
        }
        let bounds = [
            (Subtype::SubInterrupted, 1),
            (Subtype::ResourceMemory, 2),
            (Subtype::ResourceSrq, 10),
            (Subtype::InvalidHandleIa, 11),
            (Subtype::InvalidHandleCsp, 26),
            (Subtype::InvalidHandle1, 27),
            (Subtype::InvalidHandle10, 36),
            (Subtype::InvalidArg1, 37),
            (Subtype::InvalidArg10, 46),
            (Subtype::InvalidStateEpUnconnected, 47),
            (Subtype::InvalidStateEpUnconfTentative, 66),
            (Subtype::InvalidStateCnoInUse, 67),
            (Subtype::InvalidStateEvdOpen, 69),
            (Subtype::InvalidStateEvdAsync, 79),
            (Subtype::InvalidStateIaInUse, 80),
            (Subtype::InvalidStateSrqShutdown, 88),
            (Subtype::PrivilegesRead, 89),
            (Subtype::ProtectionRead, 93),
            (Subtype::InvalidAddressUnsupported, 97),
            (Subtype::NameNotRegistered, 100),
            (Subtype::ThreadSafetyNotFound, 103),
        ];
        for (subtype, number) in bounds {
            assert_eq!(subtype as u16, number, "{subtype:?}");
        }
    }

    /// `InvalidStateEpUnconnected` is `DAT_INVALID_STATE_EP_UNCONNECTED`.
    #[test]
    fn names_are_those_of_the_variants() {
        let plain = |name: &str| name.replace('_', "").to_uppercase();
        for kind in ErrorType::ALL {
            assert_eq!(plain(kind.name()), plain(&format!("Dat{kind:?}")));
        }
        for subtype in Subtype::ALL.iter().filter(|&&subtype| subtype != Subtype::None) {
            assert_eq!(plain(subtype.name()), plain(&format!("Dat{subtype:?}")));
        }
    }

    #[test]
    fn other_numbers_are_no_errors() {
        let raw = Error::from(ErrorType::QueueFull).as_raw();
        assert_eq!(Error::from_raw(raw & !CLASS_ERROR), None, "no class");
        assert_eq!(Error::from_raw(raw ^ CLASS_ERROR ^ CLASS_WARNING), None, "a warning");
        assert_eq!(Error::from_raw(raw | CLASS_WARNING), None, "both classes");
        assert_eq!(Error::from_raw(CLASS_ERROR), None, "no type");
        assert_eq!(Error::from_raw(CLASS_ERROR | 0x0015_0000), None, "a type of kDAPL");
        assert_eq!(Error::from_raw(raw | 104), None, "no such subtype");
        assert_eq!(Error::from_raw(raw).map(Error::kind), Some(ErrorType::QueueFull));
    }

    #[test]
    fn comparison_with_a_type_ignores_the_subtype() {
        let error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
        assert_eq!(error, ErrorType::InvalidHandle);
        assert_ne!(error, ErrorType::InvalidState);
        assert_ne!(error, Error::from(ErrorType::InvalidHandle));
    }

    #[test]
    fn texts_say_what_went_wrong() {
        let error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
        assert_eq!(format!("{error:?}"), "InvalidHandle(InvalidHandleEp)");
        assert_eq!(
            error.to_string(),
            "a handle is null, freed, foreign or of another type: the handle of the endpoint \
             (DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)"
        );
        let error = Error::from(ErrorType::QueueEmpty);
        assert_eq!(format!("{error:?}"), "QueueEmpty");
        assert_eq!(error.to_string(), "the queue is empty (DAT_QUEUE_EMPTY)");
        let error = Error::new(ErrorType::PrivilegesViolation, Subtype::PrivilegesRdmaRead);
        assert!(error.to_string().contains(": RDMA Read ("), "{error}");
    }

    #[test]
    fn strerror_names_type_and_subtype() {
        let error = Error::new(ErrorType::InvalidHandle, Subtype::InvalidHandleEp);
        let names = Ok(("DAT_INVALID_HANDLE", "DAT_INVALID_HANDLE_EP"));
        assert_eq!(strerror(error.as_raw()), names);
        assert_eq!(strerror(error.as_raw() & !CLASS_ERROR), names);
        assert_eq!(strerror(SUCCESS), Ok(("DAT_SUCCESS", "DAT_NO_SUBTYPE")));
        assert_eq!(strerror(0x9000_0000), Ok(("DAT_IB_ERR", "DAT_NO_SUBTYPE")));
    }

    #[test]
    fn strerror_of_an_unknown_value_fails() {
        for value in [0x0015_0000, 0x0018_0000, 0x3ffe_0000, 0x8001_0068, 104, u32::MAX] {
            assert_eq!(strerror(value), Err(BAD_VALUE), "{value:#x}");
        }
        assert_eq!(strerror(0x8001_0067), Ok(("DAT_ABORT", "DAT_THREAD_SAFETY_NOT_FOUND")));
    }
}
