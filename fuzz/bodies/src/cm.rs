//! The connection manager: datagrams that a peer invented, or earlier datagrams with some bytes
//! changed, between calls of a careless consumer.
//!
//! What must hold: the tables keep their limits; once the input ends, every connection ends and
//! nothing is left.

use core::time::Duration;

use kernel_agent::cm::{
    AcceptParams, Action, Arrival, Cm, Config, ConnectParams, ConnectionId, Event, ListenId, LocalQp,
    Outgoing, ResolutionId, ResolutionRequestId, SidrParams, Transports,
};
use platform::Instant;
use roce::cm::rej::Reason;
use roce::cm::sidr::Status;
use roce::transport::Service;
use roce::{Gid, PKey, Path, Psn, QKey, Qpn, ServiceId, TimeoutCode};

use crate::Input;

const LIMIT: u32 = 6;
const STEPS: usize = 200;
const SERVICE: ServiceId = ServiceId::it_api(7);

struct Scene {
    cm: Cm,
    now: Instant,
    us: Gid,
    them: Gid,
    conns: Vec<ConnectionId>,
    listens: Vec<ListenId>,
    resolutions: Vec<ResolutionId>,
    requests: Vec<ResolutionRequestId>,
    sent: Vec<Outgoing>,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let config = Config {
        ca_guid: 1,
        max_connections: LIMIT,
        max_listeners: 2,
        max_resolutions: 2,
        ..Config::default()
    };
    let mut scene = Scene {
        cm: Cm::new(config),
        now: Instant::from_nanos(1),
        us: Gid([1; 16]),
        them: Gid([2; 16]),
        conns: Vec::new(),
        listens: Vec::new(),
        resolutions: Vec::new(),
        requests: Vec::new(),
        sent: Vec::new(),
    };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0..3 => scene.again(&mut input),
            3 => scene.made_up(&mut input),
            4 | 5 => scene.call(&mut input),
            6 => {
                scene.now = scene.now + Duration::from_millis(1 << input.below(20));
                scene.cm.poll(scene.now);
            }
            _ => {}
        }
        if !input.rarely(4) {
            scene.drain();
        }
        scene.check();
    }
    scene.end();
}

impl Scene {
    fn drain(&mut self) {
        while let Some(action) = self.cm.next_action() {
            match action {
                Action::Send(out) => {
                    if self.sent.len() == 32 {
                        self.sent.remove(0);
                    }
                    self.sent.push(out);
                }
                Action::Event(Event::ConnectRequest(request)) => self.conns.push(request.conn),
                Action::Event(Event::ResolutionRequest(request)) => self.requests.push(request.request),
                Action::Event(_) => {}
            }
        }
    }

    /// Sends an earlier datagram back: unchanged, or, as if it came from the peer, with the ids
    /// exchanged.
    fn again(&mut self, input: &mut Input<'_>) {
        if self.sent.is_empty() {
            return;
        }
        let last = self.sent.len() - 1;
        let out = self.sent[last - input.below(4).min(last)];
        let mut mad = out.mad;
        if input.rarely(2) {
            let (head, body) = mad.split_at_mut(24);
            // Another message about the same connection.
            head[17] = 0x10 + input.below(12) as u8;
            body[..8].rotate_left(4);
        }
        for _ in 0..input.below(4) {
            mad[input.below(256)] = input.byte();
        }
        let from = Arrival { local_gid: out.remote_gid, remote_gid: out.local_gid, remote_qp: Qpn::GSI };
        let turned = Arrival { local_gid: out.local_gid, remote_gid: out.remote_gid, ..from };
        self.cm.receive(self.now, if input.rarely(2) { &from } else { &turned }, &mad);
    }

    fn made_up(&mut self, input: &mut Input<'_>) {
        let mut mad = vec![1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, input.byte() % 4, 0, 0x10];
        mad[17] += input.below(12) as u8;
        mad.resize(24, 0);
        let len = input.below(233);
        mad.extend_from_slice(input.bytes(len));
        if !input.rarely(8) {
            mad.resize(256, 0);
        }
        let from = Arrival { local_gid: self.us, remote_gid: self.them, remote_qp: Qpn::GSI };
        self.cm.receive(self.now, &from, &mad);
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (now, which) = (self.now, input.below(20));
        let conn = input.pick(&self.conns).unwrap_or(ConnectionId(3));
        let listen = input.pick(&self.listens).unwrap_or(ListenId(3));
        let qp = Qpn::new(2 + input.below(6) as u32).expect("a small number");
        // The queue pair's number decides the service.
        let transport = if qp.get() > 5 { Service::Uc } else { Service::Rc };
        let local = LocalQp::new(transport, qp, Psn::default());
        let to = if input.rarely(2) { self.us } else { self.them };
        let data = input.below(100);
        let data = input.bytes(data);
        let cm = &mut self.cm;
        // Each call may fail here; other tests check which calls are allowed.
        let _ = match which {
            0 => cm.listen(SERVICE, Transports::all(), 3).map(|id| self.listens.push(id)),
            1 => cm.stop_listen(listen),
            2 | 3 => {
                let params = ConnectParams::new(Path::new(self.us, to), SERVICE);
                cm.connect(now, local, &params, data).map(|id| self.conns.push(id))
            }
            4 | 5 => cm.accept(now, conn, local, &AcceptParams::default(), data),
            6 => cm.reject(now, conn, Reason::CONSUMER_DEFINED, b"", data),
            7 => cm.establish(now, conn, data),
            8 => cm.disconnect(now, conn, data),
            9 => cm.abandon(now, conn),
            10 => cm.postpone(now, conn, TimeoutCode::from_low_bits(input.byte())),
            11 => cm.communication_established(now, conn),
            12 => cm.handoff(conn, listen),
            13 => cm.discard(now, conn),
            14 => {
                let params = SidrParams {
                    local_gid: self.us,
                    remote_gid: to,
                    service: SERVICE,
                    ip_source_port: 0,
                    pkey: PKey::DEFAULT,
                    timeout: TimeoutCode::from_low_bits(10),
                    max_retries: 2,
                };
                let _ = cm.sidr_open(&params, data).map(|id| self.resolutions.push(id));
                let sidr = input.pick(&self.resolutions).unwrap_or(ResolutionId(0));
                if input.rarely(3) { cm.sidr_close(sidr) } else { cm.sidr_request(now, sidr) }
            }
            15 => {
                let request = input.pick(&self.requests).unwrap_or(ResolutionRequestId(0));
                cm.sidr_reply(request, Status::Valid, qp, QKey(0), data)
            }
            16 => cm.prepare_accept(now, conn, local, &AcceptParams::default(), data),
            17 => cm.prepare_disconnect(now, conn, data),
            18 => cm.break_off(now, conn, Duration::from_millis(input.below(500) as u64)),
            _ => {
                cm.release(now, conn);
                Ok(())
            }
        };
    }

    fn check(&self) {
        let counts = self.cm.counts();
        assert!(counts.connections <= LIMIT as usize && counts.listeners <= 2);
        assert!(counts.resolutions <= 2 && counts.resolution_requests <= 2);
    }

    fn end(mut self) {
        self.drain();
        for id in std::mem::take(&mut self.conns) {
            // Each call that holds a message back is followed by this call.
            self.cm.release(self.now, id);
            self.drain();
            let _ = self.cm.abandon(self.now, id);
            self.drain();
        }
        let mut rounds = 0;
        while let Some(at) = self.cm.next_deadline() {
            self.now = self.now.max(at);
            self.cm.poll(self.now);
            self.drain();
            self.check();
            rounds += 1;
            assert!(rounds < 1000, "a connection does not end");
        }
        assert_eq!(self.cm.counts().connections, 0);
        for id in self.resolutions {
            let _ = self.cm.sidr_close(id);
        }
        for id in self.listens {
            let _ = self.cm.stop_listen(id);
        }
        let counts = self.cm.counts();
        assert_eq!((counts.listeners, counts.resolutions), (0, 0));
    }
}
