//! Authentication of hosts (DH-HMAC-CHAP, fabrics 8.13.5), and what a host may see.
//!
//! | file | subject |
//! |---|---|
//! | `hosts` | hosts, their keys, their namespaces |
//! | `responder` | the controller's side of a transaction, without I/O |
//! | `state` | what a queue knows of its host |
//! | `gate` | which commands pass; the commands of authentication; timers |
//! | `jobs` | powers in groups, in steps between other work |
//!
//! A host that has a key gets the bit AUTHREQ with each Connect, and its queue takes no other
//! commands than those of authentication until the host has authenticated. It may do so again
//! later, while its commands go on.

mod gate;
mod hosts;
mod jobs;
pub(crate) mod responder;
mod state;

pub use hosts::{Host, Visible};
pub(crate) use hosts::{Hosts, Seen};
pub(crate) use jobs::Jobs;
pub(crate) use state::Gate;
