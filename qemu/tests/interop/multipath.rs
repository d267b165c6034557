//! A Linux that reaches a namespace by two paths, and writes by them with fsync while a test does
//! something to the paths. No error may reach the writer, and no block that it was told is durable
//! may be lost.

use qemu::linux::storage::Connect;

use crate::LIMIT;
use crate::linux::Linux;
use crate::storage_live::wait_until;

pub const NQN: &str = "nqn.2026-01.org.ferrovia:storage";
/// Both paths have to be of one host.
const HOST: (&str, &str) = ("nqn.2026-01.org.example:one", "11111111-2222-3333-4444-555555555555");
/// Blocks that are written before a test goes on.
pub const SOME: u32 = 15;

/// Connects to the target by two addresses; returns the one device that there is then.
#[track_caller]
pub fn connect(linux: &mut Linux, addresses: &[&str; 2]) -> String {
    let options = "--reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=2";
    let mut device = String::new();
    for address in addresses {
        let target = Connect { host: Some(HOST), options, ..Connect::to(NQN, address) };
        let devices = linux.storage().connect(&target, 1).expect("it connects");
        assert_eq!(devices.len(), 1, "{devices:?}");
        device = devices.into_iter().next().expect("a device");
    }
    wait_for_both(linux);
    device
}

/// Has Linux connect to all that a discovery service names, and to what the one names to which
/// that refers; returns the one device that there is then.
#[track_caller]
pub fn connect_all(linux: &mut Linux, address: &str) -> String {
    let (host, id) = HOST;
    let line = format!(
        "nvme connect-all -t rdma -a {address} -s 4420 --hostnqn={host} --hostid={id} --reconnect-delay=1 \
         --ctrl-loss-tmo=600 --keep-alive-tmo=2"
    );
    linux.succeed(&line, LIMIT);
    wait_for_both(linux);
    wait_until(linux, "ls /dev/nvme*n1 >/dev/null 2>&1");
    linux.succeed("ls /dev/nvme*n1", LIMIT).trim().into()
}

/// Waits until both controllers are connected.
#[track_caller]
pub fn wait_for_both(linux: &mut Linux) {
    wait_until(linux, "[ $(cat /sys/class/nvme/nvme*/state | grep -cx live) = 2 ]");
}

/// Waits until Linux knows that the paths have these states, in alphabetic order.
#[track_caller]
pub fn wait_for_states(linux: &mut Linux, states: &str) {
    wait_until(
        linux,
        &format!("[ \"$(echo $(cat /sys/block/nvme*c*n1/ana_state | sort))\" = \"{states}\" ]"),
    );
}

/// Begins to write. Each block has its number in it, as text that ends with the block. The log has
/// those that were written and flushed, a line for each.
#[track_caller]
pub fn begin(linux: &mut Linux, device: &str) {
    let writer = format!(
        "rm -f /tmp/log; touch /tmp/log; (n=0; while [ $n -lt 16000 ] && [ ! -e /tmp/stop ]; do \
         printf %4096d $n | dd of={device} bs=4096 seek=$n count=1 conv=fsync oflag=direct 2>/tmp/said || \
         {{ cat /tmp/said >/tmp/failed; break; }}; echo $n >>/tmp/log; n=$((n+1)); done; touch /tmp/end) \
         >/dev/null 2>&1 &"
    );
    linux.succeed(&writer, LIMIT);
}

/// Waits until the writer has written so many blocks more.
#[track_caller]
pub fn writes_on(linux: &mut Linux, blocks: u32) {
    let line = format!(
        "last=$(wc -l </tmp/log); until [ $(wc -l </tmp/log) -ge $((last+{blocks})) ]; do \
         [ ! -e /tmp/failed ] || {{ cat /tmp/failed; exit 1; }}; sleep 0.1; done"
    );
    linux.succeed(&line, LIMIT);
}

/// Ends the writer, reads all blocks that it was told are durable, and disconnects.
#[track_caller]
pub fn end(linux: &mut Linux, device: &str) {
    linux.succeed("touch /tmp/stop; until [ -e /tmp/end ]; do sleep 0.1; done; [ ! -e /tmp/failed ]", LIMIT);
    let check = format!(
        "echo 3 >/proc/sys/vm/drop_caches; \
         for n in $(dd if={device} bs=4096 count=$(wc -l </tmp/log) iflag=direct 2>/dev/null | tr -s \" \"); \
         do echo $n; done | cmp - /tmp/log"
    );
    linux.succeed(&check, LIMIT);
    linux.storage().disconnect(NQN).expect("it disconnects");
}
