//! What the register file alone can do: identify the device, reset it, start it.

use core::sync::atomic::Ordering;
use core::time::Duration;

use nic_abi::ident;
use nic_abi::registers::{self, Control, Identity, State};
use platform::Platform;
use zerocopy::{FromZeros, IntoBytes};

use crate::Error;
use crate::mapped::Registers;

/// How long a reset or start may take.
pub(crate) const DEADLINE: Duration = Duration::from_millis(2000);
/// How long the last reset of a dead device may take.
pub(crate) const DEAD_DEADLINE: Duration = Duration::from_millis(200);
/// Time between two looks at the acknowledgement; the device raises no interrupt for it.
const SLICE: Duration = Duration::from_micros(100);

/// Copies the identity out of the register file, and checks that it is the identity of an RNIC with
/// an interface that this driver speaks. A reset restores the rest of the identity, which an
/// earlier driver may have overwritten.
pub(crate) fn recognise(registers: &Registers) -> Result<Identity, Error> {
    let mut identity = Identity::new_zeroed();
    let read = registers.slice().read(registers::IDENTITY, identity.as_mut_bytes());
    read.map_err(|_| Error::BadLimit("register file"))?;
    if identity.magic != registers::MAGIC {
        return Err(Error::NotAnRnic(identity.magic));
    }
    if identity.version_major != nic_abi::VERSION_MAJOR {
        return Err(Error::Version(identity.version_major, identity.version_minor));
    }
    Ok(identity)
}

/// As [`recognise`], and checks all limits.
pub(crate) fn identify(registers: &Registers) -> Result<Identity, Error> {
    let identity = recognise(registers)?;
    let limits: [(&'static str, u32, u32, u32); 16] = [
        ("number of queue pairs", identity.max_qps, 3, ident::MAX_QPS),
        ("number of CQs", identity.max_cqs, 2, ident::MAX_CQS),
        ("number of SRQs", identity.max_srqs, 0, ident::MAX_SRQS),
        ("number of event queues", identity.max_eqs, 2, ident::MAX_EQS),
        ("number of protection domains", identity.max_pds, 2, ident::MAX_PDS),
        ("number of keys", identity.max_keys, 2, ident::MAX_KEYS),
        ("send queue size", identity.max_sq_blocks, 2, 1 << 24),
        ("receive queue size", identity.max_rq_entries, 2, 1 << 24),
        ("CQ size", identity.max_cqes, 2, 1 << 24),
        ("event queue size", identity.max_eqes, 16, 1 << 24),
        ("number of segments", identity.max_sges, 1, 255),
        ("number of vectors", identity.vectors, 1, 2048),
        ("number of a descriptor's segments", identity.max_vi_segments, 0, 1 << 15),
        ("size of a virtual interface's queue", identity.max_vi_entries, 0, 1 << 24),
        ("number of groups", identity.max_groups, 0, ident::MAX_GROUPS),
        ("number of a group's queue pairs", identity.max_group_qps, 0, ident::MAX_GROUP_QPS),
    ];
    for (what, value, least, most) in limits {
        if value < least || value > most {
            return Err(Error::BadLimit(what));
        }
    }
    if identity.max_srqs > 0 && identity.max_srq_entries == 0 || identity.max_srq_entries > 1 << 24 {
        return Err(Error::BadLimit("SRQ size"));
    }
    if !matches!(identity.mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Err(Error::BadLimit("MTU"));
    }
    Ok(identity)
}

/// Resets the device: afterwards it uses no memory.
pub(crate) fn reset(platform: &dyn Platform, registers: &Registers, limit: Duration) -> Result<(), Error> {
    let control = Control { command: registers::CONTROL_RESET, ..Control::new_zeroed() };
    request(platform, registers, control, "a reset", State::Idle, limit)
}

/// Starts the device with the admin queue that `control` names.
pub(crate) fn start(platform: &dyn Platform, registers: &Registers, control: Control) -> Result<(), Error> {
    let control = Control { command: registers::CONTROL_START, ..control };
    request(platform, registers, control, "a start", State::Ready, DEADLINE)
}

/// Writes a request and waits until the device has acknowledged it and is in state `expected`.
fn request(
    platform: &dyn Platform,
    registers: &Registers,
    control: Control,
    what: &'static str,
    expected: State,
    limit: Duration,
) -> Result<(), Error> {
    let no = |_| Error::BadLimit("register file");
    let slice = registers.slice();
    let acknowledged = slice.atomic_u32(registers::STATUS_ACKNOWLEDGED).map_err(no)?;
    let request = slice.atomic_u32(registers::CONTROL_REQUEST).map_err(no)?;
    // Neither the number that was acknowledged last nor the one of a request that may be under way.
    let mut value = acknowledged.load(Ordering::Acquire).wrapping_add(1);
    if value == request.load(Ordering::Acquire) {
        value = value.wrapping_add(1);
    }
    let skip = size_of::<u32>();
    slice.write(registers::CONTROL_REQUEST + skip, &control.as_bytes()[skip..]).map_err(no)?;
    request.store(value, Ordering::SeqCst);
    registers.kick();
    let deadline = platform.now() + limit;
    let never_woken = platform::sync::atomic::AtomicU32::new(0);
    while acknowledged.load(Ordering::Acquire) != value {
        let now = platform.now();
        if now >= deadline {
            return Err(Error::NoAnswer(what));
        }
        platform.wait(&never_woken, 0, Some(deadline.min(now + SLICE)));
    }
    let state = slice.atomic_u32(registers::STATUS_STATE).map_err(no)?.load(Ordering::Acquire);
    if State::from_word(state) != Some(expected) {
        return Err(Error::NoAnswer(what));
    }
    Ok(())
}
