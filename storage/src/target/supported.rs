//! The log pages that say which commands, features and log pages there are (base 2.0, 5.16.1.1,
//! 5.16.1.6, 5.16.1.18).

use nvme::command::opcode::{self, FABRICS, admin};
use nvme::feature::id;
use nvme::log::{Effects, FeatureEffects};
use nvme::status::Status;
use zerocopy::little_endian::U32;

use super::identity::Kind;
use super::server::Target;

/// Admin commands of an I/O controller.
const ADMIN: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    FABRICS,
];
/// I/O commands that every disk can carry out, and whether they change blocks.
const IO: &[(u8, bool)] = &[
    (opcode::io::FLUSH, false),
    (opcode::io::WRITE, true),
    (opcode::io::READ, false),
    (opcode::io::COMPARE, false),
    (opcode::io::VERIFY, false),
    (opcode::io::COPY, true),
];
/// The commands of reservations.
const RESERVATIONS: &[u8] = &[
    opcode::io::RESERVATION_REGISTER,
    opcode::io::RESERVATION_REPORT,
    opcode::io::RESERVATION_ACQUIRE,
    opcode::io::RESERVATION_RELEASE,
];
/// Features of an I/O controller, and those of a namespace, which are about reservations.
const OF_CONTROLLER: &[u8] = &[
    id::ARBITRATION,
    id::POWER_MANAGEMENT,
    id::TEMPERATURE_THRESHOLD,
    id::ERROR_RECOVERY,
    id::VOLATILE_WRITE_CACHE,
    id::NUMBER_OF_QUEUES,
    id::WRITE_ATOMICITY,
    id::ASYNC_EVENT_CONFIGURATION,
    id::KEEP_ALIVE_TIMER,
    id::HOST_IDENTIFIER,
];
const OF_NAMESPACE: &[u8] = &[id::RESERVATION_MASK, id::RESERVATION_PERSISTENCE];

/// The dword of a page.
fn dword(page: &mut [u8], number: usize, value: u32) {
    if let Some(place) = page.get_mut(4 * number..4 * number + 4) {
        place.copy_from_slice(&U32::new(value).to_bytes());
    }
}

impl Target {
    /// The Supported Log Pages log page.
    pub(super) fn supported_pages(&self, kind: Kind, page: &mut [u8]) {
        for lid in 0..=u8::MAX {
            let is_missing = |status: Status| status == Status::INVALID_LOG_PAGE.dnr();
            if !self.has_log(kind, lid, 0).is_err_and(is_missing) {
                dword(page, lid.into(), 1);
            }
        }
    }

    /// The Commands Supported and Effects log page.
    pub(super) fn effects(&self, page: &mut [u8]) {
        for &opcode in ADMIN {
            dword(page, opcode.into(), (Effects::SUPPORTED | Effects::OF_CONTROLLER).bits());
        }
        let mut of_io = |opcode: u8, changes: bool| {
            let mut effects = Effects::SUPPORTED | Effects::OF_NAMESPACE;
            effects.set(Effects::CHANGES_BLOCKS, changes);
            dword(page, 256 + usize::from(opcode), effects.bits());
        };
        IO.iter().for_each(|&(opcode, changes)| of_io(opcode, changes));
        if self.subsystem.has_reservations {
            RESERVATIONS.iter().for_each(|&opcode| of_io(opcode, false));
        }
        if self.any_disk(|disk| disk.write_zeroes) {
            of_io(opcode::io::WRITE_ZEROES, true);
        }
        if self.any_disk(|disk| disk.discard) {
            of_io(opcode::io::DATASET_MANAGEMENT, true);
        }
    }
}

/// The Feature Identifiers Supported and Effects log page.
pub(super) fn features(page: &mut [u8], has_reservations: bool) {
    let of_namespace = if has_reservations { OF_NAMESPACE } else { &[] };
    for (features, scope) in
        [(OF_CONTROLLER, FeatureEffects::OF_CONTROLLER), (of_namespace, FeatureEffects::OF_NAMESPACE)]
    {
        for &feature in features {
            dword(page, feature.into(), (FeatureEffects::SUPPORTED | scope).bits());
        }
    }
}
