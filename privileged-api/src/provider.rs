//! The interfaces of a machine (pages it_interface_list, it_ia_create).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kernel_agent::Agent;
use platform::{Platform, Privileged};
use rdma::{Endpoints, Interfaces, Limits, Offer};

use crate::dialect::Dialect;
use crate::dialect::infiniband::InfiniBand;
use crate::ia::{Core, Ia};
use crate::info::{INTERFACE_NAME_SIZE, Interface};
use crate::iwarp::Iwarp;
use crate::objects::shared::Shared;
use crate::status::{Error, Result};
use crate::via::Via;

/// The major version of the API.
pub(crate) const MAJOR: u32 = 2;
/// The newest minor version of the API.
pub(crate) const MINOR: u32 = 1;

/// What endpoints of a kind speak.
fn dialect(endpoints: Endpoints) -> &'static dyn Dialect {
    match endpoints {
        Endpoints::QueuePairs => &InfiniBand,
        Endpoints::VirtualInterfaces => &Via,
        Endpoints::Iwarp => &Iwarp,
    }
}

struct Inner {
    shared: Arc<Shared>,
    interfaces: Arc<Interfaces>,
}

/// The interfaces of a machine. Boot code creates it once and adds the agents of the NICs. A clone
/// is the same provider.
#[derive(Clone)]
pub struct Provider(Arc<Inner>);

impl Provider {
    /// Creates a provider without interfaces.
    pub fn new(platform: Arc<dyn Platform>) -> Provider {
        let interfaces = Arc::new(Interfaces::new(platform));
        let shared = Arc::new(Shared::new(interfaces.clone()));
        Provider(Arc::new(Inner { shared, interfaces }))
    }

    /// The interfaces, for another face on the same NICs.
    pub fn interfaces(&self) -> &Arc<Interfaces> {
        &self.0.interfaces
    }

    /// Adds an interface of a NIC, without limits. Fails with `InvalidName` if the name is empty,
    /// too long, contains a NUL or is in use.
    pub fn add(&self, name: &str, agent: Arc<Agent>) -> Result<()> {
        self.add_limited(name, agent, Limits::NONE)
    }

    /// Adds an interface of a NIC, with limits for its consumers: for consumers that are not
    /// trusted to use the whole NIC, or to divide a NIC among several. One NIC may have several
    /// interfaces. Fails with `InvalidName` if the name is empty, too long, contains a NUL or is in
    /// use.
    pub fn add_limited(&self, name: &str, agent: Arc<Agent>, limits: Limits) -> Result<()> {
        self.add_with(name, agent, limits, Endpoints::QueuePairs)
    }

    /// Adds an interface of a NIC over the VIA transport, with limits: the endpoints of its IAs are
    /// virtual interfaces, which connect to those of other IAs over VIA and to VIPL's. The NIC may
    /// have other interfaces beside it. Fails as [`Provider::add_limited`].
    pub fn add_via(&self, name: &str, agent: Arc<Agent>, limits: Limits) -> Result<()> {
        self.add_with(name, agent, limits, Endpoints::VirtualInterfaces)
    }

    /// Adds an interface of a NIC over iWARP, with limits: the endpoints of its IAs are queue pairs
    /// on TCP streams, which connect to those of other IAs over iWARP and to other
    /// implementations'. The NIC may have other interfaces beside it. Fails as
    /// [`Provider::add_limited`].
    pub fn add_iwarp(&self, name: &str, agent: Arc<Agent>, limits: Limits) -> Result<()> {
        self.add_with(name, agent, limits, Endpoints::Iwarp)
    }

    fn add_with(&self, name: &str, agent: Arc<Agent>, limits: Limits, endpoints: Endpoints) -> Result<()> {
        if name.len() >= INTERFACE_NAME_SIZE {
            return Err(Error::InvalidName);
        }
        self.0.interfaces.add(name, agent, limits, endpoints).map_err(|_| Error::InvalidName)
    }

    /// Lists the interfaces whose NIC works: at most `num_interfaces` of them, and the number of
    /// all of them. If there is no memory, the list ends early.
    ///
    /// Errors: none. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_interface_list.
    #[doc(alias = "it_interface_list")]
    pub fn interface_list(&self, num_interfaces: usize) -> (Vec<Interface>, usize) {
        let (mut list, mut total, mut full) = (Vec::new(), 0, false);
        self.0.interfaces.for_each(|working, endpoints| {
            total += 1;
            let mut name = String::new();
            full = full
                || list.len() == num_interfaces
                || name.try_reserve_exact(working.len()).is_err()
                || list.try_reserve(1).is_err();
            if full {
                return;
            }
            name.push_str(working);
            list.push(Interface {
                major_version: MAJOR,
                minor_version: MINOR,
                transport_type: dialect(endpoints).facts().transport_type,
                name,
            });
        });
        (list, total)
    }

    /// Creates an interface adapter. `privileged` makes its consumer a privileged consumer.
    ///
    /// Versions 2.0 and 2.1 of the API are supported.
    ///
    /// Errors: `InvalidName` (no such interface, its NIC does not work, or
    /// lacks virtual interfaces or streams that the interface needs), `InvalidMajorVersion`,
    /// `InvalidMinorVersion`, `Resources`. May block for the device. Not for callbacks.
    /// Thread-safe. Page it_ia_create.
    #[doc(alias = "it_ia_create")]
    pub fn ia_create(
        &self,
        name: &str,
        major_version: u32,
        minor_version: u32,
        privileged: Option<Privileged>,
    ) -> Result<Ia> {
        self.0.shared.not_in_callback()?;
        let Offer { agent, limits, endpoints } = self.0.interfaces.find(name).ok_or(Error::InvalidName)?;
        if major_version != MAJOR {
            return Err(Error::InvalidMajorVersion);
        }
        if minor_version > MINOR {
            return Err(Error::InvalidMinorVersion);
        }
        Core::create(self.0.shared.clone(), agent, name, privileged, &limits, dialect(endpoints))
    }
}

/// For the calls of other faces that open an interface.
impl AsRef<Arc<Interfaces>> for Provider {
    fn as_ref(&self) -> &Arc<Interfaces> {
        self.interfaces()
    }
}
