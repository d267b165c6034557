//! Features: Set Features and Get Features (base 5.21 and 5.13).
//!
//! Those that the specification wants of every I/O controller, and which mean nothing here, are
//! kept and returned.

use nvme::feature::{Capabilities, GetFeatures, NumberOfQueues, Select, SetFeatures, VolatileWriteCache, id};
use nvme::status::Status;

use super::commands::Answer;
use super::controller::Controller;
use super::identity::Kind;

/// The values that are only kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    arbitration: u32,
    power: u32,
    /// The thresholds above and below which the temperature would be critical, in kelvin.
    temperatures: [u16; 2],
    recovery: u32,
    atomicity: u32,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { arbitration: 0, power: 0, temperatures: [0xffff, 0], recovery: 0, atomicity: 0 }
    }
}

/// The place of the threshold that dword 11 names. There is one temperature, the composite one;
/// `all` allows the word for all of them.
fn threshold(value: u32, all: bool) -> Option<usize> {
    let (sensor, kind) = (value >> 16 & 0xf, value >> 20 & 3);
    (kind < 2 && (sensor == 0 || all && sensor == 0xf)).then_some(kind as usize)
}

impl Controller {
    /// Carries out a Set Features. `most` is the number of I/O queues that there are for it.
    pub(super) fn set_feature(&mut self, arguments: &SetFeatures, most: u16, now: u64) -> Answer {
        if arguments.save {
            return (Status::FEATURE_NOT_SAVEABLE.dnr(), 0);
        }
        let (value, refused) = (arguments.value, (Status::INVALID_FIELD.dnr(), 0));
        match (arguments.fid, self.kind) {
            (id::NUMBER_OF_QUEUES, Kind::Io) => {
                let asked = match NumberOfQueues::parse(value) {
                    Ok(asked) => asked,
                    Err(status) => return (status.dnr(), 0),
                };
                // A queue of fabrics is a pair.
                let granted = asked.submission.min(asked.completion).min(most);
                self.granted = granted;
                let granted = NumberOfQueues { submission: granted, completion: granted };
                return (Status::SUCCESS, granted.value().into());
            }
            (id::ASYNC_EVENT_CONFIGURATION, _) => {
                self.notices = value;
                return (Status::SUCCESS, value.into());
            }
            (id::KEEP_ALIVE_TIMER, _) => self.set_keep_alive(value, now),
            // It is the one of the Connect command (fabrics 3.3).
            (id::HOST_IDENTIFIER, Kind::Io) => return (Status::SEQUENCE_ERROR.dnr(), 0),
            // The cache is the disk's own.
            (id::VOLATILE_WRITE_CACHE, Kind::Io) => return (Status::FEATURE_NOT_CHANGEABLE.dnr(), 0),
            (id::ARBITRATION, Kind::Io) => self.kept.arbitration = value & 0xffff_ff07,
            // There is one power state.
            (id::POWER_MANAGEMENT, Kind::Io) if value & 0x1f == 0 => self.kept.power = value & 0xe0,
            (id::TEMPERATURE_THRESHOLD, Kind::Io) => match threshold(value, true) {
                Some(place) => self.kept.temperatures[place] = value as u16,
                None => return refused,
            },
            // No namespace reports blocks that were deallocated as errors.
            (id::ERROR_RECOVERY, Kind::Io) if value >> 16 & 1 == 0 => self.kept.recovery = value & 0xffff,
            (id::WRITE_ATOMICITY, Kind::Io) => self.kept.atomicity = value & 1,
            _ => return refused,
        }
        (Status::SUCCESS, 0)
    }

    /// Carries out a Get Features with this dword 11.
    pub(super) fn get_feature(&self, arguments: &GetFeatures, dword: u32, has_cache: bool) -> Answer {
        let (kept, default) = (&self.kept, Kept::default());
        let (value, default, can_change) = match (arguments.fid, self.kind) {
            (id::NUMBER_OF_QUEUES, Kind::Io) => {
                let granted = self.granted.max(1);
                let value = NumberOfQueues { submission: granted, completion: granted }.value();
                (value, value, true)
            }
            (id::ASYNC_EVENT_CONFIGURATION, _) => (self.notices, 0, true),
            (id::KEEP_ALIVE_TIMER, _) => (self.keep_alive(), 0, true),
            (id::VOLATILE_WRITE_CACHE, Kind::Io) => {
                let value = if has_cache { VolatileWriteCache::ENABLE.bits() } else { 0 };
                (value, value, false)
            }
            (id::ARBITRATION, Kind::Io) => (kept.arbitration, default.arbitration, true),
            (id::POWER_MANAGEMENT, Kind::Io) => (kept.power, default.power, true),
            (id::TEMPERATURE_THRESHOLD, Kind::Io) => match threshold(dword, false) {
                Some(place) => (kept.temperatures[place].into(), default.temperatures[place].into(), true),
                None => return (Status::INVALID_FIELD.dnr(), 0),
            },
            (id::ERROR_RECOVERY, Kind::Io) => (kept.recovery, default.recovery, true),
            (id::WRITE_ATOMICITY, Kind::Io) => (kept.atomicity, default.atomicity, true),
            _ => return (Status::INVALID_FIELD.dnr(), 0),
        };
        let result = match arguments.select {
            Select::Current => value,
            // Nothing is saved, so the saved value is the default one.
            Select::Default | Select::Saved => default,
            Select::SupportedCapabilities if can_change => Capabilities::CHANGEABLE.bits(),
            Select::SupportedCapabilities => 0,
        };
        (Status::SUCCESS, result.into())
    }
}
