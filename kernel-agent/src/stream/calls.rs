//! The calls of clients that make streams and listeners.

use alloc::sync::Arc;

use nic_abi::admin::{AcceptStream, ConnectStream, EVERY_ADDRESS, ListenStream};
use nic_hal::Nic;

use super::{Endpoint, Stream, StreamEnds, StreamListener, Watch};
use crate::agent::config::EQ_STREAMS;
use crate::connect::gid_index;
use crate::home::Home;
use crate::table::Number;
use crate::wire::Gid;
use crate::{Client, Error, Resource};

/// The most streams that may wait at a listener.
pub(crate) const MAX_BACKLOG: u32 = 1 << 10;

impl Client {
    /// Listens for streams at a port, from 1 on: of one of the NIC's addresses, or of all. At most
    /// `backlog` streams, 1 to 1,024, wait to be accepted. [`Error::ServiceInUse`] if the port is
    /// taken. [`Upcalls::stream`](crate::Upcalls::stream) tells when streams wait.
    pub fn listen_for_streams(
        self: &Arc<Client>,
        address: Option<Gid>,
        port: u16,
        backlog: u32,
        context: u64,
    ) -> Result<StreamListener, Error> {
        let _call = self.call()?;
        self.listen_stream(address, port, backlog, Watch::Client(context))
    }

    pub(crate) fn listen_stream(
        self: &Arc<Client>,
        address: Option<Gid>,
        port: u16,
        backlog: u32,
        watch: Watch,
    ) -> Result<StreamListener, Error> {
        if port == 0 || backlog == 0 || backlog > MAX_BACKLOG {
            return Err(Error::OutOfRange(if port == 0 { "port" } else { "backlog" }));
        }
        let address = match address {
            None => EVERY_ADDRESS,
            Some(gid) => self.index_of(gid)?.into(),
        };
        let home: Arc<dyn Home> = self.clone();
        let opened = Endpoint::open(&home, watch, |nic: &Nic, Number { slot, generation }| {
            let port = port.into();
            let args = ListenStream { port, address, backlog, eq: EQ_STREAMS, generation, reserved: 0 };
            nic.listen_stream(slot, &args).map(Some)
        })?;
        let (endpoint, ()) = opened.ok_or(Error::NoResources(Resource::Device))?;
        Ok(StreamListener::new(endpoint))
    }

    /// Begins to connect a stream from an address of the NIC to a peer's port. `local_port` 0
    /// stands for one that the device chooses. [`Upcalls::stream`](crate::Upcalls::stream) tells
    /// when it is connected, and whenever something happens to it; [`Stream::state`] says what.
    pub fn connect_stream(
        self: &Arc<Client>,
        local: (Gid, u16),
        remote: (Gid, u16),
        context: u64,
    ) -> Result<Stream, Error> {
        let _call = self.call()?;
        let (endpoint, ends) = self.open_stream(local, remote, Watch::Client(context))?;
        Ok(Stream::new(endpoint, ends))
    }

    pub(crate) fn open_stream(
        self: &Arc<Client>,
        (local, local_port): (Gid, u16),
        (remote, port): (Gid, u16),
        watch: Watch,
    ) -> Result<(Arc<Endpoint>, StreamEnds), Error> {
        if port == 0 {
            return Err(Error::OutOfRange("port"));
        }
        let address = self.index_of(local)?.into();
        let home: Arc<dyn Home> = self.clone();
        let opened = Endpoint::open(&home, watch, |nic: &Nic, Number { slot, generation }| {
            let args = ConnectStream {
                gid: remote.0,
                port: port.into(),
                address,
                local_port: local_port.into(),
                eq: EQ_STREAMS,
                generation,
                reserved: 0,
            };
            nic.connect_stream(slot, &args).map(Some)
        })?;
        let (endpoint, ends) = opened.ok_or(Error::NoResources(Resource::Device))?;
        Ok((endpoint, StreamEnds::new(&ends)))
    }

    fn index_of(&self, gid: Gid) -> Result<u8, Error> {
        gid_index(self.agent().identity(), gid).ok_or(Error::OutOfRange("source GID"))
    }
}

impl StreamListener {
    /// Takes the stream that has waited longest; `None` if none waits. Then there is an upcall when
    /// one does. Upcalls about the stream have the `context`.
    pub fn accept(&self, context: u64) -> Result<Option<Stream>, Error> {
        let _call = self.endpoint().home().enter()?;
        let accepted = accept(self.endpoint(), Watch::Client(context))?;
        Ok(accepted.map(|(endpoint, ends)| Stream::new(endpoint, ends)))
    }
}

/// Takes the stream that has waited longest at a listener.
pub(crate) fn accept(
    listener: &Endpoint,
    watch: Watch,
) -> Result<Option<(Arc<Endpoint>, StreamEnds)>, Error> {
    // Another listener cannot get the number meanwhile.
    let _control = listener.control()?;
    let opened = Endpoint::open(listener.home(), watch, |nic: &Nic, Number { slot, generation }| {
        let args = AcceptStream { listener: listener.number(), eq: EQ_STREAMS, generation, reserved: 0 };
        nic.accept_stream(slot, &args)
    })?;
    Ok(opened.map(|(endpoint, ends)| {
        // The event that says so may not have been taken yet.
        endpoint.mark_connected();
        (endpoint, StreamEnds::new(&ends))
    }))
}
