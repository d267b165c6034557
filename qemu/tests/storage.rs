//! The storage target as its user starts and ends it.

extern crate ferrovia_qemu as qemu;

mod running;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use running::{Running, launcher};
use rustix::process::{Pid, Signal};

/// A command line for the launcher at one end of a link at `socket`.
fn command(words: &[&str], way: &str, socket: &Path, number: u32) -> Command {
    let mut command = launcher();
    command.args(words).arg("--link").arg(format!("{way}:{}", socket.display()));
    command.args(["--ip", &format!("10.0.0.{number}/24")]);
    command
}

fn end(running: &mut Running, signal: Signal) -> Option<i32> {
    rustix::process::kill_process(Pid::from_child(&running.child), signal).expect("it runs");
    running.child.wait().expect("its status").code()
}

/// The most disks, files among them, with the memory that the launcher chooses.
#[test]
fn as_many_disks_as_there_may_be_start_with_the_default_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut target = command(&["storage"], "stream", &folder.path().join("link"), 1);
    for number in 0..16 {
        let image = folder.path().join(number.to_string());
        File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("a sparse file");
        target.arg("--disk").arg(image);
    }
    target.args(["--ram-disk", "1M"].repeat(48));
    let mut target = Running::start(target);
    target.wait_for("ready: 10.0.0.1:4420");
    assert_eq!(end(&mut target, Signal::TERM), Some(0), "it ends by itself");
}

#[test]
fn too_little_memory_is_said_with_the_option_for_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["storage", "--ram-disk", "20M", "--ram-disk", "20M", "--memory", "96M"];
    let target = command(&words, "stream", &folder.path().join("link"), 1).output().expect("it starts");
    let said = String::from_utf8(target.stdout).expect("text");
    assert_eq!(target.status.code(), Some(1), "{said}");
    assert!(said.contains("too little for 2 disks; give the machine more by --memory"), "{said}");
}

/// The host's connection is released at once, instead of being lost later.
#[test]
fn a_target_that_is_asked_to_end_disconnects_its_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("link");
    let mut target = Running::start(command(&["storage", "--ram-disk", "1M"], "stream", &socket, 1));
    target.wait_for("ready: 10.0.0.1:4420");
    let words = ["storage-client", "10.0.0.1", "seconds=300", "requests=1000000000"];
    let mut host = Running::start(command(&words, "stream-connect", &socket, 2));
    host.wait_for("controller 1: ");
    assert_eq!(end(&mut target, Signal::INT), Some(0), "it ends by itself");
    host.wait_for("error: ");
    assert_eq!(host.child.wait().expect("its status").code(), Some(1));
}

fn operate(socket: &Path, words: &[&str]) -> Output {
    launcher().arg("storage-ctl").arg(socket).args(words).output().expect("it starts")
}

/// On two CPUs a file has two queues, whether it is there from the start or comes later. Its medium
/// goes while a host has requests by both.
#[test]
fn a_file_has_a_queue_for_each_thread_of_the_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, socket) = (folder.path().join("link"), folder.path().join("control"));
    let images = ["first", "second"].map(|name| folder.path().join(name));
    for image in &images {
        File::create(image).and_then(|file| file.set_len(8 << 20)).expect("a sparse file");
    }
    let words = ["storage", "--cpus", "2", "--namespace", "1:block-size=4096"];
    let mut target = command(&words, "stream", &link, 1);
    target.arg("--disk").arg(&images[0]).arg("--control").arg(&socket);
    let mut target = Running::start(target);
    target.wait_for("ready: 10.0.0.1:4420");
    let words = ["storage-client", "10.0.0.1", "queues=2", "seconds=300", "requests=1000000000"];
    let mut host = Running::start(command(&words, "stream-connect", &link, 2));
    host.wait_for("controller 1: ");
    let json = |words: &[&str]| {
        let output = operate(&socket, words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    assert_eq!(json(&["add", &format!("file={}", images[1].display())])["nsid"], 2);
    assert_eq!(json(&["add", "ram=2M"])["nsid"], 3);
    let list = json(&["list"]);
    let namespaces = list["namespaces"].as_array().expect("a list");
    let queues: Vec<_> = namespaces.iter().map(|one| one["disk_queues"].as_u64()).collect();
    assert_eq!(queues, [Some(2), Some(2), Some(1)], "{list}");
    // Both threads have a queue of the host, whose commands go to the file by the thread's queue.
    let loads = || {
        let list = json(&["list"]);
        let queues = list["controllers"][0]["queues"].as_array().expect("queues").clone();
        [1, 2].map(|id| queues.iter().find(|queue| queue[0] == id).and_then(|queue| queue[2].as_u64()))
    };
    while loads().iter().any(|outstanding| outstanding.is_none_or(|count| count == 0)) {
        std::thread::yield_now();
    }
    assert_eq!(json(&["remove", "nsid=1"])["released"], true);
    host.wait_for("error: ");
    json(&["end"]);
    assert_eq!(target.child.wait().expect("its status").code(), Some(0));
}

/// Commands that are carried out, and that are not; figures; and lines that are no commands.
#[test]
fn an_operator_changes_a_target_that_serves_a_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, socket) = (folder.path().join("link"), folder.path().join("control"));
    let mut target =
        command(&["storage", "--ram-disk", "4M", "--metrics", "127.0.0.1:0"], "stream", &link, 1);
    target.arg("--control").arg(&socket);
    let mut target = Running::start(target);
    let address = target.wait_for("metrics: http://");
    let address = address.trim_start_matches("metrics: http://").trim_end_matches("/metrics").to_owned();
    target.wait_for("ready: 10.0.0.1:4420");
    let words = ["storage-client", "10.0.0.1", "seconds=300", "requests=1000000000"];
    let mut host = Running::start(command(&words, "stream-connect", &link, 2));
    host.wait_for("controller 1: ");

    let image = folder.path().join("image");
    File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("a sparse file");
    let file = format!("file={}", image.display());
    let json = |words: &[&str]| {
        let output = operate(&socket, words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    assert_eq!(json(&["add", "ram=2M"])["nsid"], 2);
    assert_eq!(json(&["add", &file])["nsid"], 3);
    json(&["resize", "nsid=3", "size=16M"]);
    assert_eq!(image.metadata().expect("the image").len(), 16 << 20);
    assert_eq!(json(&["remove", "nsid=2"])["released"], true);
    json(&["ana", "state=inaccessible", "nsid=3", "port=1"]);
    let list = json(&["list"]);
    let states: Vec<_> =
        list["namespaces"].as_array().expect("a list").iter().map(|one| &one["ana"]["1"]).collect();
    assert_eq!(states, ["optimized", "inaccessible"]);
    let saved = folder.path().join("saved.toml");
    json(&["save", &format!("file={}", saved.display())]);
    let text = std::fs::read_to_string(&saved).expect("it is written");
    assert!(text.contains("[[disk]]") && text.contains("size = \"4M\""), "{text}");
    for (words, why) in [
        (&["add", &file][..], "QEMU: "),
        (&["add", "file=/nonexistent"], "No such file"),
        (&["add"], "one of \"ram\""),
        (&["remove", "nsid=2"], "no such namespace"),
        (&["resize", "nsid=1", "size=0"], "at least 1M"),
        (&["resize", "nsid=1", "size=100G"], "too little memory"),
        (&["ana"], "no \"state\""),
        (&["ana", "state=up"], "no state; there are optimized,"),
        (&["ana", "state=change", "nsid=2"], "no such namespace"),
        (&["ana", "state=change", "nsid=99999999999"], "no such namespace"),
        (&["ana", "state=change", "port=7"], "no such port"),
        (&["ana", "state=change", "port=65536"], "no such port"),
        (&["disconnect", "host=nqn.none"], "no such host"),
        (&["list", "x=1"], "no argument"),
        (&["frobnicate"], "the commands are list,"),
    ] {
        let output = operate(&socket, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let mut raw = UnixStream::connect(&socket).expect("it is served");
    raw.write_all(b"\xff\0{\n{\"command\":\"list\"}\nhalf").expect("sent");
    raw.shutdown(std::net::Shutdown::Write).expect("it is connected");
    let mut answers = String::new();
    raw.read_to_string(&mut answers).expect("text");
    let ok: Vec<bool> = answers.lines().map(|line| line.contains("\"ok\":true")).collect();
    assert_eq!(ok, [false, true, false], "{answers}");

    let page = || {
        let mut web = TcpStream::connect(&address).expect("it is served");
        web.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
        let mut page = String::new();
        web.read_to_string(&mut page).expect("text");
        page
    };
    // A page may be a moment old.
    let size = "ferrovia_nvmf_namespace_size_bytes{nsid=\"3\"} 16777216\n";
    let state = "ferrovia_nvmf_ana_state{nsid=\"3\",port=\"1\"} 3\n";
    while !page().contains(size) || !page().contains(state) {
        std::thread::yield_now();
    }
    assert!(page().contains("ferrovia_nvmf_requests_total{nsid=\"1\",op=\"write\"} "));
    json(&["end"]);
    assert_eq!(target.child.wait().expect("its status").code(), Some(0));
    assert!(!socket.exists());
    host.wait_for("error: ");
}
