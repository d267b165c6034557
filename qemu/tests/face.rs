//! `transfer FILE --face dat` and `--face via`: the main job through DAT and through VIPL.

use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

/// Moves files by a face, and checks that it prints these ways in their order.
fn moved(face: &str, ways: &[&str]) {
    let dir = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("this program");
    let program = program.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("ferrovia");
    // The second is longer than a message, and its last message is shorter than the others.
    for (length, nics) in [(0, "1"), (3_500_001, "2")] {
        let bytes: Vec<u8> = (0..length).map(|n: u32| (n ^ n >> 8) as u8).collect();
        let file = dir.path().join("file");
        std::fs::write(&file, &bytes).expect("a file");
        let arguments = ["--nics", nics, "transfer", "--face", face];
        let run = Command::new(&program).args(arguments).arg(&file).output();
        let run = run.expect("the launcher's output");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{}: {said}", run.status);
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("transfer ")).collect();
        assert_eq!(lines.len(), ways.len(), "{said}");
        for (way, line) in ways.iter().zip(&lines) {
            assert!(line.starts_with(&format!("transfer {way}: {length} bytes in ")), "{line}");
            assert!(line.ends_with(&format!("sha256 {digest}")), "{line}");
        }
    }
}

#[test]
fn a_file_is_moved_through_dat_in_four_ways() {
    moved("dat", &["send", "write", "write-immediate", "read"]);
}

#[test]
fn a_file_is_moved_through_vipl_in_four_ways_on_each_reliable_level() {
    moved(
        "via",
        &[
            "send, reliable delivery",
            "write, reliable delivery",
            "write-immediate, reliable delivery",
            "read, reliable delivery",
            "send, reliable reception",
            "write, reliable reception",
            "write-immediate, reliable reception",
            "read, reliable reception",
        ],
    );
}
