//! A cable between two UNIX sockets, which a test pulls out and puts in again.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time between two tries to connect to a socket that is not there yet.
const PAUSE: Duration = Duration::from_millis(50);

/// A cable, which is plugged in at first.
pub struct Cable {
    /// Where it listens.
    near: PathBuf,
    /// Where it connects to.
    far: PathBuf,
    ends: Arc<Mutex<Ends>>,
}

/// What is connected.
#[derive(Default)]
struct Ends {
    /// How often the cable was pulled out.
    pulls: u32,
    /// Both ends, once the thread that carries the bytes has connected them.
    streams: Vec<UnixStream>,
}

impl Cable {
    pub fn new(near: &Path, far: &Path) -> Cable {
        let mut cable = Cable { near: near.into(), far: far.into(), ends: Arc::default() };
        cable.plug();
        cable
    }

    /// Lets one program connect at the near end, until the cable is pulled out.
    pub fn plug(&mut self) {
        let listener = UnixListener::bind(&self.near).expect("a socket of its own");
        let (near, far, ends) = (self.near.clone(), self.far.clone(), self.ends.clone());
        let pulls = ends.lock().unwrap_or_else(PoisonError::into_inner).pulls;
        std::thread::spawn(move || {
            let Ok((here, _)) = listener.accept() else { return };
            let _ = std::fs::remove_file(near);
            let there = loop {
                match UnixStream::connect(&far) {
                    Ok(there) => break there,
                    Err(_) => std::thread::sleep(PAUSE),
                }
            };
            let copies = [&here, &there].map(|end| end.try_clone().expect("a descriptor"));
            {
                let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
                if ends.pulls != pulls {
                    return;
                }
                ends.streams.extend(copies);
            }
            let (mut from_here, mut from_there) =
                (here.try_clone().expect("a descriptor"), there.try_clone().expect("a descriptor"));
            let (mut to_here, mut to_there) = (here, there);
            std::thread::spawn(move || io::copy(&mut from_there, &mut to_here));
            let _ = io::copy(&mut from_here, &mut to_there);
        });
    }

    /// Pulls it out: both ends are disconnected, and nothing can connect.
    pub fn pull(&mut self) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.pulls += 1;
        for end in ends.streams.drain(..) {
            // It fails if the program there has ended.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
