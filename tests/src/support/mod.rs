//! Support for the tests: checks, the fixture, threads, tables of refused calls, work
//! while a device is held, and the runner of one test.

#[cfg(test)]
mod catalogue;
pub mod check;
pub(crate) mod every_call;
pub mod fixture;
mod held;
pub(crate) mod refusal;
pub mod run;
pub mod thread;
pub mod transport;
