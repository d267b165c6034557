//! What a completion queue keeps whose completions a program reads field by field.
#![expect(unsafe_code, reason = "a completion is that of the thread whose turn it is")]

use core::cell::UnsafeCell;

use crate::abi::Wc;
use crate::turn::Turn;

/// What reading field by field needs; other completion queues do not use it.
#[derive(Default)]
pub(crate) struct Extended {
    pub(crate) turn: Turn,
    pub(crate) stamps: Stamps,
    /// Changed and read by the thread whose turn it is.
    pub(crate) present: UnsafeCell<Present>,
}

// SAFETY: `present` is that of the thread that has the turn.
unsafe impl Sync for Extended {}

/// Which times a completion gets, when it is polled.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stamps {
    pub(crate) clock: bool,
    pub(crate) wall: bool,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Present {
    pub(crate) wc: Wc,
    pub(crate) clock: u64,
    pub(crate) wall: u64,
}
