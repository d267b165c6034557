//! How a stream ends, and what is flushed.

use iwarp::ddp::{Header, Place, queue};
use iwarp::engine::{Cause, Close, Config, End, Event, Operation, Role, Status};
use iwarp::mpa::fpdu;
use iwarp::rdmap::terminate::{Code, Form, Quoted, Repr};
use iwarp::rdmap::{Control, Opcode, read};

use super::order::{SEND, read as reads, write};
use super::world::{CONFIG, Node};

const BROKEN: Option<End> = Some(End::Broken(Cause::InsideMessage));

fn flushed(id: u32) -> Event {
    Event::Failed { id, status: Status::Flushed }
}

#[test]
fn a_close_between_messages_is_a_disconnect() {
    let mut a = Node::new(CONFIG);
    let id = a.post(reads(1, 0), vec![0; 10]);
    a.send_all();
    let queued = a.post(reads(1, 0), vec![0; 10]);
    a.engine.finished();
    a.take_events();
    assert_eq!(a.events, [flushed(id), flushed(queued), Event::Ended(End::Disconnected)]);
    assert_eq!(a.engine.close(), Some(Close::Finish));
    // Nothing changes that.
    a.engine.lost();
    a.engine.finished();
    a.engine.disconnect();
    a.take_events();
    assert_eq!(a.events.len(), 3);
}

#[test]
fn nothing_succeeds_behind_a_read_that_is_flushed() {
    let mut a = Node::new(CONFIG);
    let first = a.post(SEND, vec![7; 10]);
    let unanswered = a.post(reads(1, 0), vec![0; 10]);
    let behind = [a.post(SEND, vec![7; 10]), a.post(write(5, 0), vec![7; 10])];
    // All of it is given to the stream.
    a.send_all();
    a.engine.finished();
    a.take_events();
    let [send, written] = behind.map(flushed);
    let ended = Event::Ended(End::Disconnected);
    assert_eq!(a.events, [Event::Completed { id: first }, flushed(unanswered), send, written, ended]);
}

#[test]
fn a_close_at_each_byte_of_a_message_breaks_the_stream() {
    let mut a = Node::new(CONFIG);
    a.post(SEND, vec![7; 500]);
    a.post(write(5, 0), vec![7; 500]);
    a.post(SEND, vec![7; 10]);
    let bytes = a.send_all();
    let mut b = Node::new(CONFIG);
    let receives = [b.receive(500), b.receive(10)];
    b.region(5, 0, vec![0; 500]);
    let mut orderly = Vec::new();
    for cut in 0..=bytes.len() {
        let mut b = Node::new(CONFIG);
        b.receive(500);
        b.receive(10);
        b.region(5, 0, vec![0; 500]);
        b.take(&bytes[..cut]);
        let before = b.events.len();
        b.engine.finished();
        b.take_events();
        match b.end() {
            Some(End::Disconnected) => {
                orderly.push(cut);
                assert_eq!(b.events.len(), before + 1);
            }
            end => assert_eq!(end, BROKEN, "{cut}"),
        }
    }
    let send = 2 * fpdu::length(200) + fpdu::length(18 + 500 - 2 * 182);
    let written = 2 * fpdu::length(200) + fpdu::length(14 + 500 - 2 * 186);
    assert_eq!(orderly, [0, send, send + written, bytes.len()]);
    // The Receive that is taken ends with it.
    b.take(&bytes[..send - 1]);
    b.engine.finished();
    b.take_events();
    let failed = Event::ReceiveFailed { id: receives[0], status: Status::Transport };
    assert_eq!(b.events, [failed, Event::Ended(End::Broken(Cause::InsideMessage))]);
}

#[test]
fn a_close_inside_a_response_fails_the_read() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    b.region(5, 0, vec![1; 400]);
    let id = a.post(reads(5, 0), vec![0; 400]);
    let behind = a.post(reads(5, 0), vec![0; 400]);
    b.take(&a.send_all());
    let answer = b.send_all();
    a.take(&answer[..fpdu::length(200)]);
    a.engine.finished();
    a.take_events();
    let failed = Event::Failed { id, status: Status::Transport };
    assert_eq!(a.events, [failed, flushed(behind), Event::Ended(End::Broken(Cause::InsideMessage))]);
}

#[test]
fn a_lost_stream_is_broken_wherever_it_is() {
    let mut a = Node::new(CONFIG);
    let id = a.post(reads(5, 0), vec![0; 4]);
    a.send_all();
    a.engine.lost();
    a.take_events();
    let failed = Event::Failed { id, status: Status::Transport };
    assert_eq!(a.events, [failed, Event::Ended(End::Broken(Cause::Lost))]);
    assert!(a.send_all().is_empty());
}

#[test]
fn a_disconnect_finishes_the_message_that_is_begun() {
    let [mut a, mut b] = [Node::new(CONFIG), Node::new(CONFIG)];
    let begun = a.post(SEND, vec![1; 500]);
    let behind = a.post(SEND, vec![2; 500]);
    let mut bytes = a.send(10);
    a.engine.disconnect();
    a.take_events();
    assert_eq!((a.end(), a.engine.close()), (None, None));
    bytes.extend(a.send_all());
    let expected = [Event::Completed { id: begun }, flushed(behind), Event::Ended(End::Disconnected)];
    assert_eq!(a.events, expected);
    assert_eq!(a.engine.close(), Some(Close::Finish));
    b.receive(500);
    b.take(&bytes);
    b.engine.finished();
    assert_eq!(b.end(), Some(End::Disconnected));
    // A response that is begun is finished as well; one that is not begun is not begun.
    let mut b = Node::new(CONFIG);
    b.region(5, 0, vec![1; 400]);
    let mut a = Node::new(CONFIG);
    a.post(reads(5, 0), vec![0; 400]);
    a.post(reads(5, 0), vec![0; 400]);
    b.take(&a.send_all());
    let mut bytes = b.send(210);
    b.engine.disconnect();
    bytes.extend(b.send_all());
    a.take(&bytes);
    a.engine.finished();
    a.take_events();
    assert_eq!((a.end(), b.end()), (Some(End::Disconnected), Some(End::Disconnected)));
    assert!(matches!(a.events[..], [Event::Completed { .. }, Event::Failed { .. }, Event::Ended(_)]));
}

#[test]
fn a_disconnect_of_an_idle_stream_is_at_once() {
    for role in [Role::Initiator, Role::Responder] {
        let mut a = Node::new(Config { role, ..CONFIG });
        let id = a.post(SEND, vec![1]);
        a.engine.disconnect();
        a.take_events();
        assert_eq!(a.events, [flushed(id), Event::Ended(End::Disconnected)]);
        assert_eq!(a.engine.close(), Some(Close::Finish));
        assert!(a.send_all().is_empty());
    }
}

#[test]
fn a_request_is_over_when_its_memory_is_no_longer_gathered() {
    let begin = || {
        let mut a = Node::new(CONFIG);
        let id = a.post(SEND, vec![1; 100]);
        assert_eq!(a.send(50).len(), 50);
        // A segment without its header: the stream is refused in the middle of an FPDU.
        let mut wrong = [0; 8];
        fpdu::emit(&[], true, &mut wrong).unwrap();
        a.take(&wrong);
        assert_eq!((a.events.len(), a.engine.close()), (0, None));
        assert!(a.end().is_some());
        (a, id)
    };
    // The FPDU is finished, and the Terminate follows.
    let (mut a, id) = begin();
    let bytes = a.send_all();
    assert_eq!(bytes.len(), fpdu::length(118) - 50 + fpdu::length(22));
    assert_eq!(a.events[0], flushed(id));
    assert!(matches!(a.events[1..], [Event::Ended(End::Broken(_))]));
    assert_eq!(a.engine.close(), Some(Close::Finish));
    // The peer takes nothing, and the device gives up.
    let (mut a, id) = begin();
    assert!(a.engine.terminates());
    a.engine.lost();
    a.take_events();
    assert_eq!((a.events.len(), a.events[0]), (2, flushed(id)));
    // The Terminate has not left.
    assert!(!a.engine.terminates());
    assert_eq!(a.engine.close(), Some(Close::Reset));
    assert!(a.send_all().is_empty());
}

#[test]
fn an_end_that_hears_a_terminate_inside_its_own_fpdu_resets() {
    let mut a = Node::new(CONFIG);
    let id = a.post(SEND, vec![1; 100]);
    assert_eq!(a.send(50).len(), 50);
    a.take(&terminate(&Code::LOCAL.into()));
    let cause = Cause::Terminated(Code::LOCAL.into());
    assert_eq!(a.events, [flushed(id), Event::Ended(End::Broken(cause))]);
    assert_eq!(a.engine.close(), Some(Close::Reset));
    assert!(a.send_all().is_empty());
}

fn terminate(message: &Repr) -> Vec<u8> {
    let mut bytes = [0; 100];
    let len = message.fpdu(true, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// A Terminate that quotes a request of a Read, in one of the forms.
fn quoting(form: Form, code: Code, msn: u32, request: read::Repr) -> Repr {
    let place = Place::Untagged { invalidate: 0, queue: queue::READ, msn, mo: 0 };
    let header = Header::new(true, Control::new(Opcode::ReadRequest).to_byte(), place);
    Repr { code, form, quoted: Some(Quoted { length: 46, header: Some(header), read: Some(request) }) }
}

#[test]
fn a_terminate_fails_the_read_that_it_quotes() {
    let request = |size| read::Repr { sink_stag: 0x77, sink_to: 0x1000, size, source_stag: 5, source_to: 0 };
    let asks = || {
        let mut a = Node::new(CONFIG);
        let ids = [10, 20, 20].map(|size| a.post(reads(5, 0), vec![0; size]));
        a.send_all();
        (a, ids)
    };
    let cases = [
        (Form::Standard, Code::READ_STAG, 2, request(20), Some(1), Status::RemoteAccess),
        (Form::Standard, Code::READ_STAG, 3, request(20), Some(2), Status::RemoteAccess),
        (Form::Standard, Code::READ_STAG, 1, request(20), None, Status::RemoteAccess),
        // Linux has the size where the number should be.
        (Form::Linux, Code::READ_BOUNDS, 20, request(20), Some(1), Status::RemoteAccess),
        (Form::Linux, Code::READ_BOUNDS, 10, request(10), Some(0), Status::RemoteAccess),
        (Form::Linux, Code::STREAM, 10, request(10), Some(0), Status::RemoteOperation),
        (Form::Linux, Code::READ_BOUNDS, 30, request(30), None, Status::RemoteAccess),
    ];
    for (form, code, msn, request, place, status) in cases {
        let (mut a, ids) = asks();
        a.take(&terminate(&quoting(form, code, msn, request)));
        for (at, id) in ids.into_iter().enumerate() {
            let status = if place == Some(at) { status } else { Status::Flushed };
            assert_eq!(a.outcome(id), Some(Event::Failed { id, status }), "{form:?} {code:?}");
        }
        assert!(matches!(a.end(), Some(End::Broken(Cause::Terminated(said))) if said.code == code));
    }
}

#[test]
fn nothing_is_carried_out_after_the_end() {
    let mut a = Node::new(CONFIG);
    let local = a.post(Operation::Local, Vec::new());
    let transmit = a.engine.transmit(&mut [0; 100], &mut a.device);
    assert_eq!((transmit.bytes, transmit.local), (0, Some(local)));
    // It is with the device; nothing else starts.
    let again = a.engine.transmit(&mut [0; 100], &mut a.device);
    assert_eq!((again.bytes, again.local), (0, None));
    a.engine.finished();
    a.engine.carried_out(true);
    a.take_events();
    assert_eq!(a.events, [flushed(local), Event::Ended(End::Disconnected)]);
    a.engine.carried_out(true);
    a.engine.set_mulpdu(0);
    assert_eq!(a.engine.posted(), 0);
}
