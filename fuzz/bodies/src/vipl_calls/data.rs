//! Descriptors: writing, posting, taking, waiting for them.

use vipl::*;
use zerocopy::IntoBytes;

use super::{BUFFER, STEP, ViplConsumer, size, timeout};
use crate::Input;
use crate::descriptor::operation;

impl ViplConsumer {
    /// An address and a handle for a segment.
    fn place(&self, input: &mut Input<'_>) -> (u64, u32) {
        let (_, address, handle) = self.memory(input);
        let address = match input.below(8) {
            7 => address.wrapping_add(input.number()),
            // Also where descriptors are, so that data lands in them.
            6 => address.wrapping_add((STEP * input.below(8)) as u64),
            _ => address.wrapping_add((BUFFER / 2 + 8 * input.below(256)) as u64),
        };
        (address, handle.as_raw())
    }

    /// Writes a descriptor into a buffer; returns its address.
    fn descriptor(&self, input: &mut Input<'_>) -> (u64, usize) {
        let number = input.below(2);
        let (buffer, at) = (&self.buffers[number], STEP * input.below(8));
        let (operation, control) = operation(input);
        let mut bytes = Vec::new();
        let mut segments = 0;
        if operation.intersects(Control::RDMA_WRITE | Control::RDMA_READ) && !input.rarely(16) {
            let (address, handle) = self.place(input);
            bytes.extend_from_slice(AddressSegment { address, handle, reserved: 0 }.as_bytes());
            segments += 1;
        }
        let mut total = 0_u32;
        let count = if input.rarely(16) { input.below(12) } else { input.below(3) };
        for _ in 0..count {
            let (address, handle) = self.place(input);
            let length = size(input, 200) as u32;
            total = total.wrapping_add(length);
            bytes.extend_from_slice(DataSegment { address, handle, length }.as_bytes());
            segments += 1;
        }
        let control = ControlSegment {
            segments: if input.rarely(16) { input.number() as u16 } else { segments },
            control: control.bits(),
            reserved: u32::from(input.rarely(32)),
            immediate: 0x1234_5678,
            length: if input.rarely(8) { input.number() as u32 } else { total },
            ..ControlSegment::default()
        };
        buffer.write(at, control.as_bytes()).expect("within the buffer");
        buffer.write(at + CONTROL_LEN, &bytes).expect("within the buffer");
        ((buffer.addr() + at) as u64, number)
    }

    pub(super) fn post(&mut self, input: &mut Input<'_>) {
        let (nic, vi) = self.vi(input);
        let (address, number) = self.descriptor(input);
        let own = self.pools.memory.get(number).map_or(0, |(_, _, handle)| *handle);
        let (address, memory) = match input.below(16) {
            12 => (address, self.memory(input).2),
            13 => {
                let (_, address, memory) = self.memory(input);
                (address, memory)
            }
            14 => (address + 8 * input.below(8) as u64, MemHandle::from_raw(own)),
            15 => (input.word(), MemHandle::from_raw(own)),
            _ => (address, MemHandle::from_raw(own)),
        };
        let _ = match input.below(2) {
            0 => nic.post_send(vi, address, memory),
            _ => nic.post_recv(vi, address, memory),
        };
    }

    pub(super) fn reap(&mut self, input: &mut Input<'_>) {
        let (what, timeout) = (input.below(16), timeout(input));
        let (nic, vi) = self.vi(input);
        let (of_cq, cq) = self.cq(input);
        match what {
            0..3 => drop(nic.send_done(vi)),
            3..6 => drop(nic.recv_done(vi)),
            6..8 => drop(of_cq.cq_done(cq)),
            8 => drop(nic.send_wait(vi, timeout)),
            9 => drop(nic.recv_wait(vi, timeout)),
            10 => drop(of_cq.cq_wait(cq, timeout)),
            11 => self.spawn_some(move || nic.send_wait(vi, INFINITE)),
            12 => self.spawn_some(move || nic.recv_wait(vi, INFINITE)),
            13 => self.spawn_some(move || of_cq.cq_wait(cq, INFINITE)),
            _ => self.rewrite(input),
        }
    }

    /// Overwrites a part of a descriptor, posted or not.
    fn rewrite(&self, input: &mut Input<'_>) {
        let at = STEP * input.below(8) + input.below(96);
        let (number, len) = (input.below(2), 1 + input.below(32));
        self.buffers[number].write(at, input.bytes(len)).expect("within the buffer");
    }
}
