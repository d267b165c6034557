//! Querying and changing the parameters of an event dispatcher (pages it_evd_query, it_evd_modify).

use rdma::events::NotResized;

use super::EventStreams;
use super::aggregate::Reservation;
use super::callback::Origin;
use super::create::MAX_EVENTS;
use crate::attributes::EvdParam;
use crate::flags::{EvdFlags, EvdParamMask};
use crate::handle::EvdHandle;
use crate::ia::{Core, Ia};
use crate::objects::evd::Evd;
use crate::status::{Error, Result};

/// The parameters of every event dispatcher that can be changed.
const OF_ALL: EvdParamMask = EvdParamMask::ENABLED.union(EvdParamMask::OVERFLOWED);
/// Further parameters that can be changed, of simple event dispatchers only.
const OF_SIMPLE: EvdParamMask =
    EvdParamMask::QUEUE_SIZE.union(EvdParamMask::THRESHOLD).union(EvdParamMask::AEVD_HANDLE);

impl Ia {
    /// Returns the parameters of an event dispatcher. Size and threshold of an aggregate are 0. In
    /// place of the file descriptor, `has_fd` says whether there is a notification object;
    /// [`Ia::evd_notification`] returns the object.
    ///
    /// Errors: `InvalidEvd`, `InvalidMask`, `InvalidIa`, `IaCatastrophe`. Blocks only while another
    /// call modifies the event dispatcher. May be called in callbacks. Thread-safe. Page
    /// it_evd_query.
    #[doc(alias = "it_evd_query")]
    pub fn evd_query(&self, evd: EvdHandle, mask: EvdParamMask) -> Result<EvdParam> {
        let core = self.live()?;
        let evd = core.evd(evd)?;
        if EvdParamMask::from_bits(mask.bits()).is_none() {
            return Err(Error::InvalidMask);
        }
        // Under this lock the query returns either all changes of an evd_modify or none.
        let _changes = evd.changes.lock(&core.shared.platform);
        let wants = |bit| mask.intersects(bit | EvdParamMask::ALL);
        let has_fd = evd.has_notifier();
        let mut param = EvdParam::default();
        if wants(EvdParamMask::IA) {
            param.ia = core.handle;
        }
        if wants(EvdParamMask::EVENT_NUMBER) {
            param.event_number = evd.stream;
        }
        if wants(EvdParamMask::FLAG) {
            param.evd_flag = evd.flags;
            param.evd_flag.set(EvdFlags::CREATE_FD, has_fd);
        }
        if wants(EvdParamMask::QUEUE_SIZE) {
            param.sevd_queue_size = evd.capacity();
        }
        if wants(EvdParamMask::THRESHOLD) {
            param.sevd_threshold = evd.threshold();
        }
        if wants(EvdParamMask::AEVD_HANDLE) {
            param.aevd = evd.feed(|feed| feed.handle).unwrap_or_default();
        }
        if wants(EvdParamMask::FD) {
            param.has_fd = has_fd;
        }
        if wants(EvdParamMask::BOUND) {
            param.evd_bound = evd.feeds_itself() || evd.feeds.in_use();
        }
        if wants(EvdParamMask::ENABLED) {
            param.evd_enabled = evd.is_enabled();
        }
        if wants(EvdParamMask::OVERFLOWED) {
            param.evd_overflowed = evd.have_overflowed(EventStreams::all());
        }
        if wants(EvdParamMask::CALLBACK) {
            param.evd_callback = evd.has_callback();
        }
        Ok(param)
    }

    /// Changes parameters of an event dispatcher: queue size, threshold, the aggregate that it
    /// feeds, enabled, overflowed. Changes all or nothing; parameters that are given together are
    /// checked together. The overflowed state of an event dispatcher for completions cannot be
    /// cleared: setting or clearing it has no effect there, nor for an aggregate.
    ///
    /// The aggregate can be changed while the event dispatcher is disabled (or is disabled by this
    /// call) and has no notification object. An aggregate without
    /// [`EvdFlags::DEQUEUE_NOTIFICATIONS`] cannot be changed: the event dispatcher feeds it until
    /// the event dispatcher is freed. A null aggregate has no effect if the event dispatcher feeds
    /// none. The former aggregate loses the notifications of this event dispatcher.
    ///
    /// While it is enabled, an event dispatcher notifies its aggregate, callback or notification
    /// object. If it meets the notification criteria when it is enabled, it notifies at once.
    /// Threads that wait on it when it begins to notify an aggregate or a notification object
    /// return `InvalidEvdState`. Notifications that were made before the event dispatcher is
    /// disabled remain.
    ///
    /// Errors: `InvalidEvd`, `InvalidMask` (also for a parameter that an aggregate does not have),
    /// `InvalidAevd`, `CallbackExists` (an event dispatcher with a callback can feed no aggregate),
    /// `InvalidEvdState` (the aggregate cannot be changed now), `InvalidQueueSize`,
    /// `InvalidThreshold`, `ResourceQueueSize`, `Resources`, `InvalidIa`, `IaCatastrophe`. Blocks
    /// for the device (to change the size of a queue of completions). Not for callbacks.
    /// Thread-safe. Page it_evd_modify.
    #[doc(alias = "it_evd_modify")]
    pub fn evd_modify(&self, evd: EvdHandle, mask: EvdParamMask, params: &EvdParam) -> Result<()> {
        let core = self.call()?;
        core.shared.not_in_callback()?;
        let evd = core.evd(evd)?;
        let changeable = if evd.aggregate().is_some() { OF_ALL } else { OF_ALL.union(OF_SIMPLE) };
        if mask.bits() & !changeable.bits() != 0 {
            return Err(Error::InvalidMask);
        }
        let _changes = evd.changes.lock(&core.shared.platform);
        let switch = mask.contains(EvdParamMask::ENABLED).then_some(params.evd_enabled);
        let feed = match mask.contains(EvdParamMask::AEVD_HANDLE) {
            true => core.other_aggregate(&evd, params.aevd, switch == Some(false) || !evd.is_enabled())?,
            false => None,
        };
        let resize = mask.contains(EvdParamMask::QUEUE_SIZE).then_some(params.sevd_queue_size.max(1));
        let size = resize.unwrap_or_else(|| evd.capacity());
        if mask.contains(EvdParamMask::THRESHOLD) {
            if params.sevd_threshold > size {
                return Err(Error::InvalidThreshold);
            }
        } else if evd.threshold() > size {
            return Err(Error::InvalidQueueSize);
        }
        if let Some(size) = resize {
            // If the EVD was freed meanwhile, its queue cannot be resized for that reason.
            let invalid = |error| if core.evd(evd.handle).is_err() { Error::InvalidEvd } else { error };
            core.resize(&evd, size).map_err(invalid)?;
        }
        if switch == Some(false) && evd.is_enabled() && evd.is_linked() {
            // Notify while the EVD is still enabled, and record whether the notification object was
            // ready.
            core.announce(&evd, Origin::Call);
            evd.keep_if_ready();
        }
        if let Some(feed) = feed {
            // Fails only if the EVD was freed meanwhile: `changes` excludes attaching a callback.
            evd.set_aggregate(feed)?;
        }
        if let Some(enabled) = switch {
            evd.set_enabled(enabled);
        }
        if mask.contains(EvdParamMask::THRESHOLD) {
            evd.set_threshold(params.sevd_threshold);
        }
        if mask.contains(EvdParamMask::OVERFLOWED) && !params.evd_overflowed {
            evd.clear_overflow(EventStreams::MADE);
        }
        // The new parameters may make the notification criteria present.
        core.announce(&evd, Origin::Call);
        Ok(())
    }
}

impl Core {
    /// The new aggregate of an EVD: `None` for no change, `Some(None)` for no aggregate. `disabled`
    /// says that the EVD is disabled, or is about to be.
    fn other_aggregate(
        &self,
        evd: &Evd,
        aevd: EvdHandle,
        disabled: bool,
    ) -> Result<Option<Option<Reservation>>> {
        let feed = if aevd.is_null() { None } else { Some(self.feed_aggregate(aevd)?) };
        if feed.is_none() && evd.feed(|_| ()).is_none() {
            return Ok(None);
        }
        if feed.is_some() && evd.has_callback() {
            return Err(Error::CallbackExists);
        }
        if !disabled || evd.has_notifier() || evd.is_captive() {
            return Err(Error::InvalidEvdState);
        }
        Ok(Some(feed))
    }

    fn resize(&self, evd: &Evd, size: usize) -> Result<()> {
        let simple = evd.queue().simple().ok_or(Error::InvalidMask)?;
        if simple.made().is_some() && size > MAX_EVENTS {
            return Err(Error::ResourceQueueSize);
        }
        simple.resize(&self.shared.platform, size).map_err(|why| match why {
            NotResized::Occupied => Error::InvalidQueueSize,
            NotResized::OutOfResources => Error::ResourceQueueSize,
            NotResized::Dead => self.disable_on_catastrophe(Error::IaCatastrophe),
        })?;
        evd.clear_overflow(evd.policy.auto_reset);
        Ok(())
    }
}
