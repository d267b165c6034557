//! The recorded streams of `tests/data`.

use std::path::{Path, PathBuf};

/// What happened next on a connection.
pub struct Record {
    /// By the responder; otherwise by the initiator.
    pub responder: bool,
    /// The direction was closed.
    pub closed: bool,
    /// The connection was reset.
    pub reset: bool,
    pub payload: Vec<u8>,
}

/// Names of the files.
pub fn all() -> Vec<PathBuf> {
    let data = Path::new("tests/data");
    let mut paths: Vec<_> = std::fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "stream"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

/// The connections of a file, each with its records in order.
pub fn connections(path: &Path) -> Vec<Vec<Record>> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut found: Vec<Vec<Record>> = Vec::new();
    while let [flags, connection, high, low, behind @ ..] = rest {
        let (payload, behind) = behind.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        if flags & 8 != 0 {
            found.push(Vec::new());
        }
        found[usize::from(*connection)].push(Record {
            responder: flags & 1 != 0,
            closed: flags & 2 != 0,
            reset: flags & 4 != 0,
            payload: payload.to_vec(),
        });
        rest = behind;
    }
    assert!(rest.is_empty());
    found
}

/// All bytes of one direction.
pub fn direction(records: &[Record], responder: bool) -> Vec<u8> {
    let of = records.iter().filter(|record| record.responder == responder);
    of.flat_map(|record| record.payload.clone()).collect()
}
