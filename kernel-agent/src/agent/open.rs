//! How an agent is opened: the NIC comes up, the dispatcher thread starts.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use nic_hal::{Nic, Transport};
use platform::sync::Mutex;
use platform::{Platform, Secret, Signal, heap};

use super::Agent;
use super::config::{
    ASYNC_EVENTS, Config, EQ_ASYNC, EQ_COMPLETIONS, EQ_STREAMS, EQ_VIS, EVENTS_PER_CQ, EVENTS_PER_STREAM,
    EVENTS_PER_VI, MIN_EVENTS, former, longest_eq,
};
use crate::connections::ConnectionManager;
use crate::dispatch::Dispatcher;
use crate::event_room::{EventRoom, Marks};
use crate::gsi::Gsi;
use crate::key::Keys;
use crate::mpa::Mpa;
use crate::object::COUNTERS;
use crate::stream::{Streams, TRANSFER};
use crate::table::{Numbers, Slots, Table};
use crate::{Client, Error};

/// What the dispatcher thread's name and what its function refers to take.
const THREAD: usize = 256;

impl Agent {
    /// Brings the NIC up and starts the dispatcher thread, named "agent-`number`".
    pub fn open(
        platform: Arc<dyn Platform>,
        transport: Arc<dyn Transport>,
        number: u32,
        config: Config,
    ) -> Result<Arc<Agent>, Error> {
        let nic = Nic::open(platform.clone(), transport)?;
        if !config.silence.is_zero() {
            nic.bear_silence(config.silence);
        }
        let identity = *nic.identity();
        let config = config.within(&identity);
        let secret = Secret::gather(&platform, identity.node_guid);
        let agent = Agent {
            qps: heap::arc(Table::new(2, config.max_qps + 2)?).map_err(|_| Error::OutOfMemory)?,
            vis: Slots::new(config.max_qps + 2)?,
            cqs: Table::new(0, config.max_cqs + 1)?,
            vi_cqs: Slots::new(config.max_cqs + 1)?,
            srqs: Table::new(0, config.max_srqs)?,
            pds: Numbers::new(1, config.max_pds + 2),
            keys: Keys::new(config.max_keys),
            connections: ConnectionManager::new(
                platform.clone(),
                identity,
                nic.signal().clone(),
                (config.max_connections, config.max_listens),
                secret,
            )?,
            mpa: Mpa::new(
                platform.clone(),
                identity,
                nic.signal().clone(),
                (config.max_connections, config.max_listens, config.max_streams),
                !config.without_crc,
            ),
            counts: [const { AtomicU32::new(0) }; COUNTERS],
            clients: Mutex::new(Vec::new()),
            notices: Marks::new(config.max_cqs + 1)?,
            event_room: EventRoom::new(
                config.max_cqs + 1,
                former(&identity, EVENTS_PER_CQ),
                nic.signal().clone(),
            ),
            vi_room: EventRoom::new(config.max_vis, former(&identity, EVENTS_PER_VI), nic.signal().clone()),
            streams: Streams::new(
                config.max_streams,
                former(&identity, EVENTS_PER_STREAM),
                nic.signal().clone(),
            )?,
            own: Mutex::new(None),
            stopping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            dispatcher: AtomicU64::new(0),
            finished: heap::arc(Signal::new(platform.clone())).map_err(|_| Error::OutOfMemory)?,
            platform,
            nic,
            identity,
            number,
            config,
        };
        let agent = heap::arc(agent).map_err(|_| Error::OutOfMemory)?;
        if let Err(error) = agent.start() {
            agent.finished.raise();
            agent.close();
            return Err(error);
        }
        Ok(agent)
    }

    fn start(self: &Arc<Agent>) -> Result<(), Error> {
        let most = longest_eq(&self.identity);
        let log = |entries: u32| entries.next_power_of_two().clamp(MIN_EVENTS, most).ilog2();
        let async_events = (4 * self.config.max_qps + 256).min(ASYNC_EVENTS);
        let completion_events = self.event_room.shares() * EVENTS_PER_CQ;
        let vector = u16::from(self.identity.vectors > 1);
        let vi_events = self.vi_room.shares() * EVENTS_PER_VI;
        let vis = || self.nic.create_eq(EQ_VIS, log(vi_events), vector);
        let stream_events = self.streams.room.shares() * EVENTS_PER_STREAM;
        let streams = || -> Result<_, Error> {
            self.streams.start(self.nic.stream_buffer(TRANSFER)?);
            Ok(self.nic.create_eq(EQ_STREAMS, log(stream_events), vector)?)
        };
        let dispatcher = Dispatcher::new(
            self.nic.create_eq(EQ_ASYNC, log(async_events), 0)?,
            self.nic.create_eq(EQ_COMPLETIONS, log(completion_events), vector)?,
            (self.config.max_vis > 0).then(vis).transpose()?,
            (self.config.max_streams > 0).then(streams).transpose()?,
        );
        let own = Client::new(self, None)?;
        *self.own.lock() = Some(own.clone());
        let gsi = heap::arc(Gsi::create(&own)?).map_err(|_| Error::OutOfMemory)?;
        self.connections.start(gsi);
        heap::room(size_of::<Dispatcher>() + THREAD)?;
        let agent = self.clone();
        let main = move || {
            agent.dispatcher.store(agent.platform.current_thread(), Ordering::Release);
            dispatcher.run(&agent);
            agent.dispatcher.store(0, Ordering::Release);
            let finished = agent.finished.clone();
            drop(agent);
            finished.raise();
        };
        self.platform.spawn(&format!("agent-{}", self.number), Box::new(main))?;
        Ok(())
    }
}
