//! Commands about streams of TCP.

use alloc::boxed::Box;

use nic_abi::admin::{
    AcceptStream, Command, ConnectStream, DestroyStream, EVERY_ADDRESS, ListenStream, MAX_STREAM_BYTES,
    ModifyQp, Status, StreamEnds, StreamInfo, StreamTransferred, TransferFlags, TransferStream,
};
use nic_abi::ident::MAX_STREAMS;
use platform::Instant;
use roce::Gid;
use tcp::{Error, StreamId};

use super::command::{CommandResult, DONE, Refusal, args, at, result};
use crate::Frontend;
use crate::memory::GuestMemory;
use crate::nic::Nic;
use crate::qp::{Qp, Stream, Way};
use crate::schedule::Schedule;
use crate::streams::{Kind, Streams, end_of, gid_of, socket_of};

const NO_SUCH: Refusal = Refusal::new(Status::NoSuchObject, at!(command.object));
const BAD_STATE: Refusal = Refusal::new(Status::BadState, at!(command.object));

/// Why a command about a stream is refused.
fn refusal(error: Error, address: usize) -> Refusal {
    match error {
        Error::NoSuch => NO_SUCH,
        Error::TooMany | Error::NoMemory | Error::NoPort => {
            Refusal::new(Status::NoResources, at!(command.object))
        }
        Error::InUse => Refusal::new(Status::Exists, address),
        Error::BadAddress | Error::Config(_) => Refusal::field(address),
        Error::NotConnected | Error::Closed => BAD_STATE,
    }
}

/// A port of TCP.
fn port_of(port: u32, least: u16, field: usize) -> Result<u16, Refusal> {
    u16::try_from(port).ok().filter(|port| *port >= least).ok_or(Refusal::field(field))
}

impl<F: Frontend> Nic<F> {
    fn streams_mut(&mut self) -> Result<&mut Streams, Refusal> {
        // They are absent only while one of them is handled.
        Ok(self.streams.as_mut().ok_or(BAD_STATE)?)
    }

    /// The stream that a command names.
    fn stream(&mut self, command: &Command) -> Result<(&mut Streams, StreamId), Refusal> {
        let streams = self.streams_mut()?;
        let id = streams.stream(command.object).ok_or(NO_SUCH)?;
        Ok((streams, id))
    }

    /// Checks what a new stream or listener needs: its number, and its event queue.
    fn check_new(&mut self, command: &Command, eq: (u32, usize)) -> Result<(), Refusal> {
        let number = command.object;
        let taken = self.streams_mut()?.get(number).is_some();
        if number >= MAX_STREAMS {
            return Err(Refusal::field(at!(command.object)));
        }
        if taken {
            return Err(Refusal::new(Status::Exists, at!(command.object)));
        }
        if !self.eqs.contains(eq.0) {
            return Err(Refusal::new(Status::NoSuchObject, eq.1));
        }
        Ok(())
    }

    /// Gives a stream or a listener its number.
    fn add_stream(&mut self, command: &Command, kind: Kind, eq: u32, generation: u32) {
        if let Some(streams) = &mut self.streams {
            streams.add(command.object, kind, eq, generation);
        }
        self.has_packets = true;
        if let Some(eq) = self.eqs.get_mut(eq) {
            eq.users += 1;
        }
    }

    pub(super) fn listen_stream(&mut self, command: &Command) -> CommandResult {
        let a: ListenStream = args(command);
        self.check_new(command, (a.eq, at!(ListenStream, eq)))?;
        let port = port_of(a.port, 1, at!(ListenStream, port))?;
        let address = match a.address {
            EVERY_ADDRESS => None,
            index => {
                let gid = u8::try_from(index).ok().and_then(|index| self.gid(index));
                Some(Gid(gid.ok_or(Refusal::field(at!(ListenStream, address)))?).to_ip())
            }
        };
        if a.reserved != 0 {
            return Err(Refusal::field(at!(ListenStream, reserved)));
        }
        let backlog = a.backlog as usize;
        let listener =
            self.streams_mut()?.tcp.listen(address, port, backlog).map_err(|error| match error {
                Error::Config(_) => Refusal::field(at!(ListenStream, backlog)),
                other => refusal(other, at!(ListenStream, port)),
            })?;
        self.add_stream(command, Kind::Listener(listener), a.eq, a.generation);
        Ok(DONE)
    }

    pub(super) fn connect_stream(&mut self, now: Instant, command: &Command) -> CommandResult {
        let a: ConnectStream = args(command);
        self.check_new(command, (a.eq, at!(ConnectStream, eq)))?;
        let port = port_of(a.port, 1, at!(ConnectStream, port))?;
        let local_port = port_of(a.local_port, 0, at!(ConnectStream, local_port))?;
        let from = u8::try_from(a.address).ok().and_then(|index| self.gid(index));
        let from = Gid(from.ok_or(Refusal::field(at!(ConnectStream, address)))?).to_ip();
        if a.reserved != 0 {
            return Err(Refusal::field(at!(ConnectStream, reserved)));
        }
        let local_port = (local_port != 0).then_some(local_port);
        let tcp = &mut self.streams_mut()?.tcp;
        let connected = tcp.connect(from, local_port, socket_of(a.gid, port), now);
        let id = connected.map_err(|error| match error {
            Error::InUse => refusal(error, at!(ConnectStream, local_port)),
            other => refusal(other, at!(ConnectStream, gid)),
        })?;
        self.add_stream(command, Kind::Stream(id), a.eq, a.generation);
        self.ends(command)
    }

    pub(super) fn accept_stream(&mut self, command: &Command) -> CommandResult {
        let a: AcceptStream = args(command);
        self.check_new(command, (a.eq, at!(AcceptStream, eq)))?;
        if a.reserved != 0 {
            return Err(Refusal::field(at!(AcceptStream, reserved)));
        }
        let streams = self.streams_mut()?;
        let no_such = Refusal::new(Status::NoSuchObject, at!(AcceptStream, listener));
        let listener = streams.listener(a.listener).ok_or(no_such)?;
        let accepted = streams.tcp.accept(listener).map_err(|_| no_such)?;
        let id = accepted.ok_or(Refusal::new(Status::BadState, at!(AcceptStream, listener)))?;
        self.add_stream(command, Kind::Stream(id), a.eq, a.generation);
        self.ends(command)
    }

    /// The result that names the ends of a stream.
    fn ends(&mut self, command: &Command) -> CommandResult {
        let (streams, id) = self.stream(command)?;
        let info = streams.tcp.info(id).map_err(|error| refusal(error, at!(command.object)))?;
        let own = gid_of(info.local.ip());
        let index = self.gids.iter().position(|gid| *gid == own.0);
        Ok(result(&StreamEnds {
            gid: gid_of(info.remote.ip()).0,
            port: info.remote.port().into(),
            address: index.unwrap_or_default() as u32,
            local_port: info.local.port().into(),
        }))
    }

    pub(super) fn send_stream(&mut self, command: &Command) -> CommandResult {
        let a = self.transfer(command, TransferFlags::empty())?;
        let unreachable = Refusal::new(Status::Dma, at!(TransferStream, addr));
        let memory = self.frontend.memory();
        memory.get(a.addr, a.length.into()).map_err(|_| unreachable)?;
        let Some(streams) = &mut self.streams else { return Err(BAD_STATE) };
        let id = streams.stream(command.object).ok_or(NO_SUCH)?;
        let mut taken = 0;
        // The free bytes of the ring are in two pieces at most.
        for _ in 0..2 {
            let sent = streams.tcp.send(id, |room| {
                let count = room.len().min((a.length - taken) as usize);
                let bytes = &mut room[..count];
                match memory.read(a.addr + u64::from(taken), bytes) {
                    Ok(()) => (count, Ok(count as u32)),
                    Err(_) => (0, Err(unreachable)),
                }
            });
            taken += sent.map_err(|error| refusal(error, at!(command.object)))??;
            if taken == a.length {
                break;
            }
        }
        Ok(result(&StreamTransferred { length: taken }))
    }

    pub(super) fn receive_stream(&mut self, command: &Command) -> CommandResult {
        let a = self.transfer(command, TransferFlags::KEEP)?;
        let keeps = a.flags & TransferFlags::KEEP.bits() != 0;
        let unreachable = Refusal::new(Status::Dma, at!(TransferStream, addr));
        let memory = self.frontend.memory();
        memory.get(a.addr, a.length.into()).map_err(|_| unreachable)?;
        let Some(streams) = &mut self.streams else { return Err(BAD_STATE) };
        let id = streams.stream(command.object).ok_or(NO_SUCH)?;
        let mut taken = 0;
        // The bytes in the ring are in two pieces at most. Those that stay come again, so only the
        // first piece can be looked at.
        for _ in 0..if keeps { 1 } else { 2 } {
            let received = streams.tcp.receive(id, |bytes| {
                let count = bytes.len().min((a.length - taken) as usize);
                match memory.write(a.addr + u64::from(taken), &bytes[..count]) {
                    Ok(()) => (if keeps { 0 } else { count }, Ok(count as u32)),
                    Err(_) => (0, Err(unreachable)),
                }
            });
            match received {
                Ok(count) => taken += count?,
                // The peer has closed its direction behind the first piece.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(refusal(error, at!(command.object))),
            }
            if taken == a.length {
                break;
            }
        }
        Ok(result(&StreamTransferred { length: taken }))
    }

    /// Checks the arguments of a transfer.
    fn transfer(&mut self, command: &Command, flags: TransferFlags) -> Result<TransferStream, Refusal> {
        self.stream(command)?;
        let a: TransferStream = args(command);
        if a.length > MAX_STREAM_BYTES {
            return Err(Refusal::field(at!(TransferStream, length)));
        }
        if a.flags & !flags.bits() != 0 {
            return Err(Refusal::field(at!(TransferStream, flags)));
        }
        Ok(a)
    }

    pub(super) fn close_stream(&mut self, now: Instant, command: &Command) -> CommandResult {
        let (streams, id) = self.stream(command)?;
        streams.tcp.close(id, now).map_err(|error| refusal(error, at!(command.object)))?;
        Ok(DONE)
    }

    pub(super) fn query_stream(&mut self, command: &Command) -> CommandResult {
        let streams = self.streams_mut()?;
        let kind = streams.get(command.object).ok_or(NO_SUCH)?.kind;
        let happened = streams.take_happened(command.object).bits();
        let Kind::Stream(id) = kind else {
            return Ok(result(&StreamInfo { happened, ..StreamInfo::default() }));
        };
        let info = streams.tcp.info(id).map_err(|error| refusal(error, at!(command.object)))?;
        Ok(result(&StreamInfo {
            happened,
            end: end_of(info.end) as u32,
            readable: info.readable as u32,
            room: info.room as u32,
            unacknowledged: info.unacknowledged as u32,
        }))
    }

    pub(super) fn destroy_stream(&mut self, now: Instant, command: &Command) -> CommandResult {
        let a: DestroyStream = args(command);
        let streams = self.streams_mut()?;
        let kind = streams.get(command.object).ok_or(NO_SUCH)?.kind;
        if a.reset > 1 {
            return Err(Refusal::field(at!(DestroyStream, reset)));
        }
        if a.reserved != 0 {
            return Err(Refusal::field(at!(DestroyStream, reserved)));
        }
        // None of these fails: the object exists.
        let _ = match (kind, a.reset) {
            (Kind::Listener(id), _) => streams.tcp.stop(id),
            (Kind::Stream(id), 0) => streams.tcp.release(id, now),
            (Kind::Stream(id), _) => streams.tcp.abort(id),
        };
        let eq = streams.remove(command.object);
        if let Some(eq) = eq {
            self.release_eq(eq);
        }
        Ok(DONE)
    }

    /// Checks that a queue pair can take a stream: it is connected.
    pub(super) fn check_stream(&mut self, a: &ModifyQp) -> Result<(), Refusal> {
        let streams = self.streams_mut()?;
        let no_such = Refusal::new(Status::NoSuchObject, at!(ModifyQp, stream));
        let id = streams.stream(a.stream).ok_or(no_such)?;
        match streams.tcp.info(id) {
            Ok(info) if info.connected && info.end.is_none() => Ok(()),
            _ => Err(Refusal::new(Status::BadState, at!(ModifyQp, stream))),
        }
    }

    /// Gives a queue pair the stream that its attributes name, which [`Nic::check_stream`] has
    /// checked.
    pub(super) fn bind_stream(&mut self, qp: &mut Qp, schedule: &mut Schedule) {
        let Some(streams) = &mut self.streams else { return };
        let Some((id, eq)) = streams.bind(qp.attributes.stream, qp.id.slot) else { return };
        let segment = streams.tcp.info(id).map_or(0, |info| info.segment);
        qp.stream = Some(Box::new(Stream::new(id, segment, &qp.attributes)));
        qp.way = Way::Stream;
        self.release_eq(eq);
        qp.watch_silence(schedule);
        // Bytes may have come.
        schedule.activate(qp);
    }
}
