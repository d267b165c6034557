//! Who is who: the kinds and the identifiers of controllers, and the names of hosts.

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It tells hosts which subsystems there are.
    Discovery,
    /// It carries out I/O commands.
    Io,
}

/// The identifier of a controller: from 1 to 0xffef. It leads to the controller's slot, and an
/// identifier that a controller had is not given to the next one in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ControllerId(pub(crate) u16);

/// Who a host says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostIdentity {
    pub(crate) id: [u8; 16],
    pub(crate) nqn: heapless::String<256>,
}

/// A host, by its name. Two hosts with the same number wait for each other's requests, which does
/// no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostNumber(u64);

impl HostNumber {
    pub(crate) fn of(nqn: &str) -> HostNumber {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        HostNumber(nqn.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }
}
