//! Disks with several queues: those that tests play, and those that the launcher attached.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use block::{Data, Disk, Event, Fault, Piece, Request, Submit};
use kernel::virtio::{self, QUEUE_MEMORY, Share};
use kernel::{clock, memory, thread};
use platform::DmaBuffer;
use virtio_drivers::transport::DeviceStatus;

use crate::broken_disks::{ONE, buffer, completions};
use crate::disks::{PATIENCE, pattern, queues, read, wait, write};
use crate::played_disk::{ALL, Behaviour, MQ, Played};
use crate::{Failure, Machine, Outcome, Test, check};

/// The tests with disks that they play.
pub const PLAYED: &[Test] = &[
    ("kernel.virtio.each_queue_has_its_own_requests", own_requests),
    ("kernel.virtio.a_full_queue_leaves_room_in_the_others", others_have_room),
    ("kernel.virtio.a_disk_has_the_queues_that_can_be_used", usable_queues),
    ("kernel.virtio.queues_that_share_a_vector_are_all_woken", shared_vector),
    ("kernel.virtio.a_lie_in_one_queue_ends_the_requests_of_all", lie_in_one),
    ("kernel.virtio.a_device_that_asks_for_a_reset_loses_all_queues", reset_of_all),
    ("kernel.virtio.every_queue_tells_that_the_medium_has_gone", medium_gone),
    ("kernel.virtio.a_device_is_used_until_its_last_queue_is_closed", last_one_closes),
];

/// The tests with disks that the launcher attached.
pub const ATTACHED: &[Test] = &[
    ("kernel.disk.there_is_a_queue_for_each_cpu", one_for_each_cpu),
    ("kernel.disk.threads_have_requests_in_two_queues_at_once", at_once),
    ("kernel.disk.a_full_queue_leaves_room_in_the_other", full_and_free),
];

/// A device with so many queues, all of which the disk has.
fn start(m: &Machine, behaviour: Behaviour, count: usize) -> Result<(Played, Vec<Arc<dyn Disk>>), Failure> {
    let (device, disk) = Played::start(m, behaviour)?;
    let handles = queues(&disk);
    let [.., _] = &handles[..] else { return Err(Failure::new("it has no queue")) };
    check(handles.len() == count, "it has another number of queues")?;
    Ok((device, handles))
}

/// Counts the calls of a disk's routine.
fn counted(disk: &dyn Disk) -> Arc<AtomicU32> {
    let calls = Arc::new(AtomicU32::new(0));
    let theirs = calls.clone();
    disk.watch(Some(Arc::new(move || {
        theirs.fetch_add(1, Ordering::SeqCst);
    })));
    calls
}

fn count(calls: &AtomicU32) -> u32 {
    calls.load(Ordering::SeqCst)
}

#[track_caller]
fn submit(disk: &dyn Disk, request: &Request<'_>, token: u64) -> Outcome {
    check(disk.submit(request, token) == Ok(()), "a request is refused")
}

fn own_requests(m: &Machine) -> Outcome {
    let (device, handles) = start(m, Behaviour::with_queues(2), 2)?;
    let devices = [device.clone(), device.at_queue(1)];
    check(device.state.lock().features == ALL | MQ, "the feature is not taken")?;
    let calls = [counted(&*handles[0]), counted(&*handles[1])];
    let buffer = buffer(m, 512)?;
    let data = Data { buffer: &buffer, pieces: &ONE };
    for (number, other) in [(0, 1), (1, 0)] {
        let (disk, idle) = (&*handles[number], &*handles[other]);
        let kicks = [devices[0].kicks(), devices[1].kicks()];
        submit(disk, &Request::Read { block: number as u64, into: data }, 7)?;
        check(!disk.arm() && !idle.arm(), "a completion is ready")?;
        check(devices[number].kicks() == kicks[number] + 1, "the queue's register is another one")?;
        check(devices[other].kicks() == kicks[other], "the other queue is notified")?;
        check(devices[other].next()?.is_none(), "the request is in the other queue")?;
        let found = devices[number].expect(0)?;
        check(found.sector == number as u64, "the request is another one")?;
        devices[number].answer(&found, 0, 513)?;
        let before = [count(&calls[0]), count(&calls[1])];
        let vector = devices[number].vector().ok_or(Failure::new("it has no vector"))?;
        check(device.interrupt(vector), "the queue's vector is masked")?;
        check(count(&calls[number]) == before[number] + 1, "the routine is not called")?;
        check(count(&calls[other]) == before[other], "the other queue's routine is called")?;
        check(completions(idle).is_empty(), "the completion is in the other queue")?;
        check(completions(disk) == [(7, Ok(()))], "there is no completion")?;
    }
    check(devices[0].vector() != devices[1].vector(), "they share a vector")?;
    // What was completed by one queue, a flush by the other one makes durable: it is sent at once.
    let from = Request::Write { block: 0, from: data, fua: false };
    submit(&*handles[0], &from, 1)?;
    devices[0].answer(&devices[0].expect(1)?, 0, 1)?;
    check(completions(&*handles[0]) == [(1, Ok(()))], "a write does not complete")?;
    submit(&*handles[1], &Request::Flush, 2)?;
    devices[1].answer(&devices[1].expect(4)?, 0, 1)?;
    check(completions(&*handles[1]) == [(2, Ok(()))], "a flush does not complete")
}

/// Fills a disk's queue with flushes; how many it took.
fn fill(disk: &dyn Disk) -> usize {
    (0..).take_while(|&token| disk.submit(&Request::Flush, token) == Ok(())).count()
}

fn others_have_room(m: &Machine) -> Outcome {
    let (device, handles) = start(m, Behaviour::with_queues(3), 3)?;
    let depth = handles[0].geometry().queue_depth;
    for (number, handle) in (0..).zip(&handles) {
        check(handle.geometry().queue_depth == depth, "a queue is shorter")?;
        check(fill(&**handle) >= depth, "a queue has no room because of the others")?;
        check(handle.submit(&Request::Flush, 0) == Err(Submit::Busy), "it has no end")?;
        // One that completes makes room in its own queue, and the others stay full.
        let its = device.at_queue(number);
        let found = its.expect(4)?;
        its.answer(&found, 0, 1)?;
        check(completions(&**handle) == [(0, Ok(()))], "a full queue completes nothing")?;
        for full in &handles[..usize::from(number)] {
            check(full.submit(&Request::Flush, 0) == Err(Submit::Busy), "room came from elsewhere")?;
        }
        submit(&**handle, &Request::Flush, 0)?;
    }
    Ok(())
}

/// Devices that offer more than they have, or than there is memory and vectors for.
fn usable_queues(m: &Machine) -> Outcome {
    let queues_of = Behaviour::with_queues;
    let share = |queues, vectors| Behaviour { share: Share { queues, vectors }, ..queues_of(4) };
    let sized = |number, size| Behaviour { queue_sizes: [(number, size)].into(), ..queues_of(4) };
    for (behaviour, count, vectors) in [
        // Without the feature nobody reads the number.
        (Behaviour::good().with(34, 4), 1, 1),
        (queues_of(0), 1, 1),
        (queues_of(1), 1, 1),
        (queues_of(4), 4, 4),
        (queues_of(0xffff), virtio::MOST_QUEUES, virtio::MOST_QUEUES),
        (Behaviour { share: Share { queues: 0, vectors: 0 }, ..queues_of(4) }, 1, 1),
        (share(2, 9), 2, 2),
        (share(4, 0), 4, 1),
        (share(4, 2), 4, 3),
        (share(usize::MAX, usize::MAX), 4, 4),
        // A queue that is not there, one that is shorter than the first, one that is longer.
        (sized(1, 0), 1, 1),
        (sized(2, 63), 2, 2),
        (sized(3, 100), 4, 4),
        // The machine has two vectors, or three; so has the device; or it has none for a queue.
        (Behaviour { of_vectors: 2, ..queues_of(4) }, 4, 1),
        (Behaviour { of_vectors: 1, ..queues_of(4) }, 4, 1),
        (Behaviour { of_vectors: 3, ..queues_of(4) }, 4, 2),
        (Behaviour { vectors: 3, ..queues_of(4) }, 4, 2),
        (Behaviour { silent_from: 2, ..queues_of(4) }, 2, 2),
    ] {
        let before = memory::usage();
        let (device, handles) = start(m, behaviour, count)?;
        let used = memory::usage();
        let used = used.heap + used.dma - before.heap - before.dma;
        check(used <= count * QUEUE_MEMORY, "its queues take more memory than is said")?;
        let mut its: Vec<Option<u16>> =
            (0..count).map(|number| device.at_queue(number as u16).vector()).collect();
        check(its.iter().all(Option::is_some), "a queue has no vector")?;
        its.sort_unstable();
        its.dedup();
        check(its.len() == vectors, "it has another number of vectors")?;
        for (number, handle) in (0..).zip(&handles) {
            submit(&**handle, &Request::Flush, number)?;
            let its = device.at_queue(number as u16);
            its.answer(&its.expect(4)?, 0, 1)?;
            check(completions(&**handle) == [(number, Ok(()))], "a queue does not work")?;
        }
    }
    // More queues are shorter, so that all of a disk have a bound.
    for (count, depth) in [(1, 341), (4, 341), (5, 85), (16, 85)] {
        let behaviour = Behaviour { queue_size: 1024, ..queues_of(count) };
        let before = memory::usage();
        let (_, handles) = start(m, behaviour, count as usize)?;
        let used = memory::usage();
        check(handles[0].geometry().queue_depth == depth, "its queues have another length")?;
        let used = used.heap + used.dma - before.heap - before.dma;
        check(used <= (count as usize).min(4) * QUEUE_MEMORY, "its queues take more memory than is said")?;
    }
    Ok(())
}

/// An interrupt that several queues share wakes those that wait, and no others.
fn shared_vector(m: &Machine) -> Outcome {
    let behaviour = Behaviour { of_vectors: 2, ..Behaviour::with_queues(3) };
    let (device, handles) = start(m, behaviour, 3)?;
    let calls = [counted(&*handles[0]), counted(&*handles[1])];
    check(!handles[0].arm() && !handles[1].arm() && !handles[2].arm(), "a completion is ready")?;
    check(device.interrupt(virtio::COMPLETIONS), "it is masked")?;
    check([count(&calls[0]), count(&calls[1])] == [1, 1], "not all are woken")?;
    check(!handles[1].arm() && device.interrupt(virtio::COMPLETIONS), "it is masked")?;
    check([count(&calls[0]), count(&calls[1])] == [1, 2], "one that does not wait is called")?;
    handles[1].watch(None);
    check(!handles[0].arm() && !handles[1].arm(), "a completion is ready")?;
    check(device.interrupt(virtio::COMPLETIONS), "it is masked although one waits")?;
    check([count(&calls[0]), count(&calls[1])] == [2, 2], "a routine that was removed is called")?;
    handles[0].watch(None);
    check(!device.interrupt(virtio::COMPLETIONS), "it is not masked")
}

/// A read in each of two queues.
fn read_by_both(handles: &[Arc<dyn Disk>], buffers: &[Arc<DmaBuffer>; 2]) -> Outcome {
    for (number, (handle, buffer)) in (1..).zip(handles.iter().zip(buffers)) {
        let into = Data { buffer, pieces: &ONE };
        submit(&**handle, &Request::Read { block: 0, into }, number)?;
    }
    Ok(())
}

fn lie_in_one(m: &Machine) -> Outcome {
    let buffers = [buffer(m, 512)?, buffer(m, 512)?];
    for holds_on in [false, true] {
        let before = memory::usage().dma;
        let (device, handles) = start(m, Behaviour { holds_on, ..Behaviour::with_queues(2) }, 2)?;
        let used = memory::usage().dma - before;
        let calls = counted(&*handles[0]);
        read_by_both(&handles, &buffers)?;
        check(!handles[0].arm(), "a completion is ready")?;
        device.at_queue(1).give(63, 1)?;
        check(completions(&*handles[1]) == [(2, Err(Fault::Gone))], "the request does not end")?;
        check(count(&calls) == 1, "the consumer of the other queue sleeps on")?;
        check(handles[0].submit(&Request::Flush, 3) == Err(Submit::Fault(Fault::Gone)), "it goes on")?;
        check(handles[0].arm(), "the end of the request is not seen")?;
        check(completions(&*handles[0]) == [(1, Err(Fault::Gone))], "the request does not end")?;
        check(!handles[0].arm() && !handles[1].arm(), "a completion is left")?;
        if !holds_on {
            check(device.state.lock().status == 0, "the device was not reset")?;
            check(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1), "a buffer is kept")?;
        }
        drop(handles);
        let left = if holds_on { used } else { 0 };
        check(memory::usage().dma == before + left, "other memory is left than what the device holds")?;
    }
    let before = memory::usage().dma;
    drop(buffers);
    check(memory::usage().dma == before, "memory that the device may write is released")
}

fn reset_of_all(m: &Machine) -> Outcome {
    let (device, handles) = start(m, Behaviour::with_queues(2), 2)?;
    let calls = [counted(&*handles[0]), counted(&*handles[1])];
    let buffers = [buffer(m, 512)?, buffer(m, 512)?];
    read_by_both(&handles, &buffers)?;
    check(!handles[0].arm() && !handles[1].arm(), "a completion is ready")?;
    device.state.lock().status |= DeviceStatus::DEVICE_NEEDS_RESET.bits();
    check(device.interrupt(virtio::CHANGES), "changes are masked")?;
    check([count(&calls[0]), count(&calls[1])] == [1, 1], "not all are woken")?;
    for (token, handle) in (1..).zip(&handles) {
        check(completions(&**handle) == [(token, Err(Fault::Gone))], "a request does not end")?;
        check(handle.submit(&Request::Flush, 2) == Err(Submit::Fault(Fault::Gone)), "it goes on")?;
    }
    Ok(())
}

/// The owner takes the medium away, while both queues have requests.
fn medium_gone(m: &Machine) -> Outcome {
    let (device, handles) = start(m, Behaviour::with_queues(2), 2)?;
    let calls = [counted(&*handles[0]), counted(&*handles[1])];
    let buffers = [buffer(m, 512)?, buffer(m, 512)?];
    let size = |blocks| Some(Event::Resized { blocks });
    for (capacity, status, outcome) in [(0, 1, Err(Fault::Media)), (2000, 0, Ok(()))] {
        if capacity == 0 {
            read_by_both(&handles, &buffers)?;
        }
        check(!handles[0].arm() && !handles[1].arm(), "there is something to look at")?;
        let before = [count(&calls[0]), count(&calls[1])];
        device.state.lock().capacity = Some(capacity);
        check(device.interrupt(virtio::CHANGES), "changes are masked")?;
        let after = [count(&calls[0]), count(&calls[1])];
        check(after == before.map(|calls| calls + 1), "not all are woken")?;
        for (token, handle) in (1..).zip(&handles) {
            check(completions(&**handle).is_empty(), "a change is a completion")?;
            check(handle.geometry().blocks == u64::from(capacity), "it has its former size")?;
            check(handle.event() == size(capacity.into()) && handle.event().is_none(), "not one event")?;
            if capacity > 0 {
                let into = Data { buffer: &buffers[0], pieces: &ONE };
                submit(&**handle, &Request::Read { block: 1999, into }, token)?;
            } else {
                let discard = handle.submit(&Request::Discard { block: 0, blocks: 1 }, 9);
                check(discard == Err(Submit::Fault(Fault::OutOfRange)), "there is a block left")?;
            }
        }
        for number in 0..2 {
            let its = device.at_queue(number);
            its.answer(&its.expect(0)?, status, 513)?;
            let token = u64::from(number) + 1;
            check(completions(&*handles[usize::from(number)]) == [(token, outcome)], "it ends otherwise")?;
        }
    }
    Ok(())
}

fn last_one_closes(m: &Machine) -> Outcome {
    let before = memory::usage();
    {
        let (device, mut handles) = start(m, Behaviour::with_queues(3), 3)?;
        handles.iter().for_each(|handle| handle.watch(Some(Arc::new(|| ()))));
        // A queue that is closed can be had again, and has what it had.
        submit(&*handles[2], &Request::Flush, 5)?;
        drop(handles.pop());
        drop(handles.remove(0));
        let last = handles.pop().ok_or(Failure::new("it has no queue"))?;
        check(device.state.lock().status != 0, "the device was reset")?;
        let (its, again) = (device.at_queue(2), last.queue(2));
        its.answer(&its.expect(4)?, 0, 1)?;
        let again = again.ok_or(Failure::new("a queue is not there any more"))?;
        check(completions(&*again) == [(5, Ok(()))], "a closed queue forgets its requests")?;
        check(last.queue(3).is_none(), "there is one queue more")?;
        submit(&*last, &Request::Flush, 1)?;
        drop(last);
        check(device.state.lock().status != 0, "the device was reset")?;
        drop(again);
        check(device.state.lock().status == 0, "the device was not reset")?;
        check(device.state.lock().handlers.values().all(Option::is_none), "a handler is left")?;
    }
    let after = memory::usage();
    check((after.heap, after.dma) == (before.heap, before.dma), "memory is left")
}

/// The launcher gives each disk as many as there are CPUs.
fn one_for_each_cpu(m: &Machine) -> Outcome {
    for disk in &m.disks {
        check(queues(disk).len() == kernel::cpus() as usize, "it has another number of queues")?;
    }
    Ok(())
}

/// The queues of the disks that take writes and have several.
fn several(m: &Machine) -> impl Iterator<Item = Vec<Arc<dyn Disk>>> {
    let disks = m.disks.iter().filter(|disk| !disk.geometry().is_read_only);
    disks.map(queues).filter(|queues| queues.len() > 1)
}

/// Each of two threads writes by its queue while the other one's requests are under way, and takes
/// its own completions only; then it reads what the other one wrote.
fn at_once(m: &Machine) -> Outcome {
    const WRITES: u64 = 32;
    let place = |thread: u64, write: u64| 3000 + 8 * (2 * write + thread);
    for handles in several(m) {
        let state = Arc::new([const { AtomicU32::new(0) }; 3]);
        for (me, disk) in (0..2_u64).zip(&handles) {
            let (disk, state, all) = (disk.clone(), state.clone(), buffer(m, 4096 * WRITES as usize)?);
            for write in 0..WRITES {
                let bytes = pattern(place(me, write), 4096, me);
                check(all.write(4096 * write as usize, &bytes).is_ok(), "no memory")?;
            }
            let spawned = thread::spawn("disk user", move || {
                let [submitted, wrong, ended] = &*state;
                for write in 0..WRITES {
                    let pieces = [Piece { offset: 4096 * write as usize, len: 4096 }];
                    let from = Data { buffer: &all, pieces: &pieces };
                    let write = Request::Write { block: place(me, write), from, fua: false };
                    wrong.fetch_add(u32::from(disk.submit(&write, me).is_err()), Ordering::SeqCst);
                }
                // Both have all their requests under way before one takes a completion.
                submitted.fetch_add(1, Ordering::SeqCst);
                while submitted.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                let of_others = AtomicU32::new(0);
                let result = wait(&*disk, WRITES as usize, |token| {
                    of_others.fetch_add(u32::from(token != me), Ordering::SeqCst);
                });
                wrong.fetch_add(u32::from(result.is_err()), Ordering::SeqCst);
                wrong.fetch_add(of_others.into_inner(), Ordering::SeqCst);
                ended.fetch_add(1, Ordering::SeqCst);
            });
            check(spawned.is_ok(), "no memory for a thread")?;
        }
        let deadline = clock::now() + 2 * PATIENCE;
        while state[2].load(Ordering::SeqCst) < 2 {
            check(clock::now() < deadline, "a thread does not end")?;
            thread::sleep(Duration::from_millis(1));
        }
        check(state[1].load(Ordering::SeqCst) == 0, "a request failed, or came out of another queue")?;
        for (me, other) in [(0, 1), (1, 0)] {
            for write in 0..WRITES {
                let block = place(other, write);
                let seen = read(m, &*handles[me as usize], block, 4096, 1)?;
                check(seen == pattern(block, 4096, other), "a queue shows other bytes")?;
            }
        }
    }
    Ok(())
}

/// A queue whose completions nobody takes is full, and requests go on in the other one.
fn full_and_free(m: &Machine) -> Outcome {
    for handles in several(m) {
        let (full, free) = (&*handles[0], &*handles[1]);
        let buffer = buffer(m, 512)?;
        let into = Data { buffer: &buffer, pieces: &ONE };
        let taken =
            (0..).take_while(|&token| full.submit(&Request::Read { block: 1, into }, token) == Ok(()));
        let taken = taken.count();
        check(taken == full.geometry().queue_depth, "the queue has another length")?;
        let bytes = pattern(9, 4096, 9);
        for round in 0..2 * taken {
            write(m, free, 9 + round as u64 % 8, &bytes[..512], 1, false)?;
            check(full.submit(&Request::Flush, 0) == Err(Submit::Busy), "room came from elsewhere")?;
        }
        let mut times = vec![0_u8; taken];
        wait(full, taken, |token| times[token as usize] += 1)?;
        check(times.iter().all(|&times| times == 1), "a request completed twice, another never")?;
    }
    Ok(())
}
