//! Privilege as a capability.
//!
//! The specification's privileged consumer is kernel code. Here it is code that holds a
//! [`Privileged`] token. There is no other way to become privileged.

/// Proof that its holder is privileged (IT-API 2.1, "privileged consumer").
///
/// Calls that need privilege take `Option<Privileged>`, or use the token that the IA was created
/// with. Without a token they fail as their page says.
#[derive(Clone, Copy, Debug)]
pub struct Privileged(());

impl Privileged {
    /// Declares the caller privileged.
    ///
    /// # Safety
    ///
    /// Only boot code may call this. The holder of the token can make a NIC read and write any
    /// memory that the platform lets devices reach.
    #[expect(unsafe_code, reason = "making the capability is the one step that must be audited")]
    pub const unsafe fn assert() -> Privileged {
        Privileged(())
    }
}
