//! How an agent is closed: whatever the device and upcalls do, within a bounded time.

use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_hal::Death;

use super::Agent;

/// How long [`Agent::close`] waits for an upcall to return.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

impl Agent {
    /// Ends the connections, the objects, the device (by a reset) and the dispatcher thread.
    /// Clients that are still attached are told so, in this thread
    /// ([`Upcalls::catastrophic`](crate::Upcalls::catastrophic)), and find the agent dead. Returns
    /// within a bounded time even if the device is dead. Must not be called in an upcall.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.stopping.store(true, Ordering::Release);
        self.nic.signal().raise();
        let deadline = self.platform.now() + CLOSE_DEADLINE;
        while self.finished.value() == 0 && !self.in_dispatcher() {
            if self.platform.now() >= deadline {
                log::error!("agent {}: an upcall has not returned in time", self.number);
                break;
            }
            self.finished.wait(0, Some(deadline));
        }
        // Another agent may open the NIC as soon as it is reset. So before that, nothing may be
        // left that writes to its registers: no call with a command under way, no poster, no
        // reaper.
        self.nic.retire();
        let own = self.own.lock().take();
        self.for_each_client(|client| client.end_calls());
        own.iter().for_each(|own| own.end_calls());
        self.device_died(self.death().unwrap_or(Death::Closed));
        let clients = core::mem::take(&mut *self.clients.lock());
        for cq in self.cqs.all() {
            cq.leave();
        }
        for cq in self.vi_cqs.all() {
            cq.leave();
        }
        let confirmed = self.nic.close();
        if !confirmed {
            log::warn!(
                "agent {}: the device did not confirm its reset; {} buffers stay in quarantine",
                self.number,
                self.nic.quarantined()
            );
        }
        self.connections.clear();
        self.mpa.clear();
        // These and the agent refer to each other.
        let qp1 = self.connections.stop();
        for client in clients.iter().flatten().chain(&own) {
            client.drop_objects();
        }
        drop((qp1, own, clients));
        self.qps.clear();
        self.vis.clear();
        self.cqs.clear();
        self.vi_cqs.clear();
        self.srqs.clear();
        self.streams.clear();
    }
}
