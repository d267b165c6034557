//! Child processes that inherit named descriptors and die when we do, even by SIGKILL.
#![expect(unsafe_code, reason = "code between fork and exec")]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{Errno, FdFlags};
use rustix::process::Signal;

/// Makes the child of `command` inherit `descriptors` under their numbers, and get `signal` when the thread
/// that spawns it ends, however it ends.
///
/// The descriptors must stay open until the child was spawned.
pub fn bind(command: &mut Command, signal: Signal, descriptors: Vec<RawFd>) {
    let parent = rustix::process::getpid();
    let prepare = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // Had the parent died before that call, no signal would ever come.
        if rustix::process::getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        for &number in &descriptors {
            // SAFETY: the caller keeps it open until after the fork, so the child has it too.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: only system calls, no allocation and no lock; fit to run between fork and exec.
    unsafe { command.pre_exec(prepare) };
}
