//! What a command of reservations asks for.

use nvme::command::{Command, opcode};
use nvme::reservation::{Acquire, AcquireKeys, Register, Release};
use nvme::status::Status;

/// A command that changes registrations or a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Register(Register),
    Acquire(Acquire),
    Release(Release),
    /// Set Features: whether they persist.
    Persist(bool),
}

impl Order {
    /// What an I/O command asks for, and the bytes of its keys.
    pub(crate) fn of(command: &Command) -> Option<Result<(Order, usize), Status>> {
        let keys = size_of::<AcquireKeys>();
        let order = match command.opcode {
            opcode::io::RESERVATION_REGISTER => {
                Register::of(command).map(|what| (Order::Register(what), keys))
            }
            opcode::io::RESERVATION_ACQUIRE => Acquire::of(command).map(|what| (Order::Acquire(what), keys)),
            opcode::io::RESERVATION_RELEASE => {
                Release::of(command).map(|what| (Order::Release(what), size_of::<u64>()))
            }
            _ => return None,
        };
        Some(order.map_err(Status::dnr))
    }
}
