//! Events as C has them.
#![expect(unsafe_code, reason = "an extension's data is a structure in the words of an event")]

use dat::{EventData, IbExtensionEventData, SpHandle};

use crate::abi::{self, Handle};
use crate::opened::Opened;
use crate::{address, cells};

/// A pointer as a word of an event.
fn word(handle: Handle) -> u64 {
    handle.expose_provenance() as u64
}

/// Two numbers as a word of an event: the first one is at the lower address.
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

impl Opened {
    /// An event that was taken from `evd`.
    pub(crate) fn event(&self, evd: Handle, event: &dat::Event) -> abi::Event {
        let data = match &event.event_data {
            EventData::Dto(done) => [
                word(self.known(done.ep_handle)),
                done.user_cookie,
                pair(done.status.as_raw(), done.transferred_length.min(u64::from(u32::MAX)) as u32),
                pair(done.operation.0, 0),
                0,
            ],
            EventData::RmrBind(done) => {
                [word(self.known(done.rmr_handle)), done.user_cookie, pair(done.status.as_raw(), 0), 0, 0]
            }
            EventData::CrArrival(arrival) => {
                let point = match arrival.sp_handle {
                    SpHandle::Psp(psp) => self.known(psp),
                    SpHandle::Rsp(rsp) => self.known(rsp),
                };
                let local = self.address.as_ptr().expose_provenance() as u64;
                [word(point), local, arrival.conn_qual, word(self.known(arrival.cr_handle)), 0]
            }
            EventData::Connection(connection) => {
                let ep = self.known(connection.ep_handle);
                let (size, data) = self.kept.data(ep, connection.private_data.as_ref());
                [word(ep), size as u64, word(data), 0, 0]
            }
            EventData::AsynchError(error) => {
                [word(self.known(error.dat_handle)), u64::from(error.reason.as_raw()), 0, 0, 0]
            }
            EventData::Software(data) => [*data as u64, 0, 0, 0, 0],
        };
        let extension = event.extension.map_or([0; 8], |extension| self.extension(&extension));
        abi::Event { event_number: event.event_number.0, evd_handle: evd, data, extension }
    }

    fn extension(&self, extension: &IbExtensionEventData) -> [u64; 8] {
        let remote = &extension.remote_ah;
        let ah = self.known(remote.ah);
        // C's address handle has no key of the queue pair.
        cells::set_extra(ah, u64::from(remote.qkey));
        let ia_addr = if remote.ah.is_null() { [0; 28] } else { address::to_c6(remote.ia_addr) };
        let data = abi::IbExtensionEventData {
            ext_type: extension.ext_type.as_raw(),
            status: extension.status.as_raw(),
            immed: extension.immed,
            padding: 0,
            remote_ah: abi::IbAddrHandle { ah, qpn: remote.qpn, ia_addr },
            context: 0,
        };
        // SAFETY: it is eight words without padding.
        unsafe { core::mem::transmute::<abi::IbExtensionEventData, [u64; 8]>(data) }
    }
}
