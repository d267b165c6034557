//! Calls about connections, memory and all other objects.

use vipl::*;

use super::handlers::react;
use super::{BUFFER, MOST_NICS, ViplConsumer, size, timeout};
use crate::Input;

impl ViplConsumer {
    pub(super) fn connection(&mut self, input: &mut Input<'_>) {
        let (nic, vi) = self.vi(input);
        let (local, remote) = (self.address(input), self.address(input));
        let timeout = timeout(input);
        match input.below(12) {
            0 | 1 => {
                let timeout = if input.rarely(4) { INFINITE } else { timeout };
                self.spawn_some(move || nic.connect_request(vi, &local, &remote, timeout));
            }
            2 => drop(nic.connect_request(vi, &local, &remote, timeout)),
            3 => {
                let from = input.rarely(4).then_some(&remote);
                let (number, nic) = self.nic(input);
                if let Ok(request) = nic.connect_wait(&local, from, timeout) {
                    self.pools.conn.push((number, request.conn.as_raw()));
                }
            }
            4 => self.spawn_some(move || {
                let request = nic.connect_wait(&local, None, INFINITE)?;
                nic.connect_accept(request.conn, vi)
            }),
            5 | 6 => {
                let (nic, conn) = self.handle(input, |p| &p.conn);
                let _ = match input.rarely(4) {
                    true => nic.connect_reject(ConnHandle::from_raw(conn)),
                    false => nic.connect_accept(ConnHandle::from_raw(conn), vi),
                };
            }
            7 => drop(nic.disconnect(vi)),
            _ => self.connect_anew(input, nic, vi),
        }
    }

    /// Connects two virtual interfaces as a consumer does, but for steps that are left out.
    fn connect_anew(&mut self, input: &mut Input<'_>, nic: Nic, vi: ViHandle) {
        let skipped = input.byte() & input.byte();
        let makes = |step: u32| skipped & 1 << step == 0;
        let (number, word) = input.pick(&self.pools.vi).unwrap_or_default();
        let (server, peer) = (self.nics.lock()[number].clone(), ViHandle::from_raw(word));
        if makes(0) {
            let _ = nic.disconnect(vi);
        }
        if makes(1) {
            let _ = server.disconnect(peer);
        }
        let (Ok(own), Ok(to)) = (nic.address(b"c"), server.address(b"s")) else { return };
        let patience = if makes(2) { 100 } else { 1 };
        let asked = to.clone();
        self.spawn_some(move || nic.connect_request(vi, &own, &asked, patience));
        let Ok(request) = server.connect_wait(&to, None, patience) else { return };
        self.pools.conn.push((number, request.conn.as_raw()));
        if makes(3) {
            let of_opening = |(owner, _): &&(usize, u64)| *owner == number;
            let ptag = self.pools.ptag.iter().find(of_opening).map_or(0, |(_, ptag)| *ptag);
            let attributes = ViAttributes { ptag: PtagHandle::from_raw(ptag), ..request.remote_vi_attribs };
            let _ = server.set_vi_attributes(peer, &attributes);
        }
        if makes(4) {
            let _ = server.connect_accept(request.conn, peer);
        }
    }

    pub(super) fn memory_call(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            what @ 0..4 => {
                let (number, nic) = self.nic(input);
                let attributes = self.mem_attributes(number, input);
                let (buffer, offset) = (&self.buffers[input.below(2)], size(input, 250) as usize);
                let left = BUFFER.saturating_sub(offset) as u64;
                let length = if input.rarely(4) { input.number() } else { left };
                let (memory, address) = match what {
                    3 => (Memory::Static(&[7; 64]), 0),
                    _ => (Memory::Buffer { buffer, offset }, (buffer.addr().wrapping_add(offset)) as u64),
                };
                if let Ok(handle) = nic.register_mem(memory, length, &attributes) {
                    self.pools.memory.push((number, address, handle.as_raw()));
                }
            }
            what => {
                let (number, address, handle) = self.memory(input);
                let nic = self.nics.lock()[number].clone();
                match what {
                    4 | 5 => drop(nic.deregister_mem(address, handle)),
                    6 => {
                        let attributes = self.mem_attributes(number, input);
                        let _ = nic.set_mem_attributes(address, handle, &attributes);
                    }
                    _ => drop(nic.query_mem(address, handle)),
                }
            }
        }
    }

    pub(super) fn objects(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..3 => self.create_vi(input),
            what @ 3..7 => {
                let (nic, vi) = self.vi(input);
                match what {
                    3 => drop(nic.destroy_vi(vi)),
                    4 => {
                        // What a consumer does that is done with it.
                        let _ = nic.disconnect(vi);
                        while nic.send_done(vi).is_ok() || nic.recv_done(vi).is_ok() {}
                        let _ = nic.destroy_vi(vi);
                    }
                    _ => {
                        let number = self.nic(input).0;
                        let _ = nic.set_vi_attributes(vi, &self.attributes(number, input));
                    }
                }
            }
            7 => {
                let (number, nic) = self.nic(input);
                let made = nic.create_cq(size(input, 32) as u32);
                self.pools.cq.extend(made.map(|cq| (number, cq.as_raw())));
            }
            8 => {
                let (nic, cq) = self.cq(input);
                let _ = nic.destroy_cq(cq);
            }
            9 => {
                let (nic, cq) = self.cq(input);
                let _ = nic.resize_cq(cq, size(input, 32) as u32);
            }
            10 => {
                let (number, nic) = self.nic(input);
                self.pools.ptag.extend(nic.create_ptag().map(|ptag| (number, ptag.as_raw())));
            }
            11 => {
                let (nic, ptag) = self.handle(input, |p| &p.ptag);
                let _ = nic.destroy_ptag(PtagHandle::from_raw(ptag));
            }
            12 => self.open(input),
            13 => self.short_opening(input),
            14 => {
                let (_, nic) = self.nic(input);
                if input.rarely(4) {
                    let _ = nic.close_nic();
                }
            }
            _ => {
                let (nic, vi) = self.vi(input);
                let _ = nic.vi_qpn(vi);
            }
        }
    }

    fn create_vi(&mut self, input: &mut Input<'_>) {
        let (number, nic) = self.nic(input);
        let attributes = self.attributes(number, input);
        let (send, receive) = (self.tied(number, input), self.tied(number, input));
        let made = match input.below(4) {
            0 => nic.create_vi(&attributes, send, receive),
            _ => {
                let entries = [size(input, 16) as u32, size(input, 16) as u32];
                nic.create_vi_sized(&attributes, send, receive, entries)
            }
        };
        self.pools.vi.extend(made.map(|vi| (number, vi.as_raw())));
    }

    /// Opens a NIC.
    fn open(&mut self, input: &mut Input<'_>) {
        let mut nics = self.nics.lock();
        let name = match input.below(8) {
            6 => "another",
            7 => "",
            number => &self.names[number % 2],
        };
        if nics.len() < MOST_NICS
            && let Ok(nic) = self.provider.open_nic(name)
        {
            nics.push(nic);
        }
    }

    /// An opening that is never closed: its last clone is dropped while something is under way.
    fn short_opening(&mut self, input: &mut Input<'_>) {
        let Ok(nic) = self.provider.open_nic(&self.names[input.below(2)]) else { return };
        let make = || {
            let ptag = nic.create_ptag()?;
            let vi = nic.create_vi(&ViAttributes::new(ptag), CqHandle::NULL, CqHandle::NULL)?;
            let buffer = &self.buffers[0];
            let attributes = MemAttributes::new(ptag);
            let memory = nic.register_mem(Memory::buffer(buffer), BUFFER as u64, &attributes)?;
            nic.send_notify(vi, 1, Box::new(|_, nic, vi, _| react(0, nic, vi, CqHandle::NULL)))?;
            nic.post_send(vi, buffer.addr() as u64, memory)
        };
        let _: Result<()> = make();
    }

    pub(super) fn queries(&mut self, input: &mut Input<'_>) {
        let (_, nic) = self.nic(input);
        match input.below(5) {
            0 => drop(nic.query_nic()),
            1 => {
                let (nic, vi) = self.vi(input);
                let _ = nic.query_vi(vi);
            }
            2 => drop(nic.query_system_management_info(size(input, 5) as u32)),
            3 => drop(Error::from_raw(input.number() as u32)),
            _ => {
                let address = self.address(input);
                assert_eq!(NetAddress::parse(&address.to_bytes()), Ok(address));
            }
        }
    }
}
