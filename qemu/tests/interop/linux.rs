//! A Linux guest with Soft-RoCE or siw, whose network device is on a UNIX stream socket.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

pub use qemu::linux::Outcome;
use qemu::linux::image::{Image, Kernel};
use qemu::linux::{self, Device, Side, blktests, storage};
use qemu::setup::Qemu;

use crate::{LIMIT, LINUX, MTU, Transport};

/// How long the steps around a command may take.
const STEP: Duration = Duration::from_secs(60);

fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| Image::find().expect("the Linux guest's image"))
}

fn qemu() -> Qemu {
    qemu::setup::find_qemu(None, None).expect("QEMU")
}

/// A running Linux guest; dropping it ends it.
pub struct Linux(linux::Linux);

impl Linux {
    /// Boots a guest with these addresses on the stream socket at `link`, where ours listens, and
    /// waits until it takes commands.
    pub fn boot(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        Linux::boot_with(Side::Connect, link, addresses, mtu)
    }

    /// The same, but the guest's QEMU listens at `link`, so one image of ours after the other can
    /// connect to it.
    pub fn listen(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        Linux::boot_with(Side::Listen, link, addresses, mtu)
    }

    fn boot_with(side: Side, link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        let device = Device { side, link, addresses, mtu, mac: 2 };
        let mut linux = Linux(linux::Linux::boot(&qemu(), image(), &device).expect("the guest is ready"));
        // rdma_cm asks for a neighbour from the link-local address. While Linux looks for
        // duplicates of that address, nothing is sent, and rdma_cm gives up after 2 s.
        let local = "ip -6 address show dev eth0 scope link -tentative | grep inet6";
        linux.succeed(&format!("until {local}; do sleep 0.1; done"), STEP);
        linux
    }

    /// The guest, in which this transport is the only one.
    pub fn over(mut self, transport: Transport) -> Linux {
        if transport == Transport::Iwarp {
            self.0.use_iwarp().expect("siw");
        }
        self
    }

    /// Boots a guest that uses disks by NVMe over RDMA, and can measure them. `side` says whether
    /// its QEMU listens at `link`.
    pub fn boot_for_storage(side: Side, link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        Linux::boot_host(Device { side, link, addresses, mtu, mac: 2 })
    }

    /// The same with fio.
    pub fn boot_for_fio(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        let image = Image::with_tools().expect("the Linux guest's image");
        let device = Device { side: Side::Connect, link, addresses, mtu, mac: 2 };
        Linux(storage::boot(&qemu(), &image, &device).expect("the guest is ready"))
    }

    /// Boots such a guest as one of several on a switch: `mac` is the last byte of its MAC.
    pub fn boot_on_switch(link: &Path, addresses: &[&str], mtu: u32, mac: u8) -> Linux {
        Linux::boot_host(Device { side: Side::Connect, link, addresses, mtu, mac })
    }

    /// Boots a guest with the kernel that can authenticate.
    pub fn boot_to_authenticate(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        static IMAGE: OnceLock<Image> = OnceLock::new();
        let image = IMAGE.get_or_init(|| Image::with(Kernel::Newer).expect("the Linux guest's image"));
        let device = Device { side: Side::Connect, link, addresses, mtu, mac: 2 };
        let mut linux = Linux(storage::boot(&qemu(), image, &device).expect("the guest is ready"));
        linux.0.load_for_authentication().expect("modprobe");
        linux.succeed("grep dhchap_secret /dev/nvme-fabrics", STEP);
        linux
    }

    /// Boots a guest with this kernel and a checkout of blktests.
    pub fn boot_for_blktests(
        kernel: Kernel,
        checkout: &Path,
        target: &blktests::Target<'_>,
        link: &Path,
    ) -> Linux {
        let folder = tempfile::tempdir().expect("a folder");
        let image =
            blktests::image(kernel, checkout, target, folder.path()).expect("the Linux guest's image");
        let device = Device { side: Side::Connect, link, addresses: &LINUX, mtu: MTU, mac: 2 };
        Linux(blktests::boot(&qemu(), &image, &device).expect("the guest is ready"))
    }

    fn boot_host(device: Device<'_>) -> Linux {
        Linux(storage::boot(&qemu(), image(), &device).expect("the guest is ready"))
    }

    /// Boots a guest at the end of the link where ours would be, for a test of Linux alone.
    pub fn boot_in_our_place(link: &Path, addresses: &[&str], mtu: u32) -> Linux {
        let device = Device { side: Side::Listen, link, addresses, mtu, mac: 1 };
        Linux(linux::Linux::boot(&qemu(), image(), &device).expect("the guest is ready"))
    }

    /// Runs a command line of the guest's shell, for `limit` at most.
    pub fn run(&mut self, line: &str, limit: Duration) -> Outcome {
        self.0.run(line, limit).expect("the guest carries out commands")
    }

    /// Runs a command that has to succeed; returns what it wrote.
    #[track_caller]
    pub fn succeed(&mut self, line: &str, limit: Duration) -> String {
        let Outcome { status, text } = self.run(line, limit);
        self.check(status, line, text)
    }

    /// Runs rping as a client, which has to succeed; returns what it wrote.
    #[track_caller]
    pub fn rping(&mut self, options: &str) -> String {
        let Outcome { status, text } = self.run(&format!("rping -c {options}"), LIMIT);
        // After the last ping, rping closes a channel on which its own thread may still wait (up to
        // version 44 at least); that thread then ends the program.
        if status == 255
            && text.contains("rdma_get_cm_event: Bad file descriptor")
            && !text.contains("failed")
        {
            return text;
        }
        self.check(status, options, text)
    }

    /// Starts a server in the background, for `limit` at most, and waits until it listens.
    #[track_caller]
    pub fn serve(&mut self, line: &str, limit: Duration) {
        let limit = limit.as_secs();
        let start = format!(
            "rm -f /tmp/status; (timeout {limit} {line} >/tmp/said 2>&1; echo $? >/tmp/status) & \
             until rdma resource show cm_id | grep LISTEN; do [ -e /tmp/status ] && exit 1; sleep 0.1; done"
        );
        let Outcome { status, .. } = self.run(&start, STEP);
        if status != 0 {
            self.served(line);
            panic!("{line} does not listen");
        }
    }

    /// Waits until the server `line` has ended, which has to succeed; returns what it wrote.
    #[track_caller]
    pub fn served(&mut self, line: &str) -> String {
        let end = "until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/said; exit $(cat /tmp/status)";
        let Outcome { status, text } = self.run(end, STEP);
        self.check(status, line, text)
    }

    /// What the guest can do with disks (`qemu::linux::storage`).
    pub fn storage(&mut self) -> &mut linux::Linux {
        &mut self.0
    }

    #[track_caller]
    fn check(&mut self, status: i32, line: &str, text: String) -> String {
        if status != 0 {
            let Outcome { text: kernel, .. } = self.run("dmesg | tail -n 20", STEP);
            panic!("Linux: {line}: status {status}\n{text}\nThe kernel's last messages:\n{kernel}");
        }
        text
    }
}
