//! Endpoints that were looked up once, and batches of requests. Extensions of the API for the data
//! path.
//!
//! Nothing here allocates, waits or formats. A batch has the endpoint's send queue for itself, but
//! holds no lock: so the consumer's routine may take any time, make any call and panic.

use core::hint::cold_path;
use core::slice::from_ref;

use kernel_agent::{Direction, NoBatch, PostError, RemoteWords, SendBatch, SendSlot};

use super::post::{Kind, Packed, Read, Send, Write, post_single, remote};
use crate::address::{RdmaAddr, RmrContext};
use crate::flags::DtoFlags;
use crate::handle::EpHandle;
use crate::ia::{Core, Ia};
use crate::iobl::LmrTriplet;
use crate::status::{Error, Result};
use rdma::Keys;

/// A connected endpoint that was looked up once: its posts save the look-up of the handle. An
/// extension of the API.
///
/// It borrows the IA and not the endpoint. So it hinders neither [`Ia::ep_free`] nor
/// [`Ia::ep_reset`]: once the endpoint is freed, posts fail with `InvalidEp`, also if another
/// endpoint has its place by then, and after a reset they go on with the new connection. It can be
/// copied, and used by several threads at once.
///
/// ```
/// use ferrovia_privileged_api::{DtoFlags, EpHandle, Ia, LmrTriplet, RdmaAddr, Result, RmrContext};
///
/// fn write_all(ia: &Ia, ep: EpHandle, pieces: &[(LmrTriplet, RdmaAddr)], to: RmrContext) -> Result<()> {
///     let ep = ia.ep_ref(ep)?;
///     for (piece, at) in pieces {
///         ep.post_rdma_write(&[*piece], 0, DtoFlags::COMPLETION, *at, to)?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy)]
pub struct EpRef<'a> {
    ia: &'a Ia,
    /// Those of the IA.
    keys: &'a Keys,
    slot: &'a SendSlot,
    ep: EpHandle,
    /// The handle for the posts of one segment of each [`Direction`], or [`NONE`] if the endpoint
    /// can have no such requests. The limits of an endpoint never change.
    singles: [u64; 3],
}

/// The null handle, which no slot has.
const NONE: u64 = EpHandle::NULL.as_raw();

impl Ia {
    /// Looks a connected endpoint up, for posts that need not look it up again. An extension of the
    /// API.
    ///
    /// Errors: `InvalidEp`, `InvalidEpType` (a datagram endpoint), `InvalidIa`, `IaCatastrophe`.
    /// Does not block. May be called in callbacks. Thread-safe.
    pub fn ep_ref(&self, ep: EpHandle) -> Result<EpRef<'_>> {
        let core = self.live()?;
        let limits = core.rc(ep)?.limits;
        let slot = core.ep_slots.get(ep.as_raw()).ok_or(Error::InvalidEp)?;
        let mut singles = [NONE; 3];
        for direction in Direction::ALL {
            if limits.segments.of(direction) > 0 {
                singles[direction as usize] = ep.as_raw();
            }
        }
        Ok(EpRef { ia: self, keys: &self.core().keys, slot, ep, singles })
    }

    /// Posts a batch of requests to an endpoint: see [`EpRef::post_batch`].
    ///
    /// Errors: those of [`Ia::ep_ref`] and of [`EpRef::post_batch`]. Does not block. May be called
    /// in callbacks. Thread-safe.
    #[inline]
    pub fn post_batch<R>(&self, ep: EpHandle, write: impl FnOnce(&mut Batch<'_>) -> Result<R>) -> Result<R> {
        self.ep_ref(ep)?.post_batch(write)
    }
}

impl EpRef<'_> {
    /// The endpoint's handle.
    pub fn handle(&self) -> EpHandle {
        self.ep
    }

    #[inline(always)]
    fn post<K: Kind>(
        &self,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
    ) -> Result<()> {
        let handle = self.singles[K::DIRECTION as usize];
        // Two calls: in the first one the number of segments is known and takes no register.
        let [one] = segments else {
            return self.post_slowly::<K>(Packed::new(flags, remote), segments, cookie);
        };
        match post_single::<K>(self.slot, self.keys, handle, |_| true, one, cookie, flags, remote) {
            Some(()) => Ok(()),
            None => self.post_one_slowly::<K>(Packed::new(flags, remote), one, cookie),
        }
    }

    /// Takes the endpoint by reference, which saves the fast path registers.
    #[cold]
    #[inline(never)]
    fn post_slowly<K: Kind>(&self, packed: Packed, segments: &[LmrTriplet], cookie: u64) -> Result<()> {
        self.ia.post_any::<K>(self.ep, packed, segments, cookie)
    }

    /// As [`EpRef::post_slowly`], for one segment.
    #[cold]
    #[inline(never)]
    fn post_one_slowly<K: Kind>(&self, packed: Packed, segment: &LmrTriplet, cookie: u64) -> Result<()> {
        self.ia.post_any::<K>(self.ep, packed, from_ref(segment), cookie)
    }

    /// Posts a Send. As [`Ia::post_send`], with the same errors.
    #[inline]
    pub fn post_send(&self, local_segments: &[LmrTriplet], cookie: u64, dto_flags: DtoFlags) -> Result<()> {
        self.post::<Send>(local_segments, cookie, dto_flags, RemoteWords::default())
    }

    /// Posts an RDMA Write. As [`Ia::post_rdma_write`], with the same errors.
    #[inline]
    pub fn post_rdma_write(
        &self,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        self.post::<Write>(local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
    }

    /// Posts an RDMA Read. As [`Ia::post_rdma_read`], with the same errors.
    #[inline]
    pub fn post_rdma_read(
        &self,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        self.post::<Read>(local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
    }

    /// Lets `write` write requests, and then posts them all, in order, with one doorbell. An
    /// extension of the API.
    ///
    /// The requests are posted when `write` returns `Ok`. If it returns an error, which this call
    /// then returns, or panics, none is posted, and the endpoint takes posts as before.
    ///
    /// Until `write` returns, the batch has the endpoint's send queue for itself: other posts to
    /// it, by any thread, fail with `EpBusy`, and so do links, unlinks and another batch. No lock
    /// is held: `write` may make any call, and no call waits for it. If the endpoint is freed or
    /// reset meanwhile, this call fails, and none of the requests is posted. If it is disconnected
    /// meanwhile, all are flushed, as after a post.
    ///
    /// ```
    /// use ferrovia_privileged_api::{DtoFlags, EpRef, LmrTriplet, RdmaAddr, Result, RmrContext};
    ///
    /// fn write_all(ep: EpRef<'_>, pieces: &[(LmrTriplet, RdmaAddr)], to: RmrContext) -> Result<()> {
    ///     ep.post_batch(|batch| {
    ///         for (cookie, (piece, at)) in (0..).zip(pieces) {
    ///             batch.post_rdma_write(&[*piece], cookie, DtoFlags::COMPLETION, *at, to)?;
    ///         }
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// Errors: those of `write`; `InvalidEp`, `InvalidEpState`, `EpBusy`, `InvalidIa`,
    /// `IaCatastrophe`. Does not block. May be called in callbacks. Thread-safe.
    #[inline]
    pub fn post_batch<R>(&self, write: impl FnOnce(&mut Batch<'_>) -> Result<R>) -> Result<R> {
        let posted = self.slot.batch(self.ep.as_raw(), |inner| {
            let mut batch = Batch { core: self.ia.core(), inner };
            let result = write(&mut batch).map_err(Unwritten::Refused)?;
            Ok((result, batch.inner.written()))
        });
        posted.map_err(|why| self.why_no_batch(why))
    }

    #[cold]
    fn why_no_batch(&self, why: Unwritten) -> Error {
        match why {
            Unwritten::Refused(error) => error,
            Unwritten::None(NoBatch::Closed) => self.no_batch(),
            Unwritten::None(NoBatch::Lost) => self.batch_lost(),
        }
    }

    /// Why no batch can begin.
    fn no_batch(&self) -> Error {
        let why = self.ia.live().and_then(|core| {
            let ep = core.rc(self.ep)?;
            ep.takes_requests()?;
            // Only a queue pair is in the slot, where a batch is written.
            Ok(core.not_posted_to(self.ep, ep.qp()?.why_no_batch()))
        });
        why.unwrap_or_else(|error| error)
    }

    /// Why the requests of a batch were not posted.
    fn batch_lost(&self) -> Error {
        let looked = self.ia.live().and_then(|core| core.rc(self.ep)?.takes_requests());
        // If the endpoint takes requests, it was reset during the batch, and connected again.
        looked.err().unwrap_or(Error::InvalidEpState)
    }
}

/// Why the requests of a batch were not posted.
enum Unwritten {
    /// The consumer's routine returned this error.
    Refused(Error),
    None(NoBatch),
}

impl From<NoBatch> for Unwritten {
    fn from(why: NoBatch) -> Unwritten {
        Unwritten::None(why)
    }
}

/// The requests of a batch: see [`EpRef::post_batch`].
///
/// A request that is refused is not part of the batch; those before it stay.
pub struct Batch<'a> {
    core: &'a Core,
    inner: SendBatch<'a>,
}

impl Batch<'_> {
    #[inline(always)]
    fn write<K: Kind>(
        &mut self,
        segments: &[LmrTriplet],
        cookie: u64,
        flags: DtoFlags,
        remote: RemoteWords,
    ) -> Result<()> {
        let core = self.core;
        // The flags first: they are often equal for all requests of a loop, and then looked up
        // before it.
        let transfer = K::transfer(cookie, flags, remote)?;
        if let [one] = segments
            && self.inner.write_single(&transfer, || core.keys.segment(one)).is_some()
        {
            return Ok(());
        }
        // Copies: if the batch itself were lent to a function, the compiler could not keep it in
        // registers.
        let mut inner = self.inner;
        let written = write_any::<K>(&mut inner, core, Packed::new(flags, remote), segments, cookie);
        self.inner = inner;
        if let Err(why) = written {
            cold_path();
            let full = matches!(why, PostError::QueueFull);
            let many = matches!(why, PostError::Segments);
            let flags = matches!(why, PostError::Kind);
            return Err(if full {
                Error::TooManyPosts
            } else if many {
                Error::InvalidNumSegments
            } else if flags {
                Error::InvalidDtoFlags
            } else {
                Error::InvalidLmr
            });
        }
        Ok(())
    }

    /// Adds a Send. As [`Ia::post_send`]; of its errors `InvalidDtoFlags`, `InvalidNumSegments`,
    /// `TooManyPosts`, `InvalidLmr`.
    #[inline(always)]
    pub fn post_send(
        &mut self,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
    ) -> Result<()> {
        self.write::<Send>(local_segments, cookie, dto_flags, RemoteWords::default())
    }

    /// Adds an RDMA Write. As [`Ia::post_rdma_write`]; errors as of [`Batch::post_send`].
    #[inline(always)]
    pub fn post_rdma_write(
        &mut self,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        self.write::<Write>(local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
    }

    /// Adds an RDMA Read. As [`Ia::post_rdma_read`]; errors as of [`Batch::post_send`].
    #[inline(always)]
    pub fn post_rdma_read(
        &mut self,
        local_segments: &[LmrTriplet],
        cookie: u64,
        dto_flags: DtoFlags,
        rdma_addr: RdmaAddr,
        rmr_context: RmrContext,
    ) -> Result<()> {
        self.write::<Read>(local_segments, cookie, dto_flags, remote(rdma_addr, rmr_context))
    }
}

/// Writes any request, or finds out why it cannot be written.
#[inline(never)]
fn write_any<K: Kind>(
    batch: &mut SendBatch<'_>,
    core: &Core,
    packed: Packed,
    segments: &[LmrTriplet],
    cookie: u64,
) -> core::result::Result<(), PostError> {
    let (flags, remote) = packed.open();
    let Ok(transfer) = K::transfer(cookie, flags, remote) else { return Err(PostError::Kind) };
    batch.write(K::limit, &transfer, segments, |triplet| core.segment(triplet))
}
