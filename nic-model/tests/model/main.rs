//! The device as its driver sees it: registers, rings and memory, nothing else.

mod control;
mod data;
mod rig;
