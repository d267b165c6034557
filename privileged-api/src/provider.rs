//! The interfaces of a machine (pages it_interface_list, it_ia_create).

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use api_core::InCallbacks;
use kernel_agent::{Agent, Features};
use platform::sync::Mutex;
use platform::{Platform, Privileged};

use crate::ia::{Core, Ia};
use crate::info::{INTERFACE_NAME_SIZE, Interface, TransportType};
use crate::lmr::sharing::Shareable;
use crate::status::{Error, Result};

/// The major version of the API.
pub(crate) const MAJOR: u32 = 2;
/// The newest minor version of the API.
pub(crate) const MINOR: u32 = 1;

/// Limits on the use of a NIC by the consumers of one interface ([`Provider::add_limited`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The NIC's features that the consumers may use. it_ia_query returns no other features.
    pub features: Features,
    /// The most connections of one IA at the same time, including those that are being established.
    pub connections: u32,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits { features: Features::all(), connections: u32::MAX };
}

/// The state that all IAs of a provider share.
pub(crate) struct Shared {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) shareable: Shareable,
    pub(crate) callbacks: InCallbacks,
}

impl Shared {
    fn new(platform: Arc<dyn Platform>) -> Shared {
        let callbacks = InCallbacks::new(platform.clone());
        Shared { platform, shareable: Shareable::new(), callbacks }
    }

    /// Fails with `CallbackContext` if this thread runs a callback. For the calls that their pages
    /// exclude from callbacks.
    pub(crate) fn not_in_callback(&self) -> Result<()> {
        if self.callbacks.contains_this_thread() { Err(Error::CallbackContext) } else { Ok(()) }
    }
}

struct Offer {
    name: String,
    agent: Arc<Agent>,
    limits: Limits,
}

struct Inner {
    shared: Arc<Shared>,
    interfaces: Mutex<Vec<Offer>>,
}

/// The interfaces of a machine. Boot code creates it once and adds the agents of the NICs. A clone
/// is the same provider.
#[derive(Clone)]
pub struct Provider(Arc<Inner>);

impl Provider {
    /// Creates a provider without interfaces.
    pub fn new(platform: Arc<dyn Platform>) -> Provider {
        let shared = Arc::new(Shared::new(platform));
        Provider(Arc::new(Inner { shared, interfaces: Mutex::new(Vec::new()) }))
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
        if name.is_empty() || name.len() >= INTERFACE_NAME_SIZE || name.contains('\0') {
            return Err(Error::InvalidName);
        }
        let mut interfaces = self.0.interfaces.lock();
        if interfaces.iter().any(|offer| offer.name == name) {
            return Err(Error::InvalidName);
        }
        interfaces.push(Offer { name: String::from(name), agent, limits });
        Ok(())
    }

    /// Lists the interfaces whose NIC works: at most `num_interfaces` of them, and the number of
    /// all of them. If there is no memory, the list ends early.
    ///
    /// Errors: none. Does not block. May be called in callbacks. Thread-safe. Page
    /// it_interface_list.
    #[doc(alias = "it_interface_list")]
    pub fn interface_list(&self, num_interfaces: usize) -> (Vec<Interface>, usize) {
        let interfaces = self.0.interfaces.lock();
        let working = || interfaces.iter().filter(|offer| !offer.agent.is_dead());
        let mut list = Vec::new();
        for offer in working().take(num_interfaces) {
            let mut name = String::new();
            if name.try_reserve_exact(offer.name.len()).is_err() || list.try_reserve(1).is_err() {
                break;
            }
            name.push_str(&offer.name);
            list.push(Interface {
                major_version: MAJOR,
                minor_version: MINOR,
                transport_type: TransportType::Ib,
                name,
            });
        }
        // A NIC may have died since the list was made.
        let total = working().count().max(list.len());
        (list, total)
    }

    /// Creates an interface adapter. `privileged` makes its consumer a privileged consumer.
    ///
    /// Versions 2.0 and 2.1 of the API are supported.
    ///
    /// Errors: `InvalidName` (no such interface, or its NIC does not work), `InvalidMajorVersion`,
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
        let (agent, limits) = {
            let interfaces = self.0.interfaces.lock();
            let found = interfaces.iter().find(|offer| offer.name == name && !offer.agent.is_dead());
            found.map(|offer| (offer.agent.clone(), offer.limits)).ok_or(Error::InvalidName)?
        };
        if major_version != MAJOR {
            return Err(Error::InvalidMajorVersion);
        }
        if minor_version > MINOR {
            return Err(Error::InvalidMinorVersion);
        }
        Core::create(self.0.shared.clone(), agent, name, privileged, &limits)
    }
}
