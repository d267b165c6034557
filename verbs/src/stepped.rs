//! Devices whose work a program's polls do.

/// A device in this process, whose work a thread of the program may do while it polls: then it
/// need not wait until the device's own thread has a CPU.
pub trait Stepped: Send + Sync {
    /// Does a piece of the device's work, of bounded length; returns whether there was any. It
    /// does not wait: if another thread does the work now, it returns false at once.
    fn step(&self) -> bool;
    /// The program is going to send datagrams between these GIDs: waits until the device knows
    /// where to, or for a second at most.
    fn meet(&self, from: [u8; 16], to: [u8; 16]);
    /// The program is going to wait for an event: the device's own thread has to do the work.
    fn leave(&self);
}
