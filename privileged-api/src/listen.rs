//! Listen points (pages it_listen_create, it_listen_query, it_listen_free).

use platform::heap;
use platform::sync::Mutex;
use rdma::Context;

use crate::address::ConnQual;
use crate::attributes::ListenParam;
use crate::evd::EventStreams;
use crate::flags::{ListenFlags, ListenParamMask};
use crate::handle::{EvdHandle, ListenHandle};
use crate::ia::{Core, Ia, SPIGOT};
use crate::objects::listen::Listen;
use crate::status::{Error, Result};

/// System ports are below this one (RFC 6335): only privileged consumers may offer the services
/// that peers expect there.
const SYSTEM_PORTS_END: u16 = 1024;
/// The ports for listen points whose consumer names none (RFC 6335, dynamic ports).
const DYNAMIC: core::ops::RangeInclusive<u16> = 49152..=65535;

impl Core {
    fn listen(&self, evd: EvdHandle, qual: ConnQual) -> Result<ListenHandle> {
        let service = self.dialect.service(&qual)?;
        let feed = self.feed(evd, EventStreams::REQUESTS, Error::InvalidConnEvd)?;
        let reservation = self.listens.reserve()?;
        let handle = reservation.handle();
        let context = Context::new();
        let listen = heap::arc(Listen { handle, qual, service, feed, id: Mutex::new(None), context });
        let listen = listen.map_err(|_| Error::Resources)?;
        // In the table before the first request can come.
        reservation.fill(listen.clone());
        match self.client()?.listen(service, self.facts().transports, handle.as_raw()) {
            Ok(id) => {
                *listen.id.lock() = Some(id);
                Ok(handle)
            }
            Err(error) => {
                self.listens.remove(handle);
                listen.feed.end();
                Err(match error {
                    kernel_agent::Error::ServiceInUse => Error::ConnQualBusy,
                    other => self.error(other),
                })
            }
        }
    }

    /// Frees a listen point; false if another call did.
    pub(crate) fn free_listen_point(&self, listen: &Listen) -> bool {
        if self.listens.remove(listen.handle).is_none() {
            return false;
        }
        let id = listen.id.lock().take();
        if let (Some(id), Ok(client)) = (id, self.client()) {
            // Fails only if the device is dead.
            let _ = client.stop_listening(id);
        }
        listen.feed.end();
        true
    }
}

impl Ia {
    /// Listens for connection requests to a qualifier. Each request is an event on `connect_evd`.
    ///
    /// With [`ListenFlags::CONN_QUAL_INPUT`] the qualifier is `conn_qual`, else a free port number
    /// is chosen. It is returned with the handle. If the event dispatcher is full, a request is
    /// dropped and the peer times out.
    ///
    /// Errors: `InvalidConnQual`, `ConnQualBusy`, `NoPermission` (a port below 1024, under any
    /// name, is for privileged consumers), `Resources`, `InvalidConnEvd`, `InvalidSpigot`,
    /// `InvalidFlags` (also for [`ListenFlags::SUPPRESS_IRD_ORD`]: IRD and ORD cannot be
    /// suppressed), `InvalidEvdType`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// Not for callbacks. Thread-safe. Page it_listen_create.
    #[doc(alias = "it_listen_create")]
    pub fn listen_create(
        &self,
        spigot_id: usize,
        connect_evd: EvdHandle,
        flags: ListenFlags,
        conn_qual: Option<&ConnQual>,
    ) -> Result<(ListenHandle, ConnQual)> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        if spigot_id != SPIGOT {
            return Err(Error::InvalidSpigot);
        }
        // Without IRD and ORD the flag is ignored.
        let suppresses = flags.contains(ListenFlags::SUPPRESS_IRD_ORD) && core.facts().read_depths;
        if ListenFlags::from_bits(flags.bits()).is_none() || suppresses {
            return Err(Error::InvalidFlags);
        }
        if flags.contains(ListenFlags::CONN_QUAL_INPUT) {
            let qual = *conn_qual.ok_or(Error::InvalidConnQual)?;
            let port = core.dialect.port(&qual)?;
            if port.is_some_and(|port| port < SYSTEM_PORTS_END) {
                core.privileged()?;
            }
            return Ok((core.listen(connect_evd, qual)?, qual));
        }
        for port in DYNAMIC {
            let qual = ConnQual::port(port);
            match core.listen(connect_evd, qual) {
                Err(Error::ConnQualBusy) => {}
                listening => return Ok((listening?, qual)),
            }
        }
        Err(Error::Resources)
    }

    /// Queries a listen point.
    ///
    /// Errors: `InvalidListen`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_listen_query.
    #[doc(alias = "it_listen_query")]
    pub fn listen_query(&self, listen: ListenHandle, mask: ListenParamMask) -> Result<ListenParam> {
        let core = self.live()?;
        let listen = core.listens.get(listen).ok_or(Error::InvalidListen)?;
        if ListenParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        let wants = |bit| mask.intersects(bit | ListenParamMask::ALL);
        let mut param = ListenParam::default();
        if wants(ListenParamMask::IA_HANDLE) {
            param.ia_handle = core.handle;
        }
        if wants(ListenParamMask::SPIGOT_ID) {
            param.spigot_id = SPIGOT;
        }
        if wants(ListenParamMask::CONNECT_EVD) {
            param.connect_evd = listen.feed.handle;
        }
        if wants(ListenParamMask::CONN_QUAL) {
            param.connect_qual = listen.qual;
        }
        Ok(param)
    }

    /// Ends listening. Requests whose events were queued can still be accepted and rejected.
    ///
    /// Errors: `InvalidListen`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe: a call that races with it succeeds or finds the
    /// handle invalid. Page it_listen_free.
    #[doc(alias = "it_listen_free")]
    pub fn listen_free(&self, listen: ListenHandle) -> Result<()> {
        let core = self.call()?;
        let listen = core.listens.get(listen).ok_or(Error::InvalidListen)?;
        if core.free_listen_point(&listen) { Ok(()) } else { Err(Error::InvalidListen) }
    }
}
