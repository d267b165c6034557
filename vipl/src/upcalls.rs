//! The agent's upcalls to a NIC. The agent's dispatcher thread makes them one at a time, and holds
//! no lock meanwhile. No handler runs in it.

use kernel_agent::{AsyncEvent, CmEvent, Death, Upcalls, ViError, ViSide};

use crate::handle::{CqHandle, ViHandle};
use crate::nic::Core;
use crate::vi::connect::Which;

impl Upcalls for Core {
    fn completion(&self, cq_context: u64) {
        if let Some(cq) = self.cqs.get(CqHandle::from_raw(cq_context)) {
            cq.announced(self);
        }
    }

    fn vi_completion(&self, context: u64, side: ViSide) {
        if let Some(vi) = self.vis.get(ViHandle::from_raw(context)) {
            self.completed(&vi, side as usize);
        }
    }

    fn asynchronous(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::Vi { context, number, error, operation, address } => {
                let Some(vi) = self.vis.get(ViHandle::from_raw(context)) else { return };
                if error == ViError::ConnectionLost {
                    return self.lost(&vi, Which::Number(number));
                }
                self.vi_error(&vi, (number, error.is_of_post()), error.into(), operation.into(), address);
            }
            AsyncEvent::Port { up: false } => self.report_nic(),
            AsyncEvent::Port { up: true } => {}
            // A NIC has no queue pairs, and no completion or receive queues of theirs.
            AsyncEvent::Qp { .. }
            | AsyncEvent::StreamEnded { .. }
            | AsyncEvent::Cq { .. }
            | AsyncEvent::Srq { .. } => {}
        }
    }

    fn connection(&self, event: CmEvent<'_>) {
        self.connection_event(&event);
    }

    fn catastrophic(&self, _death: Death) {
        self.disable();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use core::time::Duration;
    use std::sync::mpsc::channel;

    use host::Machine;
    use kernel_agent::{Agent, Config};

    use super::*;
    use crate::{
        CqHandle, Error, ErrorCode, ErrorDescriptor, Provider, ReliabilityLevel, ViAttributes, ViState,
    };

    const OF_CONNECTIONS: [ViError; 5] = [
        ViError::ReceiveQueueEmpty,
        ViError::WriteProtection,
        ViError::WriteData,
        ViError::WriteAbort,
        ViError::ReadProtection,
    ];

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn errors_of_a_former_connection_are_not_of_the_next_one_and_those_of_posts_are() {
        let machine = Machine::new(1);
        let interfaces = Arc::new(rdma::Interfaces::new(machine.platform()));
        let device = machine.transports().remove(0);
        let agent = Agent::open(machine.platform(), device, 0, Config::default()).unwrap();
        interfaces.add("nic", agent.clone(), rdma::Limits::NONE, rdma::Endpoints::QueuePairs).unwrap();
        let nic = Provider::new(&interfaces).open_nic("nic").unwrap();
        let (sender, errors) = channel();
        let handler = move |_, error: &ErrorDescriptor| sender.send(error.error_code).unwrap();
        nic.error_callback(0, Some(Box::new(handler))).unwrap();
        let ptag = nic.create_ptag().unwrap();
        let level = ReliabilityLevel::Reception;
        let attributes = ViAttributes { reliability_level: level, ..ViAttributes::new(ptag) };
        let vi = nic.create_vi(&attributes, CqHandle::NULL, CqHandle::NULL).unwrap();
        let report = |number, error| {
            let event = AsyncEvent::Vi { context: vi.as_raw(), number, error, operation: 0, address: 0 };
            nic.core().asynchronous(event);
        };
        let former = nic.vi_qpn(vi).unwrap();
        nic.disconnect(vi).unwrap();
        assert_ne!(nic.vi_qpn(vi).unwrap(), former);
        // Nobody serves there, so an attempt is under way until its time is over.
        let (own, nobody) = (nic.address(b"me").unwrap(), nic.address(b"nobody").unwrap());
        let attempt = |timeout| nic.connect_request(vi, &own, &nobody, timeout);
        let patience = Duration::from_secs(20);
        OF_CONNECTIONS.iter().for_each(|&error| report(former, error));
        // Those of posts go to the handler: the next connection has nothing to do with them.
        report(former, ViError::PostDescriptor);
        assert_eq!(errors.recv_timeout(patience), Ok(ErrorCode::PostDesc));
        assert_eq!(attempt(1), Err(Error::Timeout), "none was kept while it was idle");
        let now = nic.vi_qpn(vi).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| attempt(u32::MAX));
            while nic.query_vi(vi).unwrap().0 != ViState::ConnectPending {
                std::thread::yield_now();
            }
            OF_CONNECTIONS.iter().for_each(|&error| report(former, error));
            report(former, ViError::PostDescriptor);
            report(former, ViError::CompletionProtection);
            report(now, ViError::ReceiveQueueEmpty);
            let wanted = [ErrorCode::PostDesc, ErrorCode::CompProt, ErrorCode::RecvqEmpty];
            let heard = wanted.map(|_| errors.recv_timeout(patience).expect("an error"));
            nic.disconnect(vi).unwrap();
            assert_eq!(heard, wanted);
        });
        OF_CONNECTIONS.iter().for_each(|&error| report(nic.vi_qpn(vi).unwrap(), error));
        assert_eq!(attempt(1), Err(Error::ErrorResource), "one was kept while it was idle");
        nic.close_nic().unwrap();
        agent.close();
    }
}
