//! Commands as they stand on the wire, and what is read from them.

extern crate ferrovia_nvme as nvme;

use nvme::command::{Direction, opcode};
use nvme::fabrics::{
    CNTLID_DYNAMIC, Cc, Connect, ConnectAttributes, ConnectData, Property, PropertyGet, PropertySet,
    PropertySize, fctype, invalid_parameter,
};
use nvme::identify::{
    Cmic, Controller, Ctratt, Descriptors, Identify, LbaFormat, Lpa, Namespace, NamespaceId, Oncs, Sgls, cns,
};
use nvme::sgl::{Descriptor, Sgl};
use nvme::{Command, Nqn, dsm, nqn};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// 64 bytes that are 0 but for these runs.
fn bytes(runs: &[(usize, &[u8])]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, run) in runs {
        bytes[*at..*at + run.len()].copy_from_slice(run);
    }
    bytes
}

/// A descriptor of 1,024 bytes with invalidation.
const KEYED: [u8; 16] = [0, 0x10, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0x78, 0x56, 0x34, 0x12, 0x4f];

#[test]
fn connect_of_the_admin_queue() {
    let wire = bytes(&[
        (0, &[0x7f, 0x40, 0x01, 0x10, 0x01]),
        (24, &KEYED),
        (44, &[31, 0]),
        (48, &[0x88, 0x13, 0, 0]),
    ]);
    let command = Command::read_from_bytes(&wire).unwrap();
    assert_eq!((command.opcode, command.fctype()), (opcode::FABRICS, fctype::CONNECT));
    assert_eq!((command.fuse(), command.psdt(), command.direction()), (0, 1, Direction::ToController));
    assert_eq!(
        command.sgl.parse(),
        Ok(Sgl::Keyed { addr: 0x1000, len: 1024, key: 0x1234_5678, invalidate: true })
    );
    let connect = Connect::of(&command);
    assert_eq!((connect.cid.get(), connect.recfmt.get(), connect.qid.get()), (0x1001, 0, 0));
    assert_eq!((connect.sqsize.get(), connect.kato.get()), (31, 5000));
    assert_eq!(connect.attributes(), ConnectAttributes::empty());
    assert_eq!(connect.command(), command);
    let made = Connect::new(0, 31, 5000).command().with_cid(0x1001);
    assert_eq!(made.with_sgl(Descriptor::keyed(0x1000, 1024, 0x1234_5678, true)).as_bytes(), wire);
    let mut other = Connect::new(0x0102, 0x0304, 0);
    other.cattr = 0xf4;
    assert_eq!(other.as_bytes()[40..48], [0, 0, 2, 1, 4, 3, 0xf4, 0]);
    assert_eq!(other.attributes(), ConnectAttributes::DISABLE_SQ_FLOW_CONTROL);
}

#[test]
fn the_data_of_a_connect() {
    let host = Nqn::new(b"nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555").unwrap();
    let data = ConnectData::new([7; 16], CNTLID_DYNAMIC, nqn::DISCOVERY, host);
    let wire = data.as_bytes();
    assert_eq!(wire[..20], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0xff, 0xff, 0, 0]);
    assert_eq!(wire[256..293], *b"nqn.2014-08.org.nvmexpress.discovery\0");
    assert_eq!(wire[512..530], *b"nqn.2014-08.org.nv");
    assert_eq!(Nqn::read(&data.hostnqn), Ok(host));
}

#[test]
fn the_results_of_a_connect_with_an_invalid_parameter() {
    use invalid_parameter::{CATTR, CNTLID, HOSTID, HOSTNQN, KATO, QID, SQSIZE, SUBNQN};
    assert_eq!([SUBNQN, CNTLID, HOSTNQN, HOSTID], [0x10100, 0x10010, 0x10200, 0x10000]);
    assert_eq!([QID, SQSIZE, CATTR, KATO], [0x2a, 0x2c, 0x2e, 0x30]);
}

#[test]
fn properties_are_set_and_got() {
    let wire = bytes(&[(0, &[0x7f, 0x40]), (39, &[0x40]), (44, &[0x14]), (48, &[1, 0, 0x46])]);
    let command = Command::read_from_bytes(&wire).unwrap();
    assert_eq!((command.fctype(), command.direction()), (fctype::PROPERTY_SET, Direction::None));
    let set = PropertySet::of(&command);
    assert_eq!((set.size(), set.offset.get()), (Some(PropertySize::Four), 0x14));
    assert_eq!(Cc(set.value.get() as u32), Cc::new().with_enabled(true));
    assert_eq!(PropertySet::new(Property::Cc, 0x46_0001).command().as_bytes(), wire);
    assert_eq!(set.command(), command);

    let wire = bytes(&[(0, &[0x7f, 0x40, 0, 0, 4]), (39, &[0x40, 1])]);
    let command = Command::read_from_bytes(&wire).unwrap();
    let get = PropertyGet::of(&command);
    assert_eq!((get.size(), get.offset.get()), (Some(PropertySize::Eight), 0));
    assert_eq!(PropertyGet::new(Property::Cap).command().as_bytes(), wire);
    assert_eq!(PropertyGet::new(Property::Csts).as_bytes()[40..48], [0, 0, 0, 0, 0x1c, 0, 0, 0]);
    assert_eq!(get.command(), command);

    for attrib in 0..=0xff {
        let wire = bytes(&[(40, &[attrib])]);
        let command = Command::read_from_bytes(&wire).unwrap();
        let size = match attrib & 7 {
            0 => Some(PropertySize::Four),
            1 => Some(PropertySize::Eight),
            _ => None,
        };
        assert_eq!((PropertyGet::of(&command).size(), PropertySet::of(&command).size()), (size, size));
    }
}

#[test]
fn a_write_with_data_in_the_capsule() {
    let wire = bytes(&[
        (0, &[0x01, 0x40, 0x05, 0x20, 1]),
        (24, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x01]),
        (40, &[8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0x40]),
    ]);
    let command = Command::read_from_bytes(&wire).unwrap();
    assert_eq!((command.nsid.get(), command.slba(), command.nlb()), (1, 0x0102_0304_0506_0708, 8));
    assert_eq!((command.fua(), command.deallocate(), command.prinfo()), (true, false, 0));
    assert_eq!(command.direction(), Direction::ToController);
    let made = Command::blocks(opcode::io::WRITE, 1, 0x0102_0304_0506_0708, 8);
    assert!(!made.fua());
    let made = made.with_fua().with_cid(0x2005).with_sgl(Descriptor::offset(0, 4096));
    assert_eq!(made.as_bytes(), wire);
}

#[test]
fn numbers_of_blocks() {
    let most = Command::blocks(opcode::io::WRITE_ZEROES, 1, u64::MAX, 0x1_0000).with_deallocate();
    assert_eq!((most.slba(), most.nlb(), most.cdw12.get()), (u64::MAX, 0x1_0000, 0x0200_ffff));
    assert!(most.deallocate() && !most.fua());
    let mut command = Command::blocks(opcode::io::READ, 1, 0, 1);
    assert_eq!((command.nlb(), command.direction()), (1, Direction::ToHost));
    command.cdw12 = 0xfc00_0000.into();
    assert_eq!((command.prinfo(), command.fua(), command.nlb()), (0xf, true, 1));
    command.cdw12 = 0x0400_0000.into();
    assert_eq!((command.prinfo(), command.fua(), command.deallocate()), (1, false, false));
}

#[test]
#[should_panic(expected = "0 blocks")]
fn a_command_on_no_blocks_cannot_be_made() {
    Command::blocks(opcode::io::READ, 1, 0, 0);
}

#[test]
#[should_panic(expected = "257 ranges")]
fn a_command_on_too_many_ranges_cannot_be_made() {
    Command::dataset_management(1, 257, dsm::Attributes::DEALLOCATE);
}

#[test]
fn flush_dataset_management_and_abort() {
    assert_eq!(Command::flush(0x0102).as_bytes(), bytes(&[(0, &[0, 0x40, 0, 0, 2, 1]), (39, &[0x40])]));
    assert_eq!(Command::flush(1).direction(), Direction::None);

    let dsm = Command::dataset_management(1, 256, dsm::Attributes::DEALLOCATE);
    assert_eq!(dsm.as_bytes()[40..48], [255, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!((dsm.opcode, dsm.dsm_ranges(), dsm.dsm_attributes().bits()), (9, 256, 4));
    assert_eq!(Command::new(opcode::io::DATASET_MANAGEMENT).dsm_ranges(), 1);

    let abort = Command::abort(0x0102, 0x0304);
    assert_eq!((abort.opcode, abort.aborts()), (8, (0x0102, 0x0304)));
    assert_eq!(abort.as_bytes()[40..44], [2, 1, 4, 3]);
}

#[test]
fn fused_commands_prps_and_directions() {
    let mut command = Command::new(0x03);
    assert_eq!((command.fuse(), command.psdt(), command.direction()), (0, 1, Direction::Both));
    command.flags = 0x82;
    assert_eq!((command.fuse(), command.psdt()), (2, 2));
    command.flags = 0x3c;
    assert_eq!((command.fuse(), command.psdt()), (0, 0));
    command.opcode = opcode::FABRICS;
    command.nsid = 0xffff_ff06.into();
    assert_eq!((command.fctype(), command.direction()), (6, Direction::ToHost));
}

#[test]
fn identify() {
    let identify = Identify { cns: cns::NAMESPACE_DESCRIPTORS, cntid: 0x0102, nsid: 9 };
    let command = identify.command();
    assert_eq!((command.opcode, command.cdw10.get(), command.nsid.get()), (6, 0x0102_0003, 9));
    assert_eq!((Identify::of(&command), command.direction()), (identify, Direction::ToHost));
}

#[test]
fn the_block_size_of_a_namespace() {
    let mut namespace = Namespace::new_zeroed();
    assert_eq!(namespace.block_size(), None);
    namespace.lbaf[0] = LbaFormat::new(9);
    namespace.lbaf[15] = LbaFormat::new(12);
    assert_eq!(namespace.block_size(), Some(512));
    namespace.flbas = 0x1f;
    assert_eq!((namespace.format().lbads, namespace.block_size()), (12, Some(4096)));
    for (lbads, size) in [(8, None), (31, Some(1 << 31)), (32, None), (255, None)] {
        namespace.lbaf[15].lbads = lbads;
        assert_eq!(namespace.block_size(), size);
    }
}

/// A page that is 0 but for these runs.
fn page(runs: &[(usize, &[u8])]) -> [u8; 4096] {
    let mut page = [0; 4096];
    for (at, run) in runs {
        page[*at..*at + run.len()].copy_from_slice(run);
    }
    page
}

/// What the target of Linux 6.1 answers to Identify.
#[test]
fn pages_of_linux() {
    let bytes = page(&[
        (0x04, b"dca62ef89a8237d4dfdfLinux                                   6.1.0-56"),
        (0x48, &[6, 0, 0, 0, 0x0b, 8, 1, 0, 0, 3, 1, 0]),
        (0x5d, &[9, 0, 0, 0x41]),
        (0x6f, &[1]),
        (0x102, &[3, 3, 3, 7, 0x7f]),
        (0x140, &[10]),
        (0x156, &[10, 0x1f, 0x80, 0, 0, 0, 0x80]),
        (0x200, &[0x66, 0x44, 0, 4, 0, 4, 0, 0, 0x0c]),
        (0x20d, &[1]),
        (0x214, &[1]),
        (0x218, &[5, 0, 0x10]),
        (0x300, b"testnqn"),
        (0x700, &[4, 1, 0, 0, 1]),
        (0x70b, &[1]),
    ]);
    let controller = Controller::ref_from_bytes(&bytes).unwrap();
    assert_eq!(
        (&controller.sn[..4], &controller.mn[..6], &controller.fr),
        (&b"dca6"[..], &b"Linux "[..], b"6.1.0-56")
    );
    assert_eq!(controller.cmic, (Cmic::PORTS | Cmic::CONTROLLERS | Cmic::ANA).bits());
    assert_eq!((controller.mdts, controller.cntlid.get(), controller.ver.get()), (8, 1, 0x10300));
    assert_eq!(controller.ctratt.get(), (Ctratt::HOST_ID_128 | Ctratt::TRAFFIC_BASED_KEEP_ALIVE).bits());
    assert_eq!((controller.cntrltype, controller.acl, controller.aerl, controller.elpe), (1, 3, 3, 0x7f));
    assert_eq!(
        controller.lpa & 7,
        (Lpa::SMART_PER_NAMESPACE | Lpa::COMMAND_EFFECTS | Lpa::EXTENDED_DATA).bits()
    );
    assert_eq!((controller.kas.get(), controller.anatt, controller.anacap), (10, 10, 0x1f));
    assert_eq!((controller.anagrpmax.get(), controller.nanagrpid.get()), (128, 128));
    assert_eq!((controller.sqes, controller.cqes, controller.maxcmd.get()), (0x66, 0x44, 1024));
    assert_eq!((controller.nn.get(), controller.vwc, controller.acwu.get()), (1024, 1, 1));
    assert_eq!(controller.oncs.get(), (Oncs::DATASET_MANAGEMENT | Oncs::WRITE_ZEROES).bits());
    assert_eq!(controller.sgls.get(), (Sgls::SUPPORTED | Sgls::KEYED | Sgls::OFFSET).bits());
    assert_eq!((controller.ioccsz.get(), controller.iorcsz.get(), controller.msdbd), (0x104, 1, 1));

    let ids = page(&[
        (0, &[3, 16, 0, 0, 0x61, 0x47, 0xb4, 0x3b, 0x18, 0xf9, 0x43, 0xc0]),
        (12, &[0x94, 0xc1, 0x4f, 0x89, 0x5b, 0x8a, 0xb6, 0xc6, 4, 1, 0, 0, 0]),
    ]);
    let uuid = 0x6147_b43b_18f9_43c0_94c1_4f89_5b8a_b6c6_u128;
    assert!(Descriptors::new(&ids).eq([NamespaceId::Uuid(uuid.to_be_bytes()), NamespaceId::Csi(0)]));

    let bytes =
        page(&[(2, &[0x20]), (10, &[0x20]), (18, &[0x20]), (0x18, &[0x12]), (0x1e, &[1]), (0x82, &[9])]);
    let namespace = Namespace::ref_from_bytes(&bytes).unwrap();
    assert_eq!((namespace.nsze.get(), namespace.ncap.get()), (0x20_0000, 0x20_0000));
    assert_eq!((namespace.nmic, namespace.block_size()), (1, Some(512)));
}
