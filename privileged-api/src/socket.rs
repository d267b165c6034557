//! Socket conversion, which our IAs do not have (page it_socket_convert).

use crate::flags::ScFlags;
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::status::{Error, Result};

impl Ia {
    /// Converts a connected TCP socket and an endpoint to a connected endpoint, on iWARP. Here
    /// [`IaInfo::socket_conversion_support`] is false, and the call is refused whatever its
    /// arguments are.
    ///
    /// Errors: `OpNotSupported`, `InvalidIa`, `IaCatastrophe`. Does not block.
    /// May be called in callbacks. Thread-safe. Page it_socket_convert.
    ///
    /// [`IaInfo::socket_conversion_support`]: crate::IaInfo::socket_conversion_support
    #[doc(alias = "it_socket_convert")]
    pub fn socket_convert(&self, _sd: i32, _ep: EpHandle, _flags: ScFlags, _msg: &[u8]) -> Result<()> {
        self.live()?;
        Err(Error::OpNotSupported)
    }
}
