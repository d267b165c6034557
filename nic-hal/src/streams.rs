//! The driver's commands for streams, and the events about them.
//!
//! The device reads and writes a [`StreamBuffer`] during a command only. It needs
//! [`Features::STREAMS`](nic_abi::registers::Features::STREAMS).

use nic_abi::RING_ALIGN;
use nic_abi::admin::{
    AcceptStream, ConnectStream, DestroyStream, ListenStream, MAX_STREAM_BYTES, Opcode, Status, StreamEnds,
    StreamInfo, StreamTransferred, TransferFlags, TransferStream,
};
use nic_abi::eqe::{
    Eqe, EventType, NOT_COMPLETED, StreamFault, TERMINATE_CODE, TERMINATE_RECEIVED, TERMINATE_SENT,
};

use crate::admin::result;
use crate::memory::{DeviceMemory, Lease};
use crate::{CommandError, Error, Nic};

/// Memory through which the bytes of streams pass. Its owner sees to it that one command at a time
/// uses it.
pub struct StreamBuffer(DeviceMemory);

impl StreamBuffer {
    /// How many bytes a command can pass.
    pub fn len(&self) -> usize {
        self.0.buffer().len().min(MAX_STREAM_BYTES as usize)
    }

    /// Whether no byte can pass.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Nic {
    /// Memory through which so many bytes of streams can pass at a time.
    pub fn stream_buffer(&self, len: usize) -> Result<StreamBuffer, Error> {
        let lease = Lease::new(&self.quarantine)?;
        DeviceMemory::new(&self.dma, len.next_multiple_of(8), RING_ALIGN, &lease).map(StreamBuffer)
    }

    /// Listens for streams.
    pub fn listen_stream(&self, number: u32, args: &ListenStream) -> Result<(), Error> {
        self.command(Opcode::ListenStream, number, args).map(|_| ())
    }

    /// Begins to connect a stream. An event says what became of it.
    pub fn connect_stream(&self, number: u32, args: &ConnectStream) -> Result<StreamEnds, Error> {
        result(&self.command(Opcode::ConnectStream, number, args)?)
    }

    /// Takes the stream that has waited longest at a listener; `None` if none waits.
    pub fn accept_stream(&self, number: u32, args: &AcceptStream) -> Result<Option<StreamEnds>, Error> {
        match self.command(Opcode::AcceptStream, number, args) {
            Err(Error::Command(CommandError { status: Status::BadState, .. })) => Ok(None),
            answer => result(&answer?).map(Some),
        }
    }

    /// Sends from the start of `bytes` as many as the buffer and the stream have room for, and
    /// returns the number.
    pub fn send_stream(&self, number: u32, buffer: &StreamBuffer, bytes: &[u8]) -> Result<usize, Error> {
        let part = bytes.get(..buffer.len()).unwrap_or(bytes);
        buffer.0.buffer().write(0, part).map_err(|_| Error::OutOfRange("stream buffer"))?;
        self.transfer(Opcode::SendStream, number, buffer, part.len(), TransferFlags::empty())
    }

    /// Receives bytes that have arrived, and returns their number. With
    /// [`TransferFlags::KEEP`] they stay with the stream, and come again.
    pub fn receive_stream(
        &self,
        number: u32,
        buffer: &StreamBuffer,
        into: &mut [u8],
        flags: TransferFlags,
    ) -> Result<usize, Error> {
        let room = into.len().min(buffer.len());
        let count = self.transfer(Opcode::ReceiveStream, number, buffer, room, flags)?;
        let into = into.get_mut(..count).unwrap_or_default();
        buffer.0.buffer().read(0, into).map_err(|_| Error::OutOfRange("stream buffer"))?;
        Ok(count)
    }

    /// The device has the buffer for the time of the command. If it does not answer, the lease goes
    /// on, and the memory waits for a reset.
    fn transfer(
        &self,
        opcode: Opcode,
        number: u32,
        buffer: &StreamBuffer,
        length: usize,
        flags: TransferFlags,
    ) -> Result<usize, Error> {
        let args =
            TransferStream { addr: buffer.0.buffer().bus(), length: length as u32, flags: flags.bits() };
        let lease = buffer.0.lease();
        let answer = lease.start_with(|| self.command(opcode, number, &args))?;
        lease.end();
        let count = result::<StreamTransferred>(&answer)?.length as usize;
        if count > length {
            self.condemn();
            return Err(self.death().map_or(Error::OutOfRange("stream length"), Error::DeviceDead));
        }
        Ok(count)
    }

    /// Closes the own direction of a stream.
    pub fn close_stream(&self, number: u32) -> Result<(), Error> {
        self.command(Opcode::CloseStream, number, &()).map(|_| ())
    }

    /// What has happened to a stream or a listener since the last query. The next that happens
    /// raises an event.
    pub fn query_stream(&self, number: u32) -> Result<StreamInfo, Error> {
        result(&self.command(Opcode::QueryStream, number, &())?)
    }

    /// Gives a stream up, or ends a listener. The peer gets a `reset`, or else what was sent.
    pub fn destroy_stream(&self, number: u32, reset: bool) -> Result<(), Error> {
        let args = DestroyStream { reset: reset.into(), reserved: 0 };
        self.command(Opcode::DestroyStream, number, &args).map(|_| ())
    }
}

/// How the stream of an iWARP queue pair has ended, as an event of
/// [`EventType::StreamEnded`] says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnding {
    /// Why.
    pub fault: StreamFault,
    /// The Terminate that was sent or received.
    pub terminate: Option<Terminate>,
    /// Whether a completion of the queue pair shows the error.
    pub completes: bool,
}

/// What a Terminate says, as far as an event has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer << 12 | type << 8 | code (RFC 5040, 4.8).
    pub code: u16,
    /// Whether this end sent it. If not, the peer did.
    pub sent: bool,
}

impl StreamEnding {
    /// Reads the event; `None` if it is none of a stream's end, or names no known fault.
    pub fn of(event: &Eqe) -> Option<StreamEnding> {
        if event.event != EventType::StreamEnded as u8 {
            return None;
        }
        let has = |bit: u32| event.detail & bit != 0;
        let terminate = (has(TERMINATE_SENT) || has(TERMINATE_RECEIVED))
            .then(|| Terminate { code: (event.detail & TERMINATE_CODE) as u16, sent: has(TERMINATE_SENT) });
        let fault = StreamFault::from_byte(event.status)?;
        Some(StreamEnding { fault, terminate, completes: !has(NOT_COMPLETED) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_a_stream_is_read_with_its_fault_and_its_terminate() {
        let event =
            |status, detail| Eqe { event: EventType::StreamEnded as u8, status, detail, ..Eqe::default() };
        let ending = |fault, terminate, completes| Some(StreamEnding { fault, terminate, completes });
        assert_eq!(StreamEnding::of(&event(0, 0)), ending(StreamFault::None, None, true));
        let sent = Some(Terminate { code: 0x1203, sent: true });
        assert_eq!(
            StreamEnding::of(&event(4, 0x1203 | TERMINATE_SENT | NOT_COMPLETED)),
            ending(StreamFault::Receive, sent, false)
        );
        let received = Some(Terminate { code: 0x0100, sent: false });
        let told = event(StreamFault::Terminated as u8, 0x0100 | TERMINATE_RECEIVED);
        assert_eq!(StreamEnding::of(&told), ending(StreamFault::Terminated, received, true));
        assert_eq!(StreamEnding::of(&event(99, 0)), None);
        let other = Eqe { event: EventType::Stream as u8, ..event(0, 0) };
        assert_eq!(StreamEnding::of(&other), None);
    }
}
