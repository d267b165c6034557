//! Flags, enumerations and constants, with the numbers of uDAPL's headers.
//!
//! Undefined bits can be made with `from_bits_retain`; calls refuse them.

use bitflags::bitflags;

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

/// The method `as_raw` of enumerations with C's numbers.
macro_rules! as_raw {
    ($($name:ident),* $(,)?) => {$(
        impl $name {
            /// The number in C's headers.
            pub const fn as_raw(self) -> u32 {
                self as u32
            }
        }
    )*};
}
pub(crate) use as_raw;

bitflags! {
    /// How work requests complete: options of one, or attributes of an endpoint.
    #[doc(alias = "DAT_COMPLETION_FLAGS")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CompletionFlags: u32 {
        /// A request that succeeds makes no event.
        #[doc(alias = "DAT_COMPLETION_SUPPRESS_FLAG")]
        const SUPPRESS = 0x01;
        /// The peer decides whether the completion of its matching receive notifies.
        #[doc(alias = "DAT_COMPLETION_SOLICITED_WAIT_FLAG")]
        const SOLICITED_WAIT = 0x02;
        /// The event does not notify.
        #[doc(alias = "DAT_COMPLETION_UNSIGNALLED_FLAG")]
        const UNSIGNALLED = 0x04;
        /// The request does not start before earlier RDMA Reads are complete.
        #[doc(alias = "DAT_COMPLETION_BARRIER_FENCE_FLAG")]
        const BARRIER_FENCE = 0x08;
        /// Only as an attribute of an endpoint: the threshold of a wait decides when completions
        /// notify.
        #[doc(alias = "DAT_COMPLETION_EVD_THRESHOLD_FLAG")]
        const EVD_THRESHOLD = 0x10;
    }
}

impl CompletionFlags {
    /// Each completion makes an event, and each event notifies.
    #[doc(alias = "DAT_COMPLETION_DEFAULT_FLAG")]
    pub const DEFAULT: CompletionFlags = CompletionFlags::empty();
}

bitflags! {
    /// Which event streams may feed an EVD.
    #[doc(alias = "DAT_EVD_FLAGS")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EvdFlags: u32 {
        /// Software events.
        #[doc(alias = "DAT_EVD_SOFTWARE_FLAG")]
        const SOFTWARE = 0x001;
        /// Connection requests.
        #[doc(alias = "DAT_EVD_CR_FLAG")]
        const CR = 0x010;
        /// Completions of data transfers.
        #[doc(alias = "DAT_EVD_DTO_FLAG")]
        const DTO = 0x020;
        /// Connection events.
        #[doc(alias = "DAT_EVD_CONNECTION_FLAG")]
        const CONNECTION = 0x040;
        /// Completions of RMR binds.
        #[doc(alias = "DAT_EVD_RMR_BIND_FLAG")]
        const RMR_BIND = 0x080;
        /// Asynchronous events.
        #[doc(alias = "DAT_EVD_ASYNC_FLAG")]
        const ASYNC = 0x100;
        /// All streams but software events.
        #[doc(alias = "DAT_EVD_DEFAULT_FLAG")]
        const DEFAULT = 0x1f0;
        /// Events of the InfiniBand extensions.
        #[doc(alias = "DAT_IB_EVD_EXTENSION_FLAG")]
        #[doc(alias = "DAT_EVD_EXTENSION_BASE")]
        const IB_EXTENSION = 0x200;
    }
}

impl Default for EvdFlags {
    fn default() -> EvdFlags {
        EvdFlags::DEFAULT
    }
}

bitflags! {
    /// State of an EVD: one of enabled and disabled, one of waitable and unwaitable, and what
    /// notifies.
    ///
    /// What notifies is a field of two bits, [`EvdState::CONFIG_THRESHOLD`]; take it out with `&`
    /// before comparing it.
    #[doc(alias = "DAT_EVD_STATE")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EvdState: u32 {
        /// Events notify the CNO.
        #[doc(alias = "DAT_EVD_STATE_ENABLED")]
        const ENABLED = 0x01;
        /// Events do not notify the CNO.
        #[doc(alias = "DAT_EVD_STATE_DISABLED")]
        const DISABLED = 0x02;
        /// A thread can wait on it.
        #[doc(alias = "DAT_EVD_STATE_WAITABLE")]
        const WAITABLE = 0x04;
        /// No thread can wait on it.
        #[doc(alias = "DAT_EVD_STATE_UNWAITABLE")]
        const UNWAITABLE = 0x08;
        /// Each event notifies unless its request was unsignalled.
        #[doc(alias = "DAT_EVD_STATE_CONFIG_NOTIFY")]
        const CONFIG_NOTIFY = 0x10;
        /// Only solicited events notify.
        #[doc(alias = "DAT_EVD_STATE_CONFIG_SOLICITED")]
        const CONFIG_SOLICITED = 0x20;
        /// The threshold of the wait notifies.
        #[doc(alias = "DAT_EVD_STATE_CONFIG_THRESHOLD")]
        const CONFIG_THRESHOLD = 0x30;
    }
}

bitflags! {
    /// Privileges on a region.
    #[doc(alias = "DAT_MEM_PRIV_FLAGS")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MemPriv: u32 {
        /// Source of local sends and RDMA Writes.
        #[doc(alias = "DAT_MEM_PRIV_LOCAL_READ_FLAG")]
        const LOCAL_READ = 0x01;
        /// Source of incoming RDMA Reads.
        #[doc(alias = "DAT_MEM_PRIV_REMOTE_READ_FLAG")]
        const REMOTE_READ = 0x02;
        /// Sink of local receives and RDMA Reads.
        #[doc(alias = "DAT_MEM_PRIV_LOCAL_WRITE_FLAG")]
        const LOCAL_WRITE = 0x10;
        /// Sink of incoming RDMA Writes.
        #[doc(alias = "DAT_MEM_PRIV_REMOTE_WRITE_FLAG")]
        const REMOTE_WRITE = 0x20;
        /// All of these, without atomic operations.
        #[doc(alias = "DAT_MEM_PRIV_ALL_FLAG")]
        const ALL = 0x33;
        /// Target of incoming atomic operations.
        #[doc(alias = "DAT_IB_MEM_PRIV_REMOTE_ATOMIC")]
        #[doc(alias = "DAT_MEM_PRIV_EXTENSION_BASE")]
        const IB_REMOTE_ATOMIC = 0x40;
    }
}

impl MemPriv {
    /// No privileges.
    #[doc(alias = "DAT_MEM_PRIV_NONE_FLAG")]
    pub const NONE: MemPriv = MemPriv::empty();
}

bitflags! {
    /// Quality of service.
    #[doc(alias = "DAT_QOS")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Qos: u32 {
        /// High throughput.
        #[doc(alias = "DAT_QOS_HIGH_THROUGHPUT")]
        const HIGH_THROUGHPUT = 0x01;
        /// Low latency.
        #[doc(alias = "DAT_QOS_LOW_LATENCY")]
        const LOW_LATENCY = 0x02;
        /// Neither low latency nor high throughput.
        #[doc(alias = "DAT_QOS_ECONOMY")]
        const ECONOMY = 0x04;
        /// Both low latency and high throughput.
        #[doc(alias = "DAT_QOS_PREMIUM")]
        const PREMIUM = 0x08;
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

/// What a region is made of.
#[doc(alias = "DAT_MEM_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum MemType {
    /// Virtual memory of the consumer.
    #[default]
    #[doc(alias = "DAT_MEM_TYPE_VIRTUAL")]
    Virtual = 0x00,
    /// The memory of another region.
    #[doc(alias = "DAT_MEM_TYPE_LMR")]
    Lmr = 0x01,
    /// Virtual memory that consumers share, and register once.
    #[doc(alias = "DAT_MEM_TYPE_SHARED_VIRTUAL")]
    SharedVirtual = 0x02,
}

/// How requests address a region.
#[doc(alias = "DAT_VA_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum VaType {
    /// By virtual address.
    #[default]
    #[doc(alias = "DAT_VA_TYPE_VA")]
    Va = 0,
    /// By offset: the first byte has the address 0.
    #[doc(alias = "DAT_VA_TYPE_ZB")]
    Zb = 1,
}

/// How an IA is closed, or an endpoint disconnected.
#[doc(alias = "DAT_CLOSE_FLAGS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum CloseFlags {
    /// At once: the IA's objects are freed, and requests in progress are flushed.
    #[default]
    #[doc(alias = "DAT_CLOSE_ABRUPT_FLAG")]
    #[doc(alias = "DAT_CLOSE_DEFAULT")]
    Abrupt = 0,
    /// For an IA: only if it has no objects. For an endpoint: when its requests are complete.
    #[doc(alias = "DAT_CLOSE_GRACEFUL_FLAG")]
    Graceful = 1,
}

/// Paths of a connection.
#[doc(alias = "DAT_CONNECT_FLAGS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ConnectFlags {
    /// One path.
    #[default]
    #[doc(alias = "DAT_CONNECT_DEFAULT_FLAG")]
    Default = 0,
    /// Several paths if possible.
    #[doc(alias = "DAT_CONNECT_MULTIPATH_REQUESTED_FLAG")]
    #[doc(alias = "DAT_CONNECT_MULTIPATH_FLAG")]
    MultipathRequested = 1,
    /// Several paths.
    #[doc(alias = "DAT_CONNECT_MULTIPATH_REQUIRED_FLAG")]
    MultipathRequired = 2,
}

/// Who creates the endpoints of a public service point.
#[doc(alias = "DAT_PSP_FLAGS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum PspFlags {
    /// The consumer, before it accepts.
    #[default]
    #[doc(alias = "DAT_PSP_CONSUMER_FLAG")]
    Consumer = 0,
    /// The provider, before the event of the connection request.
    #[doc(alias = "DAT_PSP_PROVIDER_FLAG")]
    Provider = 1,
}

/// State of an endpoint.
#[doc(alias = "DAT_EP_STATE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum EpState {
    /// Neither connected nor establishing a connection.
    #[default]
    #[doc(alias = "DAT_EP_STATE_UNCONNECTED")]
    Unconnected = 0,
    /// Unconnected, and not configured.
    #[doc(alias = "DAT_EP_STATE_UNCONFIGURED_UNCONNECTED")]
    UnconfiguredUnconnected = 1,
    /// A reserved service point has it.
    #[doc(alias = "DAT_EP_STATE_RESERVED")]
    Reserved = 2,
    /// Reserved, and not configured.
    #[doc(alias = "DAT_EP_STATE_UNCONFIGURED_RESERVED")]
    UnconfiguredReserved = 3,
    /// A connection request came to its reserved service point.
    #[doc(alias = "DAT_EP_STATE_PASSIVE_CONNECTION_PENDING")]
    PassiveConnectionPending = 4,
    /// Passive connection pending, and not configured.
    #[doc(alias = "DAT_EP_STATE_UNCONFIGURED_PASSIVE")]
    UnconfiguredPassive = 5,
    /// It asked for a connection.
    #[doc(alias = "DAT_EP_STATE_ACTIVE_CONNECTION_PENDING")]
    ActiveConnectionPending = 6,
    /// The provider made it for a connection request.
    #[doc(alias = "DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING")]
    TentativeConnectionPending = 7,
    /// Tentative connection pending, and not configured.
    #[doc(alias = "DAT_EP_STATE_UNCONFIGURED_TENTATIVE")]
    UnconfiguredTentative = 8,
    /// Connected.
    #[doc(alias = "DAT_EP_STATE_CONNECTED")]
    Connected = 9,
    /// The endpoint disconnects when its requests are complete.
    #[doc(alias = "DAT_EP_STATE_DISCONNECT_PENDING")]
    DisconnectPending = 10,
    /// No longer connected: all requests are flushed.
    #[doc(alias = "DAT_EP_STATE_DISCONNECTED")]
    #[doc(alias = "DAT_EP_STATE_ERROR")]
    Disconnected = 11,
    /// The endpoint accepted a request, and waits until the connection is established.
    #[doc(alias = "DAT_EP_STATE_COMPLETION_PENDING")]
    CompletionPending = 12,
    /// Connected by one path of several.
    #[doc(alias = "DAT_EP_STATE_CONNECTED_SINGLE_PATH")]
    ConnectedSinglePath = 13,
    /// Connected by several paths.
    #[doc(alias = "DAT_EP_STATE_CONNECTED_MULTI_PATH")]
    ConnectedMultiPath = 14,
}

/// State of a shared receive queue.
#[doc(alias = "DAT_SRQ_STATE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum SrqState {
    /// Failed: endpoints get no buffers from it.
    #[doc(alias = "DAT_SRQ_STATE_ERROR")]
    Error = 0,
    /// Endpoints get buffers from it.
    #[default]
    #[doc(alias = "DAT_SRQ_STATE_OPERATIONAL")]
    Operational = 1,
    /// Shut down: no endpoint can be created on it.
    #[doc(alias = "DAT_SRQ_STATE_SHUTDOWN")]
    Shutdown = 2,
}

/// What a CNO does when an EVD notifies it, besides waking a waiter.
#[doc(alias = "DAT_PROXY_TYPE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum CnoProxyType {
    /// Nothing.
    #[default]
    #[doc(alias = "DAT_PROXY_TYPE_NONE")]
    None = 0,
    /// It calls its agent.
    #[doc(alias = "DAT_PROXY_TYPE_AGENT")]
    Agent = 1,
    /// Its file descriptor becomes readable.
    #[doc(alias = "DAT_PROXY_TYPE_FD")]
    Fd = 2,
}

/// Which extensions an IA has.
#[doc(alias = "DAT_EXTENSION")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum ExtensionAttr {
    /// None.
    #[default]
    #[doc(alias = "DAT_EXTENSION_NONE")]
    None = 0,
    /// The InfiniBand extensions.
    #[doc(alias = "DAT_EXTENSION_IB")]
    Ib = 1,
    /// The iWARP extensions.
    #[doc(alias = "DAT_EXTENSION_IW")]
    Iw = 2,
}

as_raw! {
    MemType, VaType, CloseFlags, ConnectFlags, PspFlags, EpState, SrqState, CnoProxyType,
    ExtensionAttr,
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
