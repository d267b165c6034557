//! The UNIX socket that takes an operator's commands: a line of JSON for each command, and a line
//! for its answer, in order. Only the user who runs the launcher may connect.
//!
//! A few clients are served at a time, each by a thread, and one more gets an error. A line has a
//! longest length, and a client that is silent for long is disconnected: so no client keeps others
//! from their commands, whatever it sends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The clients that are served at a time.
const MOST_CLIENTS: usize = 8;
/// The longest line.
pub(super) const LONGEST: u64 = 4 << 10;
/// How long a client may be silent, and may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the end of the launcher waits for answers that are under way.
const LINGER: Duration = Duration::from_secs(2);

/// What answers a line.
pub(crate) type Answer = Arc<dyn Fn(&[u8]) -> String + Send + Sync>;

/// The socket. Dropping this removes its path, after the answers that are under way.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    path: PathBuf,
    /// Commands that are carried out.
    busy: Arc<AtomicUsize>,
}

impl ControlSocket {
    /// Listens at a path. A socket that nobody listens at any more is replaced.
    pub fn listen(path: &Path, answer: Answer) -> Result<ControlSocket> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        match UnixStream::connect(path) {
            Ok(_) => return Err(failed(io::ErrorKind::AddrInUse.into())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let file = path.symlink_metadata().map_err(failed)?;
                // A connection to an ordinary file is refused, too.
                if file.file_type().is_socket() {
                    std::fs::remove_file(path).map_err(failed)?;
                }
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let busy = Arc::new(AtomicUsize::new(0));
        let socket = ControlSocket { path: path.to_owned(), busy: busy.clone() };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        // Other users may have connected before that, but not since.
        listener.set_nonblocking(true).map_err(failed)?;
        while listener.accept().is_ok() {}
        listener.set_nonblocking(false).map_err(failed)?;
        let clients = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // No descriptor is left, as a rule.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                admit(stream, &clients, &busy, &answer);
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(accept);
        thread.map_err(|e| Error::system("start a thread", e))?;
        Ok(socket)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.path);
        let until = Instant::now() + LINGER;
        while self.busy.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Serves a client in a thread of its own, if there are not too many.
fn admit(mut stream: UnixStream, clients: &Arc<AtomicUsize>, busy: &Arc<AtomicUsize>, answer: &Answer) {
    let limits = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
    if limits.is_err() {
        return;
    }
    if clients.fetch_add(1, Ordering::AcqRel) >= MOST_CLIENTS {
        clients.fetch_sub(1, Ordering::AcqRel);
        let _ = stream.write_all(refusal("too many clients at once").as_bytes());
        return;
    }
    let (guard, busy, answer) = (Guard(clients.clone()), busy.clone(), answer.clone());
    let serve = move || {
        let _guard = guard;
        // It ends when the client does, and its errors are the client's.
        let _ = serve(&stream, &busy, &*answer);
    };
    // If it cannot be started, the client is disconnected.
    let _ = std::thread::Builder::new().name("control client".into()).spawn(serve);
}

/// Counts a client, or a command, until it is dropped.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn refusal(why: &str) -> String {
    format!("{}\n", serde_json::json!({"ok": false, "error": why}))
}

/// Serves a client until it ends.
pub(super) fn serve(
    stream: &UnixStream,
    busy: &Arc<AtomicUsize>,
    answer: &dyn Fn(&[u8]) -> String,
) -> io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if line.pop_if(|byte| *byte == b'\n').is_none() {
            let why = if read as u64 == LONGEST { "the line is too long" } else { "the line has no end" };
            return writer.write_all(refusal(why).as_bytes());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        busy.fetch_add(1, Ordering::AcqRel);
        let _busy = Guard(busy.clone());
        writer.write_all(format!("{}\n", answer(&line)).as_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen() -> (tempfile::TempDir, PathBuf, ControlSocket) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let echo = |line: &[u8]| format!("{:?}", String::from_utf8_lossy(line));
        let socket = ControlSocket::listen(&path, Arc::new(echo)).expect("it listens");
        (folder, path, socket)
    }

    fn connect(path: &Path) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(path).expect("it is served"))
    }

    fn line(client: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        client.read_line(&mut line).expect("a line");
        line
    }

    #[test]
    fn each_line_gets_one_and_clients_do_not_disturb_each_other() {
        let (_folder, path, _socket) = listen();
        let (mut first, mut second) = (connect(&path), connect(&path));
        // Half a line of the first one.
        first.get_mut().write_all(b"on").expect("sent");
        second.get_mut().write_all(b"two\n\n \nthree\n").expect("sent");
        assert_eq!((line(&mut second), line(&mut second)), ("\"two\"\n".into(), "\"three\"\n".into()));
        first.get_mut().write_all(b"e\n").expect("sent");
        assert_eq!(line(&mut first), "\"one\"\n");
        first.get_mut().write_all(b"half").expect("sent");
        first.get_mut().shutdown(std::net::Shutdown::Write).expect("it is connected");
        assert!(line(&mut first).contains("the line has no end"));
        assert_eq!(line(&mut first), "");
        second.get_mut().write_all(b"\xff\0\n").expect("sent");
        assert_eq!(line(&mut second), "\"\u{fffd}\\0\"\n");
        second.get_mut().write_all(&[b'x'; LONGEST as usize]).expect("sent");
        assert!(line(&mut second).contains("the line is too long"));
        assert_eq!(line(&mut second), "");
    }

    #[test]
    fn a_client_beyond_the_bound_is_told_and_finds_a_place_later() {
        let (_folder, path, _socket) = listen();
        let served = |client: &mut BufReader<UnixStream>| {
            let _ = client.get_mut().write_all(b"x\n");
            line(client)
        };
        let mut clients: Vec<_> = (0..MOST_CLIENTS).map(|_| connect(&path)).collect();
        assert!(clients.iter_mut().all(|client| served(client) == "\"x\"\n"));
        assert!(line(&mut connect(&path)).contains("too many clients"));
        clients.pop();
        while !served(&mut connect(&path)).starts_with("\"x\"") {}
    }

    #[test]
    fn a_path_is_one_launcher_s_and_goes_with_it() {
        let (_folder, path, socket) = listen();
        assert_eq!(path.metadata().expect("a socket").permissions().mode() & 0o777, 0o600);
        let echo: Answer = Arc::new(|_: &[u8]| String::new());
        let error = ControlSocket::listen(&path, echo.clone()).expect_err("it is in use").to_string();
        assert!(error.contains("control: "), "{error}");
        drop(socket);
        assert!(!path.exists());
        // One that was killed leaves the path.
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(ControlSocket::listen(&path, echo.clone()).is_ok());
        std::fs::write(&path, "a file").expect("write");
        assert!(ControlSocket::listen(&path, echo).is_err() && path.exists(), "a file stays");
    }
}
