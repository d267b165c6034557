//! What the target itself answers with data: the structures of Identify, and log pages.

use nvme::identify::{
    self, ActiveList, Anacap, Cmic, ControllerType, Ctratt, DescriptorWriter, Dlfeat, Fuses, LbaFormat, Lpa,
    NamespaceId, Nmic, Nsfeat, Oaes, Oncs, Sgls, Vwc,
};
use nvme::log::{self, AnaState, ChangedNamespaces, Smart};
use nvme::reservation::{NoticePage, Rescap};
use nvme::status::Status;
use nvme::{Nqn, fabrics, nqn, set_ascii};
use platform::planted::{Bug, planted};
use zerocopy::{FromZeros, IntoBytes};

use super::ana::TRANSITION_TIME;
use super::capsule::COMMAND;
use super::commands::Index;
use super::config::MOST_NAMESPACES;
use super::controller::{KEEP_ALIVE_STEP, MOST_EVENTS};
use super::identity::{ControllerId, Kind};
use super::namespace::Pair;
use super::port::RESPONSE;
use super::server::Target;
use super::supported;
use super::task::Reply;

/// How many Aborts may be outstanding, 0-based: each is answered at once.
const MOST_ABORTS: u8 = 3;
/// The bytes of the largest block.
const LARGEST_BLOCK: u16 = 4096;
/// The bytes of a page, in which replies are made.
const PAGE: usize = 4096;
const MODEL: &str = "Ferrovia NVMe over Fabrics target";
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

impl Target {
    /// Fills a command's buffer with its reply of `len` bytes.
    pub(super) fn fill(&mut self, index: Index, reply: Reply, len: usize) {
        let (mut page, port) = (core::mem::take(&mut self.page), self.commands[index].port);
        for offset in (0..len).step_by(PAGE) {
            let piece = &mut page[..PAGE.min(len - offset)];
            piece.fill(0);
            self.write(reply, port, offset, piece);
            self.ports[port].admin_pool.write(&self.commands[index].buffer, offset, piece);
        }
        self.page = page;
        if let Reply::Log { controller, kind, page, clears: true, .. } = reply
            && let Some(controller) = self.controller(controller, kind)
        {
            match page {
                log::id::RESERVATION_NOTIFICATION => controller.reservation_notices.read(),
                log::id::ANA => controller.access.has_read(),
                log::id::DISCOVERY => controller.listing.has_read(),
                _ => controller.has_read_changes(),
            }
        }
    }

    /// Writes a piece of a reply by a port. The piece is zero so far. The structures of Identify
    /// have one piece.
    fn write(&mut self, reply: Reply, port: usize, from: usize, piece: &mut [u8]) {
        match reply {
            Reply::Controller(id, kind) => {
                copy(self.identify_controller(id, kind).as_bytes(), from as u64, piece)
            }
            Reply::NvmController => {
                let mut page = identify::NvmController::new_zeroed();
                page.vsl = self.transfer_pages();
                copy(page.as_bytes(), from as u64, piece);
            }
            // All namespaces have the NVM command set, of which the structure says nothing more.
            Reply::Nothing => {}
            Reply::CommandSets => copy(&[1], from as u64, piece),
            Reply::IndependentNamespace(nsid) => {
                let whole = self.identify_namespace(nsid, port);
                let mut page = identify::IndependentNamespace::new_zeroed();
                (page.nmic, page.rescap, page.nsattr) = (whole.nmic, whole.rescap, whole.nsattr);
                page.anagrpid = whole.anagrpid;
                page.nstat = self.subsystem.place(nsid).is_some().into();
                copy(page.as_bytes(), from as u64, piece);
            }
            Reply::HostIdentifier(id) => {
                if let Some(controller) = self.subsystem.controllers.get(id) {
                    copy(&controller.host.id, from as u64, piece);
                }
            }
            Reply::Namespace(nsid) => {
                copy(self.identify_namespace(nsid, port).as_bytes(), from as u64, piece);
            }
            Reply::Active(id, after) => {
                let mut list = ActiveList::new_zeroed();
                let all = 1..=self.subsystem.namespaces.len() as u32;
                let is_listed = |nsid: &u32| match planted(Bug::HiddenListed) {
                    true => self.subsystem.place(*nsid).is_some(),
                    false => self.seen(id, *nsid).is_some(),
                };
                list.fill(after, all.filter(is_listed));
                copy(list.as_bytes(), from as u64, piece);
            }
            Reply::Descriptors(nsid) => {
                if let Some(place) = self.subsystem.place(nsid) {
                    let mut writer = DescriptorWriter::new(piece);
                    // A page has room for both.
                    let _ = writer.push(NamespaceId::Uuid(self.subsystem.namespaces[place].uuid));
                    let _ = writer.push(NamespaceId::Csi(0));
                }
            }
            Reply::Reservation(place) => self.write_report(place, from as u64, piece),
            Reply::Log { controller, kind, page, specific, offset, .. } => {
                let offset = offset.saturating_add(from as u64);
                match page {
                    log::id::ANA => copy(&self.ana_page(controller, specific), offset, piece),
                    _ => self.log(controller, kind, page, offset, piece),
                }
            }
        }
    }

    fn identify_controller(&mut self, id: ControllerId, kind: Kind) -> identify::Controller {
        let subsystem = self.controller(id, kind).map_or(0, |controller| controller.subsystem);
        let mut page = identify::Controller::new_zeroed();
        let named = self.subsystem.named.get(subsystem).and_then(Option::as_ref);
        // All discovery controllers have the first one's.
        let first = self.subsystem.named.first().and_then(Option::as_ref);
        set_ascii(&mut page.sn, named.or(first).map_or("", |named| &named.serial));
        set_ascii(&mut page.mn, MODEL);
        set_ascii(&mut page.fr, FIRMWARE);
        page.cntlid = id.0.into();
        page.ver = fabrics::VERSION.into();
        // A shutdown takes as long as a disk may take, in microseconds.
        let shutdown = self.config.disk_timeout.as_micros() as u32 + 5_000_000;
        page.rtd3e = shutdown.into();
        page.lpa = (Lpa::EXTENDED_DATA | Lpa::COMMAND_EFFECTS | Lpa::SUPPORTED_PAGES).bits();
        page.acl = MOST_ABORTS;
        page.aerl = MOST_EVENTS as u8 - 1;
        page.kas = KEEP_ALIVE_STEP.into();
        page.maxcmd = self.config.depth.into();
        page.mdts = self.transfer_pages();
        page.sgls = (Sgls::SUPPORTED | Sgls::KEYED | Sgls::OFFSET).bits().into();
        page.ioccsz = ((COMMAND + self.config.in_capsule) as u32 / 16).into();
        page.iorcsz = (RESPONSE as u32 / 16).into();
        page.msdbd = 1;
        let name =
            if kind == Kind::Discovery { nqn::DISCOVERY.as_str() } else { self.subsystem.nqn(subsystem) };
        if let Ok(name) = Nqn::new(name.as_bytes()) {
            name.write(&mut page.subnqn);
        }
        if kind == Kind::Discovery {
            page.cntrltype = ControllerType::Discovery as u8;
            page.oaes = Oaes::DISCOVERY_LOG_CHANGE.bits().into();
            return page;
        }
        page.cntrltype = ControllerType::Io as u8;
        let mut paths = Cmic::CONTROLLERS | Cmic::ANA;
        paths.set(Cmic::PORTS, self.config.path.is_some() || self.ports.len() > 1);
        page.cmic = paths.bits();
        page.oaes = (Oaes::NAMESPACE_ATTRIBUTE | Oaes::ANA_CHANGE).bits().into();
        page.anatt = TRANSITION_TIME;
        page.anacap = (Anacap::ALL_STATES | Anacap::GROUPS_STAY).bits();
        page.sqes = 0x66;
        page.cqes = 0x44;
        // As many as there may ever be: a host reads this once, and namespaces come later.
        page.nn = (MOST_NAMESPACES as u32).into();
        page.mnan = page.nn;
        (page.anagrpmax, page.nanagrpid) = (page.nn, page.nn);
        page.ctratt = (Ctratt::HOST_ID_128 | Ctratt::TRAFFIC_BASED_KEEP_ALIVE).bits().into();
        let mut commands = Oncs::COMPARE | Oncs::VERIFY | Oncs::COPY;
        commands.set(Oncs::RESERVATIONS, self.subsystem.has_reservations);
        page.ocfs = 1.into();
        commands.set(Oncs::DATASET_MANAGEMENT, self.any_disk(|disk| disk.discard));
        commands.set(Oncs::WRITE_ZEROES, self.any_disk(|disk| disk.write_zeroes));
        page.oncs = commands.bits().into();
        if self.subsystem.has_pairs {
            page.fuses = Fuses::COMPARE_AND_WRITE.bits().into();
            // In blocks of any size that a namespace may have, 0-based.
            page.acwu = (Pair::MOST_BYTES as u16 / LARGEST_BLOCK - 1).into();
        }
        let mut cache = Vwc::FLUSH_ALL_NOT_SUPPORTED;
        cache.set(Vwc::PRESENT, self.has_cache());
        page.vwc = cache.bits();
        page
    }

    /// The largest transfer, as a power of two of pages.
    fn transfer_pages(&self) -> u8 {
        (self.subsystem.transfer / PAGE).ilog2() as u8
    }

    fn identify_namespace(&self, nsid: u32, port: usize) -> identify::Namespace {
        let mut page = identify::Namespace::new_zeroed();
        let Some(place) = self.subsystem.place(nsid) else { return page };
        let namespace = &self.subsystem.namespaces[place];
        let blocks = namespace.geometry.blocks.into();
        (page.nsze, page.ncap) = (blocks, blocks);
        // A path that is closed does not know what is in use (base 8.20.3.3, 8.20.3.4).
        if !matches!(self.subsystem.ana[port].state(place), AnaState::Inaccessible | AnaState::PersistentLoss)
        {
            page.nuse = blocks;
        }
        page.nmic = Nmic::SHARED.bits();
        page.anagrpid = nsid.into();
        page.nsattr = namespace.geometry.is_read_only.into();
        page.nguid = namespace.uuid;
        let (most_of_range, most) = namespace.copy_limits();
        (page.mssrl, page.mcl) = ((most_of_range as u16).into(), (most as u32).into());
        page.msrc = (nvme::copy::MAX_RANGES - 1) as u8;
        let mut reservations = Rescap::ALL_TYPES | Rescap::IGNORES_KEY_1_3;
        reservations.set(Rescap::PERSISTS, namespace.can_persist);
        if self.subsystem.has_reservations {
            page.rescap = reservations.bits();
        }
        if namespace.geometry.write_zeroes {
            page.dlfeat = Dlfeat::WRITE_ZEROES_DEALLOCATES.bits();
        }
        if self.subsystem.has_pairs {
            page.nsfeat = Nsfeat::ATOMIC_WRITE_UNITS.bits();
            page.nacwu = ((Pair::MOST_BYTES >> namespace.shift()) as u16 - 1).into();
        }
        page.lbaf[0] = LbaFormat::new(namespace.shift() as u8);
        page
    }

    /// Whether there is such a log page. `None` if there is not; otherwise whether the namespace
    /// fits.
    pub(super) fn has_log(&self, kind: Kind, page: u8, nsid: u32) -> Result<(), Status> {
        let exists = match kind {
            Kind::Discovery => matches!(page, log::id::SUPPORTED | log::id::DISCOVERY),
            Kind::Io => {
                matches!(
                    page,
                    log::id::SUPPORTED
                        | log::id::ERROR
                        | log::id::SMART
                        | log::id::FIRMWARE_SLOT
                        | log::id::CHANGED_NAMESPACES
                        | log::id::ANA
                        | log::id::COMMAND_EFFECTS
                        | log::id::FEATURE_EFFECTS
                        | log::id::MANAGEMENT_EFFECTS
                ) || page == log::id::RESERVATION_NOTIFICATION && self.subsystem.has_reservations
            }
        };
        if !exists {
            return Err(Status::INVALID_LOG_PAGE.dnr());
        }
        // No page is kept for each namespace.
        if page == log::id::SMART && nsid != 0 && nsid != nvme::NSID_ALL {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(())
    }

    /// Writes a piece of a log page. What lies beyond its end is zero.
    fn log(&mut self, id: ControllerId, kind: Kind, page: u8, offset: u64, piece: &mut [u8]) {
        match page {
            log::id::SUPPORTED => {
                let mut whole = [0; log::SUPPORTED_LEN];
                self.supported_pages(kind, &mut whole);
                copy(&whole, offset, piece);
            }
            log::id::DISCOVERY if kind == Kind::Discovery => self.discovery_log(id, offset, piece),
            log::id::COMMAND_EFFECTS => {
                let mut whole = [0; log::EFFECTS_LEN];
                self.effects(&mut whole);
                copy(&whole, offset, piece);
            }
            log::id::FEATURE_EFFECTS => {
                let mut whole = [0; log::SUPPORTED_LEN];
                supported::features(&mut whole, self.subsystem.has_reservations);
                copy(&whole, offset, piece);
            }
            log::id::ERROR => {
                let errors = self.subsystem.controllers.get(id).map(|controller| controller.last_error);
                if let Some(Some(last)) = errors {
                    copy(last.as_bytes(), offset, piece);
                }
            }
            log::id::SMART => {
                let counted = self.control().statistics();
                let mut smart = Smart::new_zeroed();
                // A disk that is read-only is so by its owner's wish, which is no warning.
                // 25 degrees Celsius: hosts take 0 kelvin for a fault.
                smart.composite_temperature = 298.into();
                smart.available_spare = 100;
                let units = |bytes: u64| u128::from(bytes.div_ceil(512_000)).into();
                smart.data_units_read = units(counted.bytes_read);
                smart.data_units_written = units(counted.bytes_written);
                smart.host_read_commands = u128::from(counted.reads).into();
                smart.host_write_commands = u128::from(counted.writes).into();
                smart.media_errors = u128::from(counted.media).into();
                let errors = self.subsystem.controllers.get(id).map_or(0, |controller| controller.errors);
                smart.error_log_entries = u128::from(errors).into();
                copy(smart.as_bytes(), offset, piece);
            }
            log::id::FIRMWARE_SLOT => {
                let mut slots = [0; 16];
                slots[0] = 1;
                set_ascii(&mut slots[8..], FIRMWARE);
                copy(&slots, offset, piece);
            }
            log::id::RESERVATION_NOTIFICATION => {
                let controller = self.subsystem.controllers.get(id);
                if let Some(notice) = controller.and_then(|one| one.reservation_notices.page()) {
                    copy(notice.as_bytes(), offset, piece);
                }
            }
            log::id::CHANGED_NAMESPACES => {
                let mut list = ChangedNamespaces::new_zeroed();
                if let Some(controller) = self.subsystem.controllers.get(id) {
                    list.fill(controller.changed.iter().copied());
                }
                copy(list.as_bytes(), offset, piece);
            }
            _ => {}
        }
    }

    /// The bytes of a log page that exists.
    pub(super) fn log_size(&mut self, id: ControllerId, kind: Kind, page: u8, specific: u8) -> u64 {
        match page {
            log::id::DISCOVERY if kind == Kind::Discovery => self.discovery_size(id),
            log::id::SUPPORTED | log::id::FEATURE_EFFECTS => log::SUPPORTED_LEN as u64,
            log::id::COMMAND_EFFECTS | log::id::MANAGEMENT_EFFECTS => log::EFFECTS_LEN as u64,
            // The one entry that is kept.
            log::id::ERROR => size_of::<log::ErrorEntry>() as u64,
            log::id::CHANGED_NAMESPACES => size_of::<ChangedNamespaces>() as u64,
            log::id::ANA => self.ana_size(id, specific) as u64,
            log::id::RESERVATION_NOTIFICATION => size_of::<NoticePage>() as u64,
            _ => size_of::<Smart>() as u64,
        }
    }
}

/// Copies the part of a structure that a piece of its bytes from `offset` on has.
pub(super) fn copy(structure: &[u8], offset: u64, piece: &mut [u8]) {
    copy_at(structure, 0, offset, piece);
}

/// The same for a structure that begins at `at`.
pub(super) fn copy_at(structure: &[u8], at: u64, offset: u64, piece: &mut [u8]) {
    let (skip, gap) = (offset.saturating_sub(at), at.saturating_sub(offset));
    let structure = usize::try_from(skip).ok().and_then(|skip| structure.get(skip..)).unwrap_or_default();
    let piece = usize::try_from(gap).ok().and_then(|gap| piece.get_mut(gap..)).unwrap_or_default();
    for (into, from) in piece.iter_mut().zip(structure) {
        *into = *from;
    }
}
