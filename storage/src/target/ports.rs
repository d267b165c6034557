//! The end of ports, in the target's thread.

use super::crew::MANAGER;
use super::server::Target;
use crate::Error;

impl Target {
    /// Ends the ports that cannot serve any more. Fails if none can.
    pub(super) fn look_at_ports(&mut self) -> Result<(), Error> {
        let mut left = Err(Error::DeviceDead);
        for number in 0..self.ports.len() {
            match self.ports[number].state() {
                Ok(()) => left = Ok(()),
                Err(why) => {
                    left = left.map_err(|_| why);
                    self.end_port(number, why);
                }
            }
        }
        left
    }

    /// Ends a port, unless it has ended: all its queues.
    pub(super) fn end_port(&mut self, number: usize, why: Error) {
        let port = &mut self.ports[number];
        if port.ended.is_some() {
            return;
        }
        (port.ended, port.listener) = (Some(why), None);
        // All threads have queues at it.
        match self.crew.is_manager() {
            true => {
                log::error!("port {} has ended: {why}", port.id);
                self.crew.send_all(move |worker| worker.end_port(number, why));
            }
            false => _ = self.crew.send(MANAGER, move |manager| manager.end_port(number, why)),
        }
        for queue in 0..self.config.queues as u32 {
            if self.queues.get(queue).is_some_and(|queue| queue.port == number) {
                self.ended(queue);
            }
        }
        self.discovery_has_changed();
    }
}
