//! The agent's upcalls to a NIC. The agent's dispatcher thread makes them one at a time, and holds
//! no lock meanwhile. No handler runs in it.

use kernel_agent::{AsyncEvent, CmEvent, Death, Upcalls, ViError, ViSide};

use crate::nic::Core;
use crate::vi::connect::Which;

impl Upcalls for Core {
    fn completion(&self, cq_context: u64) {
        if let Some(cq) = self.cqs.get(cq_context) {
            cq.announced(self);
        }
    }

    fn vi_completion(&self, context: u64, side: ViSide) {
        if let Some(vi) = self.vis.get(context) {
            self.completed(&vi, side as usize);
        }
    }

    fn asynchronous(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::Vi { context, number, error, operation, address } => {
                let Some(vi) = self.vis.get(context) else { return };
                match error {
                    ViError::ConnectionLost => self.lost(&vi, Which::Number(number)),
                    error => self.vi_error(&vi, error.into(), operation.into(), address),
                }
            }
            AsyncEvent::Port { up: false } => self.report_nic(),
            AsyncEvent::Port { up: true } => {}
            // A NIC has no queue pairs, and no completion or receive queues of theirs.
            AsyncEvent::Qp { .. } | AsyncEvent::Cq { .. } | AsyncEvent::Srq { .. } => {}
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        self.connection_event(&event);
    }

    fn catastrophic(&self, _death: Death) {
        self.disable();
    }
}
