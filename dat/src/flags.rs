//! Flags, enumerations and constants, with the numbers of uDAPL's headers.
//!
//! Undefined bits can be made with `from_bits_retain`; calls refuse them.

/// A timeout that never expires. Timeouts are in microseconds.
#[doc(alias = "DAT_TIMEOUT_INFINITE")]
pub const TIMEOUT_INFINITE: u32 = !0;
/// A watermark that is never reached.
#[doc(alias = "DAT_WATERMARK_INFINITE")]
#[doc(alias = "DAT_HW_DEFAULT")]
pub const WATERMARK_INFINITE: i32 = -1;
/// A number that the provider does not know.
#[doc(alias = "DAT_VALUE_UNKNOWN")]
pub const VALUE_UNKNOWN: i32 = -2;
/// The low watermark of a shared receive queue that reports nothing.
#[doc(alias = "DAT_SRQ_LW_DEFAULT")]
pub const SRQ_LW_DEFAULT: i32 = 0;
/// Bytes of a name in C's structures.
#[doc(alias = "DAT_NAME_MAX_LENGTH")]
pub const NAME_MAX_LENGTH: usize = 256;

rdma::flags! {
    /// How work requests complete: options of one, or attributes of an endpoint.
    #[doc(alias = "DAT_COMPLETION_FLAGS")]
    #[derive(Default)]
    pub struct CompletionFlags: u32 {
        /// A request that succeeds makes no event.
        SUPPRESS = 0x01, "DAT_COMPLETION_SUPPRESS_FLAG";
        /// The peer decides whether the completion of its matching receive notifies.
        SOLICITED_WAIT = 0x02, "DAT_COMPLETION_SOLICITED_WAIT_FLAG";
        /// The event does not notify.
        UNSIGNALLED = 0x04, "DAT_COMPLETION_UNSIGNALLED_FLAG";
        /// The request does not start before earlier RDMA Reads are complete.
        BARRIER_FENCE = 0x08, "DAT_COMPLETION_BARRIER_FENCE_FLAG";
        /// Only as an attribute of an endpoint: the threshold of a wait decides when completions
        /// notify.
        EVD_THRESHOLD = 0x10, "DAT_COMPLETION_EVD_THRESHOLD_FLAG";
    }
}

impl CompletionFlags {
    /// Each completion makes an event, and each event notifies.
    #[doc(alias = "DAT_COMPLETION_DEFAULT_FLAG")]
    pub const DEFAULT: CompletionFlags = CompletionFlags::empty();
}

rdma::flags! {
    /// Which event streams may feed an EVD.
    #[doc(alias = "DAT_EVD_FLAGS")]
    pub struct EvdFlags: u32 {
        /// Software events.
        SOFTWARE = 0x001, "DAT_EVD_SOFTWARE_FLAG";
        /// Connection requests.
        CR = 0x010, "DAT_EVD_CR_FLAG";
        /// Completions of data transfers.
        DTO = 0x020, "DAT_EVD_DTO_FLAG";
        /// Connection events.
        CONNECTION = 0x040, "DAT_EVD_CONNECTION_FLAG";
        /// Completions of RMR binds.
        RMR_BIND = 0x080, "DAT_EVD_RMR_BIND_FLAG";
        /// Asynchronous events.
        ASYNC = 0x100, "DAT_EVD_ASYNC_FLAG";
        /// All streams but software events.
        DEFAULT = 0x1f0, "DAT_EVD_DEFAULT_FLAG";
        /// Events of the InfiniBand extensions.
        IB_EXTENSION = 0x200, "DAT_IB_EVD_EXTENSION_FLAG" or "DAT_EVD_EXTENSION_BASE";
    }
}

impl Default for EvdFlags {
    fn default() -> EvdFlags {
        EvdFlags::DEFAULT
    }
}

rdma::flags! {
    /// State of an EVD: one of enabled and disabled, one of waitable and unwaitable, and what
    /// notifies.
    ///
    /// What notifies is a field of two bits, [`EvdState::CONFIG_THRESHOLD`]; take it out with `&`
    /// before comparing it.
    #[doc(alias = "DAT_EVD_STATE")]
    #[derive(Default)]
    pub struct EvdState: u32 {
        /// Events notify the CNO.
        ENABLED = 0x01, "DAT_EVD_STATE_ENABLED";
        /// Events do not notify the CNO.
        DISABLED = 0x02, "DAT_EVD_STATE_DISABLED";
        /// A thread can wait on it.
        WAITABLE = 0x04, "DAT_EVD_STATE_WAITABLE";
        /// No thread can wait on it.
        UNWAITABLE = 0x08, "DAT_EVD_STATE_UNWAITABLE";
        /// Each event notifies unless its request was unsignalled.
        CONFIG_NOTIFY = 0x10, "DAT_EVD_STATE_CONFIG_NOTIFY";
        /// Only solicited events notify.
        CONFIG_SOLICITED = 0x20, "DAT_EVD_STATE_CONFIG_SOLICITED";
        /// The threshold of the wait notifies.
        CONFIG_THRESHOLD = 0x30, "DAT_EVD_STATE_CONFIG_THRESHOLD";
    }

    /// Privileges on a region.
    #[doc(alias = "DAT_MEM_PRIV_FLAGS")]
    #[derive(Default)]
    pub struct MemPriv: u32 {
        /// Source of local sends and RDMA Writes.
        LOCAL_READ = 0x01, "DAT_MEM_PRIV_LOCAL_READ_FLAG";
        /// Source of incoming RDMA Reads.
        REMOTE_READ = 0x02, "DAT_MEM_PRIV_REMOTE_READ_FLAG";
        /// Sink of local receives and RDMA Reads.
        LOCAL_WRITE = 0x10, "DAT_MEM_PRIV_LOCAL_WRITE_FLAG";
        /// Sink of incoming RDMA Writes.
        REMOTE_WRITE = 0x20, "DAT_MEM_PRIV_REMOTE_WRITE_FLAG";
        /// All of these, without atomic operations.
        ALL = 0x33, "DAT_MEM_PRIV_ALL_FLAG";
        /// Target of incoming atomic operations.
        IB_REMOTE_ATOMIC = 0x40, "DAT_IB_MEM_PRIV_REMOTE_ATOMIC" or "DAT_MEM_PRIV_EXTENSION_BASE";
    }
}

impl MemPriv {
    /// No privileges.
    #[doc(alias = "DAT_MEM_PRIV_NONE_FLAG")]
    pub const NONE: MemPriv = MemPriv::empty();
}

rdma::flags! {
    /// Quality of service.
    #[doc(alias = "DAT_QOS")]
    #[derive(Default)]
    pub struct Qos: u32 {
        /// High throughput.
        HIGH_THROUGHPUT = 0x01, "DAT_QOS_HIGH_THROUGHPUT";
        /// Low latency.
        LOW_LATENCY = 0x02, "DAT_QOS_LOW_LATENCY";
        /// Neither low latency nor high throughput.
        ECONOMY = 0x04, "DAT_QOS_ECONOMY";
        /// Both low latency and high throughput.
        PREMIUM = 0x08, "DAT_QOS_PREMIUM";
    }
}

impl Qos {
    /// What the fabric gives to everyone.
    #[doc(alias = "DAT_QOS_BEST_EFFORT")]
    pub const BEST_EFFORT: Qos = Qos::empty();
}

/// The service of an endpoint. Extensions can add others.
#[doc(alias = "DAT_SERVICE_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ServiceType(pub u32);

impl ServiceType {
    /// Reliable connections.
    #[doc(alias = "DAT_SERVICE_TYPE_RC")]
    pub const RC: ServiceType = ServiceType(0);
    /// Unreliable datagrams of the InfiniBand extensions.
    #[doc(alias = "DAT_IB_SERVICE_TYPE_UD")]
    #[doc(alias = "DAT_SERVICE_TYPE_EXTENSION_BASE")]
    pub const IB_UD: ServiceType = ServiceType(1);

    /// The number in C's headers.
    pub const fn as_raw(self) -> u32 {
        self.0
    }
}

rdma::enumeration! {
    /// What a region is made of.
    #[doc(alias = "DAT_MEM_TYPE")]
    #[derive(Default)]
    pub enum MemType: u32 {
        /// Virtual memory of the consumer.
        #[default]
        Virtual = 0x00, "DAT_MEM_TYPE_VIRTUAL";
        /// The memory of another region.
        Lmr = 0x01, "DAT_MEM_TYPE_LMR";
        /// Virtual memory that consumers share, and register once.
        SharedVirtual = 0x02, "DAT_MEM_TYPE_SHARED_VIRTUAL";
    }
}

rdma::enumeration! {
    /// How requests address a region.
    #[doc(alias = "DAT_VA_TYPE")]
    #[derive(Default)]
    pub enum VaType: u32 {
        /// By virtual address.
        #[default]
        Va = 0, "DAT_VA_TYPE_VA";
        /// By offset: the first byte has the address 0.
        Zb = 1, "DAT_VA_TYPE_ZB";
    }
}

rdma::enumeration! {
    /// How an IA is closed, or an endpoint disconnected.
    #[doc(alias = "DAT_CLOSE_FLAGS")]
    #[derive(Default)]
    pub enum CloseFlags: u32 {
        /// At once: the IA's objects are freed, and requests in progress are flushed.
        #[default]
        Abrupt = 0, "DAT_CLOSE_ABRUPT_FLAG" or "DAT_CLOSE_DEFAULT";
        /// For an IA: only if it has no objects. For an endpoint: when its requests are complete.
        Graceful = 1, "DAT_CLOSE_GRACEFUL_FLAG";
    }
}

rdma::enumeration! {
    /// Paths of a connection.
    #[doc(alias = "DAT_CONNECT_FLAGS")]
    #[derive(Default)]
    pub enum ConnectFlags: u32 {
        /// One path.
        #[default]
        Default = 0, "DAT_CONNECT_DEFAULT_FLAG";
        /// Several paths if possible.
        MultipathRequested = 1, "DAT_CONNECT_MULTIPATH_REQUESTED_FLAG" or "DAT_CONNECT_MULTIPATH_FLAG";
        /// Several paths.
        MultipathRequired = 2, "DAT_CONNECT_MULTIPATH_REQUIRED_FLAG";
    }
}

rdma::enumeration! {
    /// Who creates the endpoints of a public service point.
    #[doc(alias = "DAT_PSP_FLAGS")]
    #[derive(Default)]
    pub enum PspFlags: u32 {
        /// The consumer, before it accepts.
        #[default]
        Consumer = 0, "DAT_PSP_CONSUMER_FLAG";
        /// The provider, before the event of the connection request.
        Provider = 1, "DAT_PSP_PROVIDER_FLAG";
    }
}

rdma::enumeration! {
    /// State of an endpoint.
    #[doc(alias = "DAT_EP_STATE")]
    #[derive(Default)]
    pub enum EpState: u32 {
        /// Neither connected nor establishing a connection.
        #[default]
        Unconnected = 0, "DAT_EP_STATE_UNCONNECTED";
        /// Unconnected, and not configured.
        UnconfiguredUnconnected = 1, "DAT_EP_STATE_UNCONFIGURED_UNCONNECTED";
        /// A reserved service point has it.
        Reserved = 2, "DAT_EP_STATE_RESERVED";
        /// Reserved, and not configured.
        UnconfiguredReserved = 3, "DAT_EP_STATE_UNCONFIGURED_RESERVED";
        /// A connection request came to its reserved service point.
        PassiveConnectionPending = 4, "DAT_EP_STATE_PASSIVE_CONNECTION_PENDING";
        /// Passive connection pending, and not configured.
        UnconfiguredPassive = 5, "DAT_EP_STATE_UNCONFIGURED_PASSIVE";
        /// It asked for a connection.
        ActiveConnectionPending = 6, "DAT_EP_STATE_ACTIVE_CONNECTION_PENDING";
        /// The provider made it for a connection request.
        TentativeConnectionPending = 7, "DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING";
        /// Tentative connection pending, and not configured.
        UnconfiguredTentative = 8, "DAT_EP_STATE_UNCONFIGURED_TENTATIVE";
        /// Connected.
        Connected = 9, "DAT_EP_STATE_CONNECTED";
        /// The endpoint disconnects when its requests are complete.
        DisconnectPending = 10, "DAT_EP_STATE_DISCONNECT_PENDING";
        /// No longer connected: all requests are flushed.
        Disconnected = 11, "DAT_EP_STATE_DISCONNECTED" or "DAT_EP_STATE_ERROR";
        /// The endpoint accepted a request, and waits until the connection is established.
        CompletionPending = 12, "DAT_EP_STATE_COMPLETION_PENDING";
        /// Connected by one path of several.
        ConnectedSinglePath = 13, "DAT_EP_STATE_CONNECTED_SINGLE_PATH";
        /// Connected by several paths.
        ConnectedMultiPath = 14, "DAT_EP_STATE_CONNECTED_MULTI_PATH";
    }
}

rdma::enumeration! {
    /// State of a shared receive queue.
    #[doc(alias = "DAT_SRQ_STATE")]
    #[derive(Default)]
    pub enum SrqState: u32 {
        /// Failed: endpoints get no buffers from it.
        Error = 0, "DAT_SRQ_STATE_ERROR";
        /// Endpoints get buffers from it.
        #[default]
        Operational = 1, "DAT_SRQ_STATE_OPERATIONAL";
        /// Shut down: no endpoint can be created on it.
        Shutdown = 2, "DAT_SRQ_STATE_SHUTDOWN";
    }
}

rdma::enumeration! {
    /// What a CNO does when an EVD notifies it, besides waking a waiter.
    #[doc(alias = "DAT_PROXY_TYPE")]
    #[derive(Default)]
    pub enum CnoProxyType: u32 {
        /// Nothing.
        #[default]
        None = 0, "DAT_PROXY_TYPE_NONE";
        /// It calls its agent.
        Agent = 1, "DAT_PROXY_TYPE_AGENT";
        /// Its file descriptor becomes readable.
        Fd = 2, "DAT_PROXY_TYPE_FD";
    }
}

rdma::enumeration! {
    /// Which extensions an IA has.
    #[doc(alias = "DAT_EXTENSION")]
    #[derive(Default)]
    pub enum ExtensionAttr: u32 {
        /// None.
        #[default]
        None = 0, "DAT_EXTENSION_NONE";
        /// The InfiniBand extensions.
        Ib = 1, "DAT_EXTENSION_IB";
        /// The iWARP extensions.
        Iw = 2, "DAT_EXTENSION_IW";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_flags_are_those_of_the_headers() {
        assert_eq!(MemPriv::ALL.bits(), 0x33);
        assert_eq!(MemPriv::all().bits(), 0x73);
        assert!(!MemPriv::ALL.contains(MemPriv::IB_REMOTE_ATOMIC));
        assert_eq!(EvdFlags::default().bits(), 0x1f0);
        assert_eq!(EvdFlags::all().bits(), 0x3f1);
        assert_eq!(CompletionFlags::all().bits(), 0x1f);
        assert_eq!(CompletionFlags::default(), CompletionFlags::DEFAULT);
        assert_eq!(Qos::all().bits(), 0x0f);
        assert_eq!(Qos::default(), Qos::BEST_EFFORT);
    }

    #[test]
    fn what_notifies_is_a_field_of_two_bits() {
        let notify = EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_NOTIFY;
        assert_eq!(notify.bits(), 0x15);
        assert_eq!(notify & EvdState::CONFIG_THRESHOLD, EvdState::CONFIG_NOTIFY);
        let both = EvdState::CONFIG_NOTIFY | EvdState::CONFIG_SOLICITED;
        assert_eq!(both, EvdState::CONFIG_THRESHOLD);
    }

    #[test]
    fn enumerations_have_the_numbers_of_the_headers() {
        assert_eq!(EpState::default().as_raw(), 0);
        assert_eq!(EpState::ActiveConnectionPending.as_raw(), 6);
        assert_eq!(EpState::Connected.as_raw(), 9);
        assert_eq!(EpState::ConnectedMultiPath.as_raw(), 14);
        assert_eq!(SrqState::Operational.as_raw(), 1);
        assert_eq!(CloseFlags::default().as_raw(), 0);
        assert_eq!(ServiceType::default(), ServiceType::RC);
        assert_eq!(ServiceType::IB_UD.as_raw(), 1);
        assert_eq!((WATERMARK_INFINITE as u32, VALUE_UNKNOWN as u32), (!0, !0 - 1));
    }
}
