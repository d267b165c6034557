//! Local memory regions (dat_lmr_create, dat_lmr_query, dat_lmr_free).

use alloc::sync::Arc;

use platform::DmaBuffer;
use privileged_api as it;

use crate::attr::LmrParam;
use crate::error::{MODEL, as_argument, handle, of, parameter};
use crate::flags::{MemPriv, MemType, VaType};
use crate::handle::{LmrHandle, PzHandle};
use crate::ia::{Ia, Inner};
use crate::ret::{Result, Subtype};
use crate::segment::{LmrContext, RmrContext};

/// The memory of a region.
#[doc(alias = "DAT_REGION_DESCRIPTION")]
#[derive(Clone, Copy)]
pub enum RegionDescription<'a> {
    /// An owned buffer, from `offset` on ([`MemType::Virtual`]). The region keeps the buffer
    /// allocated.
    #[doc(alias = "for_va")]
    Buffer {
        /// The buffer.
        buffer: &'a Arc<DmaBuffer>,
        /// The region's first byte.
        offset: usize,
    },
    /// Constant memory, which no request may write ([`MemType::Virtual`]).
    Static(&'static [u8]),
    /// The memory of another region of this IA, from its first byte on ([`MemType::Lmr`]).
    #[doc(alias = "for_lmr_handle")]
    Lmr(LmrHandle),
}

impl<'a> RegionDescription<'a> {
    /// A whole buffer.
    pub const fn buffer(buffer: &'a Arc<DmaBuffer>) -> RegionDescription<'a> {
        RegionDescription::Buffer { buffer, offset: 0 }
    }
}

/// What dat_lmr_create returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lmr {
    /// The region.
    pub lmr_handle: LmrHandle,
    /// Its name in local segments.
    pub lmr_context: LmrContext,
    /// The region's context in requests of peers, if they have privileges.
    pub rmr_context: Option<RmrContext>,
    /// How many bytes are registered.
    pub registered_size: u64,
    /// The address of the first registered byte.
    pub registered_address: u64,
}

/// What a region was made of.
#[derive(Clone)]
pub(crate) enum Memory {
    Buffer { buffer: Arc<DmaBuffer>, offset: usize },
    Static(&'static [u8]),
}

/// A region, as DAT keeps it.
pub(crate) struct Region {
    memory: Memory,
    mem_type: MemType,
}

/// IT-API's privileges.
pub(crate) fn privileges(privs: MemPriv) -> it::MemPriv {
    let mut inner = it::MemPriv::empty();
    inner.set(it::MemPriv::LOCAL_READ, privs.contains(MemPriv::LOCAL_READ));
    inner.set(it::MemPriv::LOCAL_WRITE, privs.contains(MemPriv::LOCAL_WRITE));
    inner.set(it::MemPriv::REMOTE_READ, privs.contains(MemPriv::REMOTE_READ));
    inner.set(it::MemPriv::REMOTE_WRITE, privs.contains(MemPriv::REMOTE_WRITE));
    inner.set(it::MemPriv::ATOMIC_ALONE, privs.contains(MemPriv::IB_REMOTE_ATOMIC));
    inner
}

/// DAT's privileges.
pub(crate) fn privileges_of(inner: it::MemPriv) -> MemPriv {
    let mut privs = MemPriv::NONE;
    privs.set(MemPriv::LOCAL_READ, inner.contains(it::MemPriv::LOCAL_READ));
    privs.set(MemPriv::LOCAL_WRITE, inner.contains(it::MemPriv::LOCAL_WRITE));
    privs.set(MemPriv::REMOTE_READ, inner.contains(it::MemPriv::REMOTE_READ));
    privs.set(MemPriv::REMOTE_WRITE, inner.contains(it::MemPriv::REMOTE_WRITE));
    privs.set(MemPriv::IB_REMOTE_ATOMIC, inner.contains(it::MemPriv::ATOMIC_ALONE));
    privs
}

impl Inner {
    /// IT-API's mode of addresses.
    pub(crate) fn mode(&self, va_type: VaType) -> Result<it::AddrMode> {
        match va_type {
            VaType::Va => Ok(it::AddrMode::Absolute),
            VaType::Zb if self.offers.zero_based() => Ok(it::AddrMode::Relative),
            VaType::Zb => Err(MODEL),
        }
    }

    /// Fails for privileges that cannot be granted.
    pub(crate) fn check_privileges(&self, privs: MemPriv, argument: Subtype) -> Result<()> {
        if MemPriv::from_bits(privs.bits()).is_none() {
            return Err(parameter(argument));
        }
        if privs.contains(MemPriv::IB_REMOTE_ATOMIC) && !self.offers.atomics() {
            return Err(MODEL);
        }
        Ok(())
    }
}

impl Ia {
    /// Registers memory. See [`Lmr`] for what it returns.
    ///
    /// A region needs `LOCAL_READ`, and with `REMOTE_WRITE` or `IB_REMOTE_ATOMIC` also
    /// `LOCAL_WRITE`. Atomics of peers need `IB_REMOTE_ATOMIC` and nothing else. Addresses in a
    /// zero-based region begin at 0.
    ///
    /// Errors: `InvalidHandle` (PZ, or the LMR whose memory it shares), `InvalidParameter` (memory
    /// or a length outside the buffer; privileges), `ModelNotSupported` (zero-based, or atomics, if
    /// the adapter lacks them), `InsufficientResources`, `InvalidState` (in an upcall). Blocks for
    /// the device. Not for upcalls. Thread-safe. dat_lmr_create.
    #[doc(alias = "dat_lmr_create")]
    pub fn lmr_create(
        &self,
        region_description: RegionDescription<'_>,
        length: u64,
        pz: PzHandle,
        privileges: MemPriv,
        va_type: VaType,
    ) -> Result<Lmr> {
        let inner = &self.inner;
        inner.live()?;
        inner.check_privileges(privileges, Subtype::InvalidArg6)?;
        let mode = inner.mode(va_type)?;
        let (memory, mem_type) = match region_description {
            RegionDescription::Buffer { buffer, offset } => {
                (Memory::Buffer { buffer: buffer.clone(), offset }, MemType::Virtual)
            }
            RegionDescription::Static(bytes) => (Memory::Static(bytes), MemType::Virtual),
            RegionDescription::Lmr(lmr) => {
                let region = inner.lmrs.get(lmr).ok_or(handle(Subtype::InvalidHandleLmr))?;
                if length > self.it.lmr_query(lmr.inner(), it::LmrParamMask::ALL)?.length {
                    return Err(parameter(Subtype::InvalidArg3));
                }
                (region.memory.clone(), MemType::Lmr)
            }
        };
        let description = match &memory {
            Memory::Buffer { buffer, offset } => it::LmrMemory::Buffer { buffer, offset: *offset },
            Memory::Static(bytes) => it::LmrMemory::Static(bytes),
        };
        let privs = self::privileges(privileges);
        let made = self.it.lmr_create(pz.inner(), description, length, mode, privs, it::LmrFlags::empty(), 0);
        let (lmr, context) = made.map_err(|error| match error {
            it::Error::InvalidPrivs | it::Error::Access => parameter(Subtype::InvalidArg6),
            it::Error::ResourceLmrLength => parameter(Subtype::InvalidArg3),
            other => as_argument(Subtype::InvalidArg3)(other),
        })?;
        let recorded = Inner::shared(Region { memory, mem_type })
            .and_then(|region| inner.lmrs.insert(LmrHandle::of(lmr), region))
            .and_then(|()| Ok(self.it.lmr_query(lmr, it::LmrParamMask::ALL)?));
        let param = recorded.inspect_err(|_| {
            inner.lmrs.remove(LmrHandle::of(lmr));
            let _ = self.it.lmr_free(lmr);
        })?;
        Ok(Lmr {
            lmr_handle: LmrHandle::of(lmr),
            lmr_context: LmrContext(lmr),
            rmr_context: context.map(|context| context.0),
            registered_size: param.actual_length,
            registered_address: param.actual_addr as u64,
        })
    }

    /// Returns a region's parameters.
    ///
    /// Errors: `InvalidHandle`. Does not block. May be called in upcalls. Thread-safe.
    /// dat_lmr_query.
    #[doc(alias = "dat_lmr_query")]
    pub fn lmr_query(&self, lmr: LmrHandle) -> Result<LmrParam> {
        let param = self.it.lmr_query(lmr.inner(), it::LmrParamMask::ALL)?;
        let region = self.inner.lmrs.get(lmr);
        Ok(LmrParam {
            ia_handle: self.handle(),
            mem_type: region.map_or(MemType::Virtual, |region| region.mem_type),
            address: param.addr,
            length: param.length,
            pz_handle: PzHandle::of(param.pz),
            mem_priv: privileges_of(param.privs),
            va_type: match param.addr_mode {
                it::AddrMode::Absolute => VaType::Va,
                it::AddrMode::Relative => VaType::Zb,
            },
            lmr_context: LmrContext(lmr.inner()),
            rmr_context: param.rmr_context.map(|context| context.0),
            registered_size: param.actual_length,
            registered_address: param.actual_addr as u64,
        })
    }

    /// Frees a region. After the return the device does not access its memory.
    ///
    /// Errors: `InvalidHandle`, `InvalidState` (subtype `InvalidStateLmrInUse`: a remote memory
    /// region is bound to it). Blocks for the device. May be called in upcalls. Thread-safe: a call
    /// that races with it succeeds or finds the handle invalid. dat_lmr_free.
    #[doc(alias = "dat_lmr_free")]
    pub fn lmr_free(&self, lmr: LmrHandle) -> Result<()> {
        self.it.lmr_free(lmr.inner()).map_err(of)?;
        self.inner.lmrs.remove(lmr);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_privilege_is_the_other_faces() {
        use it::MemPriv as It;
        for (privs, inner) in [
            (MemPriv::LOCAL_READ, It::LOCAL_READ),
            (MemPriv::LOCAL_WRITE, It::LOCAL_WRITE),
            (MemPriv::REMOTE_READ, It::REMOTE_READ),
            (MemPriv::REMOTE_WRITE, It::REMOTE_WRITE),
            (MemPriv::IB_REMOTE_ATOMIC, It::ATOMIC_ALONE),
            (MemPriv::NONE, It::empty()),
            (MemPriv::ALL, It::LOCAL | It::REMOTE),
        ] {
            assert_eq!((privileges(privs), privileges_of(inner)), (inner, privs));
        }
    }
}
