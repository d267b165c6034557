//! The table of the data path's costs: each row's floor and goal, and its baseline.
//!
//! `cargo bench --bench instructions` fills it in.

pub mod table;
