//! What a program is told that moves the queue pair of a connection itself.
#![expect(unsafe_code, reason = "objects of C are reached by pointers")]

use core::ffi::c_int;

use kernel_agent::{Agent, ModifyQp, QpState};

use super::abi::{CmId, UDP_QKEY, ps};
use super::identifier::{self, Phase};
use crate::abi::{AhAttr, QpAttr, access, attr_mask as mask, qps};
use crate::errno::{self, Errno, minus_one};
use crate::gid::{gid_words, program_gid};

/// The rights that the peer has.
const ACCESS: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// `rdma_init_qp_attr`: the attributes, and the mask of them, with which the program's own queue
/// pair gets into the state that `attr` names. INIT is possible once the identifier has a device,
/// RTR and RTS once the peer has said what they need.
///
/// # Safety
///
/// See the crate.
pub unsafe extern "C" fn init_qp_attr(id: *mut CmId, attr: *mut QpAttr, attr_mask: *mut c_int) -> c_int {
    // SAFETY: see the crate.
    if let Err(error) = unsafe { identifier::of(id) }.origin.check() {
        return minus_one(Err(error));
    }
    // SAFETY: see the crate.
    let (to, found) = unsafe { ((*attr).qp_state, attributes(id, (*attr).qp_state)) };
    minus_one(found.map(|(found, given)| {
        // SAFETY: see the crate.
        unsafe {
            *attr = QpAttr { qp_state: to, ..found };
            *attr_mask = given | mask::STATE;
        }
    }))
}

/// # Safety
///
/// See the crate.
unsafe fn attributes(id: *mut CmId, to: c_int) -> Result<(QpAttr, c_int), Errno> {
    // SAFETY: see the crate.
    let (inner, datagrams, port_num) = unsafe { (identifier::of(id), (*id).ps == ps::UDP, (*id).port_num) };
    let state = inner.state();
    let device = state.device.as_ref().ok_or(libc::EINVAL)?;
    let begin = QpAttr { port_num, ..QpAttr::default() };
    let of_port = mask::PKEY_INDEX | mask::PORT;
    match (datagrams, to) {
        (true, qps::INIT) => return Ok((QpAttr { qkey: UDP_QKEY, ..begin }, of_port | mask::QKEY)),
        (true, qps::RTR) => return Ok((QpAttr::default(), 0)),
        (true, qps::RTS) => return Ok((QpAttr::default(), mask::SQ_PSN)),
        (false, qps::INIT) => {
            return Ok((QpAttr { qp_access_flags: ACCESS, ..begin }, of_port | mask::ACCESS_FLAGS));
        }
        _ => {}
    }
    let to = match to {
        qps::RTR => QpState::Rtr,
        qps::RTS => QpState::Rts,
        _ => return Err(libc::EINVAL),
    };
    let (Phase::Requested(connection)
    | Phase::Connecting(connection)
    | Phase::Accepted(connection)
    | Phase::Connected(connection)) = state.phase
    else {
        return Err(libc::EINVAL);
    };
    let changes = device.client()?.queue_pair_changes(connection, to).map_err(errno::of)?;
    Ok(translate(device.agent(), &changes, to))
}

/// A change of the agent's as C has it.
fn translate(agent: &Agent, from: &ModifyQp, to: QpState) -> (QpAttr, c_int) {
    match to {
        QpState::Rtr => (
            QpAttr {
                ah_attr: AhAttr {
                    dgid: gid_words(from.remote_gid),
                    flow_label: from.flow_label,
                    sgid_index: program_gid(agent, from.source_gid),
                    hop_limit: from.hop_limit,
                    traffic_class: from.traffic_class,
                    is_global: 1,
                    port_num: 1,
                    ..AhAttr::default()
                },
                path_mtu: from.mtu.max(256).ilog2() as c_int - 7,
                dest_qp_num: from.remote_qpn,
                rq_psn: from.receive_psn,
                max_dest_rd_atomic: from.max_dest_rd_atomic,
                min_rnr_timer: from.min_rnr_timer,
                ..QpAttr::default()
            },
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        ),
        _ => (
            QpAttr {
                sq_psn: from.send_psn,
                timeout: from.timeout,
                retry_cnt: from.retry_count,
                rnr_retry: from.rnr_retry,
                max_rd_atomic: from.max_rd_atomic,
                ..QpAttr::default()
            },
            mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
        ),
    }
}
