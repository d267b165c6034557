//! IT-API 2.1 for the privileged consumer.
#![no_std]

extern crate alloc;

mod address;
mod attributes;
mod event;
mod flags;
mod handle;
mod ia;
mod info;
mod iobl;
mod status;

pub use address::*;
pub use attributes::*;
pub use event::*;
pub use flags::*;
pub use handle::{
    AddrHandle, EpHandle, EvdHandle, Handle, HandleType, IaHandle, ListenHandle, LmrHandle, PzHandle,
    RmrHandle, SrqHandle, UdSvcReqHandle,
};
pub use ia::*;
pub use info::*;
pub use iobl::*;
pub use platform::Privileged;
pub use status::{Error, Result};
