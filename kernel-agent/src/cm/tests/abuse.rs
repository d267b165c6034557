//! A hostile peer and a careless consumer: no sequence of their datagrams and calls makes the state
//! machine panic or exceed its limits, and its tables stay consistent.

use alloc::vec::Vec;
use core::time::Duration;

use platform::Instant;
use proptest::prelude::*;
use roce::cm::rej::Reason;
use roce::cm::sidr::Status;
use roce::{Gid, PKey, Path, QKey, Qpn, TimeoutCode};

use super::net::{SERVICE, config, local, qpn};
use crate::cm::*;

const LIMIT: u32 = 6;

#[derive(Debug, Clone)]
enum Op {
    /// A datagram: its attribute and body, whether known ids are put into it, and which.
    Datagram {
        attr: u8,
        body: Vec<u8>,
        known: bool,
        pick: usize,
        flip: bool,
        stranger: bool,
    },
    Raw(Vec<u8>),
    /// A call, on one of the ids that were seen.
    Call {
        which: u8,
        pick: usize,
        qp: u32,
    },
    Pass(u32),
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    // Three bytes of four are 0.
    let byte = any::<u16>().prop_map(|word| if word & 0x300 == 0 { word as u8 } else { 0 });
    let body = prop::collection::vec(byte, 232);
    let datagram =
        (0x10u8..0x1b, body, any::<bool>(), any::<usize>(), any::<bool>(), prop::bool::weighted(0.1));
    prop_oneof![
        6 => datagram.prop_map(|(attr, body, known, pick, flip, stranger)| {
            Op::Datagram { attr, body, known, pick, flip, stranger }
        }),
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Op::Raw),
        6 => (0u8..20, any::<usize>(), 2u32..8).prop_map(|(which, pick, qp)| Op::Call { which, pick, qp }),
        2 => (0u32..5_000).prop_map(Op::Pass),
        3 => Just(Op::Drain),
    ]
}

struct World {
    cm: Cm,
    now: Instant,
    us: Gid,
    them: Gid,
    conns: Vec<ConnectionId>,
    listens: Vec<ListenId>,
    resolutions: Vec<ResolutionId>,
    requests: Vec<ResolutionRequestId>,
    /// The datagrams that were sent; answers are made of them.
    sent: Vec<Outgoing>,
}

impl World {
    fn new() -> World {
        let config = Config { max_connections: LIMIT, max_listeners: 2, max_resolutions: 2, ..config() };
        World {
            cm: Cm::new(config),
            now: Instant::from_nanos(1),
            us: Gid([1; 16]),
            them: Gid([2; 16]),
            conns: Vec::new(),
            listens: Vec::new(),
            resolutions: Vec::new(),
            requests: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn pick<T: Copy>(from: &[T], pick: usize) -> Option<T> {
        from.get(pick % from.len().max(1)).copied()
    }

    fn drain(&mut self) {
        while let Some(action) = self.cm.next_action() {
            match action {
                Action::Send(out) => self.sent.push(out),
                Action::Event(Event::ConnectRequest(request)) => self.conns.push(request.conn),
                Action::Event(Event::ResolutionRequest(request)) => self.requests.push(request.request),
                Action::Event(_) => {}
            }
        }
    }

    fn datagram(
        &mut self,
        attr: u8,
        mut body: Vec<u8>,
        known: bool,
        pick: usize,
        flip: bool,
        stranger: bool,
    ) {
        if known
            && let Some(id) = World::pick(&self.conns, pick)
            && let Some(conn) = self.cm.conns.get(id)
        {
            // Communication ids of a connection: first the peer's, then ours, or the other way
            // round.
            let theirs = conn.remote_comm.unwrap_or_default().0.to_be_bytes();
            let ours = conn.local_comm.0.to_be_bytes();
            let (first, second) = if flip { (ours, theirs) } else { (theirs, ours) };
            body[..4].copy_from_slice(&first);
            body[4..8].copy_from_slice(&second);
            if attr == 0x15 {
                body[8..11].copy_from_slice(&conn.local_qpn.unwrap_or_default().get().to_be_bytes()[1..]);
            }
        }
        if attr == 0x10 {
            // A request that passes the checks.
            body[8..16].copy_from_slice(&SERVICE.0.to_be_bytes());
            body[32..34].fill(0);
            body[34] = 2 + body[34] % 4;
            body[43] &= 0xf8;
            body[48..50].copy_from_slice(&[0xff; 2]);
            body[50] = 0x30;
            body[56..72].copy_from_slice(&self.them.0);
            body[72..88].copy_from_slice(&self.us.0);
        }
        if attr == 0x17 {
            body[4..6].copy_from_slice(&[0xff; 2]);
            body[8..16].copy_from_slice(&SERVICE.0.to_be_bytes());
        }
        let mut mad = alloc::vec![1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, pick as u8 % 4, 0, attr];
        mad.resize(24, 0);
        mad.extend(body);
        let remote_gid = if stranger { self.us } else { self.them };
        let from = Arrival { local_gid: self.us, remote_gid, remote_qp: Qpn::GSI };
        self.cm.receive(self.now, &from, &mad);
    }

    fn call(&mut self, which: u8, pick: usize, qp: u32) {
        let now = self.now;
        let conn = World::pick(&self.conns, pick).unwrap_or(ConnectionId(pick as u64));
        let listen = World::pick(&self.listens, pick).unwrap_or(ListenId(pick as u64));
        let cm = &mut self.cm;
        // Other tests check which calls are allowed; here any of them may fail.
        let _ = match which {
            0 => cm.listen(SERVICE, Transports::RC, 3).map(|id| self.listens.push(id)),
            1 => cm.stop_listen(listen),
            2 | 3 => {
                let params = ConnectParams::new(Path::new(self.us, self.them), SERVICE);
                cm.connect(now, local(qp), &params, b"").map(|id| self.conns.push(id))
            }
            4 | 5 => cm.accept(now, conn, local(qp), &AcceptParams::default(), b""),
            6 => cm.reject(now, conn, Reason::CONSUMER_DEFINED, b"", b""),
            7 => cm.establish(now, conn, b""),
            8 => cm.disconnect(now, conn, b""),
            9 => cm.abandon(now, conn),
            10 => cm.postpone(now, conn, TimeoutCode::from_low_bits(qp as u8)),
            11 => cm.communication_established(now, conn),
            12 => cm.handoff(conn, listen),
            13 => cm.discard(now, conn),
            14 => {
                let params = SidrParams {
                    local_gid: self.us,
                    remote_gid: self.them,
                    service: SERVICE,
                    ip_source_port: 0,
                    pkey: PKey::DEFAULT,
                    timeout: TimeoutCode::from_low_bits(10),
                    max_retries: 2,
                };
                let _ = cm.sidr_open(&params, b"").map(|id| self.resolutions.push(id));
                let sidr = World::pick(&self.resolutions, pick).unwrap_or(ResolutionId(0));
                if qp == 2 { cm.sidr_close(sidr) } else { cm.sidr_request(now, sidr) }
            }
            15 => {
                let request = World::pick(&self.requests, pick).unwrap_or(ResolutionRequestId(0));
                cm.sidr_reply(request, Status::Valid, qpn(qp), QKey(0), b"")
            }
            16 => cm.prepare_accept(now, conn, local(qp), &AcceptParams::default(), b""),
            17 => cm.prepare_disconnect(now, conn, b""),
            18 => cm.break_off(now, conn, Duration::from_millis(u64::from(pick as u8))),
            _ => {
                cm.release(now, conn);
                Ok(())
            }
        };
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Datagram { attr, body, known, pick, flip, stranger } => {
                self.datagram(attr, body, known, pick, flip, stranger)
            }
            Op::Raw(bytes) => {
                let from = Arrival { local_gid: self.us, remote_gid: self.them, remote_qp: Qpn::GSI };
                self.cm.receive(self.now, &from, &bytes);
            }
            Op::Call { which, pick, qp } => self.call(which, pick, qp),
            Op::Pass(ms) => {
                self.now = self.now + Duration::from_millis(ms.into());
                self.cm.poll(self.now);
            }
            Op::Drain => self.drain(),
        }
    }

    fn check(&self) {
        let counts = self.cm.counts();
        assert!(counts.connections <= LIMIT as usize);
        assert!(counts.listeners <= 2 && counts.resolutions <= 2 && counts.resolution_requests <= 2);
        assert!(self.cm.out.actions.len() <= ACTIONS);
        self.cm.conns.check();
        for id in self.cm.listeners.ids() {
            let waiting = self.cm.conns.ids().filter(|&conn| {
                let conn = self.cm.conns.get(conn).unwrap();
                conn.state.is_pending_request() && conn.listen == Some(ListenId(id))
            });
            assert_eq!(self.cm.listeners.get(id).unwrap().waiting() as usize, waiting.count());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 600 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_sequence_of_datagrams_and_calls_breaks_it(
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 12 } else { 120 }),
    ) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        // Everything that waits for a peer ends by its timers.
        world.drain();
        for id in world.conns.clone() {
            // Each call that holds a message back is followed by this.
            world.cm.release(world.now, id);
            world.drain();
            let _ = world.cm.abandon(world.now, id);
            world.drain();
        }
        let mut rounds = 0;
        while let Some(at) = world.cm.next_deadline() {
            world.now = world.now.max(at);
            world.cm.poll(world.now);
            world.drain();
            world.check();
            rounds += 1;
            prop_assert!(rounds < 1000);
        }
        prop_assert_eq!(world.cm.counts().connections, 0);
    }
}
