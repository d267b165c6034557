//! The messages of Linux's rdma_cm, from a capture of rping, as messages to us.

use alloc::vec::Vec;

use pcap_file::pcap::PcapReader;
use platform::Instant;
use roce::cm::{Datagram, Message, ReadDepths, dreq, rep, rtu};
use roce::transport::Service;
use roce::wire::datagram;
use roce::{Gid, Path, Qpn, ServiceId};

use super::net::{config, local, qpn};
use crate::cm::*;

const CAPTURE: &[u8] = include_bytes!("../../../../roce/tests/data/01-rping.pcap");
const ETHERNET: usize = 14;

/// The capture's datagrams with their senders and receivers.
fn datagrams() -> Vec<(Gid, Gid, Datagram)> {
    let mut reader = PcapReader::new(CAPTURE).unwrap();
    let mut found = Vec::new();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.unwrap().data;
        let Ok(roce) = datagram::Repr::parse(&frame[ETHERNET..]) else { continue };
        if roce.packet.bth.dest_qp == Qpn::GSI {
            let datagram = Datagram::parse(roce.packet.payload).unwrap();
            found.push((roce.network.src(), roce.network.dst(), datagram));
        }
    }
    found
}

struct World {
    cm: Cm,
    us: Gid,
    them: Gid,
    tid: u64,
}

impl World {
    fn say(&mut self, message: impl Into<Message>) {
        let datagram = Datagram { tid: self.tid, message: message.into() };
        let from = Arrival { local_gid: self.us, remote_gid: self.them, remote_qp: Qpn::GSI };
        self.cm.receive(Instant::ZERO, &from, &datagram.emit());
    }

    fn event(&mut self) -> Event {
        match self.cm.next_action() {
            Some(Action::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    fn sent(&mut self) -> Datagram {
        match self.cm.next_action() {
            Some(Action::Send(out)) => {
                assert_eq!((out.local_gid, out.remote_gid), (self.us, self.them));
                Datagram::parse(&out.mad).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn its_client_connects_to_us_and_leaves() {
    let said = datagrams();
    let [(them, us, req), _, (_, _, rtu), (_, _, dreq), _] = said[..] else { panic!("{}", said.len()) };
    let (Message::Req(req_said), Message::Rtu(rtu_said), Message::Dreq(dreq_said)) =
        (req.message, rtu.message, dreq.message)
    else {
        panic!()
    };
    let mut world = World { cm: Cm::new(config()), us, them, tid: req.tid };
    world.cm.listen(ServiceId::ip_cm(ServiceId::TCP, 7174), Transports::RC, 1).unwrap();
    world.say(req_said);
    let Event::ConnectRequest(request) = world.event() else { panic!() };
    assert_eq!(request.ip.unwrap().src, them.to_ip());
    assert_eq!((request.remote_qpn, request.send_psn.get()), (qpn(0x11), 0xc381c6));
    world.cm.accept(Instant::ZERO, request.conn, local(0x42), &AcceptParams::default(), b"").unwrap();
    let reply = world.sent();
    let Message::Rep(rep) = reply.message else { panic!() };
    assert_eq!((reply.tid, rep.remote_comm_id), (req.tid, req_said.local_comm_id));
    world.say(rtu::Rtu { remote_comm_id: rep.local_comm_id, ..rtu_said });
    assert!(matches!(world.event(), Event::Established { .. }));
    world.say(dreq::Repr { remote_comm_id: rep.local_comm_id, remote_qpn: qpn(0x42), ..dreq_said });
    let Message::Drep(drep) = world.sent().message else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (rep.local_comm_id, req_said.local_comm_id));
    assert!(matches!(world.event(), Event::Disconnected { .. }));
}

#[test]
fn its_server_accepts_us_and_our_request_looks_like_its_own() {
    let said = datagrams();
    let [(us, them, req), (_, _, rep), ..] = said[..] else { panic!("{}", said.len()) };
    let (Message::Req(theirs), Message::Rep(rep_said)) = (req.message, rep.message) else { panic!() };
    let mut world = World { cm: Cm::new(config()), us, them, tid: 0 };
    let ip = roce::cm::ip_cm::Repr::parse(&theirs.private_data).unwrap().0;
    let qp = LocalQp {
        transport: Service::Rc,
        qpn: theirs.local_qpn,
        receive_psn: theirs.starting_psn,
        srq: theirs.srq,
    };
    let path = Path { local_gid: us, remote_gid: them, ..theirs.primary_path.path };
    let params = ConnectParams {
        ip_source_port: ip.src_port,
        depths: ReadDepths { responder_resources: 1, initiator_depth: 1 },
        remote_cm_timeout: theirs.remote_cm_timeout,
        local_cm_timeout: theirs.local_cm_timeout,
        max_cm_retries: 15,
        local_ack_timeout: theirs.primary_path.local_ack_timeout,
        ..ConnectParams::new(path, theirs.service_id)
    };
    let data = &theirs.private_data[roce::cm::ip_cm::Repr::LEN..];
    let conn = world.cm.connect(Instant::ZERO, qp, &params, data).unwrap();
    let request = world.sent();
    let Message::Req(ours) = request.message else { panic!() };
    let named = |mut req: roce::cm::req::Repr| {
        (req.local_comm_id, req.local_ca_guid) = Default::default();
        req
    };
    assert_eq!(named(ours), named(theirs));
    world.tid = request.tid;
    world.say(rep::Repr { remote_comm_id: ours.local_comm_id, ..rep_said });
    let Event::Reply(reply) = world.event() else { panic!() };
    assert_eq!((reply.conn, reply.remote_qpn, reply.send_psn.get()), (conn, qpn(0x11), 0xc09fb4));
}
