//! A queue of a host: its connection, its commands, and their memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use nvme::command::Command;
use nvme::completion::Completion;
use platform::Platform;
use privileged_api::{
    DtoFlags, EpAttributes, EpFlags, EpHandle, EvdHandle, Ia, LmrFlags, LmrHandle, LmrTriplet, PzHandle,
    RcAttributes,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::Error;
use crate::error::Calling;
use crate::mapped::Mapped;

const COMMAND: usize = size_of::<Command>();
const RESPONSE: usize = size_of::<Completion>();
/// RDMA Reads by the target that may be outstanding.
const READS: u32 = 16;

/// What a slot waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// It is free.
    Free,
    /// The response, and the completion of the Send.
    Both,
    /// The response; the Send is complete.
    Response,
    /// The completion of the Send; the response is here, with this status and result.
    Send,
}

/// A command's slot; its number is the command's identifier.
pub(super) struct Slot {
    pub(super) waits: Waits,
    /// The consumer's name for the request.
    pub(super) token: u64,
    /// The region through which the target reaches the data; null for none.
    pub(super) lmr: LmrHandle,
    /// The region is linked.
    pub(super) is_linked: bool,
    /// The response, once it is here.
    pub(super) response: Completion,
}

/// A queue.
pub(super) struct HostQueue {
    pub(super) ep: EpHandle,
    pub(super) slots: Vec<Slot>,
    free: Vec<u16>,
    commands: Mapped,
    responses: Mapped,
}

impl HostQueue {
    /// A queue of so many entries that is not connected yet, with a Receive for each response.
    pub(super) fn new(
        ia: &Ia,
        platform: &Arc<dyn Platform>,
        pz: PzHandle,
        requests: EvdHandle,
        receives: EvdHandle,
        messages: EvdHandle,
        entries: u16,
    ) -> Result<HostQueue, Error> {
        let count = usize::from(entries);
        let attributes = EpAttributes {
            max_dto_payload_size: 1 << 20,
            max_request_dtos: 4 * count,
            max_recv_dtos: count,
            max_send_segments: 2,
            max_recv_segments: 1,
            rc: RcAttributes {
                rdma_read_enable: true,
                rdma_write_enable: true,
                rdma_read_ird: READS,
                rdma_read_ord: 0,
                ..RcAttributes::default()
            },
            priv_ops_enable: true,
            ..EpAttributes::default()
        };
        let commands = Mapped::new(ia, platform, count * COMMAND)?;
        let responses = match Mapped::new(ia, platform, count * RESPONSE) {
            Ok(responses) => responses,
            Err(error) => {
                commands.free(ia);
                return Err(error);
            }
        };
        let ep = ia.ep_rc_create(pz, requests, receives, messages, EpFlags::empty(), &attributes);
        let mut queue = HostQueue {
            ep: EpHandle::NULL,
            slots: Vec::new(),
            free: (0..entries).rev().collect(),
            commands,
            responses,
        };
        let made = ep.calling("it_ep_rc_create").and_then(|ep| {
            queue.ep = ep;
            for place in 0..entries {
                let lmr = ia.lmr_create_unlinked(pz, 1, LmrFlags::NON_SHAREABLE, 0);
                queue.slots.push(Slot {
                    waits: Waits::Free,
                    token: 0,
                    lmr: lmr.calling("it_lmr_create_unlinked")?,
                    is_linked: false,
                    response: Completion::new_zeroed(),
                });
                queue.post_receive(ia, place).calling("it_post_recv")?;
            }
            Ok(())
        });
        match made {
            Ok(()) => Ok(queue),
            Err(error) => {
                queue.free(ia);
                Err(error)
            }
        }
    }

    /// The entries.
    pub(super) fn size(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot. One always stays free: a full submission queue has one entry fewer.
    pub(super) fn take(&mut self, token: u64) -> Option<u16> {
        if self.free.len() < 2 {
            return None;
        }
        let number = self.free.pop()?;
        let slot = &mut self.slots[usize::from(number)];
        (slot.waits, slot.token) = (Waits::Both, token);
        Some(number)
    }

    /// Gives a slot back.
    pub(super) fn give(&mut self, number: u16) {
        self.slots[usize::from(number)].waits = Waits::Free;
        self.free.push(number);
    }

    /// Writes a command into its capsule, and returns the capsule as a request names it.
    pub(super) fn write(&self, number: u16, command: &Command) -> LmrTriplet {
        let at = usize::from(number) * COMMAND;
        // The capsule lies in the memory.
        let _ = self.commands.memory.write(at, command.as_bytes());
        self.commands.segment(at, COMMAND)
    }

    /// Posts the Receive of a place.
    pub(super) fn post_receive(&self, ia: &Ia, place: u16) -> privileged_api::Result<()> {
        let segment = self.responses.segment(usize::from(place) * RESPONSE, RESPONSE);
        ia.post_recv(self.ep, &[segment], u64::from(place), DtoFlags::COMPLETION)
    }

    /// The response at a place.
    pub(super) fn response(&self, place: u16) -> Completion {
        let mut response = Completion::new_zeroed();
        // The place lies in the memory.
        let _ = self.responses.memory.read(usize::from(place) * RESPONSE, response.as_mut_bytes());
        response
    }

    /// Frees all that the queue has.
    pub(super) fn free(self, ia: &Ia) {
        // A call fails only if the IA is dead. Freeing the endpoint ends the connection.
        if !self.ep.is_null() {
            let _ = ia.ep_free(self.ep);
        }
        for slot in &self.slots {
            let _ = ia.lmr_free(slot.lmr);
        }
        self.commands.free(ia);
        self.responses.free(ia);
    }
}
