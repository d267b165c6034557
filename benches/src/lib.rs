//! The table of the data path's costs: what each row promises, and its baseline.
//!
//! `cargo bench --bench instructions` fills it in.

pub mod table;
