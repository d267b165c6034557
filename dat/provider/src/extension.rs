//! The InfiniBand extensions. `dat_extension_op` of `libdat2` takes any arguments, and passes them
//! on as a `va_list`.
//!
//! On x86_64 that is a pointer to four words of the caller (System V ABI, 3.5.7): how far the
//! registers are read that were saved, where the arguments on the stack begin, and where the
//! registers were saved. Each argument here is a number or a pointer, and takes 8 bytes.
#![expect(unsafe_code, reason = "arguments of C are read where the ABI has them")]

use core::ffi::{c_int, c_void};

use dat::{AhHandle, CompletionFlags, EpHandle, IbAddrHandle, IbOp, LmrTriplet, Result, RmrTriplet, Subtype};

use crate::abi::{self, Handle, Return, Triplet};
use crate::call::{NOT_IMPLEMENTED, call, required};
use crate::calls::post::{local, post, remote};
use crate::{cells, opened};

/// Bytes of the general registers that are saved.
const SAVED: u32 = 48;
/// Frees what the resolution of a datagram endpoint left: here it leaves nothing.
const CM_FREE: u32 = 28;
/// Frees an address handle.
const AH_FREE: u32 = 29;

/// `va_list`.
#[repr(C)]
pub(crate) struct Arguments {
    gp_offset: u32,
    fp_offset: u32,
    overflow_arg_area: *mut c_void,
    reg_save_area: *mut c_void,
}

impl Arguments {
    /// The next argument.
    ///
    /// # Safety
    ///
    /// There is one more argument, of 8 bytes at most, which is not a floating-point number.
    unsafe fn next(&mut self) -> u64 {
        // SAFETY: the caller's: the registers that were saved, and the stack, have it.
        unsafe {
            if self.gp_offset < SAVED {
                let place = self.reg_save_area.byte_add(self.gp_offset as usize);
                self.gp_offset += 8;
                place.cast::<u64>().read()
            } else {
                let place = self.overflow_arg_area;
                self.overflow_arg_area = place.byte_add(8);
                place.cast::<u64>().read()
            }
        }
    }

    /// # Safety
    ///
    /// As [`Arguments::next`]; it is a pointer.
    unsafe fn pointer<T>(&mut self) -> *mut T {
        // SAFETY: the caller's.
        std::ptr::with_exposed_provenance_mut(unsafe { self.next() } as usize)
    }

    /// A number of 32 bits, whose other bits may be anything.
    ///
    /// # Safety
    ///
    /// As [`Arguments::next`].
    unsafe fn number(&mut self) -> u32 {
        // SAFETY: the caller's.
        unsafe { self.next() as u32 }
    }

    /// A list of segments: its length, and the list.
    ///
    /// # Safety
    ///
    /// As [`Arguments::next`], twice.
    unsafe fn segments(&mut self) -> (c_int, *const Triplet) {
        // SAFETY: the caller's.
        unsafe { (self.number() as c_int, self.pointer()) }
    }
}

/// The address handle that C gives.
///
/// # Safety
///
/// The pointer is null or to an address handle.
unsafe fn destination(ah: *const abi::IbAddrHandle) -> Result<IbAddrHandle> {
    required(ah.cast_mut(), Subtype::InvalidArg3)?;
    // SAFETY: the caller's.
    let abi::IbAddrHandle { ah, qpn, .. } = unsafe { *ah };
    let (handle, qkey) = (AhHandle::from_raw(cells::word(ah)), cells::extra(ah) as u32);
    Ok(IbAddrHandle { ah: handle, qpn, qkey, ..IbAddrHandle::NONE })
}

/// Both ends of an atomic operation.
///
/// # Safety
///
/// The pointers are null or to triplets.
unsafe fn ends(sink: *const Triplet, from: *const Triplet) -> Result<(LmrTriplet, RmrTriplet)> {
    required(sink.cast_mut(), Subtype::InvalidArg3)?;
    // SAFETY: the caller's.
    unsafe { Ok((local(*sink), remote(from, Subtype::InvalidArg5)?)) }
}

/// `dat_extension_op`. The arguments of each operation are those of its macro in
/// `dat_ib_extensions.h`.
pub(crate) unsafe extern "C" fn operation(object: Handle, op: c_int, arguments: *mut Arguments) -> Return {
    const INVALID: Subtype = Subtype::InvalidHandleEp;
    call(|| {
        required(arguments, Subtype::InvalidArg3)?;
        // SAFETY: `libdat2` passes the arguments of the operation, in the order of the macros.
        unsafe {
            let next = &mut *arguments;
            match IbOp(op as u32) {
                IbOp::FETCH_AND_ADD => {
                    let (add, sink, cookie) = (next.next(), next.pointer(), next.next());
                    let (sink, from) = ends(sink, next.pointer())?;
                    let flags = CompletionFlags::from_bits_retain(next.number());
                    opened::with(object, INVALID, |opened, word| {
                        let ep = EpHandle::from_raw(word);
                        opened.ia.ib_post_fetch_and_add(ep, add, &sink, cookie, &from, flags)
                    })
                }
                IbOp::CMP_AND_SWAP => {
                    let (compare, swap) = (next.next(), next.next());
                    let (sink, cookie) = (next.pointer(), next.next());
                    let (sink, from) = ends(sink, next.pointer())?;
                    let flags = CompletionFlags::from_bits_retain(next.number());
                    opened::with(object, INVALID, |opened, word| {
                        let ep = EpHandle::from_raw(word);
                        opened.ia.ib_post_cmp_and_swap(ep, compare, swap, &sink, cookie, &from, flags)
                    })
                }
                IbOp::RDMA_WRITE_IMMED => {
                    let (number, iov) = next.segments();
                    let cookie = next.next();
                    let to = remote(next.pointer(), Subtype::InvalidArg5)?;
                    let (immediate, flags) = (next.number(), next.number());
                    post(object, number, iov, flags, |ia, ep, iov, flags| {
                        ia.ib_post_rdma_write_with_immed(ep, iov, cookie, &to, immediate, flags)
                    })
                }
                IbOp::UD_SEND => {
                    let (number, iov) = next.segments();
                    let to = destination(next.pointer())?;
                    let (cookie, flags) = (next.next(), next.number());
                    post(object, number, iov, flags, |ia, ep, iov, flags| {
                        ia.ib_post_send_ud(ep, iov, &to, cookie, flags)
                    })
                }
                IbOp(CM_FREE) => opened::of(object, INVALID).map(drop),
                IbOp(AH_FREE) => {
                    let ah: *const abi::IbAddrHandle = next.pointer();
                    required(ah.cast_mut(), Subtype::InvalidArg3)?;
                    let cell = (*ah).ah;
                    let (opened, word) = opened::of(object, INVALID)?;
                    let freed = AhHandle::from_raw(cells::word(cell));
                    opened.ia.ib_ud_ah_free(EpHandle::from_raw(word), freed)?;
                    opened.unname(cell);
                    Ok(())
                }
                _ => Err(NOT_IMPLEMENTED),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_from_registers_and_then_from_the_stack() {
        let (mut saved, mut stack) = ([10u64, 11, 12, 13, 14, 15], [16u64, u64::from(u32::MAX) << 32 | 17]);
        let mut arguments = Arguments {
            gp_offset: 16,
            fp_offset: SAVED,
            overflow_arg_area: stack.as_mut_ptr().cast(),
            reg_save_area: saved.as_mut_ptr().cast(),
        };
        // SAFETY: there are as many.
        let read = unsafe { [(); 5].map(|()| arguments.next()) };
        assert_eq!(read, [12, 13, 14, 15, 16]);
        // SAFETY: one is left.
        assert_eq!(unsafe { arguments.number() }, 17);
    }
}
