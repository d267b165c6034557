//! Bad arguments of the calls for services: listen points, shared receive queues, address handles,
//! UD services, paths and names. Each call is made with every bad value of each argument that its
//! page says is checked; a refused call changes nothing.

use core::result::Result;

use privileged_api::*;

use crate::datagrams::ud::{Peer, address, datagrams, peer};
use crate::fixture::{End, Fixture, Listener, OPEN, Region, SIGNALLED, WAIT, attributes, path, sevd};
use crate::support::refusal::{Queried, call, no_handles, undefined};
use crate::{Failure, Outcome, Test, check_eq, some, test};

/// Qualifiers that name no service.
const NO_SERVICES: [ConnQual; 4] = [
    ConnQual::IanaPort(0),
    ConnQual::IbServiceId(0),
    ConnQual::ViaDiscriminator(ViaDiscriminator { len: 4, discriminator: [1; MAX_VIA_DISC_LEN] }),
    ConnQual::IanaLrPort { local: 1, remote: 2 },
];

/// One object of each type that the calls act on, and an unanswered request of either kind.
struct Objects {
    ia: Ia,
    listener: Listener,
    end: End,
    peer: Peer,
    region: Region,
    srq: SrqHandle,
    addr: AddrHandle,
    asked: UdSvcReqHandle,
    way: Path,
    /// The identifiers of the peers' requests.
    service: u64,
    connection: CnEstId,
}

impl Objects {
    /// The objects on `a`.
    fn new(f: &Fixture) -> Result<Objects, Failure> {
        Objects::of(f, &f.a, &f.b)
    }

    /// The objects on `ia`, with an address handle for `other`.
    fn of(f: &Fixture, ia: &Ia, other: &Ia) -> Result<Objects, Failure> {
        let listener = f.listen(ia)?;
        let (end, peer) = (f.end(ia, &attributes())?, peer(ia, &datagrams())?);
        let way = path(ia, &listener.address)?;
        let asked = ia.ud_service_request_handle_create(&listener.conn_qual, end.conn, &way, b"who?")?;
        // The IA sends the request to itself, so that there is one to answer.
        ia.ud_service_request(asked)?;
        let Event::UdServiceRequest(request) = ia.evd_wait(listener.evd, WAIT)?.0 else {
            return Err(Failure::new("not a UD service request"));
        };
        let dialling = f.end(ia, &attributes())?;
        f.dial(&dialling, &listener, CnEstFlags::TWO_WAY, &[])?;
        Ok(Objects {
            ia: ia.clone(),
            connection: listener.request()?.cn_est_id,
            region: f.region(ia, peer.pz, 256, OPEN)?,
            srq: ia.srq_create(peer.pz, 2, 4)?,
            addr: address(ia, peer.pz, other)?,
            service: request.ud_svc_req_id,
            listener,
            end,
            peer,
            asked,
            way,
        })
    }

    fn ia(&self) -> &Ia {
        &self.ia
    }

    /// Checks that both requests can still be answered and that there is no other event.
    fn answerable(&self) -> Outcome {
        let ia = self.ia();
        ia.ud_service_reply(self.service, UdSvcStatus::Rejected, RemoteEpInfo::default(), &[])?;
        ia.reject(self.connection, &[])?;
        let (event, _) = ia.evd_wait(self.end.conn, WAIT)?;
        check_eq!(event.event_number(), EventType::CM_MSG_UD_SERVICE_REPLY);
        crate::refused(ia.evd_dequeue(self.listener.evd), Error::QueueEmpty)
    }

    /// Creates a UD service request handle.
    fn ask(&self, qual: &ConnQual, evd: EvdHandle, way: &Path, private_data: &[u8]) -> Result<(), Error> {
        self.ia().ud_service_request_handle_create(qual, evd, way, private_data).map(drop)
    }

    /// Creates a listen point.
    fn listen(&self, evd: EvdHandle, flags: ListenFlags, qual: Option<&ConnQual>) -> Result<(), Error> {
        self.ia().listen_create(self.way.spigot_id, evd, flags, qual).map(drop)
    }

    /// Connects the endpoint.
    fn dial(&self, way: &Path, qual: &ConnQual) -> Result<(), Error> {
        self.ia().ep_connect(self.end.ep, way, None, qual, CnEstFlags::TWO_WAY, &[])
    }

    /// Modifies the path of an address handle.
    fn lead(&self, addr: AddrHandle, mask: AddrParamMask, path: Path) -> Result<(), Error> {
        self.ia().address_handle_modify(addr, mask, &AddrParam { path, ..AddrParam::default() })
    }

    /// Replies to a UD service request.
    fn reply(&self, id: u64, status: UdSvcStatus, ud_ep_id: u32, private_data: &[u8]) -> Result<(), Error> {
        self.ia().ud_service_reply(id, status, RemoteEpInfo { ud_ep_id, ud_ep_key: 1 }, private_data)
    }

    /// Sets the low watermark of a shared receive queue.
    fn arm(&self, srq: SrqHandle, mask: SrqParamMask, low_watermark: usize) -> Result<(), Error> {
        self.ia().srq_modify(srq, mask, &SrqParam { low_watermark, ..SrqParam::default() })
    }
}

impl Queried for Objects {
    type Answers = (ObjectCounts, ListenParam, SrqParam, AddrParam, UdSvcReqParam, [EpParam; 2]);

    fn all(&self) -> Result<Self::Answers, Failure> {
        let ia = self.ia();
        Ok((
            ia.object_counts(),
            ia.listen_query(self.listener.listen, ListenParamMask::ALL)?,
            ia.srq_query(self.srq, SrqParamMask::ALL)?,
            ia.address_handle_query(self.addr, AddrParamMask::ALL)?,
            ia.ud_service_request_handle_query(self.asked, UdSvcReqParamMask::ALL)?,
            [ia.ep_query(self.end.ep, EpParamMask::ALL)?, ia.ep_query(self.peer.ep, EpParamMask::ALL)?],
        ))
    }
}

pub(crate) const TESTS: &[Test] = &[
    // Every bad handle of a listen point, shared queue, address handle or service request, in every
    // call that takes one.
    test(
        "service_arguments::handles",
        &[
            "it_listen_query IT_ERR_INVALID_LISTEN",
            "it_listen_free IT_ERR_INVALID_LISTEN",
            "it_srq_query IT_ERR_INVALID_SRQ",
            "it_srq_modify IT_ERR_INVALID_SRQ",
            "it_srq_free IT_ERR_INVALID_SRQ",
            "it_ep_rc_create IT_ERR_INVALID_SRQ",
            "it_address_handle_query IT_ERR_INVALID_AH",
            "it_address_handle_modify IT_ERR_INVALID_AH",
            "it_address_handle_free IT_ERR_INVALID_AH",
            "it_ud_service_request_handle_query IT_ERR_INVALID_UD_SVC",
            "it_ud_service_request_handle_free IT_ERR_INVALID_UD_SVC",
            "it_ud_service_request IT_ERR_INVALID_UD_SVC",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, other) = (w.ia(), w.peer.pz.as_raw());
            let there = Objects::of(f, &f.b, &f.a)?;
            let freed = f.listen(ia)?.listen;
            ia.listen_free(freed)?;
            let foreign = there.listener.listen.as_raw();
            let values = no_handles(ListenHandle::from_raw, freed.as_raw(), foreign, other);
            let calls = [
                call("listen_query", |listen| ia.listen_query(listen, ListenParamMask::ALL).map(drop)),
                call("listen_free", |listen| ia.listen_free(listen)),
            ];
            w.refuses(&calls, &values, Error::InvalidListen)?;
            let freed = ia.srq_create(w.peer.pz, 1, 4)?;
            ia.srq_free(freed)?;
            let values = no_handles(SrqHandle::from_raw, freed.as_raw(), there.srq.as_raw(), other);
            let calls = [
                call("srq_query", |srq| ia.srq_query(srq, SrqParamMask::ALL).map(drop)),
                call("srq_modify", |srq| w.arm(srq, SrqParamMask::LOW_WATERMARK, 1)),
                call("srq_free", |srq| ia.srq_free(srq)),
                call("ep_rc_create", |srq| {
                    let End { pz, request, recv, conn, .. } = w.end;
                    let rc = RcAttributes { srq, ..attributes().rc };
                    let attr = EpAttributes { rc, ..attributes() };
                    ia.ep_rc_create(pz, request, recv, conn, EpFlags::SRQ, &attr).map(drop)
                }),
            ];
            w.refuses(&calls, &values, Error::InvalidSrq)?;
            // A handle that is not an SRQ's might be an endpoint's, so only these two must cause
            // this error.
            let post = |srq| ia.post_recv(srq, &[w.region.segment(0, 8)], 1, DtoFlags::COMPLETION);
            w.refuses(&[call("post_recv", post)], &[freed, there.srq], Error::InvalidSrq)?;
            let freed = address(ia, w.peer.pz, &f.b)?;
            ia.address_handle_free(freed)?;
            let values = no_handles(AddrHandle::from_raw, freed.as_raw(), there.addr.as_raw(), other);
            let calls = [
                call("address_handle_query", |addr| {
                    ia.address_handle_query(addr, AddrParamMask::ALL).map(drop)
                }),
                call("address_handle_modify", |addr| w.lead(addr, AddrParamMask::PATH, w.way)),
                call("address_handle_free", |addr| ia.address_handle_free(addr)),
                call("post_sendto", |addr| {
                    let to = DgRemoteEpAddr::IbUd { addr, ep_info: w.peer.info };
                    ia.post_sendto(w.peer.ep, &[w.region.segment(0, 8)], 1, SIGNALLED, &to)
                }),
            ];
            w.refuses(&calls, &values, Error::InvalidAh)?;
            let freed =
                ia.ud_service_request_handle_create(&w.listener.conn_qual, w.end.conn, &w.way, &[])?;
            ia.ud_service_request_handle_free(freed)?;
            let values = no_handles(UdSvcReqHandle::from_raw, freed.as_raw(), there.asked.as_raw(), other);
            let calls = [
                call("ud_service_request_handle_query", |asked| {
                    ia.ud_service_request_handle_query(asked, UdSvcReqParamMask::ALL).map(drop)
                }),
                call("ud_service_request_handle_free", |asked| ia.ud_service_request_handle_free(asked)),
                call("ud_service_request", |asked| ia.ud_service_request(asked)),
            ];
            w.refuses(&calls, &values, Error::InvalidUdSvc)?;
            w.answerable()
        },
    ),
    // Every bad zone and EVD, in every call for services that takes one.
    test(
        "service_arguments::zones_and_evds",
        &[
            "it_srq_create IT_ERR_INVALID_PZ",
            "it_address_handle_create IT_ERR_INVALID_PZ",
            "it_listen_create IT_ERR_INVALID_CONN_EVD IT_ERR_INVALID_EVD_TYPE",
            "it_ud_service_request_handle_create IT_ERR_INVALID_CONN_EVD IT_ERR_INVALID_EVD_TYPE",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, qual) = (w.ia(), w.listener.conn_qual);
            let freed = ia.pz_create()?;
            ia.pz_free(freed)?;
            let foreign = f.b.pz_create()?.as_raw();
            let values = no_handles(PzHandle::from_raw, freed.as_raw(), foreign, w.srq.as_raw());
            let calls = [
                call("srq_create", |pz| ia.srq_create(pz, 1, 4).map(drop)),
                call("address_handle_create", |pz| {
                    ia.address_handle_create(pz, &w.way, AhFlags::PATH_COMPLETE).map(drop)
                }),
            ];
            w.refuses(&calls, &values, Error::InvalidPz)?;
            let own = ListenFlags::CONN_QUAL_INPUT;
            let calls = [
                call("listen_create", |evd| w.listen(evd, ListenFlags::empty(), None)),
                call("listen_create, own", |evd| w.listen(evd, own, Some(&ConnQual::service_id(0x7777)))),
                call("ud_service_request_handle_create", |evd| w.ask(&qual, evd, &w.way, &[])),
            ];
            let of = |stream| sevd(ia, stream, 4, 1);
            let freed = of(EventType::CM_REQ_EVENT_STREAM)?;
            ia.evd_free(freed)?;
            let foreign = sevd(&f.b, EventType::CM_REQ_EVENT_STREAM, 4, 1)?.as_raw();
            let values = no_handles(EvdHandle::from_raw, freed.as_raw(), foreign, w.srq.as_raw());
            w.refuses(&calls, &values, Error::InvalidConnEvd)?;
            let aggregate = crate::events::aevd::naming(ia)?;
            let others = [w.end.request, of(EventType::ASYNC_AFF_EVENT_STREAM)?, aggregate];
            w.refuses(&calls, &others, Error::InvalidEvdType)?;
            w.refuses(&calls[..2], &[w.end.conn], Error::InvalidEvdType)?;
            w.refuses(&calls[2..], &[w.listener.evd], Error::InvalidEvdType)?;
            w.answerable()
        },
    ),
    // Every undefined mask bit and flag, in every call for services.
    test(
        "service_arguments::masks_and_flags",
        &[
            "it_listen_query IT_ERR_INVALID_MASK",
            "it_listen_create IT_ERR_INVALID_FLAGS",
            "it_srq_query IT_ERR_INVALID_MASK",
            "it_srq_modify IT_ERR_INVALID_MASK",
            "it_address_handle_create IT_ERR_INVALID_FLAGS",
            "it_address_handle_query IT_ERR_INVALID_MASK",
            "it_address_handle_modify IT_ERR_INVALID_MASK",
            "it_ud_service_request_handle_query IT_ERR_INVALID_MASK",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, wrong) = (w.ia(), Error::InvalidMask);
            let query =
                |bits| ia.listen_query(w.listener.listen, ListenParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("listen_query", query)], &undefined(0x1f), wrong)?;
            let query = |bits| ia.srq_query(w.srq, SrqParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("srq_query", query)], &undefined(0x3f), wrong)?;
            let modify = |bits| w.arm(w.srq, SrqParamMask::from_bits_retain(bits), 1);
            w.refuses(&[call("srq_modify", modify)], &undefined(0x28), wrong)?;
            let query =
                |bits| ia.address_handle_query(w.addr, AddrParamMask::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("address_handle_query", query)], &undefined(0xf), wrong)?;
            let modify = |bits| w.lead(w.addr, AddrParamMask::from_bits_retain(bits), w.way);
            w.refuses(&[call("address_handle_modify", modify)], &undefined(0x8), wrong)?;
            let query = |bits| {
                ia.ud_service_request_handle_query(w.asked, UdSvcReqParamMask::from_bits_retain(bits))
                    .map(drop)
            };
            w.refuses(&[call("ud_service_request_handle_query", query)], &undefined(0xff), wrong)?;
            let create =
                |bits| ia.address_handle_create(w.peer.pz, &w.way, AhFlags::from_bits_retain(bits)).map(drop);
            w.refuses(&[call("address_handle_create", create)], &undefined(0x1), Error::InvalidFlags)?;
            let qual = ConnQual::service_id(0x7777);
            let listen = |bits| w.listen(w.listener.evd, ListenFlags::from_bits_retain(bits), Some(&qual));
            w.refuses(&[call("listen_create", listen)], &undefined(0x1), Error::InvalidFlags)?;
            w.answerable()
        },
    ),
    // Every bad path and spigot, in every call that takes one.
    test(
        "service_arguments::paths_and_spigots",
        &[
            "it_address_handle_create IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_address_handle_modify IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_ud_service_request_handle_create IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_ep_connect IT_ERR_INVALID_SOURCE_PATH IT_ERR_INVALID_SPIGOT",
            "it_listen_create IT_ERR_INVALID_SPIGOT",
            "it_get_pathinfo IT_ERR_INVALID_SPIGOT",
            "it_handoff IT_ERR_INVALID_SPIGOT",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, qual, here) = (w.ia(), w.listener.conn_qual, w.way.spigot_id);
            let along = [
                call("address_handle_create", |way| {
                    ia.address_handle_create(w.peer.pz, &way, AhFlags::PATH_COMPLETE).map(drop)
                }),
                call("address_handle_modify", |way| w.lead(w.addr, AddrParamMask::PATH, way)),
                call("ud_service_request_handle_create", |way| w.ask(&qual, w.end.conn, &way, &[])),
                call("ep_connect", |way| w.dial(&way, &qual)),
            ];
            // Each member with a value one above its range and with all bits set, a source that is
            // not this node's, and another transport.
            let changes: [fn(&mut IbNetEndpoint); 17] = [
                |ib| ib.partition_key = 0,
                |ib| ib.partition_key = 0x8001,
                |ib| ib.path_mtu = 1 << 4,
                |ib| ib.path_mtu = u8::MAX,
                |ib| ib.packet_lifetime = 1 << 6,
                |ib| ib.packet_lifetime = u8::MAX,
                |ib| ib.packet_rate = 1 << 6,
                |ib| ib.packet_rate = u8::MAX,
                |ib| ib.sl = 1 << 4,
                |ib| ib.sl = u8::MAX,
                |ib| ib.flow_label = 1 << 20,
                |ib| ib.flow_label = u32::MAX,
                |ib| ib.local_port_lid = 1,
                |ib| ib.local_port_lid = u16::MAX,
                |ib| ib.local_port_gid = [0; 16],
                |ib| ib.local_port_gid = [0xff; 16],
                |ib| ib.local_port_gid[15] ^= 0x40,
            ];
            for change in changes {
                let mut way = w.way;
                change(some(way.ib_mut(), "the InfiniBand part")?);
                w.refuses(&along, &[way], Error::InvalidSourcePath)?;
            }
            for remote in [
                NetEndpoint::Via(ViaNetAddr { len: 4, hostaddr: [1; MAX_VIA_ADDR_LEN] }),
                NetEndpoint::Iwarp(IwarpNetEndpoint::Ipv4 { laddr: [10, 0, 0, 1], raddr: [10, 0, 0, 2] }),
            ] {
                w.refuses(&along, &[Path { remote, ..w.way }], Error::InvalidSourcePath)?;
            }
            let nowhere = [0, here + 1, usize::MAX - 1, usize::MAX];
            let elsewhere = nowhere.map(|spigot_id| Path { spigot_id, ..w.way });
            w.refuses(&along, &elsewhere, Error::InvalidSpigot)?;
            let calls = [
                call("listen_create", |at| {
                    ia.listen_create(at, w.listener.evd, ListenFlags::empty(), None).map(drop)
                }),
                call("get_pathinfo", |at| ia.get_pathinfo(at, &w.listener.address, 1).map(drop)),
                call("handoff", |at| ia.handoff(&qual, at, w.connection)),
                call("ep_ud_create", |at| {
                    ia.ep_ud_create(w.peer.pz, w.peer.request, w.peer.recv, &datagrams(), at).map(drop)
                }),
            ];
            w.refuses(&calls, &nowhere, Error::InvalidSpigot)?;
            w.answerable()
        },
    ),
    // Every bad qualifier, identifier, address and interface name.
    test(
        "service_arguments::names",
        &[
            "it_listen_create IT_ERR_CONN_QUAL_BUSY IT_ERR_INVALID_CONN_QUAL",
            "it_ud_service_request_handle_create IT_ERR_INVALID_CONN_QUAL",
            "it_ep_connect IT_ERR_INVALID_CONN_QUAL",
            "it_handoff IT_ERR_INVALID_CN_EST_ID IT_ERR_INVALID_CONN_QUAL",
            "it_ud_service_reply IT_ERR_INVALID_UD_SVC_REQ_ID",
            "it_get_pathinfo IT_ERR_INVALID_ADDRESS",
            "it_convert_net_addr IT_ERR_INVALID_ADDRESS",
            "it_ia_create IT_ERR_INVALID_NAME",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, qual, here) = (w.ia(), w.listener.conn_qual, w.way.spigot_id);
            let own = ListenFlags::CONN_QUAL_INPUT;
            let listen = || call("listen_create", |qual| w.listen(w.listener.evd, own, Some(&qual)));
            let calls = [
                listen(),
                call("ud_service_request_handle_create", |qual| w.ask(&qual, w.end.conn, &w.way, &[])),
                call("ep_connect", |qual| w.dial(&w.way, &qual)),
                call("handoff", |qual| ia.handoff(&qual, here, w.connection)),
            ];
            w.refuses(&calls, &NO_SERVICES, Error::InvalidConnQual)?;
            let none = call("listen_create", |()| w.listen(w.listener.evd, own, None));
            w.refuses(&[none], &[()], Error::InvalidConnQual)?;
            w.refuses(&[listen()], &[qual], Error::ConnQualBusy)?;
            // There is no listen point for this qualifier.
            w.refuses(&calls[3..], &[ConnQual::service_id(u64::MAX)], Error::InvalidConnQual)?;
            let reply = |id| w.reply(id, UdSvcStatus::Rejected, 0, &[]);
            let ids = [w.service + 1, w.service ^ 1 << 32, w.service ^ 1 << 63, u64::MAX];
            w.refuses(&[call("ud_service_reply", reply)], &ids, Error::InvalidUdSvcReqId)?;
            let calls = [
                call("handoff", |id| ia.handoff(&qual, here, CnEstId(id))),
                call("reject", |id| ia.reject(CnEstId(id), &[])),
                call("ep_accept", |id| ia.ep_accept(w.end.ep, CnEstId(id), &[])),
            ];
            let ids = [0, w.connection.0 + 1, w.connection.0 ^ 1 << 63, u64::MAX];
            w.refuses(&calls, &ids, Error::InvalidCnEstId)?;
            let addresses = [
                NetAddr::Ipv4([0; 4]),
                NetAddr::Ipv4([0xff; 4]),
                NetAddr::Ipv6([0; 16]),
                NetAddr::IbGid([0xff; 16]),
                NetAddr::default(),
            ];
            let calls = [
                call("get_pathinfo", |to| ia.get_pathinfo(here, &to, usize::MAX).map(drop)),
                call("convert_net_addr", |from| ia.convert_net_addr(&from, NetAddrType::IbGid).map(drop)),
            ];
            w.refuses(&calls, &addresses, Error::InvalidAddress)?;
            let provider = &f.setup.provider;
            let (long, name) = ("x".repeat(INTERFACE_NAME_SIZE), f.setup.a.name.as_str());
            let calls = [
                call("ia_create", |name: &str| provider.ia_create(name, 2, 1, None).map(drop)),
                // A bad name is reported before a bad version.
                call("ia_create", |name: &str| provider.ia_create(name, 9, 9, None).map(drop)),
            ];
            let nameless = ["", "\0", long.as_str(), &long[1..], &name[1..], "rnic0\0", "RNIC0", " rnic0"];
            w.refuses(&calls, &nameless, Error::InvalidName)?;
            let add = |name: &str| provider.add(name, f.setup.a.agent.clone());
            let before = provider.interface_list(usize::MAX);
            w.refuses(&[call("Provider::add", add)], &["", "\0", &long, name, "a\0b"], Error::InvalidName)?;
            check_eq!(provider.interface_list(usize::MAX), before);
            w.answerable()
        },
    ),
    // Every length and count above its limit.
    test(
        "service_arguments::lengths_and_counts",
        &[
            "it_ud_service_request_handle_create IT_ERR_INVALID_PDATA_LENGTH",
            "it_ud_service_reply IT_ERR_INVALID_PDATA_LENGTH IT_ERR_INVALID_UD_STATUS",
            "it_srq_create IT_ERR_RESOURCE_RECV_DTO IT_ERR_RESOURCE_RSEG",
            "it_srq_modify IT_ERR_SRQ_LOW_WATERMARK",
        ],
        |f| {
            let w = Objects::new(f)?;
            let (ia, info, qual) = (w.ia(), w.ia().ia_query()?, w.listener.conn_qual);
            let long = [7; MAX_PRIV_DATA + 1];
            let wrong = Error::InvalidPdataLength;
            let ask = |len: usize| w.ask(&qual, w.end.conn, &w.way, &long[..len]);
            let lengths = [info.ud_req_private_data_len + 1, long.len()];
            w.refuses(&[call("ud_service_request_handle_create", ask)], &lengths, wrong)?;
            let lengths = [info.ud_rep_private_data_len + 1, long.len()];
            let calls = [UdSvcStatus::EpInfoValid, UdSvcStatus::Rejected].map(|status| {
                let w = &w;
                call("ud_service_reply", move |len| {
                    w.reply(w.service, status, 1, &[7; MAX_PRIV_DATA + 1][..len])
                })
            });
            w.refuses(&calls, &lengths, wrong)?;
            let reply = |id| w.reply(w.service, UdSvcStatus::EpInfoValid, id, &[]);
            w.refuses(&[call("ud_service_reply", reply)], &[1 << 24, u32::MAX], Error::InvalidUdStatus)?;
            let reply = |id| w.reply(w.service, UdSvcStatus::Redirected, id, &[]);
            w.refuses(&[call("ud_service_reply", reply)], &[1], Error::InvalidUdStatus)?;
            let id = *f.setup.a.agent.identity();
            let more = |most: u32| [most as usize + 1, u32::MAX as usize, 1 << 32, usize::MAX];
            let create = |dtos| ia.srq_create(w.peer.pz, 1, dtos).map(drop);
            w.refuses(&[call("srq_create", create)], &more(id.max_srq_entries), Error::ResourceRecvDto)?;
            let create = |segments| ia.srq_create(w.peer.pz, segments, 4).map(drop);
            w.refuses(&[call("srq_create", create)], &more(id.max_sges), Error::ResourceRseg)?;
            let most = ia.srq_query(w.srq, SrqParamMask::ALL)?.max_recv_dtos;
            let arm = |level| w.arm(w.srq, SrqParamMask::LOW_WATERMARK, level);
            let levels = [0, most + 1, 1 << 32, (1 << 32) + 1, usize::MAX];
            w.refuses(&[call("srq_modify", arm)], &levels, Error::SrqLowWatermark)?;
            w.answerable()?;
            // The limits themselves are accepted.
            ask(info.ud_req_private_data_len)?;
            arm(most)?;
            for (segments, dtos) in [(0, 0), (id.max_sges as usize, 4), (1, id.max_srq_entries as usize)] {
                ia.srq_free(ia.srq_create(w.peer.pz, segments, dtos)?)?;
            }
            Ok(())
        },
    ),
];
