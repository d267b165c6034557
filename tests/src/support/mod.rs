//! What the tests are made with.

#[cfg(test)]
mod catalogue;
pub mod check;
pub(crate) mod every_call;
pub mod fixture;
pub(crate) mod refusal;
pub mod run;
pub mod thread;
