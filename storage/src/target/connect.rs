//! The Connect command, which gives a connection its place: the admin queue of a new controller, or
//! an I/O queue of one that exists (fabrics 3.3).

use nvme::command::{Command, opcode};
use nvme::fabrics::{
    CNTLID_DYNAMIC, CNTLID_STATIC, Connect, ConnectAttributes, ConnectData, fctype, invalid_parameter,
};
use nvme::nqn;
use nvme::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::commands::{Answer, Index};
use super::config::MOST_SUBSYSTEMS;
use super::connections::PATIENCE;
use super::controller::Controller;
use super::identity::{ControllerId, HostIdentity, HostNumber, Kind};
use super::placing::{Asked, Joining};
use super::queue::Role;
use super::server::Target;
use super::task::Task;

/// What the first command of a queue asks for: only Connect is allowed.
pub(super) fn first(command: &Command) -> Result<(Task, usize), Answer> {
    if command.opcode == opcode::FABRICS && command.fctype() == fctype::CONNECT {
        return Ok((Task::Connect, size_of::<ConnectData>()));
    }
    Err((Status::INVALID_OPCODE.dnr(), 0))
}

impl Target {
    /// Whether a Connect, whose data are in its buffer, has to wait for what its host has sent by
    /// earlier connections. Then it is fetched once more when that has ended.
    pub(super) fn connect_waits(&mut self, index: Index) -> bool {
        let mut data = ConnectData::new_zeroed();
        self.admin_pool_of(index).read(&self.commands[index].buffer, data.as_mut_bytes());
        let number = self.commands[index].queue;
        let Some(queue) = number.and_then(|number| self.queues.get(number)) else { return false };
        let begins = queue.id == 0 && queue.role == Role::New;
        let (Some(host), Some(name)) = (text(&data.hostnqn), text(&data.subnqn)) else { return false };
        let subsystem = self.subsystem.find(name);
        if !begins || !subsystem.is_some_and(|number| self.subsystem.allows(number, host)) {
            return false;
        }
        let waits = self.connects_later(index, HostNumber::of(host));
        let now = self.now();
        if let Some(queue) = number.and_then(|number| self.queues.get(number)) {
            // The disk's time limit bounds the wait.
            queue.deadline = if waits { u64::MAX } else { now + PATIENCE };
        }
        waits
    }

    /// Carries out a Connect, whose data are in its buffer, and answers it, or asks the manager.
    pub(super) fn connect(&mut self, index: Index) {
        match self.decide_connect(index) {
            Ok(Some((status, result))) => self.respond(index, status, result),
            Ok(None) => {}
            Err(answer) => {
                let (status, result) = self.refused_to_connect(answer);
                self.respond(index, status, result);
            }
        }
    }

    /// Counts a Connect that is refused.
    pub(super) fn refused_to_connect(&mut self, answer: Answer) -> Answer {
        self.unconnected.count(answer.0.code());
        answer
    }

    /// The answer to a Connect; `None` if the manager is asked for it.
    fn decide_connect(&mut self, index: Index) -> Result<Option<Answer>, Answer> {
        let mut data = ConnectData::new_zeroed();
        self.admin_pool_of(index).read(&self.commands[index].buffer, data.as_mut_bytes());
        let entry = &self.commands[index];
        let (command, number) = (entry.command, entry.queue);
        let Some(number) = number else { return Err((Status::INTERNAL_ERROR, 0)) };
        let Some(queue) = self.queues.get(number) else { return Err((Status::INTERNAL_ERROR, 0)) };
        let (id, size, is_new, port) = (queue.id, queue.size, queue.role == Role::New, queue.port);
        let connect = Connect::of(&command);
        let refused = |field| (Status::CONNECT_INVALID_PARAMETERS.dnr(), u64::from(field));
        // The host may have sent two before the first was carried out.
        if !is_new {
            return Err((Status::SEQUENCE_ERROR.dnr(), 0));
        }
        if connect.recfmt.get() != 0 {
            return Err((Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), 0));
        }
        if connect.qid.get() != id {
            return Err(refused(invalid_parameter::QID));
        }
        // The connection has room for so many commands.
        let entries = u32::from(connect.sqsize.get()) + 1;
        if entries < 2 || entries > u32::from(size) {
            return Err(refused(invalid_parameter::SQSIZE));
        }
        let Some(host) = text(&data.hostnqn) else { return Err(refused(invalid_parameter::HOSTNQN)) };
        let Ok(nqn) = heapless::String::try_from(host) else {
            return Err(refused(invalid_parameter::HOSTNQN));
        };
        let host = HostIdentity { id: data.hostid, nqn };
        let Some(name) = text(&data.subnqn) else { return Err(refused(invalid_parameter::SUBNQN)) };
        let (kind, subsystem) = match self.subsystem.find(name) {
            _ if name == nqn::DISCOVERY.as_str() => (Kind::Discovery, MOST_SUBSYSTEMS),
            Some(number) => (Kind::Io, number),
            None => return Err(refused(invalid_parameter::SUBNQN)),
        };
        if kind == Kind::Io && !self.subsystem.allows(subsystem, &host.nqn) {
            let now = self.clock;
            self.said_refused.say(now, format_args!("{} is not allowed", host.nqn));
            return Err((Status::CONNECT_INVALID_HOST.dnr(), u64::from(invalid_parameter::HOSTNQN)));
        }
        let name = host.nqn.clone();
        let joining = Joining {
            owner: HostNumber::of(&name),
            entries: entries as u16,
            has_flow_control: !connect.attributes().contains(ConnectAttributes::DISABLE_SQ_FLOW_CONTROL),
        };
        let controller = match (id, kind) {
            (0, _) => self.connect_admin(number, (kind, subsystem), host, &data, connect.kato.get())?,
            (_, Kind::Io) if !self.crew.is_manager() => {
                let controller = data.cntlid.get();
                let asked = Asked { host, id, port, subsystem, controller, joining };
                self.ask_to_join(number, index, asked);
                return Ok(None);
            }
            (_, Kind::Io) => self.connect_io(id, subsystem, &host, port, data.cntlid.get())?,
            (_, Kind::Discovery) => return Err(refused(invalid_parameter::QID)),
        };
        let role = if id == 0 { Role::Admin(controller, kind) } else { Role::Io(controller) };
        Ok(Some(self.joined(number, role, joining, &name)))
    }

    fn connect_admin(
        &mut self,
        number: u32,
        (kind, subsystem): (Kind, usize),
        host: HostIdentity,
        data: &ConnectData,
        keep_alive: u32,
    ) -> Result<ControllerId, Answer> {
        // Controllers are made for a host, so it cannot ask for a certain one.
        if ![CNTLID_DYNAMIC, CNTLID_STATIC].contains(&data.cntlid.get()) {
            let field = u64::from(invalid_parameter::CNTLID);
            return Err((Status::CONNECT_INVALID_PARAMETERS.dnr(), field));
        }
        let now = self.now();
        let Some(queue) = self.queues.get(number) else { return Err((Status::INTERNAL_ERROR, 0)) };
        let (by_ipv4, port) = (queue.address.is_ipv4(), queue.port);
        let mut controller = Controller::new(kind, subsystem, host, port, by_ipv4, now);
        controller.set_keep_alive(keep_alive, now);
        controller.ana_changes = self.subsystem.ana[port].changes();
        let name = controller.host.nqn.clone();
        if kind == Kind::Io {
            self.admit_host(&mut controller)?;
        }
        let controllers =
            if kind == Kind::Io { &mut self.subsystem.controllers } else { &mut self.discovery };
        let id = controllers.add(controller).map_err(|status| (status, 0))?;
        if kind == Kind::Discovery {
            let listed = self.listed(id);
            if let Some(controller) = self.discovery.get(id) {
                controller.listed = listed;
            }
        }
        if kind == Kind::Io {
            self.meet_host(&name);
            log::info!("controller {}: {name} has connected", id.0);
        }
        Ok(id)
    }

    pub(super) fn connect_io(
        &mut self,
        queue: u16,
        subsystem: usize,
        host: &HostIdentity,
        port: usize,
        id: u16,
    ) -> Result<ControllerId, Answer> {
        let refused = |field| (Status::CONNECT_INVALID_PARAMETERS.dnr(), u64::from(field));
        let id = ControllerId(id);
        let controller = self.subsystem.controllers.get(id).ok_or(refused(invalid_parameter::CNTLID))?;
        // All queues of a controller are at one port, and name its subsystem.
        if controller.host != *host || controller.port != port || controller.subsystem != subsystem {
            return Err(refused(invalid_parameter::CNTLID));
        }
        if !controller.is_enabled() {
            return Err((Status::SEQUENCE_ERROR.dnr(), 0));
        }
        if queue > controller.granted {
            return Err(refused(invalid_parameter::QID));
        }
        controller.connect(queue).map_err(|status| (status, 0))?;
        Ok(id)
    }
}

/// The text of a field that a NUL ends; `None` if it is empty, too long or no UTF-8. Hosts have
/// names that the specification would not allow.
fn text(field: &[u8; nqn::FIELD_LEN]) -> Option<&str> {
    let len = field.iter().position(|&byte| byte == 0)?;
    core::str::from_utf8(&field[..len]).ok().filter(|_| (1..=nqn::MAX_LEN).contains(&len))
}
