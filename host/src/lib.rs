//! The platform on an ordinary operating system: std threads, an arena as DMA memory, and NICs in
//! the same process.
//!
//! Tests, simulations, fuzzing and instruction counts run the whole stack on it:
//!
//! ```
//! let machine = ferrovia_host::Machine::new(1);
//! let platform = machine.platform();
//! let transport = machine.transport(0);
//! assert_eq!(transport.registers().len(), nic_abi::registers::SIZE);
//! # drop((platform, transport));
//! ```
//!
//! It chooses no schedule: the operating system does. In `sim` a seed does. It attaches no device
//! to a guest: `qemu` does.
//!
//! A bus address is an offset into the arena. An access outside of the arena is an error, never
//! undefined behaviour. [`ProcessMemory`] is for programs that register memory of their own.

mod arena;
mod doorbell;
#[cfg(feature = "testing")]
pub mod fake;
mod heap;
mod machine;
mod memory;
mod nic;
mod platform;
mod wait;
mod whole;

pub use arena::Arena;
pub use heap::CountedHeap;
pub use machine::{Machine, Paused, privileged};
pub use memory::DmaMemory;
pub use nic::InProcessNic;
pub use platform::{HostPlatform, Os, SLOWER, Std, waits_of_this_thread};
pub use whole::ProcessMemory;
