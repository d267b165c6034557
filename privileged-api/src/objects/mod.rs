//! The objects of an IA, and what they know of themselves. They make no call of the API and do not
//! know the IA that has them: the calls are in the modules beside this one.

pub(crate) mod address_handle;
pub(crate) mod ep;
pub(crate) mod evd;
pub(crate) mod listen;
pub(crate) mod lmr;
pub(crate) mod pz;
pub(crate) mod rmr;
pub(crate) mod shareable;
pub(crate) mod shared;
pub(crate) mod sockets;
pub(crate) mod srq;
pub(crate) mod ud_requests;
pub(crate) mod unanswered;
