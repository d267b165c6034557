//! Shows programs on the verbs library its device where they look beside libibverbs.
//!
//! UCX asks `/dev/infiniband` and `/sys/class/infiniband` for a device that libibverbs has told it
//! of, and libfabric the list of network interfaces. This library is loaded in front of others
//! (`LD_PRELOAD`) and replaces the calls of C's library that open files and list interfaces. In a
//! process that has opened a device of the verbs library (`verbs/library`), paths in these two
//! folders lead to files that the verbs library makes, and the device's addresses are among those
//! of interfaces. In all other processes, and of all other paths, the calls do what they did.
//!
//! | module | subject |
//! |---|---|
//! | `files` | calls that take a path |
//! | `interfaces` | the list of network interfaces |
//! | `library` | the verbs library of the process, if there is one |
//! | `path` | which paths lead elsewhere, and where to |
//! | `real` | the calls that are replaced |

mod files;
mod interfaces;
mod library;
mod path;
mod real;
