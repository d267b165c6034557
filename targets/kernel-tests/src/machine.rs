//! What machine this is, for tests that boot strange ones (qemu's `tests/machines.rs`).
//!
//! With `say=machine` on the command line the image prints one line `@machine` with the numbers of
//! CPUs, MiB of RAM, NICs and modules, lines on the modules and the command line, the time from the
//! first thread to `main`, in which devices are found, and one line `@disk` for each disk, after it
//! has written and read a block there by each of its queues. It ends with status 0. With
//! `resizes=N` it waits for so many events of the first disk before, and prints a line `@resized`
//! for each.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use block::{Data, Disk, Event, Fault, Piece, Request};
use kernel::{args, clock, println};
use platform::{DmaBuffer, Platform};

use crate::Machine;

/// Prints what there is. The image's status.
pub fn say(m: &Machine) -> i32 {
    let ram = kernel::memory::size() >> 20;
    let (cpus, nics, modules) = (kernel::cpus(), m.nics.len(), kernel::modules().len());
    println!("@machine cpus={cpus} ram={ram} nics={nics} modules={modules} disks={}", m.disks.len());
    for module in kernel::modules() {
        println!("@module {} {}", module.data.len(), module.command_line);
    }
    println!("@words {}", args().raw().len());
    let times = kernel::timestamps();
    let found = clock::at(times.main).since(clock::at(times.first_thread));
    println!("@devices found in {} us", found.as_micros());
    for (number, disk) in m.disks.iter().enumerate() {
        let geometry = disk.geometry();
        let queues = crate::disks::queues(disk);
        let all_work = queues.iter().all(|queue| use_disk(&m.platform, &**queue).is_ok());
        let used = if all_work { "works" } else { "fails" };
        let (blocks, pieces, depth) = (geometry.blocks, geometry.most_pieces, geometry.queue_depth);
        let queues = queues.len();
        println!("@disk {number} {used} blocks={blocks} pieces={pieces} depth={depth} queues={queues}");
    }
    let resizes = args().get("resizes").and_then(|count| count.parse().ok()).unwrap_or(0);
    await_events(m, resizes);
    0
}

/// Writes to a block and reads it again.
fn use_disk(platform: &Arc<dyn Platform>, disk: &dyn Disk) -> Result<(), Fault> {
    let memory = |byte| {
        let buffer = DmaBuffer::new(platform, 512, 512).map_err(|_| Fault::Media)?;
        buffer.write(0, &[byte; 512]).map_err(|_| Fault::Media)?;
        Ok::<_, Fault>(Arc::new(buffer))
    };
    let (from, into) = (memory(7)?, memory(0)?);
    let pieces = [Piece { offset: 0, len: 512 }];
    let bell = watch(platform, disk);
    let run = |request: &Request<'_>| {
        disk.submit(request, 1).map_err(|_| Fault::Media)?;
        loop {
            let seen = bell.load(Ordering::SeqCst);
            let mut done = None;
            disk.poll(1, &mut |_, result| done = Some(result));
            match done {
                Some(result) => return result,
                None if disk.arm() => {}
                None => drop(platform.wait(&bell, seen, None)),
            }
        }
    };
    run(&Request::Write { block: 1, from: Data { buffer: &from, pieces: &pieces }, fua: true })?;
    run(&Request::Read { block: 1, into: Data { buffer: &into, pieces: &pieces } })?;
    let mut bytes = [0; 512];
    into.read(0, &mut bytes).map_err(|_| Fault::Media)?;
    if bytes == [7; 512] { Ok(()) } else { Err(Fault::Media) }
}

/// A word that changes each time the disk calls its routine.
fn watch(platform: &Arc<dyn Platform>, disk: &dyn Disk) -> Arc<AtomicU32> {
    let bell = Arc::new(AtomicU32::new(0));
    let (theirs, wakes) = (bell.clone(), platform.clone());
    disk.watch(Some(Arc::new(move || {
        theirs.fetch_add(1, Ordering::SeqCst);
        wakes.wake(&theirs);
    })));
    bell
}

/// Waits for events of the first disk.
fn await_events(m: &Machine, count: u32) {
    let Some(disk) = m.disks.first() else { return };
    let bell = watch(&m.platform, &**disk);
    for _ in 0..count {
        println!("@waits");
        loop {
            let seen = bell.load(Ordering::SeqCst);
            disk.poll(1, &mut |_, _| ());
            if let Some(Event::Resized { blocks }) = disk.event() {
                println!("@resized {blocks} {}", disk.geometry().blocks);
                break;
            }
            if !disk.arm() {
                m.platform.wait(&bell, seen, None);
            }
        }
    }
}
