//! Data transfer from one queue pair to another, by every operation.

extern crate ferrovia_kernel_agent as kernel_agent;

mod common;

use common::*;
use host::Machine;
use kernel_agent::{
    Bind, CmEventKind, Link, MemoryList, Operation, PostError, QpAttributes, QpType, Remote, Request, Shadow,
    WindowType, datagram_address,
};
use nic_abi::cqe::{CqeFlags, Status};
use nic_abi::ident::KEY_RESERVED;
use nic_abi::wqe::{LinkFlags, Opcode, Segment, SendFlags};
use roce::{Gid, Path, QKey, Qpn};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn contents(buffer: &platform::DmaBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

fn two_nics_and_one(check: impl Fn(&Machine, &Node, &Node)) {
    for nics in [1, 2] {
        let machine = Machine::new(nics);
        let agents: Vec<_> = (0..usize::from(nics)).map(|n| open(&machine, n)).collect();
        let a = Node::new(&machine, &agents[0]);
        let b = Node::new(&machine, agents.last().unwrap());
        check(&machine, &a, &b);
        a.client.detach();
        b.client.detach();
        for agent in agents {
            assert_eq!(agent.counts(), Default::default());
            agent.close();
            assert_eq!(agent.test_handle().quarantined(), 0);
        }
    }
}

#[test]
fn send_write_read_and_direct() {
    two_nics_and_one(|_, a, b| {
        let (qa, _, qb, _) = connect(a, b, 1);
        let (from, to) = (a.buffer(10_000), b.buffer(10_000));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let (sa, sb) = (segment(&from, &ra), remote(&to, &rb));

        from.write(0, &pattern(10_000, 1)).unwrap();
        receive(&qb, segment(&to, &rb), 100);
        post(&qa, Opcode::Send, sa, None, 1);
        let done = a.completion();
        assert_eq!((done.cookie, done.status, done.context), (1, Status::Success, 1));
        assert_eq!(done.data, Opcode::Send as u32);
        let got = b.completion();
        assert_eq!((got.cookie, got.status, got.length, got.context), (100, Status::Success, 10_000, 2));
        assert_eq!(contents(&to), pattern(10_000, 1));

        from.write(0, &pattern(10_000, 2)).unwrap();
        post(&qa, Opcode::Write, sa, Some(sb), 2);
        assert_eq!(a.completion().status, Status::Success);
        assert_eq!(contents(&to), pattern(10_000, 2));

        to.write(0, &pattern(10_000, 3)).unwrap();
        post(&qa, Opcode::Read, sa, Some(sb), 3);
        let read = a.completion();
        assert_eq!((read.cookie, read.status, read.length), (3, Status::Success, 10_000));
        assert_eq!(contents(&from), pattern(10_000, 3));

        from.write(0, &pattern(10_000, 4)).unwrap();
        let direct = Segment { addr: from.bus(), length: 10_000, key: KEY_RESERVED };
        post(&qa, Opcode::Write, direct, Some(sb), 4);
        assert_eq!(a.completion().status, Status::Success);
        assert_eq!(contents(&to), pattern(10_000, 4));
    });
}

#[test]
fn a_linked_region_can_be_written_through_each_kind_of_list() {
    two_nics_and_one(|_, a, b| {
        let (qa, _, qb, _) = connect(a, b, 2);
        let (from, to) = (a.buffer(8192), b.buffer(4 * 4096));
        let ra = a.register(&from);
        let region = b.client.allocate_region(&b.pd, 4).unwrap();
        let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::REMOTE_WRITE;
        let bus = to.bus();
        let pages = [bus + 8192, bus];
        let blocks = [bus + 100, bus + 3000, bus + 9000];
        let elements = [
            nic_abi::wqe::ListElement { addr: bus + 5, length: 1000 },
            nic_abi::wqe::ListElement { addr: bus + 4096, length: 8000 },
        ];
        let lists = [
            MemoryList::Contiguous { bus: bus + 3, length: 8192 },
            MemoryList::Pages { pages: &pages, page_size: 4096, first_byte_offset: 0, length: 8192 },
            MemoryList::Blocks { blocks: &blocks, block_length: 2800, first_byte_offset: 8, length: 8192 },
            MemoryList::Variable { elements: &elements, first_byte_offset: 500, length: 8192 },
        ];
        for (seed, memory) in (1u8..).zip(lists) {
            let link = Link { flags: rights | LinkFlags::RELATIVE, base: 0, memory };
            let (flags, shadow) = (SendFlags::SIGNALED, Shadow { cookie: 7, data: 7 });
            let key = qb.post_link(&region, &link, flags, shadow).unwrap();
            let linked = b.completion();
            assert_eq!((linked.cookie, linked.status), (7, Status::Success), "{memory:?}");
            assert_eq!(region.query().unwrap().remote, key);
            to.slice().fill(0);
            from.write(0, &pattern(8192, seed)).unwrap();
            let remote = Segment { addr: 0, length: 0, key };
            post(&qa, Opcode::Write, segment(&from, &ra), Some(remote), 1);
            assert_eq!(a.completion().status, Status::Success, "{memory:?}");
            let bytes = contents(&to);
            let expected = pattern(8192, seed);
            let placed: Vec<u8> = match memory {
                MemoryList::Contiguous { .. } => bytes[3..8195].to_vec(),
                MemoryList::Pages { .. } => [&bytes[8192..12288], &bytes[..4096]].concat(),
                MemoryList::Blocks { .. } => {
                    [&bytes[108..2900], &bytes[3000..5800], &bytes[9000..11600]].concat()
                }
                MemoryList::Variable { .. } => [&bytes[505..1005], &bytes[4096..4096 + 7692]].concat(),
            };
            assert!(placed == expected, "{memory:?}");
            let operation = Operation::LocalInvalidate { key: region.key(), remote: 0 };
            qb.post_plain(&Request { operation, flags, shadow }).unwrap();
            assert_eq!(b.completion().status, Status::Success);
        }
    });
}

#[test]
fn links_in_flight_are_bounded_and_lists_checked() {
    two_nics_and_one(|machine, a, b| {
        let (qa, ..) = connect(a, b, 3);
        let memory = a.buffer(4096);
        let region = a.client.allocate_region(&a.pd, 1).unwrap();
        let pages = [memory.bus()];
        let list = MemoryList::Pages { pages: &pages, page_size: 4096, first_byte_offset: 0, length: 4096 };
        let link = Link { flags: LinkFlags::LOCAL_READ, base: 0, memory: list };
        let two = [memory.bus(), memory.bus()];
        let long = Link {
            memory: MemoryList::Pages { pages: &two, page_size: 4096, first_byte_offset: 0, length: 4096 },
            ..link
        };
        let shadow = Shadow::default();
        let refused = qa.post_link(&region, &long, SendFlags::SIGNALED, shadow);
        assert!(matches!(refused, Err(PostError::BadList(_))));
        let mut paused = machine.pause();
        let links: Vec<_> =
            (0..5).map(|_| qa.post_link(&region, &link, SendFlags::SIGNALED, shadow)).collect();
        assert!(links[..4].iter().all(Result::is_ok));
        assert_eq!(links[4], Err(PostError::LinksInFlight));
        paused.step();
        drop(paused);
        assert_eq!(a.completion().status, Status::Success);
        // The first has completed, so its list is free again. (The link itself fails, because the
        // region is linked.)
        assert!(qa.post_link(&region, &link, SendFlags::SIGNALED, shadow).is_ok());
        assert_eq!(a.completion().status, Status::MemoryManagement);
    });
}

#[test]
fn many_segments_atomics_and_windows() {
    two_nics_and_one(|_, a, b| {
        let (qa, _, qb, _) = connect(a, b, 4);
        let (from, to) = (a.buffer(8192), b.buffer(8192));
        let (ra, rb) = (a.register(&from), b.register(&to));
        from.write(0, &pattern(8192, 9)).unwrap();
        for count in [0usize, 1, 2, 3, 6, 7, 8] {
            let pieces: Vec<Segment> = (0..count)
                .map(|i| Segment { addr: from.addr() as u64 + 100 * i as u64, length: 10, key: ra.key() })
                .collect();
            let remote = Segment { addr: to.addr() as u64, length: 0, key: rb.remote_key() };
            let sent = request(Opcode::Write, Some(remote));
            let sent = Request { shadow: Shadow { cookie: count as u64, data: 0 }, ..sent };
            qa.post(&sent, &pieces, |&piece| piece).unwrap();
            let done = a.completion();
            assert_eq!((done.cookie, done.status), (count as u64, Status::Success));
            let bytes = contents(&to);
            for i in 0..count {
                assert_eq!(bytes[10 * i..10 * i + 10], pattern(8192, 9)[100 * i..100 * i + 10]);
            }
        }
        let nine = [segment(&from, &ra); 9];
        let refused = qa.post(&request(Opcode::Send, None), &nine, |&s| s);
        assert_eq!(refused, Err(PostError::Segments));

        to.write(0, &40u64.to_le_bytes()).unwrap();
        let sink = Segment { addr: from.addr() as u64, length: 8, key: ra.key() };
        let remote = Segment { addr: to.addr() as u64, length: 8, key: rb.remote_key() };
        let at = Remote { addr: remote.addr, key: remote.key };
        let operation = Operation::FetchAdd { remote: at, sink, add: 2 };
        qa.post_plain(&Request { operation, ..request(Opcode::Send, None) }).unwrap();
        let done = a.completion();
        assert_eq!((done.status, done.length), (Status::Success, 8));
        assert_eq!(contents(&from)[..8], 40u64.to_le_bytes());
        assert_eq!(contents(&to)[..8], 42u64.to_le_bytes());

        let window = b.client.allocate_window(&b.pd, WindowType::Wide).unwrap();
        let rights = LinkFlags::REMOTE_WRITE;
        let key = qb
            .post_bind(
                &window,
                Bind { region: rb.key(), flags: rights, addr: to.addr() as u64, length: 64 },
                SendFlags::SIGNALED,
                Shadow::default(),
            )
            .unwrap();
        assert_eq!(b.completion().status, Status::Success);
        assert_eq!(window.query().unwrap().linked, 1);
        assert_eq!(rb.destroy(), Err(kernel_agent::Error::Busy));
        let small = Segment { length: 64, ..sink };
        post(&qa, Opcode::Write, small, Some(Segment { key, ..remote }), 1);
        assert_eq!(a.completion().status, Status::Success);
        window.destroy().unwrap();
        rb.destroy().unwrap();
        assert_eq!(rb.destroy(), Err(kernel_agent::Error::Gone));
    });
}

#[test]
fn a_completion_retires_the_unsignalled_requests_before_it() {
    two_nics_and_one(|machine, a, b| {
        let (qa, _, _, _) = connect(a, b, 5);
        let (from, to) = (a.buffer(64), b.buffer(64));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let (sa, sb) = (segment(&from, &ra), remote(&to, &rb));
        let mut quiet = request(Opcode::Write, Some(sb));
        quiet.flags = SendFlags::empty();
        let signalled = request(Opcode::Write, Some(sb));
        for round in 0..10 {
            let paused = machine.pause();
            for cookie in 0..15 {
                let shadow = Shadow { cookie, data: 0 };
                qa.post(&Request { shadow, ..quiet }, &[sa], |&s| s).unwrap();
            }
            let shadow = Shadow { cookie: round, data: 1 };
            qa.post(&Request { shadow, ..signalled }, &[sa], |&s| s).unwrap();
            assert_eq!(qa.post(&signalled, &[sa], |&s| s), Err(PostError::QueueFull));
            drop(paused);
            assert_eq!(qa.outstanding().0, 16);
            let done = a.completion();
            assert_eq!((done.cookie, done.data, done.status), (round, 1, Status::Success));
            assert_eq!(qa.outstanding().0, 0);
        }
    });
}

#[test]
fn a_shared_receive_queue_serves_two_connections() {
    two_nics_and_one(|_, a, b| {
        let srq = b.client.create_srq(&b.pd, 8, 2, 0, 55).unwrap();
        let mut attributes = b.attributes(21);
        attributes.srq = Some(&srq);
        let all = LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE;
        let q1 = b.client.create_qp(&attributes).unwrap();
        attributes.context = 22;
        let q2 = b.client.create_qp(&attributes).unwrap();
        q1.to_init(all).unwrap();
        q2.to_init(all).unwrap();
        assert_eq!(srq.destroy(), Err(kernel_agent::Error::Busy));
        let (p1, p2) = (a.qp(11), a.qp(12));
        connect_qps(a, &p1, b, &q1, 6);
        connect_qps(a, &p2, b, &q2, 7);
        let (from, to) = (a.buffer(64), b.buffer(64 * 8));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let into = |i: u64| Segment { addr: to.addr() as u64 + 64 * i, length: 64, key: rb.key() };
        for i in 0..8 {
            srq.post_receive(false, &[into(i)], |&s| s, Shadow { cookie: i, data: 0 }).unwrap();
        }
        let full = srq.post_receive(false, &[into(0)], |&s| s, Shadow::default());
        assert_eq!(full, Err(PostError::QueueFull));
        assert_eq!(q1.post_receive(false, &[into(0)], |&s| s, Shadow::default()), Err(PostError::Kind));
        let mut cookies = Vec::new();
        for (qp, context) in [(&p1, 21), (&p2, 22), (&p1, 21), (&p2, 22)] {
            post(qp, Opcode::Send, segment(&from, &ra), None, 1);
            assert_eq!(a.completion().status, Status::Success);
            let got = b.completion();
            assert_eq!((got.context, got.status, got.length), (context, Status::Success, 64));
            cookies.push(got.cookie);
        }
        cookies.sort_unstable();
        assert_eq!(cookies, [0, 1, 2, 3]);
        assert_eq!(srq.outstanding(), 4);
        for i in 0..4 {
            srq.post_receive(false, &[into(i)], |&s| s, Shadow { cookie: 8 + i, data: 0 }).unwrap();
        }
        assert_eq!(srq.outstanding(), 8);
    });
}

#[test]
fn what_was_taken_of_a_shared_queue_before_a_reset_is_forgotten() {
    two_nics_and_one(|_, a, b| {
        let srq = b.client.create_srq(&b.pd, 8, 2, 0, 55).unwrap();
        let mut attributes = b.attributes(21);
        attributes.srq = Some(&srq);
        let q = b.client.create_qp(&attributes).unwrap();
        let (from, to) = (a.buffer(64), b.buffer(64));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let shadow = |cookie| Shadow { cookie, data: 0 };
        for cookie in 0..8 {
            srq.post_receive(false, &[segment(&to, &rb)], |&s| s, shadow(cookie)).unwrap();
        }
        let mut peers = Vec::new();
        for life in 0..2 {
            let all = LinkFlags::REMOTE_READ | LinkFlags::REMOTE_WRITE;
            q.to_init(all).unwrap();
            let p = a.qp(11);
            let (connection, _) = connect_qps(a, &p, b, &q, 6 + life);
            for _ in 0..3 {
                post(&p, Opcode::Send, segment(&from, &ra), None, 1);
                assert_eq!(a.completion().status, Status::Success);
            }
            if life == 0 {
                // The consumer takes one of the three completions.
                assert_eq!(b.completion().cookie, 0);
                a.client.disconnect(connection, b"").unwrap();
                b.ears.cm("the end", |kind| matches!(kind, CmEventKind::Disconnected { .. }));
                q.to_reset().unwrap();
                assert_eq!((b.cq.poll_one(), srq.outstanding()), (None, 5));
            }
            peers.push(p);
        }
        for cookie in 3..6 {
            assert_eq!((b.completion().cookie, b.cq.dropped()), (cookie, 2));
        }
        assert_eq!((b.cq.poll_one(), srq.outstanding()), (None, 2));
        q.destroy().unwrap();
    });
}

#[test]
fn a_cq_can_be_resized_with_entries_waiting() {
    two_nics_and_one(|_, a, b| {
        let (qa, ..) = connect(a, b, 8);
        let (from, to) = (a.buffer(64), b.buffer(64));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let (sa, sb) = (segment(&from, &ra), remote(&to, &rb));
        let mut next = 0;
        let mut reaped = 0;
        for entries in [16, 300, 20, 512, 16] {
            for _ in 0..12 {
                post(&qa, Opcode::Write, sa, Some(sb), next);
                next += 1;
            }
            // Takes some entries before the resize, and leaves the others for after it.
            for _ in 0..5 {
                assert_eq!(a.completion().cookie, reaped);
                reaped += 1;
            }
            a.cq.resize(entries).unwrap();
            assert!(a.cq.entries() >= entries);
            while reaped < next {
                assert_eq!(a.completion().cookie, reaped);
                reaped += 1;
            }
        }
        assert_eq!(a.cq.dropped(), 0);
    });
}

/// What a receive's completion says of the message that took it: the immediate data, whether it was
/// an RDMA Write, and the length.
#[test]
fn sends_and_writes_carry_immediate_data() {
    two_nics_and_one(|_, a, b| {
        let (qa, _, qb, _) = connect(a, b, 1);
        let (from, to) = (a.buffer(4096), b.buffer(4096));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let there = remote(&to, &rb);
        let to_region = Remote { addr: there.addr, key: there.key };
        let room = |bytes| Segment { length: bytes, ..segment(&to, &rb) };
        let send = |immediate| Operation::Send { immediate };
        let write = Operation::Write { to: to_region, immediate: Some(2) };
        let written = CqeFlags::IMMEDIATE | CqeFlags::WRITE;
        for (operation, receives, flags, immediate) in [
            (send(None), &[room(4096)][..], CqeFlags::empty(), 0),
            (send(Some(1)), &[room(4096)], CqeFlags::IMMEDIATE, 1),
            // The data of a Write goes elsewhere: the receive's room does not matter.
            (write, &[], written, 2),
            (write, &[room(64)], written, 2),
            (write, &[room(64), room(32)], written, 2),
        ] {
            qb.post_receive(false, receives, |&segment| segment, Shadow { cookie: 7, data: 0 }).unwrap();
            let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
            qa.post(&request, &[segment(&from, &ra)], |&segment| segment).unwrap();
            assert_eq!(a.completion().status, Status::Success);
            let got = b.completion();
            let lengths = if flags.contains(CqeFlags::WRITE) { (0, 4096) } else { (4096, 0) };
            assert_eq!((got.status, got.cookie), (Status::Success, 7), "{operation:?}");
            assert_eq!((got.length, got.detail), lengths, "{operation:?}");
            assert_eq!((got.flags, got.immediate), (CqeFlags::RECEIVE | flags, immediate), "{operation:?}");
        }
        // A Write that fails completes its receive as flushed, without immediate data.
        qb.post_receive(false, &[], |&segment: &Segment| segment, Shadow { cookie: 8, data: 0 }).unwrap();
        let operation = Operation::Write { to: Remote { key: !0, ..to_region }, immediate: Some(3) };
        let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
        qa.post(&request, &[segment(&from, &ra)], |&segment| segment).unwrap();
        assert_eq!(a.completion().status, Status::RemoteAccess);
        let got = b.completion();
        assert_eq!((got.cookie, got.status, got.length), (8, Status::Flushed, 0));
        assert_eq!(got.flags, CqeFlags::RECEIVE);
    });
}

/// A datagram with immediate data and one without, and a connected queue pair refuses both.
#[test]
fn datagrams_carry_immediate_data() {
    two_nics_and_one(|_, a, b| {
        let [qa, qb] = [a, b].map(|node| {
            let attributes = QpAttributes { qp_type: QpType::Ud, ..node.attributes(1) };
            let qp = node.client.create_qp(&attributes).unwrap();
            qp.start_datagrams(7).unwrap();
            qp
        });
        let (from, to) = (a.buffer(64), b.buffer(128));
        let (ra, rb) = (a.register(&from), b.register(&to));
        let [here, there] = [a, b].map(|node| Gid(node.agent.identity().gids[1]));
        let qpn = Qpn::new(qb.qpn()).unwrap();
        let address = datagram_address(&Path::new(here, there), 1, qpn, QKey(7));
        let connected = a.qp(2);
        for immediate in [None, Some(0x0102_0304)] {
            receive(&qb, segment(&to, &rb), 100);
            let operation = match immediate {
                None => Operation::Datagram { to: address },
                Some(immediate) => Operation::DatagramImmediate { to: address, immediate },
            };
            let request = Request { operation, flags: SendFlags::SIGNALED, shadow: Shadow::default() };
            assert_eq!(connected.post_plain(&request), Err(PostError::Kind));
            qa.post(&request, &[segment(&from, &ra)], |&segment| segment).unwrap();
            assert_eq!(a.completion().status, Status::Success);
            let got = b.completion();
            assert_eq!((got.status, got.length), (Status::Success, 64 + 40));
            let said = got.flags.contains(CqeFlags::IMMEDIATE).then_some(got.immediate);
            assert_eq!(said, immediate);
        }
    });
}
