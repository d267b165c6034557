//! Calls that move data, and calls that concern memory.

use dat::*;

use super::{DatConsumer, bits, flags, size};
use crate::Input;

impl DatConsumer {
    pub(super) fn post(&mut self, input: &mut Input<'_>) {
        let (ia, ep, segments) = (self.ia(input), self.ep(input), self.segments(input));
        let (to, flags, cookie) = (self.remote(input), flags(input), input.byte().into());
        let one = segments.first().copied().unwrap_or_default();
        let ah = input.pick(&self.resolved).unwrap_or(IbAddrHandle::NONE);
        let _ = match input.below(11) {
            0 => ia.ep_post_send(ep, &segments, cookie, flags),
            1 | 2 => ia.ep_post_recv(ep, &segments, cookie, flags),
            3 => ia.ep_post_rdma_write(ep, &segments, cookie, &to, flags),
            4 => ia.ep_post_rdma_read(ep, &segments, cookie, &to, flags),
            5 => ia.ib_post_rdma_write_with_immed(ep, &segments, cookie, &to, input.number() as u32, flags),
            6 => {
                let (compare, swap) = (input.number(), input.number());
                ia.ib_post_cmp_and_swap(ep, compare, swap, &one, cookie, &to, flags)
            }
            7 => ia.ib_post_fetch_and_add(ep, input.number(), &one, cookie, &to, flags),
            8 => ia.ib_post_send_ud(ep, &segments, &self.changed(ah, input), cookie, flags),
            9 => ia.srq_post_recv(self.srq(input), &segments, cookie),
            _ => {
                let op = IbOp(if input.rarely(8) { input.number() as u32 } else { input.below(5) as u32 });
                let arguments = if input.rarely(2) {
                    IbArguments::UdSend { local_iov: &segments, ah: &ah, cookie, completion_flags: flags }
                } else {
                    IbArguments::RdmaWriteImmed {
                        local_iov: &segments,
                        user_cookie: cookie,
                        remote_iov: &to,
                        immediate_data: 7,
                        completion_flags: flags,
                    }
                };
                ia.extension_op(ep.into(), op, &arguments)
            }
        };
    }

    /// An address, of which sometimes one part is replaced.
    fn changed(&self, ah: IbAddrHandle, input: &mut Input<'_>) -> IbAddrHandle {
        match input.below(8) {
            5 => IbAddrHandle { qpn: input.number() as u32, ..ah },
            6 => IbAddrHandle { qkey: input.number() as u32, ..ah },
            7 => IbAddrHandle { ah: AhHandle::from_raw(self.handle(input, |p| &p.pz)), ..ah },
            _ => ah,
        }
    }

    pub(super) fn memory(&mut self, input: &mut Input<'_>) {
        let (ia, pz) = (self.ia(input), self.pz(input));
        let lmr = LmrHandle::from_raw(self.handle(input, |p| &p.lmr));
        let rmr = RmrHandle::from_raw(self.handle(input, |p| &p.rmr));
        let (privileges, kind) =
            (MemPriv::from_bits_retain(bits(input)), [VaType::Va, VaType::Zb][input.below(2)]);
        match input.below(8) {
            0 | 1 => {
                let buffer = self.buffers[input.below(2)].clone();
                let memory = match input.below(4) {
                    0 => RegionDescription::Lmr(lmr),
                    1 => RegionDescription::Static(&[7; 64]),
                    _ => RegionDescription::Buffer { buffer: &buffer, offset: size(input, 64) },
                };
                if let Ok(made) = ia.lmr_create(memory, size(input, 250) as u64, pz, privileges, kind) {
                    self.region(made);
                }
            }
            2 => drop(ia.lmr_free(lmr)),
            3 => {
                if let Ok(rmr) = ia.rmr_create(pz) {
                    self.pools.rmr.push(rmr.as_raw());
                }
            }
            4 | 5 => {
                let (segment, ep) = (self.segment(input), self.ep(input));
                let flags = flags(input);
                if let Ok(context) = ia.rmr_bind(rmr, lmr, &segment, privileges, kind, ep, 3, flags) {
                    self.remote.push(context);
                }
            }
            6 => drop(ia.rmr_free(rmr)),
            _ => match input.below(4) {
                0 => drop(ia.pz_free(pz)),
                1 => drop(ia.lmr_query(lmr)),
                2 => drop(ia.rmr_query(rmr)),
                _ => {
                    if let Ok(pz) = ia.pz_create() {
                        self.pools.pz.push(pz.as_raw());
                    }
                }
            },
        }
    }
}
