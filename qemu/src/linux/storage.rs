//! Disks of a Linux guest. As a host of NVMe over Fabrics it connects, makes file systems and
//! measures. As a target it serves a RAM disk over RDMA (nvmet), with which Ferrovia's target is
//! compared.

use std::time::Duration;

use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::images;
use crate::setup::Qemu;

use super::image::Image;
use super::{Device, Linux, Outcome, STEP};

/// The program of `tools/disk-load`.
const DISK_LOAD: &str = "disk-load";
/// How long a step that moves much data may take.
const LONG: Duration = Duration::from_secs(120);
/// The port of NVMe over RDMA (NVMe over Fabrics 1.1, 7.3.6.4).
pub const PORT: u16 = 4420;

/// The arguments of `nvme connect`.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// The subsystem's name.
    pub nqn: &'a str,
    /// The target's IP address.
    pub address: &'a str,
    /// Its port, usually [`PORT`].
    pub port: u16,
    /// The host's name and its identifier, a UUID. Without them all guests have the same name, and
    /// a new identifier for each command.
    pub host: Option<(&'a str, &'a str)>,
    /// Further options, such as `--keep-alive-tmo=5`. A guest has one CPU, and so one I/O queue
    /// whatever `--nr-io-queues` says; `--nr-write-queues=1` and `--nr-poll-queues=1` add one each.
    pub options: &'a str,
}

impl<'a> Connect<'a> {
    /// Without options.
    pub fn to(nqn: &'a str, address: &'a str) -> Connect<'a> {
        Connect { nqn, address, port: PORT, host: None, options: "" }
    }

    /// The command line.
    pub fn command(&self) -> String {
        let Connect { nqn, address, port, host, options } = self;
        let mut line = format!("nvme connect -t rdma -a {address} -s {port} -n {nqn}");
        if let Some((nqn, id)) = host {
            line += &format!(" --hostnqn={nqn} --hostid={id}");
        }
        if !options.is_empty() {
            line += &format!(" {options}");
        }
        line
    }
}

/// The operation on the blocks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// They are read.
    Read,
    /// They are written.
    Write,
}

/// A measurement: random blocks, with O_DIRECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether the blocks are read or written.
    pub way: Way,
    /// The size of a block in bytes.
    pub block: u32,
    /// The number of blocks in flight.
    pub depth: u32,
    /// How long it takes.
    pub seconds: u32,
    /// The seed of the random blocks.
    pub seed: u64,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Blocks a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// The average time of a block, in microseconds.
    pub mean_us: f64,
    /// The median time of a block, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of the time of a block, in microseconds.
    pub p99_us: f64,
    /// The number of blocks.
    pub blocks: u64,
    /// The time of the whole measurement, in seconds.
    pub seconds: f64,
    /// The CPU time that the guest's QEMU used in that time.
    pub cpu_time: CpuTime,
}

impl Load {
    /// Reads the line of `disk-load`.
    fn parse(line: &str, block: u32, cpu_time: CpuTime) -> Option<Load> {
        let number = |name: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value?.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)
        };
        let (count, seconds) = (number("ios")?, number("seconds").filter(|seconds| *seconds > 0.0)?);
        let iops = count / seconds;
        Some(Load {
            iops,
            bytes_per_second: iops * f64::from(block),
            mean_us: number("mean_us")?,
            p50_us: number("p50_us")?,
            p99_us: number("p99_us")?,
            blocks: count as u64,
            seconds,
            cpu_time,
        })
    }
}

/// Boots a guest that can connect to targets and measure disks, like [`Linux::boot`].
pub fn boot(qemu: &Qemu, image: &Image, device: &Device<'_>) -> Result<Linux> {
    let program = images::build_tool(DISK_LOAD)?;
    let mut linux = Linux::boot_with_disk(qemu, image, device, Some(&program))?;
    let file = format!("/usr/bin/{DISK_LOAD}");
    linux.succeed("set -e; for name in virtio_blk nvme_rdma ext4; do modprobe $name; done", STEP)?;
    linux.succeed(&format!("cat /dev/vda >{file} && chmod +x {file}"), STEP)?;
    Ok(linux)
}

impl Linux {
    /// Connects to a subsystem, and waits until it has `namespaces` namespaces; returns their
    /// devices, in order.
    pub fn connect(&mut self, target: &Connect<'_>, namespaces: usize) -> Result<Vec<String>> {
        self.succeed(&target.command(), LONG)?;
        self.devices(target.nqn, namespaces)
    }

    /// Waits until a subsystem that is connected has `namespaces` namespaces; returns their
    /// devices, in order.
    pub fn devices(&mut self, nqn: &str, namespaces: usize) -> Result<Vec<String>> {
        let list = format!(
            "for folder in /sys/class/nvme-subsystem/* /sys/class/nvme/*; do \
             [ \"$(cat $folder/subsysnqn)\" = {nqn} ] && ls $folder; done | grep -xE \"nvme[0-9]+n[0-9]+\" | \
             sort -u"
        );
        let wait = format!("until [ $({list} | wc -l) -ge {namespaces} ]; do sleep 0.05; done; {list}");
        let names = self.succeed(&wait, STEP)?;
        Ok(names.lines().map(|name| format!("/dev/{name}")).collect())
    }

    /// Tries to connect to a subsystem, which must refuse it. Returns the status of the command
    /// Connect, with the bit Do Not Retry (0x4000).
    pub fn refused(&mut self, target: &Connect<'_>) -> Result<u16> {
        let line = target.command();
        let Outcome { status, text } = self.run(&format!("dmesg -c >/dev/null; {line}"), LONG)?;
        if status == 0 {
            return Err(Error::Tool(format!("Linux: {line}: it was not refused")));
        }
        // nvme-cli does not print the status, but the kernel does.
        let kernel = self.succeed("dmesg", STEP)?;
        let number = kernel.rsplit_once("failed to connect queue: 0 ret=").map(|(_, rest)| rest);
        number
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| Error::Tool(format!("Linux: {line}: status {status}\n{text}{kernel}")))
    }

    /// Disconnects all controllers of a subsystem.
    pub fn disconnect(&mut self, nqn: &str) -> Result<()> {
        self.succeed(&format!("nvme disconnect -n {nqn}"), LONG).map(drop)
    }

    /// Makes an ext4 file system on a device.
    pub fn make_file_system(&mut self, device: &str) -> Result<()> {
        self.succeed(&format!("mkfs.ext4 -q -F {device}"), LONG).map(drop)
    }

    /// Mounts a device at a folder.
    pub fn mount(&mut self, device: &str, folder: &str) -> Result<()> {
        self.succeed(&format!("mkdir -p {folder} && mount -t ext4 {device} {folder}"), LONG).map(drop)
    }

    /// Unmounts what is mounted at a folder, when all of it has been written.
    pub fn unmount(&mut self, folder: &str) -> Result<()> {
        self.succeed(&format!("umount {folder}"), LONG).map(drop)
    }

    /// Checks the file system of a device, which must not be mounted, without repairing it.
    pub fn check_file_system(&mut self, device: &str) -> Result<()> {
        self.succeed(&format!("e2fsck -f -n {device}"), LONG).map(drop)
    }

    /// Drops the guest's caches of its disks, so that it reads the disks again.
    pub fn drop_caches(&mut self) -> Result<()> {
        self.succeed("sync && echo 3 >/proc/sys/vm/drop_caches", LONG).map(drop)
    }

    /// The SHA-256 of a file, in hexadecimal.
    pub fn checksum(&mut self, file: &str) -> Result<String> {
        let said = self.succeed(&format!("sha256sum {file}"), LONG)?;
        let sum = said.split_whitespace().next().filter(|sum| sum.len() == 64);
        sum.map(str::to_owned).ok_or_else(|| Error::Tool(format!("Linux: sha256sum {file} wrote {said}")))
    }

    /// Measures a disk of a guest that [`boot`] has started.
    pub fn load(&mut self, device: &str, plan: &Plan) -> Result<Load> {
        let Plan { way, block, depth, seconds, seed } = plan;
        let way = match way {
            Way::Read => "read",
            Way::Write => "write",
        };
        let line = format!("{DISK_LOAD} {device} {block} {depth} {way} {seconds} {seed}");
        let before = self.cpu_time()?;
        let said = self.succeed(&line, LONG + Duration::from_secs((*seconds).into()))?;
        let used = self.cpu_time()?.since(&before);
        Load::parse(&said, *block, used).ok_or_else(|| Error::Tool(format!("Linux: {line} wrote {said}")))
    }

    /// Serves a RAM disk of `mib` MiB, all of them written, to any host.
    pub fn serve_ram_disk(&mut self, nqn: &str, address: &str, mib: u32) -> Result<()> {
        let kib = u64::from(mib) << 10;
        self.succeed(
            &format!(
                "set -e; modprobe nvmet_rdma; modprobe brd rd_nr=1 rd_size={kib}; \
                 dd if=/dev/zero of=/dev/ram0 bs=1M count={mib}; \
                 mount -t configfs none /sys/kernel/config; cd /sys/kernel/config/nvmet; \
                 mkdir subsystems/{nqn}; cd subsystems/{nqn}; echo 1 >attr_allow_any_host; \
                 mkdir namespaces/1; echo /dev/ram0 >namespaces/1/device_path; echo 1 >namespaces/1/enable; \
                 cd ../../ports; mkdir 1; cd 1; echo rdma >addr_trtype; echo ipv4 >addr_adrfam; \
                 echo {address} >addr_traddr; echo {PORT} >addr_trsvcid; \
                 ln -s /sys/kernel/config/nvmet/subsystems/{nqn} subsystems/{nqn}"
            ),
            LONG,
        )
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_what_was_asked_for() {
        let mut target = Connect::to("nqn.x:y", "10.0.0.1");
        assert_eq!(target.command(), "nvme connect -t rdma -a 10.0.0.1 -s 4420 -n nqn.x:y");
        target.host = Some(("nqn.host", "b5e3"));
        target.options = "-i 2";
        let expected =
            "nvme connect -t rdma -a 10.0.0.1 -s 4420 -n nqn.x:y --hostnqn=nqn.host --hostid=b5e3 -i 2";
        assert_eq!(target.command(), expected);
    }

    #[test]
    fn figures_are_read_or_refused() {
        let line = "ios=500 seconds=2.000 mean_us=90.5 p50_us=80.0 p99_us=200.0 max_us=300.0\n";
        let load = Load::parse(line, 4096, CpuTime::default()).expect("a line");
        assert_eq!((load.iops, load.bytes_per_second, load.blocks), (250.0, 1_024_000.0, 500));
        assert_eq!((load.mean_us, load.p50_us, load.p99_us, load.seconds), (90.5, 80.0, 200.0, 2.0));
        for wrong in ["", "ios=500", &line.replace("2.000", "0"), &line.replace("90.5", "NaN")] {
            assert_eq!(Load::parse(wrong, 4096, CpuTime::default()), None, "{wrong}");
        }
    }
}
