//! The calls that are counted. Callgrind counts what the functions in this module execute.
//!
//! These functions are not inlined, just as a consumer's own functions may not be. Each has this
//! program's only call of one function of the API, so the compiler may inline that one.

use std::hint::black_box;

use dat::{CompletionFlags, IbAddrHandle, RmrTriplet, SrqHandle};
use nic_model::testing::Rig;
use privileged_api::{
    AddrMode, AtomicOp, DgRemoteEpAddr, DtoCompletion, DtoFlags, EpHandle, EpRef, EvdHandle, Handle, Ia,
    Iobl, LmrHandle, LmrTriplet, RdmaAddr, RmrContext,
};

use storage::target::Target;

use crate::world::ALL;

/// Arguments of posts. The compiler cannot know their values.
pub struct Arguments {
    pub segments: Vec<LmrTriplet>,
    pub cookie: u64,
    pub flags: DtoFlags,
    pub to: RdmaAddr,
    pub context: RmrContext,
}

#[inline(never)]
pub fn write(ia: &Ia, ep: EpHandle, with: &Arguments) {
    let Arguments { segments, cookie, flags, to, context } = with;
    assert!(ia.post_rdma_write(ep, segments, *cookie, *flags, *to, *context).is_ok());
}

/// A round of a storage target.
#[inline(never)]
pub fn target_round(target: &mut Target) {
    assert!(target.step().is_ok());
}

/// With an endpoint that was looked up before.
#[inline(never)]
pub fn write_by_ref(ep: EpRef<'_>, with: &Arguments) {
    let Arguments { segments, cookie, flags, to, context } = with;
    assert!(ep.post_rdma_write(segments, *cookie, *flags, *to, *context).is_ok());
}

/// A batch of `count` Writes.
#[inline(never)]
pub fn write_batch(ep: EpRef<'_>, with: &Arguments, count: u64) {
    let Arguments { segments, cookie, flags, to, context } = with;
    let posted = ep.post_batch(|batch| {
        (0..count).try_for_each(|n| batch.post_rdma_write(segments, cookie + n, *flags, *to, *context))
    });
    assert!(posted.is_ok());
}

#[inline(never)]
pub fn send(ia: &Ia, ep: EpHandle, with: &Arguments) {
    assert!(ia.post_send(ep, &with.segments, with.cookie, with.flags).is_ok());
}

/// Posts a Receive to an endpoint or an SRQ.
#[inline(never)]
pub fn receive<H: Into<Handle>>(ia: &Ia, to: H, with: &Arguments) {
    assert!(ia.post_recv(to, &with.segments, with.cookie, with.flags).is_ok());
}

#[inline(never)]
pub fn write_immediate(ia: &Ia, ep: EpHandle, with: &Arguments) {
    let Arguments { segments, cookie, flags, to, context } = with;
    let posted = ia.post_rdma_write_immediate(ep, segments, *cookie, *flags, *to, *context, *cookie as u32);
    assert!(posted.is_ok());
}

#[inline(never)]
pub fn compare_swap(ia: &Ia, ep: EpHandle, with: &Arguments) {
    let Arguments { segments, cookie, flags, to, context } = with;
    let op = AtomicOp::CompareAndSwap;
    assert!(ia.post_atomic(ep, op, *cookie, 0, &segments[0], *cookie, *flags, *to, *context).is_ok());
}

#[inline(never)]
pub fn send_to(ia: &Ia, ep: EpHandle, with: &Arguments, to: &DgRemoteEpAddr) {
    assert!(ia.post_sendto(ep, &with.segments, with.cookie, with.flags, to).is_ok());
}

#[inline(never)]
pub fn receive_from(ia: &Ia, ep: EpHandle, with: &Arguments) {
    assert!(ia.post_recvfrom(ep, &with.segments, with.cookie, with.flags).is_ok());
}

/// Takes an event; returns whether there was one.
#[inline(never)]
pub fn dequeue(ia: &Ia, evd: EvdHandle) -> bool {
    let event = ia.evd_dequeue(evd);
    black_box(&event).is_ok()
}

/// Takes an event with its immediate data; returns whether there was one.
#[inline(never)]
pub fn dequeue_extended(ia: &Ia, evd: EvdHandle) -> bool {
    let event = ia.evd_dequeue_extended(evd);
    black_box(&event).is_ok()
}

/// Takes completions; returns how many there were.
#[inline(never)]
pub fn dequeue_all(ia: &Ia, evd: EvdHandle, into: &mut [DtoCompletion]) -> usize {
    ia.evd_dequeue_n(evd, into).unwrap_or(0)
}

#[inline(never)]
pub fn wait(ia: &Ia, evd: EvdHandle, timeout: u64) {
    let event = ia.evd_wait(evd, timeout);
    assert!(black_box(&event).is_ok());
}

/// What is linked.
pub struct Linked<'a> {
    pub lmr: LmrHandle,
    pub base: usize,
    pub length: u64,
    pub iobl: Iobl<'a>,
    /// The flags of the link, and of the unlink.
    pub flags: [DtoFlags; 2],
}

#[inline(never)]
pub fn link_and_unlink(ia: &Ia, ep: EpHandle, with: &Linked<'_>) {
    let Linked { lmr, base, length, iobl, flags } = with;
    let mode = AddrMode::Absolute;
    assert!(ia.lmr_link(*lmr, *base, iobl, *length, mode, ALL, ep, 2, flags[0]).is_ok());
    assert!(ia.lmr_unlink(*lmr, ep, 3, flags[1]).is_ok());
}

#[inline(never)]
pub fn free(ia: &Ia, ep: EpHandle) {
    assert!(ia.ep_free(ep).is_ok());
}

/// One poll of the device.
#[inline(never)]
pub fn poll(rig: &mut Rig) {
    rig.step();
}

/// Polls of the device until it has nothing to do.
#[inline(never)]
pub fn run(rig: &mut Rig) {
    rig.run();
}

/// Arguments of DAT's posts.
pub struct DatArguments {
    pub segments: Vec<dat::LmrTriplet>,
    pub cookie: u64,
    pub flags: CompletionFlags,
    pub to: RmrTriplet,
}

#[inline(never)]
pub fn dat_write(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments) {
    let DatArguments { segments, cookie, flags, to } = with;
    assert!(ia.ep_post_rdma_write(ep, segments, *cookie, to, *flags).is_ok());
}

#[inline(never)]
pub fn dat_send(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments) {
    assert!(ia.ep_post_send(ep, &with.segments, with.cookie, with.flags).is_ok());
}

#[inline(never)]
pub fn dat_receive(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments) {
    assert!(ia.ep_post_recv(ep, &with.segments, with.cookie, with.flags).is_ok());
}

#[inline(never)]
pub fn dat_shared_receive(ia: &dat::Ia, srq: SrqHandle, with: &DatArguments) {
    assert!(ia.srq_post_recv(srq, &with.segments, with.cookie).is_ok());
}

#[inline(never)]
pub fn dat_write_immed(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments) {
    let DatArguments { segments, cookie, flags, to } = with;
    let posted = ia.ib_post_rdma_write_with_immed(ep, segments, *cookie, to, *cookie as u32, *flags);
    assert!(posted.is_ok());
}

#[inline(never)]
pub fn dat_cmp_swap(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments) {
    let DatArguments { segments, cookie, flags, to } = with;
    assert!(ia.ib_post_cmp_and_swap(ep, 0, *cookie, &segments[0], *cookie, to, *flags).is_ok());
}

#[inline(never)]
pub fn dat_send_ud(ia: &dat::Ia, ep: dat::EpHandle, with: &DatArguments, ah: &IbAddrHandle) {
    assert!(ia.ib_post_send_ud(ep, &with.segments, ah, with.cookie, with.flags).is_ok());
}

/// Takes an event; returns whether there was one.
#[inline(never)]
pub fn dat_dequeue(ia: &dat::Ia, evd: dat::EvdHandle) -> bool {
    let event = ia.evd_dequeue(evd);
    black_box(&event).is_ok()
}

/// Formats an RDMA Write of 64 bytes to the same memory.
#[inline(never)]
pub fn via_format(descriptor: &vipl::Descriptor<'_>, address: u64, memory: vipl::MemHandle) {
    let handle = memory.as_raw();
    let to = vipl::AddressSegment { address, handle, reserved: 0 };
    let from = vipl::DataSegment { address, handle, length: 64 };
    assert!(descriptor.rdma_write(&to, &[from], None).is_ok());
}

#[inline(never)]
pub fn via_post_send(nic: &vipl::Nic, vi: vipl::ViHandle, descriptor: u64, memory: vipl::MemHandle) {
    assert!(nic.post_send(vi, descriptor, memory).is_ok());
}

#[inline(never)]
pub fn via_post_recv(nic: &vipl::Nic, vi: vipl::ViHandle, descriptor: u64, memory: vipl::MemHandle) {
    assert!(nic.post_recv(vi, descriptor, memory).is_ok());
}

/// Takes a descriptor; returns whether one was complete.
#[inline(never)]
pub fn via_send_done(nic: &vipl::Nic, vi: vipl::ViHandle) -> bool {
    let done = nic.send_done(vi);
    black_box(&done).is_ok()
}

/// As [`via_send_done`], from the receive queue.
#[inline(never)]
pub fn via_recv_done(nic: &vipl::Nic, vi: vipl::ViHandle) -> bool {
    let done = nic.recv_done(vi);
    black_box(&done).is_ok()
}

/// Takes an entry of a completion queue; returns whether there was one.
#[inline(never)]
pub fn via_cq_done(nic: &vipl::Nic, cq: vipl::CqHandle) -> bool {
    let entry = nic.cq_done(cq);
    black_box(&entry).is_ok()
}

/// The calls of the API for Rust programmers.
pub mod values {
    use rdma::{Completion, Endpoint, Queue, Region, RemoteMemory, Work};

    #[inline(never)]
    pub fn write(endpoint: &Endpoint, from: &Region, to: RemoteMemory, id: u64) {
        assert!(endpoint.post(Work::write(from.slice(..64), to).id(id)).is_ok());
    }

    #[inline(never)]
    pub fn write_batch(endpoint: &Endpoint, from: &Region, to: RemoteMemory, count: u64) {
        let slice = from.slice(..64);
        let posted =
            endpoint.batch(|batch| (0..count).try_for_each(|id| batch.post(Work::write(slice, to).id(id))));
        assert!(posted.is_ok());
    }

    #[inline(never)]
    pub fn receive(endpoint: &Endpoint, into: &Region, id: u64) {
        assert!(endpoint.post_receive(into.slice(..64), id).is_ok());
    }

    #[inline(never)]
    pub fn poll(queue: &Queue, into: &mut [Completion]) -> usize {
        queue.poll(into)
    }
}

/// The calls of libibverbs, as the slots of a context have them.
pub mod c {
    #![expect(unsafe_code, reason = "the calls are C's")]

    use std::ptr;

    use verbs::abi::{Cq, Qp, RecvWr, SendWr, Wc};
    use verbs::{cq, post};

    #[inline(never)]
    pub fn post_send(qp: *mut Qp, request: &mut SendWr) {
        let mut bad = ptr::null_mut();
        // SAFETY: the request is whole, and the queue pair is there.
        assert_eq!(unsafe { post::post_send(qp, request, &mut bad) }, 0);
    }

    #[inline(never)]
    pub fn post_recv(qp: *mut Qp, request: &mut RecvWr) {
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { post::post_recv(qp, request, &mut bad) }, 0);
    }

    #[inline(never)]
    pub fn poll(cq: *mut Cq, into: &mut Wc) -> i32 {
        // SAFETY: there is room for one, and the queue is there.
        unsafe { cq::poll_cq(cq, 1, into) }
    }
}
