//! The operator's side of the storage target: commands while it runs, and its figures.
//!
//! | module | subject |
//! |---|---|
//! | `commands` | what each command does: in the guest, and to its disks |
//! | `socket` | the UNIX socket that takes commands (`storage --control`) |
//! | `client` | `storage-ctl`, which sends one |
//! | `fuzzing` | a server of commands whose guest answers nothing |
//! | `figures` | the figures, as Prometheus reads them |
//! | `live` | a view that follows the figures |
//! | `web` | the port that serves them (`storage --metrics`) |

pub(crate) mod client;
pub(crate) mod commands;
pub(crate) mod figures;
pub mod fuzzing;
pub(crate) mod live;
pub(crate) mod socket;
pub(crate) mod web;
