//! The driver of virtio disks, with devices that these tests play: what it asks of them, and what
//! it does when they lie.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use block::{Data, Disk, Event, Fault, Piece, Request, Submit};
use kernel::memory;
use kernel::virtio::{self, Unusable};
use platform::DmaBuffer;
use virtio_drivers::transport::DeviceStatus;

use crate::played_disk::{
    ACCESS_PLATFORM, ALL, Behaviour, DISCARD, FLUSH, Found, Played, VERSION_1, WRITE_ZEROES, at, word,
};
use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.virtio.requests_are_those_of_the_specification", requests),
    ("kernel.virtio.a_forced_write_completes_after_a_flush", forced_write),
    ("kernel.virtio.ranges_go_in_parts", ranges),
    ("kernel.virtio.a_disk_without_a_cache_needs_no_flush", no_cache),
    ("kernel.virtio.a_status_says_how_a_request_ended", statuses),
    ("kernel.virtio.bytes_that_were_not_written_are_no_data", short_reads),
    ("kernel.virtio.a_device_that_makes_numbers_up_is_given_up", wrong_numbers),
    ("kernel.virtio.a_device_that_asks_for_a_reset_is_given_up", needs_reset),
    ("kernel.virtio.a_disk_that_grows_or_shrinks_says_so", resized),
    ("kernel.virtio.memory_stays_with_a_device_that_does_not_let_go", no_reset),
    ("kernel.virtio.notifications_are_those_that_are_asked_for", notifications),
    ("kernel.virtio.what_is_no_disk_is_refused", refused),
    ("kernel.virtio.a_disk_that_is_closed_leaves_nothing", leaves_nothing),
];

/// All completions that there are.
pub fn completions(disk: &dyn Disk) -> Vec<(u64, Result<(), Fault>)> {
    let mut all = Vec::new();
    while disk.poll(2, &mut |token, result| all.push((token, result))) > 0 {}
    all
}

/// A buffer of so many bytes.
pub fn buffer(m: &Machine, len: usize) -> Result<Arc<DmaBuffer>, Failure> {
    DmaBuffer::new(&m.platform, len, 4096).map(Arc::new).map_err(|_| Failure::new("no memory"))
}

/// One block.
pub const ONE: [Piece; 1] = [Piece { offset: 0, len: 512 }];

fn requests(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    check(device.state.lock().features == ALL, "a feature is missing")?;
    let buffer = buffer(m, 4096)?;
    let pieces = [Piece { offset: 1000, len: 1000 }, Piece { offset: 8, len: 24 }];
    let data = Data { buffer: &buffer, pieces: &pieces };
    let parts = |write| vec![(buffer.bus() + 1000, 1000, write), (buffer.bus() + 8, 24, write)];
    check(disk.submit(&Request::Read { block: 7, into: data }, 1) == Ok(()), "a read is refused")?;
    let read = device.expect(0)?;
    check(read.sector == 7 && read.parts == parts(true), "the read is another one")?;
    check(disk.submit(&Request::Write { block: 998, from: data, fua: false }, 2) == Ok(()), "refused")?;
    let write = device.expect(1)?;
    check(write.sector == 998 && write.parts == parts(false), "the write is another one")?;
    check(disk.submit(&Request::Flush, 3) == Ok(()), "a flush is refused")?;
    let flush = device.expect(4)?;
    check(flush.parts.is_empty(), "a flush has data")?;
    check(completions(&*disk).is_empty(), "nothing was answered")?;
    for (request, len) in [(flush, 1), (write, 1), (read, 1025)] {
        device.answer(&request, 0, len)?;
    }
    let in_order = [(3, Ok(())), (2, Ok(())), (1, Ok(()))];
    check(completions(&*disk) == in_order, "the order is not the device's")?;
    let large = Behaviour::good().with(20, 4096).with(0, 999);
    let (device, disk) = Played::start(m, large)?;
    let geometry = disk.geometry();
    check((geometry.block_size, geometry.blocks) == (4096, 124), "the blocks have another size")?;
    let data = Data { buffer: &buffer, pieces: &[Piece { offset: 0, len: 4096 }] };
    check(disk.submit(&Request::Read { block: 3, into: data }, 1) == Ok(()), "a read is refused")?;
    check(device.expect(0)?.sector == 24, "a sector is not 512 bytes")
}

fn forced_write(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    let buffer = buffer(m, 512)?;
    let write = Request::Write { block: 0, from: Data { buffer: &buffer, pieces: &ONE }, fua: true };
    check(disk.submit(&write, 5) == Ok(()), "a write is refused")?;
    let kicks = device.kicks();
    device.answer(&device.expect(1)?, 0, 1)?;
    check(completions(&*disk).is_empty(), "it completed before the flush")?;
    check(device.kicks() == kicks + 1, "the device is not told of the flush")?;
    device.answer(&device.expect(4)?, 0, 1)?;
    check(completions(&*disk) == [(5, Ok(()))], "it does not complete after the flush")?;
    // A flush that fails, and a write that fails.
    check(disk.submit(&write, 6) == Ok(()), "a write is refused")?;
    device.answer(&device.expect(1)?, 0, 1)?;
    check(completions(&*disk).is_empty(), "it completed before the flush")?;
    device.answer(&device.expect(4)?, 1, 1)?;
    check(completions(&*disk) == [(6, Err(Fault::Media))], "a flush that fails is no failure")?;
    check(disk.submit(&write, 7) == Ok(()), "a write is refused")?;
    device.answer(&device.expect(1)?, 1, 1)?;
    check(completions(&*disk) == [(7, Err(Fault::Media))], "a write that fails is no failure")?;
    check(device.next()?.is_none(), "a write that failed is flushed")
}

/// The limits are 100 sectors for a discard and 50 for zeros, and blocks have 2 sectors.
fn ranges(m: &Machine) -> Outcome {
    let behaviour = Behaviour::good().with(20, 1024).with(36, 101);
    let (device, disk) = Played::start(m, behaviour)?;
    let range = |found: &Found| -> Result<_, Failure> {
        let [(address, 16, false)] = found.parts[..] else { return Err(Failure::new("there is no range")) };
        let sectors = u32::from_le_bytes(word(address + 8));
        Ok((u64::from_le_bytes(word(address)), sectors, u32::from_le_bytes(word(address + 12))))
    };
    check(disk.submit(&Request::Discard { block: 3, blocks: 120 }, 1) == Ok(()), "refused")?;
    for expected in [(6, 100, 0), (106, 100, 0), (206, 40, 0)] {
        check(completions(&*disk).is_empty(), "it completed early")?;
        let part = device.expect(11)?;
        check(range(&part)? == expected, "a part is another one")?;
        device.answer(&part, 0, 1)?;
    }
    check(completions(&*disk) == [(1, Ok(()))], "it does not complete")?;
    for may_discard in [false, true] {
        let zeroes = Request::WriteZeroes { block: 0, blocks: 26, may_discard };
        check(disk.submit(&zeroes, 2) == Ok(()), "refused")?;
        let part = device.expect(13)?;
        check(range(&part)? == (0, 50, u32::from(may_discard)), "the flag is another one")?;
        device.answer(&part, u8::from(may_discard), 1)?;
        if may_discard {
            check(completions(&*disk) == [(2, Err(Fault::Media))], "a part's failure is none")?;
        } else {
            check(completions(&*disk).is_empty(), "it completed early")?;
            let part = device.expect(13)?;
            check(range(&part)? == (50, 2, 0), "the rest is another one")?;
            device.answer(&part, 0, 1)?;
            check(completions(&*disk) == [(2, Ok(()))], "it does not complete")?;
        }
    }
    check(device.next()?.is_none(), "there is one part more")?;
    // Without these abilities, or with limits that are smaller than a block.
    for behaviour in [
        Behaviour { features: ALL & !DISCARD & !WRITE_ZEROES, ..Behaviour::good() },
        Behaviour::good().with(20, 1024).with(36, 1).with(48, 1),
    ] {
        let (_, disk) = Played::start(m, behaviour)?;
        let zeroes = Request::WriteZeroes { block: 0, blocks: 1, may_discard: true };
        for request in [Request::Discard { block: 0, blocks: 1 }, zeroes] {
            let refused = disk.submit(&request, 1) == Err(Submit::Fault(Fault::Unsupported));
            check(refused, "the disk takes what the device does not")?;
        }
    }
    Ok(())
}

fn no_cache(m: &Machine) -> Outcome {
    let behaviour = Behaviour { features: ALL & !FLUSH, ..Behaviour::good() };
    let (device, disk) = Played::start(m, behaviour)?;
    check(!disk.geometry().has_volatile_cache, "it has a cache")?;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    disk.watch(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    check(!disk.arm(), "a completion is ready")?;
    check(disk.submit(&Request::Flush, 9) == Ok(()), "a flush is refused")?;
    check(calls.load(Ordering::SeqCst) == 1, "the routine is not called")?;
    check(completions(&*disk) == [(9, Ok(()))], "a flush does not complete")?;
    let buffer = buffer(m, 512)?;
    let write = Request::Write { block: 0, from: Data { buffer: &buffer, pieces: &ONE }, fua: true };
    check(disk.submit(&write, 5) == Ok(()), "a write is refused")?;
    device.answer(&device.expect(1)?, 0, 1)?;
    check(completions(&*disk) == [(5, Ok(()))], "it waits for a flush")?;
    let mut flushes = 0;
    while disk.submit(&Request::Flush, flushes) == Ok(()) {
        flushes += 1;
    }
    check(flushes == disk.geometry().queue_depth as u64, "flushes have no end")?;
    check(completions(&*disk).len() as u64 == flushes, "some flushes do not complete")?;
    check(device.next()?.is_none(), "the device is asked for a flush")
}

fn statuses(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    for (status, expected) in [
        (0, Ok(())),
        (1, Err(Fault::Media)),
        (2, Err(Fault::Unsupported)),
        (3, Err(Fault::Media)),
        (77, Err(Fault::Media)),
    ] {
        check(disk.submit(&Request::Flush, 1) == Ok(()), "a flush is refused")?;
        device.answer(&device.expect(4)?, status, 1)?;
        check(completions(&*disk) == [(1, expected)], "the status means something else")?;
    }
    // The device returns a request without a status; the one of the last request must not count.
    check(disk.submit(&Request::Flush, 1) == Ok(()), "a flush is refused")?;
    let flush = device.expect(4)?;
    device.give(u32::from(flush.head), 0)?;
    check(completions(&*disk) == [(1, Err(Fault::Media))], "no status is a success")
}

fn short_reads(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    let buffer = buffer(m, 512)?;
    let into = Data { buffer: &buffer, pieces: &ONE };
    for (len, expected) in [
        (0, Err(Fault::Media)),
        (1, Err(Fault::Media)),
        (511, Err(Fault::Media)),
        (513, Ok(())),
        (u32::MAX, Ok(())),
    ] {
        check(disk.submit(&Request::Read { block: 0, into }, 1) == Ok(()), "a read is refused")?;
        device.answer(&device.expect(0)?, 0, len)?;
        check(completions(&*disk) == [(1, expected)], "another length counts as read")?;
        check(Arc::strong_count(&buffer) == 1, "the buffer is kept")?;
    }
    Ok(())
}

/// Each way to return what was not given. Two requests are under way, the second not yet taken.
fn wrong_numbers(m: &Machine) -> Outcome {
    type Lie = fn(&Played, &Found) -> Outcome;
    let lies: [Lie; 6] = [
        |device, _| device.give(64, 1),
        |device, _| device.give(u32::MAX, 1),
        // A descriptor of the request that is not its first.
        |device, found| device.give(u32::from(found.head) + 1, 1),
        // A descriptor that is free.
        |device, found| device.give((u32::from(found.head) + 20) % 64, 1),
        |device, found| {
            device.answer(found, 0, 513)?;
            device.give(u32::from(found.head), 513)
        },
        // The index jumps: the entries in between are zeros, or old.
        |device, found| {
            device.answer(found, 0, 513)?;
            device.skip(30_000)?;
            device.give(u32::from(found.head), 513)
        },
    ];
    for lie in lies {
        let (device, disk) = Played::start(m, Behaviour::good())?;
        let buffer = buffer(m, 512)?;
        let into = Data { buffer: &buffer, pieces: &ONE };
        for token in 1..=2 {
            check(disk.submit(&Request::Read { block: 0, into }, token) == Ok(()), "a read is refused")?;
        }
        lie(&device, &device.expect(0)?)?;
        let mut done = completions(&*disk);
        done.sort_by_key(|&(token, _)| token);
        let tokens: Vec<u64> = done.iter().map(|&(token, _)| token).collect();
        check(tokens == [1, 2], "not every request completes once")?;
        check(done[1].1 == Err(Fault::Gone), "a request that was not answered has an outcome")?;
        check(disk.submit(&Request::Flush, 3) == Err(Submit::Fault(Fault::Gone)), "it goes on")?;
        check(completions(&*disk).is_empty(), "there is one completion more")?;
        check(device.state.lock().status == 0, "the device was not reset")?;
        check(Arc::strong_count(&buffer) == 1, "the buffers are kept")?;
    }
    Ok(())
}

fn needs_reset(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let routine: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    disk.watch(Some(routine.clone()));
    check(disk.submit(&Request::Flush, 1) == Ok(()), "a flush is refused")?;
    // A change of something else.
    check(!disk.arm() && device.interrupt(virtio::CHANGES), "changes are masked")?;
    check(calls.load(Ordering::SeqCst) == 1, "the routine is not called")?;
    check(disk.arm(), "the change was looked at")?;
    check(completions(&*disk).is_empty(), "a flush completes by itself")?;
    check(!disk.arm(), "a flush completes by itself")?;
    device.state.lock().status |= DeviceStatus::DEVICE_NEEDS_RESET.bits();
    check(device.interrupt(virtio::CHANGES), "changes are masked")?;
    check(calls.load(Ordering::SeqCst) == 2, "the routine is not called")?;
    check(completions(&*disk) == [(1, Err(Fault::Gone))], "the request does not end")?;
    check(disk.submit(&Request::Flush, 2) == Err(Submit::Fault(Fault::Gone)), "it goes on")?;
    // Changes are noted without a routine, too.
    let (device, disk) = Played::start(m, Behaviour::good())?;
    disk.watch(Some(routine));
    disk.watch(None);
    device.state.lock().status |= DeviceStatus::DEVICE_NEEDS_RESET.bits();
    check(device.interrupt(virtio::CHANGES), "changes are masked")?;
    check(completions(&*disk).is_empty(), "nothing was submitted")?;
    check(disk.submit(&Request::Flush, 2) == Err(Submit::Fault(Fault::Gone)), "it goes on")
}

fn resized(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good().with(20, 1024))?;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    disk.watch(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    let becomes = |capacity| {
        device.state.lock().capacity = Some(capacity);
        check(device.interrupt(virtio::CHANGES), "changes are masked")
    };
    let discard = |block| disk.submit(&Request::Discard { block, blocks: 1 }, 1);
    let outside = Err(Submit::Fault(Fault::OutOfRange));
    check(disk.geometry().blocks == 500 && disk.event().is_none(), "it has changed from the start")?;
    check(!disk.arm(), "there is something to look at")?;
    becomes(3000)?;
    check(calls.load(Ordering::SeqCst) == 1, "the consumer is not woken")?;
    check(disk.arm(), "the change was looked at")?;
    check(completions(&*disk).is_empty() && !disk.arm(), "a consumer that takes no events is kept awake")?;
    check(disk.geometry().blocks == 1500, "it has its former size")?;
    check(discard(1500) == outside && discard(1499) == Ok(()), "requests go by another size")?;
    device.answer(&device.expect(11)?, 0, 1)?;
    check(completions(&*disk).len() == 1, "a request does not complete")?;
    for capacity in [2000, 999] {
        becomes(capacity)?;
        check(completions(&*disk).is_empty(), "a change is a completion")?;
    }
    check(disk.event() == Some(Event::Resized { blocks: 499 }), "the event is not the last size")?;
    check(disk.event().is_none(), "the event comes twice")?;
    check(discard(499) == outside, "it has its former size")?;
    becomes(998)?;
    check(completions(&*disk).is_empty() && disk.event().is_none(), "half a block is an event")?;
    // Without a routine it is noted, too. A disk may have no block at all.
    disk.watch(None);
    becomes(1)?;
    check(completions(&*disk).is_empty() && disk.geometry().blocks == 0, "it has its former size")?;
    check(discard(0) == outside, "there is a block left")
}

fn no_reset(m: &Machine) -> Outcome {
    let buffer = buffer(m, 512)?;
    let before = memory::usage().dma;
    let behaviour = Behaviour { holds_on: true, ..Behaviour::good() };
    let (device, disk) = Played::start(m, behaviour)?;
    let used = memory::usage().dma - before;
    let into = Data { buffer: &buffer, pieces: &ONE };
    check(disk.submit(&Request::Read { block: 0, into }, 1) == Ok(()), "a read is refused")?;
    device.give(63, 1)?;
    check(completions(&*disk) == [(1, Err(Fault::Gone))], "the request does not end")?;
    drop(disk);
    check(memory::usage().dma == before + used, "the device's queue is released")?;
    drop(buffer);
    check(memory::usage().dma == before + used, "memory that the device may write is released")
}

fn notifications(m: &Machine) -> Outcome {
    let (device, disk) = Played::start(m, Behaviour::good())?;
    let [_, driver, used] = device.ring()?.areas;
    let suppressed = || u16::from_le_bytes(word(driver)) & 1 == 1;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    check(!device.interrupt(virtio::COMPLETIONS), "an interrupt comes although nobody watches")?;
    disk.watch(Some(Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    let submit = || check(disk.submit(&Request::Flush, 1) == Ok(()), "a flush is refused");
    let poll = || disk.poll(1, &mut |_, _| ());
    submit()?;
    submit()?;
    check(device.kicks() == 0, "the device is told of each request")?;
    check(poll() == 0 && device.kicks() == 1, "the device is not told once")?;
    // The device says that it looks anyway.
    check(at(used, 2).write(0, &1_u16.to_le_bytes()).is_ok(), "there is no used ring")?;
    submit()?;
    check(poll() == 0 && device.kicks() == 1, "the device is told although it looks")?;
    check(at(used, 2).write(0, &0_u16.to_le_bytes()).is_ok(), "there is no used ring")?;
    submit()?;
    check(poll() == 0 && device.kicks() == 2, "the device is not told again")?;
    submit()?;
    check(!disk.arm() && device.kicks() == 3, "the device is not told when it is armed")?;
    check(!suppressed(), "the next completion is not reported")?;
    device.answer(&device.expect(4)?, 0, 1)?;
    for _ in 0..3 {
        check(device.interrupt(virtio::COMPLETIONS), "it is masked")?;
    }
    check(calls.load(Ordering::SeqCst) == 1, "the routine is called more often than once")?;
    check(poll() == 1, "there is no completion")?;
    check(suppressed(), "the device interrupts a consumer that polls")?;
    device.answer(&device.expect(4)?, 0, 1)?;
    check(poll() == 1 && suppressed(), "there is no completion")?;
    check(poll() == 0 && suppressed(), "the device interrupts a consumer that polls")?;
    check(!disk.arm() && !suppressed(), "the device will not interrupt for the next completion")?;
    device.answer(&device.expect(4)?, 0, 1)?;
    check(disk.arm(), "a completion is not seen")?;
    check(device.interrupt(virtio::COMPLETIONS) && calls.load(Ordering::SeqCst) == 2, "not called")?;
    disk.watch(None);
    check(!device.interrupt(virtio::COMPLETIONS), "it is not masked")
}

fn refused(m: &Machine) -> Outcome {
    let good = Behaviour::good;
    for (behaviour, why) in [
        (Behaviour { features: ALL & !VERSION_1, ..good() }, Unusable::Version),
        (Behaviour { refuses_features: true, ..good() }, Unusable::Refusal { offered: ALL, taken: ALL }),
        (
            Behaviour { features: ALL | 1 << 34, refuses_features: true, ..good() },
            Unusable::Refusal { offered: ALL | 1 << 34, taken: ALL },
        ),
        (Behaviour { queue_size: 7, ..good() }, Unusable::Queue),
        (Behaviour { queue_size: 0, ..good() }, Unusable::Queue),
        (Behaviour { vectors: 0, ..good() }, Unusable::Vectors),
        (Behaviour { changes: 1000, ..good() }, Unusable::Config),
        (good().with(20, 500), Unusable::Config),
        (good().with(20, 1 << 31), Unusable::Config),
        (good().with(20, 8192), Unusable::Config),
        (good().with(12, 0), Unusable::Config),
        (Behaviour { features: ALL | 1 << 1, ..good().with(8, 511) }, Unusable::Config),
    ] {
        let before = memory::usage();
        let device = Played::new(behaviour);
        check(device.open(m).err() == Some(why), "it is refused for another reason, or not")?;
        drop(device);
        check(memory::usage().dma == before.dma, "it has left memory")?;
    }
    // What is strange, but a disk.
    for (behaviour, depth) in [
        (Behaviour { changes: 3, ..good() }, 21),
        (Behaviour { queue_size: 255, ..good() }, 21),
        (Behaviour { queue_size: 256, ..good() }, 85),
        (Behaviour { queue_size: 1 << 16, ..good() }, 341),
    ] {
        let (_, disk) = Played::start(m, behaviour)?;
        let geometry = disk.geometry();
        check(geometry.queue_depth == depth && geometry.most_pieces == 20, "its queue has another length")?;
    }
    for queue_size in [8, 63] {
        let (_, disk) = Played::start(m, Behaviour { queue_size, ..good() })?;
        let geometry = disk.geometry();
        check((geometry.queue_depth, geometry.most_pieces) == (2, 6), "a short queue is another disk")?;
    }
    // A device that names no number of pieces takes one.
    let (_, disk) = Played::start(m, Behaviour { features: VERSION_1, ..good() })?;
    let geometry = disk.geometry();
    check((geometry.block_size, geometry.most_pieces) == (512, 1), "it is another disk")?;
    // Addresses of a bus whose IOMMU translates nothing.
    let (device, _disk) = Played::start(m, Behaviour { features: ALL | ACCESS_PLATFORM, ..good() })?;
    check(device.state.lock().features == ALL | ACCESS_PLATFORM, "the bus's addresses are refused")?;
    let (_, disk) = Played::start(m, Behaviour { features: ALL | 1 << 1 | 1 << 5, ..good().with(8, 1500) })?;
    let geometry = disk.geometry();
    check(geometry.is_read_only && geometry.most_bytes == 1024, "it is another disk")
}

fn leaves_nothing(m: &Machine) -> Outcome {
    let buffer = buffer(m, 512)?;
    let before = memory::usage();
    for queue_size in [64, 256, 1024] {
        let (device, disk) = Played::start(m, Behaviour { queue_size, ..Behaviour::good() })?;
        let into = Data { buffer: &buffer, pieces: &ONE };
        check(disk.submit(&Request::Read { block: 0, into }, 1) == Ok(()), "a read is refused")?;
        disk.watch(Some(Arc::new(|| ())));
        drop(disk);
        check(device.state.lock().status == 0, "the device was not reset")?;
        check(device.state.lock().handlers.values().all(Option::is_none), "a handler is left")?;
        check(Arc::strong_count(&buffer) == 1, "the buffer of a request is left")?;
    }
    let after = memory::usage();
    check((after.heap, after.dma) == (before.heap, before.dma), "memory is left")
}
