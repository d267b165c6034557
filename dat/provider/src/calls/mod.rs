//! The functions of the table, by object. Those that this provider does not have return
//! `DAT_NOT_IMPLEMENTED`.
//!
//! # Safety
//!
//! Each is called by `libdat2`, as the headers of uDAPL say: its pointers, but for handles, are
//! believed.

pub(crate) mod context;
pub(crate) mod ep;
pub(crate) mod evd;
pub(crate) mod ia;
pub(crate) mod memory;
pub(crate) mod missing;
pub(crate) mod point;
pub(crate) mod post;
pub(crate) mod srq;
