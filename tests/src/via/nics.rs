//! Opening, querying and closing NICs (pages VipOpenNic, VipCloseNic, VipQueryNic,
//! VipQuerySystemManagementInfo, VIP_NIC_ATTRIBUTES).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::result::Result;

use kernel_agent::{AsyncEvent, CmEvent, Death, Upcalls};
use nic_abi::admin::Injection;
use privileged_api::{Features, Limits};
use vipl::*;

use super::levels::exchange;
use super::world::*;
use crate::fixture::PAGE;
use crate::thread::{Body, all_pass};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

const LEVEL: ReliabilityLevel = ReliabilityLevel::Delivery;

/// Creates objects until a creation is refused for lack of resources. Returns the objects.
pub(super) fn most<T>(mut create: impl FnMut() -> Result<T, Error>) -> Result<Vec<T>, Failure> {
    let mut objects = Vec::new();
    loop {
        match create() {
            Ok(object) => objects.push(object),
            Err(Error::ErrorResource) => return Ok(objects),
            Err(error) => return Err(error.into()),
        }
        check!(objects.len() < 100_000, "no end");
    }
}

/// A client of the agent that ignores all upcalls.
struct Nobody;

impl Upcalls for Nobody {
    fn completion(&self, _: u64) {}

    fn asynchronous(&self, _: AsyncEvent) {}

    fn connection(&self, _: CmEvent<'_>) {}

    fn catastrophic(&self, _: Death) {}
}

/// Checks that each call is refused, with the handles of a side whose NIC is closed.
fn every_call(side: &Side, cq: CqHandle) -> Result<(), Failure> {
    let (nic, vi, memory) = (&side.nic, side.vi, side.region.handle);
    let address = nic.address(b"x")?;
    let all = attributes(side.ptag, LEVEL);
    let at = side.region.address(0);
    let open = open_memory(side.ptag);
    let conn = ConnHandle::NULL;
    let none = || -> DescriptorHandler { Box::new(|_, _, _, _| ()) };
    let calls: [(&str, Result<(), Error>); 34] = [
        ("close_nic", nic.close_nic()),
        ("query_nic", nic.query_nic().map(drop)),
        ("query_system_management_info", nic.query_system_management_info(0).map(drop)),
        ("error_callback", nic.error_callback(0, None)),
        ("create_ptag", nic.create_ptag().map(drop)),
        ("destroy_ptag", nic.destroy_ptag(side.ptag)),
        ("register_mem", nic.register_mem(Memory::buffer(&side.region.buffer), 64, &open).map(drop)),
        ("deregister_mem", nic.deregister_mem(at, memory)),
        ("set_mem_attributes", nic.set_mem_attributes(at, memory, &open)),
        ("query_mem", nic.query_mem(at, memory).map(drop)),
        ("create_vi", nic.create_vi(&all, CqHandle::NULL, CqHandle::NULL).map(drop)),
        ("destroy_vi", nic.destroy_vi(vi)),
        ("set_vi_attributes", nic.set_vi_attributes(vi, &all)),
        ("query_vi", nic.query_vi(vi).map(drop)),
        ("connect_wait", nic.connect_wait(&address, None, 0).map(drop)),
        ("connect_accept", nic.connect_accept(conn, vi)),
        ("connect_reject", nic.connect_reject(conn)),
        ("connect_request", nic.connect_request(vi, &address, &address, LONG).map(drop)),
        ("disconnect", nic.disconnect(vi)),
        ("post_send", nic.post_send(vi, at, memory)),
        ("post_recv", nic.post_recv(vi, at, memory)),
        ("send_done", nic.send_done(vi).map(drop)),
        ("recv_done", nic.recv_done(vi).map(drop)),
        ("send_wait", nic.send_wait(vi, LONG).map(drop)),
        ("recv_wait", nic.recv_wait(vi, LONG).map(drop)),
        ("send_notify", nic.send_notify(vi, 0, none())),
        ("recv_notify", nic.recv_notify(vi, 0, none())),
        ("create_cq", nic.create_cq(1).map(drop)),
        ("destroy_cq", nic.destroy_cq(cq)),
        ("resize_cq", nic.resize_cq(cq, 8)),
        ("cq_done", nic.cq_done(cq).map(drop)),
        ("cq_wait", nic.cq_wait(cq, LONG).map(drop)),
        ("cq_notify", nic.cq_notify(cq, 0, Box::new(|_, _, _, _| ()))),
        ("vi_qpn", nic.vi_qpn(vi).map(drop)),
    ];
    for (name, result) in calls {
        check_eq!(result, Err(Error::InvalidParameter), "{name}");
    }
    Ok(())
}

pub(crate) const TESTS: &[Test] = &[
    // A NIC is opened by its name; no other name opens it, and none an interface whose limits leave
    // no virtual interfaces. Its handle is valid in all calls. Closing frees all objects of the
    // opening, and no call works afterwards; other openings still work.
    test(
        "via_nics::open_and_close",
        &[
            "VipOpenNic B01 VIP_INVALID_PARAMETER",
            "VipCloseNic A01 B01 VIP_INVALID_PARAMETER",
            "VipQueryNic VIP_INVALID_PARAMETER",
            "VipQuerySystemManagementInfo VIP_INVALID_PARAMETER",
            "VipCreatePtag VIP_INVALID_PARAMETER",
            "VipCreateCQ VIP_INVALID_PARAMETER",
            "via-3.1 B01 B05",
        ],
        |f| {
            world(f, |w| {
                let name = &f.setup.a.name;
                let long = String::from_iter(core::iter::repeat_n('x', NAME_SIZE));
                for wrong in ["", "no such NIC", &long, &name[1..]] {
                    refused(f.setup.vipl.open_nic(wrong).map(drop), Error::InvalidParameter)?;
                }
                let interfaces = privileged_api::Provider::new(f.platform().clone());
                let limits = Limits { features: Features::all().difference(Features::VI), ..Limits::NONE };
                interfaces.add_limited("limited", f.setup.a.agent.clone(), limits)?;
                let opened = Provider::new(interfaces.interfaces()).open_nic("limited");
                refused(opened.map(drop), Error::InvalidParameter)?;
                let (other, peer) = w.pair(LEVEL)?;
                let before = f.setup.a.agent.counts();
                let nic = f.setup.vipl.open_nic(name)?;
                check!(nic.handle() != w.a.handle() && !nic.handle().is_null(), "{:?}", nic.handle());
                check_eq!(&nic.query_nic()?.name, name);
                refused(nic.query_system_management_info(4).map(drop), Error::InvalidParameter)?;
                let side = w.side(&nic, LEVEL, NO_CQS)?;
                let cq = nic.create_cq(4)?;
                side.receive(0, &[side.data(0, 8)])?;
                check_eq!(
                    nic.opening_counts(),
                    OpeningCounts { vis: 1, cqs: 1, ptags: 1, regions: 1, conns: 0 }
                );
                nic.close_nic()?;
                check_eq!(nic.opening_counts(), OpeningCounts::default());
                check_eq!(f.setup.a.agent.counts(), before);
                every_call(&side, cq)?;
                exchange(&other, &peer)
            })
        },
    ),
    // An agent has a bounded number of clients. Without room, opening a NIC fails and leaves
    // nothing behind; once there is room again it succeeds.
    test("via_nics::an_agent_without_room", &["VipOpenNic VIP_ERROR_RESOURCE"], |f| {
        world(f, |w| {
            let agent = &f.setup.a.agent;
            let open = || f.setup.vipl.open_nic(&f.setup.a.name);
            let mut clients = Vec::new();
            let full = loop {
                match agent.attach(Weak::<Nobody>::new()) {
                    Ok(client) => clients.push(client),
                    Err(error) => break error,
                }
            };
            let before = agent.counts();
            let refusal = open().map(|nic| nic.close_nic());
            let after = agent.counts();
            clients.iter().for_each(|client| client.detach());
            check!(matches!(full, kernel_agent::Error::NoResources(_)), "{full:?}");
            check_eq!((refusal, after), (Err(Error::ErrorResource), before));
            let nic = open()?;
            let works = nic.create_ptag();
            nic.close_nic()?;
            works?;
            w.a.create_ptag()?;
            Ok(())
        })
    }),
    // The attributes of a NIC: its name, its versions, its address and its features. Every query
    // returns the same.
    test(
        "via_nics::attributes",
        &[
            "VipQueryNic B01",
            "via-3.1 B02",
            "via-1.5.3 B04",
            "via-6.1.1 A01",
            "VIP_NIC_ATTRIBUTES B01 F01-F05 F17",
        ],
        |f| {
            world(f, |w| {
                for (nic, interface) in [(&w.a, &f.setup.a), (&w.b, &f.setup.b)] {
                    let (known, identity) = (nic.query_nic()?, interface.agent.identity());
                    check!(known.name == interface.name && known.name.len() < NAME_SIZE, "{}", known.name);
                    let version = u32::from(identity.version_major) << 16 | u32::from(identity.version_minor);
                    check_eq!(known.hardware_version, version);
                    check!(known.hardware_version > 0 && known.provider_version > 0, "{known:?}");
                    check_eq!(usize::from(known.nic_address_len), known.local_nic_address.len());
                    check!(identity.gids.contains(&known.local_nic_address), "{known:?}");
                    check_eq!(known.native_mtu, identity.mtu);
                    check!(known.native_mtu > 0 && known.max_transfer_size > 0, "{known:?}");
                }
                let before = w.a.query_nic()?;
                let (a, b) = w.pair(LEVEL)?;
                exchange(&a, &b)?;
                // Remote consumers connect to the NIC by this address.
                let (host, c) = (b.nic.query_nic()?.local_nic_address, w.side(&w.a, LEVEL, NO_CQS)?);
                let to = NetAddress::new(&host, b"by address")?;
                let asked = super::connect::ask(w, &c, b"client", &to, LONG)?;
                let request = b.nic.connect_wait(&to, None, LONG)?;
                let client = NetAddress::new(&before.local_nic_address, b"client")?;
                check_eq!(request.remote_addr, client);
                b.nic.connect_reject(request.conn)?;
                check_eq!(asked.join()?, Err(Error::Reject));
                check_eq!(w.a.query_nic()?, before);
                Ok(())
            })
        },
    ),
    // As many objects can be created as the attributes say; a further creation fails and leaves
    // nothing behind. There is a tag for each virtual interface.
    test(
        "via_nics::limits",
        &[
            "VIP_NIC_ATTRIBUTES F09 F11 F14 F15 F18",
            "VipCreateVi VIP_ERROR_RESOURCE",
            "VipCreatePtag VIP_ERROR_RESOURCE",
            "VipRegisterMem VIP_ERROR_RESOURCE",
            "VipCreateCQ A01 VIP_ERROR_RESOURCE",
            "VipResizeCQ VIP_ERROR_RESOURCE",
            "via-3.2.1 B08 B09",
            "via-3.2.2.1 B01 L01",
            "via-3.3 B02 B06",
            "via-3.4 L01",
            "via-11.3 B16",
        ],
        |f| {
            world(f, |w| {
                let (nic, known) = (&w.a, w.a.query_nic()?);
                let counts = || f.setup.a.agent.counts();
                check!(known.max_ptags >= known.max_vi && known.max_vi > 0, "{known:?}");
                for _ in 0..2 {
                    let before = counts();
                    let ptags = most(|| nic.create_ptag())?;
                    check_eq!(ptags.len(), known.max_ptags as usize);
                    for (at, ptag) in ptags.iter().enumerate() {
                        check!(!ptags[..at].contains(ptag), "{ptag:?} twice");
                    }
                    let full = counts();
                    let memory = MemAttributes::new(ptags[0]);
                    let buffer = f.buffer(PAGE)?;
                    let register = || nic.register_mem(Memory::buffer(&buffer), PAGE as u64, &memory);
                    let regions = most(register)?;
                    check_eq!(regions.len(), known.max_register_regions as usize);
                    check_eq!(counts().regions, full.regions + known.max_register_regions);
                    let all = |ptag| attributes(ptag, LEVEL);
                    // One tag each.
                    let mut tags = ptags.iter().copied().chain([ptags[0]]);
                    let vis = most(|| {
                        let ptag = tags.next().ok_or(Error::InvalidPtag)?;
                        nic.create_vi(&all(ptag), CqHandle::NULL, CqHandle::NULL)
                    })?;
                    check_eq!(vis.len(), known.max_vi as usize);
                    check_eq!(counts().vis, full.vis + known.max_vi);
                    let cqs = most(|| nic.create_cq(2))?;
                    check_eq!(cqs.len(), known.max_cq as usize);
                    for cq in cqs {
                        nic.destroy_cq(cq)?;
                    }
                    for vi in vis {
                        nic.destroy_vi(vi)?;
                    }
                    for region in regions {
                        nic.deregister_mem(buffer.addr() as u64, region)?;
                    }
                    // The failed calls use no tag.
                    for ptag in ptags {
                        nic.destroy_ptag(ptag)?;
                    }
                    check_eq!(counts(), before);
                }
                let most = known.max_cq_entries;
                check!(most >= 1024, "{most}");
                let cq = nic.create_cq(1024)?;
                refused(nic.create_cq(most + 1), Error::ErrorResource)?;
                refused(nic.create_cq(u32::MAX), Error::ErrorResource)?;
                refused(nic.create_cq(0), Error::InvalidParameter)?;
                refused(nic.resize_cq(cq, most + 1), Error::ErrorResource)?;
                check_eq!(nic.opening_counts().cqs, 1);
                Ok(())
            })
        },
    ),
    // Two virtual interfaces on each of two NICs, all in use at once; several threads post to one
    // virtual interface without a lock between them.
    test("via_nics::many_threads_and_interfaces", &["via-2 B01", "VIP_NIC_ATTRIBUTES F06"], |f| {
        world(f, |w| {
            check!(w.a.query_nic()?.thread_safe);
            let pairs = [w.pair(LEVEL)?, w.pair(LEVEL)?];
            for (a, b) in &pairs {
                a.fill(9);
                for number in 0..32 {
                    b.receive(number, &[b.data(number * 8, 8)])?;
                }
                let mut bodies: Vec<Body<Outcome>> = Vec::new();
                for half in 0..2 {
                    for number in half * 16..half * 16 + 16 {
                        a.descriptor(number)?.send(&[a.data(number * 8, 8)], Some(number as u32))?;
                    }
                    let (nic, vi, memory) = (a.nic.clone(), a.vi, a.region.handle);
                    let at = a.descriptor(half * 16)?.address();
                    let step = a.descriptor(1)?.address() - a.descriptor(0)?.address();
                    bodies.push(Box::new(move || {
                        for number in 0..16 {
                            nic.post_send(vi, at + number * step, memory)?;
                        }
                        Ok(())
                    }));
                }
                all_pass(f.platform(), bodies)?;
            }
            for (a, b) in &pairs {
                let mut seen = [false; 32];
                for number in 0..32 {
                    let done = a.nic.send_wait(a.vi, LONG)?;
                    check_eq!((done - a.descriptor(0)?.address()) % 64, 0);
                    b.received_well(number)?;
                    let sent = b.descriptor(number)?.immediate() as usize;
                    check!(sent < 32 && !core::mem::replace(&mut seen[sent], true), "{sent} twice");
                    check_eq!(b.bytes(number * 8, 8), a.bytes(sent * 8, 8));
                }
            }
            Ok(())
        })
    }),
    // Each type of management information is returned, with correct contents.
    test("via_nics::management", &["VipQuerySystemManagementInfo O01"], |f| {
        world(f, |w| {
            let ask = |number: u32| w.a.query_system_management_info(number);
            let side = w.side(&w.a, ReliabilityLevel::Unreliable, NO_CQS)?;
            side.receive(0, &[])?;
            match ask(InfoType::Objects as u32)? {
                SystemManagementInfo::Objects { counts, outstanding, waiting_requests } => {
                    check_eq!((counts.vis, outstanding, waiting_requests), (1, 1, 0));
                }
                other => return Err(Failure::new(alloc::format!("{other:?}"))),
            }
            let own = OpeningCounts { vis: 1, ptags: 1, regions: 1, ..OpeningCounts::default() };
            check_eq!(ask(InfoType::Opening as u32)?, SystemManagementInfo::Opening(own));
            let identity = *f.setup.a.agent.identity();
            check_eq!(
                ask(InfoType::Port as u32)?,
                SystemManagementInfo::Port {
                    up: true,
                    mtu: identity.mtu,
                    mbps: identity.link_mbps,
                    node_guid: identity.node_guid
                }
            );
            check_eq!(ask(InfoType::Errors as u32)?, SystemManagementInfo::Errors { reported: 0, lost: 0 });
            Ok(())
        })
    }),
    // A port that is down is an error of the NIC, a lost connection is an error of the virtual
    // interface, and a descriptor outside registered memory is an error of the descriptor.
    test("via_nics::resource_codes", &["VIP_RESOURCE_CODE F01 F02 F04"], |f| {
        world(f, |w| {
            let (a, b) = w.pair(LEVEL)?;
            let errors = w.errors(&a.nic)?;
            a.nic.post_send(a.vi, a.descriptor(0)?.address(), MemHandle::NULL)?;
            let error = errors.expect(&a, ErrorCode::PostDesc)?;
            check_eq!(error.resource_code, ResourceCode::Descriptor);
            let error = errors.expect(&a, ErrorCode::ConnLost)?;
            check_eq!(error.resource_code, ResourceCode::Vi);
            let came = errors.count();
            f.inject(0, Injection::Port, 1, 0)?;
            let down = errors.wait(came + 1);
            f.inject(0, Injection::Port, 1, 1)?;
            let all = down?;
            let nic = all.iter().find(|error| error.resource_code == ResourceCode::Nic);
            let nic = crate::some(nic, "an error of the NIC")?;
            check_eq!((nic.nic, nic.vi, nic.descriptor), (a.nic.handle(), ViHandle::NULL, 0));
            drop(b);
            Ok(())
        })
    }),
];
