//! Regions and windows.

use alloc::sync::Arc;
use core::mem::offset_of;

use nic_abi::admin::{
    AllocateRegion, AllocateWindow, Command, KeyInfo, ModifyRegion, RegisterRegion, ShareRegion, Status,
};
use nic_abi::ident::key_slot;
use nic_abi::wqe::{LinkFlags, ListArgs};

use super::command::{CommandResult, DONE, Refusal, args, at, result};
use crate::Frontend;
use crate::keys::{Key, Kind, Owner, RIGHTS};
use crate::limits::{MAX_LIST_ELEMENTS, MAX_TRANSLATIONS};
use crate::lists::{Extents, ListError, ListSpec};
use crate::nic::Nic;
use crate::qp::local::{region_flags, rights_fit};

/// Bytes of a region at most, as in the identity.
const MAX_REGION: u64 = 1 << 48;

impl<F: Frontend> Nic<F> {
    /// Checks that a key's slot is free and its domain exists.
    fn new_key(&self, key: u32, pd: u32, pd_field: usize) -> Result<(), Refusal> {
        if key_slot(key) == 0 {
            return Err(Refusal::field(at!(command.object)));
        }
        if self.keys.table.contains(key_slot(key)) {
            return Err(Refusal::new(Status::Exists, at!(command.object)));
        }
        if !self.pds.contains(pd) {
            return Err(Refusal::new(Status::NoSuchObject, pd_field));
        }
        Ok(())
    }

    /// The region or window that a command names.
    fn named_key(&self, command: &Command) -> Result<&Key, Refusal> {
        self.keys.get(command.object).ok_or(Refusal::new(Status::NoSuchObject, at!(command.object)))
    }

    /// Refuses elements beyond the NIC's limit.
    fn room_for(&self, elements: u32, field: usize) -> Result<(), Refusal> {
        match self.keys.elements + u64::from(elements) <= MAX_TRANSLATIONS {
            true => Ok(()),
            false => Err(Refusal::new(Status::NoResources, field)),
        }
    }

    fn add_key(&mut self, entry: Key) {
        self.use_pd(entry.pd);
        if let Kind::Region { shared: false, extents, .. } = &entry.kind {
            self.keys.elements += u64::from(extents.elements);
        }
        self.keys.table.insert(key_slot(entry.local), entry);
    }

    fn remove_key(&mut self, key: u32) {
        self.keys.unlink(key_slot(key));
        if let Some(entry) = self.keys.table.remove(key_slot(key)) {
            self.release_pd(entry.pd);
            if let Kind::Region { extents, .. } = &entry.kind
                && Arc::strong_count(extents) == 1
            {
                self.keys.elements -= u64::from(extents.elements);
            }
        }
    }

    pub(super) fn register_region(&mut self, command: &Command) -> CommandResult {
        let a: RegisterRegion = args(command);
        self.new_key(command.object, a.pd, at!(RegisterRegion, pd))?;
        let flags = region_flags(a.flags).filter(|f| rights_fit(*f));
        let flags = flags.ok_or(Refusal::field(at!(RegisterRegion, flags)))?;
        if a.length > MAX_REGION {
            return Err(Refusal::field(at!(RegisterRegion, length)));
        }
        check_remote(command.object, a.list.remote, REGISTERED + offset_of!(ListArgs, remote))?;
        let contiguous = flags.contains(LinkFlags::CONTIGUOUS);
        let max_elements = if contiguous { 1 } else { a.list.elements };
        let elements_field = REGISTERED + offset_of!(ListArgs, elements);
        self.room_for(max_elements, elements_field)?;
        let spec = ListSpec { flags, base: a.base, length: a.length, list: a.list, max_elements };
        let mut extents = Extents::counting(max_elements);
        let filled = extents.fill(self.frontend.memory(), &spec);
        filled.map_err(|e| list_refusal(e, &REGISTER, elements_field))?;
        extents.shrink();
        self.add_key(Key {
            local: command.object,
            remote: a.list.remote,
            pd: a.pd,
            linked: true,
            flags,
            base: a.base,
            length: a.length,
            kind: Kind::Region {
                max_elements,
                registered: true,
                shared: false,
                windows: 0,
                extents: Arc::new(extents),
            },
        });
        Ok(DONE)
    }

    pub(super) fn share_region(&mut self, command: &Command) -> CommandResult {
        let a: ShareRegion = args(command);
        self.new_key(command.object, a.pd, at!(ShareRegion, pd))?;
        if a.reserved != 0 {
            return Err(Refusal::field(at!(ShareRegion, reserved)));
        }
        let flags = region_flags(a.flags).filter(|f| rights_fit(*f));
        let flags = flags.ok_or(Refusal::field(at!(ShareRegion, flags)))?;
        let list = at!(ShareRegion, list);
        check_remote(command.object, a.list.remote, list + offset_of!(ListArgs, remote))?;
        let field = at!(ShareRegion, of);
        let other = self.keys.get(a.of).ok_or(Refusal::new(Status::NoSuchObject, field))?;
        let Kind::Region { extents, .. } = &other.kind else {
            return Err(Refusal::new(Status::NoSuchObject, field));
        };
        // Looked at first, because the list may take long.
        if !other.linked || extents.length() != a.length {
            return Err(Refusal::new(Status::BadState, field));
        }
        let spec =
            ListSpec { flags, base: a.base, length: a.length, list: a.list, max_elements: MAX_LIST_ELEMENTS };
        let mut wanted = Extents::default();
        let filled = wanted.fill(self.frontend.memory(), &spec);
        filled.map_err(|e| list_refusal(e, &SHARE, list + offset_of!(ListArgs, elements)))?;
        if !extents.same_memory(&wanted) {
            return Err(Refusal::new(Status::BadState, field));
        }
        let extents = extents.clone();
        if let Some(Key { kind: Kind::Region { shared, .. }, .. }) = self.keys.get_mut(a.of) {
            *shared = true;
        }
        self.add_key(Key {
            local: command.object,
            remote: a.list.remote,
            pd: a.pd,
            linked: true,
            flags,
            base: a.base,
            length: a.length,
            kind: Kind::Region { max_elements: 0, registered: true, shared: true, windows: 0, extents },
        });
        Ok(DONE)
    }

    pub(super) fn allocate_region(&mut self, command: &Command) -> CommandResult {
        let a: AllocateRegion = args(command);
        self.new_key(command.object, a.pd, at!(AllocateRegion, pd))?;
        let field = at!(AllocateRegion, max_elements);
        if a.max_elements == 0 || a.max_elements > MAX_LIST_ELEMENTS {
            return Err(Refusal::field(field));
        }
        self.room_for(a.max_elements, field)?;
        let extents = Extents::with_room(a.max_elements).map_err(|e| list_refusal(e, &REGISTER, field))?;
        self.add_key(Key {
            local: command.object,
            remote: 0,
            pd: a.pd,
            linked: false,
            flags: LinkFlags::empty(),
            base: 0,
            length: 0,
            kind: Kind::Region {
                max_elements: a.max_elements,
                registered: false,
                shared: false,
                windows: 0,
                extents: Arc::new(extents),
            },
        });
        Ok(DONE)
    }

    pub(super) fn modify_region(&mut self, command: &Command) -> CommandResult {
        let a: ModifyRegion = args(command);
        let entry = self.named_key(command)?;
        match entry.kind {
            Kind::Region { windows: 0, .. } => {}
            Kind::Region { .. } => return Err(Refusal::new(Status::Busy, at!(command.object))),
            Kind::Window { .. } => return Err(Refusal::new(Status::NoSuchObject, at!(command.object))),
        }
        let (before, linked) = (entry.pd, entry.linked);
        let pd = if a.pd == 0 { before } else { a.pd };
        if !self.pds.contains(pd) {
            return Err(Refusal::new(Status::NoSuchObject, at!(ModifyRegion, pd)));
        }
        let rights = LinkFlags::from_bits(a.flags).filter(|f| RIGHTS.contains(*f) && rights_fit(*f));
        let rights = rights.ok_or(Refusal::field(at!(ModifyRegion, flags)))?;
        match a.rights {
            0 if rights.is_empty() => {}
            0 => return Err(Refusal::field(at!(ModifyRegion, flags))),
            1 if linked => {}
            1 => return Err(Refusal::new(Status::BadState, at!(ModifyRegion, rights))),
            _ => return Err(Refusal::field(at!(ModifyRegion, rights))),
        }
        check_remote(command.object, a.remote, at!(ModifyRegion, remote))?;
        self.use_pd(pd);
        self.release_pd(before);
        if let Some(entry) = self.keys.get_mut(command.object) {
            entry.remote = a.remote;
            entry.pd = pd;
            if a.rights == 1 {
                entry.flags = entry.flags.difference(RIGHTS) | rights;
            }
        }
        Ok(DONE)
    }

    pub(super) fn destroy_region(&mut self, command: &Command) -> CommandResult {
        match self.named_key(command)?.kind {
            Kind::Region { windows: 0, .. } => {}
            Kind::Region { .. } => return Err(Refusal::new(Status::Busy, at!(command.object))),
            Kind::Window { .. } => return Err(Refusal::new(Status::NoSuchObject, at!(command.object))),
        }
        self.remove_key(command.object);
        Ok(DONE)
    }

    pub(super) fn allocate_window(&mut self, command: &Command) -> CommandResult {
        let a: AllocateWindow = args(command);
        self.new_key(command.object, a.pd, at!(AllocateWindow, pd))?;
        let narrow = match a.window_type {
            1 => false,
            2 => true,
            _ => return Err(Refusal::field(at!(AllocateWindow, window_type))),
        };
        self.add_key(Key {
            local: command.object,
            remote: 0,
            pd: a.pd,
            linked: false,
            flags: LinkFlags::empty(),
            base: 0,
            length: 0,
            kind: Kind::Window { narrow, region: 0, offset: 0, owner: Owner::Named(0) },
        });
        Ok(DONE)
    }

    pub(super) fn destroy_window(&mut self, command: &Command) -> CommandResult {
        match self.named_key(command)?.kind {
            Kind::Window { .. } => self.remove_key(command.object),
            Kind::Region { .. } => return Err(Refusal::new(Status::NoSuchObject, at!(command.object))),
        }
        Ok(DONE)
    }

    pub(super) fn query_key(&mut self, command: &Command) -> CommandResult {
        let entry = self.named_key(command)?;
        let (kind, windows_or_region) = match entry.kind {
            Kind::Region { windows, .. } => (0, windows),
            Kind::Window { region, .. } if entry.linked => {
                (1, self.keys.table.get(region).map_or(0, |r| r.local))
            }
            Kind::Window { .. } => (1, 0),
        };
        let linked = |value: u64| if entry.linked { value } else { 0 };
        Ok(result(&KeyInfo {
            kind,
            linked: u32::from(entry.linked),
            remote: linked(u64::from(entry.remote)) as u32,
            flags: linked(u64::from(entry.flags.bits())) as u32,
            base: linked(entry.base),
            length: linked(entry.length),
            pd: entry.pd,
            windows_or_region,
        }))
    }
}

/// The fields of a command that describe a region's memory.
struct Fields {
    flags: usize,
    base: usize,
    length: usize,
    list: usize,
}

const REGISTERED: usize = at!(RegisterRegion, list);
const REGISTER: Fields = Fields {
    flags: at!(RegisterRegion, flags),
    base: at!(RegisterRegion, base),
    length: at!(RegisterRegion, length),
    list: REGISTERED,
};
const SHARE: Fields = Fields {
    flags: at!(ShareRegion, flags),
    base: at!(ShareRegion, base),
    length: at!(ShareRegion, length),
    list: at!(ShareRegion, list),
};

/// Refuses a remote key that is not of the region's slot.
fn check_remote(local: u32, remote: u32, field: usize) -> Result<(), Refusal> {
    if key_slot(remote) == key_slot(local) { Ok(()) } else { Err(Refusal::field(field)) }
}

/// The refusal for a list's error; `room` is the field that asks for too much memory.
fn list_refusal(error: ListError, fields: &Fields, room: usize) -> Refusal {
    match error {
        ListError::Flags => Refusal::field(fields.flags),
        ListError::Base => Refusal::field(fields.base),
        ListError::Length => Refusal::field(fields.length),
        ListError::Field(offset) => Refusal::field(fields.list + offset),
        ListError::Dma(offset) => Refusal::new(Status::Dma, fields.list + offset),
        ListError::Memory => Refusal::new(Status::NoResources, room),
    }
}
