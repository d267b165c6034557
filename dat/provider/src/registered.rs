//! The IAs of this process by their names, and what each name has for the life of the process:
//! `libdat2` may still read a table that it was given.
//!
//! Each line of `dat.conf` with this library is an IA with a NIC of its own.
//!
//! Locks: `NAMES`; `addresses`. Both are leaves.
#![expect(unsafe_code, reason = "a table of functions, and strings of C, which are constant")]

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::NamedAttr;
use crate::address;

/// Functions of the table.
pub(crate) const FUNCTIONS: usize = 79;

/// `DAT_PROVIDER`.
#[repr(C)]
pub(crate) struct Table {
    device_name: *const c_char,
    extension: *mut c_void,
    functions: [*const c_void; FUNCTIONS],
}

// SAFETY: it is constant, and so is the name.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

/// An IA by its name.
pub(crate) struct Registered {
    pub(crate) name: String,
    /// The link in `dat.conf`; empty: the one that the environment names.
    pub(crate) link: String,
    pub(crate) is_thread_safe: bool,
    pub(crate) table: Table,
    _name: CString,
    addresses: Mutex<Vec<(IpAddr, &'static [u8; address::SIZE])>>,
    named: OnceLock<NamedList>,
}

static NAMES: Mutex<Vec<&'static Registered>> = Mutex::new(Vec::new());

/// The IA of a name.
pub(crate) fn find(name: &str) -> Option<&'static Registered> {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.iter().find(|registered| registered.name == name).copied()
}

impl Registered {
    /// The IA's own address as C has it, in memory that stays.
    pub(crate) fn address(&self, of: IpAddr) -> &'static [u8; address::SIZE] {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = addresses.iter().find(|(known, _)| *known == of) {
            return known;
        }
        let kept: &'static _ = Box::leak(Box::new(address::to_c(of)));
        addresses.push((of, kept));
        kept
    }
}

/// The IA that `libdat2` loads the library for.
pub(crate) fn register(
    name: &str,
    link: &str,
    is_thread_safe: bool,
    functions: [*const c_void; FUNCTIONS],
) -> Option<&'static Registered> {
    if let Some(known) = find(name) {
        return Some(known);
    }
    let text = CString::new(name).ok()?;
    let table = Table { device_name: text.as_ptr(), extension: std::ptr::null_mut(), functions };
    let registered: &'static _ = Box::leak(Box::new(Registered {
        name: name.into(),
        link: link.into(),
        is_thread_safe,
        table,
        _name: text,
        addresses: Mutex::default(),
        named: OnceLock::new(),
    }));
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).push(registered);
    Some(registered)
}

struct NamedList(Vec<NamedAttr>);

// SAFETY: the strings are constants.
unsafe impl Send for NamedList {}
// SAFETY: as above.
unsafe impl Sync for NamedList {}

impl Registered {
    /// The named attributes of the provider, in memory that stays. `mtu` is what a packet carries.
    pub(crate) fn named_attributes(&self, of: &[dat::NamedAttr], mtu: u32) -> &[NamedAttr] {
        let list = self.named.get_or_init(|| {
            let given = of.iter().map(|attr| (attr.name, attr.value.to_owned()));
            // Programs of uDAPL ask for the first before they read.
            let own = [("DAT_IB_RDMA_READ", "TRUE".to_owned()), ("DAT_IB_TRANSPORT_MTU", mtu.to_string())];
            let text = |text: Vec<u8>| CString::new(text).unwrap_or_default().into_raw().cast_const();
            let all = given.chain(own);
            NamedList(
                all.map(|(name, value)| NamedAttr { name: text(name.into()), value: text(value.into()) })
                    .collect(),
            )
        });
        &list.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An IA whose functions nobody calls.
    pub(crate) fn made_up(name: &str) -> Option<&'static Registered> {
        register(name, "", false, [std::ptr::null(); FUNCTIONS])
    }

    #[test]
    fn the_table_has_the_size_of_the_headers() {
        assert_eq!(size_of::<Table>(), 81 * 8);
    }

    #[test]
    fn a_name_keeps_its_table() {
        let (first, again) = (made_up("one").expect("a name"), made_up("one").expect("a name"));
        assert!(std::ptr::eq(first, again) && std::ptr::eq(first, find("one").expect("it is there")));
        assert!(find("two").is_none());
    }
}
