//! Calls about events, connections and all other objects.

use privileged_api::*;

use super::{Consumer, mask, private_data, size};
use crate::Input;

impl Consumer {
    pub(super) fn events(&mut self, input: &mut Input<'_>) {
        let (ia, evd) = (self.ia(input), self.evd(input));
        let streams = [
            EventType::DTO_EVENT_STREAM,
            EventType::CM_REQ_EVENT_STREAM,
            EventType::CM_MSG_EVENT_STREAM,
            EventType::SOFTWARE_EVENT_STREAM,
            EventType::ASYNC_AFF_EVENT_STREAM,
            EventType::ASYNC_UNAFF_EVENT_STREAM,
        ];
        match input.below(10) {
            0 => {
                let stream = input.pick(&streams).unwrap_or_default();
                let stream = if input.rarely(8) { EventType(input.number() as u32) } else { stream };
                let flags = EvdFlags::from_bits_retain(if input.rarely(2) { 0 } else { mask(input) });
                let aevd = if input.rarely(8) { evd } else { EvdHandle::NULL };
                if let Ok(evd) = ia.evd_create(stream, flags, size(input, 16), size(input, 4), aevd) {
                    self.pools.evd.push(evd.as_raw());
                }
            }
            1 | 2 => {
                if let Ok(event) = ia.evd_dequeue(evd) {
                    self.heard(&event);
                }
            }
            3 => {
                if let Ok(extended) = ia.evd_dequeue_extended(evd) {
                    self.heard(&extended.event);
                }
            }
            4 => {
                if let Ok((event, _)) = ia.evd_wait(evd, input.number() & 0xf_ffff) {
                    self.heard(&event);
                }
            }
            5 => {
                let timeout = input.number() & 0xf_ffff;
                let wait_for = match timeout as usize % 8 {
                    7 => WaitFor::Notification,
                    wanted => WaitFor::Events(wanted),
                };
                if let Ok((extended, _)) = ia.evd_wait_extended(evd, wait_for, timeout) {
                    self.heard(&extended.event);
                }
            }
            6 => {
                let params = EvdParam {
                    sevd_queue_size: size(input, 16),
                    sevd_threshold: size(input, 4),
                    evd_enabled: input.rarely(2),
                    aevd: if input.rarely(4) { self.evd(input) } else { EvdHandle::NULL },
                    ..EvdParam::default()
                };
                let _ = ia.evd_modify(evd, EvdParamMask::from_bits_retain(mask(input)), &params);
            }
            7 => drop(ia.evd_post_se(evd, input.number() as usize)),
            8 => {
                let callback: EvdCallback = Box::new(|ia, evd| {
                    let _ = ia.evd_dequeue(evd);
                    let _ = ia.evd_wait(evd, 5);
                    let _ = ia.evd_free(evd);
                });
                let _ = ia.evd_callback_attach(evd, callback);
            }
            _ => {
                if input.rarely(2) {
                    let _ = ia.evd_callback_detach(evd);
                } else {
                    let _ = ia.evd_free(evd);
                }
            }
        }
    }

    pub(super) fn heard(&mut self, event: &Event) {
        match event {
            Event::ConnRequest(request) => self.requests.push(request.cn_est_id),
            Event::ConnAcceptArrival { cn_est_id, .. } => self.requests.push(*cn_est_id),
            Event::UdServiceRequest(request) => self.resolutions.push(request.ud_svc_req_id),
            _ => {}
        }
    }

    pub(super) fn connection(&mut self, input: &mut Input<'_>) {
        let (ia, ep) = (self.ia(input), self.ep(input));
        let request = input.pick(&self.requests).unwrap_or_default();
        let request = if input.rarely(8) { CnEstId(input.number()) } else { request };
        match input.below(10) {
            0 => {
                let flags = ListenFlags::from_bits_retain(input.below(8) as u32);
                let qual = self.qual(input);
                let evd = self.evd(input);
                if let Ok((listen, qual)) = ia.listen_create(size(input, 3), evd, flags, Some(&qual)) {
                    self.pools.listen.push(listen.as_raw());
                    self.quals.push(qual);
                }
            }
            1..4 => {
                let flags = CnEstFlags::from_bits_retain(input.below(16) as u32);
                let (path, qual) = (self.path(input), self.qual(input));
                let attributes = ConnAttributes {
                    remote_cm_timeout: input.byte(),
                    retry_count: input.byte(),
                    max_cm_retries: input.byte(),
                    ..ConnAttributes::default()
                };
                let attributes = input.rarely(4).then_some(&attributes);
                let _ = ia.ep_connect(ep, &path, attributes, &qual, flags, private_data(input));
            }
            4 | 5 => drop(ia.ep_accept(ep, request, private_data(input))),
            6 => drop(ia.reject(request, private_data(input))),
            7 => drop(ia.handoff(&self.qual(input), size(input, 3), request)),
            8 => drop(ia.ep_disconnect(ep, private_data(input))),
            _ => {
                let listen = ListenHandle::from_raw(self.handle(input, |p| &p.listen));
                if input.rarely(2) {
                    let _ = ia.listen_free(listen);
                } else {
                    let _ = ia.listen_query(listen, ListenParamMask::from_bits_retain(mask(input)));
                }
            }
        }
    }

    pub(super) fn objects(&mut self, input: &mut Input<'_>) {
        let ia = self.ia(input);
        match input.below(16) {
            0 => self.pools.pz.extend(ia.pz_create().ok().map(PzHandle::as_raw)),
            1 => drop(ia.pz_free(self.pz(input))),
            2 | 3 => {
                let (pz, requests, receives, connection) =
                    (self.pz(input), self.evd(input), self.evd(input), self.evd(input));
                let flags = EpFlags::from_bits_retain(input.below(4) as u32);
                let attr = self.attributes(input);
                if let Ok(ep) = ia.ep_rc_create(pz, requests, receives, connection, flags, &attr) {
                    self.pools.ep.push(ep.as_raw());
                }
            }
            4 => {
                let (pz, requests, receives, attr) =
                    (self.pz(input), self.evd(input), self.evd(input), self.attributes(input));
                if let Ok(ep) = ia.ep_ud_create(pz, requests, receives, &attr, size(input, 3)) {
                    self.pools.ep.push(ep.as_raw());
                    if let Ok(EpParam { attr, .. }) = ia.ep_query(ep, EpParamMask::ALL) {
                        self.datagram = attr.ud.ep_info;
                    }
                }
            }
            5 => drop(ia.ep_free(self.ep(input))),
            6 => drop(ia.ep_reset(self.ep(input))),
            7 => {
                let (ep, attr) = (self.ep(input), self.attributes(input));
                let _ = ia.ep_modify(ep, EpParamMask::from_bits_retain(mask(input)), &attr);
            }
            8 => {
                let (pz, segments, dtos) = (self.pz(input), size(input, 5), size(input, 20));
                self.pools.srq.extend(ia.srq_create(pz, segments, dtos).ok().map(SrqHandle::as_raw));
            }
            9 => drop(ia.srq_free(self.srq(input))),
            10 => {
                let params = SrqParam {
                    max_recv_dtos: size(input, 20),
                    low_watermark: size(input, 20),
                    ..SrqParam::default()
                };
                let _ = ia.srq_modify(self.srq(input), SrqParamMask::from_bits_retain(mask(input)), &params);
            }
            11 => {
                let (pz, path) = (self.pz(input), self.path(input));
                let flags = AhFlags::from_bits_retain(input.below(4) as u32);
                let made = ia.address_handle_create(pz, &path, flags);
                self.pools.addr.extend(made.ok().map(AddrHandle::as_raw));
            }
            12 => {
                let addr = AddrHandle::from_raw(self.handle(input, |p| &p.addr));
                let params = AddrParam { pz: self.pz(input), path: self.path(input), ..AddrParam::default() };
                let bits = AddrParamMask::from_bits_retain(mask(input));
                let _ = ia.address_handle_modify(addr, bits, &params);
                let _ = ia.address_handle_query(addr, bits);
            }
            13 => drop(ia.address_handle_free(AddrHandle::from_raw(self.handle(input, |p| &p.addr)))),
            14 => self.resolution(&ia, input),
            _ => {
                // Sometimes a whole IA is freed, and calls on it continue.
                if input.rarely(8) {
                    let _ = ia.ia_free();
                }
            }
        }
    }

    pub(super) fn resolution(&mut self, ia: &Ia, input: &mut Input<'_>) {
        let svc = UdSvcReqHandle::from_raw(self.handle(input, |p| &p.svc));
        match input.below(5) {
            0 | 1 => {
                let (qual, evd, path) = (self.qual(input), self.evd(input), self.path(input));
                let made = ia.ud_service_request_handle_create(&qual, evd, &path, private_data(input));
                self.pools.svc.extend(made.ok().map(UdSvcReqHandle::as_raw));
            }
            2 => drop(ia.ud_service_request(svc)),
            3 => {
                let id = input.pick(&self.resolutions).unwrap_or_else(|| input.number());
                let status = [UdSvcStatus::EpInfoValid, UdSvcStatus::Rejected, UdSvcStatus::Redirected];
                let _ = ia.ud_service_reply(id, status[input.below(3)], self.datagram, private_data(input));
            }
            _ => drop(ia.ud_service_request_handle_free(svc)),
        }
    }

    pub(super) fn queries(&mut self, input: &mut Input<'_>) {
        let (ia, bits) = (self.ia(input), mask(input));
        match input.below(12) {
            0 => drop(ia.ia_query()),
            1 => drop(ia.ep_query(self.ep(input), EpParamMask::from_bits_retain(bits))),
            2 => drop(ia.evd_query(self.evd(input), EvdParamMask::from_bits_retain(bits))),
            3 => drop(ia.lmr_query(self.lmr(input), LmrParamMask::from_bits_retain(bits))),
            4 => drop(ia.rmr_query(self.rmr(input), RmrParamMask::from_bits_retain(bits))),
            5 => drop(ia.srq_query(self.srq(input), SrqParamMask::from_bits_retain(bits))),
            6 => drop(ia.pz_query(self.pz(input), PzParamMask::from_bits_retain(bits))),
            7 => {
                let svc = UdSvcReqHandle::from_raw(self.handle(input, |p| &p.svc));
                let _ = ia.ud_service_request_handle_query(svc, UdSvcReqParamMask::from_bits_retain(bits));
            }
            8 => {
                let handle = self.any_handle(input);
                let _ = ia.get_handle_type(handle);
                let _ = ia.set_consumer_context(handle, input.number());
                let _ = ia.get_consumer_context(handle);
            }
            9 => {
                let gid: [u8; 16] = {
                    let mut gid = [0; 16];
                    let taken = input.bytes(16);
                    gid[..taken.len()].copy_from_slice(taken);
                    gid
                };
                let kinds =
                    [NetAddrType::Ipv4, NetAddrType::Ipv6, NetAddrType::IbGid, NetAddrType::ViaHostaddr];
                let _ = ia.convert_net_addr(&NetAddr::IbGid(gid), kinds[input.below(4)]);
                let _ = ia.get_pathinfo(size(input, 3), &NetAddr::Ipv6(gid), size(input, 3));
            }
            10 => {
                let mut into = [DtoCompletion::default(); 4];
                let _ = ia.evd_dequeue_n(self.evd(input), &mut into[..input.below(5)]);
            }
            _ => {
                let _ = ia.socket_convert(3, self.ep(input), ScFlags::empty(), &[]);
                let _ = ia.ep_qpn(self.ep(input));
                let _ = Path::of_sender(input.bytes(40));
            }
        }
    }
}
