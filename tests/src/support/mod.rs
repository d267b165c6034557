//! Support for the tests: checks, the fixture, threads, tables of refused calls, and the runner of
//! one test.

#[cfg(test)]
mod catalogue;
pub mod check;
pub(crate) mod every_call;
pub mod fixture;
pub(crate) mod refusal;
pub mod run;
pub mod thread;
