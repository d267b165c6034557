//! Posts. C's segments are copied: they name a region by 32 bits, which are the number of its cell.
#![expect(unsafe_code, reason = "lists of segments are C's, by pointers")]

use dat::{
    CompletionFlags, EpHandle, Ia, LmrContext, LmrHandle, LmrTriplet, Result, RmrTriplet, SrqHandle, Subtype,
};

use crate::abi::{Count, Handle, Return, Triplet};
use crate::call::{call, count, parameter, required};
use crate::{cells, opened};

const INVALID: Subtype = Subtype::InvalidHandleEp;
/// Segments of a request at most: those of the device.
const MOST: usize = 32;

/// A piece of local memory.
#[inline]
pub(crate) fn local(piece: Triplet) -> LmrTriplet {
    let context = LmrContext::of(LmrHandle::from_raw(cells::numbered(piece.context)));
    LmrTriplet::new(context, piece.virtual_address, piece.segment_length.into())
}

/// A piece of the peer's memory.
///
/// # Safety
///
/// The pointer is null or to a triplet.
#[inline]
pub(crate) unsafe fn remote(piece: *const Triplet, argument: Subtype) -> Result<RmrTriplet> {
    required(piece.cast_mut(), argument)?;
    // SAFETY: the caller's.
    let Triplet { virtual_address, segment_length, context } = unsafe { *piece };
    Ok(RmrTriplet {
        rmr_context: context,
        target_address: virtual_address,
        segment_length: segment_length.into(),
    })
}

/// Calls `post` with the segments of C.
///
/// # Safety
///
/// The pointer is to as many segments.
#[inline]
pub(crate) unsafe fn with_segments<R>(
    number: Count,
    iov: *const Triplet,
    post: impl FnOnce(&[LmrTriplet]) -> Result<R>,
) -> Result<R> {
    let number = count(number, Subtype::InvalidArg2)?;
    if number > 0 {
        required(iov.cast_mut(), Subtype::InvalidArg3)?;
    }
    // SAFETY: the caller's.
    let at = |index: usize| local(unsafe { *iov.add(index) });
    match number {
        0 => post(&[]),
        1 => post(&[at(0)]),
        2..=MOST => {
            let mut all = [LmrTriplet::default(); MOST];
            for (index, place) in all.iter_mut().enumerate().take(number) {
                *place = at(index);
            }
            post(&all[..number])
        }
        _ => Err(parameter(Subtype::InvalidArg2)),
    }
}

/// Posts to the endpoint of a handle.
///
/// # Safety
///
/// As [`with_segments`].
#[inline]
pub(crate) unsafe fn post(
    ep: Handle,
    number: Count,
    iov: *const Triplet,
    flags: u32,
    post: impl FnOnce(&Ia, EpHandle, &[LmrTriplet], CompletionFlags) -> Result<()>,
) -> Result<()> {
    let flags = CompletionFlags::from_bits_retain(flags);
    opened::with(ep, INVALID, |opened, word| {
        // SAFETY: the caller's.
        unsafe { with_segments(number, iov, |iov| post(&opened.ia, EpHandle::from_raw(word), iov, flags)) }
    })
}

/// `dat_ep_post_send`.
pub(crate) unsafe extern "C" fn send(
    ep: Handle,
    number: Count,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> Return {
    // SAFETY: see the module `calls`.
    call(|| unsafe {
        post(ep, number, iov, flags, |ia, ep, iov, flags| ia.ep_post_send(ep, iov, cookie, flags))
    })
}

/// `dat_ep_post_recv`.
pub(crate) unsafe extern "C" fn recv(
    ep: Handle,
    number: Count,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> Return {
    // SAFETY: see the module `calls`.
    call(|| unsafe {
        post(ep, number, iov, flags, |ia, ep, iov, flags| ia.ep_post_recv(ep, iov, cookie, flags))
    })
}

/// `dat_ep_post_rdma_read`.
pub(crate) unsafe extern "C" fn rdma_read(
    ep: Handle,
    number: Count,
    iov: *const Triplet,
    cookie: u64,
    from: *const Triplet,
    flags: u32,
) -> Return {
    // SAFETY: see the module `calls`.
    call(|| unsafe {
        let from = remote(from, Subtype::InvalidArg5)?;
        post(ep, number, iov, flags, |ia, ep, iov, flags| ia.ep_post_rdma_read(ep, iov, cookie, &from, flags))
    })
}

/// `dat_ep_post_rdma_write`.
pub(crate) unsafe extern "C" fn rdma_write(
    ep: Handle,
    number: Count,
    iov: *const Triplet,
    cookie: u64,
    to: *const Triplet,
    flags: u32,
) -> Return {
    // SAFETY: see the module `calls`.
    call(|| unsafe {
        let to = remote(to, Subtype::InvalidArg5)?;
        post(ep, number, iov, flags, |ia, ep, iov, flags| ia.ep_post_rdma_write(ep, iov, cookie, &to, flags))
    })
}

/// `dat_srq_post_recv`.
pub(crate) unsafe extern "C" fn srq_recv(
    srq: Handle,
    number: Count,
    iov: *const Triplet,
    cookie: u64,
) -> Return {
    call(|| {
        opened::with(srq, Subtype::InvalidHandleSrq, |opened, word| {
            let srq = SrqHandle::from_raw(word);
            // SAFETY: see the module `calls`.
            unsafe { with_segments(number, iov, |iov| opened.ia.srq_post_recv(srq, iov, cookie)) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_segments_than_the_device_takes_are_refused() {
        let list = [Triplet { virtual_address: 1, segment_length: 2, context: 0 }; MOST + 1];
        // SAFETY: the list is as long.
        let post = |number: Count| unsafe { with_segments(number, list.as_ptr(), |iov| Ok(iov.len())) };
        assert_eq!([0, 1, 2, MOST as Count].map(post), [Ok(0), Ok(1), Ok(2), Ok(MOST)]);
        for number in [-1, MOST as Count + 1, Count::MAX] {
            assert_eq!(post(number), Err(parameter(Subtype::InvalidArg2)));
        }
        // SAFETY: a null pointer is refused.
        let nothing = unsafe { with_segments(1, std::ptr::null(), |iov| Ok(iov.len())) };
        assert_eq!(nothing, Err(parameter(Subtype::InvalidArg3)));
    }
}
