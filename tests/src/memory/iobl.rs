//! Regions over I/O buffer lists, and mapping memory for I/O (pages it_iobl_t, it_io_addr_t,
//! it_mem_map, it_mem_unmap, it_lmr_create).

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::result::Result;

use platform::DmaBuffer;
use platform::pages::PageByPage;
use privileged_api::*;

use crate::check::some;
use crate::fixture::{Fixture, OPEN, PAGE, SIGNALLED, attributes, pattern, read, write};
use crate::{Failure, Outcome, Test, check, check_eq, refused, test};

/// The I/O address of a buffer, which must be contiguous for the NIC.
#[track_caller]
pub(crate) fn map(ia: &Ia, buffer: &DmaBuffer) -> Result<IoAddr, Failure> {
    let (io_addr, mapped) = ia.mem_map(buffer.addr(), 0, buffer.len())?;
    match mapped == buffer.len() {
        true => Ok(io_addr),
        false => Err(Failure::new("the buffer is not contiguous for the NIC")),
    }
}

/// A buffer and pieces of it that a list names out of order.
pub(crate) struct Scattered {
    /// The memory.
    pub buffer: Arc<DmaBuffer>,
    /// The pieces' I/O addresses.
    pub pieces: Vec<IoAddr>,
    /// The pieces' offsets in the buffer.
    pub offsets: Vec<usize>,
}

/// A buffer with `count` pieces of `len` bytes, `stride` apart, in descending order.
pub(crate) fn scattered(
    f: &Fixture,
    ia: &Ia,
    count: usize,
    len: usize,
    stride: usize,
) -> Result<Scattered, Failure> {
    check_sizes(len, stride)?;
    let buffer = f.buffer(count * stride)?;
    let base = map(ia, &buffer)?;
    let offsets: Vec<usize> = (0..count).rev().map(|i| i * stride).collect();
    let pieces = offsets.iter().map(|&offset| IoAddr(base.0 + offset as u64)).collect();
    Ok(Scattered { buffer, pieces, offsets })
}

/// Fails if the pieces overlap.
fn check_sizes(len: usize, stride: usize) -> Outcome {
    check!(len <= stride);
    Ok(())
}

impl Scattered {
    /// The content of a region that begins `fbo` bytes into the first piece of `len` bytes.
    pub fn content(&self, len: usize, fbo: usize, length: usize) -> Vec<u8> {
        let all: Vec<u8> = self.offsets.iter().flat_map(|&offset| read(&self.buffer, offset, len)).collect();
        all[fbo..fbo + length].to_vec()
    }
}

/// Checks, by reading the region from the peer, that a region over the list holds `content`.
fn reads_as(f: &Fixture, list: &Iobl<'_>, addr: Option<usize>, length: usize, content: &[u8]) -> Outcome {
    let pair = f.pair()?;
    let memory = LmrMemory::Iobl { addr: addr.unwrap_or(0), iobl: list };
    let mode = if addr.is_some() { AddrMode::Absolute } else { AddrMode::Relative };
    let (lmr, context) = f.b.lmr_create(pair.b.pz, memory, length as u64, mode, OPEN, LmrFlags::NONE, 0)?;
    let sink = f.region(&f.a, pair.a.pz, length, OPEN)?;
    let from = match addr {
        Some(addr) => make_rdma_addr_absolute(addr),
        None => make_rdma_addr_relative(0),
    };
    let context = some(context, "a context")?;
    f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 1, SIGNALLED, from, context)?;
    pair.a.done(1, DtoStatus::Success)?;
    check!(sink.all() == content, "the region's bytes");
    // The byte behind the region is outside of it.
    let past = RdmaAddr(hton64(from.to_host() + 1));
    f.a.post_rdma_read(pair.a.ep, &[sink.whole()], 2, SIGNALLED, past, context)?;
    pair.a.done(2, DtoStatus::RemoteAccess)?;
    f.b.lmr_free(lmr)?;
    Ok(())
}

/// Creates a region over this list, and returns the error if that is refused.
fn created(f: &Fixture, list: &Iobl<'_>, addr: Option<usize>, length: u64) -> Result<(), Error> {
    let pz = f.a.pz_create()?;
    let memory = LmrMemory::Iobl { addr: addr.unwrap_or(0), iobl: list };
    let mode = if addr.is_some() { AddrMode::Absolute } else { AddrMode::Relative };
    let (lmr, _) = f.a.lmr_create(pz, memory, length, mode, OPEN, LmrFlags::NONE, 0)?;
    f.a.lmr_free(lmr)?;
    f.a.pz_free(pz)
}

/// An address for a region over a list. It need not be the address of any memory.
const BASE: usize = 0x7000_0000_0000;

pub(crate) const TESTS: &[Test] = &[
    // A region over pages in any order is contiguous in its own address space.
    test(
        "iobl::page_list",
        &[
            "it_io_addr_t B01 V01",
            "it_iobl_t B01 B05 B06 F01 F06-F08 F10",
            "it_lmr_create B07 B08",
            "it_ia_info_t B12 F77",
            "it_mem_map B05",
        ],
        |f| {
            check_eq!(IoblTypes::PAGE_LIST.bits(), 1);
            check!(f.a.ia_query()?.iobl_types_supported.contains(IoblTypes::PAGE_LIST));
            let memory = scattered(f, &f.b, 5, PAGE, PAGE)?;
            write(&memory.buffer, 0, &pattern(1, 5 * PAGE));
            let list = Iobl::pages(&memory.pieces, PAGE as u64, 0);
            let content = memory.content(PAGE, 0, 5 * PAGE);
            reads_as(f, &list, Some(BASE), 5 * PAGE, &content)?;
            reads_as(f, &list, None, 5 * PAGE, &content)
        },
    ),
    // The region begins at the offset in the first page, and its last page may be used in part.
    test("iobl::page_list_with_a_first_byte_offset", &["it_iobl_t B04 F11", "it_lmr_create B06"], |f| {
        let memory = scattered(f, &f.b, 3, PAGE, PAGE)?;
        write(&memory.buffer, 0, &pattern(2, 3 * PAGE));
        for (fbo, length) in [(1, 3 * PAGE - 1), (4095, 2 * PAGE), (777, 4000), (4095, 1)] {
            let list = Iobl::pages(&memory.pieces, PAGE as u64, fbo as u64);
            let content = memory.content(PAGE, fbo, length);
            reads_as(f, &list, Some(BASE + fbo), length, &content)?;
            reads_as(f, &list, None, length, &content)?;
        }
        Ok(())
    }),
    // Pages may be larger than the system's page.
    test("iobl::larger_pages", &["it_iobl_t F01 F08"], |f| {
        let size = 4 * PAGE;
        let buffer = f.buffer(4 * size)?;
        let base = map(&f.b, &buffer)?;
        // The first pages of this size that are aligned within the buffer.
        let skip = base.0.next_multiple_of(size as u64) - base.0;
        let pages = [1, 0, 2].map(|i| IoAddr(base.0 + skip + i * size as u64));
        let filled = pattern(3, 4 * size);
        write(&buffer, 0, &filled);
        let list = Iobl::pages(&pages, size as u64, 5);
        let at = |page: usize| filled[skip as usize + page * size..][..size].to_vec();
        let all = [at(1), at(0), at(2)].concat();
        let length = 3 * size - 5;
        reads_as(f, &list, Some(BASE + 5), length, &all[5..])
    }),
    // Blocks of a common length need neither alignment nor order.
    test("iobl::block_list", &["it_iobl_t B01 B02 F02 F07 F08", "it_ia_info_t F77"], |f| {
        check_eq!(IoblTypes::BLOCK_LIST.bits(), 2);
        check!(f.a.ia_query()?.iobl_types_supported.contains(IoblTypes::BLOCK_LIST));
        // Blocks may have any length and any address.
        for (len, stride, fbo) in [(512, 512, 0), (512, 512, 40), (500, 777, 0), (1, 3, 0), (333, 1001, 332)]
        {
            let memory = scattered(f, &f.b, 7, len, stride)?;
            write(&memory.buffer, 0, &pattern(4, 7 * stride));
            let list = Iobl::blocks(&memory.pieces, len as u64, fbo as u64);
            let length = 7 * len - fbo;
            let content = memory.content(len, fbo, length);
            // The address of a block list need not agree with the offset.
            reads_as(f, &list, Some(BASE + 17), length, &content)?;
            reads_as(f, &list, None, length, &content)?;
        }
        Ok(())
    }),
    // Pages of different lengths can be combined.
    test("iobl::variable_page_list", &["it_iobl_t F03-F05 F09", "it_ia_info_t F77"], |f| {
        check_eq!(IoblTypes::VE_PAGE_LIST.bits(), 4);
        check!(f.a.ia_query()?.iobl_types_supported.contains(IoblTypes::VE_PAGE_LIST));
        let buffer = f.buffer(8 * PAGE)?;
        let base = map(&f.b, &buffer)?;
        let filled = pattern(5, 8 * PAGE);
        write(&buffer, 0, &filled);
        let skip = base.0.next_multiple_of(2 * PAGE as u64) - base.0;
        let parts =
            [(skip as usize + 4 * PAGE, PAGE), (skip as usize, 2 * PAGE), (skip as usize + 3 * PAGE, PAGE)];
        let elements =
            parts.map(|(at, len)| IoblVeElt { io_addr: IoAddr(base.0 + at as u64), elt_len: len as u64 });
        let all = parts.map(|(at, len)| filled[at..at + len].to_vec()).concat();
        for fbo in [0, 100, PAGE - 1] {
            let list = Iobl::ve_pages(&elements, fbo as u64);
            let length = 4 * PAGE - fbo;
            reads_as(f, &list, Some(BASE + fbo), length, &all[fbo..])?;
            reads_as(f, &list, None, length, &all[fbo..])?;
        }
        Ok(())
    }),
    // A length up to the end of the list is accepted, a longer one is refused.
    test(
        "iobl::a_region_may_be_shorter_than_its_list",
        &["it_lmr_create L01 IT_ERR_INVALID_LENGTH", "it_status_t F45"],
        |f| {
            let memory = scattered(f, &f.b, 3, PAGE, PAGE)?;
            write(&memory.buffer, 0, &pattern(6, 3 * PAGE));
            let list = Iobl::pages(&memory.pieces, PAGE as u64, 96);
            reads_as(f, &list, Some(BASE + 96), 5000, &memory.content(PAGE, 96, 5000))?;
            for length in [3 * PAGE as u64 - 95, 3 * PAGE as u64] {
                refused(created(f, &list, Some(BASE + 96), length), Error::InvalidLength)?;
                refused(created(f, &list, None, length), Error::InvalidLength)?;
            }
            created(f, &list, Some(BASE + 96), 3 * PAGE as u64 - 96)?;
            check_eq!(Error::InvalidLength as u32, 44);
            Ok(())
        },
    ),
    // The offset must lie within the first element.
    test(
        "iobl::first_byte_offset_outside_of_the_first_element",
        &["it_iobl_t L01 L02", "it_lmr_create B13 IT_ERR_INVALID_IOBL", "it_status_t F44"],
        |f| {
            let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
            let page = PAGE as u64;
            let elements = [page, page].map(|elt_len| IoblVeElt { io_addr: memory.pieces[0], elt_len });
            for fbo in [page, page + 1, 2 * page, u64::MAX] {
                for list in [
                    Iobl::pages(&memory.pieces, page, fbo),
                    Iobl::blocks(&memory.pieces, page, fbo),
                    Iobl::ve_pages(&elements, fbo),
                ] {
                    refused(created(f, &list, None, 1), Error::InvalidIobl)?;
                }
            }
            check_eq!(Error::InvalidIobl as u32, 43);
            Ok(())
        },
    ),
    // A page size that is not supported, and a page that is not aligned, are refused.
    test("iobl::page_sizes_and_alignment", &["it_lmr_create B12 B14 IT_ERR_INVALID_IOBL"], |f| {
        let memory = scattered(f, &f.a, 4, PAGE, PAGE)?;
        for elt_len in [0, 1, 2048, 4095, 4097, 3 * PAGE as u64, u64::MAX] {
            let list = Iobl::pages(&memory.pieces[..1], elt_len, 0);
            refused(created(f, &list, None, 1), Error::InvalidIobl)?;
            let element = [IoblVeElt { io_addr: memory.pieces[0], elt_len }];
            refused(created(f, &Iobl::ve_pages(&element, 0), None, 1), Error::InvalidIobl)?;
        }
        refused(created(f, &Iobl::blocks(&memory.pieces[..1], 0, 0), None, 1), Error::InvalidIobl)?;
        for shift in [1, 8, 2048, 4095] {
            let pages = [memory.pieces[0], IoAddr(memory.pieces[1].0 + shift)];
            refused(created(f, &Iobl::pages(&pages, PAGE as u64, 0), None, 64), Error::InvalidIobl)?;
            let elements = pages.map(|io_addr| IoblVeElt { io_addr, elt_len: PAGE as u64 });
            refused(created(f, &Iobl::ve_pages(&elements, 0), None, 64), Error::InvalidIobl)?;
            // Blocks need not be aligned.
            created(f, &Iobl::blocks(&[IoAddr(memory.pieces[1].0 + shift)], 1, 0), None, 1)?;
        }
        Ok(())
    }),
    // The address of a page list must have the same offset within a page as the memory.
    test("iobl::absolute_pages_agree_with_their_address", &["it_lmr_create B09 IT_ERR_INVALID_IOBL"], |f| {
        let memory = scattered(f, &f.a, 2, PAGE, PAGE)?;
        let list = |fbo| Iobl::pages(&memory.pieces, PAGE as u64, fbo);
        for (addr, fbo) in [(BASE + 1, 0), (BASE, 1), (BASE + 100, 99), (BASE + PAGE / 2, 0)] {
            refused(created(f, &list(fbo), Some(addr), 64), Error::InvalidIobl)?;
            // With relative addressing the address is ignored.
            created(f, &list(fbo), None, 64)?;
        }
        for (addr, fbo) in [(BASE, 0), (BASE + 100, 100), (BASE + 5 * PAGE + 4095, 4095), (0, 0)] {
            created(f, &list(fbo), Some(addr), 1)?;
        }
        Ok(())
    }),
    // Lists without elements, and lists with more than the adapter's maximum, are refused.
    test("iobl::number_of_elements", &["it_lmr_create B11 V04 IT_ERR_INVALID_IOBL"], |f| {
        let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
        refused(created(f, &Iobl::pages(&[], PAGE as u64, 0), None, 1), Error::InvalidIobl)?;
        refused(created(f, &Iobl::blocks(&[], 64, 0), None, 1), Error::InvalidIobl)?;
        refused(created(f, &Iobl::ve_pages(&[], 0), None, 1), Error::InvalidIobl)?;
        // The device limits the number of elements.
        let limit = f.setup.a.agent.identity().max_list_elements as usize;
        let many = vec![memory.pieces[0]; limit + 1];
        refused(created(f, &Iobl::pages(&many, PAGE as u64, 0), None, 1), Error::InvalidIobl)?;
        created(f, &Iobl::pages(&many[..limit], PAGE as u64, 0), None, 1)?;
        Ok(())
    }),
    // A list names bus addresses, so only a privileged IA may register one.
    test(
        "iobl::lists_are_for_the_privileged",
        &["it_lmr_create B05 IT_ERR_NO_PERMISSION", "it_status_t F82"],
        |f| {
            let memory = scattered(f, &f.a, 1, PAGE, PAGE)?;
            let ia = f.unprivileged()?;
            let pz = ia.pz_create()?;
            let list = Iobl::pages(&memory.pieces, PAGE as u64, 0);
            let by_list = LmrMemory::Iobl { addr: 0, iobl: &list };
            let created = ia.lmr_create(pz, by_list, 64, AddrMode::Relative, OPEN, LmrFlags::NONE, 0);
            refused(created, Error::NoPermission)?;
            check!(ia.object_counts().lmr == 0);
            // An unprivileged IA may register its own memory.
            f.region(&ia, pz, 64, OPEN)?;
            check_eq!(Error::NoPermission as u32, 81);
            Ok(())
        },
    ),
    // Repeated calls map a whole buffer piece by piece, and each I/O address is the one of that
    // place in the buffer.
    test(
        "mem_map::pieces_cover_the_buffer",
        &["it_mem_map B02 B04 L01", "it_mem_unmap B02", "it_io_addr_t F01"],
        |f| {
            let len = 16 * PAGE;
            let buffer = f.buffer(len)?;
            let (mut done, mut pieces) = (100, Vec::new());
            while done < len {
                let (io_addr, mapped) = f.a.mem_map(buffer.addr() + done, 0, len - done)?;
                check!(mapped > 0 && mapped <= len - done, "mapped {mapped} bytes");
                // The I/O addresses are those of the buffer itself.
                check_eq!(io_addr.0, buffer.bus() + done as u64);
                pieces.push((io_addr, mapped));
                done += mapped;
            }
            check_eq!(f.a.object_counts().mappings, pieces.len());
            for (io_addr, mapped) in pieces {
                f.a.mem_unmap(io_addr, mapped)?;
            }
            check_eq!(f.a.object_counts().mappings, 0);
            Ok(())
        },
    ),
    // Bus addresses are for privileged IAs only.
    test(
        "mem_map::for_the_privileged_only",
        &["it_mem_map B01 IT_ERR_NO_PERMISSION", "it_mem_unmap B01 IT_ERR_NO_PERMISSION"],
        |f| {
            let ia = f.unprivileged()?;
            let buffer = f.buffer(PAGE)?;
            refused(ia.mem_map(buffer.addr(), 0, PAGE), Error::NoPermission)?;
            let io_addr = map(&f.a, &buffer)?;
            refused(ia.mem_unmap(io_addr, PAGE), Error::NoPermission)?;
            check_eq!(f.a.object_counts().mappings, 1);
            f.a.mem_unmap(io_addr, PAGE)?;
            Ok(())
        },
    ),
    // Ranges without memory, and unknown address spaces, are refused.
    test("mem_map::bad_ranges", &["it_iobl_t V03", "it_mem_map F01 IT_ERR_FAULT"], |f| {
        let buffer = f.buffer(PAGE)?;
        for (vaddr, len) in
            [(buffer.addr(), usize::MAX), (usize::MAX, 1), (usize::MAX - 5, 100), (1 << 46, PAGE)]
        {
            refused(f.a.mem_map(vaddr, 0, len), Error::Fault)?;
        }
        // The kernel's address space is the only one.
        let (io_addr, mapped) = f.a.mem_map(buffer.addr(), ASPACE_KERNEL, PAGE)?;
        f.a.mem_unmap(io_addr, mapped)?;
        check_eq!(ASPACE_KERNEL, 0);
        refused(f.a.mem_map(buffer.addr(), 1, PAGE), Error::Fault)?;
        refused(f.a.mem_map(buffer.addr(), u64::MAX, PAGE), Error::Fault)?;
        check_eq!(f.a.object_counts().mappings, 0);
        Ok(())
    }),
    // Where the platform maps one page at a time, the calls return one page each and the pages make
    // a list.
    test("mem_map::memory_in_single_pages", &["it_mem_map B03 B05"], |f| {
        // The same NIC behind a platform that translates one page at a time.
        let provider = Provider::new(Arc::new(PageByPage::new(f.platform().clone())));
        f.setup.transport.add(&provider, "paged", f.setup.a.agent.clone(), Limits::NONE)?;
        let ia = provider.ia_create("paged", 2, 1, Some(f.setup.privileged))?;
        let len = 3 * PAGE + 100;
        let buffer = f.buffer(len)?;
        write(&buffer, 0, &pattern(6, len));
        // The page asks consumers to call again until all memory is mapped.
        let (first, mut done, mut elements) = (8, 8, Vec::new());
        while done < len {
            let (io_addr, mapped) = ia.mem_map(buffer.addr() + done, ASPACE_KERNEL, len - done)?;
            check_eq!(mapped, (PAGE - done % PAGE).min(len - done));
            elements.push(IoblVeElt { io_addr, elt_len: mapped as u64 });
            done += mapped;
        }
        check_eq!((elements.len(), ia.object_counts().mappings), (4, 4));
        // A list of pages needs whole pages, so each address is rounded down to its page.
        let pages: Vec<IoAddr> = elements.iter().map(|element| IoAddr(element.io_addr.0 & !0xfff)).collect();
        let list = Iobl::pages(&pages, PAGE as u64, first as u64);
        let (a, b) = (f.end(&ia, &attributes())?, f.end(&f.b, &attributes())?);
        f.connect(&a, &b)?;
        let memory = LmrMemory::Iobl { addr: 0, iobl: &list };
        let (length, mode) = ((len - first) as u64, AddrMode::Relative);
        let (lmr, _) = ia.lmr_create(a.pz, memory, length, mode, OPEN, LmrFlags::NONE, 0)?;
        let sink = f.region(&f.b, b.pz, len - first, OPEN)?;
        let (to, context) = (sink.remote(0), sink.context()?);
        ia.post_rdma_write(a.ep, &[LmrTriplet::new(lmr, 0, length)], 1, SIGNALLED, to, context)?;
        a.done(1, DtoStatus::Success)?;
        check!(f.arrives(|| sink.all() == pattern(6, len)[first..]));
        for element in elements {
            ia.mem_unmap(element.io_addr, element.elt_len as usize)?;
        }
        Ok(ia.ia_free()?)
    }),
    // A length of zero is refused. If it succeeded with nothing mapped, the consumer's loop would
    // never end.
    test("mem_map::a_length_of_zero_is_refused", &["it_mem_map V01"], |f| {
        let buffer = f.buffer(PAGE)?;
        refused(f.a.mem_map(buffer.addr(), 0, 0), Error::Fault)
    }),
    // Only a whole mapping of this IA can be unmapped, and once.
    test("mem_map::unmap_only_what_was_mapped", &["it_mem_unmap B03 V02 V03 IT_ERR_FAULT"], |f| {
        let buffer = f.buffer(2 * PAGE)?;
        let io_addr = map(&f.a, &buffer)?;
        let len = 2 * PAGE;
        for (at, mapped) in [
            (io_addr, len - 1),
            (io_addr, len + 1),
            (io_addr, PAGE),
            (io_addr, 0),
            (IoAddr(io_addr.0 + PAGE as u64), PAGE),
            (IoAddr(0), len),
            (IoAddr(u64::MAX), usize::MAX),
        ] {
            refused(f.a.mem_unmap(at, mapped), Error::Fault)?;
        }
        // An IA cannot unmap another IA's mapping.
        refused(f.b.mem_unmap(io_addr, len), Error::Fault)?;
        f.a.mem_unmap(io_addr, len)?;
        refused(f.a.mem_unmap(io_addr, len), Error::Fault)
    }),
];
