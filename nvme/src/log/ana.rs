//! The Asymmetric Namespace Access log page (base 5.14.1.12): which of a controller's namespaces
//! it reaches, and how well. It is a header, and behind it a descriptor for each group, with the
//! group's NSIDs.

use core::fmt;
use core::str::FromStr;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// How a controller reaches the namespaces of a group (base 8.20.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// It does, as well as any controller.
    #[default]
    Optimized = 1,
    /// It does, but another controller may do better.
    NonOptimized = 2,
    /// It does not.
    Inaccessible = 3,
    /// It does not, and never will.
    PersistentLoss = 4,
    /// It does not while the state changes, for [`crate::identify::Controller::anatt`] at most.
    Change = 0xf,
}

impl AnaState {
    /// All states, with the names that Linux has for them.
    pub const ALL: [(AnaState, &'static str); 5] = [
        (AnaState::Optimized, "optimized"),
        (AnaState::NonOptimized, "non-optimized"),
        (AnaState::Inaccessible, "inaccessible"),
        (AnaState::PersistentLoss, "persistent-loss"),
        (AnaState::Change, "change"),
    ];

    /// The state with this number.
    pub fn from_number(number: u8) -> Option<AnaState> {
        AnaState::ALL.iter().map(|(state, _)| *state).find(|state| *state as u8 == number)
    }

    /// The status of a command about a namespace that the controller does not reach. It has no Do
    /// Not Retry, so that the host tries another path.
    pub const fn status(self) -> Option<Status> {
        match self {
            AnaState::Optimized | AnaState::NonOptimized => None,
            AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = AnaState::ALL.iter().find(|(state, _)| state == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// A text that names no [`AnaState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnaState;

impl fmt::Display for NoAnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no state; there are ")?;
        for (n, (_, name)) in AnaState::ALL.iter().enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl core::error::Error for NoAnaState {}

impl FromStr for AnaState {
    type Err = NoAnaState;

    /// # Errors
    ///
    /// [`NoAnaState`]
    fn from_str(text: &str) -> Result<AnaState, NoAnaState> {
        let found = AnaState::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(state, _)| *state).ok_or(NoAnaState)
    }
}

/// The head of the Asymmetric Namespace Access log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Change Count: 0 after a reset of the controller; it changes with the page.
    pub chgcnt: U64,
    /// Number of ANA Group Descriptors.
    pub groups: U16,
    _reserved_10: [u8; 6],
}

const _: () = assert!(size_of::<AnaHeader>() == 16);

impl AnaHeader {
    /// The head of a page with so many descriptors.
    pub fn new(chgcnt: u64, groups: u16) -> Self {
        Self { chgcnt: chgcnt.into(), groups: groups.into(), ..Self::new_zeroed() }
    }
}

/// The head of a group's descriptor. As many NSIDs as it says follow, in ascending order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// ANA Group ID: from 1 to [`crate::identify::Controller::anagrpmax`].
    pub group: U32,
    /// Number of NSIDs; 0 if the host has asked for [`GROUPS_ONLY`].
    pub nsids: U32,
    /// Change Count: it changes with the descriptor; 0 if there is none.
    pub chgcnt: U64,
    /// The state in bits 3:0: [`AnaState`].
    pub state: u8,
    _reserved_17: [u8; 15],
}

const _: () = assert!(size_of::<AnaGroup>() == 32);

impl AnaGroup {
    /// The head of a descriptor.
    pub fn new(group: u32, nsids: u32, chgcnt: u64, state: AnaState) -> Self {
        Self {
            group: group.into(),
            nsids: nsids.into(),
            chgcnt: chgcnt.into(),
            state: state as u8,
            ..Self::new_zeroed()
        }
    }
}

/// Return Groups Only: the bit of [`super::GetLogPage::lsp`] that leaves the NSIDs out.
pub const GROUPS_ONLY: u8 = 1;

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_descriptor_of_a_group() {
        let group = AnaGroup::new(7, 2, 0x0102, AnaState::Inaccessible);
        assert_eq!(group.as_bytes()[..18], [7, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0]);
        assert_eq!(AnaHeader::new(5, 2).as_bytes()[..10], [5, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn states_have_names_numbers_and_statuses() {
        for (state, name) in AnaState::ALL {
            assert_eq!((name.parse(), state.to_string().as_str()), (Ok(state), name));
            assert_eq!(AnaState::from_number(state as u8), Some(state));
            let reaches = matches!(state, AnaState::Optimized | AnaState::NonOptimized);
            assert_eq!(state.status().is_none(), reaches);
            assert!(state.status().is_none_or(|status| status.sct() == crate::status::sct::PATH));
            assert!(state.status().is_none_or(|status| !status.is_dnr()));
        }
        assert_eq!((AnaState::from_number(0), AnaState::from_number(5)), (None, None));
        let error = "optimised".parse::<AnaState>().expect_err("no state").to_string();
        let names = "optimized, non-optimized, inaccessible, persistent-loss, change";
        assert_eq!(error, std::format!("no state; there are {names}"));
    }
}
