//! What can be connected: queue pairs and virtual interfaces.

use alloc::sync::Arc;

use nic_abi::admin::QpState;
use roce::Qpn;
use roce::transport::Service;

use crate::cm::Moves;
use crate::connections::Connected;
use crate::qp_common::Common;
use crate::{Client, Error, Qp, QpType, Vi};

/// What can be connected.
#[derive(Clone)]
pub enum Connectable {
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A virtual interface.
    Vi(Arc<Vi>),
}

impl From<&Arc<Qp>> for Connectable {
    fn from(qp: &Arc<Qp>) -> Connectable {
        Connectable::Qp(qp.clone())
    }
}

impl From<&Arc<Vi>> for Connectable {
    fn from(vi: &Arc<Vi>) -> Connectable {
        Connectable::Vi(vi.clone())
    }
}

impl Connectable {
    pub(crate) fn client(&self) -> &Arc<Client> {
        match self {
            Connectable::Qp(qp) => qp.client(),
            Connectable::Vi(vi) => vi.client(),
        }
    }

    /// The type of queue pair, as far as it decides how connections are made: a virtual interface
    /// is connected as one of InfiniBand.
    pub(crate) fn qp_type(&self) -> QpType {
        match self {
            Connectable::Qp(qp) => qp.kind,
            Connectable::Vi(_) => QpType::Rc,
        }
    }

    pub(crate) fn common(&self) -> &Common {
        match self {
            Connectable::Qp(qp) => &qp.common,
            Connectable::Vi(vi) => vi.common(),
        }
    }

    /// The number and the transport service, if it can be connected now: under the lock of the
    /// connections' tables. One that the client moves can be in any state.
    pub(crate) fn ready(&self, client: &Client, moves: Moves) -> Result<(Qpn, Service), Error> {
        self.is_alive(client)?;
        let (number, service) = match self {
            Connectable::Qp(qp) => (qp.qpn(), qp.service()?),
            Connectable::Vi(vi) => vi.settled()?,
        };
        match moves {
            Moves::None if self.common().connection().is_some() => return Err(Error::Busy),
            Moves::None => {}
            Moves::All | Moves::UntilThePeerDisconnects => self.has_none()?,
        }
        Ok((Qpn::new(number).ok_or(Error::OutOfRange("queue pair number"))?, service))
    }

    /// Fails unless it is the client's and can be connected now: under the lock of the tables of
    /// its connection protocol.
    pub(crate) fn is_free(&self, client: &Client) -> Result<(), Error> {
        self.is_alive(client)?;
        self.has_none()
    }

    fn is_alive(&self, client: &Client) -> Result<(), Error> {
        if !core::ptr::eq(&**self.client(), client) {
            return Err(Error::Foreign);
        }
        client.agent().alive()?;
        if self.common().is_gone() { Err(Error::Gone) } else { Ok(()) }
    }

    /// Fails if it has a connection, or its state is not the one before a connection.
    fn has_none(&self) -> Result<(), Error> {
        let common = self.common();
        let state = common.state();
        let ready = match self {
            Connectable::Qp(_) => state == QpState::Init,
            // An attempt that failed may have left it in INIT.
            Connectable::Vi(_) => matches!(state, QpState::Reset | QpState::Init),
        };
        if !ready {
            return Err(Error::QpState(state));
        }
        if common.connection().is_some() { Err(Error::Busy) } else { Ok(()) }
    }

    /// As what has a connection that is made under this number.
    pub(crate) fn connected(&self, number: Qpn) -> Connected {
        match self {
            Connectable::Qp(qp) => Connected::Qp(qp.clone()),
            Connectable::Vi(vi) => Connected::Vi { vi: vi.clone(), number: number.get() },
        }
    }
}
