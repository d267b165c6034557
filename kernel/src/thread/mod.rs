//! Threads: preemptive, each on a stack of its own with a guard below, on all CPUs.
//!
//! | file | subject |
//! |---|---|
//! | `object` | a thread as an object |
//! | `queue` | lists of threads, linked through the threads |
//! | `run_queue` | what each CPU has to run |
//! | `scheduler` | which thread runs on which CPU |
//! | `wait` | how threads sleep and are woken |
//! | `spawn` | how a thread begins |
//! | `heartbeat` | tells the launcher that the guest is alive |

mod heartbeat;
mod object;
mod queue;
mod run_queue;
mod scheduler;
mod spawn;
mod wait;

pub use crate::cpu::current_id as current_cpu;
pub(crate) use heartbeat::{answer_round, start_heartbeat};
pub(crate) use object::running;
pub use object::{alive, current_id};
pub use scheduler::yield_now;
pub(crate) use scheduler::{after_interrupt, idle, look, tick};
pub use spawn::spawn;
pub(crate) use spawn::{adopt_idler, spawn_boxed};
pub use wait::sleep;
pub(crate) use wait::{wait, wake};
