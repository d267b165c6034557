//! Protection tags and RDMA enables (3.2.2; pages VipCreatePtag, VipDestroyPtag).

use core::result::Result;

use vipl::*;

use super::levels::{exchange, retire};
use super::world::*;
use crate::fixture::PAGE;
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// Sends from a segment, and receives into it: both end with these errors.
#[track_caller]
fn both_ways(a: &Side, b: &Side, segment: DataSegment, errors: Status) -> Outcome {
    if errors.is_empty() {
        b.receive(0, &[b.data(0, 8)])?;
    }
    a.send(0, &[segment], None)?;
    if errors.is_empty() {
        a.sent_well(0)?;
        b.received_well(0)?;
    } else {
        failed(a.sent(0)?, errors)?;
    }
    a.receive(1, &[segment])?;
    b.send(1, &[b.data(100, 8)], None)?;
    b.sent_well(1)?;
    if errors.is_empty() { a.received_well(1) } else { failed(a.received(1)?, errors) }
}

/// A pair on Reliable Reception. The flags say whether the second end enables its peer's RDMA
/// Writes and Reads.
fn target(w: &World<'_>, write: bool, read: bool) -> Result<(Side, Side), Failure> {
    let level = ReliabilityLevel::Reception;
    let a = w.side(&w.a, level, NO_CQS)?;
    let b = w.side_with(&w.b, NO_CQS, |ptag| ViAttributes {
        enable_rdma_write: write,
        enable_rdma_read: read,
        ..attributes(ptag, level)
    })?;
    w.connect(&a, &b)?;
    Ok((a, b))
}

/// The results of an RDMA Write to this region, and on another pair of an RDMA Read from it.
fn rdma(w: &World<'_>, vi: [bool; 2], region: [bool; 2], changed: bool) -> Result<[bool; 2], Failure> {
    let mut outcome = [false; 2];
    for (kind, worked) in outcome.iter_mut().enumerate() {
        let (a, b) = target(w, vi[0], vi[1])?;
        let [enable_rdma_write, enable_rdma_read] = region;
        let wanted = MemAttributes { ptag: b.ptag, enable_rdma_write, enable_rdma_read };
        let first = match changed {
            true => MemAttributes {
                enable_rdma_write: !enable_rdma_write,
                enable_rdma_read: !enable_rdma_read,
                ..wanted
            },
            false => wanted,
        };
        let memory = w.region(&b.nic, PAGE, &first)?;
        if changed {
            b.nic.set_mem_attributes(memory.address(0), memory.handle, &wanted)?;
        }
        // The attributes of the initiator's own memory do not matter.
        let own = w.region(&a.nic, PAGE, &MemAttributes::new(a.ptag))?;
        if kind == 0 {
            own.fill(5);
            a.rdma_write(0, &memory.remote(0), &[own.segment(0, 100)], None)?;
        } else {
            memory.fill(6);
            a.rdma_read(0, &memory.remote(0), &[own.segment(0, 100)])?;
        }
        let status = a.sent(0)?;
        *worked = is_success(status);
        if *worked {
            check_eq!(own.bytes(0, 100), memory.bytes(0, 100));
        } else {
            failed(status, Status::RDMA_PROT_ERROR)?;
            if kind == 0 { &memory } else { &own }.untouched()?;
        }
        for (side, region) in [(&a, &own), (&b, &memory)] {
            side.nic.deregister_mem(region.address(0), region.handle)?;
            retire(side)?;
        }
    }
    Ok(outcome)
}

pub(crate) const TESTS: &[Test] = &[
    // A virtual interface can use only memory with its own tag, for data and for descriptors.
    // Changing the tag of the memory or of the virtual interface changes the result.
    test(
        "via_tags::access",
        &[
            "VipCreatePtag B01-B03",
            "VIP_VI_ATTRIBUTES F04",
            "VIP_MEM_ATTRIBUTES F01",
            "via-3.2.2.1 A01 B02 B04-B06",
            "via-11.3 B05",
        ],
        |f| {
            world(f, |w| {
                let level = ReliabilityLevel::Unreliable;
                let (a, b) = w.pair(level)?;
                let other = a.nic.create_ptag()?;
                let region = w.region(&a.nic, PAGE, &open_memory(other))?;
                let segment = region.segment(8, 8);
                both_ways(&a, &b, segment, Status::PROTECTION_ERROR)?;
                region.untouched()?;
                // A descriptor in that memory is refused.
                let errors = w.errors(&a.nic)?;
                let descriptor = region.descriptor(64, 1)?;
                descriptor.send(&[a.data(0, 8)], None)?;
                a.nic.post_send(a.vi, descriptor.address(), region.handle)?;
                errors.expect(&a, ErrorCode::PostDesc)?;
                check_eq!(descriptor.status(), Status::empty());
                // The same bytes under a second handle and the right tag.
                let again =
                    a.nic.register_mem(Memory::buffer(&region.buffer), PAGE as u64, &open_memory(a.ptag))?;
                both_ways(&a, &b, DataSegment { handle: again.as_raw(), ..segment }, Status::empty())?;
                both_ways(&a, &b, segment, Status::PROTECTION_ERROR)?;
                // The memory gets the tag of the virtual interface, and then loses it again.
                let at = region.address(0);
                a.nic.set_mem_attributes(at, region.handle, &open_memory(a.ptag))?;
                both_ways(&a, &b, segment, Status::empty())?;
                a.nic.post_send(a.vi, descriptor.address(), region.handle)?;
                check_eq!(a.nic.send_wait(a.vi, LONG)?, descriptor.address());
                success(descriptor.status())?;
                a.nic.set_mem_attributes(at, region.handle, &open_memory(other))?;
                both_ways(&a, &b, segment, Status::PROTECTION_ERROR)?;
                // The virtual interface gets the other tag instead.
                a.disconnect()?;
                b.disconnect()?;
                a.nic.set_vi_attributes(a.vi, &attributes(other, level))?;
                for number in [&a, &b] {
                    number.drain();
                }
                w.connect(&a, &b)?;
                let descriptor = region.descriptor(64, 1)?;
                descriptor.send(&[segment], None)?;
                a.nic.post_send(a.vi, descriptor.address(), region.handle)?;
                check_eq!(a.nic.send_wait(a.vi, LONG)?, descriptor.address());
                success(descriptor.status())?;
                descriptor.send(&[a.data(0, 8)], None)?;
                a.nic.post_send(a.vi, descriptor.address(), region.handle)?;
                check_eq!(a.nic.send_wait(a.vi, LONG)?, descriptor.address());
                failed(descriptor.status(), Status::PROTECTION_ERROR)
            })
        },
    ),
    // A tag that a virtual interface or memory uses cannot be destroyed, and remains valid.
    test(
        "via_tags::destroy",
        &["VipDestroyPtag B01 VIP_ERROR_RESOURCE VIP_INVALID_PARAMETER", "via-11.3 B10"],
        |f| {
            world(f, |w| {
                let (a, b) = w.pair(ReliabilityLevel::Delivery)?;
                let destroy = || a.nic.destroy_ptag(a.ptag);
                refused(destroy(), Error::ErrorResource)?;
                exchange(&a, &b)?;
                a.destroy()?;
                refused(destroy(), Error::ErrorResource)?;
                a.nic.query_mem(a.region.address(0), a.region.handle)?;
                a.nic.deregister_mem(a.region.address(0), a.region.handle)?;
                let vi = a.nic.create_vi(
                    &attributes(a.ptag, ReliabilityLevel::Delivery),
                    CqHandle::NULL,
                    CqHandle::NULL,
                )?;
                refused(destroy(), Error::ErrorResource)?;
                a.nic.destroy_vi(vi)?;
                destroy()?;
                for ptag in [a.ptag, PtagHandle::NULL] {
                    refused(a.nic.destroy_ptag(ptag), Error::InvalidParameter)?;
                }
                let foreign = w.another()?.create_ptag()?;
                refused(a.nic.destroy_ptag(foreign), Error::InvalidParameter)
            })
        },
    ),
    // RDMA of a kind is allowed only if the target's virtual interface and memory both enable it,
    // also after a change of the memory's attributes. Otherwise it ends with a protection error and
    // moves nothing.
    test(
        "via_tags::rdma_enables",
        &[
            "via-3.2.2.2 B01-B03 F01",
            "via-2.3.2 B03",
            "via-11.2.1.4 A01",
            "VipRegisterMem B05",
            "VipSetMemAttributes B01",
            "VIP_VI_ATTRIBUTES F05 F06",
            "VIP_MEM_ATTRIBUTES F02 F03",
        ],
        |f| {
            world(f, |w| {
                for changed in [false, true] {
                    for (vi, region) in [
                        ([true, true], [true, true]),
                        ([true, false], [true, true]),
                        ([false, true], [true, true]),
                        ([true, true], [true, false]),
                        ([true, true], [false, true]),
                        ([false, false], [false, false]),
                    ] {
                        let both = [vi[0] && region[0], vi[1] && region[1]];
                        let worked = rdma(w, vi, region, changed)?;
                        check!(worked == both, "{vi:?} {region:?} changed {changed}: {worked:?}");
                    }
                }
                Ok(())
            })
        },
    ),
];
