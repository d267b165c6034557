//! What the target's thread looks at now and then: hosts and disks that are silent, and events that
//! hosts wait to hear of.

use alloc::vec::Vec;

use super::controller::Timer;
use super::crew::MANAGER;
use super::identity::{ControllerId, Kind};
use super::namespace::Presence;
use super::server::Target;
use super::statistics::Counter;

impl Target {
    /// Looks at the timers, and at what hosts wait to hear.
    pub(super) fn tick(&mut self, now: u64) {
        self.report_events();
        self.look_at_gates(now);
        self.report_notices();
        let mut late: heapless::Vec<u32, 16> = heapless::Vec::new();
        let response = self.config.response_timeout.as_nanos() as u64;
        self.look_at_firsts(now, response);
        for (number, queue) in self.queues.iter_mut() {
            let is_stuck = queue.stuck_for(now) > response;
            let is_late = queue.controller().is_none() && now > queue.deadline;
            if !queue.is_ending && (is_stuck || is_late) {
                // Those for which there is no place here come in the next tick.
                let _ = late.push(number);
            }
        }
        for number in late {
            self.said_refused.say(
                now,
                format_args!("a host that takes no responses, or sends no Connect, loses its connection"),
            );
            self.statistics().count(Counter::Broken);
            self.break_queue(number);
        }
        let mut ended: heapless::Vec<(Kind, ControllerId, Timer), 16> = heapless::Vec::new();
        // The manager's timers run, not those of a worker's copies.
        let is_manager = self.crew.is_manager();
        for controllers in
            [&mut self.subsystem.controllers, &mut self.discovery].into_iter().filter(|_| is_manager)
        {
            for (id, controller) in controllers.iter_mut() {
                // A target that stops does not listen, so it cannot tell who is silent. Those for
                // which there is no place here come in the next tick.
                if self.is_stopping || ended.is_full() {
                    break;
                }
                match controller.look_at_timer(now) {
                    Timer::Runs => {}
                    timer => _ = ended.push((controller.kind, id, timer)),
                }
            }
        }
        for (kind, id, timer) in ended {
            self.timer_ended(kind, id, timer, now);
        }
        let patience = self.config.disk_timeout.as_nanos() as u64;
        for place in 0..self.subsystem.namespaces.len() {
            let Some(namespace) = self.subsystem.namespaces.get_mut(place) else { continue };
            let silence = namespace.silent_for(now);
            match namespace.presence {
                Presence::Serving if silence > patience => self.give_up(place),
                Presence::Silent if namespace.on_disk == 0 && is_manager => self.serves_again(place),
                _ => {}
            }
        }
        self.look_at_leftovers(now, patience);
        self.look_at_state_disk(now, patience);
        self.look_at_changes(now);
    }

    /// Gives up a disk that does not answer. Its requests may still be carried out, so hosts get no
    /// response to their commands, but lose their connections, and find the namespace not ready
    /// when they come again, until the disk has ended the requests. So no write that was given up
    /// follows a later one, and no Flush that was given up succeeds.
    pub(super) fn give_up(&mut self, place: usize) {
        if self.subsystem.namespaces.get(place).is_none_or(|namespace| !namespace.serves()) {
            return;
        }
        if self.crew.is_manager() {
            log::error!("the disk of namespace {} does not answer", place + 1);
            self.crew.send_all(move |worker| worker.give_up_here(place));
        } else {
            self.crew.send(MANAGER, move |manager| manager.give_up(place));
        }
        self.give_up_here(place);
    }

    /// The same for this thread.
    fn give_up_here(&mut self, place: usize) {
        if self.subsystem.namespaces.get(place).is_none_or(|namespace| !namespace.serves()) {
            return;
        }
        self.subsystem.becomes(place, Presence::Silent);
        let queues: Vec<u32> =
            self.commands.on_disk(place).filter_map(|index| self.commands[index].queue).collect();
        for queue in queues {
            self.break_queue(queue);
        }
        // Resets and commands that waited for this disk need not wait any more.
        (self.earlier_ended, self.may_settle) = (true, true);
    }

    /// A disk that was given up has ended all requests of this thread.
    fn serves_again(&mut self, place: usize) {
        let has_ended = move |worker: &mut Target| {
            worker.subsystem.namespaces.get(place).is_none_or(|namespace| namespace.on_disk == 0)
        };
        // One that has not heard that the disk was given up may still submit a request; its message
        // is before this one.
        if !self.everywhere(has_ended).iter().all(|&has_ended| has_ended) {
            return;
        }
        // It may have come meanwhile that a worker, too, had given the disk up before.
        self.take_messages();
        if self.subsystem.namespaces.get(place).is_none_or(|one| one.presence != Presence::Silent) {
            return;
        }
        log::warn!("the disk of namespace {} answers again", place + 1);
        self.everywhere(move |worker| {
            if worker.subsystem.namespaces.get(place).is_some_and(|one| one.presence == Presence::Silent) {
                worker.subsystem.becomes(place, Presence::Serving);
            }
        });
        self.subsystem.becomes(place, Presence::Serving);
    }

    /// A disk is gone.
    pub(super) fn lose(&mut self, place: usize) {
        if self.subsystem.namespaces.get(place).is_none_or(|one| one.presence == Presence::Gone) {
            return;
        }
        self.subsystem.lose(place);
        // The manager tells all, this thread as well.
        match self.crew.is_manager() {
            true => self.crew.send_all(move |worker| worker.lose(place)),
            false => _ = self.crew.send(MANAGER, move |manager| manager.lose(place)),
        }
    }

    /// A controller's timer has ended. Ends the controller if no thread had a command while it ran.
    fn timer_ended(&mut self, kind: Kind, id: ControllerId, timer: Timer, now: u64) {
        // The others are asked in any case: what they had before this moment counts for this timer,
        // and not for the next one.
        let elsewhere = kind == Kind::Io && self.has_traffic_elsewhere(id);
        if timer == Timer::EndedAfterTraffic || elsewhere {
            if let Some(controller) = self.controller(id, kind) {
                controller.hear(now);
            }
            return;
        }
        let Some(controller) = self.controller(id, kind) else { return };
        controller.fail();
        // Once is enough: the queues take a while to end.
        controller.hear(now);
        log::info!("controller {}: {} was silent for too long", id.0, controller.host.nqn);
        self.statistics().count(Counter::Expired);
        self.break_controller(id, kind);
    }
}
