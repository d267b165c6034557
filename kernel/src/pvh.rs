//! What the monitor hands over: the command line, the memory map, modules.
//!
//! The structures are PVH's (Xen's docs/misc/pvh.pandoc, "direct boot ABI"). A monitor may put them
//! anywhere below 4 GiB, also where there is no RAM: QEMU's microvm leaves them in the area of its
//! firmware. The kernel later maps RAM only. So all is copied here, into room of a fixed size; what
//! has no room is left out, and [`StartData::complain`] says so. The files of modules stay where
//! they are, in RAM, and [`StartData::reserved`] names them.
#![expect(unsafe_code, reason = "structures that the monitor left in memory")]

use core::ops::Deref;

use spin::Once;

use crate::region::{PAGE, Region};

/// What the boot page tables map.
const REACH: u64 = 4 << 30;
/// The longest command line.
const MOST_TEXT: usize = 4096;
/// The most modules, and the longest command line of each.
const MOST_MODULES: usize = 8;
const MOST_MODULE_TEXT: usize = 256;
/// The most regions of RAM; monitors report fewer.
const MOST_REGIONS: usize = 16;
/// How many entries of the memory map are read.
const MOST_ENTRIES: u32 = 256;

/// PVH's `hvm_start_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;
const _: () = assert!(size_of::<StartInfo>() == 56);

/// PVH's `hvm_modlist_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ModuleEntry {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// PVH's `hvm_memmap_table_entry`; types as in ACPI's E820.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryEntry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

const KIND_RAM: u32 = 1;

/// Why the kernel cannot boot with this start info.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadStartInfo {
    /// Its magic number is wrong: the kernel was not started by PVH.
    Magic,
    /// It has no memory map (start info of version 0).
    NoMemoryMap,
}

/// A file that the monitor loaded beside the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The file's bytes. They lie in RAM, so devices can reach them.
    pub data: &'static [u8],
    /// The module's own command line.
    pub command_line: &'static str,
}

/// A text that was copied.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const EMPTY: Text<N> = Text { bytes: [0; N], len: 0 };

    /// Copies the C string at `address`, 0 for none. One that does not fit is cut before a word,
    /// and one that is not UTF-8 before the first wrong byte. Returns whether it is whole.
    ///
    /// # Safety
    ///
    /// The first 4 GiB are mapped where they lie.
    unsafe fn copy(&mut self, address: u64) -> bool {
        self.len = 0;
        if address == 0 {
            return true;
        }
        let mut ends = false;
        for at in address..REACH.min(address.saturating_add(N as u64 + 1)) {
            // SAFETY: the caller's promise; the address is not 0.
            let byte = unsafe { (at as *const u8).read() };
            if byte == 0 {
                ends = true;
                break;
            }
            if self.len == N {
                break;
            }
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        if !ends {
            let words = self.bytes[..self.len].iter().rposition(|byte| *byte == b' ');
            self.len = words.unwrap_or(0);
        }
        let valid = match core::str::from_utf8(&self.bytes[..self.len]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let is_whole = ends && valid == self.len;
        self.len = valid;
        is_whole
    }

    fn get(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

/// A module, with a copy of what the monitor's list says of it.
struct Listed {
    data: Region,
    text: Text<MOST_MODULE_TEXT>,
}

/// The copies that stay.
struct Handed {
    command_line: Text<MOST_TEXT>,
    modules: [Listed; MOST_MODULES],
    len: usize,
    /// Modules that are not among these.
    ignored: u32,
}

static HANDED: Once<Handed> = Once::new();

fn listed() -> &'static [Listed] {
    HANDED.get().map_or(&[], |handed| &handed.modules[..handed.len])
}

/// How many files the monitor loaded that are not among [`modules`]: they do not lie in RAM, or are
/// too many.
fn ignored_modules() -> usize {
    HANDED.get().map_or(0, |handed| handed.ignored as usize)
}

/// The files that the monitor loaded beside the kernel, in the monitor's order.
pub fn modules() -> impl ExactSizeIterator<Item = Module> {
    listed().iter().map(|listed| {
        let Region { start, len } = listed.data;
        // SAFETY: the monitor put the module there, all of it lies in RAM, and its memory was
        // reserved before anything was allocated (`StartData::reserved`).
        let data = unsafe { core::slice::from_raw_parts(start as *const u8, len as usize) };
        Module { data, command_line: listed.text.get() }
    })
}

/// The first of [`modules`], if the monitor loaded one. An error says that it has not arrived: an
/// image that went on without it would serve peers that the file shuts out.
pub fn first_module() -> Result<Option<Module>, &'static str> {
    match (modules().next(), ignored_modules()) {
        (None, 1..) => Err("it has not reached the machine's RAM"),
        (module, _) => Ok(module),
    }
}

/// Some regions of memory.
#[derive(Clone, Copy)]
pub(crate) struct Regions {
    all: [Region; MOST_REGIONS],
    len: usize,
}

impl Deref for Regions {
    type Target = [Region];

    fn deref(&self) -> &[Region] {
        &self.all[..self.len]
    }
}

impl Regions {
    /// Adds a region; false if there is no room for it.
    fn push(&mut self, region: Region) -> bool {
        let place = self.all.get_mut(self.len);
        let has_room = place.is_some();
        if let Some(place) = place {
            *place = region;
            self.len += 1;
        }
        has_room
    }
}

/// The start info's content.
pub(crate) struct StartData {
    ram: Regions,
    rsdp: u64,
    /// What was left out.
    is_command_line_cut: bool,
    ignored_regions: u32,
    cut_texts: u32,
}

impl StartData {
    /// The kernel's command line.
    pub(crate) fn command_line(&self) -> &'static str {
        HANDED.get().map_or("", |handed| handed.command_line.get())
    }

    /// The regions of RAM, page-aligned, in the monitor's order.
    pub(crate) fn ram(&self) -> &Regions {
        &self.ram
    }

    /// The address of ACPI's root pointer (RSDP), or 0.
    pub(crate) fn rsdp(&self) -> u64 {
        self.rsdp
    }

    /// The RAM that holds what the monitor left, and must never be allocated.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = Region> {
        listed().iter().map(|listed| listed.data)
    }

    /// Says what was left out.
    pub(crate) fn complain(&self) {
        if self.is_command_line_cut {
            log::warn!(
                "the end of the command line is ignored: it is no UTF-8, or has more than {MOST_TEXT} bytes"
            );
        }
        if self.ignored_regions > 0 {
            log::warn!(
                "{} regions of RAM are not used: the kernel has room for {MOST_REGIONS}",
                self.ignored_regions
            );
        }
        let ignored = ignored_modules();
        if ignored > 0 {
            log::warn!(
                "{ignored} modules are ignored: they do not lie in RAM, or are more than {MOST_MODULES}"
            );
        }
        if self.cut_texts > 0 {
            log::warn!(
                "the ends of {} modules' command lines are ignored: they are no UTF-8, or have more than \
                 {MOST_MODULE_TEXT} bytes",
                self.cut_texts
            );
        }
    }
}

/// # Safety
///
/// `info` is 0 or what the monitor left in EBX, the structures that it leads to are intact, and the
/// first 4 GiB are mapped where they lie.
pub(crate) unsafe fn read(info: u64) -> Result<StartData, BadStartInfo> {
    // SAFETY: the caller's promise, here and below.
    let info: StartInfo = unsafe { structure(info, 0) }.ok_or(BadStartInfo::Magic)?;
    if info.magic != MAGIC {
        return Err(BadStartInfo::Magic);
    }
    if info.version == 0 || info.memory_map == 0 {
        return Err(BadStartInfo::NoMemoryMap);
    }
    let nothing = Region { start: 0, len: 0 };
    let mut data = StartData {
        ram: Regions { all: [nothing; MOST_REGIONS], len: 0 },
        rsdp: info.rsdp,
        is_command_line_cut: false,
        ignored_regions: info.memory_map_entries.saturating_sub(MOST_ENTRIES),
        cut_texts: 0,
    };
    for index in 0..info.memory_map_entries.min(MOST_ENTRIES) {
        // SAFETY: as above.
        let entry: Option<MemoryEntry> = unsafe { structure(info.memory_map, index) };
        if let Some(region) = entry.filter(|entry| entry.kind == KIND_RAM).and_then(|entry| entry.pages())
            && !data.ram.push(region)
        {
            data.ignored_regions += 1;
        }
    }
    HANDED.call_once(|| {
        let listed =
            [const { Listed { data: Region { start: 0, len: 0 }, text: Text::EMPTY } }; MOST_MODULES];
        let mut handed = Handed { command_line: Text::EMPTY, modules: listed, len: 0, ignored: 0 };
        // SAFETY: as above.
        data.is_command_line_cut = !unsafe { handed.command_line.copy(info.command_line) };
        for index in 0..info.modules.min(MOST_MODULES as u32) {
            // SAFETY: as above.
            let Some(entry) = (unsafe { structure::<ModuleEntry>(info.module_list, index) }) else { break };
            let file = Region { start: entry.address, len: entry.size };
            // The first page is not mapped.
            let is_in_ram = entry.address >= PAGE as u64
                && entry.address.checked_add(entry.size).is_some()
                && data.ram.iter().any(|ram| ram.holds(&file));
            if is_in_ram {
                let place = &mut handed.modules[handed.len];
                place.data = file;
                // SAFETY: as above.
                data.cut_texts += u32::from(!unsafe { place.text.copy(entry.command_line) });
                handed.len += 1;
            }
        }
        handed.ignored = info.modules - handed.len as u32;
        handed
    });
    Ok(data)
}

impl MemoryEntry {
    /// The whole pages in it.
    fn pages(&self) -> Option<Region> {
        let page = PAGE as u64;
        let start = self.address.checked_next_multiple_of(page)?;
        let end = self.address.checked_add(self.size)? & !(page - 1);
        (end > start).then(|| Region { start, len: end - start })
    }
}

/// A copy of entry `index` of the list at `address`. `None` if that is 0, or out of reach.
///
/// # Safety
///
/// The first 4 GiB are mapped where they lie, and `T` may have any bytes.
unsafe fn structure<T: Copy>(address: u64, index: u32) -> Option<T> {
    let len = size_of::<T>() as u64;
    let start = address.checked_add(u64::from(index) * len).filter(|_| address != 0)?;
    let end = start.checked_add(len)?;
    // SAFETY: the caller's promise.
    (end <= REACH).then(|| unsafe { (start as *const T).read_unaligned() })
}
