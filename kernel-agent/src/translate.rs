//! From virtual memory to bus addresses.

use alloc::vec::Vec;

use nic_abi::wqe::ListElement;

use crate::{Agent, Error, MemoryList};

impl Agent {
    /// Finds the bus addresses of virtual memory, as runs that are as long as can be.
    ///
    /// Asks the platform for at most `max_list_elements` extents (see [`Agent::identity`]), so that
    /// a consumer cannot hold a CPU by the length that it gives. Memory that is in more extents is
    /// [`Error::TooScattered`], however many of them could be joined.
    pub fn translate(
        &self,
        virt: usize,
        length: u64,
        mut each: impl FnMut(ListElement),
    ) -> Result<(), Error> {
        let mut at = virt;
        let mut left = length;
        let mut run: Option<ListElement> = None;
        let mut extents = 0;
        while left > 0 {
            if extents == self.identity().max_list_elements {
                return Err(Error::TooScattered);
            }
            extents += 1;
            let extent = self.platform().translate(at).ok_or(Error::NotReachable)?;
            let len = extent.len.min(left);
            if len == 0 {
                return Err(Error::NotReachable);
            }
            run = match run {
                Some(last) if last.addr.checked_add(last.length) == Some(extent.addr) => {
                    Some(ListElement { addr: last.addr, length: last.length + len })
                }
                earlier => {
                    if let Some(done) = earlier {
                        each(done);
                    }
                    Some(ListElement { addr: extent.addr, length: len })
                }
            };
            left -= len;
            if left > 0 {
                at = at.checked_add(len as usize).ok_or(Error::NotReachable)?;
            }
        }
        if let Some(last) = run {
            each(last);
        }
        Ok(())
    }

    /// Passes virtual memory to `with` as a list of bus addresses, of the simplest kind.
    pub fn list_virtual<R>(
        &self,
        virt: usize,
        length: u64,
        with: impl FnOnce(&MemoryList<'_>) -> R,
    ) -> Result<R, Error> {
        let mut elements = Vec::new();
        let mut full = false;
        self.translate(virt, length, |element| match elements.try_reserve(1) {
            Ok(()) => elements.push(element),
            Err(_) => full = true,
        })?;
        if full {
            return Err(Error::OutOfMemory);
        }
        Ok(with(&match elements[..] {
            [] => MemoryList::Contiguous { bus: 0, length },
            [only] => MemoryList::Contiguous { bus: only.addr, length },
            _ => MemoryList::Variable { elements: &elements, first_byte_offset: 0, length },
        }))
    }
}
