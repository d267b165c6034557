//! Random numbers that are fit for keys.

use alloc::sync::Arc;

use platform::Platform;

use crate::Error;

/// A source of random numbers that nobody can guess.
#[derive(Clone)]
pub(crate) struct Random(Arc<dyn Platform>);

impl Random {
    /// The platform's source. Fails if it has none, or one that does not work.
    pub(crate) fn new(platform: &Arc<dyn Platform>) -> Result<Random, Error> {
        let random = Random(platform.clone());
        let mut words = [0; 3];
        words.iter_mut().try_for_each(|word| platform.entropy().map(|fresh| *word = fresh)).ok_or(
            Error::Config(
                "authentication needs random numbers fit for keys, which this CPU does not make (RDRAND)",
            ),
        )?;
        // Some CPUs return the same bits for ever after they slept.
        match words.iter().all(|&word| word == 0 || word == u64::MAX) {
            true => Err(Error::Config("the CPU's generator of random numbers (RDRAND) does not work")),
            false => Ok(random),
        }
    }

    /// Fills bytes. False if the source has failed; then they are not to be used.
    #[must_use]
    pub(crate) fn fill(&self, bytes: &mut [u8]) -> bool {
        bytes.chunks_mut(8).all(|chunk| match self.0.entropy() {
            Some(word) => {
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
                true
            }
            None => false,
        })
    }

    /// A sequence number, which is not 0.
    pub(crate) fn sequence(&self) -> Option<u32> {
        self.0.entropy().map(|word| (word as u32).max(1))
    }
}
