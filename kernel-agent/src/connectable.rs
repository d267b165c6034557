//! What can be connected: queue pairs and virtual interfaces.

use alloc::sync::Arc;

use nic_abi::admin::QpState;
use roce::Qpn;
use roce::transport::Service;

use crate::connections::Connected;
use crate::qp_common::Common;
use crate::{Client, Error, Qp, Vi};

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

    pub(crate) fn common(&self) -> &Common {
        match self {
            Connectable::Qp(qp) => &qp.common,
            Connectable::Vi(vi) => vi.common(),
        }
    }

    /// The number and the transport service, if it can be connected now: under the lock of the
    /// connections' tables.
    pub(crate) fn ready(&self, client: &Client) -> Result<(Qpn, Service), Error> {
        if !core::ptr::eq(&**self.client(), client) {
            return Err(Error::Foreign);
        }
        client.agent().alive()?;
        let common = self.common();
        if common.is_gone() {
            return Err(Error::Gone);
        }
        let (number, service) = match self {
            Connectable::Qp(qp) => (qp.qpn(), qp.service()?),
            Connectable::Vi(vi) => vi.settled()?,
        };
        let state = common.state();
        let ready = match self {
            Connectable::Qp(_) => state == QpState::Init,
            // An attempt that failed may have left it in INIT.
            Connectable::Vi(_) => matches!(state, QpState::Reset | QpState::Init),
        };
        if !ready {
            return Err(Error::QpState(state));
        }
        if common.connection().is_some() {
            return Err(Error::Busy);
        }
        Ok((Qpn::new(number).ok_or(Error::OutOfRange("queue pair number"))?, service))
    }

    /// As what has a connection that is made under this number.
    pub(crate) fn connected(&self, number: Qpn) -> Connected {
        match self {
            Connectable::Qp(qp) => Connected::Qp(qp.clone()),
            Connectable::Vi(vi) => Connected::Vi { vi: vi.clone(), number: number.get() },
        }
    }
}
