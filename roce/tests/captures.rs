//! Captures of Linux peers: each RoCEv2 frame and each connection management datagram in one is
//! parsed, its ICRC verified, and emitted again with the same bytes.

extern crate ferrovia_roce as roce;

mod pcap;

use std::collections::BTreeSet;
use std::path::PathBuf;

use pcap::{data, frames, rocev2};
use roce::cm::{self, Message, ReadDepths, ip_cm, req};
use roce::wire::aeth::Syndrome;
use roce::wire::opcode::Opcode;
use roce::wire::{datagram, ethernet};
use roce::{PathMtu, QKey, Qpn, ServiceId};

fn captures() -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(data())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn messages(name: &str) -> Vec<cm::Datagram> {
    let mut found = Vec::new();
    for (_, frame) in frames(&data().join(name)) {
        let Some(packet) = rocev2(&frame) else { continue };
        let roce = datagram::Repr::parse(packet).unwrap();
        if roce.packet.bth.dest_qp == Qpn::GSI {
            found.push(cm::Datagram::parse(roce.packet.payload).unwrap());
        }
    }
    found
}

#[test]
fn every_frame_is_emitted_as_it_was() {
    let (mut packets, mut datagrams) = (0, 0);
    let mut opcodes = BTreeSet::new();
    let mut attributes = BTreeSet::new();
    let mut naks = 0;
    for path in captures() {
        for (_, frame) in frames(&path) {
            let Some(packet) = rocev2(&frame) else { continue };
            let parsed = datagram::Repr::parse(packet).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let mut back = vec![0; packet.len()];
            let len = parsed.emit(&mut back).unwrap();
            // Short frames are padded by Ethernet.
            assert_eq!(back[..len], packet[..len], "{path:?}");
            let (link, _) = ethernet::Repr::parse(&frame).unwrap();
            let mut head = [0; 14];
            link.emit(&mut head).unwrap();
            assert_eq!(head, frame[..14]);
            packets += 1;
            opcodes.insert(parsed.packet.bth.opcode.code());
            naks += usize::from(
                matches!(parsed.packet.aeth, Some(aeth) if matches!(aeth.syndrome, Syndrome::Nak(_))),
            );

            if parsed.packet.bth.dest_qp == Qpn::GSI {
                assert_eq!(parsed.packet.deth.unwrap().qkey, QKey::GSI);
                let datagram = cm::Datagram::parse(parsed.packet.payload).unwrap();
                assert_eq!(datagram.emit()[..], *parsed.packet.payload, "{path:?}");
                attributes.insert(datagram.message.attr_id());
                datagrams += 1;
            }
        }
    }
    // The captures are known to have these; a reader that skips frames would miss some.
    println!(
        "{packets} packets, {datagrams} datagrams, opcodes {opcodes:x?}, attributes {attributes:x?}, \
         {naks} NAKs"
    );
    assert!(packets > 500 && datagrams > 30 && naks > 0);
    assert_eq!(attributes, BTreeSet::from([0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]));
    for opcode in [
        Opcode::RcSendFirst,
        Opcode::RcSendMiddle,
        Opcode::RcSendLast,
        Opcode::RcSendOnly,
        Opcode::RcWriteFirst,
        Opcode::RcWriteMiddle,
        Opcode::RcWriteLast,
        Opcode::RcReadRequest,
        Opcode::RcReadResponseFirst,
        Opcode::RcReadResponseMiddle,
        Opcode::RcReadResponseLast,
        Opcode::RcReadResponseOnly,
        Opcode::RcAcknowledge,
        Opcode::RcAtomicAcknowledge,
        Opcode::RcCompareSwap,
        Opcode::RcFetchAdd,
        Opcode::RcSendOnlyInvalidate,
        Opcode::UdSendOnly,
    ] {
        assert!(opcodes.contains(&opcode.code()), "{opcode:?}");
    }
}

#[test]
fn a_connection_of_rping_reads_as_it_was_made() {
    let messages = messages("01-rping.pcap");
    let [req, rep, rtu, dreq, drep] = messages[..] else { panic!("{} messages", messages.len()) };
    let (Message::Req(req), Message::Rep(rep), Message::Rtu(rtu)) = (req.message, rep.message, rtu.message)
    else {
        panic!("not REQ, REP, RTU");
    };
    assert_eq!(req.service_id, ServiceId::ip_cm(ServiceId::TCP, 7174));
    assert_eq!(req.local_qpn, Qpn::new(0x11).unwrap());
    assert_eq!(req.starting_psn.get(), 0xc381c6);
    assert_eq!(req.depths, ReadDepths { responder_resources: 1, initiator_depth: 1 });
    assert_eq!((req.remote_cm_timeout.get(), req.local_cm_timeout.get()), (20, 20));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!(PathMtu::from_code(req.path_mtu), Some(PathMtu::B1024));
    assert_eq!(req.transport_service, req::TransportService::Rc);
    assert_eq!(req.primary_path.path.local_gid.to_string(), "::ffff:10.0.0.2");
    assert_eq!(req.primary_path.path.remote_gid.to_string(), "::ffff:10.0.0.1");
    let (ip, rest) = ip_cm::Repr::parse(&req.private_data).unwrap();
    assert_eq!((ip.src.to_string(), ip.dst.to_string()), ("10.0.0.2".into(), "10.0.0.1".into()));
    assert_eq!(rest.len(), 56);
    let mut header = [0; 36];
    ip.emit(&mut header).unwrap();
    assert_eq!(header, req.private_data[..36]);

    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    assert_eq!(rep.starting_psn.get(), 0xc09fb4);
    assert_eq!((rep.depths, rep.rnr_retry_count), (req.depths, 7));
    assert_eq!(rep.target_ack_delay.get(), 15);
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert!(matches!(dreq.message, Message::Dreq(dreq) if dreq.remote_qpn == rep.local_qpn));
    assert!(matches!(drep.message, Message::Drep(drep) if drep.local_comm_id == rep.local_comm_id));
}

#[test]
fn the_starting_psn_is_the_one_its_receiver_sends_with() {
    let frames = frames(&data().join("01-rping.pcap"));
    let packets: Vec<_> = frames
        .iter()
        .filter_map(|(_, frame)| rocev2(frame))
        .map(|p| datagram::Repr::parse(p).unwrap())
        .collect();
    let first = packets.iter().find(|p| p.packet.bth.opcode == Opcode::RcSendOnly).unwrap();
    // From the side that sent the REQ, with the PSN of the REP.
    assert_eq!(first.network.src().to_string(), "::ffff:10.0.0.2");
    assert_eq!(first.packet.bth.psn.get(), 0xc09fb4);
}

#[test]
fn a_request_without_a_listener_is_rejected_with_reason_8() {
    let messages = messages("13-rej-nolistener.pcap");
    let [_, rej] = messages[..] else { panic!("{} messages", messages.len()) };
    let Message::Rej(rej) = rej.message else { panic!("no REJ") };
    assert_eq!(rej.reason, cm::rej::Reason::INVALID_SERVICE_ID);
    assert_eq!(rej.rejected, cm::rej::Rejected::Req);
    assert_eq!(rej.local_comm_id, cm::CommId(0));
}

#[test]
fn service_resolution_names_queue_pair_and_key() {
    let messages = messages("08-udaddy.pcap");
    let req = messages.iter().find_map(|m| if let Message::SidrReq(r) = m.message { Some(r) } else { None });
    let rep = messages.iter().find_map(|m| if let Message::SidrRep(r) = m.message { Some(r) } else { None });
    let (req, rep) = (req.unwrap(), rep.unwrap());
    assert_eq!(req.service_id.to_ip_cm().unwrap().0, ServiceId::UDP);
    assert_eq!((rep.request_id, rep.service_id), (req.request_id, req.service_id));
    assert_eq!((rep.status, rep.qkey), (cm::sidr::Status::Valid, QKey(0x0123_4567)));
    assert!(ip_cm::Repr::parse(&req.private_data).is_ok());
}
