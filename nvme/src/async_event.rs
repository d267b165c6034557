//! Asynchronous events: the result of an Asynchronous Event Request (base 5.2; fabrics 5).

use crate::log;

/// Asynchronous Event Type.
pub mod kind {
    /// Error status.
    pub const ERROR: u8 = 0;
    /// SMART / Health status.
    pub const SMART: u8 = 1;
    /// Notice.
    pub const NOTICE: u8 = 2;
    /// I/O command set specific status.
    pub const IO_COMMAND_SET: u8 = 6;
    /// Vendor specific.
    pub const VENDOR: u8 = 7;
}

/// Asynchronous Event Information of [`kind::ERROR`].
pub mod error {
    /// Diagnostic Failure.
    pub const DIAGNOSTIC_FAILURE: u8 = 0x02;
    /// Persistent Internal Error.
    pub const PERSISTENT_INTERNAL: u8 = 0x03;
    /// Transient Internal Error.
    pub const TRANSIENT_INTERNAL: u8 = 0x04;
}

/// Asynchronous Event Information of [`kind::SMART`].
pub mod smart {
    /// NVM subsystem reliability.
    pub const RELIABILITY: u8 = 0x00;
    /// Temperature threshold.
    pub const TEMPERATURE: u8 = 0x01;
    /// Spare below threshold.
    pub const SPARE: u8 = 0x02;
}

/// Asynchronous Event Information of [`kind::NOTICE`].
pub mod notice {
    /// Namespace Attribute Changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: u8 = 0x00;
    /// Firmware Activation Starting.
    pub const FIRMWARE_ACTIVATION_STARTING: u8 = 0x01;
    /// Asymmetric Namespace Access Change.
    pub const ANA_CHANGE: u8 = 0x03;
    /// Discovery Log Page Change (fabrics).
    pub const DISCOVERY_LOG_CHANGE: u8 = 0xf0;
}

/// Asynchronous Event Information of [`kind::IO_COMMAND_SET`].
pub mod io_command_set {
    /// Reservation Log Page Available.
    pub const RESERVATION_LOG_AVAILABLE: u8 = 0x00;
}

/// An asynchronous event. No other event of its type is reported until the host reads the log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Asynchronous Event Type: one of [`kind`].
    pub kind: u8,
    /// Asynchronous Event Information: what happened.
    pub info: u8,
    /// Log Page Identifier: where the host reads more.
    pub log_page: u8,
}

impl Event {
    /// The namespaces in the Changed Namespace List have changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self = Self {
        kind: kind::NOTICE,
        info: notice::NAMESPACE_ATTRIBUTE_CHANGED,
        log_page: log::id::CHANGED_NAMESPACES,
    };
    /// What the Asymmetric Namespace Access log page says has changed.
    pub const ANA_CHANGE: Self =
        Self { kind: kind::NOTICE, info: notice::ANA_CHANGE, log_page: log::id::ANA };
    /// There is a Reservation Notification log page.
    pub const RESERVATION_NOTICE: Self = Self {
        kind: kind::IO_COMMAND_SET,
        info: io_command_set::RESERVATION_LOG_AVAILABLE,
        log_page: log::id::RESERVATION_NOTIFICATION,
    };
    /// The Discovery log page has changed.
    pub const DISCOVERY_LOG_CHANGE: Self =
        Self { kind: kind::NOTICE, info: notice::DISCOVERY_LOG_CHANGE, log_page: log::id::DISCOVERY };

    /// The event in a completion's result.
    pub const fn parse(result: u32) -> Self {
        Self { kind: result as u8 & 7, info: (result >> 8) as u8, log_page: (result >> 16) as u8 }
    }

    /// The result of the completion that reports the event.
    pub const fn result(self) -> u32 {
        (self.log_page as u32) << 16 | (self.info as u32) << 8 | (self.kind & 7) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_an_event() {
        assert_eq!(Event::NAMESPACE_ATTRIBUTE_CHANGED.result(), 0x0004_0002);
        assert_eq!(Event::DISCOVERY_LOG_CHANGE.result(), 0x0070_f002);
        assert_eq!(Event::RESERVATION_NOTICE.result(), 0x0080_0006);
        assert_eq!(Event::ANA_CHANGE.result(), 0x000c_0302);
        assert_eq!(Event::parse(0xff70_f0fa), Event::DISCOVERY_LOG_CHANGE);
        let error = Event { kind: kind::ERROR, info: error::PERSISTENT_INTERNAL, log_page: log::id::ERROR };
        assert_eq!(Event::parse(error.result()), error);
    }
}
