//! Every call of the API with valid arguments. On an IA that is disabled or freed, each call must
//! be refused and must change nothing.
//!
//! A unit test below compares the table with the source of privileged-api, so that no call is
//! missing.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::result::Result;
use core::task::{Context, Poll, Waker};

use privileged_api::*;

use crate::datagrams::ud::{Peer, address, datagrams, peer};
use crate::fixture::{End, Fixture, Listener, OPEN, PAGE, Region, SIGNALLED, WAIT, attributes, path};
use crate::{Failure, Outcome, check_eq};

/// One object of each type, in a state in which the calls would succeed, and an unanswered
/// connection request and service request.
pub(crate) struct Objects {
    ia: Ia,
    end: End,
    idle: End,
    peer: Peer,
    listener: Listener,
    region: Region,
    mapped: (IoAddr, usize),
    unlinked: LmrHandle,
    rmr: RmrHandle,
    srq: SrqHandle,
    addr: AddrHandle,
    asked: UdSvcReqHandle,
    way: Path,
    connection: CnEstId,
    service: u64,
    software: EvdHandle,
    notification: Notification,
}

/// The name of a call, and the error that it returned.
type Refusal = (&'static str, Option<Error>);

impl Objects {
    pub(crate) fn new(f: &Fixture, ia: &Ia) -> Result<Objects, Failure> {
        let (end, other, dialling) =
            (f.end(ia, &attributes())?, f.end(ia, &attributes())?, f.end(ia, &attributes())?);
        f.connect(&end, &other)?;
        let (listener, peer) = (f.listen(ia)?, peer(ia, &datagrams())?);
        let way = path(ia, &listener.address)?;
        let asked = ia.ud_service_request_handle_create(&listener.conn_qual, end.conn, &way, &[])?;
        // The IA sends the request to itself, so that there is one to answer.
        ia.ud_service_request(asked)?;
        let Event::UdServiceRequest(request) = ia.evd_wait(listener.evd, WAIT)?.0 else {
            return Err(Failure::new("not a UD service request"));
        };
        f.dial(&dialling, &listener, CnEstFlags::TWO_WAY, &[])?;
        let flags = EvdFlags::CREATE_FD;
        let software = ia.evd_create(EventType::SOFTWARE_EVENT_STREAM, flags, 4, 1, EvdHandle::NULL)?;
        let region = f.region(ia, end.pz, PAGE, OPEN)?;
        Ok(Objects {
            mapped: ia.mem_map(region.buffer.addr(), ASPACE_KERNEL, PAGE)?,
            unlinked: ia.lmr_create_unlinked(end.pz, 1, LmrFlags::NONE, 0)?,
            rmr: ia.rmr_create(end.pz, RmrType::Wide)?,
            srq: ia.srq_create(end.pz, 1, 4)?,
            addr: address(ia, peer.pz, ia)?,
            connection: listener.request()?.cn_est_id,
            service: request.ud_svc_req_id,
            notification: ia.evd_notification(software)?,
            idle: f.end(ia, &attributes())?,
            ia: ia.clone(),
            end,
            peer,
            listener,
            region,
            asked,
            way,
            software,
        })
    }

    /// Fails unless each call returns this error, both times that it is made.
    pub(crate) fn all_refused(&self, error: Error) -> Outcome {
        let before = self.ia.object_counts();
        for _ in 0..2 {
            for (call, refusal) in self.handles().into_iter().chain(self.events()).chain(self.memory()) {
                check_eq!(refusal, Some(error), "{call}");
            }
            for (call, refusal) in self.endpoints().into_iter().chain(self.posts()).chain(self.services()) {
                check_eq!(refusal, Some(error), "{call}");
            }
        }
        check_eq!(self.ia.object_counts(), before);
        Ok(())
    }

    /// Calls on handles, names and protection zones.
    fn handles(&self) -> Vec<Refusal> {
        let (ia, pz, at) = (&self.ia, self.end.pz, self.way.spigot_id);
        let address = &self.listener.address;
        Vec::from([
            ("ia_query", ia.ia_query().err()),
            ("get_pathinfo", ia.get_pathinfo(at, address, 1).err()),
            ("convert_net_addr", ia.convert_net_addr(address, NetAddrType::Ipv6).err()),
            ("get_handle_type", ia.get_handle_type(pz).err()),
            ("get_consumer_context", ia.get_consumer_context(pz).err()),
            ("set_consumer_context", ia.set_consumer_context(pz, 1).err()),
            ("pz_create", ia.pz_create().err()),
            ("pz_query", ia.pz_query(pz, PzParamMask::ALL).err()),
            ("pz_free", ia.pz_free(pz).err()),
        ])
    }

    /// Calls on EVDs.
    fn events(&self) -> Vec<Refusal> {
        let (ia, evd, notification) = (&self.ia, self.end.request, &self.notification);
        let (none, stream) = (EvdFlags::empty(), EventType::SOFTWARE_EVENT_STREAM);
        let polled = match notification.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ready) => ready.err(),
            Poll::Pending => None,
        };
        Vec::from([
            ("evd_create", ia.evd_create(stream, none, 4, 1, EvdHandle::NULL).err()),
            ("evd_query", ia.evd_query(evd, EvdParamMask::ALL).err()),
            ("evd_modify", ia.evd_modify(evd, EvdParamMask::ENABLED, &EvdParam::default()).err()),
            ("evd_dequeue", ia.evd_dequeue(evd).err()),
            ("evd_dequeue_n", ia.evd_dequeue_n(evd, &mut [DtoCompletion::default()]).err()),
            ("evd_dequeue_extended", ia.evd_dequeue_extended(evd).err()),
            ("evd_wait", ia.evd_wait(evd, TIMEOUT_INFINITE).err().map(Error::from)),
            (
                "evd_wait_extended",
                ia.evd_wait_extended(evd, WaitFor::Events(2), TIMEOUT_INFINITE).err().map(Error::from),
            ),
            ("evd_queued", ia.evd_queued(evd).err()),
            ("evd_post_se", ia.evd_post_se(self.software, 1).err()),
            ("evd_callback_attach", ia.evd_callback_attach(evd, Box::new(|_, _| {})).err()),
            ("evd_callback_detach", ia.evd_callback_detach(evd).err()),
            ("evd_notification", ia.evd_notification(self.software).err()),
            ("evd_free", ia.evd_free(evd).err()),
            ("is_ready", notification.is_ready().err()),
            ("wait", notification.wait(TIMEOUT_INFINITE).err()),
            ("poll_ready", polled),
            ("close", notification.close().err()),
        ])
    }

    /// Calls on regions, RMRs and mappings.
    fn memory(&self) -> Vec<Refusal> {
        let (ia, End { pz, ep, .. }) = (&self.ia, self.end.clone());
        let (region, lmr, (bus, mapped)) = (&self.region, self.region.lmr, self.mapped);
        let memory = LmrMemory::buffer(&region.buffer);
        let (pages, addr, mode) = ([bus], region.buffer.addr(), AddrMode::Absolute);
        let (list, len, none) = (Iobl::pages(&pages, PAGE as u64, 0), PAGE as u64, LmrFlags::NONE);
        let params = LmrParam { privs: OPEN, ..LmrParam::default() };
        Vec::from([
            ("lmr_create", ia.lmr_create(pz, memory, len, mode, OPEN, none, 0).err()),
            ("lmr_create_unlinked", ia.lmr_create_unlinked(pz, 1, none, 0).err()),
            ("lmr_query", ia.lmr_query(lmr, LmrParamMask::ALL).err()),
            ("lmr_modify", ia.lmr_modify(lmr, LmrParamMask::MEM_PRIV, &params).err()),
            ("lmr_link", ia.lmr_link(self.unlinked, addr, &list, len, mode, OPEN, ep, 1, SIGNALLED).err()),
            ("lmr_unlink", ia.lmr_unlink(self.unlinked, ep, 1, SIGNALLED).err()),
            ("lmr_flush_to_mem", ia.lmr_flush_to_mem(&[region.whole()]).err()),
            ("lmr_refresh_from_mem", ia.lmr_refresh_from_mem(&[region.whole()]).err()),
            ("lmr_free", ia.lmr_free(lmr).err()),
            ("rmr_create", ia.rmr_create(pz, RmrType::Wide).err()),
            ("rmr_query", ia.rmr_query(self.rmr, RmrParamMask::ALL).err()),
            ("rmr_link", ia.rmr_link(self.rmr, lmr, addr, len, mode, OPEN, ep, 1, SIGNALLED).err()),
            ("rmr_unlink", ia.rmr_unlink(self.rmr, ep, 1, SIGNALLED).err()),
            ("rmr_free", ia.rmr_free(self.rmr).err()),
            ("mem_map", ia.mem_map(addr, ASPACE_KERNEL, PAGE).err()),
            ("mem_unmap", ia.mem_unmap(bus, mapped).err()),
        ])
    }

    /// Calls on endpoints and connections.
    fn endpoints(&self) -> Vec<Refusal> {
        let (ia, End { pz, request, recv, conn, .. }) = (&self.ia, self.end.clone());
        let (ep, idle, peer, at) = (self.end.ep, self.idle.ep, &self.peer, self.way.spigot_id);
        let (qual, two_way, none) = (&self.listener.conn_qual, CnEstFlags::TWO_WAY, EpFlags::empty());
        let level = SrqParam { low_watermark: 1, ..SrqParam::default() };
        Vec::from([
            ("ep_rc_create", ia.ep_rc_create(pz, request, recv, conn, none, &attributes()).err()),
            ("ep_ud_create", ia.ep_ud_create(peer.pz, peer.request, peer.recv, &datagrams(), at).err()),
            ("ep_query", ia.ep_query(ep, EpParamMask::ALL).err()),
            ("ep_qpn", ia.ep_qpn(ep).err()),
            ("ep_last_control", ia.ep_last_control(ep).err()),
            ("ep_outstanding", ia.ep_outstanding(ep).err()),
            ("ep_modify", ia.ep_modify(ep, EpParamMask::MAX_ORD, &attributes()).err()),
            ("ep_connect", ia.ep_connect(idle, &self.way, None, qual, two_way, &[]).err()),
            ("ep_accept", ia.ep_accept(idle, self.connection, &[]).err()),
            ("reject", ia.reject(self.connection, &[]).err()),
            ("handoff", ia.handoff(qual, at, self.connection).err()),
            ("ep_disconnect", ia.ep_disconnect(ep, &[]).err()),
            ("ep_reset", ia.ep_reset(ep).err()),
            ("ep_free", ia.ep_free(ep).err()),
            ("socket_close", ia.socket_close(0).err()),
            ("socket_convert", ia.socket_convert(0, idle, ScFlags::empty(), &[]).err()),
            ("srq_create", ia.srq_create(pz, 1, 4).err()),
            ("srq_query", ia.srq_query(self.srq, SrqParamMask::ALL).err()),
            ("srq_modify", ia.srq_modify(self.srq, SrqParamMask::LOW_WATERMARK, &level).err()),
            ("srq_outstanding", ia.srq_outstanding(self.srq).err()),
            ("srq_free", ia.srq_free(self.srq).err()),
        ])
    }

    /// Calls that post work requests.
    fn posts(&self) -> Vec<Refusal> {
        let (ia, ep, region) = (&self.ia, self.end.ep, &self.region);
        let (segments, at, context) =
            ([region.segment(0, 8)], region.remote(0), region.context.unwrap_or_default());
        let room = [region.segment(0, 64)];
        let to = DgRemoteEpAddr::IbUd { addr: self.addr, ep_info: self.peer.info };
        let op = AtomicOp::FetchAndAdd;
        Vec::from([
            ("post_send", ia.post_send(ep, &segments, 1, SIGNALLED).err()),
            ("post_send_and_unlink", ia.post_send_and_unlink(ep, &segments, 1, SIGNALLED, context).err()),
            ("post_send_immediate", ia.post_send_immediate(ep, &segments, 1, SIGNALLED, 1).err()),
            (
                "post_rdma_write_immediate",
                ia.post_rdma_write_immediate(ep, &segments, 1, SIGNALLED, at, context, 1).err(),
            ),
            ("ep_ref", ia.ep_ref(ep).err()),
            ("post_batch", ia.post_batch(ep, |batch| batch.post_send(&segments, 1, SIGNALLED)).err()),
            ("post_recv", ia.post_recv(ep, &segments, 1, DtoFlags::COMPLETION).err()),
            ("post_recv", ia.post_recv(self.srq, &segments, 1, DtoFlags::COMPLETION).err()),
            ("post_rdma_write", ia.post_rdma_write(ep, &segments, 1, SIGNALLED, at, context).err()),
            ("post_rdma_read", ia.post_rdma_read(ep, &segments, 1, SIGNALLED, at, context).err()),
            ("post_rdma_read_to_rmr", ia.post_rdma_read_to_rmr(ep, &[], 1, SIGNALLED, at, context).err()),
            ("post_atomic", ia.post_atomic(ep, op, 1, 0, &segments[0], 1, SIGNALLED, at, context).err()),
            ("post_sendto", ia.post_sendto(self.peer.ep, &segments, 1, SIGNALLED, &to).err()),
            (
                "post_sendto_immediate",
                ia.post_sendto_immediate(self.peer.ep, &segments, 1, SIGNALLED, &to, 1).err(),
            ),
            ("post_recvfrom", ia.post_recvfrom(self.peer.ep, &room, 1, SIGNALLED).err()),
        ])
    }

    /// Calls on services, shared receive queues and address handles.
    fn services(&self) -> Vec<Refusal> {
        let (ia, qual, way, asked) = (&self.ia, &self.listener.conn_qual, &self.way, self.asked);
        let (evd, listen) = (self.listener.evd, self.listener.listen);
        let (status, info) = (UdSvcStatus::Rejected, self.peer.info);
        let path = AddrParam { path: *way, ..AddrParam::default() };
        Vec::from([
            ("listen_create", ia.listen_create(way.spigot_id, evd, ListenFlags::empty(), None).err()),
            ("listen_query", ia.listen_query(listen, ListenParamMask::ALL).err()),
            ("listen_free", ia.listen_free(listen).err()),
            (
                "address_handle_create",
                ia.address_handle_create(self.peer.pz, way, AhFlags::PATH_COMPLETE).err(),
            ),
            ("address_handle_query", ia.address_handle_query(self.addr, AddrParamMask::ALL).err()),
            ("address_handle_modify", ia.address_handle_modify(self.addr, AddrParamMask::PATH, &path).err()),
            ("address_handle_free", ia.address_handle_free(self.addr).err()),
            (
                "ud_service_request_handle_create",
                ia.ud_service_request_handle_create(qual, self.end.conn, way, &[]).err(),
            ),
            (
                "ud_service_request_handle_query",
                ia.ud_service_request_handle_query(asked, UdSvcReqParamMask::ALL).err(),
            ),
            ("ud_service_request_handle_free", ia.ud_service_request_handle_free(asked).err()),
            ("ud_service_request", ia.ud_service_request(asked).err()),
            ("ud_service_request_reported", ia.ud_service_request_reported(asked).err()),
            ("ud_service_reply", ia.ud_service_reply(self.service, status, info, &[]).err()),
        ])
    }
}

#[cfg(test)]
pub(crate) use tests::{calls, calls_in};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;
    use std::fs::{read_dir, read_to_string};
    use std::path::{Path, PathBuf};
    use std::string::String;
    use std::vec::Vec;

    /// Calls that are not in the table: those that do not depend on the IA's state,
    /// `ia_free`, which still works, and the unsafe one, which
    /// privileged-api's own tests make; and `socket_add`, which takes a stream.
    const EXCEPT: [&str; 12] = [
        "handle",
        "object_counts",
        "platform",
        "identity",
        "features",
        "transport_type",
        "in_callback",
        "ia_free",
        "evd",
        "ready",
        "lmr_create_raw",
        "socket_add",
    ];

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, into),
                false => into.push(path),
            }
        }
    }

    /// The names of the public methods in these `impl` blocks.
    fn methods(text: &str, of: &[&str]) -> Vec<String> {
        let (mut inside, mut found) = (false, Vec::new());
        for line in text.lines() {
            if !line.starts_with(' ') && !line.is_empty() {
                inside = of.contains(&line);
            }
            let line = line.trim_start();
            let name = line.strip_prefix("pub fn ").or(line.strip_prefix("pub unsafe fn "));
            if let Some(name) = name.filter(|_| inside) {
                found.push(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            }
        }
        found
    }

    /// Every call of the API.
    pub(crate) fn calls() -> BTreeSet<String> {
        // Cargo runs tests in the package's folder, wherever the checkout was moved.
        let calls = calls_in(Path::new("../privileged-api/src"));
        assert!(calls.len() >= 80, "only {} calls were found", calls.len());
        calls
    }

    /// Every call that the sources in a folder define.
    pub(crate) fn calls_in(folder: &Path) -> BTreeSet<String> {
        let mut files = Vec::new();
        sources(folder, &mut files);
        let texts = files.iter().map(|file| read_to_string(file).unwrap());
        let blocks = ["impl Ia {", "impl Notification {"];
        texts.flat_map(|text| methods(&text, &blocks)).collect()
    }

    #[test]
    fn the_table_has_every_call() {
        let calls = calls();
        let table = read_to_string("src/support/every_call.rs").unwrap();
        let stands = |call: &str| {
            table.contains(&format!("(\"{call}\",")) || table.contains(&format!("\"{call}\",\n"))
        };
        let missing: Vec<_> =
            calls.iter().filter(|call| !EXCEPT.contains(&call.as_str()) && !stands(call)).collect();
        assert!(missing.is_empty(), "not in the table: {missing:?}");
        let stale: Vec<_> = EXCEPT.iter().filter(|call| !calls.contains(**call)).collect();
        assert!(stale.is_empty(), "no such calls: {stale:?}");
    }
}
