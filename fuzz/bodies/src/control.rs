//! What clients send to the socket of the storage target's operator: commands, nearly commands, any
//! bytes, half a line, a line that is too long, by two of them at once.
//!
//! What must hold: each line gets one line, an object that says whether it was done and, if not,
//! why, in one line; half a line at the end and a line that is too long get one as well, and end
//! the client; no client notices another one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use qemu::fuzzing::{LONGEST, Server};
use serde_json::Value;

use crate::Input;

const STEPS: usize = 24;
const CLIENTS: usize = 2;
/// Parts of commands.
const PARTS: [&str; 24] = [
    "{\"command\": \"",
    "list",
    "metrics",
    "add",
    "remove",
    "resize",
    "disconnect",
    "drain",
    "resume",
    "save",
    "\"",
    ", \"nsid\": ",
    ", \"size\": \"",
    ", \"ram\": ",
    ", \"file\": \"",
    ", \"host\": \"",
    "}",
    "}\n",
    "\n",
    "1",
    "512M\"",
    "\\u0000",
    "[[[[[[[[[[[[[[[[",
    "18446744073709551616",
];

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let server = Server::new().expect("memory and sockets");
    let mut sent = vec![Vec::new(); CLIENTS];
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let (client, served) = UnixStream::pair().expect("a socket");
            let server = server.clone();
            // A client that is not read from any more ends it.
            scope.spawn(move || drop(server.serve(&served)));
            clients.push(client);
        }
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let number = input.below(CLIENTS);
            let part = part(&mut input);
            sent[number].extend_from_slice(&part);
            // It fails once the server has had enough.
            let _ = clients[number].write_all(&part);
        }
        for (mut client, sent) in clients.into_iter().zip(&sent) {
            let _ = client.shutdown(Shutdown::Write);
            let mut answers = String::new();
            // A client whose last bytes were not read is reset.
            let is_whole = client.read_to_string(&mut answers).is_ok();
            check(sent, &answers, is_whole);
        }
    });
}

fn part(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(8) {
        0 => {
            let len = input.below(40);
            input.bytes(len).to_vec()
        }
        1 if input.rarely(8) => vec![input.byte(); LONGEST - 40 + input.below(80)],
        1 => b"{\"command\": \"remove\", \"nsid\": 3}\n".to_vec(),
        2 => b"{\"command\": \"add\", \"file\": \"/nowhere/at all\"}\n".to_vec(),
        _ => PARTS[input.below(PARTS.len())].as_bytes().to_vec(),
    }
}

/// Checks the answers to what a client has sent.
fn check(sent: &[u8], answers: &str, is_whole: bool) {
    let mut expected = 0;
    for line in sent.split_inclusive(|&byte| byte == b'\n') {
        let is_end = line.len() > LONGEST || !line.ends_with(b"\n");
        expected += usize::from(is_end || !line.iter().all(u8::is_ascii_whitespace));
        if is_end {
            break;
        }
    }
    let mut count = 0;
    for line in answers.split_inclusive('\n') {
        let whole = line.strip_suffix('\n');
        assert!(whole.is_some() || !is_whole, "an answer without an end: {line:?}");
        let Some(line) = whole else { break };
        let answer: Value = serde_json::from_str(line).expect("an answer is JSON");
        let why = answer["error"].as_str();
        assert!(answer["ok"].is_boolean() && (answer["ok"] == false) == why.is_some(), "{line}");
        assert!(why.is_none_or(|why| !why.is_empty() && !why.contains('\n')), "{line}");
        count += 1;
    }
    assert!(count == expected || !is_whole && count < expected, "{count} answers, not {expected}");
}
