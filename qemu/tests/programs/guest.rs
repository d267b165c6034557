//! Programs beside a Linux guest with Soft-RoCE, in which their peers run: on rdma-core's own
//! libraries, the kernel's connection manager, and its transport.
//!
//! The guest's network device ends at the program's link, so TCP of the one reaches nobody on the
//! other side: programs that exchange what they need over TCP cannot run here.

use qemu::linux::image::Image;
use qemu::linux::{Device, Linux, Side};
use qemu::setup::find_qemu;

use super::{LIMIT, Running, launcher, said};

/// A program that connects by `rdma_cm`.
struct Program {
    name: &'static str,
    server: &'static str,
    /// The server's address follows.
    client: &'static str,
    /// What each side writes when it has reached the other one.
    words: &'static str,
}

/// Those that serve the guest, and that the guest serves.
const BOTH_WAYS: [Program; 3] = [
    Program {
        name: "rping",
        server: "-s -v -V -C 30 -S 2000",
        client: "-c -v -V -C 30 -S 2000 -a",
        words: "rdma-ping-29",
    },
    Program { name: "ucmatose", server: "-c 5 -C 20", client: "-c 5 -C 20 -s", words: "return status 0" },
    Program { name: "udaddy", server: "", client: "-s", words: "return status 0" },
];

/// perftest's, which also exchange what they need by `rdma_cm` (`-R`). They serve the guest only: a
/// client asks for its second connection without waiting until the server listens again, and Linux
/// rejects what comes before. Then perftest uses memory that it has freed, and its server waits for
/// ever. Our library has such a request wait.
const OF_PERFTEST: [&str; 4] = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat"];

/// The guest is at 10.0.0.2; a program at 10.0.0.1 connects to its link.
struct Guest {
    linux: Linux,
    folder: tempfile::TempDir,
}

impl Guest {
    fn boot() -> Guest {
        let folder = tempfile::tempdir().expect("a folder");
        let qemu = find_qemu(None, None).expect("QEMU");
        let image = Image::find().expect("the Linux guest's image");
        let link = &folder.path().join("link");
        let device = Device { side: Side::Listen, link, addresses: &["10.0.0.2/24"], mtu: 1500, mac: 2 };
        Guest { linux: Linux::boot(&qemu, &image, &device).expect("the guest is ready"), folder }
    }

    /// Starts a program beside the guest.
    fn beside(&self, name: &str, arguments: &str) -> Running {
        let link = format!("stream-connect:{}", self.folder.path().join("link").display());
        let options = ["--link", &link, "--ip", "10.0.0.1/24", "--mtu", "1500"];
        Running::start(launcher(&options, name, &arguments.split_whitespace().collect::<Vec<_>>()))
    }

    /// Runs a server in the guest, and its client beside it.
    fn serves(&mut self, Program { name, server, client, words }: &Program) {
        let start = format!(
            "(timeout 100 {name} {server} >/tmp/said 2>&1 &) ; \
             until rdma resource show cm_id | grep LISTEN; do sleep 0.1; done"
        );
        self.linux.succeed(&start, LIMIT).expect("the guest's server listens");
        let asked = said(&self.beside(name, &format!("{client} 10.0.0.2")).end());
        let end = format!("while pidof {name}; do sleep 0.1; done; cat /tmp/said");
        let served = self.linux.succeed(&end, LIMIT).expect("the guest's server ends");
        let both = asked.contains(words) && served.contains(words);
        assert!(both, "{name} asks the guest: {asked}\nthe guest's: {served}");
    }

    /// Runs a client in the guest until the server beside it listens.
    fn asks(&mut self, Program { name, server, client, words }: &Program) {
        let running = self.beside(name, server);
        // A client's status is not looked at: rping may fail when it is done.
        // A command of the guest has no quotes.
        let pattern = words.replace(' ', ".");
        let ask = format!(
            "until {name} {client} 10.0.0.1 >/tmp/said 2>&1; grep -q {pattern} /tmp/said; do sleep 0.2; \
             done; cat /tmp/said"
        );
        self.linux.succeed(&ask, LIMIT).expect("the guest's client ends");
        let served = said(&running.end());
        assert!(served.contains(words), "{name} serves the guest: {served}");
    }
}

#[test]
fn programs_and_a_linux_guest_with_soft_roce_serve_each_other() {
    let mut guest = Guest::boot();
    for program in &BOTH_WAYS {
        guest.serves(program);
        guest.asks(program);
    }
    for name in OF_PERFTEST {
        let arguments = "-R -F -n 50 -s 4096";
        let words = "remote address";
        guest.asks(&Program { name, server: arguments, client: arguments, words });
    }
}
