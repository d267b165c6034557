//! I/O commands (NVM command set): what they ask for, checked against the namespace.

use block::Fault;
use nvme::command::{Command, opcode};
use nvme::dsm;
use nvme::status::Status;

use super::copy;
use super::reservations::order::Order;
use super::subsystem::Subsystem;
use super::task::{Operation, Progress, Task};

/// The bytes of a range of a Dataset Management.
pub(crate) const RANGE: usize = size_of::<dsm::Range>();

/// What an I/O command asks for, and how long its data have to be; or the status that it gets.
/// `place` is its namespace's, and `port` the place of the port that it came by.
pub(crate) fn io(
    command: &Command,
    place: Option<usize>,
    port: usize,
    subsystem: &Subsystem,
) -> Result<(Task, usize), Status> {
    let is_flush = command.opcode == opcode::io::FLUSH;
    let place = place.ok_or_else(|| subsystem.missing(command.nsid.get(), is_flush))?;
    let namespace = subsystem.namespaces.get(place).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    subsystem.refusal(port, place, is_flush).map_or(Ok(()), Err)?;
    if let Some(order) = Order::of(command).filter(|_| subsystem.has_reservations) {
        let (order, keys) = order?;
        return Ok((Task::Reserve { namespace: place, order }, keys));
    }
    let geometry = &namespace.geometry;
    let block = command.slba();
    // The blocks of a command that names some, and their bytes.
    let range = || {
        let blocks = u64::from(command.nlb());
        let is_in_range = block.checked_add(blocks).is_some_and(|end| end <= geometry.blocks);
        let bytes = command.nlb() as usize * geometry.block_size as usize;
        if is_in_range { Ok((blocks, bytes)) } else { Err(Status::LBA_OUT_OF_RANGE.dnr()) }
    };
    let transfer = || {
        let (_, bytes) = range()?;
        if bytes <= subsystem.transfer { Ok(bytes) } else { Err(Status::INVALID_FIELD.dnr()) }
    };
    let writable = || match geometry.is_read_only {
        true => Err(Status::NAMESPACE_IS_WRITE_PROTECTED.dnr()),
        false => Ok(()),
    };
    match command.opcode {
        opcode::io::READ => Ok((Task::Read { namespace: place, block }, transfer()?)),
        opcode::io::WRITE => {
            writable()?;
            Ok((Task::Write { namespace: place, block, fua: command.fua() }, transfer()?))
        }
        opcode::io::COMPARE => Ok((Task::Compare { namespace: place, block }, transfer()?)),
        opcode::io::COPY => {
            writable()?;
            let ranges = nvme::copy::ranges(command).map_err(Status::dnr)?;
            let task = Task::Copy { namespace: place, ranges, progress: Progress::default() };
            Ok((task, ranges * copy::RANGE))
        }
        opcode::io::VERIFY => Ok((Task::Verify { namespace: place, block, len: transfer()? }, 0)),
        opcode::io::FLUSH => Ok((Task::Plain { namespace: place, operation: Operation::Flush }, 0)),
        opcode::io::WRITE_ZEROES if geometry.write_zeroes => {
            writable()?;
            let (blocks, _) = range()?;
            let operation = Operation::WriteZeroes { block, blocks, may_discard: command.deallocate() };
            Ok((Task::Plain { namespace: place, operation }, 0))
        }
        opcode::io::DATASET_MANAGEMENT if geometry.discard => {
            let ranges = command.dsm_ranges();
            if command.dsm_attributes().contains(dsm::Attributes::DEALLOCATE) {
                writable()?;
                return Ok((Task::Deallocate { namespace: place, ranges, next: 0 }, ranges * RANGE));
            }
            // The other attributes are hints, for which the ranges need not be fetched.
            Ok((Task::Deallocate { namespace: place, ranges, next: ranges }, ranges * RANGE))
        }
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// The status of a command whose disk failed.
pub(crate) fn status(fault: Fault, is_read: bool) -> Status {
    match fault {
        Fault::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        Fault::ReadOnly => Status::NAMESPACE_IS_WRITE_PROTECTED.dnr(),
        Fault::Unsupported => Status::INVALID_OPCODE.dnr(),
        Fault::Media if is_read => Status::UNRECOVERED_READ.dnr(),
        Fault::Media => Status::WRITE_FAULT,
        // The target checked the length, so the disk has other limits than it said.
        Fault::Misaligned => Status::INTERNAL_ERROR.dnr(),
        Fault::Gone => Status::INTERNAL_ERROR,
    }
}
