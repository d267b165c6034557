//! Names of statuses, events and states, and rates.

use core::ffi::{CStr, c_char, c_int};

fn name(of: c_int, names: &[&'static CStr], other: &'static CStr) -> *const c_char {
    usize::try_from(of).ok().and_then(|at| names.get(at)).unwrap_or(&other).as_ptr()
}

/// `ibv_wc_status_str`.
pub extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local queue pair operation error",
        c"local operation error of an EE context",
        c"local protection error",
        c"work request flushed",
        c"memory window or memory management error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retries exceeded",
        c"receiver not ready, retries exceeded",
        c"local violation of a reliable datagram domain",
        c"remote invalid reliable datagram request",
        c"aborted",
        c"EE context with an invalid number",
        c"EE context in an invalid state",
        c"fatal error",
        c"no response in time",
        c"general error",
    ];
    name(status, NAMES, c"unknown")
}

/// `ibv_event_type_str`.
pub extern "C" fn event_type_str(event: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"completion queue error",
        c"queue pair failed",
        c"queue pair failed: the peer sent an invalid request",
        c"queue pair failed: the peer had no right to an access",
        c"connection established by a first message",
        c"send queue drained",
        c"alternate path taken",
        c"alternate path not taken",
        c"device failed",
        c"port active",
        c"port error",
        c"LID changed",
        c"partition keys changed",
        c"subnet manager changed",
        c"shared receive queue failed",
        c"shared receive queue below its limit",
        c"last receive of a shared queue taken",
        c"the subnet manager asks for registration",
        c"GIDs changed",
        c"work queue failed",
    ];
    name(event, NAMES, c"unknown event")
}

/// `ibv_node_type_str`.
pub extern "C" fn node_type_str(node: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(node, NAMES, c"unknown")
}

/// `ibv_port_state_str`.
pub extern "C" fn port_state_str(state: c_int) -> *const c_char {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"DOWN", c"INIT", c"ARMED", c"ACTIVE", c"ACTIVE_DEFER"];
    name(state, NAMES, c"invalid state")
}

/// `enum ibv_rate`, as multiples of 2.5 Gbit/s and in Mbit/s. Those that are no multiple have 0.
const RATES: &[(c_int, c_int, c_int)] = &[
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
];

/// `ibv_rate_to_mult`; -1 if there is none.
pub extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate && row.1 != 0).map_or(-1, |row| row.1)
}

/// `mult_to_ibv_rate`; 0, the port's own rate, if there is none.
pub extern "C" fn mult_to_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|row| row.1 == multiple && multiple != 0).map_or(0, |row| row.0)
}

/// `ibv_rate_to_mbps`; -1 if there is none.
pub extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate`; 0, the port's own rate, if there is none.
pub extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|row| row.2 == mbps).map_or(0, |row| row.0)
}
