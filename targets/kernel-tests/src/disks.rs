//! The disks as the kernel hands them over. qemu's `tests/kernel.rs` attaches them, and looks at
//! the images afterwards.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use block::{Data, Disk, Fault, Geometry, Piece, Request, Submit};
use kernel::{args, clock, memory, thread};
use platform::random::Random;
use platform::{DmaBuffer, Wake};

use crate::{Failure, Machine, Outcome, Test, check};

/// All tests of this file.
pub const TESTS: &[Test] = &[
    ("kernel.disk.are_as_many_as_said", as_many_as_said),
    ("kernel.disk.what_is_written_is_read", written_is_read),
    ("kernel.disk.neighbours_do_not_change", neighbours),
    ("kernel.disk.zeroes_are_written", zeroes),
    ("kernel.disk.discarded_blocks_are_zero_or_as_before", discards),
    ("kernel.disk.wrong_requests_are_refused", wrong_requests),
    ("kernel.disk.a_disk_for_reading_takes_no_changes", read_only),
    ("kernel.disk.the_queue_has_an_end", queue_has_an_end),
    ("kernel.disk.a_completion_may_submit_the_next_request", chained),
    ("kernel.disk.an_interrupt_wakes_a_thread", interrupt_wakes),
    ("kernel.disk.requests_allocate_nothing", allocate_nothing),
    ("kernel.disk.threads_share_a_disk", threads_share),
    ("kernel.disk.errors_of_the_device_are_reported", errors),
    ("kernel.disk.flushed_blocks_reach_the_image", flushed),
];

/// How long a request may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The queues of a disk.
pub fn queues(disk: &Arc<dyn Disk>) -> Vec<Arc<dyn Disk>> {
    (0..).map_while(|number| disk.queue(number)).collect()
}

/// The disks that take writes.
fn writable(m: &Machine) -> impl Iterator<Item = &dyn Disk> {
    m.disks.iter().map(|disk| &**disk).filter(|disk| !disk.geometry().is_read_only)
}

fn buffer(m: &Machine, len: usize) -> Result<Arc<DmaBuffer>, Failure> {
    DmaBuffer::new(&m.platform, len, 4096).map(Arc::new).map_err(|_| Failure::new("no memory"))
}

/// The bytes of blocks, which say whose they are.
pub fn pattern(block: u64, len: usize, writer: u64) -> Vec<u8> {
    let mut random = Random::new(block << 8 ^ writer);
    (0..len).map(|_| random.word() as u8).collect()
}

/// Submits a request and waits for its completion, the only one, by polling.
#[track_caller]
fn run(disk: &dyn Disk, request: &Request<'_>) -> Result<Result<(), Fault>, Failure> {
    const TOKEN: u64 = 0x1234_5678_9abc_def0;
    let late = Failure::new("a request does not complete");
    let strange = Failure::new("a completion is not the request's");
    match disk.submit(request, TOKEN) {
        Ok(()) => {}
        Err(Submit::Fault(fault)) => return Ok(Err(fault)),
        Err(Submit::Busy) => return Err(Failure::new("the disk is busy")),
    }
    let deadline = clock::now() + PATIENCE;
    let mut done = None;
    while done.is_none() {
        if clock::now() > deadline {
            return Err(late);
        }
        disk.poll(8, &mut |token, result| done = Some((token, result)));
    }
    match done {
        Some((TOKEN, result)) => Ok(result),
        _ => Err(strange),
    }
}

/// Cuts so many bytes into pieces of odd lengths, which lie in the buffer in reverse order.
fn cut(len: usize, pieces: usize) -> Vec<Piece> {
    let mut random = Random::new((len + pieces) as u64);
    let mut left = len;
    let mut cut = Vec::new();
    while left > 0 {
        let most = if cut.len() + 1 == pieces { left } else { 2 * left / (pieces - cut.len()) };
        let len = if cut.len() + 1 == pieces { left } else { 1 + random.below(most.max(1) as u64) as usize };
        let len = len.min(left);
        left -= len;
        cut.push(Piece { offset: left, len });
    }
    cut
}

/// Writes bytes in so many pieces.
#[track_caller]
pub fn write(m: &Machine, disk: &dyn Disk, block: u64, bytes: &[u8], cuts: usize, fua: bool) -> Outcome {
    let buffer = buffer(m, bytes.len())?;
    let pieces = cut(bytes.len(), cuts);
    let mut rest = bytes;
    for piece in &pieces {
        let (part, behind) = rest.split_at(piece.len);
        check(buffer.write(piece.offset, part).is_ok(), "a piece is not in its buffer")?;
        rest = behind;
    }
    let from = Data { buffer: &buffer, pieces: &pieces };
    check(run(disk, &Request::Write { block, from, fua })? == Ok(()), "a write failed")?;
    check(Arc::strong_count(&buffer) == 1, "the disk keeps the buffer of a write")
}

/// Reads bytes in so many pieces.
#[track_caller]
pub fn read(m: &Machine, disk: &dyn Disk, block: u64, len: usize, cuts: usize) -> Result<Vec<u8>, Failure> {
    let buffer = buffer(m, len)?;
    let pieces = cut(len, cuts);
    let into = Data { buffer: &buffer, pieces: &pieces };
    check(run(disk, &Request::Read { block, into })? == Ok(()), "a read failed")?;
    check(Arc::strong_count(&buffer) == 1, "the disk keeps the buffer of a read")?;
    let mut bytes = vec![0; len];
    let mut rest = &mut bytes[..];
    for piece in &pieces {
        let (part, behind) = rest.split_at_mut(piece.len);
        check(buffer.read(piece.offset, part).is_ok(), "a piece is not in its buffer")?;
        rest = behind;
    }
    Ok(bytes)
}

/// As the command line says it; and their sizes make sense.
fn as_many_as_said(m: &Machine) -> Outcome {
    let said = args().get("disks").and_then(|disks| disks.parse().ok());
    let said = said.ok_or(Failure::new("the launcher says no number"))?;
    check(m.disks.len() == said, "there are other disks than those that the launcher attached")?;
    check(kernel::disks().len() == said, "the kernel has other disks than it hands over")?;
    for disk in &m.disks {
        let Geometry { block_size, blocks, most_bytes, most_pieces, queue_depth, .. } = disk.geometry();
        check(block_size == 512 && blocks >= 4096, "a disk has another size")?;
        check(most_bytes >= 1 << 20 && most_pieces >= 64, "a request has little room")?;
        check(queue_depth >= 256, "a queue is short")?;
    }
    Ok(())
}

fn written_is_read(m: &Machine) -> Outcome {
    for disk in writable(m) {
        let Geometry { blocks, most_bytes, most_pieces, .. } = disk.geometry();
        let large = most_bytes as usize;
        let shapes = [(0, 512, 1), (5, 512, 3), (8, 4096, 1), (17, 4096, 2), (40, 65536, 7)];
        let ends = [
            (blocks - 1, 512, 1),
            (blocks - 8, 4096, 4),
            (100, 1 << 20, 100),
            (3, most_pieces * 512, most_pieces),
            (0, large, 1),
            (1, large, most_pieces),
        ];
        for (number, (block, len, pieces)) in (0..).zip(shapes.into_iter().chain(ends)) {
            if block + (len as u64).div_ceil(512) > blocks {
                continue;
            }
            let bytes = pattern(block, len, number);
            write(m, disk, block, &bytes, pieces, number % 2 == 1)?;
            check(read(m, disk, block, len, pieces)? == bytes, "a read is not what was written")?;
            check(read(m, disk, block, len, 1)? == bytes, "a read in one piece is another one")?;
        }
    }
    Ok(())
}

fn neighbours(m: &Machine) -> Outcome {
    for disk in writable(m) {
        let mut all = pattern(50, 64 * 512, 1);
        write(m, disk, 50, &all, 1, false)?;
        for (block, len) in [(51, 512), (60, 1024), (70, 8192), (113, 512)] {
            let bytes = pattern(block, len, 2);
            write(m, disk, block, &bytes, 3, false)?;
            let at = (block as usize - 50) * 512;
            all[at..at + len].copy_from_slice(&bytes);
            check(read(m, disk, 50, all.len(), 1)? == all, "a write changed other blocks")?;
        }
    }
    Ok(())
}

fn zeroes(m: &Machine) -> Outcome {
    for disk in writable(m).filter(|disk| disk.geometry().write_zeroes) {
        for may_discard in [false, true] {
            let mut all = pattern(200, 32 * 512, 3);
            write(m, disk, 200, &all, 1, false)?;
            let zeroes = Request::WriteZeroes { block: 203, blocks: 20, may_discard };
            check(run(disk, &zeroes)? == Ok(()), "zeros cannot be written")?;
            all[3 * 512..23 * 512].fill(0);
            check(read(m, disk, 200, all.len(), 2)? == all, "the zeros are elsewhere")?;
        }
    }
    Ok(())
}

fn discards(m: &Machine) -> Outcome {
    for disk in writable(m).filter(|disk| disk.geometry().discard) {
        let before = pattern(300, 64 * 512, 4);
        write(m, disk, 300, &before, 1, true)?;
        let discard = Request::Discard { block: 308, blocks: 40 };
        check(run(disk, &discard)? == Ok(()), "a discard failed")?;
        let after = read(m, disk, 300, before.len(), 1)?;
        for (block, (before, after)) in before.chunks(512).zip(after.chunks(512)).enumerate() {
            let is_zero = after.iter().all(|&byte| byte == 0);
            let may_be_zero = (8..48).contains(&block);
            check(before == after || (may_be_zero && is_zero), "a discard changed other blocks")?;
        }
        let bytes = pattern(310, 4096, 5);
        write(m, disk, 310, &bytes, 1, false)?;
        check(read(m, disk, 310, 4096, 1)? == bytes, "a discarded block cannot be written")?;
    }
    Ok(())
}

fn wrong_requests(m: &Machine) -> Outcome {
    for disk in m.disks.iter() {
        let Geometry { blocks, most_bytes, most_pieces, .. } = disk.geometry();
        let buffer = buffer(m, most_bytes as usize + 512)?;
        let read = |block, pieces: &[Piece]| {
            disk.submit(&Request::Read { block, into: Data { buffer: &buffer, pieces } }, 1)
        };
        let one = [Piece { offset: 0, len: 512 }];
        for block in [blocks, blocks + 1, u64::MAX / 512, u64::MAX] {
            check(read(block, &one) == Err(Submit::Fault(Fault::OutOfRange)), "there is no such block")?;
        }
        let misaligned = Err(Submit::Fault(Fault::Misaligned));
        check(read(0, &[]) == misaligned, "a read of nothing was taken")?;
        check(read(0, &[Piece { offset: 0, len: 511 }]) == misaligned, "a part of a block was taken")?;
        let beyond = Piece { offset: buffer.len() - 511, len: 512 };
        check(read(0, &[beyond]) == misaligned, "a piece beyond its buffer was taken")?;
        let huge = Piece { offset: 0, len: most_bytes as usize + 512 };
        check(read(0, &[huge]) == misaligned, "too many bytes were taken")?;
        let many = vec![Piece { offset: 0, len: 512 }; most_pieces + 1];
        check(read(0, &many) == misaligned, "too many pieces were taken")?;
        check(disk.poll(1, &mut |_, _| ()) == 0, "a request that was refused completed")?;
    }
    Ok(())
}

fn read_only(m: &Machine) -> Outcome {
    for disk in m.disks.iter().filter(|disk| disk.geometry().is_read_only) {
        let buffer = buffer(m, 512)?;
        let data = Data { buffer: &buffer, pieces: &[Piece { offset: 0, len: 512 }] };
        check(run(&**disk, &Request::Read { block: 0, into: data })? == Ok(()), "a read failed")?;
        check(run(&**disk, &Request::Flush)? == Ok(()), "a flush failed")?;
        for request in [
            Request::Write { block: 0, from: data, fua: true },
            Request::Discard { block: 0, blocks: 1 },
            Request::WriteZeroes { block: 0, blocks: 1, may_discard: false },
        ] {
            check(run(&**disk, &request)? == Err(Fault::ReadOnly), "a disk for reading takes changes")?;
        }
    }
    Ok(())
}

/// Waits for so many completions of successes, and passes their tokens on.
#[track_caller]
pub fn wait(disk: &dyn Disk, count: usize, mut each: impl FnMut(u64)) -> Outcome {
    let late = Failure::new("a request does not complete");
    let deadline = clock::now() + PATIENCE;
    let (mut left, mut failed) = (count, 0);
    while left > 0 {
        left -= disk.poll(left, &mut |token, result| {
            failed += usize::from(result.is_err());
            each(token);
        });
        if clock::now() > deadline {
            return Err(late);
        }
    }
    check(failed == 0, "a request failed")
}

/// Requests are taken until the disk is busy; each completes once, and then there is room again.
fn queue_has_an_end(m: &Machine) -> Outcome {
    for disk in m.disks.iter() {
        let depth = disk.geometry().queue_depth;
        let buffer = buffer(m, 512)?;
        for pieces in [&[Piece { offset: 0, len: 512 }][..], &[Piece { offset: 0, len: 256 }; 2]] {
            let into = Data { buffer: &buffer, pieces };
            let mut submitted = 0;
            let refused = loop {
                match disk.submit(&Request::Read { block: submitted % 99, into }, submitted) {
                    Ok(()) => submitted += 1,
                    Err(error) => break error,
                }
            };
            check(refused == Submit::Busy, "the disk refuses for another reason")?;
            // Three descriptors each, or four.
            let expected = if pieces.len() == 1 { depth } else { (3 * depth + 1) / 4 } as u64;
            check(submitted == expected, "the queue has another length")?;
            check(Arc::strong_count(&buffer) as u64 == 1 + submitted, "the buffer is not kept")?;
            let mut times = vec![0_u8; submitted as usize];
            wait(&**disk, submitted as usize, |token| times[token as usize] += 1)?;
            check(times.iter().all(|&times| times == 1), "a request completed twice, another never")?;
            check(disk.poll(1, &mut |_, _| ()) == 0, "there is one completion more")?;
            check(Arc::strong_count(&buffer) == 1, "the buffer is kept")?;
        }
    }
    Ok(())
}

fn chained(m: &Machine) -> Outcome {
    for disk in m.disks.iter() {
        check(disk.submit(&Request::Flush, 0) == Ok(()), "a flush is refused")?;
        let mut last = 0;
        let deadline = clock::now() + PATIENCE;
        while last < 50 {
            disk.poll(4, &mut |token, result| {
                last = token;
                if token < 50 && result.is_ok() {
                    let _ = disk.submit(&Request::Flush, token + 1);
                }
            });
            check(clock::now() < deadline, "the chain of requests ends early")?;
        }
    }
    Ok(())
}

/// A thread that sleeps until the routine is called sees every completion, in whichever queue.
fn interrupt_wakes(m: &Machine) -> Outcome {
    for disk in &m.disks.iter().flat_map(queues).collect::<Vec<_>>() {
        let buffer = buffer(m, 4096)?;
        let into = Data { buffer: &buffer, pieces: &[Piece { offset: 0, len: 4096 }] };
        let word = Arc::new(AtomicU32::new(0));
        let (theirs, platform) = (word.clone(), m.platform.clone());
        disk.watch(Some(Arc::new(move || {
            theirs.fetch_add(1, Ordering::SeqCst);
            platform.wake(&theirs);
        })));
        let mut slept = 0;
        for round in 0..200 {
            for token in 0..1 + round % 3 {
                check(disk.submit(&Request::Read { block: token, into }, token) == Ok(()), "it is busy")?;
            }
            let mut left = 1 + round as usize % 3;
            let deadline = clock::now() + PATIENCE;
            while left > 0 {
                let seen = word.load(Ordering::SeqCst);
                let polled = disk.poll(8, &mut |_, _| ());
                left -= polled;
                if polled == 0 && !disk.arm() {
                    slept += 1;
                    let woken = m.platform.wait(&word, seen, Some(deadline));
                    check(woken == Wake::Woken, "no interrupt comes")?;
                }
            }
        }
        check(slept > 0, "no thread slept")?;
        disk.watch(None);
        let before = word.load(Ordering::SeqCst);
        check(run(&**disk, &Request::Read { block: 0, into })? == Ok(()), "a read failed")?;
        check(word.load(Ordering::SeqCst) == before, "the routine was called after it was removed")?;
    }
    Ok(())
}

/// Neither submitting nor polling takes memory, and all that is kept is given back.
fn allocate_nothing(m: &Machine) -> Outcome {
    for disk in &m.disks.iter().flat_map(queues).collect::<Vec<_>>() {
        let buffer = buffer(m, 4096)?;
        let pieces = [Piece { offset: 2048, len: 2048 }, Piece { offset: 0, len: 2048 }];
        let into = Data { buffer: &buffer, pieces: &pieces };
        let before = (memory::requests(), memory::usage().heap, memory::usage().dma);
        for round in 0..20 {
            for token in 0..100 {
                let read = Request::Read { block: token * 8 % 4000, into };
                let request = if token % 10 == round % 10 { Request::Flush } else { read };
                check(disk.submit(&request, token) == Ok(()), "it is busy")?;
            }
            wait(&**disk, 100, |_| ())?;
        }
        let after = (memory::requests(), memory::usage().heap, memory::usage().dma);
        check(before == after, "requests take memory")?;
    }
    Ok(())
}

/// Threads write and read at the same time, each its own blocks, and each polls for all.
fn threads_share(m: &Machine) -> Outcome {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 40;
    for disk in m.disks.iter().filter(|disk| !disk.geometry().is_read_only) {
        // Completions by thread: its number is the token's upper half.
        let done = Arc::new([const { AtomicU32::new(0) }; THREADS as usize]);
        let wrong = Arc::new(AtomicU32::new(0));
        let ended = Arc::new(AtomicU32::new(0));
        for thread in 0..THREADS {
            let (disk, done, wrong, ended) = (disk.clone(), done.clone(), wrong.clone(), ended.clone());
            let buffer = buffer(m, 8192)?;
            let spawned = thread::spawn("disk user", move || {
                let complete = |request: &Request<'_>, number: u32| {
                    let token = thread << 32;
                    while disk.submit(request, token) == Err(Submit::Busy) {}
                    while done[thread as usize].load(Ordering::SeqCst) < number {
                        let polled = disk.poll(4, &mut |token, result| {
                            wrong.fetch_add(u32::from(result.is_err()), Ordering::SeqCst);
                            done[(token >> 32) as usize].fetch_add(1, Ordering::SeqCst);
                        });
                        if polled == 0 {
                            thread::yield_now();
                        }
                    }
                };
                for round in 0..ROUNDS {
                    let block = 1000 + thread * 64 + round % 48;
                    let bytes = pattern(block, 4096, thread + round);
                    let written = buffer.write(0, &bytes).is_ok();
                    let from = Data { buffer: &buffer, pieces: &[Piece { offset: 0, len: 4096 }] };
                    complete(&Request::Write { block, from, fua: round % 8 == 0 }, 2 * round as u32 + 1);
                    let into = Data { buffer: &buffer, pieces: &[Piece { offset: 4096, len: 4096 }] };
                    complete(&Request::Read { block, into }, 2 * round as u32 + 2);
                    let mut seen = vec![0; 4096];
                    let is_right = written && buffer.read(4096, &mut seen).is_ok() && seen == bytes;
                    wrong.fetch_add(u32::from(!is_right), Ordering::SeqCst);
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
            check(spawned.is_ok(), "no memory for a thread")?;
        }
        let deadline = clock::now() + PATIENCE;
        while ended.load(Ordering::SeqCst) < THREADS as u32 {
            check(clock::now() < deadline, "a thread does not end")?;
            thread::yield_now();
        }
        check(wrong.load(Ordering::SeqCst) == 0, "a request failed, or its bytes are wrong")?;
    }
    Ok(())
}

/// The launcher says by `failing=SECTOR` that this sector of the last disk fails.
fn errors(m: &Machine) -> Outcome {
    let failing = args().get("failing").and_then(|sector| sector.parse::<u64>().ok());
    let (Some(sector), Some(disk)) = (failing, m.disks.last()) else { return Ok(()) };
    let buffer = buffer(m, 4096)?;
    let data = Data { buffer: &buffer, pieces: &[Piece { offset: 0, len: 4096 }] };
    let outcomes = |block| -> Result<_, Failure> {
        let read = run(&**disk, &Request::Read { block, into: data })?;
        let writes = [false, true].map(|fua| run(&**disk, &Request::Write { block, from: data, fua }));
        let [plain, forced] = writes;
        Ok([read, plain?, forced?])
    };
    for block in [sector - 7, sector - 3, sector] {
        check(outcomes(block)? == [Err(Fault::Media); 3], "an error is not reported")?;
    }
    for block in [sector - 8, sector + 1] {
        check(outcomes(block)? == [Ok(()); 3], "another block has an error")?;
    }
    Ok(())
}

/// Writes what qemu's `tests/kernel.rs` looks for in the images when the guest has ended.
fn flushed(m: &Machine) -> Outcome {
    for (number, disk) in (0..).zip(writable(m)) {
        let bytes = [b'A' + number; 4096];
        write(m, disk, 2000, &bytes, 2, false)?;
        check(run(disk, &Request::Flush)? == Ok(()), "a flush failed")?;
        write(m, disk, 2008, &bytes, 1, true)?;
    }
    Ok(())
}
