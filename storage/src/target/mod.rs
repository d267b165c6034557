//! The target: disks behind NVMe over Fabrics.
//!
//! One thread does everything ([`Target::run`]), unless the target has several
//! ([`Config::workers`]): it takes capsules, carries out commands, gives the disks their requests,
//! and answers. Each of several threads does so for queues of its own (`crew`). So nothing here
//! has a lock. A thread polls while there is work, and sleeps on a signal otherwise, which the
//! wakers of queues, connections and disks raise.
//!
//! | file | subject |
//! |---|---|
//! | `config`, `statistics` | what a target serves, and what it counts |
//! | `port`, `ports` | a NIC by which hosts come, with its queues and its memory; its end |
//! | `pool`, `capsule` | memory: of commands' data; of capsules |
//! | `lending` | commands that use the disk's own memory |
//! | `shares`, `waiting` | shares of memory and of a disk's queue; commands that wait for them |
//! | `identity` | names and identifiers of hosts and controllers |
//! | `queue`, `commands`, `task` | hosts' queues; outstanding commands, and what they ask for |
//! | `subsystem`, `controller`, `namespace`, `namespaces` | what hosts see |
//! | `work`, `copy`, `pairs` | I/O commands; two that are carried out as one |
//! | `admin`, `features`, `reply`, `abort` | admin commands, and their answers |
//! | `supported` | the log pages that say what there is |
//! | `ana` | how well hosts reach each namespace by each port |
//! | `connect`, `discovery` | the Connect command; the discovery service |
//! | `auth` | who a host is, and what it may see |
//! | `server`, `timers`, `ending` | the thread: its loop, what it looks at now and then, its end |
//! | `crew`, `placing` | several threads: who does what, and messages; I/O queues of the others |
//! | `connections`, `flow`, `disk` | connections; a command's way; the part of it that disks have |
//! | `reservations` | hosts that share a namespace say which of them may use it |
//! | `leftovers`, `earlier` | what an earlier connection of a host may still do to a disk |
//! | `control`, `manage`, `info`, `overview` | what other threads may do: change what is served, and look at it |
//! | `metrics`, `measure` | what is counted by namespace, host and queue |
//! | `lent`, `lending` | disks that lend their memory |
//! | `said` | lines for the terminal that outsiders cause |
//!
//! # A command's way
//! A capsule arrives in a Receive. The command is checked (`work`) and becomes a task. If it needs
//! memory, the command gets chunks of its namespace's pool, or waits for them. Data to write come
//! by an RDMA Read, or came in the capsule. Then the disk gets a request, or the command waits for
//! room in its queue. A disk that lends its memory is read from there without a request, and takes
//! over what was brought there. Data that was read goes to the host by an RDMA Write, and behind it
//! the response by a Send. The entry is free when the Send is complete.
//!
//! If the host's connection ends meanwhile, the entry stays until the disk is done with its memory.

mod abort;
mod admin;
mod ana;
pub(crate) mod auth;
mod capsule;
mod commands;
mod config;
mod connect;
mod connections;
mod control;
mod controller;
mod copy;
mod crew;
mod discovery;
mod disk;
mod earlier;
mod ending;
mod features;
mod flow;
mod identity;
mod info;
mod leftovers;
mod lending;
mod lent;
mod manage;
mod measure;
mod metrics;
mod namespace;
mod namespaces;
mod overview;
mod pairs;
mod placing;
mod pool;
mod port;
mod ports;
mod queue;
mod reply;
pub(crate) mod reservations;
mod said;
mod server;
mod shares;
mod silence;
mod statistics;
mod subsystem;
mod supported;
mod task;
mod timers;
mod waiting;
mod work;

pub use auth::{Host, Visible};
pub use config::{
    Config, Export, MOST_NAMESPACES, MOST_PATHS, MOST_PORTS, MOST_SUBSYSTEMS, MOST_WORKERS, PORT,
    SubsystemConfig,
};
pub use control::{Control, Refusal};
pub use crew::Worker;
pub use info::{ControllerInfo, NamespaceInfo, NamespaceState, Overview, PortInfo, QueueInfo, TargetState};
pub use metrics::{
    BUCKETS, Carried, Counted, Done, HostMetrics, Metrics, NamespaceMetrics, OPERATIONS, Tally, Timed,
    bucket_end,
};
pub use nvme::log::AnaState;
pub use server::Target;
pub use statistics::{Snapshot, Statistics};
