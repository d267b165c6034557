//! PCI: `config` finds functions, `addresses` gives their BARs addresses if the firmware has not,
//! `msix` routes their interrupts, `nic` hands over those that are NICs, and `virtio` those that
//! are disks.

mod addresses;
mod config;
mod msix;
mod nic;
mod virtio;

use alloc::sync::Arc;

use platform::Platform;

use crate::pvh::StartData;

pub use msix::entry_writes;
pub use nic::nics;
pub use virtio::{Place, disks, places};

/// Finds out how PCI is reached. Runs while the firmware's tables can be read.
pub(crate) fn find(data: &StartData) {
    config::find(data);
}

/// Finds the devices, and brings up the disks.
pub(crate) fn attach(platform: &Arc<dyn Platform>) {
    let functions = config::functions();
    if let Some(window) = config::window() {
        addresses::give(&functions, window);
    }
    // The NICs first: their interrupts go to the first CPUs, whatever other devices there are.
    nic::attach(&functions);
    virtio::attach(platform, &functions);
}
