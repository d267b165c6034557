//! Work requests that are executed without the peer: fast register (LMR link), local invalidate
//! (unlink), bind window (RMR link).

use alloc::sync::Arc;
use core::mem::offset_of;

use nic_abi::cqe::{NO_FIELD, Status};
use nic_abi::ident::key_slot;
use nic_abi::wqe::{BindArgs, Header, LinkFlags, ListArgs, Opcode};
use zerocopy::transmute;

use super::Qp;
use super::completion::{Attempt, header_field};
use super::send::{ARGS, Work};
use crate::Frontend;
use crate::keys::{Bind, Key, Keys, Kind, REMOTE_RIGHTS, RIGHTS};
use crate::lists::{ListError, ListSpec};
use crate::nic::Nic;

/// Form of a region's list and addressing, and what its memory is good for.
const FORMS: LinkFlags = LinkFlags::RELATIVE
    .union(LinkFlags::PAGES)
    .union(LinkFlags::VARIABLE)
    .union(LinkFlags::CONTIGUOUS)
    .union(LinkFlags::WINDOWS_WRITE);
/// Rights that require local write (IBTA 10.6.6.2.2; it_lmr_link).
const WRITES: LinkFlags =
    LinkFlags::REMOTE_WRITE.union(LinkFlags::REMOTE_ATOMIC).union(LinkFlags::ATOMIC_ALONE);

/// What a region has one of, if windows of it may have the right to write.
const WINDOW_WRITES: LinkFlags = LinkFlags::LOCAL_WRITE.union(LinkFlags::WINDOWS_WRITE);

/// Whether a combination of a region's rights is allowed.
pub(crate) fn rights_fit(flags: LinkFlags) -> bool {
    !flags.intersects(WRITES) || flags.contains(LinkFlags::LOCAL_WRITE)
}

/// The flags of a region, if a region may have all of them.
pub(crate) fn region_flags(bits: u32) -> Option<LinkFlags> {
    LinkFlags::from_bits(bits).filter(|f| (RIGHTS | FORMS).contains(*f))
}

const fn failed(status: Status, field: u32) -> Attempt {
    Attempt::Failed(status, field)
}

impl Qp {
    /// Executes an entry.
    pub fn execute_local<F: Frontend>(&self, work: &Work, nic: &mut Nic<F>) -> Attempt {
        match work.opcode {
            Opcode::FastRegister => self.fast_register(work, nic),
            Opcode::LocalInvalidate => self.local_invalidate(work, &mut nic.keys),
            _ => self.bind_window(work, &mut nic.keys),
        }
    }

    fn local_invalidate(&self, work: &Work, keys: &mut Keys) -> Attempt {
        let Header { immediate: key, remote_key: remote, .. } = work.header;
        let named = keys.get(key);
        let status = match named {
            Some(Key { kind: Kind::Window { .. }, .. }) => Status::WindowBind,
            _ => Status::MemoryManagement,
        };
        if remote != 0 && named.is_some_and(|named| !named.linked || named.remote != remote) {
            return failed(status, header_field!(remote_key));
        }
        match keys.invalidate(key, self.pd, self.owner) {
            Ok(()) => Attempt::Done(0),
            Err(_) => failed(status, header_field!(immediate)),
        }
    }

    fn fast_register<F: Frontend>(&self, work: &Work, nic: &mut Nic<F>) -> Attempt {
        let header = work.header;
        let list = work.list();
        let bad = |field| failed(Status::MemoryManagement, field);
        if !self.privileged {
            return bad(header_field!(opcode));
        }
        let Some(flags) = region_flags(header.remote_key) else { return bad(header_field!(remote_key)) };
        if !flags.intersects(RIGHTS.difference(LinkFlags::BIND)) || !rights_fit(flags) {
            return bad(header_field!(remote_key));
        }
        if header.length == 0 {
            return bad(header_field!(length));
        }
        let Some(entry) = nic.keys.get_mut(header.immediate) else {
            return bad(header_field!(immediate));
        };
        let Kind::Region { max_elements, extents, .. } = &mut entry.kind else {
            return bad(header_field!(immediate));
        };
        if entry.pd != self.pd || entry.linked {
            return bad(header_field!(immediate));
        }
        if key_slot(list.remote) != key_slot(entry.local) {
            return bad((ARGS + offset_of!(ListArgs, remote)) as u32);
        }
        let spec = ListSpec {
            flags,
            base: header.remote_addr,
            length: header.length,
            list,
            max_elements: *max_elements,
        };
        // A region that is not linked is not shared, so its memory has one owner.
        let Some(extents) = Arc::get_mut(extents) else { return bad(header_field!(immediate)) };
        match extents.fill(nic.frontend.memory(), &spec) {
            Ok(()) => {
                entry.remote = list.remote;
                entry.flags = flags;
                (entry.base, entry.length) = (header.remote_addr, header.length);
                entry.linked = true;
                Attempt::Done(0)
            }
            Err(error) => bad(list_field(error)),
        }
    }

    fn bind_window(&self, work: &Work, keys: &mut Keys) -> Attempt {
        let header = work.header;
        let args: BindArgs = transmute!(work.args);
        let pd = self.pd;
        if args.reserved != [0; 6] {
            return failed(Status::LocalQpOperation, (ARGS + offset_of!(BindArgs, reserved)) as u32);
        }
        let flags_field = (ARGS + offset_of!(BindArgs, flags)) as u32;
        let flags = match LinkFlags::from_bits(args.flags) {
            Some(flags) if (REMOTE_RIGHTS | LinkFlags::RELATIVE).contains(flags) => flags,
            _ => return failed(Status::LocalQpOperation, flags_field),
        };
        let bad = |field| failed(Status::WindowBind, field);
        let window_slot = key_slot(header.immediate);
        let Some(window) = keys.get(header.immediate) else { return bad(header_field!(immediate)) };
        let Kind::Window { narrow, .. } = window.kind else { return bad(header_field!(immediate)) };
        if window.pd != pd || narrow && window.linked {
            return bad(header_field!(immediate));
        }
        if key_slot(args.remote) != window_slot {
            return bad((ARGS + offset_of!(BindArgs, remote)) as u32);
        }
        if header.length == 0 {
            // For a narrow window a length of 0 is an error; for a wide one it is an unbind
            // (it_rmr_link).
            if narrow {
                return failed(Status::MemoryManagement, header_field!(length));
            }
            keys.unlink(window_slot);
            return Attempt::Done(0);
        }
        let region = match keys.get(header.remote_key) {
            Some(region) if region.linked && region.pd == pd => region,
            _ => return bad(header_field!(remote_key)),
        };
        if !matches!(region.kind, Kind::Region { .. }) {
            return bad(header_field!(remote_key));
        }
        if region.flags.contains(LinkFlags::RELATIVE) {
            return failed(Status::MemoryManagement, header_field!(remote_key));
        }
        let may = region.flags;
        if !may.contains(LinkFlags::BIND)
            || flags.intersects(WRITES) && !may.intersects(WINDOW_WRITES)
            || flags.contains(LinkFlags::REMOTE_READ) && !may.contains(LinkFlags::LOCAL_READ)
        {
            return bad(flags_field);
        }
        let inside = header.remote_addr.checked_sub(region.base);
        let Some(offset) = inside.filter(|o| *o <= region.length && header.length <= region.length - *o)
        else {
            return bad(header_field!(remote_addr));
        };
        keys.unlink(window_slot);
        let bind = Bind {
            region: key_slot(header.remote_key),
            offset,
            owner: self.owner,
            remote: args.remote,
            flags,
            base: header.remote_addr,
            length: header.length,
        };
        keys.bind(window_slot, &bind);
        Attempt::Done(0)
    }
}

/// The field of an entry to blame for a list's error.
fn list_field(error: ListError) -> u32 {
    match error {
        ListError::Flags => header_field!(remote_key),
        ListError::Base => header_field!(remote_addr),
        ListError::Length => header_field!(length),
        ListError::Field(offset) | ListError::Dma(offset) => (ARGS + offset) as u32,
        ListError::Memory => NO_FIELD,
    }
}

const _: () = assert!(size_of::<ListArgs>() == size_of::<BindArgs>());
