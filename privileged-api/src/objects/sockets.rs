//! The sockets of an IA: streams by their descriptors.

use alloc::vec::Vec;

use kernel_agent::Stream;

use crate::status::{Error, Result};

/// The most sockets of an IA.
pub(crate) const MAX_SOCKETS: usize = 1024;

/// A descriptor is the lowest that is free, as with POSIX.
#[derive(Default)]
pub(crate) struct Sockets(Vec<Option<Stream>>);

impl Sockets {
    /// Gives a stream a descriptor. `Err` has the stream.
    pub(crate) fn add(&mut self, stream: Stream) -> core::result::Result<i32, Stream> {
        let free = self.0.iter().position(Option::is_none);
        let place = match free {
            Some(place) => place,
            None if self.0.len() >= MAX_SOCKETS || self.0.try_reserve(1).is_err() => return Err(stream),
            None => {
                self.0.push(None);
                self.0.len() - 1
            }
        };
        match self.0.get_mut(place) {
            Some(socket) => *socket = Some(stream),
            None => return Err(stream),
        }
        Ok(place as i32)
    }

    /// The stream of a descriptor.
    pub(crate) fn get(&self, sd: i32) -> Result<Stream> {
        let socket = usize::try_from(sd).ok().and_then(|place| self.0.get(place));
        socket.and_then(Option::as_ref).cloned().ok_or(Error::InvalidSd)
    }

    /// Frees a descriptor.
    pub(crate) fn remove(&mut self, sd: i32) -> Result<Stream> {
        let socket = usize::try_from(sd).ok().and_then(|place| self.0.get_mut(place));
        socket.and_then(Option::take).ok_or(Error::InvalidSd)
    }

    /// Frees any descriptor.
    pub(crate) fn remove_any(&mut self) -> Option<Stream> {
        self.0.pop().flatten().or_else(|| self.0.iter_mut().find_map(Option::take))
    }
}
