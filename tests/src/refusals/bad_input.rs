//! Bad input by tables: each call of the endpoint, connection and posting pages, with each bad
//! value of an argument that its page says is checked. The call must return the error of its page,
//! and a query of all objects must return what it returned before.

use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{Peer, address, datagrams, peer};
use crate::fixture::{
    End, Fixture, Listener, OPEN, PAGE, Pair, Region, SIGNALLED, attributes, path, sevd, spigot,
};
use crate::{Failure, Outcome, Test, check_eq, test};

/// The name of a call, and its error.
type Refusal = (&'static str, Option<Error>);

/// One object of each type on which the calls are tried.
struct Objects {
    pair: Pair,
    idle: End,
    datagram: Peer,
    listener: Listener,
    own: Region,
    there: Region,
    wide: RmrHandle,
    unlinked: LmrHandle,
    addr: AddrHandle,
    way: Path,
}

/// What queries of these objects return.
#[derive(Debug, PartialEq)]
struct Seen {
    endpoints: [EpParam; 4],
    counts: [ObjectCounts; 2],
    memory: Vec<u8>,
}

impl Objects {
    fn new(f: &Fixture) -> Result<Objects, Failure> {
        let (pair, idle, datagram) = (f.pair()?, f.end(&f.a, &attributes())?, peer(&f.a, &datagrams())?);
        let (own, there) = (f.region(&f.a, pair.a.pz, PAGE, OPEN)?, f.region(&f.b, pair.b.pz, PAGE, OPEN)?);
        let listener = f.listen(&f.b)?;
        Ok(Objects {
            wide: f.a.rmr_create(pair.a.pz, RmrType::Wide)?,
            unlinked: f.a.lmr_create_unlinked(pair.a.pz, 1, LmrFlags::NONE, 0)?,
            addr: address(&f.a, datagram.pz, &f.b)?,
            way: path(&f.a, &listener.address)?,
            pair,
            idle,
            datagram,
            listener,
            own,
            there,
        })
    }

    /// Queries all of these objects.
    fn seen(&self, f: &Fixture) -> Result<Seen, Failure> {
        let all = |ia: &Ia, ep| ia.ep_query(ep, EpParamMask::ALL);
        Ok(Seen {
            endpoints: [
                all(&f.a, self.pair.a.ep)?,
                all(&f.b, self.pair.b.ep)?,
                all(&f.a, self.idle.ep)?,
                all(&f.a, self.datagram.ep)?,
            ],
            counts: [f.a.object_counts(), f.b.object_counts()],
            memory: self.there.all(),
        })
    }

    /// Fails unless each of these calls returned `expected` and none changed an object.
    fn refuses(&self, f: &Fixture, what: &str, before: &Seen, expected: Error, calls: &[Refusal]) -> Outcome {
        for (call, error) in calls {
            check_eq!(*error, Some(expected), "{call} with {what}");
        }
        check_eq!(&self.seen(f)?, before, "after calls with {what}");
        for end in [&self.pair.a, &self.pair.b, &self.idle] {
            end.idle()?;
        }
        Ok(())
    }

    /// Every call that takes an RC endpoint only.
    fn of_endpoint(&self, ia: &Ia, ep: EpHandle) -> Vec<Refusal> {
        let (at, context, segment) =
            (self.there.remote(0), self.there.context.unwrap_or_default(), [self.own.segment(0, 8)]);
        let (qual, flags) = (&self.listener.conn_qual, CnEstFlags::TWO_WAY);
        let pages = [IoAddr(self.own.buffer.bus())];
        let (list, mode, addr) =
            (Iobl::pages(&pages, PAGE as u64, 0), AddrMode::Absolute, self.own.buffer.addr());
        let (op, len) = (AtomicOp::FetchAndAdd, PAGE as u64);
        vec![
            ("it_ep_reset", ia.ep_reset(ep).err()),
            ("it_ep_connect", ia.ep_connect(ep, &self.way, None, qual, flags, &[]).err()),
            ("it_ep_disconnect", ia.ep_disconnect(ep, &[]).err()),
            ("it_ep_accept", ia.ep_accept(ep, CnEstId(1), &[]).err()),
            ("it_post_send", ia.post_send(ep, &segment, 1, SIGNALLED).err()),
            ("it_post_recv", ia.post_recv(ep, &segment, 1, SIGNALLED).err()),
            ("it_post_rdma_write", ia.post_rdma_write(ep, &segment, 1, SIGNALLED, at, context).err()),
            ("it_post_rdma_read", ia.post_rdma_read(ep, &segment, 1, SIGNALLED, at, context).err()),
            ("it_post_atomic", ia.post_atomic(ep, op, 1, 0, &segment[0], 1, SIGNALLED, at, context).err()),
            ("it_post_send_and_unlink", ia.post_send_and_unlink(ep, &segment, 1, SIGNALLED, context).err()),
            (
                "it_rmr_link",
                ia.rmr_link(self.wide, self.own.lmr, addr, 8, mode, OPEN, ep, 1, SIGNALLED).err(),
            ),
            ("it_rmr_unlink", ia.rmr_unlink(self.wide, ep, 1, SIGNALLED).err()),
            ("it_lmr_link", ia.lmr_link(self.unlinked, addr, &list, len, mode, OPEN, ep, 1, SIGNALLED).err()),
            ("it_lmr_unlink", ia.lmr_unlink(self.unlinked, ep, 1, SIGNALLED).err()),
        ]
    }
}

/// Each bit that is not in `defined`.
fn others(defined: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|bit| 1 << bit).filter(move |bit| defined & bit == 0)
}

pub(crate) const TESTS: &[Test] = &[
    // Every bad endpoint handle, in every call that takes one.
    test(
        "input::invalid_endpoints",
        &["it_ep_accept IT_ERR_INVALID_EP", "it_post_atomic IT_ERR_INVALID_EP", "it_status_t B01"],
        |f| {
            let objects = Objects::new(f)?;
            let freed = f.end(&f.a, &attributes())?.ep;
            f.a.ep_free(freed)?;
            // This endpoint gets the index of the freed one.
            let _other = f.end(&f.a, &attributes())?;
            let before = objects.seen(f)?;
            let none = [
                ("no handle", EpHandle::NULL),
                ("a freed one", freed),
                ("another IA's", objects.pair.b.ep),
                ("an EVD's", EpHandle::from_raw(objects.pair.a.request.as_raw())),
                ("a zone's", EpHandle::from_raw(objects.pair.a.pz.as_raw())),
                ("a region's", EpHandle::from_raw(objects.own.lmr.as_raw())),
                ("a later generation's", EpHandle::from_raw(objects.pair.a.ep.as_raw() ^ 1 << 40)),
                ("all ones", EpHandle::from_raw(u64::MAX)),
            ];
            for (what, ep) in none {
                let mut calls = objects.of_endpoint(&f.a, ep);
                let to = DgRemoteEpAddr::IbUd { addr: objects.addr, ep_info: objects.datagram.info };
                calls.push(("it_ep_query", f.a.ep_query(ep, EpParamMask::ALL).err()));
                calls.push(("it_ep_modify", f.a.ep_modify(ep, EpParamMask::MAX_ORD, &attributes()).err()));
                calls.push(("it_ep_free", f.a.ep_free(ep).err()));
                calls.push(("it_post_sendto", f.a.post_sendto(ep, &[], 1, SIGNALLED, &to).err()));
                let room = [objects.own.segment(0, 64)];
                calls.push(("it_post_recvfrom", f.a.post_recvfrom(ep, &room, 1, SIGNALLED).err()));
                objects.refuses(f, what, &before, Error::InvalidEp, &calls)?;
            }
            Ok(())
        },
    ),
    // Calls for one type of endpoint refuse the other type.
    test("input::endpoints_of_the_other_type", &["it_post_atomic IT_ERR_INVALID_EP_TYPE"], |f| {
        let objects = Objects::new(f)?;
        let before = objects.seen(f)?;
        let calls = objects.of_endpoint(&f.a, objects.datagram.ep);
        objects.refuses(f, "a datagram endpoint", &before, Error::InvalidEpType, &calls)?;
        let to = DgRemoteEpAddr::IbUd { addr: objects.addr, ep_info: objects.datagram.info };
        let (ep, room) = (objects.pair.a.ep, [objects.own.segment(0, 64)]);
        let key = EpAttributes::default();
        let calls = [
            ("it_post_sendto", f.a.post_sendto(ep, &[], 1, SIGNALLED, &to).err()),
            ("it_post_recvfrom", f.a.post_recvfrom(ep, &room, 1, SIGNALLED).err()),
            ("it_ep_query", f.a.ep_query(ep, EpParamMask::EP_KEY).err()),
            ("it_ep_modify", f.a.ep_modify(ep, EpParamMask::EP_KEY, &key).err()),
        ];
        objects.refuses(f, "a connected endpoint", &before, Error::InvalidEpType, &calls)
    }),
    // Every undefined bit of flags and masks is refused.
    test("input::undefined_bits", &["it_ep_connect IT_ERR_INVALID_CN_EST_FLAGS"], |f| {
        let objects = Objects::new(f)?;
        let before = objects.seen(f)?;
        let (ia, ep) = (&f.a, objects.pair.a.ep);
        let (at, context, segment) =
            (objects.there.remote(0), objects.there.context()?, [objects.own.segment(0, 8)]);
        let to = DgRemoteEpAddr::IbUd { addr: objects.addr, ep_info: objects.datagram.info };
        let (op, room) = (AtomicOp::FetchAndAdd, [objects.own.segment(0, 64)]);
        for bit in others(DtoFlags::all().bits()) {
            let flags = SIGNALLED | DtoFlags::from_bits_retain(bit);
            let calls = [
                ("it_post_send", ia.post_send(ep, &segment, 1, flags).err()),
                ("it_post_recv", ia.post_recv(ep, &segment, 1, flags).err()),
                ("it_post_rdma_write", ia.post_rdma_write(ep, &segment, 1, flags, at, context).err()),
                ("it_post_rdma_read", ia.post_rdma_read(ep, &segment, 1, flags, at, context).err()),
                ("it_post_atomic", ia.post_atomic(ep, op, 1, 0, &segment[0], 1, flags, at, context).err()),
                ("it_post_send_and_unlink", ia.post_send_and_unlink(ep, &segment, 1, flags, context).err()),
                ("it_post_sendto", ia.post_sendto(objects.datagram.ep, &[], 1, flags, &to).err()),
                ("it_post_recvfrom", ia.post_recvfrom(objects.datagram.ep, &room, 1, flags).err()),
            ];
            objects.refuses(f, "an undefined flag", &before, Error::InvalidDtoFlags, &calls)?;
        }
        for bit in others(CnEstFlags::all().bits()) {
            let flags = CnEstFlags::TWO_WAY | CnEstFlags::from_bits_retain(bit);
            let dial =
                ia.ep_connect(objects.idle.ep, &objects.way, None, &objects.listener.conn_qual, flags, &[]);
            let calls = [("it_ep_connect", dial.err())];
            objects.refuses(f, "an undefined flag", &before, Error::InvalidCnEstFlags, &calls)?;
        }
        let End { pz, request, recv, conn, .. } = objects.idle;
        for bit in others(EpFlags::all().bits()) {
            let flags = EpFlags::from_bits_retain(bit);
            let created = ia.ep_rc_create(pz, request, recv, conn, flags, &attributes());
            let calls = [("it_ep_rc_create", created.err())];
            objects.refuses(f, "an undefined flag", &before, Error::InvalidFlags, &calls)?;
        }
        let there = spigot(&f.b)?.spigot_id;
        for bit in others(ListenFlags::all().bits()) {
            let flags = ListenFlags::from_bits_retain(bit);
            let listen = f.b.listen_create(there, objects.listener.evd, flags, None);
            let calls = [("it_listen_create", listen.err())];
            objects.refuses(f, "an undefined flag", &before, Error::InvalidFlags, &calls)?;
        }
        for bit in others(EpParamMask::all().bits()) {
            let mask = EpParamMask::MAX_ORD | EpParamMask::from_bits_retain(bit);
            let calls = [
                ("it_ep_query", ia.ep_query(ep, mask).err()),
                ("it_ep_modify", ia.ep_modify(ep, mask, &attributes()).err()),
            ];
            objects.refuses(f, "an undefined bit", &before, Error::InvalidMask, &calls)?;
        }
        for bit in others(ListenParamMask::all().bits()) {
            let mask = ListenParamMask::from_bits_retain(bit);
            let calls = [("it_listen_query", f.b.listen_query(objects.listener.listen, mask).err())];
            objects.refuses(f, "an undefined bit", &before, Error::InvalidMask, &calls)?;
        }
        Ok(())
    }),
    // Each attribute of an endpoint with one more than its limit is refused.
    test("input::one_above_each_limit", &["it_ep_rc_create IT_ERR_RESOURCE_SSEG"], |f| {
        type Set = fn(&mut EpAttributes, usize);
        let objects = Objects::new(f)?;
        let before = objects.seen(f)?;
        let id = *f.setup.a.agent.identity();
        let (segments, depth) = (id.max_sges as usize, id.max_rd_atomic as usize);
        let table: [(Set, usize, Error); 8] = [
            (|attr, n| attr.max_send_segments = n, segments, Error::ResourceSseg),
            (|attr, n| attr.max_recv_segments = n, segments, Error::ResourceRseg),
            (|attr, n| attr.rc.max_rdma_read_segments = n, segments, Error::ResourceRrseg),
            (|attr, n| attr.rc.max_rdma_write_segments = n, segments, Error::ResourceRwseg),
            (|attr, n| attr.rc.rdma_read_ird = n as u32, depth, Error::ResourceIrd),
            (|attr, n| attr.rc.rdma_read_ord = n as u32, depth, Error::ResourceOrd),
            (|attr, n| attr.max_recv_dtos = n, id.max_rq_entries as usize, Error::ResourceRecvDto),
            (|attr, n| attr.max_dto_payload_size = n, id.max_message as usize, Error::PayloadSize),
        ];
        let End { pz, request, recv, conn, .. } = objects.idle;
        let small = EpAttributes { max_request_dtos: 4, max_recv_dtos: 4, ..attributes() };
        for (set, limit, error) in table {
            let with = |n| {
                let mut attr = small;
                set(&mut attr, n);
                f.a.ep_rc_create(pz, request, recv, conn, EpFlags::empty(), &attr)
            };
            for good in [0, limit] {
                f.a.ep_free(with(good)?)?;
            }
            let calls = [("it_ep_rc_create", with(limit + 1).err())];
            objects.refuses(f, "one more than the limit", &before, error, &calls)?;
        }
        Ok(())
    }),
    // One byte above the limit is refused by each call that takes private data.
    test(
        "input::private_data_at_its_limits",
        &["it_ep_connect IT_ERR_INVALID_PDATA_LENGTH", "it_ep_accept IT_ERR_INVALID_PDATA_LENGTH"],
        |f| {
            let objects = Objects::new(f)?;
            let (info, long) = (f.a.ia_query()?, vec![7; MAX_PRIV_DATA + 1]);
            let (qual, way, idle) = (&objects.listener.conn_qual, &objects.way, &objects.idle);
            let dial =
                |len: usize| f.a.ep_connect(idle.ep, way, None, qual, CnEstFlags::TWO_WAY, &long[..len]);
            let before = objects.seen(f)?;
            let wrong = Error::InvalidPdataLength;
            let up = objects.pair.a.ep;
            for len in [info.connect_private_data_len + 1, MAX_PRIV_DATA + 1] {
                objects.refuses(f, "too much", &before, wrong, &[("it_ep_connect", dial(len).err())])?;
            }
            for len in [info.disconnect_private_data_len + 1, MAX_PRIV_DATA + 1] {
                let ended = f.a.ep_disconnect(up, &long[..len]).err();
                objects.refuses(f, "too much", &before, wrong, &[("it_ep_disconnect", ended)])?;
            }
            // Private data of length zero and of the maximum length is accepted. An answer with too
            // much leaves the request as it was.
            for len in [0, 1] {
                dial(len * info.connect_private_data_len)?;
                let id = objects.listener.request()?.cn_est_id;
                let passive = f.end(&f.b, &attributes())?;
                let before = objects.seen(f)?;
                let (accept, reject) = (info.accept_private_data_len, info.reject_private_data_len);
                let calls = [
                    ("it_ep_accept", f.b.ep_accept(passive.ep, id, &long[..=accept]).err()),
                    ("it_reject", f.b.reject(id, &long[..=reject]).err()),
                ];
                objects.refuses(f, "too much", &before, wrong, &calls)?;
                f.b.ep_accept(passive.ep, id, &long[..len * accept])?;
                idle.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
                f.a.ep_disconnect(idle.ep, &long[..len * info.disconnect_private_data_len])?;
                idle.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
                f.a.ep_reset(idle.ep)?;
            }
            Ok(())
        },
    ),
    // Bad zones, EVDs and identifiers are refused, each with its own error.
    test(
        "input::other_invalid_handles",
        &["it_ep_ud_create IT_ERR_INVALID_PZ IT_ERR_INVALID_REQ_EVD"],
        |f| {
            let objects = Objects::new(f)?;
            let spare = (f.a.pz_create()?, sevd(&f.a, EventType::DTO_EVENT_STREAM, 4, 1)?);
            f.a.pz_free(spare.0)?;
            f.a.evd_free(spare.1)?;
            let before = objects.seen(f)?;
            let (here, way) = (spigot(&f.a)?.spigot_id, &objects.way);
            let End { pz, request, recv, conn, .. } = objects.idle;
            let (rc, ud, none) = (attributes(), datagrams(), EpFlags::empty());
            let wrong_type = objects.idle.ep.as_raw();
            for bad in [PzHandle::NULL, spare.0, objects.pair.b.pz, PzHandle::from_raw(wrong_type)] {
                let calls = [
                    ("it_ep_rc_create", f.a.ep_rc_create(bad, request, recv, conn, none, &rc).err()),
                    ("it_ep_ud_create", f.a.ep_ud_create(bad, request, recv, &ud, here).err()),
                    (
                        "it_address_handle_create",
                        f.a.address_handle_create(bad, way, AhFlags::PATH_COMPLETE).err(),
                    ),
                ];
                objects.refuses(f, "an invalid zone", &before, Error::InvalidPz, &calls)?;
            }
            for bad in [EvdHandle::NULL, spare.1, objects.pair.b.request, EvdHandle::from_raw(wrong_type)] {
                let calls = [
                    ("it_ep_rc_create", f.a.ep_rc_create(pz, bad, recv, conn, none, &rc).err()),
                    ("it_ep_ud_create", f.a.ep_ud_create(pz, bad, recv, &ud, here).err()),
                ];
                objects.refuses(f, "an invalid request EVD", &before, Error::InvalidReqEvd, &calls)?;
                let calls = [
                    ("it_ep_rc_create", f.a.ep_rc_create(pz, request, bad, conn, none, &rc).err()),
                    ("it_ep_ud_create", f.a.ep_ud_create(pz, request, bad, &ud, here).err()),
                ];
                objects.refuses(f, "an invalid receive EVD", &before, Error::InvalidRecvEvd, &calls)?;
                let qual = &objects.listener.conn_qual;
                let calls = [
                    ("it_ep_rc_create", f.a.ep_rc_create(pz, request, recv, bad, none, &rc).err()),
                    ("it_listen_create", f.a.listen_create(here, bad, ListenFlags::empty(), None).err()),
                    (
                        "it_ud_service_request_handle_create",
                        f.a.ud_service_request_handle_create(qual, bad, way, &[]).err(),
                    ),
                ];
                objects.refuses(f, "an invalid connection EVD", &before, Error::InvalidConnEvd, &calls)?;
            }
            for id in [0, 1 << 40, u64::MAX].map(CnEstId) {
                let calls = [
                    ("it_ep_accept", f.a.ep_accept(objects.idle.ep, id, &[]).err()),
                    ("it_reject", f.a.reject(id, &[]).err()),
                    ("it_handoff", f.a.handoff(&objects.listener.conn_qual, here, id).err()),
                ];
                objects.refuses(f, "an invalid identifier", &before, Error::InvalidCnEstId, &calls)?;
            }
            Ok(())
        },
    ),
    // Calls that are forbidden in a callback are refused there and change nothing.
    test("input::calls_of_a_callback", &["it_evd_callback_attach L02"], |f| {
        let objects = Objects::new(f)?;
        let evd = sevd(&f.a, EventType::CM_MSG_EVENT_STREAM, 4, 1)?;
        let before = objects.seen(f)?;
        let End { pz, request, recv, .. } = objects.idle;
        let (here, way, qual) = (spigot(&f.a)?.spigot_id, objects.way, objects.listener.conn_qual);
        let from = spigot(&f.b)?.net_addr.first().copied();
        let address = some(from, "a network address")?;
        let refusals = crate::events::callback::inside(f, move |ia, _| {
            [
                ("it_ep_ud_create", ia.ep_ud_create(pz, request, recv, &datagrams(), here).err()),
                ("it_srq_create", ia.srq_create(pz, 1, 4).err()),
                ("it_rmr_create", ia.rmr_create(pz, RmrType::Wide).err()),
                (
                    "it_address_handle_create",
                    ia.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE).err(),
                ),
                (
                    "it_ud_service_request_handle_create",
                    ia.ud_service_request_handle_create(&qual, evd, &way, &[]).err(),
                ),
                ("it_convert_net_addr", ia.convert_net_addr(&address, NetAddrType::Ipv6).err()),
            ]
        })?;
        objects.refuses(f, "a call in a callback", &before, Error::CallbackContext, &refusals)
    }),
];
