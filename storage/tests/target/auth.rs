//! Hosts that have to authenticate.

use std::time::Duration;

use nvme::Status;
use nvme::auth::hosts::Choice;
use nvme::auth::message::{Challenge, Negotiate, Reply, Success1};
use nvme::auth::{Digest, Group, Hash, Reason, Secret, Transaction};
use nvme::command::{Command, opcode};
use nvme::fabrics::{
    AUTHENTICATION_REQUIRED, AuthenticationCommand, CNTLID_DYNAMIC, Connect, Property, PropertyGet,
};
use nvme::feature::{GetFeatures, Select, SetFeatures, id as fid};
use nvme::identify::{Identify, cns};
use storage::initiator::{Authentication, Failure, Options};
use storage::target::{Config, Host, Visible};
use storage::testing::End;
use zerocopy::IntoBytes;

use crate::machine::{Machine, NQN, Running};
use crate::raw::{HOST, Queue, data};

const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str = "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

fn secret(text: &str) -> Secret {
    Secret::parse(text).expect("a secret")
}

/// A host that has to prove that it has a key, to a controller that can do so, too.
fn known(nqn: &str, key: &str) -> Host {
    Host { key: Some(secret(key)), controller_key: Some(secret(OTHER)), ..Host::new(nqn) }
}

fn own_name() -> String {
    Options::new([0, 0, 0, 0].into(), NQN).host
}

/// A target that knows our host and the one of [`Queue`] by a key.
fn target(machine: &Machine, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = machine.config(machine.ram_disks(&[1 << 20, 1 << 20]));
    config.hosts = vec![known(&own_name(), KEY), known(HOST, KEY)];
    change(&mut config);
    machine.target_with(config)
}

fn options(target: &Running, key: &str) -> Options {
    let authentication = Some(Authentication::new(secret(key)));
    Options { authentication, ..Options::new(target.address, NQN) }
}

#[test]
fn hosts_with_their_keys_read_and_write() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    let mut proofs = 0;
    for (group, controller_key) in
        [(Group::Null, None), (Group::Ffdhe2048, None), (Group::Ffdhe3072, Some(secret(OTHER)))]
    {
        let mut options = options(&target, KEY);
        options.io_queues = 2;
        if let Some(authentication) = &mut options.authentication {
            authentication.groups = Choice::new([group]).expect("one");
            authentication.controller_key = controller_key;
        }
        let mut host = machine.host_with(options).expect("a controller");
        let region = machine.region(&host, 8192);
        region.buffer().write(0, &[0x5a; 4096]).expect("inside");
        host.write(1, 0, 8, (&region, 0, 4096)).expect("a write");
        host.read(1, 0, 8, (&region, 4096, 4096)).expect("a read");
        let mut read = [0; 4096];
        region.buffer().read(4096, &mut read).expect("inside");
        assert_eq!(read, [0x5a; 4096]);
        drop(region);
        host.disconnect();
        // Each queue.
        proofs += 3;
        assert_eq!(target.control.statistics().authenticated, proofs);
    }
    assert_eq!(target.control.statistics().not_authenticated, 0);
    machine.stop(target);
}

#[test]
fn hosts_with_another_key_or_none_are_refused() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    let refused = machine.host_with(options(&target, OTHER)).err();
    assert_eq!(refused, Some(Failure::NotAuthenticated(Some(Reason::Failed))));
    let refused = machine.host_with(Options::new(target.address, NQN)).err();
    assert_eq!(refused, Some(Failure::NoKey));
    let stranger = Options { host: "nqn.2026-01.org.ferrovia:stranger".into(), ..options(&target, KEY) };
    let refused = machine.host_with(stranger).err();
    let status = Status::CONNECT_INVALID_HOST.dnr();
    assert_eq!(refused, Some(Failure::Command("Connect", status, 0x10200)));
    let mut other = options(&target, KEY);
    if let Some(authentication) = &mut other.authentication {
        authentication.controller_key = Some(secret(KEY));
    }
    assert_eq!(machine.host_with(other).err(), Some(Failure::ControllerNotAuthenticated));
    target.wait_for(|counted| counted.connections == 0 && counted.controllers == 0);
    assert_eq!(target.control.statistics().not_authenticated, 1, "the wrong key");
    machine.stop(target);
}

#[test]
fn nothing_passes_before_the_proof() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    let mut queue = Queue::open(&machine, &target, 0, 32);
    let response = queue.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    assert_eq!(response.status(), Status::SUCCESS);
    assert_ne!(response.result.get() & AUTHENTICATION_REQUIRED, 0);
    let page = queue.0.keyed(0, 4096);
    let required = Status::AUTH_REQUIRED.dnr();
    for command in [
        PropertyGet::new(Property::Csts).command(),
        Identify { cns: cns::CONTROLLER, cntid: 0, nsid: 0 }.command().with_sgl(page),
        Command::new(opcode::admin::KEEP_ALIVE),
        Command::new(opcode::admin::ASYNC_EVENT_REQUEST),
        Command::new(0xff),
    ] {
        assert_eq!(queue.status(command), required, "{command:?}");
    }
    // There is no message to receive before there was a proposal.
    let receive = AuthenticationCommand::receive(4096).command().with_sgl(page);
    assert_eq!(queue.status(receive), Status::SEQUENCE_ERROR.dnr());
    let none = queue.0.keyed(0, 0);
    for (len, sgl, status) in [
        (0, none, Status::INVALID_FIELD),
        (4097, queue.0.keyed(0, 4097), Status::INVALID_FIELD),
        (4096, queue.0.keyed(0, 4095), Status::DATA_SGL_LENGTH_INVALID),
    ] {
        for command in [AuthenticationCommand::send(len), AuthenticationCommand::receive(len)] {
            assert_eq!(queue.status(command.command().with_sgl(sgl)), status.dnr(), "{len}");
        }
    }
    let mut other = AuthenticationCommand::send(72).command().with_sgl(queue.0.keyed(0, 72));
    other.cdw10 = 0x0101_0100.into();
    assert_eq!(queue.status(other), Status::INVALID_FIELD.dnr(), "another protocol");
    drop(queue);
    machine.stop(target);
}

/// Sends a message; returns the status.
fn send(queue: &mut Queue, message: &[u8]) -> Status {
    queue.0.memory.write(0, message).expect("inside");
    let sgl = queue.0.keyed(0, message.len());
    queue.status(AuthenticationCommand::send(message.len() as u32).command().with_sgl(sgl))
}

fn receive(queue: &mut Queue) -> (Status, Vec<u8>) {
    let sgl = queue.0.keyed(0, 4096);
    let status = queue.status(AuthenticationCommand::receive(4096).command().with_sgl(sgl));
    let mut bytes = vec![0; 4096];
    queue.0.memory.read(0, &mut bytes).expect("inside");
    (status, bytes)
}

/// Proposes SHA-256 without an exchange, and returns the right reply.
fn propose(queue: &mut Queue, id: u16) -> Vec<u8> {
    let mut proposal = [0; Negotiate::LEN];
    Negotiate { id, hashes: &[1], groups: &[0] }.write(&mut proposal);
    assert_eq!(send(queue, &proposal), Status::SUCCESS);
    let (status, message) = receive(queue);
    assert_eq!(status, Status::SUCCESS);
    let asked = Challenge::parse(&message).expect("a challenge");
    let transaction = Transaction { hash: Hash::Sha256, id, concatenation: 0, host: HOST, subsystem: NQN };
    let challenge = Digest::new(asked.challenge);
    let response = transaction.of_host(&secret(KEY).key(HOST), &challenge, asked.sequence);
    let mut reply = vec![0; 16 + 64];
    Reply { id, response: response.bytes(), challenge: None, value: &[] }.write(&mut reply);
    reply
}

/// Authenticates the host.
fn prove(queue: &mut Queue, id: u16) {
    let reply = propose(queue, id);
    assert_eq!(send(queue, &reply), Status::SUCCESS);
    let (status, message) = receive(queue);
    assert_eq!(status, Status::SUCCESS);
    Success1::parse(&message, Hash::Sha256).expect("success");
}

/// An admin queue and an I/O queue whose host has authenticated.
fn controller(machine: &Machine, target: &Running) -> (Queue, Queue) {
    let mut admin = Queue::open(machine, target, 0, 32);
    let response = admin.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    assert_eq!(response.status(), Status::SUCCESS);
    prove(&mut admin, 1);
    admin.enable();
    let id = response.result.get() as u16;
    let mut io = Queue::open(machine, target, 1, 32);
    let response = io.connect(Connect::new(1, 31, 0), &data(id, NQN));
    assert_eq!(response.status(), Status::SUCCESS);
    assert_eq!(response.result.get(), u64::from(id) | AUTHENTICATION_REQUIRED);
    assert_eq!(io.status(Command::flush(1)), Status::AUTH_REQUIRED.dnr(), "each queue needs a proof");
    prove(&mut io, 2);
    (admin, io)
}

#[test]
fn commands_go_on_while_a_host_proves_again_who_it_is() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    let (mut admin, mut io) = controller(&machine, &target);
    let read = Command::blocks(opcode::io::READ, 1, 0, 8).with_sgl(io.0.keyed(8192, 4096));
    assert_eq!(io.status(read), Status::SUCCESS);
    for (id, queue) in [(3, &mut admin), (4, &mut io)] {
        let reply = propose(queue, id);
        assert_eq!(send(queue, &reply), Status::SUCCESS);
        assert_eq!(receive(queue).0, Status::SUCCESS);
    }
    // In the middle of a transaction, and between two.
    let reply = propose(&mut io, 5);
    assert_eq!(io.status(read), Status::SUCCESS);
    assert_eq!(send(&mut io, &reply), Status::SUCCESS);
    assert_eq!(io.status(read), Status::SUCCESS);
    assert_eq!(receive(&mut io).0, Status::SUCCESS);
    assert_eq!(io.status(read), Status::SUCCESS);
    assert_eq!(target.control.statistics().authenticated, 5);
    // A reply to an earlier challenge is worth nothing.
    propose(&mut io, 5);
    assert_eq!(send(&mut io, &reply), Status::SUCCESS);
    assert_eq!(io.status(read), Status::AUTH_REQUIRED.dnr(), "the proof has failed");
    let (status, message) = receive(&mut io);
    assert_eq!((status, &message[..2]), (Status::SUCCESS, &[0, 0xf1][..]));
    assert_eq!((io.0.ended(), admin.0.ended()), (Some(End::Disconnected), Some(End::Disconnected)));
    target.wait_for(|counted| counted.controllers == 0 && counted.not_authenticated == 1);
    machine.stop(target);
}

#[test]
fn a_host_that_stops_in_the_middle_loses_its_connection() {
    let machine = Machine::new();
    let target = target(&machine, |config| config.authentication_timeout = Duration::from_millis(300));
    let mut silent = Queue::open(&machine, &target, 0, 32);
    silent.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    assert_eq!(silent.0.ended(), Some(End::Disconnected));
    let mut slow = Queue::open(&machine, &target, 0, 32);
    slow.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    propose(&mut slow, 1);
    assert_eq!(slow.0.ended(), Some(End::Disconnected));
    let (mut admin, mut io) = controller(&machine, &target);
    propose(&mut io, 9);
    assert_eq!((io.0.ended(), admin.0.ended()), (Some(End::Disconnected), Some(End::Disconnected)));
    target.wait_for(|counted| counted.not_authenticated == 3 && counted.controllers == 0);
    machine.stop(target);
}

/// An I/O queue of somebody who knows the names of a host and its controller, and no key.
fn impostor(machine: &Machine, target: &Running, id: u16, controller: u16) -> Queue {
    let mut queue = Queue::open(machine, target, id, 32);
    let response = queue.connect(Connect::new(id, 31, 0), &data(controller, NQN));
    assert_eq!(response.status(), Status::SUCCESS);
    queue
}

#[test]
fn an_impostor_ends_its_own_connection_only() {
    let machine = Machine::new();
    let target = target(&machine, |config| config.authentication_timeout = Duration::from_millis(300));
    let (mut admin, mut io) = controller(&machine, &target);
    let overview = target.control.overview().expect("an answer");
    let number = overview.controllers[0].id;
    let mut silent = impostor(&machine, &target, 2, number);
    assert_eq!(silent.0.ended(), Some(End::Disconnected));
    let mut wrong = impostor(&machine, &target, 2, number);
    let mut reply = propose(&mut wrong, 7);
    reply[16] ^= 1;
    assert_eq!(send(&mut wrong, &reply), Status::SUCCESS);
    // However often it tries again, its time runs out.
    while !matches!(wrong.0.end(), Some(End::Disconnected)) {
        let sgl = wrong.0.keyed(0, 72);
        wrong.0.send(AuthenticationCommand::send(72).command().with_sgl(sgl).with_cid(9).as_bytes());
        if wrong.0.response().is_err() {
            break;
        }
    }
    target.wait_for(|counted| counted.not_authenticated == 2);
    let read = Command::blocks(opcode::io::READ, 1, 0, 8).with_sgl(io.0.keyed(8192, 4096));
    assert_eq!(io.status(read), Status::SUCCESS);
    assert_eq!(admin.status(Command::new(opcode::admin::KEEP_ALIVE)), Status::SUCCESS);
    drop((admin, io));
    machine.stop(target);
}

#[test]
fn without_hosts_nobody_gets_in_once_there_were_some() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    machine.host_with(options(&target, KEY)).expect("a controller").disconnect();
    assert_eq!(target.control.set_hosts(Vec::new()), Ok(()));
    for options in [options(&target, KEY), Options::new(target.address, NQN)] {
        let status = Status::CONNECT_INVALID_HOST.dnr();
        assert_eq!(machine.host_with(options).err(), Some(Failure::Command("Connect", status, 0x10200)));
    }
    machine.stop(target);
}

#[test]
fn keys_are_exchanged_while_the_target_runs() {
    let machine = Machine::new();
    let target = target(&machine, |_| {});
    let mut host = machine.host_with(options(&target, KEY)).expect("a controller");
    assert_eq!(target.control.set_hosts(vec![known(&own_name(), OTHER)]), Ok(()));
    machine.host_with(options(&target, OTHER)).expect("a controller").disconnect();
    assert_eq!(
        machine.host_with(options(&target, KEY)).err(),
        Some(Failure::NotAuthenticated(Some(Reason::Failed)))
    );
    // A host that is connected goes on, and authenticates by the new key.
    let region = machine.region(&host, 4096);
    host.read(1, 0, 8, (&region, 0, 4096)).expect("a read");
    host.authenticate_again(Authentication::new(secret(OTHER))).expect("a proof");
    host.read(1, 0, 8, (&region, 0, 4096)).expect("a read");
    let failed = host.authenticate_again(Authentication::new(secret(KEY)));
    assert_eq!(failed, Err(Failure::NotAuthenticated(Some(Reason::Failed))));
    drop(region);
    drop(host);
    machine.stop(target);
}

#[test]
fn a_host_sees_its_namespaces_only() {
    let machine = Machine::new();
    let target = target(&machine, |config| {
        config.hosts.truncate(1);
        config.hosts[0].namespaces = Visible::some([(2, 2)]);
        config.hosts.push(Host { namespaces: Visible::some([(1, 1)]), ..Host::new(HOST) });
    });
    let mut host = machine.host_with(options(&target, KEY)).expect("a controller");
    let seen: Vec<u32> = host.namespaces().iter().map(|namespace| namespace.id).collect();
    assert_eq!(seen, [2]);
    let region = machine.region(&host, 4096);
    host.read(2, 0, 8, (&region, 0, 4096)).expect("a read");
    let status = Status::INVALID_NAMESPACE.dnr();
    for refused in [host.read(1, 0, 8, (&region, 0, 4096)), host.write(1, 0, 8, (&region, 0, 4096))] {
        assert!(matches!(refused, Err(Failure::Command(_, found, _)) if found == status), "{refused:?}");
    }
    drop(region);
    // This one need not authenticate.
    let (mut admin, mut io) = crate::raw::controller(&machine, &target);
    let sgl = admin.0.keyed(0, 4096);
    let identify = |cns, nsid| Identify { cns, cntid: 0, nsid }.command().with_sgl(sgl);
    assert_eq!(admin.status(identify(cns::NAMESPACE_DESCRIPTORS, 1)), Status::SUCCESS);
    assert_eq!(admin.status(identify(cns::NAMESPACE_DESCRIPTORS, 2)), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(admin.status(identify(cns::NAMESPACE, 2)), Status::SUCCESS);
    let mut size = [1; 8];
    admin.0.memory.read(0, &mut size).expect("inside");
    assert_eq!(size, [0; 8], "as one that is not active");
    for fid in [fid::RESERVATION_MASK, fid::RESERVATION_PERSISTENCE] {
        let get = |nsid| GetFeatures { fid, select: Select::Current, nsid }.command();
        let set = |nsid| SetFeatures { fid, save: false, nsid, value: 0 }.command();
        assert_eq!((admin.status(get(1)), admin.status(get(2))), (Status::SUCCESS, status));
        assert_eq!(admin.status(set(2)), status);
    }
    let sgl = io.0.keyed(0, 4096);
    let read = |nsid| Command::blocks(opcode::io::READ, nsid, 0, 8).with_sgl(sgl);
    assert_eq!((io.status(read(1)), io.status(read(2))), (Status::SUCCESS, status));
    assert_eq!(
        io.status(AuthenticationCommand::send(72).command().with_sgl(sgl)),
        Status::INVALID_OPCODE.dnr()
    );
    drop((admin, io));
    machine.end(host, target);
}

#[test]
fn those_that_prove_nothing_leave_controllers_for_others() {
    let machine = Machine::new();
    let target = target(&machine, |config| config.controllers = 4);
    let connect = || {
        let mut queue = Queue::open(&machine, &target, 0, 32);
        let response = queue.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
        (queue, response.status())
    };
    let queues: Vec<_> = (0..3).map(|_| connect()).collect();
    let statuses: Vec<Status> = queues.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [Status::SUCCESS, Status::SUCCESS, Status::CONTROLLER_BUSY]);
    let host = Options { host: own_name(), ..Options::new(target.address, NQN) };
    assert_eq!(machine.host_with(host).err().map(|_| ()), Some(()), "that needs a proof, too");
    drop(queues);
    target.wait_for(|counted| counted.controllers == 0);
    machine.host_with(options(&target, KEY)).expect("a controller").disconnect();
    machine.stop(target);
}
