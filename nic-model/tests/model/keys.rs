//! Regions, windows, lists: fast register, invalidate, bind, and the translation behind them.

use std::mem::offset_of;

use nic_abi::admin::{
    AllocateRegion, AllocateWindow, KeyInfo, ModifyRegion, Opcode, QpFlags, RegisterRegion, ShareRegion,
    Status as Admin,
};
use nic_abi::cqe::Status;
use nic_abi::ident::{key, key_slot};
use nic_abi::wqe::{self, BindArgs, Header, LinkFlags, ListArgs, ListElement};
use nic_model::GuestMemory;
use nic_model::testing::{ALL_RIGHTS, MEMORY, PD, Qp, QpSpec, REMOTE, Rig, header, rdma, segment, status};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const ARGS: u32 = 32;

pub(crate) fn privileged() -> QpSpec {
    QpSpec { flags: QpFlags::PRIVILEGED, ..QpSpec::default() }
}

pub(crate) fn allocate(rig: &mut Rig, n: usize, max_elements: u32) -> u32 {
    let key = rig.fresh_key();
    rig.command(n, Opcode::AllocateRegion, key, &AllocateRegion { pd: PD, max_elements }).expect("a region");
    key
}

pub(crate) fn window(rig: &mut Rig, n: usize, window_type: u32) -> u32 {
    let key = rig.fresh_key();
    rig.command(n, Opcode::AllocateWindow, key, &AllocateWindow { pd: PD, window_type }).expect("a window");
    key
}

pub(crate) fn query(rig: &mut Rig, n: usize, key: u32) -> KeyInfo {
    let result = rig.command(n, Opcode::QueryKey, key, &()).expect("a key");
    KeyInfo::read_from_prefix(&result).expect("large enough").0
}

/// Writes a list of bus addresses.
pub(crate) fn list(rig: &mut Rig, addrs: &[u64]) -> u64 {
    let at = rig.alloc(8 * addrs.len() as u64);
    rig.memory.write(at, addrs.as_bytes()).unwrap();
    at
}

pub(crate) fn link(key: u32, flags: LinkFlags, base: u64, length: u64) -> Header {
    Header { length, immediate: key, ..rdma(wqe::Opcode::FastRegister, 1, flags.bits(), base) }
}

pub(crate) fn invalidate(key: u32) -> Header {
    Header { immediate: key, ..header(wqe::Opcode::LocalInvalidate, 2) }
}

pub(crate) fn bind(window: u32, region: u32, addr: u64, length: u64) -> Header {
    Header { immediate: window, length, ..rdma(wqe::Opcode::BindWindow, 3, region, addr) }
}

pub(crate) fn bind_args(remote: u32, flags: LinkFlags) -> [u64; 4] {
    zerocopy::transmute!(BindArgs { flags: flags.bits(), remote, reserved: [0; 6] })
}

/// A remote key of the region or window with this local key.
pub(crate) fn remote(local: u32, count: u32) -> u32 {
    key(key_slot(local), count)
}

#[test]
fn link_use_unlink_link_again() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = rig.pair_of(0, 1, privileged());
    let key = allocate(&mut rig, 0, 4);
    assert_eq!(query(&mut rig, 0, key).linked, 0);
    let (to, target) = rig.region(1, 3 * 4096);
    // The pages are not in the order of their addresses: adjacent pages of the region are apart in
    // memory.
    let pages: Vec<u64> = (0..3).map(|_| rig.alloc(8192)).collect();
    let pages = [pages[2], pages[0], pages[1]];
    for (i, page) in pages.iter().enumerate() {
        rig.fill(*page, 4096, i as u8);
    }
    let at = list(&mut rig, &pages);
    for count in 1..=3 {
        let flags = LinkFlags::LOCAL_READ | LinkFlags::RELATIVE | LinkFlags::PAGES;
        let args = ListArgs {
            list: at,
            element_length: 4096,
            first_byte_offset: 96,
            elements: 3,
            remote: remote(key, count),
        };
        rig.post_args(&mut a, link(key, flags, 0, 3 * 4096 - 96), zerocopy::transmute!(args));
        // The device does not read the list again.
        rig.run();
        rig.memory.write(at, &[0xff; 24]).unwrap();
        rig.post(&mut a, rdma(wqe::Opcode::Write, 5, to, 0), &[segment(key, 4000, 5000)]);
        rig.post_args(&mut a, invalidate(key), [0; 4]);
        for tag in [1, 5, 2] {
            let sent = rig.sent(&mut a);
            assert_eq!((sent.tag, status(&sent)), (tag, Status::Success));
        }
        let all: Vec<u8> = pages.iter().flat_map(|p| rig.bytes(*p, 4096)).collect();
        assert_eq!(rig.bytes(target, 5000), all[4096..9096]);
        rig.memory.write(at, pages.as_bytes()).unwrap();
    }
    // An unlinked key allows no access.
    rig.post(&mut a, rdma(wqe::Opcode::Write, 5, to, 0), &[segment(key, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::LocalProtection);
    assert!(rig.poll_cq(&mut b.receive_cq).is_none());
}

#[test]
fn neighbouring_pages_are_one_run() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let pages = 600_u64;
    let source = rig.alloc(pages * 4096);
    rig.fill(source, pages as usize * 4096, 3);
    let addrs: Vec<u64> = (0..pages).map(|i| source + i * 4096).collect();
    let at = list(&mut rig, &addrs);
    let key = rig.fresh_key();
    let args = RegisterRegion {
        pd: PD,
        flags: (ALL_RIGHTS | LinkFlags::PAGES).bits(),
        base: 0x10_0000_0000,
        length: pages * 4096,
        list: ListArgs { list: at, element_length: 4096, first_byte_offset: 0, elements: 600, remote: key },
    };
    rig.command(0, Opcode::RegisterRegion, key, &args).unwrap();
    let (to, target) = rig.region(1, pages * 4096);
    let length = pages as u32 * 4096 - 5;
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 5), &[segment(key, 0x10_0000_0003, length - 3)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert!(rig.bytes(target + 5, length as usize - 3) == rig.bytes(source + 3, length as usize - 3));
}

#[test]
fn lists_of_blocks_and_variable_lists_translate() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let memory = rig.alloc(8192);
    rig.fill(memory, 8192, 1);
    let (to, target) = rig.region(1, 4096);
    // Blocks of 7 bytes, without alignment.
    let addrs: Vec<u64> = (0..100).map(|i| memory + 11 * (99 - i)).collect();
    let at = list(&mut rig, &addrs);
    let key = rig.fresh_key();
    let mut args = RegisterRegion {
        pd: PD,
        flags: (LinkFlags::LOCAL_READ | LinkFlags::RELATIVE).bits(),
        base: 0,
        length: 690,
        list: ListArgs { list: at, element_length: 7, first_byte_offset: 3, elements: 100, remote: key },
    };
    rig.command(0, Opcode::RegisterRegion, key, &args).unwrap();
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(key, 0, 690)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let bytes: Vec<u8> = addrs.iter().flat_map(|p| rig.bytes(*p, 7)).collect();
    assert_eq!(rig.bytes(target, 690), bytes[3..693]);
    // Elements of any length.
    let elements: Vec<ListElement> =
        (1..20).map(|i| ListElement { addr: memory + 200 * (20 - i), length: 5 * i }).collect();
    let at = rig.alloc(4096);
    rig.memory.write(at, elements.as_bytes()).unwrap();
    let key = rig.fresh_key();
    args.flags = (LinkFlags::LOCAL_READ | LinkFlags::RELATIVE | LinkFlags::VARIABLE).bits();
    args.length = 900;
    args.list = ListArgs { list: at, element_length: 0, first_byte_offset: 4, elements: 19, remote: key };
    rig.command(0, Opcode::RegisterRegion, key, &args).unwrap();
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(key, 10, 890)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let bytes: Vec<u8> = elements.iter().flat_map(|e| rig.bytes(e.addr, e.length as usize)).collect();
    assert_eq!(rig.bytes(target, 890), bytes[14..904]);
}

#[test]
fn a_registration_that_is_wrong_names_its_field() {
    let mut rig = Rig::new(1);
    let page = rig.alloc(8192);
    let at = list(&mut rig, &[page, page + 4096]);
    let wild = list(&mut rig, &[page, MEMORY]);
    let args_at = 16_u16;
    let list_at = args_at + offset_of!(RegisterRegion, list) as u16;
    let element_length = list_at + offset_of!(ListArgs, element_length) as u16;
    let fbo = list_at + offset_of!(ListArgs, first_byte_offset) as u16;
    let elements = list_at + offset_of!(ListArgs, elements) as u16;
    let remote_at = list_at + offset_of!(ListArgs, remote) as u16;
    let flags_at = args_at + offset_of!(RegisterRegion, flags) as u16;
    let base_at = args_at + offset_of!(RegisterRegion, base) as u16;
    let length_at = args_at + offset_of!(RegisterRegion, length) as u16;
    let good = RegisterRegion {
        pd: PD,
        flags: (LinkFlags::LOCAL_READ | LinkFlags::PAGES).bits(),
        base: 0,
        length: 8192,
        list: ListArgs { list: at, element_length: 4096, first_byte_offset: 0, elements: 2, remote: 0 },
    };
    let listed = |list: ListArgs| RegisterRegion { list, ..good };
    let flagged = |flags: LinkFlags| RegisterRegion { flags: flags.bits(), ..good };
    let contiguous = LinkFlags::LOCAL_READ | LinkFlags::CONTIGUOUS;
    let cases = [
        (RegisterRegion { pd: 9, ..good }, Admin::NoSuchObject, args_at),
        (RegisterRegion { flags: 1 << 6, ..good }, Admin::BadField, flags_at),
        (RegisterRegion { flags: 1 << 31, ..good }, Admin::BadField, flags_at),
        (flagged(LinkFlags::REMOTE_WRITE), Admin::BadField, flags_at),
        (flagged(LinkFlags::REMOTE_ATOMIC), Admin::BadField, flags_at),
        (flagged(contiguous | LinkFlags::PAGES), Admin::BadField, flags_at),
        (RegisterRegion { base: 8, ..good }, Admin::BadField, base_at),
        (RegisterRegion { base: u64::MAX - 4095, ..good }, Admin::BadField, length_at),
        (RegisterRegion { length: 8193, ..good }, Admin::BadField, length_at),
        (RegisterRegion { length: u64::MAX, ..good }, Admin::BadField, length_at),
        (listed(ListArgs { elements: 0, ..good.list }), Admin::BadField, elements),
        (listed(ListArgs { elements: 1 << 19, ..good.list }), Admin::BadField, elements),
        (listed(ListArgs { elements: u32::MAX, ..good.list }), Admin::NoResources, elements),
        (listed(ListArgs { element_length: 0, ..good.list }), Admin::BadField, element_length),
        (listed(ListArgs { element_length: 2048, ..good.list }), Admin::BadField, element_length),
        (listed(ListArgs { element_length: 6144, ..good.list }), Admin::BadField, element_length),
        (listed(ListArgs { element_length: 8192, ..good.list }), Admin::BadField, list_at),
        (listed(ListArgs { first_byte_offset: 4096, ..good.list }), Admin::BadField, fbo),
        (listed(ListArgs { first_byte_offset: 8, ..good.list }), Admin::BadField, base_at),
        (listed(ListArgs { list: MEMORY - 8, ..good.list }), Admin::Dma, list_at),
        (listed(ListArgs { list: u64::MAX, ..good.list }), Admin::Dma, list_at),
        (listed(ListArgs { list: wild, ..good.list }), Admin::Dma, list_at),
        (
            RegisterRegion { list: ListArgs { first_byte_offset: 1, ..good.list }, ..flagged(contiguous) },
            Admin::BadField,
            fbo,
        ),
        (RegisterRegion { length: MEMORY, ..flagged(contiguous) }, Admin::Dma, list_at),
    ];
    for (mut args, status, field) in cases {
        let key = rig.fresh_key();
        args.list.remote = key;
        assert_eq!(rig.command(0, Opcode::RegisterRegion, key, &args), Err((status, field)), "{args:?}");
        assert_eq!(rig.command(0, Opcode::QueryKey, key, &()), Err((Admin::NoSuchObject, 8)));
    }
    let key = rig.fresh_key();
    for other in [0, key ^ 1 << 8, 1] {
        let args = listed(ListArgs { remote: other, ..good.list });
        let refused = rig.command(0, Opcode::RegisterRegion, key, &args);
        assert_eq!(refused, Err((Admin::BadField, remote_at)), "a remote key of another slot");
    }
    let good = listed(ListArgs { remote: key, ..good.list });
    rig.command(0, Opcode::RegisterRegion, key, &good).unwrap();
    assert_eq!(rig.command(0, Opcode::RegisterRegion, key ^ 1 << 24, &good), Err((Admin::Exists, 8)));
    assert_eq!(rig.command(0, Opcode::RegisterRegion, remote(0, 5), &good), Err((Admin::BadField, 8)));
    let info = query(&mut rig, 0, key);
    assert_eq!((info.kind, info.linked, info.length, info.pd), (0, 1, 8192, PD));
    assert_eq!(rig.command(0, Opcode::DestroyPd, PD, &()), Err((Admin::Busy, 8)));
    rig.command(0, Opcode::DestroyRegion, key, &()).unwrap();
    rig.command(0, Opcode::DestroyPd, PD, &()).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "millions of list elements are read one by one")]
fn a_shared_region_has_its_own_rights_and_takes_no_translations() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair_of(0, 1, privileged());
    let addr = rig.alloc(8192);
    rig.fill(addr, 8192, 3);
    // Lists with the largest number of elements, one byte each, until the NIC's limit is reached.
    let elements = 1 << 18;
    let memory: Vec<u64> = (0..elements).map(|i| addr + i % 8192).collect();
    let at = list(&mut rig, &memory);
    let args = RegisterRegion {
        pd: PD,
        flags: (ALL_RIGHTS | LinkFlags::RELATIVE).bits(),
        base: 0,
        length: 8192,
        list: ListArgs {
            list: at,
            element_length: 1,
            first_byte_offset: 0,
            elements: elements as u32,
            remote: 0,
        },
    };
    let named = |key: u32| RegisterRegion { list: ListArgs { remote: key, ..args.list }, ..args };
    let mut keys = Vec::new();
    loop {
        let key = rig.fresh_key();
        match rig.command(0, Opcode::RegisterRegion, key, &named(key)) {
            Ok(_) => keys.push(key),
            Err((status, _)) => break assert_eq!(status, Admin::NoResources),
        }
    }
    let of = keys[0];
    let (first, second) = (rig.fresh_key(), rig.fresh_key());
    for key in [first, second] {
        let share = ShareRegion {
            pd: PD,
            flags: LinkFlags::LOCAL_READ.bits(),
            base: 0x5000,
            length: 8192,
            list: named(key).list,
            of,
            reserved: 0,
        };
        rig.command(0, Opcode::ShareRegion, key, &share).unwrap();
        let info = query(&mut rig, 0, key);
        assert_eq!((info.linked, info.base, info.length), (1, 0x5000, 8192));
    }
    // The memory and its elements are released with the last of the regions that share it.
    for key in [of, first] {
        rig.command(0, Opcode::DestroyRegion, key, &()).unwrap();
        let another = rig.command(0, Opcode::RegisterRegion, key, &named(key));
        assert_eq!(another.map_err(|(status, _)| status), Err(Admin::NoResources));
    }
    let (to, target) = rig.region(1, 4096);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(second, 0x5000, 4096)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(rig.bytes(target, 4096), rig.bytes(addr, 4096));
    rig.command(0, Opcode::DestroyRegion, second, &()).unwrap();
    rig.command(0, Opcode::RegisterRegion, of, &named(of)).unwrap();
}

#[test]
fn a_region_that_was_shared_cannot_be_invalidated() {
    let mut rig = Rig::new(2);
    let (region, memory) = (allocate(&mut rig, 0, 2), rig.alloc(16384));
    let at = list(&mut rig, &[memory, memory + 8192]);
    let flags = LinkFlags::LOCAL_READ | LinkFlags::RELATIVE;
    let args = ListArgs { list: at, element_length: 4096, first_byte_offset: 0, elements: 2, remote: region };
    let key = rig.fresh_key();
    let wanted = ListArgs { remote: key, ..args };
    let length = 8192;
    let share =
        ShareRegion { pd: PD, flags: flags.bits(), base: 0, length, list: wanted, of: region, reserved: 0 };
    let of_at = 16 + offset_of!(ShareRegion, of) as u16;
    let list_at = 16 + offset_of!(ShareRegion, list) as u16;
    let refusal = |rig: &mut Rig, share: ShareRegion| {
        rig.command(0, Opcode::ShareRegion, key, &share).expect_err("a refusal")
    };
    assert_eq!(refusal(&mut rig, share), (Admin::BadState, of_at), "not linked");
    let nothing = ShareRegion { length: 0, list: ListArgs { elements: 0, ..wanted }, ..share };
    assert_eq!(refusal(&mut rig, nothing), (Admin::BadState, of_at), "not linked");
    let (mut a, _b) = rig.pair_of(0, 1, privileged());
    rig.post_args(&mut a, link(region, flags, 0, length), zerocopy::transmute!(args));
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    let pages = (flags | LinkFlags::PAGES | LinkFlags::CONTIGUOUS).bits();
    assert_eq!(refusal(&mut rig, ShareRegion { flags: pages, ..share }), (Admin::BadField, 20));
    assert_eq!(refusal(&mut rig, ShareRegion { reserved: 1, ..share }), (Admin::BadField, of_at + 4));
    assert_eq!(refusal(&mut rig, ShareRegion { pd: 9, ..share }), (Admin::NoSuchObject, 16));
    let absolute = ShareRegion { flags: LinkFlags::LOCAL_READ.bits(), base: u64::MAX, ..share };
    assert_eq!(refusal(&mut rig, absolute), (Admin::BadField, 16 + offset_of!(ShareRegion, length) as u16));
    let window = window(&mut rig, 0, 1);
    assert_eq!(refusal(&mut rig, ShareRegion { of: window, ..share }), (Admin::NoSuchObject, of_at));
    let stale = ShareRegion { of: region ^ 1, ..share };
    assert_eq!(refusal(&mut rig, stale), (Admin::NoSuchObject, of_at));
    let foreign = ShareRegion { list: ListArgs { remote: region, ..wanted }, ..share };
    assert_eq!(refusal(&mut rig, foreign), (Admin::BadField, list_at + 28));
    // Memory that differs from that of the region: shorter, of other pages, in another order.
    assert_eq!(refusal(&mut rig, ShareRegion { length: 8191, ..share }), (Admin::BadState, of_at));
    for pages in [[memory, memory + 4096], [memory + 8192, memory]] {
        let other = ShareRegion { list: ListArgs { list: list(&mut rig, &pages), ..wanted }, ..share };
        assert_eq!(refusal(&mut rig, other), (Admin::BadState, of_at));
    }
    // The same memory in another form, with an element behind its end.
    let elements = [0, 8192, 12288].map(|at| ListElement { addr: memory + at, length: 4096 });
    let at = rig.alloc(4096);
    rig.memory.write(at, elements.as_bytes()).unwrap();
    let variable = ListArgs { list: at, element_length: 0, elements: 3, ..wanted };
    let flags = (flags | LinkFlags::VARIABLE).bits();
    rig.command(0, Opcode::ShareRegion, key, &ShareRegion { flags, list: variable, ..share }).unwrap();
    for shared in [region, key] {
        let (mut a, _b) = rig.pair_of(0, 1, privileged());
        rig.post(&mut a, invalidate(shared), &[]);
        assert_eq!(status(&rig.sent(&mut a)), Status::MemoryManagement);
        assert_eq!(query(&mut rig, 0, shared).linked, 1);
    }
    // This holds also after the other region is destroyed.
    rig.command(0, Opcode::DestroyRegion, key, &()).unwrap();
    let (mut a, _b) = rig.pair_of(0, 1, privileged());
    rig.post(&mut a, invalidate(region), &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::MemoryManagement);
    rig.command(0, Opcode::DestroyRegion, region, &()).unwrap();
}

#[test]
fn a_region_may_end_at_the_end_of_the_address_space() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let base = 0_u64.wrapping_sub(4096);
    let (to, target) = rig.region_with(1, 4096, ALL_RIGHTS, base);
    let (from, source) = rig.region(0, 64);
    rig.fill(source, 64, 5);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, u64::MAX - 63), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(rig.bytes(target + 4032, 64), rig.bytes(source, 64));
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, u64::MAX - 62), &[segment(from, 0, 64)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
}

#[test]
fn a_region_of_no_bytes_grants_nothing() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (key, _) = rig.region(0, 0);
    let (to, _) = rig.region(1, 8);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 0), &[segment(key, 0, 1)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::LocalProtection);
}

#[test]
fn a_region_without_rights_grants_nothing() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (key, _) = rig.region_with(1, 64, LinkFlags::RELATIVE, 0);
    let (from, _) = rig.region(0, 64);
    assert_eq!(query(&mut rig, 1, key).linked, 1);
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, key, 0), &[]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success, "no byte is accessed");
    rig.post(&mut a, rdma(wqe::Opcode::Write, 1, key, 0), &[segment(from, 0, 1)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
}

#[test]
fn a_relative_regions_base_is_kept_and_has_no_effect() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (from, source) = rig.region(0, 64);
    rig.fill(source, 64, 1);
    for base in [0x7001, u64::MAX] {
        let (to, target) = rig.region_with(1, 64, ALL_RIGHTS | LinkFlags::RELATIVE, base);
        let info = query(&mut rig, 1, to);
        assert_eq!((info.base, info.length), (base, 64));
        rig.post(&mut a, rdma(wqe::Opcode::Write, 1, to, 8), &[segment(from, 0, 56)]);
        assert_eq!(status(&rig.sent(&mut a)), Status::Success);
        assert_eq!(rig.bytes(target + 8, 56), rig.bytes(source, 56));
    }
}

#[test]
fn a_link_that_is_wrong_names_its_field() {
    let mut rig = Rig::new(1);
    let page = rig.alloc(8192);
    let at = list(&mut rig, &[page, page + 4096]);
    let flags = LinkFlags::LOCAL_READ | LinkFlags::PAGES;
    let good = ListArgs { list: at, element_length: 4096, first_byte_offset: 0, elements: 2, remote: 0 };
    let one = allocate(&mut rig, 0, 1);
    let two = allocate(&mut rig, 0, 2);
    let narrow = window(&mut rig, 0, 2);
    let other = rig.fresh_key();
    rig.command(0, Opcode::CreatePd, 2, &()).unwrap();
    rig.command(0, Opcode::AllocateRegion, other, &AllocateRegion { pd: 2, max_elements: 2 }).unwrap();
    let good = ListArgs { remote: two, ..good };
    let elements = ARGS + offset_of!(ListArgs, elements) as u32;
    let remote_at = ARGS + offset_of!(ListArgs, remote) as u32;
    let fbo = ARGS + offset_of!(ListArgs, first_byte_offset) as u32;
    let base = offset_of!(Header, remote_addr) as u32;
    let length = offset_of!(Header, length) as u32;
    let key_at = offset_of!(Header, immediate) as u32;
    let flags_at = offset_of!(Header, remote_key) as u32;
    let empty = LinkFlags::PAGES;
    let cases = [
        (link(one, flags, 0, 8192), ListArgs { remote: one, ..good }, elements),
        (link(two, flags, 0, 8192), ListArgs { remote: one, ..good }, remote_at),
        (link(two, flags, 0, 8192), ListArgs { remote: 0, ..good }, remote_at),
        (link(two, flags, 0, 8193), good, length),
        (link(two, flags, 0, 0), good, length),
        (link(two, flags, 1, 8192), good, base),
        (link(two, empty, 0, 8192), good, flags_at),
        (link(two, flags | LinkFlags::REMOTE_WRITE, 0, 8192), good, flags_at),
        (link(two, flags, 0, 4096), ListArgs { first_byte_offset: 4096, ..good }, fbo),
        (link(two, flags, 0, 8192), ListArgs { list: MEMORY, ..good }, ARGS),
        (link(0, flags, 0, 8192), good, key_at),
        (link(two ^ 1, flags, 0, 8192), good, key_at),
        (link(narrow, flags, 0, 8192), good, key_at),
        (link(other, flags, 0, 8192), good, key_at),
    ];
    for (head, args, field) in cases {
        let (mut a, _) = rig.pair_of(0, 0, privileged());
        rig.post_args(&mut a, head, zerocopy::transmute!(args));
        let sent = rig.sent(&mut a);
        assert_eq!((status(&sent), sent.detail), (Status::MemoryManagement, field), "{head:?} {args:?}");
        assert_eq!(query(&mut rig, 0, two).linked, 0);
        rig.events(0);
    }
    // Only a privileged queue pair may link, and a linked region may not be linked again.
    let (mut a, _) = rig.pair();
    rig.post_args(&mut a, link(two, flags, 0, 8192), zerocopy::transmute!(good));
    let sent = rig.sent(&mut a);
    assert_eq!((status(&sent), sent.detail), (Status::MemoryManagement, 0));
    let (mut a, _) = rig.pair_of(0, 0, privileged());
    for count in [1, 2] {
        let args = ListArgs { remote: remote(two, count), ..good };
        rig.post_args(&mut a, link(two, flags, 0, 8192), zerocopy::transmute!(args));
    }
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    assert_eq!(status(&rig.sent(&mut a)), Status::MemoryManagement);
    assert_eq!(query(&mut rig, 0, two).remote, remote(two, 1));
}

#[test]
fn an_invalidate_that_is_wrong_fails() {
    let mut rig = Rig::new(1);
    let unlinked = allocate(&mut rig, 0, 1);
    let (linked, _) = rig.region(0, 64);
    for (key, expected) in [
        (0, Status::MemoryManagement),
        (unlinked, Status::MemoryManagement),
        (linked ^ 1 << 8, Status::MemoryManagement),
        (linked ^ 1, Status::MemoryManagement),
        (0xffff, Status::MemoryManagement),
        (linked, Status::Success),
        (linked, Status::MemoryManagement),
    ] {
        let (mut a, _) = rig.pair();
        rig.post_args(&mut a, invalidate(key), [0; 4]);
        assert_eq!(status(&rig.sent(&mut a)), expected, "{key:#x}");
    }
}

/// A region that was allocated and linked through `qp` to 64 bytes.
pub(crate) fn linked(rig: &mut Rig, n: usize, qp: &mut Qp, flags: LinkFlags) -> u32 {
    let key = allocate(rig, n, 1);
    let args = ListArgs { list: rig.alloc(64), remote: remote(key, 1), ..ListArgs::default() };
    rig.post_args(qp, link(key, flags | LinkFlags::CONTIGUOUS, 0, 64), zerocopy::transmute!(args));
    assert_eq!(status(&rig.sent(qp)), Status::Success);
    key
}

#[test]
fn a_local_key_is_no_remote_key_nor_the_other_way_round() {
    for case in 0..4 {
        let mut rig = Rig::new(2);
        let (mut a, mut b) = rig.pair_of(0, 1, privileged());
        let key = linked(&mut rig, 1, &mut b, ALL_RIGHTS | LinkFlags::RELATIVE);
        let (from, _) = rig.region(0, 64);
        let (named, local) = (remote(key, 1), case % 2 == 0);
        match case {
            0 | 1 => {
                let used = if local { key } else { named };
                rig.post(&mut b, rdma(wqe::Opcode::Write, 1, from, 0), &[segment(used, 0, 8)]);
                let expected = if local { Status::Success } else { Status::LocalProtection };
                assert_eq!(status(&rig.sent(&mut b)), expected);
            }
            _ => {
                let used = if local { key } else { named };
                rig.post(&mut a, rdma(wqe::Opcode::Write, 1, used, 0), &[segment(from, 0, 8)]);
                let expected = if local { Status::RemoteAccess } else { Status::Success };
                assert_eq!(status(&rig.sent(&mut a)), expected);
            }
        }
        // Commands name the region by its local key.
        assert_eq!(rig.command(1, Opcode::QueryKey, named, &()), Err((Admin::NoSuchObject, 8)));
        assert_eq!(rig.command(1, Opcode::DestroyRegion, named, &()), Err((Admin::NoSuchObject, 8)));
    }
}

#[test]
fn an_atomic_needs_the_rights_to_read_and_write_too() {
    let rights = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::RELATIVE;
    let all = REMOTE;
    for missing in [LinkFlags::REMOTE_READ, LinkFlags::REMOTE_WRITE, LinkFlags::REMOTE_ATOMIC] {
        let mut rig = Rig::new(2);
        let (mut a, _b) = rig.pair();
        let (sink, _) = rig.region(0, 8);
        for (granted, expected) in [(all, Status::Success), (all.difference(missing), Status::RemoteAccess)] {
            let (to, _) = rig.region_with(1, 8, rights | granted, 0);
            let head = Header { segments: 1, ..rdma(wqe::Opcode::FetchAdd, 1, to, 0) };
            let args = wqe::AtomicArgs { sink: segment(sink, 0, 8), compare_add: 1, swap: 0 };
            rig.post_args(&mut a, head, zerocopy::transmute!(args));
            assert_eq!(status(&rig.sent(&mut a)), expected, "without {missing:?}");
        }
    }
}

#[test]
fn the_right_to_atomics_alone_is_for_atomics_alone() {
    let local = LinkFlags::LOCAL_READ | LinkFlags::LOCAL_WRITE | LinkFlags::RELATIVE;
    for (opcode, expected) in [
        (wqe::Opcode::FetchAdd, Status::Success),
        (wqe::Opcode::CompareSwap, Status::Success),
        (wqe::Opcode::Read, Status::RemoteAccess),
        (wqe::Opcode::Write, Status::RemoteAccess),
    ] {
        let mut rig = Rig::new(2);
        let (mut a, _b) = rig.pair();
        let (sink, _) = rig.region(0, 8);
        let (to, _) = rig.region_with(1, 8, local | LinkFlags::ATOMIC_ALONE, 0);
        let head = Header { segments: 1, ..rdma(opcode, 1, to, 0) };
        match opcode {
            wqe::Opcode::FetchAdd | wqe::Opcode::CompareSwap => {
                let args = wqe::AtomicArgs { sink: segment(sink, 0, 8), compare_add: 1, swap: 0 };
                rig.post_args(&mut a, head, zerocopy::transmute!(args));
            }
            _ => rig.post(&mut a, head, &[segment(sink, 0, 8)]),
        }
        assert_eq!(status(&rig.sent(&mut a)), expected, "{opcode:?}");
    }
}

#[test]
fn a_modified_region_has_what_was_asked_for_and_another_remote_key() {
    let mut rig = Rig::new(2);
    let (mut a, _b) = rig.pair();
    let (from, _) = rig.region(0, 64);
    let (key, _) = rig.region_with(1, 64, ALL_RIGHTS | LinkFlags::RELATIVE, 0);
    rig.command(1, Opcode::CreatePd, 7, &()).unwrap();
    let field = |name: usize| 16 + name as u16;
    let rights_at = field(offset_of!(ModifyRegion, rights));
    let modify = ModifyRegion { pd: 0, flags: 0, rights: 0, remote: remote(key, 9) };
    let unlinked = allocate(&mut rig, 1, 1);
    let of_unlinked = ModifyRegion { remote: remote(unlinked, 9), ..modify };
    let narrow = window(&mut rig, 1, 2);
    for (object, args, refusal) in [
        (key, ModifyRegion { pd: 6, ..modify }, (Admin::NoSuchObject, 16)),
        (key, ModifyRegion { flags: 1, ..modify }, (Admin::BadField, 20)),
        (key, ModifyRegion { rights: 1, flags: 8, ..modify }, (Admin::BadField, 20)),
        (key, ModifyRegion { rights: 1, flags: 1 << 9, ..modify }, (Admin::BadField, 20)),
        (key, ModifyRegion { rights: 2, ..modify }, (Admin::BadField, rights_at)),
        (key, ModifyRegion { remote: unlinked, ..modify }, (Admin::BadField, rights_at + 4)),
        (unlinked, ModifyRegion { rights: 1, flags: 1, ..of_unlinked }, (Admin::BadState, rights_at)),
        (narrow, ModifyRegion { remote: narrow, ..modify }, (Admin::NoSuchObject, 8)),
        (remote(key, 4), modify, (Admin::NoSuchObject, 8)),
    ] {
        let before = query(&mut rig, 1, key);
        assert_eq!(rig.command(1, Opcode::ModifyRegion, object, &args), Err(refusal), "{args:?}");
        let after = query(&mut rig, 1, key);
        assert_eq!((after.remote, after.flags, after.pd), (before.remote, before.flags, before.pd));
    }
    rig.command(1, Opcode::ModifyRegion, unlinked, &ModifyRegion { pd: 7, ..of_unlinked }).unwrap();
    assert_eq!(query(&mut rig, 1, unlinked).pd, 7);
    // The rights change alone. The former remote key becomes invalid.
    let read = (LinkFlags::LOCAL_READ | LinkFlags::REMOTE_READ).bits();
    let args = ModifyRegion { rights: 1, flags: read, ..modify };
    rig.command(1, Opcode::ModifyRegion, key, &args).unwrap();
    let info = query(&mut rig, 1, key);
    assert_eq!((info.pd, info.remote, info.flags & 0x3f), (PD, remote(key, 9), read));
    rig.post(&mut a, rdma(wqe::Opcode::Read, 1, remote(key, 9), 0), &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::Success);
    rig.post(&mut a, rdma(wqe::Opcode::Read, 1, key, 0), &[segment(from, 0, 8)]);
    assert_eq!(status(&rig.sent(&mut a)), Status::RemoteAccess);
    // The domain changes alone.
    let args = ModifyRegion { pd: 7, remote: remote(key, 10), ..modify };
    rig.command(1, Opcode::ModifyRegion, key, &args).unwrap();
    let info = query(&mut rig, 1, key);
    assert_eq!((info.pd, info.remote, info.flags & 0x3f), (7, remote(key, 10), read));
    assert_eq!(rig.command(1, Opcode::DestroyPd, 7, &()), Err((Admin::Busy, 8)));
    rig.command(1, Opcode::DestroyRegion, key, &()).unwrap();
    rig.command(1, Opcode::DestroyRegion, unlinked, &()).unwrap();
    rig.command(1, Opcode::DestroyPd, 7, &()).unwrap();
}

#[test]
fn the_elements_of_all_lists_are_bounded() {
    let mut rig = Rig::new(1);
    let mut keys = Vec::new();
    loop {
        let key = rig.fresh_key();
        let args = AllocateRegion { pd: PD, max_elements: 1 << 18 };
        match rig.command(0, Opcode::AllocateRegion, key, &args) {
            Ok(_) => keys.push(key),
            Err(refusal) => {
                assert_eq!(refusal, (Admin::NoResources, 20));
                break;
            }
        }
    }
    assert_eq!(keys.len(), 16);
    rig.command(0, Opcode::DestroyRegion, keys[3], &()).unwrap();
    allocate(&mut rig, 0, (1 << 18) - 1);
    allocate(&mut rig, 0, 1);
    let one = AllocateRegion { pd: PD, max_elements: 1 };
    let key = rig.fresh_key();
    assert_eq!(rig.command(0, Opcode::AllocateRegion, key, &one), Err((Admin::NoResources, 20)));
    for max_elements in [0, (1 << 18) + 1] {
        let args = AllocateRegion { pd: PD, max_elements };
        let key = rig.fresh_key();
        assert_eq!(rig.command(0, Opcode::AllocateRegion, key, &args), Err((Admin::BadField, 20)));
    }
}
