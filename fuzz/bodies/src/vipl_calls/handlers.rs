//! Handlers that call back in, and the calls that register them.

use vipl::*;

use super::ViplConsumer;
use crate::Input;

/// What a handler does, by a byte of the input.
pub(super) fn react(what: u8, nic: &Nic, vi: ViHandle, cq: CqHandle) {
    match what % 16 {
        0 => drop(nic.disconnect(vi)),
        1 => drop(nic.destroy_vi(vi)),
        2 => drop(nic.destroy_cq(cq)),
        3 => drop(nic.close_nic()),
        4 => drop(nic.send_wait(vi, 2)),
        5 => drop(nic.cq_wait(cq, 2)),
        6 => drop(nic.error_callback(0, None)),
        // Each one counts down.
        7 => drop(nic.recv_notify(vi, 1, of_descriptor(what / 16, cq))),
        8 => drop(nic.send_notify(vi, 1, of_descriptor(what / 16, cq))),
        9 => drop(nic.cq_notify(cq, 1, of_entry(what / 16, cq))),
        10 => drop(nic.query_vi(vi)),
        11 => {
            while nic.recv_done(vi).is_ok() || nic.send_done(vi).is_ok() {}
            let _ = nic.disconnect(vi);
            while nic.recv_done(vi).is_ok() || nic.send_done(vi).is_ok() {}
            let _ = nic.destroy_vi(vi);
        }
        _ => {}
    }
}

fn of_descriptor(what: u8, cq: CqHandle) -> DescriptorHandler {
    Box::new(move |_, nic, vi, _| react(what, nic, vi, cq))
}

fn of_entry(what: u8, cq: CqHandle) -> CqHandler {
    Box::new(move |_, nic, vi, receive| {
        let _ = if receive { nic.recv_done(vi) } else { nic.send_done(vi) };
        react(what, nic, vi, cq);
    })
}

impl ViplConsumer {
    pub(super) fn notify(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let (nic, vi) = self.vi(input);
        let (of_cq, cq) = self.cq(input);
        let _ = match input.below(4) {
            0 => nic.send_notify(vi, 1, of_descriptor(what, cq)),
            1 => nic.recv_notify(vi, 2, of_descriptor(what, cq)),
            2 => of_cq.cq_notify(cq, 3, of_entry(what, cq)),
            _ => {
                let own = nic.clone();
                // The NIC drops it when it is closed.
                let handler = move |_, error: &ErrorDescriptor| react(what, &own, error.vi, cq);
                nic.error_callback(4, input.rarely(2).then(|| Box::new(handler) as ErrorHandler))
            }
        };
    }
}
