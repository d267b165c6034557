//! A port and the wire that it is plugged into. What a NIC does with them is in `traffic`.

use alloc::boxed::Box;
use alloc::vec;

use roce::PathMtu;
use roce::wire::ethernet;

use crate::held::{self, Held};
use crate::port::{MAX_MTU, Port, Sender};
use crate::schedule::Schedule;
use crate::wire::Wire;

/// The size of the largest frame, with the tag of a VLAN.
const MAX_FRAME: usize = ethernet::Repr::LEN + ethernet::Repr::TAG + MAX_MTU as usize;
/// The longest payload of a packet.
const MAX_PAYLOAD: usize = PathMtu::B4096.bytes() as usize;
/// Bytes of a frame that are handled in a unit of work.
pub(crate) const UNIT: usize = 512;
/// Why a packet does not fit the buffer for frames.
const TOO_SHORT: roce::Error = roce::Error::Truncated { what: "frame", need: 0, have: 0 };

/// A port and the wire that it is plugged into.
pub(crate) struct Uplink<W> {
    pub port: Port,
    pub wire: W,
    /// Where frames are received; absent while the frame in it is handled.
    pub input: Box<[u8]>,
    /// Where frames are built.
    pub output: Box<[u8]>,
    /// Where the payload of a packet is gathered.
    pub payload: Box<[u8]>,
    /// Datagrams that wait for the MAC of their neighbour.
    pub held: Held,
}

impl<W: Wire> Uplink<W> {
    /// A port that is plugged into a wire, and buffers for its frames.
    pub fn new(port: Port, wire: W) -> Uplink<W> {
        let [input, output] = [(); 2].map(|()| vec![0; MAX_FRAME].into_boxed_slice());
        let payload = vec![0; MAX_PAYLOAD].into_boxed_slice();
        Uplink { port, wire, input, output, payload, held: Held::default() }
    }

    /// Sends the port's own frames, and datagrams that waited for a MAC, until there are none, the
    /// wire has no room, or the slice is over. Returns how many datagrams are lost.
    pub fn send_frames(&mut self, schedule: &mut Schedule) -> u64 {
        let mut lost = 0;
        while self.wire.has_room()
            && !schedule.slice_is_over()
            && let Some(len) = self.port.next_frame(&mut self.output)
        {
            self.wire.send(&self.output[..len], schedule.now);
            schedule.charge(1);
        }
        while (!self.port.up() || self.wire.has_room())
            && !schedule.slice_is_over()
            && let Some(datagram) = self.held.next()
        {
            lost += u64::from(!self.send_held(schedule, &datagram));
        }
        self.wire.flush(schedule.now);
        lost
    }

    /// Sends a datagram that waited for a MAC. False if it is lost.
    fn send_held(&mut self, schedule: &mut Schedule, datagram: &held::Datagram) -> bool {
        let held::Datagram { qpn, network, port, packet } = datagram;
        schedule.charge(1 + (packet.len() / UNIT) as u32);
        let sender = Sender { number: *qpn, datagrams: true };
        let result = self.port.transmit(network, sender, *port, &mut self.output, schedule.now, |into| {
            into.get_mut(..packet.len()).map(|into| into.copy_from_slice(packet)).ok_or(TOO_SHORT)?;
            Ok(packet.len())
        });
        if let Ok(len) = result {
            self.wire.send(&self.output[..len], schedule.now);
        }
        result.is_ok()
    }
}
