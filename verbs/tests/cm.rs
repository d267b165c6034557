//! Connections by `rdma_cm` as a C program makes them: by pointers, between two NICs of one
//! process.
#![expect(unsafe_code, reason = "the calls are C's")]

use std::ffi::{c_int, c_void};
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ferrovia_verbs as verbs;
use kernel_agent::{Agent, Config};
use verbs::abi::{QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Wc, qps, qpt, wr};
use verbs::cm::abi::{AddrInfo, CmEvent, CmId, ConnParam, EventChannel, JoinAttr, event, ps, rai};
use verbs::cm::attributes::init_qp_attr;
use verbs::cm::channel::{
    ack_cm_event, create_event_channel, destroy_event_channel, event_str, get_cm_event,
};
use verbs::cm::connection::{accept, connect, disconnect, establish, listen, reject};
use verbs::cm::devices::{free_devices, get_devices};
use verbs::cm::endpoint::{create_ep, destroy_ep, get_request};
use verbs::cm::identifier::{
    bind_addr, create_id, destroy_id, get_dst_port, get_src_port, migrate_id, resolve_addr, resolve_route,
    set_option,
};
use verbs::cm::info::{freeaddrinfo, getaddrinfo};
use verbs::cm::multicast::{join_multicast, join_multicast_ex, leave_multicast};
use verbs::cm::queue_pair::{create_qp, destroy_qp};
use verbs::{Nic, ah, cq, device, memory, post, qp};

/// The machine, which lives as long as the process.
fn machine() -> &'static host::Machine {
    static MACHINE: OnceLock<host::Machine> = OnceLock::new();
    MACHINE.get_or_init(|| host::Machine::new(2))
}

/// Opens the NICs.
fn nics() -> Result<Vec<Nic>, i32> {
    let machine = machine();
    let config = Config { max_qps: 64, max_cqs: 64, max_keys: 64, max_connections: 64, ..Config::default() };
    let open = |n: usize| {
        let agent = Agent::open(machine.platform(), machine.transport(n), n as u32, config);
        Nic {
            name: format!("test{n}"),
            agent: agent.expect("the NIC comes up"),
            stepped: None,
            interfaces: Vec::new(),
        }
    };
    Ok([0, 1].map(open).into())
}

/// The address of a NIC, with a port.
fn address(n: usize, port: u16) -> libc::sockaddr_in6 {
    verbs::provide(nics);
    let mut gid = [0; 16];
    // SAFETY: the calls in C's order; zeros are an address.
    unsafe {
        let mut number = 0;
        let list = get_devices(&mut number);
        assert_eq!(number, 2);
        assert_eq!(device::query_gid(*list.add(n), 1, 0, &mut gid), 0);
        free_devices(list);
    }
    socket_address(gid.into(), port)
}

fn socket_address(ip: Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    // SAFETY: zeros are an address.
    let mut made: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    made.sin6_family = libc::AF_INET6 as u16;
    made.sin6_port = port.to_be();
    made.sin6_addr.s6_addr = ip.octets();
    made
}

fn pointer(address: &mut libc::sockaddr_in6) -> *mut libc::sockaddr {
    ptr::from_mut(address).cast()
}

/// A port that no other test has.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().expect("a number")
}

/// What an event said; it is acknowledged.
#[derive(Debug)]
struct Said {
    id: *mut CmId,
    listener: *mut CmId,
    kind: c_int,
    status: c_int,
    data: Vec<u8>,
    depths: (u8, u8),
}

/// Takes an event without acknowledging it.
fn take(channel: *mut EventChannel) -> *mut CmEvent {
    let mut event = ptr::null_mut();
    // SAFETY: the channel is there.
    assert_eq!(unsafe { get_cm_event(channel, &mut event) }, 0);
    event
}

fn next(channel: *mut EventChannel) -> Said {
    let taken = take(channel);
    // SAFETY: an event that is not acknowledged yet; its parameters are those of a connection.
    unsafe {
        let CmEvent { id, listen_id, event, status, .. } = *taken;
        let conn = (*taken).param.conn;
        let data = match conn.private_data.is_null() {
            true => Vec::new(),
            false => {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len))
                    .to_vec()
            }
        };
        assert_eq!(ack_cm_event(taken), 0);
        let depths = (conn.responder_resources, conn.initiator_depth);
        Said { id, listener: listen_id, kind: event, status, data, depths }
    }
}

fn expect(channel: *mut EventChannel, kind: c_int) -> Said {
    let said = next(channel);
    // SAFETY: names are C's constants.
    let name = |kind| unsafe { std::ffi::CStr::from_ptr(event_str(kind)) };
    assert_eq!(said.kind, kind, "{:?} instead of {:?}: {said:?}", name(said.kind), name(kind));
    said
}

fn make(channel: *mut EventChannel, space: c_int) -> *mut CmId {
    let mut id = ptr::null_mut();
    // SAFETY: the channel is there.
    assert_eq!(unsafe { create_id(channel, &mut id, 7 as *mut c_void, space) }, 0);
    id
}

fn channel() -> *mut EventChannel {
    verbs::provide(nics);
    let channel = create_event_channel();
    assert!(!channel.is_null());
    channel
}

fn attributes(kind: c_int) -> QpInitAttr {
    QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
        qp_type: kind,
        sq_sig_all: 1,
    }
}

fn with_qp(id: *mut CmId, kind: c_int) {
    // SAFETY: the identifier is bound to a device.
    assert_eq!(unsafe { create_qp(id, ptr::null_mut(), &mut attributes(kind)) }, 0);
}

fn param(data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// A listening identifier on NIC 1.
fn listener(channel: *mut EventChannel, space: c_int, port: u16, backlog: c_int) -> *mut CmId {
    let id = make(channel, space);
    let mut own = address(1, port);
    // SAFETY: the identifier is there.
    unsafe {
        assert_eq!(bind_addr(id, pointer(&mut own)), 0);
        assert_eq!(listen(id, backlog), 0);
    }
    id
}

/// An identifier on NIC 0 that has a route to a port of NIC 1.
fn routed(channel: *mut EventChannel, space: c_int, to: u16) -> *mut CmId {
    let id = make(channel, space);
    let (mut own, mut peer) = (address(0, 0), address(1, to));
    // SAFETY: the identifier is there.
    unsafe {
        assert_eq!(resolve_addr(id, pointer(&mut own), pointer(&mut peer), 1000), 0);
        assert_eq!(expect(channel, event::ADDR_RESOLVED).id, id);
        assert!(!(*id).verbs.is_null() && (*id).port_num == 1);
        assert_eq!(u16::from_be(get_dst_port(id)), to);
        assert_ne!(get_src_port(id), 0);
        assert_eq!(resolve_route(id, 1000), 0);
    }
    expect(channel, event::ROUTE_RESOLVED);
    id
}

fn end(id: *mut CmId) {
    // SAFETY: nothing uses it afterwards.
    unsafe {
        destroy_qp(id);
        assert_eq!(destroy_id(id), 0);
    }
}

fn end_channels(channels: &[*mut EventChannel]) {
    for &channel in channels {
        // SAFETY: its identifiers are destroyed.
        unsafe { destroy_event_channel(channel) };
    }
}

/// The state of a queue pair, as the device has it.
fn state(of: *mut verbs::abi::Qp) -> c_int {
    let (mut attr, mut init) = (QpAttr::default(), attributes(qpt::RC));
    // SAFETY: the queue pair is there.
    assert_eq!(unsafe { qp::query_qp(of, &mut attr, 0, &mut init) }, 0);
    attr.qp_state
}

#[test]
fn a_connection_carries_private_data_both_ways_and_ends_for_both() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::TCP, at, 4);
    let client = routed(mine, ps::TCP, at);
    with_qp(client, qpt::RC);
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!((*(*client).qp).state, qps::INIT);
        assert_eq!(connect(client, &mut param(b"hello")), 0);
        let asked = expect(yours, event::CONNECT_REQUEST);
        assert_eq!((asked.listener, &asked.data[..5], asked.data.len()), (listening, &b"hello"[..], 56));
        assert_eq!(asked.depths, (2, 3), "as this end would have its own");
        let server = asked.id;
        assert_eq!((*server).context as usize, 7, "the listening identifier's");
        assert_eq!((*server).channel, yours);
        assert_eq!(u16::from_be(get_src_port(server)), at);
        assert_eq!(get_dst_port(server), get_src_port(client));
        with_qp(server, qpt::RC);
        let mut receive = RecvWr { wr_id: 9, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        assert_eq!(post::post_recv((*server).qp, &mut receive, &mut ptr::null_mut()), 0);
        assert_eq!(accept(server, &mut param(b"welcome")), 0);
        let established = expect(mine, event::ESTABLISHED);
        assert_eq!((established.id, &established.data[..7]), (client, &b"welcome"[..]));
        assert_eq!(established.depths, (2, 3));
        assert_eq!(expect(yours, event::ESTABLISHED).id, server);
        // The last receive is flushed when this end disconnects, not when the peer does.
        assert_eq!(disconnect(client), 0);
        assert_eq!((*(*client).qp).state, qps::ERR);
        expect(mine, event::DISCONNECTED);
        assert_eq!(expect(yours, event::DISCONNECTED).id, server);
        let mut wc = Wc::default();
        assert_eq!((state((*server).qp), cq::poll_cq((*server).recv_cq, 1, &mut wc)), (qps::RTS, 0));
        assert_eq!(disconnect(server), 0);
        assert_eq!(state((*server).qp), qps::ERR);
        while cq::poll_cq((*server).recv_cq, 1, &mut wc) == 0 {}
        assert_eq!((wc.wr_id, wc.status), (9, 5));
        end(server);
    }
    end(client);
    end(listening);
    end_channels(&[mine, yours]);
}

/// As `cmtime` does it: the queue pair goes before the peer has answered.
#[test]
fn a_program_that_destroys_its_queue_pair_still_hears_of_the_end_and_once() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::TCP, at, 4);
    for asks_to_end in [true, false] {
        let client = routed(mine, ps::TCP, at);
        with_qp(client, qpt::RC);
        // SAFETY: the calls in C's order.
        unsafe {
            assert_eq!(connect(client, &mut param(b"")), 0);
            let server = expect(yours, event::CONNECT_REQUEST).id;
            with_qp(server, qpt::RC);
            assert_eq!(accept(server, &mut param(b"")), 0);
            expect(mine, event::ESTABLISHED);
            expect(yours, event::ESTABLISHED);
            if asks_to_end {
                assert_eq!(disconnect(client), 0);
            }
            destroy_qp(client);
            assert_eq!(expect(mine, event::DISCONNECTED).id, client);
            assert_eq!(disconnect(client), 0);
            assert_eq!(expect(yours, event::DISCONNECTED).id, server);
            // Nothing else came meanwhile.
            assert_eq!(libc::fcntl((*mine).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let mut event = ptr::null_mut();
            assert_eq!((get_cm_event(mine, &mut event), errno()), (-1, libc::EAGAIN));
            assert_eq!(libc::fcntl((*mine).fd, libc::F_SETFL, 0), 0);
            end(server);
        }
        end(client);
    }
    // An attempt that ends so has failed.
    let client = routed(mine, ps::TCP, at);
    with_qp(client, qpt::RC);
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!(connect(client, &mut param(b"")), 0);
        destroy_qp(client);
        let failed = expect(mine, event::CONNECT_ERROR);
        assert_eq!((failed.id, failed.status), (client, -libc::ECONNRESET));
    }
    end(client);
    end(listening);
    end_channels(&[mine, yours]);
}

/// A queue pair of an identifier's context that the identifier does not have, and its completion
/// queue.
fn own_qp(id: *mut CmId) -> *mut verbs::abi::Qp {
    // SAFETY: the identifier has a context.
    unsafe {
        let cq = cq::create_cq((*id).verbs, 8, ptr::null_mut(), ptr::null_mut(), 0);
        let made = qp::create_qp(
            memory::alloc_pd((*id).verbs),
            &mut QpInitAttr { send_cq: cq, recv_cq: cq, ..attributes(qpt::RC) },
        );
        assert!(!made.is_null());
        made
    }
}

/// Moves a queue pair by what an identifier says.
fn move_to(id: *mut CmId, of: *mut verbs::abi::Qp, states: &[c_int]) {
    for &qp_state in states {
        let (mut attr, mut given) = (QpAttr { qp_state, ..QpAttr::default() }, 0);
        // SAFETY: both are there.
        unsafe {
            assert_eq!(init_qp_attr(id, &mut attr, &mut given), 0, "to {qp_state}");
            assert_eq!(qp::modify_qp(of, &mut attr, given), 0, "to {qp_state}");
        }
    }
}

fn end_own(of: *mut verbs::abi::Qp) {
    // SAFETY: nothing uses them afterwards.
    unsafe {
        let (cq, pd) = ((*of).send_cq, (*of).pd);
        assert_eq!(qp::destroy_qp(of), 0);
        assert_eq!((cq::destroy_cq(cq), memory::dealloc_pd(pd)), (0, 0));
    }
}

#[test]
fn a_program_connects_queue_pairs_that_it_moves_itself() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::TCP, at, 4);
    let client = routed(mine, ps::TCP, at);
    let (qa, all) = (own_qp(client), [qps::INIT, qps::RTR, qps::RTS]);
    // SAFETY: the calls in C's order.
    unsafe {
        let early = |id, qp_state| {
            let (mut attr, mut given) = (QpAttr { qp_state, ..QpAttr::default() }, 0);
            (init_qp_attr(id, &mut attr, &mut given), errno())
        };
        move_to(client, qa, &all[..1]);
        assert_eq!(early(client, qps::RTR), (-1, libc::EINVAL), "there is no peer yet");
        assert_eq!((establish(client), errno()), (-1, libc::EINVAL));
        let mut with = ConnParam { qp_num: (*qa).qp_num, ..param(b"hello") };
        assert_eq!(connect(client, &mut with), 0);
        assert_eq!(early(client, qps::RTR), (-1, libc::EINVAL), "the peer has not answered");
        let server = expect(yours, event::CONNECT_REQUEST).id;
        let qb = own_qp(server);
        move_to(server, qb, &all);
        let mut with = ConnParam { qp_num: (*qb).qp_num, ..param(b"welcome") };
        assert_eq!(accept(server, &mut with), 0);
        let response = expect(mine, event::CONNECT_RESPONSE);
        assert_eq!((response.id, &response.data[..7], response.depths), (client, &b"welcome"[..], (2, 3)));
        assert_eq!(state(qa), qps::INIT, "nobody but the program moves it");
        move_to(client, qa, &all);
        assert_eq!(establish(client), 0);
        assert_eq!((establish(client), errno()), (-1, libc::EINVAL), "once");
        assert_eq!(expect(yours, event::ESTABLISHED).id, server);
        let mut attr = QpAttr::default();
        let mut init = attributes(qpt::RC);
        assert_eq!(qp::query_qp(qa, &mut attr, 0, &mut init), 0);
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.retry_cnt), (2, 3, 7));

        let mut receive = RecvWr { wr_id: 9, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        assert_eq!(post::post_recv(qa, &mut receive, &mut ptr::null_mut()), 0);
        // Zeros are null pointers and numbers.
        let mut send: SendWr = std::mem::zeroed();
        send.opcode = wr::SEND;
        assert_eq!(post::post_send(qb, &mut send, &mut ptr::null_mut()), 0);
        let mut wc = Wc::default();
        while cq::poll_cq((*qa).recv_cq, 1, &mut wc) == 0 {}
        assert_eq!((wc.wr_id, wc.status), (9, 0));

        assert_eq!(disconnect(client), 0);
        expect(mine, event::DISCONNECTED);
        expect(yours, event::DISCONNECTED);
        assert_eq!((state(qa), state(qb)), (qps::RTS, qps::RTS));
        end_own(qa);
        end_own(qb);
        end(server);
    }
    end(client);
    end(listening);
    end_channels(&[mine, yours]);
}

#[test]
fn a_request_is_rejected_by_the_program_by_the_end_of_the_listener_or_for_want_of_one() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::TCP, at, 0);
    let begin = |at| {
        let client = routed(mine, ps::TCP, at);
        with_qp(client, qpt::RC);
        // SAFETY: the identifier has a route.
        assert_eq!(unsafe { connect(client, ptr::null_mut()) }, 0);
        client
    };
    let client = begin(at);
    let server = expect(yours, event::CONNECT_REQUEST).id;
    let data = b"no";
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!(reject(server, data.as_ptr().cast(), 2), 0);
        assert_eq!((reject(server, data.as_ptr().cast(), 2), errno()), (-1, libc::EINVAL));
        assert_eq!((accept(server, ptr::null_mut()), errno()), (-1, libc::EINVAL));
    }
    let said = expect(mine, event::REJECTED);
    assert_eq!((said.status, &said.data[..2]), (28, &data[..]));
    end(server);
    end(client);

    // A request that the program has not taken.
    let client = begin(at);
    // SAFETY: the channel is there.
    let fd = unsafe { BorrowedFd::borrow_raw((*yours).fd) };
    let readable = rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN);
    assert_eq!(rustix::event::poll(&mut [readable], None), Ok(1));
    end(listening);
    expect(mine, event::REJECTED);
    end(client);

    let client = begin(at);
    assert_eq!(expect(mine, event::REJECTED).status, 8, "no such service");
    end(client);
    end_channels(&[mine, yours]);
}

/// A server ends its listening identifier and listens at the port anew, as perftest's does, for
/// connections or for datagrams. Requests that come in between wait.
#[test]
fn a_request_between_two_listening_identifiers_of_a_port_waits_for_the_second() {
    for (space, kind) in [(ps::TCP, qpt::RC), (ps::UDP, qpt::UD)] {
        let (mine, yours) = (channel(), channel());
        let (at, other) = (port(), port());
        end(listener(yours, ps::TCP, at, 4));
        let listening = listener(yours, ps::TCP, other, 4);
        let begin = |space, kind, at| {
            let client = routed(mine, space, at);
            with_qp(client, kind);
            // SAFETY: the identifier has a route.
            assert_eq!(unsafe { connect(client, ptr::null_mut()) }, 0);
            client
        };
        let early = begin(space, kind, at);
        // A request that was sent later has come, so the early one has.
        let later = begin(ps::TCP, qpt::RC, other);
        end(expect(yours, event::CONNECT_REQUEST).id);
        assert_eq!(expect(mine, event::REJECTED).id, later);
        let again = listener(yours, space, at, 4);
        let asked = expect(yours, event::CONNECT_REQUEST);
        assert_eq!(asked.listener, again);
        for id in [asked.id, early, later, again, listening] {
            end(id);
        }
        end_channels(&[mine, yours]);
    }
}

#[test]
fn a_peer_that_is_not_there_is_unreachable() {
    let mine = channel();
    let id = make(mine, ps::TCP);
    let mut own = address(0, 0);
    let mut nobody = address(1, 5);
    nobody.sin6_addr.s6_addr[13] ^= 0xff;
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!(resolve_addr(id, pointer(&mut own), pointer(&mut nobody), 1000), 0);
        expect(mine, event::ADDR_RESOLVED);
        assert_eq!(resolve_route(id, 1000), 0);
        expect(mine, event::ROUTE_RESOLVED);
        with_qp(id, qpt::RC);
        assert_eq!(connect(id, ptr::null_mut()), 0);
    }
    assert_eq!(expect(mine, event::UNREACHABLE).status, -libc::ETIMEDOUT);
    end(id);

    // From an address of IPv4, none of IPv6 is reached.
    let id = make(mine, ps::TCP);
    let mut other = socket_address("fe80::dead".parse().expect("an address"), 5);
    // SAFETY: the identifier is there.
    assert_eq!(unsafe { resolve_addr(id, pointer(&mut own), pointer(&mut other), 1000) }, 0);
    assert_eq!(expect(mine, event::ADDR_ERROR).status, -libc::ENETUNREACH);
    end(id);
    end_channels(&[mine]);
}

#[test]
fn an_address_of_loopback_that_no_device_has_is_any() {
    let mine = channel();
    let id = make(mine, ps::TCP);
    let mut loopback = socket_address(std::net::Ipv6Addr::LOCALHOST, 0);
    // SAFETY: the identifier is there.
    unsafe {
        assert_eq!(bind_addr(id, pointer(&mut loopback)), 0);
        assert!((*id).verbs.is_null(), "on all devices");
        assert_eq!(listen(id, 1), 0);
    }
    end(id);
    end_channels(&[mine]);
}

#[test]
fn wrong_calls_get_the_errors_of_sockets_and_change_nothing() {
    let mine = channel();
    let at = port();
    let mut id = ptr::null_mut();
    let wrong = |result: c_int, number: c_int| assert_eq!((result, errno()), (-1, number));
    // SAFETY: the calls get what exists.
    unsafe {
        wrong(create_id(mine, &mut id, ptr::null_mut(), 0x2), libc::EOPNOTSUPP);
        let id = make(mine, ps::TCP);
        let mut other_family = address(0, at);
        other_family.sin6_family = libc::AF_UNIX as u16;
        wrong(bind_addr(id, pointer(&mut other_family)), libc::EAFNOSUPPORT);
        let mut foreign = socket_address("fe80::dead".parse().expect("an address"), at);
        wrong(bind_addr(id, pointer(&mut foreign)), libc::ENODEV);
        wrong(resolve_route(id, 1000), libc::EINVAL);
        wrong(connect(id, ptr::null_mut()), libc::EINVAL);
        wrong(accept(id, ptr::null_mut()), libc::EINVAL);
        wrong(disconnect(id), libc::EINVAL);
        wrong(create_qp(id, ptr::null_mut(), &mut attributes(qpt::RC)), libc::EINVAL);
        wrong(get_request(id, &mut ptr::null_mut()), libc::EINVAL);
        let mut tos = 32u8;
        assert_eq!(set_option(id, 0, 0, ptr::from_mut(&mut tos).cast(), 1), 0);
        wrong(set_option(id, 0, 0, ptr::from_mut(&mut tos).cast(), 2), libc::EINVAL);
        wrong(set_option(id, 1, 1, ptr::from_mut(&mut tos).cast(), 1), libc::ENOSYS);
        let mut own = address(1, at);
        assert_eq!(bind_addr(id, pointer(&mut own)), 0);
        wrong(bind_addr(id, pointer(&mut own)), libc::EINVAL);
        let second = make(mine, ps::TCP);
        wrong(bind_addr(second, pointer(&mut own)), libc::EADDRINUSE);
        assert_eq!(listen(id, 1), 0);
        wrong(listen(id, 1), libc::EINVAL);
        end(id);
        assert_eq!(bind_addr(second, pointer(&mut own)), 0, "the port is free again");
        end(second);

        let routed = routed(mine, ps::TCP, at);
        wrong(connect(routed, ptr::null_mut()), libc::EINVAL);
        wrong(connect(routed, &mut param(b"")), libc::EINVAL);
        with_qp(routed, qpt::RC);
        wrong(create_qp(routed, ptr::null_mut(), &mut attributes(qpt::RC)), libc::EINVAL);
        let long = [1; 57];
        wrong(connect(routed, &mut param(&long)), libc::EINVAL);
        let mut deep = ConnParam { initiator_depth: 200, ..param(b"") };
        wrong(connect(routed, &mut deep), libc::EINVAL);
        end(routed);
        assert_eq!(ack_cm_event(ptr::null_mut()), -1);
    }
    end_channels(&[mine]);
}

#[test]
fn an_identifier_is_not_destroyed_before_its_events_are_acknowledged() {
    let mine = channel();
    let id = make(mine, ps::TCP);
    let (mut own, mut peer) = (address(0, 0), address(1, 1));
    // SAFETY: the identifier is there.
    assert_eq!(unsafe { resolve_addr(id, pointer(&mut own), pointer(&mut peer), 1000) }, 0);
    let taken = take(mine);
    let (ended, has_ended) = mpsc::channel();
    let raw = id as usize;
    let thread = std::thread::spawn(move || {
        end(raw as *mut CmId);
        ended.send(()).expect("the test waits");
    });
    // A destruction that did not wait would be over by then, most of the time.
    assert!(has_ended.recv_timeout(Duration::from_millis(100)).is_err());
    // SAFETY: the event is not acknowledged yet.
    assert_eq!(unsafe { ack_cm_event(taken) }, 0);
    assert_eq!(has_ended.recv(), Ok(()));
    thread.join().expect("no panic");
    end_channels(&[mine]);
}

#[test]
fn a_channel_does_not_block_if_its_descriptor_is_set_so() {
    let mine = channel();
    // SAFETY: the channel is there.
    unsafe {
        let fd = BorrowedFd::borrow_raw((*mine).fd);
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK).expect("a descriptor");
        let mut event = ptr::null_mut();
        assert_eq!((get_cm_event(mine, &mut event), errno()), (-1, libc::EAGAIN));
    }
    let id = routed(mine, ps::TCP, 1);
    end(id);
    end_channels(&[mine]);
}

#[test]
fn requests_beyond_the_backlog_come_when_there_is_room() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::TCP, at, 1);
    let clients: Vec<*mut CmId> = (0..3)
        .map(|_| {
            let client = routed(mine, ps::TCP, at);
            with_qp(client, qpt::RC);
            client
        })
        .collect();
    for &client in &clients {
        // SAFETY: the identifier has a route.
        assert_eq!(unsafe { connect(client, ptr::null_mut()) }, 0);
    }
    let servers: Vec<*mut CmId> = (0..3)
        .map(|_| {
            let server = loop {
                let said = next(yours);
                if said.kind == event::CONNECT_REQUEST {
                    break said.id;
                }
            };
            with_qp(server, qpt::RC);
            // SAFETY: the identifier is a request's.
            assert_eq!(unsafe { accept(server, ptr::null_mut()) }, 0);
            expect(mine, event::ESTABLISHED);
            server
        })
        .collect();
    servers.into_iter().for_each(end);
    clients.into_iter().for_each(end);
    end(listening);
    end_channels(&[mine, yours]);
}

#[test]
fn an_identifier_takes_its_events_along_to_another_channel() {
    let (first, second) = (channel(), channel());
    let id = make(first, ps::TCP);
    let (mut own, mut peer) = (address(0, 0), address(1, 1));
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!(resolve_addr(id, pointer(&mut own), pointer(&mut peer), 1000), 0);
        assert_eq!(migrate_id(id, second), 0);
        assert_eq!((*id).channel, second);
        expect(second, event::ADDR_RESOLVED);
        let fd = BorrowedFd::borrow_raw((*first).fd);
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK).expect("a descriptor");
        let mut event = ptr::null_mut();
        assert_eq!((get_cm_event(first, &mut event), errno()), (-1, libc::EAGAIN));
        // Its calls wait from now on.
        assert_eq!(migrate_id(id, ptr::null_mut()), 0);
        assert_eq!(resolve_route(id, 1000), 0);
        assert_eq!((*(*id).event).event, event::ROUTE_RESOLVED);
    }
    end(id);
    end_channels(&[first, second]);
}

/// What `rdma_getaddrinfo` would say of an address of a NIC.
fn info(flags: c_int, src: &mut libc::sockaddr_in6, dst: Option<&mut libc::sockaddr_in6>) -> AddrInfo {
    // SAFETY: zeros are null pointers and numbers.
    let mut info: AddrInfo = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sockaddr_in6>() as u32;
    (info.ai_flags, info.ai_qp_type, info.ai_port_space) = (flags, qpt::RC, ps::TCP);
    (info.ai_src_addr, info.ai_src_len) = (pointer(src), size);
    if let Some(dst) = dst {
        (info.ai_dst_addr, info.ai_dst_len) = (pointer(dst), size);
    }
    info
}

#[test]
fn without_names_an_address_is_that_of_the_hints() {
    let (mut own, mut other) = (address(0, 5), address(1, 6));
    let hints = info(0, &mut own, Some(&mut other));
    let mut found = ptr::null_mut();
    // SAFETY: the calls get what exists.
    unsafe {
        assert_eq!(getaddrinfo(ptr::null(), ptr::null(), &hints, &mut found), 0);
        for (made, given) in
            [((*found).ai_src_addr, pointer(&mut own)), ((*found).ai_dst_addr, pointer(&mut other))]
        {
            let [made, given] = [made, given].map(|of| *of.cast::<libc::sockaddr_in6>());
            assert_eq!((made.sin6_port, made.sin6_addr.s6_addr), (given.sin6_port, given.sin6_addr.s6_addr));
        }
        assert_eq!((*found).ai_port_space, ps::TCP);
        freeaddrinfo(found);
        assert_eq!(getaddrinfo(ptr::null(), ptr::null(), ptr::null(), &mut found), -1);
    }
}

#[test]
fn endpoints_wait_in_their_calls() {
    let at = port();
    let mut own = address(1, at);
    let mut listening = ptr::null_mut();
    // SAFETY: the calls in C's order.
    unsafe {
        let mut passive = info(rai::PASSIVE, &mut own, None);
        assert_eq!(
            create_ep(&mut listening, &mut passive, ptr::null_mut(), &mut attributes(qpt::RC)),
            0,
            "{}",
            errno()
        );
        assert_eq!(listen(listening, 0), 0);
    }
    let client = std::thread::spawn(move || {
        let (mut own, mut peer) = (address(0, 0), address(1, at));
        let mut active = info(0, &mut own, Some(&mut peer));
        let mut id = ptr::null_mut();
        // SAFETY: the calls in C's order.
        unsafe {
            assert_eq!(create_ep(&mut id, &mut active, ptr::null_mut(), &mut attributes(qpt::RC)), 0);
            assert_eq!(connect(id, ptr::null_mut()), 0);
            assert_eq!((*(*id).event).event, event::ESTABLISHED);
            assert_eq!(disconnect(id), 0);
            destroy_ep(id);
            // The listening endpoint rejects the second.
            assert_eq!(create_ep(&mut id, &mut active, ptr::null_mut(), &mut attributes(qpt::RC)), 0);
            assert_eq!((connect(id, ptr::null_mut()), errno()), (-1, libc::ECONNREFUSED));
            destroy_ep(id);
        }
    });
    // SAFETY: the calls in C's order.
    unsafe {
        let mut id = ptr::null_mut();
        assert_eq!(get_request(listening, &mut id), 0);
        assert!(!(*id).qp.is_null() && (*id).channel != (*listening).channel);
        assert_eq!(accept(id, ptr::null_mut()), 0);
        assert_eq!(disconnect(id), 0);
        destroy_ep(id);
        assert_eq!(get_request(listening, &mut id), 0);
        assert_eq!(reject(id, ptr::null(), 0), 0);
        destroy_ep(id);
        destroy_ep(listening);
    }
    client.join().expect("no panic");
}

#[test]
fn a_datagram_service_is_found_with_its_queue_pair() {
    let (mine, yours) = (channel(), channel());
    let at = port();
    let listening = listener(yours, ps::UDP, at, 4);
    let client = routed(mine, ps::UDP, at);
    with_qp(client, qpt::UD);
    // SAFETY: the calls in C's order.
    unsafe {
        assert_eq!((*(*client).qp).state, qps::RTS);
        assert_eq!(connect(client, &mut param(b"who")), 0);
        let asked = expect(yours, event::CONNECT_REQUEST);
        assert_eq!(&asked.data[..3], b"who");
        let server = asked.id;
        assert_eq!(get_dst_port(server), get_src_port(client));
        with_qp(server, qpt::UD);
        assert_eq!(accept(server, &mut param(b"me")), 0);
        let taken = take(mine);
        assert_eq!((*taken).event, event::ESTABLISHED);
        let ud = (*taken).param.ud;
        assert_eq!((ud.qp_num, ud.qkey), ((*(*server).qp).qp_num, 0x0123_4567));
        assert_eq!((ud.ah_attr.is_global, ud.ah_attr.port_num), (1, 1));
        assert_eq!(ud.ah_attr.dgid, (*client).route.ib.dgid);
        ack_cm_event(taken);
        end(server);

        // Of another service nobody knows.
        let other = routed(mine, ps::UDP, port());
        assert_eq!(connect(other, ptr::null_mut()), 0);
        assert_eq!(expect(mine, event::UNREACHABLE).status, 1);
        end(other);
    }
    end(client);
    end(listening);
    end_channels(&[mine, yours]);
}

#[test]
fn a_member_of_a_group_is_told_how_to_send_to_it_and_gets_what_others_send() {
    let (mine, yours) = (channel(), channel());
    let mut group = socket_address("ff0e::77".parse().expect("an address"), 0);
    // SAFETY: the calls in C's order.
    unsafe {
        let id = make(mine, ps::UDP);
        assert_eq!(join_multicast(id, pointer(&mut group), ptr::null_mut()), -1, "no device yet");
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(resolve_addr(id, ptr::null_mut(), pointer(&mut group), 1000), 0);
        expect(mine, event::ADDR_RESOLVED);
        assert!(!(*id).verbs.is_null());
        with_qp(id, qpt::UD);
        let (mut at, mut own) = (address(1, 0), address(1, 0));
        let member = make(yours, ps::UDP);
        assert_eq!(bind_addr(member, pointer(&mut own)), 0);
        with_qp(member, qpt::UD);
        assert_eq!(join_multicast(member, pointer(&mut at), ptr::null_mut()), -1, "no group");
        assert_eq!((errno(), leave_multicast(member, pointer(&mut group))), (libc::EINVAL, -1));
        assert_eq!(errno(), libc::EADDRNOTAVAIL);
        assert_eq!(join_multicast(member, pointer(&mut group), 9 as *mut c_void), 0);
        let taken = take(yours);
        let CmEvent { id: of, event: kind, status, .. } = *taken;
        assert_eq!((of, kind, status), (member, event::MULTICAST_JOIN, 0));
        assert_eq!((*taken).param.ud.private_data.addr(), 9, "what the program gave");
        ack_cm_event(taken);
        let mut sends_only = JoinAttr { comp_mask: 3, join_flags: 1, addr: pointer(&mut group) };
        assert_eq!(join_multicast_ex(id, &mut sends_only, ptr::null_mut()), 0);
        let taken = take(mine);
        assert_eq!((*taken).event, event::MULTICAST_JOIN);
        let mut ud = (*taken).param.ud;
        assert_eq!((ud.qp_num, ud.qkey, ud.ah_attr.dgid), (0xff_ffff, 0x0123_4567, (*id).route.ib.dgid));
        ack_cm_event(taken);

        let mut receive = RecvWr { wr_id: 5, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let bytes = platform::DmaBuffer::new(&machine().platform(), 4096, 4096).expect("memory");
        let region = memory::reg_mr((*(*member).qp).pd, bytes.slice().as_ptr().cast(), 4096, 1);
        let mut sge = verbs::abi::Sge { addr: (*region).addr as u64, length: 64, lkey: (*region).lkey };
        (receive.sg_list, receive.num_sge) = (&mut sge, 1);
        let mut bad = ptr::null_mut();
        assert_eq!(post::post_recv((*member).qp, &mut receive, &mut bad), 0);
        let to = ah::create_ah((*(*id).qp).pd, &mut ud.ah_attr);
        let mut send: SendWr = std::mem::zeroed();
        send.opcode = wr::SEND;
        send.wr.ud = verbs::abi::WrUd { ah: to, remote_qpn: ud.qp_num, remote_qkey: ud.qkey };
        let mut bad = ptr::null_mut();
        assert_eq!(post::post_send((*id).qp, &mut send, &mut bad), 0);
        let mut wc = Wc::default();
        while cq::poll_cq((*member).recv_cq, 1, &mut wc) == 0 {}
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (5, 0, 40));
        assert_eq!(ah::destroy_ah(to), 0);
        assert_eq!(qp::destroy_qp((*member).qp), libc::EBUSY, "it is attached");
        assert_eq!(leave_multicast(member, pointer(&mut group)), 0);
        assert_eq!(memory::dereg_mr(region), 0);
        end(id);
        end(member);
    }
    end_channels(&[mine, yours]);
}
