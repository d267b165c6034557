//! NICs: opening, closing, attributes (pages VipOpenNic, VipCloseNic, VipQueryNic).
//!
//! Owns all objects of an opening. An opening is enabled, disabled (its device died) or closed
//! ([`Adapter`]).
//!
//! Locks, outermost first: an object's sleeping lock, a slot, the notices of a queue, a queue's
//! lock of the agent. The other locks spin and are leaves.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;

use kernel_agent::wire::Gid;
use kernel_agent::{Agent, Client, Features, PROVIDER_VERSION, Vi as AgentVi, ViCq};
use platform::sync::Mutex;
use rdma::{Adapter, Face, Limits, Opening, Table, own_gid};

use crate::address::{MAX_DISCRIMINATOR, NetAddress};
use crate::attributes::NicAttributes;
use crate::conn::Conn;
use crate::cq::Cq;
use crate::descriptor_map::DescriptorMap;
use crate::error::{Error, Result};
use crate::error_callback::Errors;
use crate::handle::{ConnHandle, CqHandle, NicHandle, PtagHandle, ViHandle};
use crate::memory::Registered;
use crate::provider::Joined;
use crate::ptag::Ptag;
use crate::slots::Slots;
use crate::vi::Vi;

/// The most descriptors on a work queue of a virtual interface whose consumer did not ask for
/// another number: 4 KiB of ring for each queue.
pub(crate) const DESCRIPTORS_PER_QUEUE: u32 = 256;
/// The most connection requests of an opening that wait for an answer.
const MAX_CONNS: u32 = 1024;
/// The place of the errors in the queue of the handler thread. Those of the objects follow.
const ERRORS: u32 = 0;

/// What a place in the queue of the handler thread stands for.
enum Due {
    Errors,
    /// The handlers of a work queue, 0 or 1, of the virtual interface with this index.
    Vi(usize, usize),
    /// The handlers of the completion queue with this index.
    Cq(usize),
}

/// The place of a work queue's handlers, or those of a completion queue for `queue` 2.
fn place(word: u64, queue: u32) -> u32 {
    1 + 3 * rdma::handle::index(word) as u32 + queue
}

fn due(place: u32) -> Due {
    let Some(object) = place.checked_sub(1) else { return Due::Errors };
    match (object as usize / 3, object as usize % 3) {
        (index, 2) => Due::Cq(index),
        (index, queue) => Due::Vi(index, queue),
    }
}

pub(crate) struct Core {
    pub(crate) adapter: Adapter<Core>,
    pub(crate) handle: NicHandle,
    pub(crate) features: Features,
    pub(crate) ptags: Table<PtagHandle, Ptag>,
    pub(crate) regions: Mutex<BTreeMap<u32, Arc<Registered>>>,
    pub(crate) descriptors: DescriptorMap,
    pub(crate) vis: Table<ViHandle, Vi>,
    pub(crate) vi_slots: Slots<AgentVi, 2>,
    pub(crate) cqs: Table<CqHandle, Cq>,
    pub(crate) cq_slots: Slots<ViCq, 1>,
    pub(crate) conns: Table<ConnHandle, Conn>,
    pub(crate) errors: Errors,
    /// Where peers' requests arrive, until the NIC is closed.
    joined: Mutex<Option<Joined>>,
}

/// An opened NIC. A clone is the same opening.
///
/// Every call returns `InvalidParameter` once the NIC is closed, and every call but
/// [`Nic::close_nic`] and [`Nic::query_vi`] returns `ErrorResource` once its device is dead. Long
/// lists of errors do not repeat these two. All calls may be made in handlers and by any thread.
#[derive(Clone)]
pub struct Nic(Arc<Core>);

/// A call in progress that creates, changes or destroys objects. [`Nic::close_nic`] waits until it
/// ends.
pub(crate) type Call<'a> = rdma::Call<'a, Arc<Core>>;

impl Core {
    pub(crate) fn open(agent: Arc<Agent>, name: &str, limits: &Limits, joined: Joined) -> Result<Nic> {
        let opening = Opening::begin(agent, name)?;
        let (number, agent) = (opening.number(), opening.agent());
        let (identity, config) = (*agent.identity(), *agent.config());
        let ptags = Table::new(number, config.max_pds, 0)?;
        let vis = Table::new(number, config.max_qps, 0)?;
        let cqs = Table::new(number, config.max_cqs, 0)?;
        let conns = Table::new(number, MAX_CONNS, 0)?;
        let (vi_slots, cq_slots) = (Slots::new(config.max_qps)?, Slots::new(config.max_cqs)?);
        let descriptors = DescriptorMap::new(identity.max_keys)?;
        opening.reserve_callbacks(ERRORS)?;
        let core = opening.open(limits.connections, Some("vipl-handlers"), |adapter| Core {
            handle: adapter.handle(),
            adapter,
            features: Features::from_bits_truncate(identity.features) & limits.features,
            ptags,
            regions: Mutex::new(BTreeMap::new()),
            descriptors,
            vis,
            vi_slots,
            cqs,
            cq_slots,
            conns,
            errors: Errors::new(),
            joined: Mutex::new(Some(joined)),
        })?;
        Ok(Nic(core))
    }

    /// The agent that owns the NIC.
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        self.adapter.agent()
    }

    /// The agent's client.
    pub(crate) fn client(&self) -> Result<&Arc<Client>> {
        self.adapter.client().ok_or(Error::InvalidParameter)
    }

    /// Has the handler thread deliver the errors that wait.
    pub(crate) fn schedule_errors(&self) {
        self.adapter.schedule(ERRORS);
    }

    /// Has the handler thread call the handlers of a work queue, 0 or 1, of a virtual interface.
    pub(crate) fn schedule_vi(&self, word: u64, queue: usize) {
        self.adapter.schedule(place(word, queue as u32));
    }

    /// Has the handler thread call the handlers of a completion queue.
    pub(crate) fn schedule_cq(&self, word: u64) {
        self.adapter.schedule(place(word, 2));
    }

    /// Makes room for the places of an object.
    pub(crate) fn reserve_places(&self, word: u64) -> Result<()> {
        Ok(self.adapter.reserve_callbacks(place(word, 2))?)
    }

    /// Fails unless the NIC is enabled.
    pub(crate) fn still_live(&self) -> Result<()> {
        Ok(self.adapter.check()?)
    }

    /// The error of a call whose handle opens no queue.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(&self) -> Error {
        if self.agent().is_dead() {
            self.disable();
        }
        self.still_live().err().unwrap_or(Error::InvalidParameter)
    }

    /// Maps an error of the agent, for the calls whose page names no more specific one. Disables
    /// the NIC if the device is dead.
    pub(crate) fn error(&self, error: kernel_agent::Error) -> Error {
        use kernel_agent::Error as Agent;
        match error {
            Agent::DeviceDead(_) => self.refused(),
            Agent::Gone => self.refused(),
            _ => Error::ErrorResource,
        }
    }

    /// Disables the NIC after its device died, wakes all waiters, which then return, and reports
    /// the error.
    pub(crate) fn disable(&self) {
        self.adapter.disable(self);
    }

    /// Where peers' requests arrive.
    pub(crate) fn joined(&self) -> Result<Joined> {
        self.joined.lock().clone().ok_or(Error::InvalidParameter)
    }

    /// The GID of the port that an address names; without a host part the NIC's own address.
    pub(crate) fn own_gid(&self, address: &NetAddress) -> Result<Gid> {
        let identity = self.agent().identity();
        match address.gid() {
            None => Ok(own_gid(&identity.gids)),
            Some(gid) => kernel_agent::gid_index(identity, gid).map(|_| gid).ok_or(Error::InvalidParameter),
        }
    }
}

impl Face for Core {
    fn adapter(&self) -> &Adapter<Core> {
        &self.adapter
    }

    fn close_queues(&self) {
        for vi in self.vis.all() {
            self.vi_slots.close(vi.handle.as_raw());
        }
        for cq in self.cqs.all() {
            self.cq_slots.close(cq.handle.as_raw());
        }
    }

    fn wake_all(&self) {
        self.vis.all().for_each(|vi| vi.wake_all());
        self.cqs.all().for_each(|cq| cq.wake());
        if let Some(joined) = &*self.joined.lock() {
            joined.switchboard().wake();
        }
    }

    fn device_died(&self) {
        self.report_nic();
    }

    /// Calls the handlers that are due in a place, one of them, and schedules the place again if
    /// there are more: so objects take turns.
    fn run_callbacks(self: &Arc<Core>, place: u32) {
        if self.adapter.is_freed() {
            return;
        }
        let nic = Nic(self.clone());
        let more = match due(place) {
            Due::Errors => self.errors.deliver(),
            Due::Vi(index, queue) => self.vis.at(index).is_some_and(|vi| self.run_vi(&nic, &vi, queue)),
            Due::Cq(index) => self.cqs.at(index).is_some_and(|cq| cq.run(&nic)),
        };
        if more {
            self.adapter.schedule(place);
        }
    }

    fn destroy_objects(&self) {
        self.errors.clear();
        for conn in self.conns.all() {
            self.conns.remove(conn.handle);
        }
        for vi in self.vis.all() {
            let _ = vi.vi.destroy();
            vi.end();
            self.vis.remove(vi.handle);
        }
        for cq in self.cqs.all() {
            let _ = cq.cq.destroy();
            cq.end();
            self.cqs.remove(cq.handle);
        }
        loop {
            let next = self.regions.lock().first_key_value().map(|(_, memory)| memory.clone());
            let Some(memory) = next else { break };
            if self.deregister(&memory).is_err() {
                self.regions.lock().remove(&memory.handle.as_raw());
            }
        }
        for ptag in self.ptags.all() {
            let _ = ptag.pd.destroy();
            self.ptags.remove(ptag.handle);
        }
    }

    fn forget(&self) {
        self.errors.clear();
        let joined = self.joined.lock().take();
        // The last one ends listening.
        drop(joined);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.adapter.dropped(self);
    }
}

impl Nic {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// The NIC's state. Fails unless the NIC is enabled.
    #[inline(always)]
    pub(crate) fn live(&self) -> Result<&Arc<Core>> {
        self.0.still_live()?;
        Ok(&self.0)
    }

    /// Begins a call that creates, changes or destroys objects. Fails unless the NIC is enabled.
    pub(crate) fn call(&self) -> Result<Call<'_>> {
        Ok(self.0.adapter.begin_call(&self.0)?)
    }

    /// The NIC's handle.
    pub fn handle(&self) -> NicHandle {
        self.0.handle
    }

    /// Closes the NIC, and destroys all objects that were made on it. Waiters return. After the
    /// call the device accesses none of the consumer's memory, and no handler begins; one that runs
    /// may go on.
    ///
    /// Errors: `InvalidParameter` (it is closed already). Blocks for the device, for a limited
    /// time. May be called in handlers. Thread-safe: a call that races with it succeeds or finds
    /// the NIC closed. Page VipCloseNic.
    #[doc(alias = "VipCloseNic")]
    pub fn close_nic(&self) -> Result<()> {
        self.0.adapter.end(&self.0, || Ok(()))
    }

    /// The attributes of the NIC.
    ///
    /// Errors: `InvalidParameter` (the NIC is closed), `ErrorResource` (no memory, or the NIC is
    /// dead). Does not block. May be called in handlers. Thread-safe. Page VipQueryNic.
    #[doc(alias = "VipQueryNic")]
    pub fn query_nic(&self) -> Result<NicAttributes> {
        let core = self.live()?;
        let (identity, config) = (core.agent().identity(), core.agent().config());
        let mut name = String::new();
        name.try_reserve_exact(core.adapter.name().len())?;
        name.push_str(core.adapter.name());
        let address = own_gid(&identity.gids);
        Ok(NicAttributes {
            name,
            hardware_version: core.agent().hardware_version(),
            provider_version: PROVIDER_VERSION,
            nic_address_len: address.0.len() as u16,
            local_nic_address: address.0,
            thread_safe: true,
            max_discriminator_len: MAX_DISCRIMINATOR as u16,
            max_register_bytes: identity.max_region.saturating_mul(config.max_keys.into()),
            max_register_regions: config.max_keys,
            max_register_block_bytes: identity.max_region,
            max_vi: config.max_vis,
            max_descriptors_per_queue: DESCRIPTORS_PER_QUEUE.min(identity.max_vi_entries),
            max_segments_per_desc: identity.max_vi_segments,
            max_cq: config.max_cqs,
            max_cq_entries: identity.max_cqes,
            max_transfer_size: core.max_transfer_size(),
            native_mtu: identity.mtu,
            max_ptags: config.max_pds,
        })
    }

    /// The address of an endpoint of this NIC with this discriminator: for [`Nic::connect_request`]
    /// and [`Nic::connect_wait`], here and at the remote end. An extension.
    ///
    /// Errors: `InvalidParameter` (a discriminator that is too long).
    pub fn address(&self, discriminator: &[u8]) -> Result<NetAddress> {
        NetAddress::new(&own_gid(&self.0.agent().identity().gids).0, discriminator)
    }
}

impl Core {
    /// The most bytes that a descriptor can transfer: what a descriptor's length can express, too.
    pub(crate) fn max_transfer_size(&self) -> u64 {
        self.agent().identity().max_message.min(u32::MAX.into())
    }
}

#[cfg(test)]
mod tests {
    use kernel_agent::Death;

    use super::*;
    use crate::scene::Scene;

    #[test]
    fn each_queue_has_a_place_of_its_own() {
        let word = |index| rdma::handle::word(rdma::handle::Tag::new(1), 1, index, 1);
        let seen = |place| match due(place) {
            Due::Errors => (0, 0, 0),
            Due::Vi(index, queue) => (1, index, queue),
            Due::Cq(index) => (2, index, 2),
        };
        assert_eq!(seen(ERRORS), (0, 0, 0));
        for index in [0, 1, 16383] {
            assert_eq!(seen(place(word(index), 0)), (1, index as usize, 0));
            assert_eq!(seen(place(word(index), 1)), (1, index as usize, 1));
            assert_eq!(seen(place(word(index), 2)), (2, index as usize, 2));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn what_is_gone_is_an_invalid_parameter_and_other_errors_of_the_agent_are_a_lack_of_resources() {
        let scene = Scene::new();
        let core = scene.core();
        let other = kernel_agent::Error::OutOfMemory;
        // An object that another call has destroyed.
        assert_eq!(core.error(kernel_agent::Error::Gone), Error::InvalidParameter);
        assert_eq!(core.error(other), Error::ErrorResource);
        // A NIC that another call has closed.
        scene.nic.close_nic().unwrap();
        for error in [kernel_agent::Error::Gone, kernel_agent::Error::DeviceDead(Death::Closed)] {
            assert_eq!(core.error(error), Error::InvalidParameter);
        }
        assert_eq!(core.error(other), Error::ErrorResource);
    }
}
