//! Calls about events, connections and all other objects.

use dat::*;

use super::{DatConsumer, attributes, bits, private_data, size, timeout};
use crate::Input;

/// An agent that makes calls itself.
fn agent() -> Agent {
    Box::new(|ia, evd| {
        let _ = ia.evd_dequeue(evd);
        let _ = ia.evd_wait(evd, 5, 1);
        let _ = ia.evd_free(evd);
        let _ = ia.ia_close(CloseFlags::Abrupt);
    })
}

impl DatConsumer {
    pub(super) fn events(&mut self, input: &mut Input<'_>) {
        let (ia, evd, cno) = (self.ia(input), self.evd(input), self.cno(input));
        match input.below(14) {
            0 => {
                let cno = if input.rarely(2) { cno } else { CnoHandle::NULL };
                if let Ok(evd) = ia.evd_create(size(input, 16), cno, EvdFlags::from_bits_retain(bits(input)))
                {
                    self.pools.evd.push(evd.as_raw());
                }
            }
            1..5 => {
                if let Ok(event) = ia.evd_dequeue(evd) {
                    self.heard(&event);
                }
            }
            5 | 6 => {
                if let Ok((event, _)) = ia.evd_wait(evd, timeout(input), size(input, 4)) {
                    self.heard(&event);
                }
            }
            7 => drop(ia.evd_resize(evd, size(input, 32))),
            8 => {
                let named = if input.rarely(4) { self.evd(input) } else { evd };
                let _ = ia.evd_post_se(evd, &Event::software(named, input.number() as usize));
            }
            9 => drop(ia.evd_modify_cno(evd, if input.rarely(4) { CnoHandle::NULL } else { cno })),
            10 => drop(ia.evd_free(evd)),
            11 => {
                let agent = input.rarely(2).then(agent);
                if let Ok(cno) = ia.cno_create(agent) {
                    self.pools.cno.push(cno.as_raw());
                }
            }
            12 => {
                if let Ok(evd) = ia.cno_wait(cno, timeout(input)) {
                    self.pools.evd.push(evd.as_raw());
                }
            }
            _ => match input.below(3) {
                0 => drop(ia.cno_modify_agent(cno, Some(agent()))),
                1 => drop(ia.cno_query(cno)),
                _ => drop(ia.cno_free(cno)),
            },
        }
    }

    fn qual(&self, input: &mut Input<'_>) -> u64 {
        if input.rarely(8) { input.number() } else { input.pick(&self.quals).unwrap_or(1) }
    }

    pub(super) fn connection(&mut self, input: &mut Input<'_>) {
        let (ia, ep, evd, qual) = (self.ia(input), self.ep(input), self.evd(input), self.qual(input));
        let cr = CrHandle::from_raw(self.handle(input, |p| &p.cr));
        let psp = PspHandle::from_raw(self.handle(input, |p| &p.psp));
        let rsp = RspHandle::from_raw(self.handle(input, |p| &p.rsp));
        let kind = [PspFlags::Consumer, PspFlags::Provider][usize::from(input.rarely(8))];
        match input.below(14) {
            0 => {
                if let Ok(psp) = ia.psp_create(qual, evd, kind) {
                    self.pools.psp.push(psp.as_raw());
                }
            }
            1 => {
                if let Ok((qual, psp)) = ia.psp_create_any(evd, kind) {
                    self.quals.push(qual);
                    self.pools.psp.push(psp.as_raw());
                }
            }
            2 => {
                if let Ok(rsp) = ia.rsp_create(qual, ep, evd) {
                    self.quals.push(qual);
                    self.pools.rsp.push(rsp.as_raw());
                }
            }
            3..6 => {
                let (timeout, qos) =
                    (timeout(input), Qos::from_bits_retain(input.below(2) as u32 * bits(input)));
                let data = private_data(input);
                let _ = ia.ep_connect(ep, self.address, qual, timeout, data, qos, ConnectFlags::Default);
            }
            6 => {
                let (other, timeout) = (self.ep(input), timeout(input));
                let _ = ia.ep_dup_connect(ep, other, timeout, private_data(input), Qos::BEST_EFFORT);
            }
            7 | 8 => drop(ia.cr_accept(cr, ep, private_data(input))),
            9 => drop(ia.cr_reject(cr, private_data(input))),
            10 => drop(ia.cr_handoff(cr, qual)),
            11 => {
                let how = [CloseFlags::Abrupt, CloseFlags::Graceful][input.below(2)];
                let _ = ia.ep_disconnect(ep, how);
            }
            12 => match input.below(4) {
                0 => drop(ia.psp_free(psp)),
                1 => drop(ia.rsp_free(rsp)),
                2 => drop(ia.psp_query(psp)),
                _ => drop(ia.rsp_query(rsp)),
            },
            _ => {
                let ah = input.pick(&self.resolved).unwrap_or(IbAddrHandle::NONE).ah;
                let _ = ia.ib_ud_ah_free(ep, ah);
                let _ = ia.cr_query(cr);
            }
        }
    }

    fn any_attributes(&self, input: &mut Input<'_>) -> EpAttr {
        let mut attr = attributes();
        if input.rarely(4) {
            attr.service_type = ServiceType::IB_UD;
        }
        for _ in 0..input.below(3) {
            let value = size(input, 20);
            match input.below(10) {
                0 => attr.max_message_size = value as u64,
                1 => attr.max_rdma_size = value as u64,
                2 => attr.max_recv_dtos = value,
                3 => attr.max_request_dtos = value,
                4 => attr.max_recv_iov = value,
                5 => attr.max_request_iov = value,
                6 => attr.max_rdma_read_in = value as u32,
                7 => attr.max_rdma_read_out = value as u32,
                8 => attr.recv_completion_flags = CompletionFlags::from_bits_retain(value as u32),
                _ => attr.request_completion_flags = CompletionFlags::from_bits_retain(value as u32),
            }
        }
        attr
    }

    pub(super) fn endpoints(&mut self, input: &mut Input<'_>) {
        let (ia, ep, srq) = (self.ia(input), self.ep(input), self.srq(input));
        match input.below(8) {
            0 | 1 => {
                let (pz, attr) = (self.pz(input), self.any_attributes(input));
                let [recv, request, connect] = [self.evd(input), self.evd(input), self.evd(input)];
                let made = match input.below(3) {
                    0 => ia.ep_create_with_srq(pz, recv, request, connect, srq, &attr),
                    1 => ia.ep_create(pz, recv, request, connect, None),
                    _ => ia.ep_create(pz, recv, request, connect, Some(&attr)),
                };
                if let Ok(ep) = made {
                    self.pools.ep.push(ep.as_raw());
                }
            }
            2 => {
                let mut param = EpParam { ep_attr: self.any_attributes(input), ..EpParam::default() };
                param.pz_handle = self.pz(input);
                (param.recv_evd_handle, param.request_evd_handle) = (self.evd(input), self.evd(input));
                param.connect_evd_handle = self.evd(input);
                let mask = if input.rarely(2) { 1 << input.below(64) } else { input.number() };
                let _ = ia.ep_modify(ep, EpParamMask::from_bits_retain(mask), &param);
            }
            3 => drop(ia.ep_reset(ep)),
            4 => drop(ia.ep_free(ep)),
            5 => {
                let attr = SrqAttr {
                    max_recv_dtos: size(input, 16),
                    max_recv_iov: size(input, 4),
                    low_watermark: input.below(2) as i32,
                };
                if let Ok(srq) = ia.srq_create(self.pz(input), &attr) {
                    self.pools.srq.push(srq.as_raw());
                }
            }
            6 => match input.below(4) {
                0 => drop(ia.srq_free(srq)),
                1 => drop(ia.srq_resize(srq, size(input, 32))),
                _ => drop(ia.srq_set_lw(srq, size(input, 8) as i32)),
            },
            _ => {
                let _ = ia.ep_set_watermark(ep, size(input, 8) as i32, size(input, 8) as i32);
                let _ = ia.ep_recv_query(ep);
                let _ = ia.ep_qpn(ep);
            }
        }
    }

    pub(super) fn queries(&mut self, input: &mut Input<'_>) {
        let ia = self.ia(input);
        let any = Handle::from_raw(match input.below(4) {
            0 => self.handle(input, |p| &p.evd),
            1 => self.handle(input, |p| &p.ep),
            2 => self.handle(input, |p| &p.cr),
            _ => self.handle(input, |p| &p.cno),
        });
        match input.below(8) {
            0 => {
                let masks = (input.number() as u32, input.number() as u32);
                let (of_ia, of_provider) = masks;
                let of_ia = IaAttrMask::from_bits_retain(of_ia.into());
                let _ = ia.ia_query(of_ia, ProviderAttrMask::from_bits_retain(of_provider.into()));
            }
            1 => drop(ia.get_handle_type(any)),
            2 => drop(ia.set_consumer_context(any, input.number())),
            3 => drop(ia.get_consumer_context(any)),
            4 => drop(ia.evd_query(self.evd(input))),
            5 => {
                let mask = EpParamMask::from_bits_retain(input.number());
                let _ = ia.ep_query(self.ep(input), mask);
                let _ = ia.ep_get_status(self.ep(input));
            }
            6 => drop(ia.srq_query(self.srq(input))),
            _ => {
                let _ = ia.pz_query(self.pz(input));
                // A close that succeeds is rare, since the rest of the input then does nothing.
                let _ = ia.ia_close(CloseFlags::Graceful);
                if input.rarely(64) {
                    let _ = ia.ia_close(CloseFlags::Abrupt);
                }
            }
        }
    }
}
