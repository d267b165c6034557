//! A load on a disk of a Linux guest, which goes on while a test does something else: the guest
//! writes random bytes, reads them and compares, again and again, and logs each round.

use crate::LIMIT;
use crate::linux::Linux;

/// Begins the load on a device, in rounds of so many times 64 KiB, and takes what the kernel has
/// said until then.
#[track_caller]
pub fn begin(linux: &mut Linux, device: &str, count: u32) {
    let line = format!(
        "dmesg -c >/dev/null; touch /tmp/log; (while [ ! -e /tmp/stop ]; do \
         dd if=/dev/urandom of=/tmp/data bs=64k count={count} 2>/dev/null && \
         dd if=/tmp/data of={device} bs=64k oflag=direct 2>/dev/null && \
         dd if={device} bs=64k count={count} iflag=direct 2>/dev/null | cmp - /tmp/data && \
         echo >>/tmp/log || touch /tmp/failed /tmp/stop; done; touch /tmp/end) >/dev/null 2>&1 &"
    );
    linux.succeed(&line, LIMIT);
}

/// Waits until so many more rounds have succeeded.
#[track_caller]
pub fn goes_on(linux: &mut Linux, rounds: u32) {
    let line = format!(
        "last=$(wc -l </tmp/log); until [ $(wc -l </tmp/log) -ge $((last+{rounds})) ]; do \
         [ ! -e /tmp/failed ] || exit 1; sleep 0.1; done"
    );
    linux.succeed(&line, LIMIT);
}

/// Ends the load, of which no round has failed. Returns what the kernel has said meanwhile.
#[track_caller]
pub fn end(linux: &mut Linux) -> String {
    let line = "touch /tmp/stop; until [ -e /tmp/end ]; do sleep 0.1; done; [ ! -e /tmp/failed ]";
    linux.succeed(line, LIMIT);
    linux.succeed("dmesg", LIMIT)
}
