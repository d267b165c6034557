//! Connections over streams, by MPA: the second connection protocol beside that of `connections`.
//!
//! A [`Setup`](setup::Setup) says, without I/O, what follows from bytes and times. The dispatcher
//! thread drives it: it reads what has come when a stream's event says that something has, and
//! sends, binds and reports. A connection whose set-up is over has a queue pair that owns the
//! stream. The clients' calls end set-ups, accept and reject. A set-up may also begin with a stream
//! that its client has used, which is then a conversion.
//!
//! | module | subject |
//! |---|---|
//! | `setup` | one set-up, without I/O |
//! | `state` | what the agent keeps: its tables and their entries |
//! | `calls` | what clients ask for |
//! | `drive` | the dispatcher thread's part: streams, timers, what they lead to |
//! | `bind` | queue pairs that get a stream, and the end of it |
//!
//! Locks: `tables` (spins; never held across a command or an upcall).

mod bind;
mod calls;
mod drive;
mod setup;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use state::{Mpa, is_connection, is_listen};
