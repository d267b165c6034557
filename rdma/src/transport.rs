//! What differs between the transports of connections.

use kernel_agent::{Features, Handshake, LinkFlags, QpType, Transports};

use crate::error::CreateError;

/// How the connections of an opening are made, and what their packets are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand's, over Ethernet as RoCEv2: reliable connections, datagrams, immediate data and
    /// atomic operations.
    #[default]
    InfiniBand,
    /// iWARP: reliable connections over TCP (RFC 5040). A service is a TCP port. It has no
    /// datagrams, no immediate data and no atomic operations. Success of a Send or an RDMA Write
    /// says that the peer will get it unless the connection breaks; what a peer refuses breaks the
    /// connection afterwards.
    Iwarp,
}

impl Transport {
    /// What the device has to be able to do.
    const fn features(self) -> Features {
        match self {
            Transport::InfiniBand => Features::RC,
            Transport::Iwarp => Features::IWARP,
        }
    }

    /// Fails unless the device has it.
    pub(crate) fn check(self, features: u64) -> Result<(), CreateError> {
        match Features::from_bits_truncate(features).contains(self.features()) {
            true => Ok(()),
            false => Err(CreateError::Unsupported("this transport")),
        }
    }

    /// The type of queue pair of a connection.
    pub(crate) const fn queue_pair(self) -> QpType {
        match self {
            Transport::InfiniBand => QpType::Rc,
            Transport::Iwarp => QpType::Iwarp,
        }
    }

    /// What a listener asks the agent for.
    pub(crate) const fn listens(self) -> Transports {
        match self {
            Transport::InfiniBand => Transports::RC,
            Transport::Iwarp => Transports::IWARP,
        }
    }

    /// How a connection is made.
    pub(crate) const fn handshake(self) -> Handshake {
        match self {
            Transport::InfiniBand => Handshake::ThreeWay,
            Transport::Iwarp => Handshake::TwoWay,
        }
    }

    /// The rights that a connection may give its peer.
    pub(crate) const fn rights(self) -> LinkFlags {
        let both = LinkFlags::REMOTE_READ.union(LinkFlags::REMOTE_WRITE);
        match self {
            Transport::InfiniBand => both.union(LinkFlags::REMOTE_ATOMIC),
            Transport::Iwarp => both,
        }
    }

    /// Fails if it has no datagrams.
    pub(crate) fn has_datagrams(self) -> Result<(), CreateError> {
        match self {
            Transport::InfiniBand => Ok(()),
            Transport::Iwarp => Err(CreateError::Unsupported("datagrams")),
        }
    }

    /// Whether it has atomic operations and immediate data.
    pub(crate) const fn has_extensions(self) -> bool {
        matches!(self, Transport::InfiniBand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_it_is_refused() {
        let lacks = (Features::all() - Features::IWARP).bits();
        assert_eq!(Transport::InfiniBand.check(lacks), Ok(()));
        assert!(Transport::Iwarp.check(lacks).is_err());
        assert_eq!(Transport::Iwarp.check(Features::all().bits()), Ok(()));
    }
}
