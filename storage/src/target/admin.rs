//! Admin commands, and the commands of fabrics on an admin queue.

use core::time::Duration;

use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::fabrics::{Cc, Property, PropertyGet, PropertySet, VERSION, fctype};
use nvme::feature::{self, GetFeatures, Select, SetFeatures};
use nvme::identify::{self, Identify, cns};
use nvme::log::{self, GetLogPage};
use nvme::status::Status;
use platform::planted::{Bug, planted};

use super::commands::{Answer, Index};
use super::config::{MOST_NAMESPACES, commands_of_queue};
use super::controller::{Change, Controller};
use super::identity::{ControllerId, Kind};
use super::pool::{LONGEST, SMALL};
use super::queue::Role;
use super::server::Target;
use super::task::{Reply, Task};

/// Bytes of a host identifier.
const HOST_ID: usize = 16;
/// The result of an Abort that aborted nothing.
const NOT_ABORTED: u64 = 1;

impl Target {
    /// A controller of either kind.
    pub(super) fn controller(&mut self, id: ControllerId, kind: Kind) -> Option<&mut Controller> {
        match kind {
            Kind::Io => self.subsystem.controllers.get(id),
            Kind::Discovery => self.discovery.get(id),
        }
    }

    /// What a command of an admin queue asks for, and how long its data have to be; or its answer.
    pub(super) fn admin(
        &mut self,
        id: ControllerId,
        kind: Kind,
        index: Index,
        command: &Command,
    ) -> Result<(Task, usize), Answer> {
        let now = self.now();
        let entries = self.config.depth;
        let disk_timeout = self.config.disk_timeout;
        let Some(controller) = self.controller(id, kind) else {
            return Err((Status::INTERNAL_ERROR, 0));
        };
        controller.has_traffic = true;
        if command.opcode == opcode::FABRICS {
            return match command.fctype() {
                fctype::PROPERTY_GET => {
                    Err(property(controller, PropertyGet::of(command), entries, disk_timeout))
                }
                fctype::PROPERTY_SET => {
                    let (answer, change) = set_property(controller, PropertySet::of(command));
                    controller.hear(now);
                    self.changed(id, kind, change);
                    Err(answer)
                }
                // A queue is connected once.
                fctype::CONNECT => Err((Status::SEQUENCE_ERROR.dnr(), 0)),
                _ => Err((Status::INVALID_OPCODE.dnr(), 0)),
            };
        }
        if command.opcode == opcode::admin::KEEP_ALIVE {
            if !controller.keeps_alive() && kind == Kind::Io {
                self.crew.send_all(move |worker| {
                    if let Some(copy) = worker.subsystem.controllers.get(id) {
                        copy.hear_keep_alive(now);
                    }
                });
            }
            if let Some(controller) = self.controller(id, kind) {
                controller.hear_keep_alive(now);
            }
            return Err((Status::SUCCESS, 0));
        }
        if !controller.is_enabled() {
            return Err((Status::SEQUENCE_ERROR.dnr(), 0));
        }
        match command.opcode {
            opcode::admin::IDENTIFY => self.identify(id, kind, command),
            opcode::admin::GET_LOG_PAGE => self.get_log_page(id, kind, &GetLogPage::of(command)),
            opcode::admin::ASYNC_EVENT_REQUEST => match controller.wait_for_event(index) {
                Ok(()) => {
                    self.commands[index].stage = super::commands::Stage::Event;
                    Ok((Task::Held, 0))
                }
                Err(status) => Err((status, 0)),
            },
            opcode::admin::SET_FEATURES => {
                let arguments = SetFeatures::of(command);
                // Their number is settled before the first one.
                if arguments.fid == feature::id::NUMBER_OF_QUEUES && self.has_io_queues(id) {
                    return Err((Status::SEQUENCE_ERROR.dnr(), 0));
                }
                if self.subsystem.has_reservations
                    && let Some(answer) = self.set_reservation_feature(id, kind, &arguments)
                {
                    return answer;
                }
                let most = self.grantable(id);
                match self.controller(id, kind) {
                    Some(controller) => Err(controller.set_feature(&arguments, most, now)),
                    None => Err((Status::INTERNAL_ERROR, 0)),
                }
            }
            opcode::admin::GET_FEATURES => {
                let arguments = GetFeatures::of(command).map_err(|status| (status.dnr(), 0))?;
                if self.subsystem.has_reservations
                    && let Some(answer) = self.reservation_feature(id, kind, &arguments)
                {
                    return Err(answer);
                }
                if arguments.fid == feature::id::HOST_IDENTIFIER && kind == Kind::Io {
                    return host_identifier(id, &arguments, command);
                }
                let has_cache = self.has_cache();
                match self.controller(id, kind) {
                    Some(controller) => {
                        Err(controller.get_feature(&arguments, command.cdw11.get(), has_cache))
                    }
                    None => Err((Status::INTERNAL_ERROR, 0)),
                }
            }
            opcode::admin::ABORT if kind == Kind::Io => {
                let (queue, command) = command.aborts();
                let is_aborted = self.abort(id, queue, command);
                Err((Status::SUCCESS, if is_aborted { 0 } else { NOT_ABORTED }))
            }
            _ => Err((Status::INVALID_OPCODE.dnr(), 0)),
        }
    }

    /// Begins what follows from a new configuration.
    fn changed(&mut self, id: ControllerId, kind: Kind, change: Change) {
        if change == Change::None {
            return;
        }
        if change == Change::Reset {
            let requests =
                self.controller(id, kind).map(|controller| core::mem::take(&mut controller.waiting));
            for index in requests.into_iter().flatten() {
                self.forget_event_request(index);
            }
            if kind == Kind::Io {
                if let Some(controller) = self.subsystem.controllers.get(id) {
                    controller.ana_changes = self.subsystem.ana[controller.port].changes();
                }
                self.break_io_queues(id);
            }
        }
        match kind {
            Kind::Io => self.may_settle = true,
            // It has nothing to do with disks.
            Kind::Discovery => {
                let now = self.clock;
                if let Some(controller) = self.discovery.get(id) {
                    controller.settle(false, false, now);
                }
            }
        }
    }

    /// Ends an Asynchronous Event Request without a response, as a reset does (base 7.3.2).
    fn forget_event_request(&mut self, index: Index) {
        let entry = &self.commands[index];
        let (identifier, is_duplicate) = (entry.command.cid.get(), entry.is_duplicate);
        if let Some(queue) = entry.queue.and_then(|number| self.queues.get(number)) {
            queue.end(identifier, is_duplicate);
            queue.advance();
        }
        self.finish(index);
    }

    /// The I/O queues that a controller may have: half of those that are left, so that the next
    /// host finds some, too. Those that others were granted and have not connected are not left.
    fn grantable(&mut self, id: ControllerId) -> u16 {
        let promised: usize = {
            let others = self.subsystem.controllers.iter_mut().filter(|(other, _)| *other != id);
            others.map(|(_, controller)| controller.not_connected()).sum()
        };
        let placed: usize = self.crew.placed.values().map(|placed| placed.entries).sum();
        let entries = self.commands.count() * self.crew.all.len();
        let entries = entries.saturating_sub(self.promised + placed + 2 * self.commands.orphans());
        let by_entries = entries / commands_of_queue(self.config.depth);
        let by_queues = self.config.queues.saturating_sub(self.count_of_queues());
        let left = by_entries.min(by_queues).saturating_sub(promised);
        // A host that is granted none cannot do anything. It may find room when it connects.
        left.div_ceil(2).clamp(1, usize::from(self.config.io_queues)) as u16
    }

    /// Whether a controller has I/O queues.
    fn has_io_queues(&self, id: ControllerId) -> bool {
        self.queues.iter().any(|(_, queue)| queue.role == Role::Io(id) && !queue.is_ending)
            || self.has_placed(id)
    }

    fn identify(&mut self, id: ControllerId, kind: Kind, command: &Command) -> Result<(Task, usize), Answer> {
        let arguments = Identify::of(command);
        let (nsid, has_command_set) = (arguments.nsid, Identify::command_set(command) == 0);
        let reply = match (arguments.cns, kind) {
            (cns::CONTROLLER, _) => Reply::Controller(id, kind),
            (cns::NAMESPACE, Kind::Io) => {
                if nsid == 0 || nsid as usize > MOST_NAMESPACES {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                // One that the host does not see looks like one that is inactive.
                let is_seen = self.seen_any(id, nsid).is_some() || planted(Bug::HiddenListed);
                Reply::Namespace(if is_seen { nsid } else { 0 })
            }
            (cns::ACTIVE_LIST, Kind::Io) => {
                if nsid >= nvme::NSID_ALL - 1 {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                Reply::Active(id, nsid)
            }
            // Of the command sets there is the NVM one.
            (cns::COMMAND_SET_CONTROLLER, Kind::Io) if has_command_set => Reply::NvmController,
            (cns::COMMAND_SETS, Kind::Io) => Reply::CommandSets,
            (cns::COMMAND_SET_ACTIVE_LIST, Kind::Io) if has_command_set => {
                if nsid >= nvme::NSID_ALL - 1 {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                Reply::Active(id, nsid)
            }
            (cns::COMMAND_SET_NAMESPACE, Kind::Io) if has_command_set => {
                if self.seen(id, nsid).is_none() {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                Reply::Nothing
            }
            (cns::COMMAND_SET_INDEPENDENT_NAMESPACE, Kind::Io) => {
                if self.seen_any(id, nsid).is_none() {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                Reply::IndependentNamespace(nsid)
            }
            (cns::NAMESPACE_DESCRIPTORS, Kind::Io) => {
                if self.seen(id, nsid).is_none() {
                    return Err((Status::INVALID_NAMESPACE.dnr(), 0));
                }
                Reply::Descriptors(nsid)
            }
            _ => return Err((Status::INVALID_FIELD.dnr(), 0)),
        };
        Ok((Task::Reply { reply, len: identify::LEN }, identify::LEN))
    }

    fn get_log_page(
        &mut self,
        id: ControllerId,
        kind: Kind,
        arguments: &GetLogPage,
    ) -> Result<(Task, usize), Answer> {
        let &GetLogPage { lid: page, lsp: specific, offset, nsid, .. } = arguments;
        self.has_log(kind, page, nsid).map_err(|status| (status, 0))?;
        if matches!(page, log::id::ERROR | log::id::SMART) {
            self.collect_errors(id);
        }
        if offset % 4 != 0 {
            return Err((Status::INVALID_FIELD.dnr(), 0));
        }
        let len = usize::try_from(arguments.bytes()).ok().filter(|&len| len <= LONGEST);
        let len = len.ok_or((Status::INVALID_FIELD.dnr(), 0))?;
        let size = self.log_size(id, kind, page, specific);
        if offset > size {
            return Err((Status::INVALID_FIELD.dnr(), 0));
        }
        let has_event = matches!(
            page,
            log::id::CHANGED_NAMESPACES
                | log::id::ANA
                | log::id::RESERVATION_NOTIFICATION
                | log::id::DISCOVERY
        );
        let clears = has_event && !arguments.rae;
        let reply = Reply::Log { controller: id, kind, page, specific, offset, clears };
        // What lies behind a page's end is undefined: it takes no memory beyond a chunk.
        let written = len.min(SMALL.max((size - offset) as usize));
        Ok((Task::Reply { reply, len: written }, len))
    }

    /// Completes the Asynchronous Event Requests of controllers that have something to report.
    pub(super) fn report_events(&mut self) {
        let mut due: heapless::Vec<(Index, Event), 16> = heapless::Vec::new();
        let controllers = self.subsystem.controllers.iter_mut().chain(self.discovery.iter_mut());
        for (_, controller) in controllers {
            // Those for which there is no place here come in the next tick.
            while !due.is_full()
                && let Some(event) = controller.due()
            {
                let _ = due.push(event);
            }
        }
        for (index, event) in due {
            self.respond(index, Status::SUCCESS, event.result().into());
        }
    }
}

/// A Get Features of the host identifier, which has data: of 128 bits, as fabrics demand.
fn host_identifier(
    id: ControllerId,
    arguments: &GetFeatures,
    command: &Command,
) -> Result<(Task, usize), Answer> {
    match arguments.select {
        // It is the one of the Connect command, and cannot be changed.
        Select::SupportedCapabilities => Err((Status::SUCCESS, 0)),
        Select::Current if command.cdw11.get() & 1 != 0 => {
            let len = HOST_ID;
            Ok((Task::Reply { reply: Reply::HostIdentifier(id), len }, len))
        }
        _ => Err((Status::INVALID_FIELD.dnr(), 0)),
    }
}

/// Carries out a Property Get.
fn property(controller: &Controller, command: &PropertyGet, entries: u16, disk_timeout: Duration) -> Answer {
    let Some(property) = Property::at(command.offset.get()) else {
        return (Status::INVALID_FIELD.dnr(), 0);
    };
    if command.size() != Some(property.size()) {
        return (Status::INVALID_FIELD.dnr(), 0);
    }
    let value = match property {
        Property::Cap => Controller::capabilities(entries, disk_timeout).0,
        Property::Vs => VERSION.into(),
        Property::Cc => controller.configuration().0.into(),
        Property::Csts => controller.status().0.into(),
        // Reads as 0 where there is no subsystem reset.
        Property::Nssr => 0,
    };
    (Status::SUCCESS, value)
}

/// Carries out a Property Set.
fn set_property(controller: &mut Controller, command: &PropertySet) -> (Answer, Change) {
    let is_configuration = Property::at(command.offset.get()) == Some(Property::Cc);
    if !is_configuration || command.size() != Some(Property::Cc.size()) {
        return ((Status::INVALID_FIELD.dnr(), 0), Change::None);
    }
    let change = controller.configure(Cc(command.value.get() as u32));
    ((Status::SUCCESS, 0), change)
}
