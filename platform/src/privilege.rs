//! Privilege as a capability.
//!
//! The specification's privileged consumer is kernel code. Here that is whoever holds a [`Privileged`]
//! token; there is no ambient way to become privileged.

/// Proof that its holder is privileged (IT-API 2.1, "privileged consumer").
///
/// Calls that need privilege take `Option<Privileged>` or find it stored in the IA they are made on;
/// without it they fail as their page says.
#[derive(Clone, Copy, Debug)]
pub struct Privileged(());

impl Privileged {
    /// Declares the caller privileged.
    ///
    /// # Safety
    ///
    /// Only boot code may call this: whoever holds the token can have a NIC read and write any memory
    /// that the platform lets devices reach.
    #[expect(unsafe_code, reason = "making the capability is the one step that must be audited")]
    pub const unsafe fn assert() -> Privileged {
        Privileged(())
    }
}
