//! Every routine beside every other (chapter 4.2): each thread makes other calls, with results that
//! no other thread's calls may change.
//!
//! A unit test below compares the calls of this folder with the source of privileged-api.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::result::Result;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};

use privileged_api::*;

use crate::check::some;
use crate::datagrams::ud::{FRONT, RECV, two};
use crate::datagrams::{sidr, ud};
use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, WAIT, attributes, path, spigot};
use crate::thread::{Body, all_pass};
use crate::threads::objects::{connect_and_disconnect, one_of_each_type};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// How many rounds each thread makes at least.
const ROUNDS: u64 = if cfg!(miri) { 1 } else { 6 };

/// Calls that a thread makes again and again, with the number of the round.
type Job = Box<dyn FnMut(u64) -> Outcome + Send>;

/// Datagrams from `a` to `b`.
fn datagrams(f: Fixture) -> Result<Job, Failure> {
    let (two, here) = (two(&f)?, spigot(&f.b)?.spigot_id);
    Ok(Box::new(move |n| {
        let b = &two.b;
        let other = b.ia.ep_ud_create(b.pz, b.request, b.recv, &ud::datagrams(), here)?;
        check!(b.ia.ep_query(other, EpParamMask::ALL)?.attr.ud.ep_info != b.info);
        two.into.buffer.slice().fill(0);
        two.b.ia.post_recvfrom(two.b.ep, &[two.into.whole()], n, RECV)?;
        let (ia, from) = (&two.a.ia, [two.from.segment(0, 64)]);
        two.a.delivers(&f, &two.b, (n, n), DtoStatus::Success, || match n % 2 {
            0 => ia.post_sendto(two.a.ep, &from, n, SIGNALLED, &two.to_b),
            _ => ia.post_sendto_immediate(two.a.ep, &from, n, SIGNALLED, &two.to_b, n as u32),
        })?;
        check!(two.into.bytes(FRONT, 64) == two.from.bytes(0, 64), "the datagram of round {n}");
        Ok(b.ia.ep_free(other)?)
    }))
}

/// Questions of `a` to a service of `b`, and its answers.
fn services(f: Fixture) -> Result<Job, Failure> {
    let asking = sidr::asking(&f, &[])?;
    Ok(Box::new(move |n| {
        // Private data of zeros would count as none.
        let (question, answer) = ((n + 1).to_be_bytes(), (!n).to_be_bytes());
        let (qual, way) = (&asking.listener.conn_qual, &asking.way);
        let handle = f.a.ud_service_request_handle_create(qual, asking.evd, way, &question)?;
        f.a.ud_service_request_reported(handle)?;
        let asked = sidr::request(&asking.listener)?;
        check!(asked.private_data.is_some_and(|data| data.starts_with(&question)), "question {n}");
        let info = RemoteEpInfo { ud_ep_id: n as u32, ud_ep_key: 7 };
        f.b.ud_service_reply(asked.ud_svc_req_id, UdSvcStatus::EpInfoValid, info, &answer)?;
        let got = sidr::reply(&f.a, asking.evd)?;
        check_eq!((got.ud_svc, got.ep_info), (handle, info));
        check!(got.private_data.is_some_and(|data| data.starts_with(&answer)), "answer {n}");
        Ok(f.a.ud_service_request_handle_free(handle)?)
    }))
}

/// Writes, Reads and atomic operations, and messages with immediate data.
fn remote_accesses(f: Fixture) -> Result<Job, Failure> {
    let (pair, own, peer) = f.open_pair()?;
    let (context, ep, mut word) = (peer.context()?, pair.a.ep, 0);
    Ok(Box::new(move |n| {
        let (op, result, at) = (AtomicOp::FetchAndAdd, own.segment(0, 8), peer.remote(0));
        f.a.post_atomic(ep, op, n + 1, 0, &result, 1, SIGNALLED, at, context)?;
        pair.a.done(1, DtoStatus::Success)?;
        check_eq!(own.bytes(0, 8), u64::to_ne_bytes(word), "what was there in round {n}");
        word += n + 1;
        f.a.post_rdma_read(ep, &[own.segment(8, 8)], 2, SIGNALLED, at, context)?;
        pair.a.done(2, DtoStatus::Success)?;
        check_eq!(own.bytes(8, 8), u64::to_ne_bytes(word), "the sum in round {n}");
        own.write(16, &n.to_ne_bytes());
        f.a.post_rdma_write(ep, &[own.segment(16, 8)], 3, SIGNALLED, peer.remote(16), context)?;
        pair.a.done(3, DtoStatus::Success)?;
        check_eq!(peer.bytes(16, 8), n.to_ne_bytes());
        f.a.ep_ref(ep)?.post_batch(|batch| {
            let segments = [own.segment(16, 8)];
            batch.post_rdma_write(&segments, 5, DtoFlags::empty(), peer.remote(24), context)?;
            batch.post_rdma_write(&segments, 5, SIGNALLED, peer.remote(32), context)
        })?;
        pair.a.done(5, DtoStatus::Success)?;
        check_eq!((peer.bytes(24, 8), peer.bytes(32, 8)), (own.bytes(16, 8), own.bytes(16, 8)));
        for cookie in [6, 7] {
            f.b.post_recv(pair.b.ep, &[], cookie, SIGNALLED)?;
        }
        let (eight, at_end, data) = ([own.segment(16, 8)], peer.remote(40), n as u32);
        f.a.post_rdma_write_immediate(ep, &eight, 6, SIGNALLED, at_end, context, data)?;
        f.a.post_send_immediate(ep, &[], 7, SIGNALLED, data)?;
        for cookie in [6, 7] {
            pair.a.done(cookie, DtoStatus::Success)?;
        }
        let (first, _) = f.b.evd_wait_extended(pair.b.recv, WaitFor::Events(2), WAIT)?;
        check_eq!(first.immediate, Some(Immediate { data, written: Some(8) }));
        check_eq!((f.b.evd_queued(pair.b.recv)?, f.b.ep_outstanding(pair.b.ep)?), (1, (0, 1)));
        check!(!f.a.in_callback(), "no callback runs");
        let second = f.b.evd_dequeue_extended(pair.b.recv)?;
        check_eq!(second.immediate, Some(Immediate { data, written: None }));
        let read = f.a.post_rdma_read_to_rmr(ep, &[], 4, SIGNALLED, at, context);
        refused(read, Error::OpNotSupported)
    }))
}

/// Sends that unlink an RMR of the receiver.
fn unlinking_sends(f: Fixture) -> Result<Job, Failure> {
    let pair = f.pair()?;
    let region = f.region(&f.b, pair.b.pz, PAGE, MemPriv::LOCAL)?;
    let rmr = f.b.rmr_create(pair.b.pz, RmrType::Narrow)?;
    Ok(Box::new(move |n| {
        let (addr, mode, privs) = (region.buffer.addr(), AddrMode::Absolute, MemPriv::REMOTE);
        let context = f.b.rmr_link(rmr, region.lmr, addr, 64, mode, privs, pair.b.ep, n, SIGNALLED)?;
        pair.b.done(n, DtoStatus::Success)?;
        f.b.post_recv(pair.b.ep, &[region.segment(0, 8)], n, DtoFlags::COMPLETION)?;
        f.a.post_send_and_unlink(pair.a.ep, &[], n, SIGNALLED, context)?;
        pair.a.done(n, DtoStatus::Success)?;
        let received = pair.b.reap_recv()?;
        check_eq!((received.cookie, received.unlinked_mr_handle), (n, Handle::from(rmr)));
        check!(!f.b.rmr_query(rmr, RmrParamMask::LINKED)?.linked);
        Ok(())
    }))
}

/// Connections that are handed on to another listen point.
fn handoffs(f: Fixture) -> Result<Job, Failure> {
    let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
    let (first, second) = (f.listen(&f.b)?, f.listen(&f.b)?);
    Ok(Box::new(move |n| {
        let data = (n + 1).to_be_bytes();
        f.dial(&active, &first, CnEstFlags::TWO_WAY, &data)?;
        let asked = first.request()?.cn_est_id;
        f.b.handoff(&second.conn_qual, spigot(&f.b)?.spigot_id, asked)?;
        let again = second.request()?;
        check!(again.private_data.is_some_and(|got| got.starts_with(&data)), "round {n}");
        if n % 3 == 2 {
            f.b.reject(again.cn_est_id, &[])?;
            active.expect(EventType::CM_MSG_CONN_PEER_REJECT)?;
            return Ok(f.a.ep_reset(active.ep)?);
        }
        f.b.ep_accept(passive.ep, again.cn_est_id, &[])?;
        for end in [&active, &passive] {
            end.expect(EventType::CM_MSG_CONN_ESTABLISHED)?;
        }
        f.a.ep_disconnect(active.ep, &[])?;
        for end in [&active, &passive] {
            end.expect(EventType::CM_MSG_CONN_DISCONNECT)?;
            end.ia.ep_reset(end.ep)?;
        }
        Ok(())
    }))
}

/// Questions that change nothing.
fn questions(f: Fixture) -> Result<Job, Failure> {
    let end = f.end(&f.a, &attributes())?;
    let (here, number) = (spigot(&f.a)?.spigot_id, f.a.ep_qpn(end.ep)?);
    let there = some(spigot(&f.b)?.net_addr.first().copied(), "an address")?;
    let way = path(&f.a, &there)?;
    let numeric = NetAddr::Ipv4([10, 1, 2, 3]);
    let converted = f.a.convert_net_addr(&numeric, NetAddrType::Ipv6)?;
    Ok(Box::new(move |_| {
        check_eq!(f.a.get_pathinfo(here, &there, 1)?.0, [way]);
        check_eq!(f.a.convert_net_addr(&numeric, NetAddrType::Ipv6)?, converted);
        check_eq!(f.a.ep_qpn(end.ep)?, number);
        check_eq!(f.a.ep_last_control(end.ep), Err(Error::InvalidEpType));
        let socket = f.a.socket_convert(0, end.ep, ScFlags::empty(), &[]);
        refused(socket, Error::OpNotSupported)?;
        refused(f.a.socket_close(0), Error::InvalidSd)?;
        check_eq!(f.setup.provider.interface_list(usize::MAX).1, f.setup.provider.interface_list(0).1);
        Ok(())
    }))
}

/// Regions, with their memory made coherent.
fn regions(f: Fixture) -> Result<Job, Failure> {
    let (pz, buffer) = (f.a.pz_create()?, f.buffer(PAGE)?);
    Ok(Box::new(move |n| {
        let memory = LmrMemory::buffer(&buffer);
        let (mode, flags, length) = (AddrMode::Absolute, LmrFlags::NONCOHERENT, PAGE as u64);
        let (lmr, _) = f.a.lmr_create(pz, memory, length, mode, OPEN, flags, 0)?;
        let whole = LmrTriplet::new(lmr, buffer.addr() as u64, length);
        buffer.slice().fill(n as u8);
        f.a.lmr_flush_to_mem(&[whole])?;
        f.a.lmr_refresh_from_mem(&[whole])?;
        check!(crate::fixture::read(&buffer, 0, PAGE).iter().all(|&byte| byte == n as u8));
        check_eq!(f.a.lmr_query(lmr, LmrParamMask::PZ)?.pz, pz);
        Ok(f.a.lmr_free(lmr)?)
    }))
}

/// Notification objects of EVDs.
fn notifications(f: Fixture) -> Result<Job, Failure> {
    Ok(Box::new(move |n| {
        let stream = EventType::SOFTWARE_EVENT_STREAM;
        let evd = f.a.evd_create(stream, EvdFlags::CREATE_FD, 4, 1, EvdHandle::NULL)?;
        let notification = f.a.evd_notification(evd)?;
        check!(notification.evd() == evd && !notification.is_ready()?);
        let poll = || notification.poll_ready(&mut Context::from_waker(Waker::noop()));
        check_eq!(poll(), Poll::Pending);
        f.a.evd_post_se(evd, n as usize)?;
        notification.wait(WAIT)?;
        check!(notification.is_ready()?);
        check_eq!(poll(), Poll::Ready(Ok(())));
        check_eq!(f.a.evd_dequeue(evd)?, Event::Software { evd, data: n as usize });
        notification.close()?;
        Ok(f.a.evd_free(evd)?)
    }))
}

/// Objects of each type, which are made and freed.
fn objects(f: Fixture) -> Result<Job, Failure> {
    Ok(Box::new(move |_| one_of_each_type(&f, &f.a).map(drop)))
}

/// Connections and messages.
fn connections(f: Fixture) -> Result<Job, Failure> {
    let (active, passive) = (f.end(&f.a, &attributes())?, f.end(&f.b, &attributes())?);
    Ok(Box::new(move |_| connect_and_disconnect(&f, &active, &passive)))
}

/// Another IA, which is created and freed.
fn adapters(f: Fixture) -> Result<Job, Failure> {
    Ok(Box::new(move |_| {
        let ia = f.setup.provider.ia_create(&f.setup.a.name, 2, 1, Some(f.setup.privileged))?;
        check_eq!(ia.ia_query()?.ia_name, f.setup.a.name);
        let pz = ia.pz_create()?;
        let here = spigot(&ia)?;
        let way = path(&ia, &some(here.net_addr.first().copied(), "an address")?)?;
        let address = ia.address_handle_create(pz, &way, AhFlags::PATH_COMPLETE)?;
        ia.ia_free()?;
        refused(ia.address_handle_free(address), Error::InvalidIa)
    }))
}

type Routine = fn(Fixture) -> Result<Job, Failure>;

const JOBS: &[Routine] = &[
    datagrams,
    services,
    remote_accesses,
    unlinking_sends,
    handoffs,
    questions,
    regions,
    notifications,
    objects,
    connections,
    adapters,
];

pub(crate) const TESTS: &[Test] = &[
    // Each thread makes its own calls until every other thread has made all of its own, and each
    // call has the result that it has alone.
    test("threads::every_routine_beside_every_other", &["4.2 B05"], |f| {
        let (busy, failed) = (Arc::new(AtomicUsize::new(JOBS.len())), Arc::new(AtomicBool::new(false)));
        let mut bodies: Vec<Body<Outcome>> = Vec::new();
        for job in JOBS {
            let (mut job, busy, failed) = (job(f.for_a_thread())?, busy.clone(), failed.clone());
            bodies.push(Box::new(move || {
                let mut outcome = Ok(());
                for n in 0.. {
                    if n == ROUNDS {
                        busy.fetch_sub(1, Ordering::AcqRel);
                    }
                    let done = n >= ROUNDS && busy.load(Ordering::Acquire) == 0;
                    if done || failed.load(Ordering::Acquire) {
                        break;
                    }
                    outcome = job(n);
                    if outcome.is_err() {
                        failed.store(true, Ordering::Release);
                    }
                }
                outcome
            }));
        }
        all_pass(f.platform(), bodies)
    })
    .limit(120),
];

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};
    use std::string::String;

    use crate::support::every_call::calls;

    #[test]
    fn the_threads_make_every_call() {
        let files = read_dir("src/threads").unwrap();
        let text: String = files.map(|file| read_to_string(file.unwrap().path()).unwrap()).collect();
        // The unsafe call is privileged-api's own tests' matter, and `ready` is made of
        // `poll_ready`.
        // `socket_add` takes a stream.
        let except =
            ["lmr_create_raw", "socket_add", "ready", "platform", "identity", "features", "transport_type"];
        let missing: std::vec::Vec<_> = calls()
            .into_iter()
            .filter(|call| !except.contains(&call.as_str()) && !text.contains(&std::format!(".{call}(")))
            .collect();
        assert!(missing.is_empty(), "no thread calls {missing:?}");
    }
}
