//! The datagram that a connection keeps: the one that it sent last and may have to send again, or
//! the request that it has to answer.

use alloc::boxed::Box;

use roce::mad;

/// A datagram without the zeros at its end, which most datagrams have many of: private data is
/// padded to its full length.
#[derive(Default)]
pub(super) struct Kept(Box<[u8]>);

impl Kept {
    pub fn new(datagram: &[u8; mad::LEN]) -> Kept {
        let len = datagram.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Kept(datagram[..len].into())
    }

    /// The whole datagram; zeros if none is kept.
    pub fn get(&self) -> [u8; mad::LEN] {
        let mut datagram = [0; mad::LEN];
        datagram[..self.0.len()].copy_from_slice(&self.0);
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_back_as_it_was_and_its_padding_takes_no_memory() {
        let mut datagram = [0; mad::LEN];
        assert_eq!(Kept::default().get(), datagram);
        for (at, kept) in [(0, 1), (31, 32), (mad::LEN - 1, mad::LEN)] {
            datagram[at] = 7;
            let one = Kept::new(&datagram);
            assert_eq!((one.get(), one.0.len()), (datagram, kept));
        }
    }
}
