//! The objects of an IA. What happens to them is in the modules beside this one: these import
//! nothing of the IA, but for what a CNO's agent gets.

pub(crate) mod address_handle;
pub(crate) mod cno;
pub(crate) mod entry;
pub(crate) mod ep;
pub(crate) mod evd;
pub(crate) mod lmr;
pub(crate) mod points;
pub(crate) mod pz;
pub(crate) mod resolutions;
pub(crate) mod rmr;
pub(crate) mod srq;
pub(crate) mod streams;
