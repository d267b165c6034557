//! A peer that the test plays: it holds a plain stream, and makes the frames and FPDUs by hand. So
//! it sees each byte of the connection, says when the next one goes, and can send what is wrong.

use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;
use core::time::Duration;

use iwarp::ddp::{Header, Place, queue};
use iwarp::mpa::fpdu;
use iwarp::mpa::frame::{Depth, Enhanced, Kind, MAX_FRAME, Repr};
use iwarp::rdmap::terminate::{self, Code, Quoted};
use iwarp::rdmap::{Control, Opcode, read};
use privileged_api::*;
use rdma::{Nic, Stream, StreamListener, Transport};

use super::{open, page};
use crate::fixture::{End, Fixture, MOMENT, Region, WAIT, spigot};
use crate::{Failure, Outcome, check_eq};

/// The port at which a played peer listens.
const PORT: u16 = 4_100;
/// How long it waits for what must come.
const PATIENCE: Duration = Duration::from_micros(WAIT);
/// IRD and ORD of the played peer's Reply.
pub(super) const DEPTHS: (u16, u16) = (2, 2);

#[track_caller]
pub(super) fn failure(error: impl core::fmt::Debug) -> Failure {
    Failure::new(alloc::format!("the played peer: {error:?}"))
}

/// A frame of revision 1, with a CRC and without private data.
pub(super) const fn plain(kind: Kind) -> Repr<'static> {
    Repr { kind, markers: false, crc: true, reject: false, enhanced: false, revision: 1, data: &[] }
}

/// A frame as an RNIC of the RDMA Consortium sends it: of revision 0, and with markers.
pub(super) const fn of_rdmac(kind: Kind) -> Repr<'static> {
    Repr { markers: true, revision: 0, ..plain(kind) }
}

/// The data of a frame with IRD and ORD.
pub(super) fn with_depths((ird, ord): (u16, u16), private: &[u8]) -> Vec<u8> {
    let depths = Enhanced { ird: Depth::new(ird), ord: Depth::new(ord), ..Enhanced::default() };
    [&depths.to_bytes()[..], private].concat()
}

/// A frame of revision 2 with that data.
pub(super) const fn enhanced(kind: Kind, data: &[u8]) -> Repr<'_> {
    Repr { enhanced: true, revision: 2, data, ..plain(kind) }
}

/// The bytes of an FPDU.
#[track_caller]
pub(super) fn fpdu(header: Header, payload: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut ulpdu = vec![0; header.size()];
    header.emit(&mut ulpdu).map_err(failure)?;
    ulpdu.extend_from_slice(payload);
    let mut bytes = vec![0; fpdu::length(ulpdu.len())];
    fpdu::emit(&ulpdu, true, &mut bytes).map_err(failure)?;
    Ok(bytes)
}

/// The header of the last segment of an operation.
pub(super) fn header(opcode: Opcode, place: Place) -> Header {
    Header::new(true, Control::new(opcode).to_byte(), place)
}

/// The place of a segment of the first Send.
pub(super) const fn first_send(mo: u32) -> Place {
    Place::Untagged { invalidate: 0, queue: queue::SEND, msn: 1, mo }
}

/// The place of the request of an RDMA Read.
pub(super) const fn read_request(msn: u32) -> Place {
    Place::Untagged { invalidate: 0, queue: queue::READ, msn, mo: 0 }
}

/// An RDMA Write of no bytes, which is the least first message.
#[track_caller]
pub(super) fn nothing() -> Result<Vec<u8>, Failure> {
    fpdu(header(Opcode::Write, Place::Tagged { stag: 0, to: 0 }), &[])
}

/// A Terminate. `about`: the headers of the RDMA Read that it refuses.
#[track_caller]
pub(super) fn terminate(code: Code, about: Option<&(Header, Vec<u8>)>) -> Result<Vec<u8>, Failure> {
    let quoted = about.map(|(header, payload)| {
        let read = read::Repr::parse(payload).ok().map(|(read, _)| read);
        Quoted { length: (header.size() + payload.len()) as u16, header: Some(*header), read }
    });
    let message = terminate::Repr { quoted, ..code.into() };
    let mut payload = [0; terminate::Repr::MAX];
    let length = message.emit(&mut payload).map_err(failure)?;
    let place = Place::Untagged { invalidate: 0, queue: queue::TERMINATE, msn: 1, mo: 0 };
    fpdu(header(Opcode::Terminate, place), payload.get(..length).unwrap_or_default())
}

/// A played peer, on the NIC of `a`.
pub(super) struct Played {
    stream: Stream,
    /// The stream lives as long as the opening that made it.
    _nic: Nic,
}

/// A played peer that waits for somebody to connect.
pub(super) struct Waiting {
    nic: Nic,
    listener: StreamListener,
}

#[track_caller]
fn nic(f: &Fixture) -> Result<Nic, Failure> {
    Nic::open_over(&f.setup.a.agent, Transport::Iwarp).map_err(failure)
}

impl Waiting {
    #[track_caller]
    pub(super) fn new(f: &Fixture) -> Result<Waiting, Failure> {
        let nic = nic(f)?;
        let listener = nic.listen_for_streams(PORT).map_err(failure)?;
        Ok(Waiting { nic, listener })
    }

    /// The played peer that an endpoint of `b` connects to.
    #[track_caller]
    pub(super) fn dialled(&self, f: &Fixture, end: &End, private_data: &[u8]) -> Result<Played, Failure> {
        let address = crate::check::some(spigot(&f.a)?.net_addr.first().copied(), "an address")?;
        let path = crate::fixture::path(&end.ia, &address)?;
        let (qual, flags) = (ConnQual::port(PORT), CnEstFlags::TWO_WAY);
        end.ia.ep_connect(end.ep, &path, None, &qual, flags, private_data)?;
        let stream = self.listener.wait_timeout(PATIENCE).map_err(failure)?;
        let stream = crate::check::some(stream, "a stream of the endpoint")?;
        Ok(Played { stream, _nic: self.nic.clone() })
    }
}

impl Played {
    /// One that connects to a port of `b`; `None` if nobody listens there.
    #[track_caller]
    pub(super) fn dials(f: &Fixture, qual: &ConnQual) -> Result<Option<Played>, Failure> {
        let &ConnQual::IanaPort(port) = qual else { return Err(Failure::new("no port")) };
        let there = Nic::open_over(&f.setup.b.agent, Transport::Iwarp).map_err(failure)?.address();
        let nic = nic(f)?;
        match nic.connect_stream(there, u16::from_be(port)).wait() {
            Ok(stream) => Ok(Some(Played { stream, _nic: nic })),
            Err(rdma::ConnectError::NoListener) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }

    /// One whose stream has this end.
    pub(super) fn of(stream: Stream, nic: Nic) -> Played {
        Played { stream, _nic: nic }
    }

    #[track_caller]
    pub(super) fn say(&self, bytes: &[u8]) -> Outcome {
        self.stream.send(bytes).wait().map_err(failure)
    }

    #[track_caller]
    pub(super) fn say_frame(&self, frame: &Repr<'_>) -> Outcome {
        self.say_frame_in(frame, MAX_FRAME)
    }

    /// Says a frame in pieces of so many bytes, or until the other end has had enough.
    #[track_caller]
    pub(super) fn say_frame_in(&self, frame: &Repr<'_>, piece: usize) -> Outcome {
        let mut bytes = [0; MAX_FRAME];
        let length = frame.emit(&mut bytes).map_err(failure)?;
        for part in bytes.get(..length).unwrap_or_default().chunks(piece) {
            self.say(part)?;
        }
        Ok(())
    }

    /// The next bytes, so many.
    #[track_caller]
    pub(super) fn hear(&self, count: usize) -> Result<Vec<u8>, Failure> {
        let (mut bytes, mut have) = (vec![0; count], 0);
        while have < count {
            let room = bytes.get_mut(have..).unwrap_or_default();
            match self.stream.receive(room).wait_timeout(PATIENCE).map_err(failure)? {
                None => return Err(Failure::new(alloc::format!("only {have} of {count} bytes came"))),
                Some(0) => return Err(Failure::new(alloc::format!("the stream ends behind {have} bytes"))),
                Some(some) => have += some,
            }
        }
        Ok(bytes)
    }

    /// The bytes of the next frame, which has to be of that kind.
    #[track_caller]
    pub(super) fn hear_frame(&self, kind: Kind) -> Result<Vec<u8>, Failure> {
        let mut bytes = self.hear(Repr::HEADER)?;
        let length = bytes.last_chunk().map_or(0, |&length| u16::from_be_bytes(length));
        bytes.extend(self.hear(length.into())?);
        Repr::parse(kind, &bytes).map_err(failure)?;
        Ok(bytes)
    }

    /// The next segment that is no announcement, which is repeated until this peer speaks: its
    /// header and payload.
    #[track_caller]
    pub(super) fn hear_segment(&self) -> Result<(Header, Vec<u8>), Failure> {
        loop {
            let (header, payload) = self.hear_any()?;
            if !payload.is_empty() || !matches!(header.place, Place::Tagged { .. }) {
                return Ok((header, payload));
            }
        }
    }

    /// The next segment: its header and payload.
    #[track_caller]
    pub(super) fn hear_any(&self) -> Result<(Header, Vec<u8>), Failure> {
        let first = self.hear(2)?;
        let length = usize::from(first.first_chunk().map_or(0, |&length| u16::from_be_bytes(length)));
        let rest = self.hear(fpdu::length(length) - first.len())?;
        let ulpdu = rest.get(..length).unwrap_or_default();
        let (header, payload) = Header::parse(ulpdu).map_err(failure)?;
        Ok((header, payload.to_vec()))
    }

    /// The next segment, which has to be of this operation.
    #[track_caller]
    pub(super) fn hear_of(&self, opcode: Opcode) -> Result<(Header, Vec<u8>), Failure> {
        let (header, payload) = self.hear_segment()?;
        match Control::parse(header.control).opcode() == Some(opcode) {
            true => Ok((header, payload)),
            false => Err(Failure::new(alloc::format!("no {opcode:?}, but {header:?}"))),
        }
    }

    /// The code of the Terminate that comes next.
    #[track_caller]
    pub(super) fn terminated(&self) -> Result<Code, Failure> {
        let (_, payload) = self.hear_of(Opcode::Terminate)?;
        Ok(terminate::Repr::parse(&payload).map_err(failure)?.code)
    }

    /// Fails if bytes come.
    #[track_caller]
    pub(super) fn hears_nothing(&self) -> Outcome {
        let moment = Duration::from_micros(MOMENT);
        match self.stream.receive(&mut [0; 1]).wait_timeout(moment).map_err(failure)? {
            None => Ok(()),
            Some(count) => Err(Failure::new(alloc::format!("{count} bytes"))),
        }
    }

    /// Waits until the other end has ended the stream, whatever it sends before.
    #[track_caller]
    pub(super) fn hears_the_end(&self) -> Outcome {
        loop {
            match self.stream.receive(&mut [0; 64]).wait_timeout(PATIENCE) {
                Ok(Some(1..)) => {}
                Ok(None) => return Err(Failure::new("the stream does not end")),
                Ok(Some(0)) | Err(_) => return Ok(()),
            }
        }
    }

    /// Ends its direction of the stream.
    #[track_caller]
    pub(super) fn finish(&self) -> Outcome {
        self.stream.finish().map_err(failure)
    }

    /// Resets the stream.
    pub(super) fn reset(self) {
        self.stream.reset();
    }

    /// Answers the request of an RDMA Read with these bytes.
    #[track_caller]
    pub(super) fn respond(&self, (_, request): &(Header, Vec<u8>), bytes: &[u8]) -> Outcome {
        let (request, _) = read::Repr::parse(request).map_err(failure)?;
        check_eq!(request.size as usize, bytes.len());
        let place = Place::Tagged { stag: request.sink_stag, to: request.sink_to };
        self.say(&fpdu(header(Opcode::ReadResponse, place), bytes)?)
    }
}

/// An endpoint of `b` that is connected to a played peer, which has heard nothing yet.
pub(super) struct Meeting {
    pub(super) end: End,
    pub(super) peer: Played,
    /// A page of the endpoint's zone, open to peers.
    pub(super) own: Region,
}

impl Meeting {
    #[track_caller]
    pub(super) fn new(f: &Fixture) -> Result<Meeting, Failure> {
        Meeting::of(f, f.end(&f.b, &open())?)
    }

    /// Of this endpoint.
    #[track_caller]
    pub(super) fn of(f: &Fixture, end: End) -> Result<Meeting, Failure> {
        let waiting = Waiting::new(f)?;
        let peer = waiting.dialled(f, &end, &[])?;
        peer.hear_frame(Kind::Request)?;
        peer.say_frame(&enhanced(Kind::Reply, &with_depths(DEPTHS, &[])))?;
        end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        // An endpoint announces itself again to a peer that is silent.
        peer.say(&nothing()?)?;
        let own = page(f, &end)?;
        own.fill(1);
        Ok(Meeting { end, peer, own })
    }

    /// The place in the endpoint's page at this offset, as a peer names it.
    #[track_caller]
    pub(super) fn place(&self, offset: usize) -> Result<Place, Failure> {
        Ok(Place::Tagged { stag: self.stag()?, to: self.own.remote(offset).to_host() })
    }

    /// The STag of the endpoint's page.
    #[track_caller]
    pub(super) fn stag(&self) -> Result<u32, Failure> {
        Ok(u32::from_be(self.own.context()?.0))
    }

    /// Posts an RDMA Read of so many bytes into the endpoint's page, and takes its request.
    #[track_caller]
    pub(super) fn reads(&self, cookie: u64, length: usize) -> Result<(Header, Vec<u8>), Failure> {
        self.post_read(cookie, length)?;
        self.peer.hear_of(Opcode::ReadRequest)
    }

    #[track_caller]
    pub(super) fn post_read(&self, cookie: u64, length: usize) -> Outcome {
        let segment = [self.own.segment(0, length)];
        let (at, context) = (make_rdma_addr_absolute(0x4000), RmrContext(7));
        let flags = crate::fixture::SIGNALLED;
        Ok(self.end.ia.post_rdma_read(self.end.ep, &segment, cookie, flags, at, context)?)
    }
}
