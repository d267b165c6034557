//! Hosts that break the rules: each gets the specification's status or loses its connection, and
//! others are served.

use crate::machine::{Machine, NQN};
use crate::raw::{HOST, Queue, controller, data, serves};
use nvme::command::{Command, opcode};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, Property, PropertyGet, PropertySet, invalid_parameter};
use nvme::private_data::{RejectCode, Request};
use nvme::sgl::Descriptor;
use nvme::{Status, nqn};
use storage::testing::End;
use zerocopy::IntoBytes;

#[test]
fn private_data_that_cannot_be_is_rejected_with_its_code() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut format = Request::new(0, 32, 31);
    format.recfmt = 1.into();
    for (private_data, code) in [
        // A message of the connection manager has zeros where the sender wrote nothing.
        (&[0; 32][..], RejectCode::InvalidLength),
        (format.as_bytes(), RejectCode::InvalidRecfmt),
        (Request::new(0, 32, 32).as_bytes(), RejectCode::InvalidHsqsize),
        (Request::new(0, 32, 0).as_bytes(), RejectCode::InvalidHsqsize),
        (Request::new(1, 128, 128).as_bytes(), RejectCode::InvalidHsqsize),
        (Request::new(1, u16::MAX, u16::MAX).as_bytes(), RejectCode::InvalidHsqsize),
        (Request::new(1, 0, 31).as_bytes(), RejectCode::InvalidHrqsize),
        (Request::new(17, 32, 31).as_bytes(), RejectCode::InvalidQid),
    ] {
        let [low, high] = (code as u16).to_le_bytes();
        let end = Queue::open_with(&machine, &target, private_data).err();
        assert_eq!(end, Some(End::Refused([0, 0, low, high])), "{code:?}");
    }
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn connect_is_refused_with_the_field_to_blame() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    let id = {
        // The controller's identifier, from Identify.
        let sgl = admin.0.keyed(0, 4096);
        let identify = nvme::identify::Identify { cns: nvme::identify::cns::CONTROLLER, cntid: 0, nsid: 0 };
        assert_eq!(admin.status(identify.command().with_sgl(sgl)), Status::SUCCESS);
        let mut bytes = [0; 2];
        admin.0.memory.read(78, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    };
    let mut format = Connect::new(0, 31, 0);
    format.recfmt = 1.into();
    let other = {
        let mut data = data(id, NQN);
        data.hostid = [8; 16];
        data
    };
    let nameless = {
        let mut data = data(CNTLID_DYNAMIC, NQN);
        data.hostnqn = [b'x'; 256];
        data
    };
    let parameters = Status::CONNECT_INVALID_PARAMETERS.dnr();
    for (queue, connect, data, status, result) in [
        (0, format, data(CNTLID_DYNAMIC, NQN), Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), 0),
        (0, Connect::new(1, 31, 0), data(CNTLID_DYNAMIC, NQN), parameters, invalid_parameter::QID),
        (0, Connect::new(0, 0, 0), data(CNTLID_DYNAMIC, NQN), parameters, invalid_parameter::SQSIZE),
        (0, Connect::new(0, 32, 0), data(CNTLID_DYNAMIC, NQN), parameters, invalid_parameter::SQSIZE),
        (0, Connect::new(0, u16::MAX, 0), data(CNTLID_DYNAMIC, NQN), parameters, invalid_parameter::SQSIZE),
        (0, Connect::new(0, 31, 0), data(1, NQN), parameters, invalid_parameter::CNTLID),
        (0, Connect::new(0, 31, 0), data(CNTLID_DYNAMIC, HOST), parameters, invalid_parameter::SUBNQN),
        (0, Connect::new(0, 31, 0), nameless, parameters, invalid_parameter::HOSTNQN),
        (2, Connect::new(2, 31, 0), data(CNTLID_DYNAMIC, NQN), parameters, invalid_parameter::CNTLID),
        (2, Connect::new(2, 31, 0), data(id.wrapping_add(64), NQN), parameters, invalid_parameter::CNTLID),
        (2, Connect::new(2, 31, 0), other, parameters, invalid_parameter::CNTLID),
        (5, Connect::new(5, 31, 0), data(id, NQN), parameters, invalid_parameter::QID),
        (1, Connect::new(1, 31, 0), data(id, NQN), Status::SEQUENCE_ERROR.dnr(), 0),
        (1, Connect::new(1, 31, 0), data(id, nqn::DISCOVERY.as_str()), parameters, invalid_parameter::QID),
    ] {
        let mut raw = Queue::open(&machine, &target, queue, 32);
        let response = raw.connect(connect, &data);
        assert_eq!((response.status(), response.result.get()), (status, result.into()), "{connect:?}");
        // The queue is as new: a proper Connect succeeds after that.
        if queue == 0 {
            raw.begin();
        }
        drop(raw);
    }
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn nothing_but_connect_comes_first_and_nothing_before_the_controller_is_enabled() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let mut raw = Queue::open(&machine, &target, 0, 32);
    for command in [
        PropertyGet::new(Property::Cap).command(),
        Command::new(opcode::admin::KEEP_ALIVE),
        Command::blocks(opcode::io::READ, 1, 0, 1),
        Command::new(0xff),
    ] {
        assert_eq!(raw.status(command), Status::INVALID_OPCODE.dnr());
    }
    let response = raw.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    assert_eq!(response.status(), Status::SUCCESS);
    let id = response.result.get() as u16;
    let again = raw.connect(Connect::new(0, 31, 0), &data(CNTLID_DYNAMIC, NQN));
    assert_eq!(again.status(), Status::SEQUENCE_ERROR.dnr());
    let sgl = raw.0.keyed(0, 4096);
    let identify = nvme::identify::Identify { cns: 1, cntid: 0, nsid: 0 }.command().with_sgl(sgl);
    assert_eq!(raw.status(identify), Status::SEQUENCE_ERROR.dnr());
    let mut io = Queue::open(&machine, &target, 1, 32);
    assert_eq!(io.connect(Connect::new(1, 31, 0), &data(id, NQN)).status(), Status::SEQUENCE_ERROR.dnr());
    // Entries of other sizes make the controller fail.
    let wrong =
        PropertySet::new(Property::Cc, Cc::new().with_enabled(true).with_submission_entry(7).0.into());
    assert_eq!(raw.status(wrong.command()), Status::SUCCESS);
    let status = raw.ask(PropertyGet::new(Property::Csts).command()).result.get();
    assert_eq!(status, 2);
    assert_eq!(raw.status(identify), Status::SEQUENCE_ERROR.dnr());
    drop(io);
    drop(raw);
    machine.stop(target);
}

#[test]
fn wrong_commands_get_their_status_and_change_nothing() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (admin, mut io) = controller(&machine, &target);
    let blocks = (1 << 20) / 512;
    let keyed = |queue: &Queue, len| queue.0.keyed(0, len);
    let read = |block, count| Command::blocks(opcode::io::READ, 1, block, count);
    let sgl = keyed(&io, 512);
    let mut types = vec![(Descriptor([0; 16]), Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr())];
    for kind in [0x02, 0x10, 0x20, 0x30, 0x41, 0x4e, 0x50, 0xf0, 0xff] {
        let mut descriptor = sgl;
        descriptor.0[15] = kind;
        types.push((descriptor, Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()));
    }
    // Data that go to the host cannot go into the capsule, nor lie beyond its end.
    types.push((Descriptor::offset(0, 512), Status::SGL_OFFSET_INVALID.dnr()));
    types.push((Descriptor::offset(0, 0), Status::DATA_SGL_LENGTH_INVALID.dnr()));
    types.push((Descriptor::offset(u64::MAX, 512), Status::SGL_OFFSET_INVALID.dnr()));
    types.push((keyed(&io, 511), Status::DATA_SGL_LENGTH_INVALID.dnr()));
    types.push((keyed(&io, 513), Status::DATA_SGL_LENGTH_INVALID.dnr()));
    types.push((keyed(&io, 0), Status::DATA_SGL_LENGTH_INVALID.dnr()));
    for (descriptor, status) in types {
        assert_eq!(io.status(read(0, 1).with_sgl(descriptor)), status, "{descriptor:?}");
    }
    for flags in [0x00, 0x80, 0xc0, 0x42, 0x41] {
        let mut command = read(0, 1).with_sgl(sgl);
        command.flags = flags;
        assert_eq!(io.status(command), Status::INVALID_FIELD.dnr(), "{flags:#x}");
    }
    for nsid in [0, 2, 1024, u32::MAX] {
        let mut command = read(0, 1).with_sgl(sgl);
        command.nsid = nsid.into();
        assert_eq!(io.status(command), Status::INVALID_NAMESPACE.dnr(), "{nsid}");
    }
    for (block, count) in [(blocks, 1), (blocks - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8), (1 << 63, 65_536)]
    {
        for operation in [opcode::io::READ, opcode::io::WRITE, opcode::io::COMPARE, opcode::io::WRITE_ZEROES]
        {
            let command = Command::blocks(operation, 1, block, count).with_sgl(sgl);
            assert_eq!(io.status(command), Status::LBA_OUT_OF_RANGE.dnr(), "{operation} {block} {count}");
        }
    }
    // Nothing was written by any of these.
    assert_eq!(io.status(read(blocks - 1, 1).with_sgl(sgl)), Status::SUCCESS);
    let mut last = [1; 512];
    io.0.memory.read(0, &mut last).unwrap();
    assert_eq!(last, [0; 512]);
    for operation in [0x03, 0x04, 0x0a, 0x0f, 0x80, 0xff] {
        let command = Command { nsid: 1.into(), ..Command::new(operation) };
        assert_eq!(io.status(command), Status::INVALID_OPCODE.dnr());
    }
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_host_that_breaks_the_protocol_loses_its_connection_only() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    for capsule in [&[0_u8; 1][..], &[0; 63], &[]] {
        let (admin, mut io) = controller(&machine, &target);
        io.0.send(capsule);
        assert_eq!(io.0.ended(), Some(End::Disconnected));
        drop(admin);
        drop(io);
    }
    // A key that was never given: the NIC of the host refuses the RDMA operation.
    for operation in [opcode::io::READ, opcode::io::WRITE] {
        let (admin, mut io) = controller(&machine, &target);
        let sgl = Descriptor::keyed(0x1000, 512, 0xdead_beef, false);
        io.0.send(Command::blocks(operation, 1, 0, 1).with_sgl(sgl).as_bytes());
        assert_eq!(io.0.ended(), Some(End::Disconnected));
        drop(admin);
        drop(io);
    }
    // A capsule that is longer than the target's Receives.
    let (admin, mut io) = controller(&machine, &target);
    io.0.send(&[0; 64 + 8192 + 1]);
    assert_eq!(io.0.ended(), Some(End::Disconnected));
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn the_same_identifier_twice_is_a_conflict() {
    let machine = Machine::new();
    let target = machine.target(machine.ram_disks(&[1 << 20]));
    let (mut admin, io) = controller(&machine, &target);
    // An Asynchronous Event Request stays outstanding, and so does its identifier.
    let event = Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x777);
    admin.0.send(event.as_bytes());
    admin.0.send(Command::new(opcode::admin::KEEP_ALIVE).with_cid(0x777).as_bytes());
    let response = admin.0.response().unwrap();
    assert_eq!((response.cid.get(), response.status()), (0x777, Status::CID_CONFLICT.dnr()));
    // Four may be outstanding.
    for cid in [1, 2, 3] {
        admin.0.send(event.with_cid(cid).as_bytes());
    }
    admin.0.send(event.with_cid(4).as_bytes());
    let response = admin.0.response().unwrap();
    assert_eq!((response.cid.get(), response.status()), (4, Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr()));
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}

#[test]
fn a_disk_that_is_gone_is_reported_and_its_namespace_is_inactive() {
    let machine = Machine::new();
    let disk = crate::disks::disk(1);
    let mut disks = machine.ram_disks(&[1 << 20]);
    disks.push(disk.clone());
    let target = machine.target(disks);
    let (mut admin, mut io) = controller(&machine, &target);
    let set = nvme::feature::SetFeatures {
        fid: nvme::feature::id::ASYNC_EVENT_CONFIGURATION,
        save: false,
        nsid: 0,
        value: nvme::feature::AsyncEvents::NAMESPACE_ATTRIBUTE.bits(),
    };
    assert_eq!(admin.status(set.command()), Status::SUCCESS);
    let event = Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x900);
    admin.0.send(event.as_bytes());
    disk.remove();
    let sgl = io.0.keyed(0, 512);
    let read = Command::blocks(opcode::io::READ, 2, 0, 1).with_sgl(sgl);
    assert_eq!(io.status(read), Status::INTERNAL_ERROR);
    let response = admin.0.response().unwrap();
    let changed = nvme::async_event::Event::NAMESPACE_ATTRIBUTE_CHANGED;
    assert_eq!((response.cid.get(), response.result.get()), (0x900, changed.result().into()));
    // Not the status of a namespace that does not exist: with that Linux lets fsync succeed.
    assert_eq!(io.status(read), Status::INTERNAL_ERROR.dnr());
    let word = |queue: &Queue, place: usize| {
        let mut bytes = [0; 4];
        queue.0.memory.read(place * 4, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    // The first read of the log page without RAE empties it.
    for (first, rae) in [(2, true), (2, false), (0, false)] {
        let page = nvme::log::GetLogPage {
            nsid: nvme::NSID_ALL,
            lid: nvme::log::id::CHANGED_NAMESPACES,
            lsp: 0,
            rae,
            numd: 1023,
            offset: 0,
        };
        let sgl = admin.0.keyed(0, 4096);
        assert_eq!(admin.status(page.command().with_sgl(sgl)), Status::SUCCESS);
        assert_eq!([word(&admin, 0), word(&admin, 1)], [first, 0]);
    }
    let sgl = admin.0.keyed(0, 4096);
    let active = nvme::identify::Identify { cns: nvme::identify::cns::ACTIVE_LIST, cntid: 0, nsid: 0 };
    assert_eq!(admin.status(active.command().with_sgl(sgl)), Status::SUCCESS);
    assert_eq!([word(&admin, 0), word(&admin, 1)], [1, 0]);
    drop(admin);
    drop(io);
    serves(&machine, &target);
    machine.stop(target);
}
