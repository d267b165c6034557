//! Every call of DAT with valid arguments, and which arguments are handles: for the tests that make
//! each call with bad handles, on a closed IA and on a dead device.
//!
//! A unit test below compares the table with the source of `dat`, so that no call is missing.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::result::Result;

use dat::*;

use super::events::MERGED;
use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, check_eq};

/// The part that a handle plays in the calls of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pz,
    Lmr,
    Rmr,
    Srq,
    /// Completions of Receives.
    Recv,
    /// Completions of requests.
    Request,
    /// Events of connections.
    Connect,
    /// Requests for connections.
    Requests,
    /// Software events.
    Software,
    Cno,
    /// A connected endpoint.
    Ep,
    /// An endpoint that is not connected.
    Idle,
    /// A datagram endpoint that has resolved another one.
    Datagram,
    Ah,
    Psp,
    Rsp,
    /// A request that waits for its answer.
    Cr,
}

pub(crate) const ROLES: [Role; 17] = {
    use Role::*;
    [Pz, Lmr, Rmr, Srq, Recv, Request, Connect, Requests, Software, Cno, Ep, Idle, Datagram, Ah, Psp, Rsp, Cr]
};

impl Role {
    /// The type of objects with this role.
    pub(crate) fn kind(self) -> HandleType {
        match self {
            Role::Pz => HandleType::Pz,
            Role::Lmr => HandleType::Lmr,
            Role::Rmr => HandleType::Rmr,
            Role::Srq => HandleType::Srq,
            Role::Recv | Role::Request | Role::Connect | Role::Requests | Role::Software => HandleType::Evd,
            Role::Cno => HandleType::Cno,
            Role::Ep | Role::Idle | Role::Datagram => HandleType::Ep,
            Role::Ah => HandleType::IbExt,
            Role::Psp => HandleType::Psp,
            Role::Rsp => HandleType::Rsp,
            Role::Cr => HandleType::Cr,
        }
    }
}

/// One handle for each role.
#[derive(Clone, Copy)]
pub(crate) struct Handles([u64; ROLES.len()]);

impl Handles {
    pub(crate) fn get(&self, role: Role) -> u64 {
        self.0[role as usize]
    }

    /// These handles, with another one for one role.
    pub(crate) fn with(mut self, role: Role, word: u64) -> Handles {
        self.0[role as usize] = word;
        self
    }

    fn pz(&self) -> PzHandle {
        PzHandle::from_raw(self.get(Role::Pz))
    }

    fn evd(&self, role: Role) -> EvdHandle {
        EvdHandle::from_raw(self.get(role))
    }

    fn ep(&self, role: Role) -> EpHandle {
        EpHandle::from_raw(self.get(role))
    }

    fn lmr(&self) -> LmrHandle {
        LmrHandle::from_raw(self.get(Role::Lmr))
    }

    fn rmr(&self) -> RmrHandle {
        RmrHandle::from_raw(self.get(Role::Rmr))
    }

    fn srq(&self) -> SrqHandle {
        SrqHandle::from_raw(self.get(Role::Srq))
    }

    fn cno(&self) -> CnoHandle {
        CnoHandle::from_raw(self.get(Role::Cno))
    }

    fn psp(&self) -> PspHandle {
        PspHandle::from_raw(self.get(Role::Psp))
    }

    fn rsp(&self) -> RspHandle {
        RspHandle::from_raw(self.get(Role::Rsp))
    }

    fn cr(&self) -> CrHandle {
        CrHandle::from_raw(self.get(Role::Cr))
    }
}

/// An object for each role, in a state in which the calls would succeed.
pub(crate) struct Objects {
    pub(crate) ia: Ia,
    pub(crate) handles: Handles,
    region: Region,
    remote_ah: IbAddrHandle,
    /// The peers' address.
    peer: IaAddress,
    conn_qual: u64,
}

impl Objects {
    /// Creates the objects on the second IA, and their peers on the first one.
    pub(crate) fn new(w: &World<'_>) -> Result<Objects, Failure> {
        let ia = &w.b;
        let (_, end) = w.pair()?;
        let idle = w.end(ia, &attributes())?;
        let (_, (datagram, remote_ah)) = w.resolved()?;
        let region = w.region(&end, PAGE, OPEN)?;
        let (requests, software) = (evd(ia, EvdFlags::CR)?, evd(ia, EvdFlags::SOFTWARE)?);
        let (conn_qual, psp) = ia.psp_create_any(requests, PspFlags::Consumer)?;
        let dialer = w.end(&w.a, &attributes())?;
        dial(&dialer, address(ia)?, conn_qual, &[])?;
        let cr = request(ia, requests)?;
        // A free qualifier.
        let (free, probe) = ia.psp_create_any(requests, PspFlags::Consumer)?;
        ia.psp_free(probe)?;
        let reserved = w.end(ia, &attributes())?;
        let mut handles = Handles([0; ROLES.len()]);
        for (role, handle) in [
            (Role::Pz, Handle::from(end.pz)),
            (Role::Lmr, region.lmr.lmr_handle.into()),
            (Role::Rmr, ia.rmr_create(end.pz)?.into()),
            (Role::Srq, ia.srq_create(end.pz, &SrqAttr::default())?.into()),
            (Role::Recv, end.recv.into()),
            (Role::Request, end.request.into()),
            (Role::Connect, end.connect.into()),
            (Role::Requests, requests.into()),
            (Role::Software, software.into()),
            (Role::Cno, ia.cno_create(None)?.into()),
            (Role::Ep, end.ep.into()),
            (Role::Idle, idle.ep.into()),
            (Role::Datagram, datagram.ep.into()),
            (Role::Ah, remote_ah.ah.into()),
            (Role::Psp, psp.into()),
            (Role::Rsp, ia.rsp_create(free, reserved.ep, requests)?.into()),
            (Role::Cr, cr.into()),
        ] {
            handles = handles.with(role, handle.as_raw());
        }
        let peer = address(&w.a)?;
        Ok(Objects { ia: ia.clone(), handles, region, remote_ah, peer, conn_qual })
    }

    /// The state of all objects, as text.
    pub(crate) fn state(&self) -> Result<String, Failure> {
        let (ia, h) = (&self.ia, &self.handles);
        let mut evds = Vec::new();
        for role in [Role::Recv, Role::Request, Role::Connect, Role::Requests, Role::Software] {
            evds.push((ia.evd_query(h.evd(role))?, ia.evd_wait(h.evd(role), 0, 1).is_ok()));
        }
        let mut eps = Vec::new();
        for role in [Role::Ep, Role::Idle, Role::Datagram] {
            eps.push((ia.ep_query(h.ep(role), EpParamMask::ALL)?, ia.ep_get_status(h.ep(role))?));
        }
        let memory = (ia.pz_query(h.pz())?, ia.lmr_query(h.lmr())?, ia.rmr_query(h.rmr())?);
        let shared = (ia.srq_query(h.srq())?, ia.cno_query(h.cno())?);
        let points = (ia.psp_query(h.psp())?, ia.rsp_query(h.rsp())?, ia.cr_query(h.cr())?);
        Ok(format!("{evds:?} {eps:?} {memory:?} {shared:?} {points:?}"))
    }

    /// Makes every call. Each has to return this error, and to change nothing.
    pub(crate) fn all_refused(&self, error: Error) -> Outcome {
        for _ in 0..2 {
            for call in CALLS {
                check_eq!((call.make)(self, &self.handles), Some(error), "{}", call.name);
            }
        }
        Ok(())
    }

    fn segments(&self) -> [LmrTriplet; 1] {
        [self.region.segment(0, 8)]
    }

    fn to(&self) -> RmrTriplet {
        self.region.remote(0, 8)
    }
}

/// A call.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// The call's handles, with the subtype of the error if one is invalid.
    pub(crate) handles: &'static [(Role, Subtype)],
    /// The handles that may be null.
    pub(crate) nullable: &'static [Role],
    /// Makes the call; returns its error.
    pub(crate) make: fn(&Objects, &Handles) -> Option<Error>,
}

const fn call(
    name: &'static str,
    handles: &'static [(Role, Subtype)],
    make: fn(&Objects, &Handles) -> Option<Error>,
) -> Call {
    Call { name, handles, nullable: &[], make }
}

impl Call {
    const fn nullable(mut self, roles: &'static [Role]) -> Call {
        self.nullable = roles;
        self
    }
}

const PZ: (Role, Subtype) = (Role::Pz, Subtype::InvalidHandlePz);
const LMR: (Role, Subtype) = (Role::Lmr, Subtype::InvalidHandleLmr);
const RMR: (Role, Subtype) = (Role::Rmr, Subtype::InvalidHandleRmr);
const SRQ: (Role, Subtype) = (Role::Srq, Subtype::InvalidHandleSrq);
const CNO: (Role, Subtype) = (Role::Cno, Subtype::InvalidHandleCno);
const EP: (Role, Subtype) = (Role::Ep, Subtype::InvalidHandleEp);
const IDLE: (Role, Subtype) = (Role::Idle, Subtype::InvalidHandleEp);
const DATAGRAM: (Role, Subtype) = (Role::Datagram, Subtype::InvalidHandleEp);
const AH: (Role, Subtype) = (Role::Ah, Subtype::InvalidHandle2);
const PSP: (Role, Subtype) = (Role::Psp, Subtype::InvalidHandlePsp);
const RSP: (Role, Subtype) = (Role::Rsp, Subtype::InvalidHandleRsp);
const CR: (Role, Subtype) = (Role::Cr, Subtype::InvalidHandleCr);
const REQUESTS: (Role, Subtype) = (Role::Requests, Subtype::InvalidHandleEvdCr);
const EVD: (Role, Subtype) = (Role::Request, Subtype::InvalidHandle1);
const RECV: (Role, Subtype) = (Role::Recv, Subtype::InvalidHandleEvdRecv);
const REQUEST: (Role, Subtype) = (Role::Request, Subtype::InvalidHandleEvdRequest);
const CONNECT: (Role, Subtype) = (Role::Connect, Subtype::InvalidHandleEvdConn);
const ANY: (Role, Subtype) = (Role::Pz, Subtype::InvalidHandle1);

/// Every call, except those in `EXCEPT`.
pub(crate) const CALLS: &[Call] = &[
    call("ia_query", &[], |o, _| o.ia.ia_query(IaAttrMask::ALL, ProviderAttrMask::ALL).err()),
    call("get_handle_type", &[ANY], |o, h| o.ia.get_handle_type(h.pz()).err()),
    call("get_consumer_context", &[ANY], |o, h| o.ia.get_consumer_context(h.pz()).err()),
    call("set_consumer_context", &[ANY], |o, h| o.ia.set_consumer_context(h.pz(), 1).err()),
    call("pz_create", &[], |o, _| o.ia.pz_create().err()),
    call("pz_query", &[PZ], |o, h| o.ia.pz_query(h.pz()).err()),
    call("pz_free", &[PZ], |o, h| o.ia.pz_free(h.pz()).err()),
    call("lmr_create", &[PZ], |o, h| {
        let memory = RegionDescription::buffer(&o.region.buffer);
        o.ia.lmr_create(memory, 8, h.pz(), OPEN, VaType::Va).err()
    }),
    call("lmr_query", &[LMR], |o, h| o.ia.lmr_query(h.lmr()).err()),
    call("lmr_free", &[LMR], |o, h| o.ia.lmr_free(h.lmr()).err()),
    call("rmr_create", &[PZ], |o, h| o.ia.rmr_create(h.pz()).err()),
    call("rmr_bind", &[RMR, LMR, EP], |o, h| {
        let (segment, privileges) = (o.region.segment(0, 8), MemPriv::REMOTE_READ);
        let ep = h.ep(Role::Ep);
        o.ia.rmr_bind(h.rmr(), h.lmr(), &segment, privileges, VaType::Va, ep, 1, PLAIN).err()
    }),
    call("rmr_query", &[RMR], |o, h| o.ia.rmr_query(h.rmr()).err()),
    call("rmr_free", &[RMR], |o, h| o.ia.rmr_free(h.rmr()).err()),
    call("srq_create", &[PZ], |o, h| o.ia.srq_create(h.pz(), &SrqAttr::default()).err()),
    call("srq_query", &[SRQ], |o, h| o.ia.srq_query(h.srq()).err()),
    call("srq_set_lw", &[SRQ], |o, h| o.ia.srq_set_lw(h.srq(), 1).err()),
    call("srq_post_recv", &[SRQ], |o, h| o.ia.srq_post_recv(h.srq(), &o.segments(), 1).err()),
    call("srq_resize", &[SRQ], |o, h| o.ia.srq_resize(h.srq(), 64).err()),
    call("srq_free", &[SRQ], |o, h| o.ia.srq_free(h.srq()).err()),
    call("evd_create", &[CNO], |o, h| o.ia.evd_create(8, h.cno(), MERGED).err()).nullable(&[Role::Cno]),
    call("evd_query", &[EVD], |o, h| o.ia.evd_query(h.evd(Role::Request)).err()),
    call("evd_resize", &[EVD], |o, h| o.ia.evd_resize(h.evd(Role::Request), 2 * QLEN).err()),
    call("evd_free", &[EVD], |o, h| o.ia.evd_free(h.evd(Role::Request)).err()),
    call("evd_post_se", &[(Role::Software, Subtype::InvalidHandle1)], |o, h| {
        let evd = h.evd(Role::Software);
        o.ia.evd_post_se(evd, &Event::software(evd, 1)).err()
    }),
    call("evd_modify_cno", &[EVD, CNO], |o, h| o.ia.evd_modify_cno(h.evd(Role::Request), h.cno()).err())
        .nullable(&[Role::Cno]),
    call("evd_dequeue", &[EVD], |o, h| o.ia.evd_dequeue(h.evd(Role::Request)).err()),
    call("evd_wait", &[EVD], |o, h| o.ia.evd_wait(h.evd(Role::Request), 0, 1).err().map(Error::from)),
    call("cno_create", &[], |o, _| o.ia.cno_create(None).err()),
    call("cno_modify_agent", &[CNO], |o, h| o.ia.cno_modify_agent(h.cno(), None).err()),
    call("cno_wait", &[CNO], |o, h| o.ia.cno_wait(h.cno(), 0).err()),
    call("cno_query", &[CNO], |o, h| o.ia.cno_query(h.cno()).err()),
    call("cno_free", &[CNO], |o, h| o.ia.cno_free(h.cno()).err()),
    call("ep_create", &[PZ, RECV, REQUEST, CONNECT], |o, h| {
        let (recv, request) = (h.evd(Role::Recv), h.evd(Role::Request));
        o.ia.ep_create(h.pz(), recv, request, h.evd(Role::Connect), Some(&attributes())).err()
    })
    .nullable(&[Role::Pz, Role::Recv, Role::Request, Role::Connect]),
    call("ep_create_with_srq", &[PZ, RECV, REQUEST, CONNECT, SRQ], |o, h| {
        let (recv, request) = (h.evd(Role::Recv), h.evd(Role::Request));
        let connect = h.evd(Role::Connect);
        o.ia.ep_create_with_srq(h.pz(), recv, request, connect, h.srq(), &attributes()).err()
    })
    .nullable(&[Role::Pz, Role::Recv, Role::Request, Role::Connect]),
    call("ep_query", &[EP], |o, h| o.ia.ep_query(h.ep(Role::Ep), EpParamMask::ALL).err()),
    call("ep_get_status", &[EP], |o, h| o.ia.ep_get_status(h.ep(Role::Ep)).err()),
    call("ep_qpn", &[EP], |o, h| o.ia.ep_qpn(h.ep(Role::Ep)).err()),
    call("ep_recv_query", &[EP], |o, h| o.ia.ep_recv_query(h.ep(Role::Ep)).err()),
    call("ep_set_watermark", &[EP], |o, h| {
        o.ia.ep_set_watermark(h.ep(Role::Ep), WATERMARK_INFINITE, WATERMARK_INFINITE).err()
    }),
    call("ep_modify", &[IDLE], |o, h| {
        let param = EpParam { ep_attr: attributes(), ..EpParam::default() };
        o.ia.ep_modify(h.ep(Role::Idle), EpParamMask::EP_ATTR_MAX_RECV_DTOS, &param).err()
    }),
    call("ep_connect", &[IDLE], |o, h| {
        let (ep, qos, flags) = (h.ep(Role::Idle), Qos::BEST_EFFORT, ConnectFlags::Default);
        o.ia.ep_connect(ep, o.peer, o.conn_qual, LONG, &[], qos, flags).err()
    }),
    call("ep_dup_connect", &[IDLE, (Role::Ep, Subtype::InvalidHandle2)], |o, h| {
        let (ep, duplicated) = (h.ep(Role::Idle), h.ep(Role::Ep));
        o.ia.ep_dup_connect(ep, duplicated, LONG, &[], Qos::BEST_EFFORT).err()
    }),
    call("ep_disconnect", &[EP], |o, h| o.ia.ep_disconnect(h.ep(Role::Ep), CloseFlags::Abrupt).err()),
    call("ep_reset", &[EP], |o, h| o.ia.ep_reset(h.ep(Role::Ep)).err()),
    call("ep_free", &[EP], |o, h| o.ia.ep_free(h.ep(Role::Ep)).err()),
    call("ep_post_send", &[EP], |o, h| o.ia.ep_post_send(h.ep(Role::Ep), &o.segments(), 1, PLAIN).err()),
    call("ep_post_recv", &[EP], |o, h| o.ia.ep_post_recv(h.ep(Role::Ep), &o.segments(), 1, PLAIN).err()),
    call("ep_post_rdma_write", &[EP], |o, h| {
        o.ia.ep_post_rdma_write(h.ep(Role::Ep), &o.segments(), 1, &o.to(), PLAIN).err()
    }),
    call("ep_post_rdma_read", &[EP], |o, h| {
        o.ia.ep_post_rdma_read(h.ep(Role::Ep), &o.segments(), 1, &o.to(), PLAIN).err()
    }),
    call("ib_post_rdma_write_with_immed", &[EP], |o, h| {
        o.ia.ib_post_rdma_write_with_immed(h.ep(Role::Ep), &o.segments(), 1, &o.to(), 7, PLAIN).err()
    }),
    call("ib_post_cmp_and_swap", &[EP], |o, h| {
        o.ia.ib_post_cmp_and_swap(h.ep(Role::Ep), 1, 2, &o.segments()[0], 1, &o.to(), PLAIN).err()
    }),
    call("ib_post_fetch_and_add", &[EP], |o, h| {
        o.ia.ib_post_fetch_and_add(h.ep(Role::Ep), 1, &o.segments()[0], 1, &o.to(), PLAIN).err()
    }),
    call("ib_post_send_ud", &[DATAGRAM, AH], |o, h| {
        let ah = IbAddrHandle { ah: AhHandle::from_raw(h.get(Role::Ah)), ..o.remote_ah };
        o.ia.ib_post_send_ud(h.ep(Role::Datagram), &[], &ah, 1, PLAIN).err()
    }),
    call("extension_op", &[EP], |o, h| {
        let arguments = IbArguments::RdmaWriteImmed {
            local_iov: &o.segments(),
            user_cookie: 1,
            remote_iov: &o.to(),
            immediate_data: 7,
            completion_flags: PLAIN,
        };
        o.ia.extension_op(Handle::from_raw(h.get(Role::Ep)), IbOp::RDMA_WRITE_IMMED, &arguments).err()
    }),
    call("ib_ud_ah_free", &[DATAGRAM, AH], |o, h| {
        o.ia.ib_ud_ah_free(h.ep(Role::Datagram), AhHandle::from_raw(h.get(Role::Ah))).err()
    }),
    call("psp_create", &[REQUESTS], |o, h| {
        o.ia.psp_create(o.conn_qual + 1000, h.evd(Role::Requests), PspFlags::Consumer).err()
    }),
    call("psp_create_any", &[REQUESTS], |o, h| {
        o.ia.psp_create_any(h.evd(Role::Requests), PspFlags::Consumer).err()
    }),
    call("psp_query", &[PSP], |o, h| o.ia.psp_query(h.psp()).err()),
    call("psp_free", &[PSP], |o, h| o.ia.psp_free(h.psp()).err()),
    call("rsp_create", &[IDLE, REQUESTS], |o, h| {
        o.ia.rsp_create(o.conn_qual + 1000, h.ep(Role::Idle), h.evd(Role::Requests)).err()
    }),
    call("rsp_query", &[RSP], |o, h| o.ia.rsp_query(h.rsp()).err()),
    call("rsp_free", &[RSP], |o, h| o.ia.rsp_free(h.rsp()).err()),
    call("cr_query", &[CR], |o, h| o.ia.cr_query(h.cr()).err()),
    // Without an endpoint the error is another one.
    call("cr_accept", &[CR, IDLE], |o, h| o.ia.cr_accept(h.cr(), h.ep(Role::Idle), &[]).err())
        .nullable(&[Role::Idle]),
    call("cr_reject", &[CR], |o, h| o.ia.cr_reject(h.cr(), &[]).err()),
    call("cr_handoff", &[CR], |o, h| o.ia.cr_handoff(h.cr(), o.conn_qual).err()),
];

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::vec::Vec;

    use super::*;
    use crate::support::every_call::calls_in;

    /// Calls that are not in the table: `handle` never fails; `ia_close` works on a dead device;
    /// dat's own tests make the unsafe one.
    const EXCEPT: [&str; 3] = ["handle", "ia_close", "lmr_create_raw"];

    #[test]
    fn the_table_has_every_call() {
        let calls = calls_in(Path::new("../dat/src"));
        assert!(calls.len() >= 60, "only {} calls were found", calls.len());
        let stands = |name: &str| CALLS.iter().any(|call| call.name == name);
        let missing: Vec<_> =
            calls.iter().filter(|call| !EXCEPT.contains(&call.as_str()) && !stands(call)).collect();
        assert!(missing.is_empty(), "not in the table: {missing:?}");
        for call in CALLS {
            assert!(calls.contains(call.name), "no such call: {}", call.name);
        }
    }
}
