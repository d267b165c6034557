//! Calls that move data, and calls that concern memory.

use privileged_api::*;

use super::{Consumer, dto_flags, mask, mode, size};
use crate::Input;

impl Consumer {
    pub(super) fn post(&mut self, input: &mut Input<'_>) {
        let (ia, ep, segments) = (self.ia(input), self.ep(input), self.segments(input));
        let (flags, cookie) = (dto_flags(input), input.byte().into());
        let (to, context) = self.rdma(input);
        // Some posts carry immediate data. The cookie decides it, so that older inputs keep their
        // meaning.
        let with = (cookie % 4 == 3).then_some(cookie as u32);
        let _ = match input.below(10) {
            0 if let Some(immediate) = with => {
                ia.post_send_immediate(ep, &segments, cookie, flags, immediate)
            }
            1 if let Some(immediate) = with => {
                ia.post_rdma_write_immediate(ep, &segments, cookie, flags, to, context, immediate)
            }
            0 => ia.post_send(ep, &segments, cookie, flags),
            1 => ia.post_rdma_write(ep, &segments, cookie, flags, to, context),
            2 => ia.post_rdma_read(ep, &segments, cookie, flags, to, context),
            3 | 4 => ia.post_recv(self.any_handle(input), &segments, cookie, flags),
            5 => {
                let op = if input.rarely(2) { AtomicOp::FetchAndAdd } else { AtomicOp::CompareAndSwap };
                let result = segments.first().copied().unwrap_or_default();
                let (value, compare) = (input.number(), input.number());
                ia.post_atomic(ep, op, value, compare, &result, cookie, flags, to, context)
            }
            6 => ia.post_send_and_unlink(ep, &segments, cookie, flags, context),
            7 => {
                let addr = AddrHandle::from_raw(self.handle(input, |p| &p.addr));
                let to = DgRemoteEpAddr::IbUd { addr, ep_info: self.datagram };
                match with {
                    Some(immediate) => ia.post_sendto_immediate(ep, &segments, cookie, flags, &to, immediate),
                    None => ia.post_sendto(ep, &segments, cookie, flags, &to),
                }
            }
            8 => ia.post_recvfrom(ep, &segments, cookie, flags),
            _ => {
                let rmr = RmrTriplet { rmr: self.rmr(input), addr: self.address(input), length: 8 };
                ia.post_rdma_read_to_rmr(ep, &[rmr], cookie, flags, to, context)
            }
        };
    }

    pub(super) fn memory(&mut self, input: &mut Input<'_>) {
        let (ia, lmr, pz) = (self.ia(input), self.lmr(input), self.pz(input));
        let privs = MemPriv::from_bits_retain(if input.rarely(8) {
            input.number() as u32
        } else {
            input.byte().into()
        });
        match input.below(8) {
            0 | 1 => {
                let buffer = self.buffers[input.below(2)].clone();
                let memory = LmrMemory::Buffer { buffer: &buffer, offset: size(input, 64) };
                let length = size(input, 250) as u64;
                let flags =
                    LmrFlags::from_bits_retain(mask(input) & if input.rarely(2) { 0 } else { u32::MAX });
                let shared = input.byte().into();
                if let Ok((lmr, context)) =
                    ia.lmr_create(pz, memory, length, mode(input), privs, flags, shared)
                {
                    self.pools.lmr.push(lmr.as_raw());
                    self.contexts.extend(context);
                }
            }
            2 => {
                if let Ok(lmr) = ia.lmr_create_unlinked(pz, size(input, 8), LmrFlags::NONE, 0) {
                    self.pools.lmr.push(lmr.as_raw());
                }
            }
            3 => {
                let params = LmrParam { pz, privs, ..LmrParam::default() };
                let _ = ia.lmr_modify(lmr, LmrParamMask::from_bits_retain(mask(input)), &params);
            }
            4 => drop(ia.lmr_free(lmr)),
            5 => {
                let segments = self.segments(input);
                let _ = ia.lmr_flush_to_mem(&segments);
                let _ = ia.lmr_refresh_from_mem(&segments);
            }
            6 => {
                let kinds = [RmrType::Default, RmrType::Narrow, RmrType::Wide];
                if let Ok(rmr) = ia.rmr_create(pz, kinds[input.below(3)]) {
                    self.pools.rmr.push(rmr.as_raw());
                }
            }
            _ => {
                let virt = (self.buffers[0].addr()).wrapping_add(input.number() as usize);
                if let Ok((at, len)) = ia.mem_map(virt, input.number(), size(input, 200)) {
                    let _ = ia.mem_unmap(at, len.wrapping_add(input.below(2)));
                }
                let _ = ia.mem_unmap(IoAddr(input.number()), 1);
                let _ = ia.rmr_free(self.rmr(input));
            }
        }
    }

    pub(super) fn link(&mut self, input: &mut Input<'_>) {
        let (ia, ep, flags, cookie) = (self.ia(input), self.ep(input), dto_flags(input), input.byte().into());
        let privs = MemPriv::from_bits_retain(input.byte().into());
        let length = if input.rarely(4) { input.number() } else { 64 * input.below(128) as u64 };
        match input.below(4) {
            0 | 1 => {
                let buffer = &self.buffers[input.below(2)];
                let page = |input: &mut Input<'_>| IoAddr(buffer.bus() + 4096 * input.below(2) as u64);
                let pages: Vec<IoAddr> = (0..input.below(4)).map(|_| page(input)).collect();
                // At most a page, or far too long: the device does not check the bus addresses of a
                // privileged consumer.
                let elt_len = input.pick(&[4096, 0, 1, 4095, 64, 1 << 40, u64::MAX]).unwrap_or(4096);
                let elements: Vec<IoblVeElt> =
                    pages.iter().map(|&io_addr| IoblVeElt { io_addr, elt_len: elt_len.min(4096) }).collect();
                let fbo = if input.rarely(4) { input.number() } else { 0 };
                let iobl = match input.below(3) {
                    0 => Iobl::pages(&pages, elt_len, fbo),
                    1 => Iobl::blocks(&pages, elt_len, fbo),
                    _ => Iobl::ve_pages(&elements, fbo),
                };
                if input.rarely(3) {
                    let memory = LmrMemory::Iobl { addr: input.number() as usize, iobl: &iobl };
                    let pz = self.pz(input);
                    if let Ok((lmr, context)) =
                        ia.lmr_create(pz, memory, length, mode(input), privs, LmrFlags::NONE, 0)
                    {
                        self.pools.lmr.push(lmr.as_raw());
                        self.contexts.extend(context);
                    }
                    return;
                }
                let (lmr, at) = (self.lmr(input), input.number() as usize);
                if let Ok(context) =
                    ia.lmr_link(lmr, at, &iobl, length, mode(input), privs, ep, cookie, flags)
                {
                    self.contexts.extend(context);
                }
            }
            2 => {
                let (rmr, lmr, at) = (self.rmr(input), self.lmr(input), self.address(input) as usize);
                if let Ok(context) = ia.rmr_link(rmr, lmr, at, length, mode(input), privs, ep, cookie, flags)
                {
                    self.contexts.push(context);
                }
            }
            _ => {
                if input.rarely(2) {
                    let _ = ia.lmr_unlink(self.lmr(input), ep, cookie, flags);
                } else {
                    let _ = ia.rmr_unlink(self.rmr(input), ep, cookie, flags);
                }
            }
        }
    }
}
