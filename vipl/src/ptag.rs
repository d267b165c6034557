//! Protection tags (pages VipCreatePtag and VipDestroyPtag, 9.5.1, 9.5.2).

use alloc::sync::Arc;

use kernel_agent::Pd;
use platform::heap;

use crate::error::{Error, Result};
use crate::handle::PtagHandle;
use crate::nic::{Core, Nic};

/// A protection tag. The agent counts who uses it.
pub(crate) struct Ptag {
    pub(crate) handle: PtagHandle,
    pub(crate) pd: Arc<Pd>,
}

impl Core {
    /// The tag that attributes name; `InvalidPtag` if there is none.
    pub(crate) fn ptag(&self, handle: PtagHandle) -> Result<Arc<Ptag>> {
        self.ptags.get(handle).ok_or(Error::InvalidPtag)
    }

    /// The error for a call of the agent that found something destroyed: the tag, or the object of
    /// the call.
    pub(crate) fn ptag_or_object(&self, error: kernel_agent::Error, ptag: PtagHandle) -> Error {
        match error {
            kernel_agent::Error::Gone if self.ptags.get(ptag).is_none() => Error::InvalidPtag,
            other => self.error(other),
        }
    }
}

impl Nic {
    /// Creates a protection tag.
    ///
    /// Errors: `ErrorResource`, `InvalidParameter` (the NIC is closed). Blocks for the device. May
    /// be called in handlers. Thread-safe. Page VipCreatePtag.
    #[doc(alias = "VipCreatePtag")]
    pub fn create_ptag(&self) -> Result<PtagHandle> {
        let core = self.call()?;
        let reservation = core.ptags.reserve()?;
        let handle = reservation.handle();
        heap::room_for_arc::<Ptag>()?;
        let pd = core.client()?.create_pd().map_err(|error| core.error(error))?;
        reservation.fill(Arc::new(Ptag { handle, pd }));
        Ok(handle)
    }

    /// Destroys a protection tag.
    ///
    /// Errors: `InvalidParameter` (the tag, or the NIC is closed), `ErrorResource` (a virtual
    /// interface or registered memory has the tag, or the NIC is dead). Blocks for the device. May
    /// be called in handlers. Thread-safe. Page VipDestroyPtag.
    #[doc(alias = "VipDestroyPtag")]
    pub fn destroy_ptag(&self, ptag: PtagHandle) -> Result<()> {
        let core = self.call()?;
        let tag = core.ptags.get(ptag).ok_or(Error::InvalidParameter)?;
        tag.pd.destroy().map_err(|error| core.error(error))?;
        core.ptags.remove(tag.handle);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Scene;

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn a_call_that_finds_something_destroyed_names_the_tag_if_that_is_what_is_gone() {
        let scene = Scene::new();
        let error = |of| scene.core().ptag_or_object(of, scene.ptag);
        let (gone, other) = (kernel_agent::Error::Gone, kernel_agent::Error::OutOfMemory);
        assert_eq!([gone, other].map(error), [Error::InvalidParameter, Error::ErrorResource], "the object");
        scene.nic.destroy_ptag(scene.ptag).unwrap();
        assert_eq!([gone, other].map(error), [Error::InvalidPtag, Error::ErrorResource]);
    }
}
