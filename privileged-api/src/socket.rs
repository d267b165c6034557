//! Sockets, and their conversion to connections (page it_socket_convert).
//!
//! A socket is a plain stream of the NIC's TCP, which its consumer makes with the API for Rust
//! (`rdma::Nic::connect_stream`, `rdma::Nic::listen_for_streams`) on the same NIC, speaks on, and
//! gives to the IA. The descriptor that it gets is for the page's call.

use kernel_agent::Conversion;
use rdma::Stream;

use crate::ep::state::Trigger;
use crate::flags::ScFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::status::{Error, Result};

impl Ia {
    /// Gives a stream of the IA's NIC to the IA, and returns its descriptor, the lowest that is
    /// free. The stream ends with [`Ia::socket_close`], or with the IA. An extension.
    ///
    /// Errors: `OpNotSupported` (the IA converts no sockets), `InvalidSdState` (the stream is of
    /// another NIC, or has ended), `Resources` (1,024 sockets), `InvalidIa`, `IaCatastrophe`; the
    /// stream is closed then. Does not block. Not for callbacks. Thread-safe.
    pub fn socket_add(&self, stream: Stream) -> Result<i32> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        core.converts_sockets()?;
        let stream = stream.into_agents();
        let added = match core.client()?.adopt_stream(&stream) {
            Ok(()) => core.sockets.lock().add(stream).map_err(|stream| (stream, Error::Resources)),
            Err(error) => Err((stream, socket_error(&core, error))),
        };
        added.map_err(|(stream, error)| {
            // Fails if it has ended.
            let _ = stream.destroy(false);
            error
        })
    }

    /// Frees a descriptor. The peer gets what was sent, and then the end of the stream; a
    /// connection to which the stream was converted stays. An extension.
    ///
    /// Errors: `InvalidSd`, `InvalidIa`, `IaCatastrophe`. May block for the device. Not for
    /// callbacks. Thread-safe.
    #[doc(alias = "close")]
    pub fn socket_close(&self, sd: i32) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let stream = core.sockets.lock().remove(sd)?;
        // Fails if it is a connection's by now, or has ended.
        let _ = stream.destroy(false);
        Ok(())
    }

    /// Converts a connected socket ([`Ia::socket_add`]) and an endpoint in UNCONNECTED to a
    /// connected endpoint, on iWARP.
    ///
    /// With a message the caller is the Conversion Initiator: the message goes to the peer as the
    /// last of the stream, and the endpoint takes the passive states, from
    /// PASSIVE_WAIT_RDMA_TRANS_REQ until the peer's Request has come. Without one it is the
    /// Conversion Responder, which has received that message, and takes the active states. With
    /// [`ScFlags::NO_REQ_REP`] neither end sends a Request or a Reply. The established event has
    /// neither read depths nor private data: each end has those of its endpoint, which consumers
    /// have to choose so that they fit.
    ///
    /// There is no time limit; [`Ia::ep_disconnect`] and [`Ia::ep_free`] give the conversion up. If
    /// it fails, the endpoint goes to NONOPERATIONAL, and a non-peer reject is queued:
    /// `BadConnParms` if the peer sent something else, `Timeout` if its NIC does not answer,
    /// `Other` if it ended the stream. A Conversion Initiator without Request and Reply whose peer
    /// sends something else, such as a Request, gets the event of a broken connection. The
    /// descriptor then is good for [`Ia::socket_close`] alone.
    ///
    /// Errors: `OpNotSupported` (not iWARP:
    /// [`IaInfo::socket_conversion_support`](crate::IaInfo::socket_conversion_support)),
    /// `InvalidFlags`, `InvalidEp`, `InvalidEpType`, `InvalidSd`, `InvalidSdState` (not connected,
    /// or converted already), `InvalidEpState`, `Resources`, `InvalidIa`, `IaCatastrophe`. Does not
    /// wait for the peer. May be called in callbacks. Thread-safe. Page it_socket_convert.
    #[doc(alias = "it_socket_convert")]
    pub fn socket_convert(&self, sd: i32, ep: EpHandle, flags: ScFlags, msg: &[u8]) -> Result<()> {
        let core = self.call()?;
        core.converts_sockets()?;
        if ScFlags::from_bits(flags.bits()).is_none() {
            return Err(Error::InvalidFlags);
        }
        let found = core.rc(ep)?;
        let stream = core.sockets.lock().get(sd)?;
        let _operation = found.operation.lock(&core.shared.platform);
        let ep = core.as_it_is(&found)?;
        let message = (!msg.is_empty()).then_some(msg);
        let frames = !flags.contains(ScFlags::NO_REQ_REP);
        let depths = {
            let mut control = ep.control.lock();
            let trigger = match (message, frames) {
                (None, _) => Trigger::Connect,
                (Some(_), true) => Trigger::Convert,
                // There is no Request to wait for.
                (Some(_), false) => Trigger::Accept,
            };
            ep.advance(&mut control, trigger)?;
            core.dialect.depths(&core, &control.attr)
        };
        let conversion = Conversion { message, frames, depths };
        let asked = core.client().and_then(|client| {
            let asked = client.convert(&stream, ep.qp()?, &conversion);
            asked.map_err(|error| socket_error(&core, error))
        });
        core.asked(&ep, asked)
    }
}

/// The error of a call about a socket.
fn socket_error(core: &Core, error: kernel_agent::Error) -> Error {
    use kernel_agent::Error as Agent;
    match error {
        Agent::StreamState | Agent::Foreign => Error::InvalidSdState,
        Agent::Gone if !core.agent().is_dead() => Error::InvalidSdState,
        other => core.error(other),
    }
}

impl Core {
    fn converts_sockets(&self) -> Result<()> {
        if self.facts().sockets { Ok(()) } else { Err(Error::OpNotSupported) }
    }

    /// Closes all sockets, when the IA is freed.
    pub(crate) fn close_sockets(&self) {
        loop {
            let next = self.sockets.lock().remove_any();
            let Some(stream) = next else { return };
            // Fails if it is a connection's by now, has ended, or the device is dead.
            let _ = stream.destroy(false);
        }
    }
}
