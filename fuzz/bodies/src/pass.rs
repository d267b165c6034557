//! Two ends of a stream of iWARP in one process, which pass segments to each other without the
//! stream, or by it, in turns of any length. Memory may go meanwhile, and each end may disconnect
//! or be lost.
//!
//! What must hold: no panic; each end reaches only for memory that was asked for; each request and
//! each Receive that was taken ends once, the requests in order; each stream ends once, and after
//! that nothing happens.

use iwarp::engine::{Close, Config, Engine, Event, Memory, Message, Operation, Pass, Role};

use crate::Input;
use crate::stream::Device;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut ends = [Role::Initiator, Role::Responder].map(End::new);
    while !input.is_empty() {
        let number = input.below(2);
        step(&mut ends, number, &mut input);
    }
    for end in &mut ends {
        end.engine.disconnect();
    }
    for _ in 0..400 {
        let moved = [0, 1].map(|number| pass(&mut ends, number, u32::MAX, u32::MAX));
        if moved == [false, false] {
            break;
        }
    }
    ends.into_iter().for_each(End::finish);
}

struct End {
    engine: Engine,
    device: Device,
    posted: u32,
    ended: u32,
    received: u32,
    is_over: bool,
}

impl End {
    fn new(role: Role) -> End {
        let config = Config { role, mulpdu: 128, crc: true, depth: 8, ord: 2, ird: 2 };
        let (engine, device) = (Engine::new(config), Device::default());
        End { engine, device, posted: 0, ended: 0, received: 0, is_over: false }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let length = input.number() as u32 % 600;
        let (stag, to) = (u32::from(input.byte() % 4), input.number());
        let operation = match input.below(6) {
            0 | 1 => Operation::Send { solicited: false, invalidate: input.rarely(4).then_some(stag) },
            2 | 3 => Operation::Write { stag, to },
            4 => {
                let invalidate = input.rarely(4).then_some(stag);
                Operation::Read { source_stag: stag, source_to: to, sink_stag: 3, sink_to: 0, invalidate }
            }
            _ => Operation::Local,
        };
        let message = Message { id: self.posted, operation, length, fence: input.rarely(4) };
        if self.engine.post(message).is_ok() {
            self.posted += 1;
            self.device.requests.push(length);
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.engine.poll() {
            assert!(!self.is_over, "an event after the end: {event:?}");
            match event {
                Event::Completed { id } | Event::Failed { id, .. } => {
                    assert_eq!(id, self.ended, "requests end once and in order");
                    self.ended += 1;
                }
                Event::Received { .. } | Event::ReceiveFailed { .. } => self.received += 1,
                Event::Established => {}
                Event::Ended(_) => self.is_over = true,
            }
            assert!(self.received <= self.device.taken);
        }
    }

    fn finish(mut self) {
        self.engine.lost();
        self.events();
        assert!(self.is_over);
        assert_eq!((self.ended, self.received), (self.posted, self.device.taken));
        assert!(self.engine.close().is_some());
    }
}

fn step(ends: &mut [End; 2], number: usize, input: &mut Input<'_>) {
    let end = &mut ends[number];
    match input.below(12) {
        0 | 1 => end.post(input),
        2 => end.device.receives.push_back(input.number() as u32 % 700),
        3..=7 => {
            let most = 1 + input.number() as u32 % 700;
            let moves = if input.rarely(3) { 1 + input.below(50) as u32 } else { u32::MAX };
            pass(ends, number, most, moves);
        }
        8 | 9 => stream(ends, number, 1 + input.below(256)),
        10 => match input.below(8) {
            0 => end.engine.disconnect(),
            1 => end.engine.lost(),
            2 => end.device.revoked = true,
            _ => {}
        },
        _ => end.engine.speak(),
    }
    ends.iter_mut().for_each(End::events);
}

/// One end passes a segment to the other, which moves so many bytes of it at most; or it closes the
/// stream. Returns whether anything happened.
fn pass(ends: &mut [End; 2], number: usize, most: u32, moves: u32) -> bool {
    let [a, b] = ends;
    let (from, to) = if number == 0 { (a, b) } else { (b, a) };
    if !from.engine.is_between() || !to.engine.may_take() {
        stream(ends, number, 64);
        return true;
    }
    let End { engine, device, .. } = from;
    let segment = match engine.pass(most, |source, length| device.check(source, length)) {
        Pass::Nothing => {
            from.events();
            return close(ends, number);
        }
        Pass::Local(_) => {
            engine.carried_out(true);
            from.events();
            return true;
        }
        Pass::Segment(segment) => segment,
    };
    assert!(segment.length() <= most);
    to.device.moves = moves;
    let gathered = match segment.length() {
        0 => Ok(()),
        length => from.device.check(segment.source(), length),
    };
    let taken = gathered.ok().map(|()| to.engine.take(&segment, &mut to.device));
    assert!(taken.is_none_or(|taken| taken <= segment.length()));
    to.events();
    from.engine.passed(&segment, taken);
    from.events();
    true
}

/// One end writes to the stream, and the other takes all of it.
fn stream(ends: &mut [End; 2], number: usize, room: usize) {
    let [a, b] = ends;
    let (from, to) = if number == 0 { (a, b) } else { (b, a) };
    let mut out = vec![0; room];
    let transmit = from.engine.transmit(&mut out, &mut from.device);
    if transmit.local.is_some() {
        from.engine.carried_out(true);
    }
    from.events();
    let mut bytes = &out[..transmit.bytes];
    while !bytes.is_empty() {
        let taken = to.engine.receive(bytes, &mut to.device);
        to.events();
        bytes = &bytes[taken..];
    }
    close(ends, number);
}

/// The other end hears of it if one has no more use for the stream. Returns whether that is new.
fn close(ends: &mut [End; 2], number: usize) -> bool {
    let close = ends[number].engine.close();
    let other = &mut ends[1 - number];
    let is_new = close.is_some() && other.engine.ended().is_none();
    match close {
        Some(Close::Finish) => other.engine.finished(),
        Some(Close::Reset) => other.engine.lost(),
        None => {}
    }
    other.events();
    is_new
}
