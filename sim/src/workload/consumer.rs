//! A consumer: one thread that runs some streams and checks all that it learns.

use std::sync::Arc;
use std::time::Duration;

use kernel_agent::Agent;
use platform::Platform;
use platform::random::Random;
use platform::sync::atomic::AtomicU32;
use privileged_api::*;

use super::bare::Bare;
use super::datagrams::Datagrams;
use super::node::{Node, Scene};
use super::stream::{Next, PATIENCE, Phase, Stream};
use super::unreliable::Unreliable;
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Must, Step, Wrong, hold};

/// A thread with its streams.
pub(crate) struct Consumer {
    scene: Scene,
    streams: Vec<Stream>,
    datagrams: Option<Datagrams>,
    unreliable: Option<Unreliable>,
    bare: Option<Bare>,
}

/// What all consumers of a run share.
pub(crate) struct Shared {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) ias: [Ia; 2],
    /// Those of consumers over iWARP, if there are any.
    pub(crate) iwarp: Option<[Ia; 2]>,
    pub(crate) agents: [Arc<Agent>; 2],
    /// No consumer is over InfiniBand.
    pub(crate) only_iwarp: bool,
    pub(crate) quiet: bool,
    pub(crate) faulty: bool,
}

impl Consumer {
    /// Runs a consumer until all its connections are over. If the run has IAs over iWARP, most
    /// consumers use these.
    pub(crate) fn live(shared: &Shared, number: u64, seed: u64, story: &Story) -> Step<Consumer> {
        let name = format!("c{number}");
        let iwarp = shared.iwarp.as_ref().filter(|_| shared.only_iwarp || !seed.is_multiple_of(4));
        let ias = iwarp.unwrap_or(&shared.ias);
        let node = |n: usize| Node::new(&shared.platform, &ias[n], &shared.agents[n], iwarp.is_some());
        let mut scene = Scene {
            story: story.of(&name),
            name,
            platform: shared.platform.clone(),
            nodes: [node(0)?, node(1)?],
            random: Random::new(seed),
            tally: Tally::default(),
            cookie: 0,
            quiet: shared.quiet,
            faulty: shared.faulty,
            iwarp: iwarp.is_some(),
        };
        let count = 1 + scene.random.small(2);
        let streams = (0..count).map(|number| Stream::new(&mut scene, number)).collect();
        // iWARP has no datagrams.
        let datagrams = match !scene.iwarp && scene.rarely(3) {
            true => Some(Datagrams::new(&mut scene)?),
            false => None,
        };
        let unreliable = match scene.rarely(3) {
            true => Some(Unreliable::new(&mut scene, number)?),
            false => None,
        };
        let bare = match scene.iwarp && scene.rarely(2) {
            true => Some(Bare::new(&mut scene)?),
            false => None,
        };
        let mut consumer = Consumer { scene, streams, datagrams, unreliable, bare };
        consumer.run()?;
        Ok(consumer)
    }

    /// Frees all that it has.
    pub(crate) fn free(mut self) -> Step<Tally> {
        for stream in &mut self.streams {
            stream.free(&self.scene)?;
        }
        let Consumer { scene, datagrams, .. } = self;
        let Scene { nodes, tally, story, platform: _platform, .. } = scene;
        if let Some(datagrams) = datagrams {
            datagrams.free(&nodes)?;
        }
        story.tell(|| "frees all objects".into());
        for node in nodes {
            node.free()?;
        }
        Ok(tally)
    }

    fn run(&mut self) -> Step {
        loop {
            self.reap()?;
            let over = self.streams.iter().all(|stream| stream.phase == Phase::Over);
            let datagrams = self.datagrams.as_ref().is_none_or(Datagrams::is_over);
            let unreliable = self.unreliable.as_ref().is_none_or(Unreliable::is_over);
            let bare = self.bare.as_ref().is_none_or(Bare::is_over);
            if over && datagrams && unreliable && bare {
                return Ok(());
            }
            if let Some(unreliable) = &mut self.unreliable {
                unreliable.act(&mut self.scene)?;
            }
            if let Some(bare) = &mut self.bare {
                bare.act(&mut self.scene)?;
            }
            let pick = self.scene.random.below(self.streams.len() as u64 + 1) as usize;
            let next = match (self.streams.get_mut(pick), &mut self.datagrams) {
                (Some(stream), _) => stream.act(&mut self.scene)?,
                (None, Some(datagrams)) => datagrams.act(&mut self.scene)?,
                (None, None) => Next::Nothing,
            };
            match next {
                Next::Await(node) => self.wait_for_completion(pick, node)?,
                Next::Did if !self.scene.rarely(4) => {}
                Next::Did | Next::Nothing => self.rest()?,
            }
        }
    }

    /// Waits for the completion of a stream's request, which must come.
    fn wait_for_completion(&mut self, stream: usize, node: usize) -> Step {
        let before = self.scene.platform.now().as_nanos();
        let evd = self.scene.nodes[node].completions;
        let event = self.scene.wait(node, evd, PATIENCE / 1000)?;
        let took = self.scene.platform.now().as_nanos() - before;
        let Some(event) = event else {
            let name = self.streams.get(stream).map_or("datagrams", |stream| &stream.name);
            return Err(Wrong(format!(
                "{name}: a request did not complete in {} s",
                PATIENCE / 1_000_000_000
            )));
        };
        if let Some(stream) = self.streams.get(stream) {
            stream.must_be_prompt(&self.scene, took)?;
        }
        self.event(node, &event)
    }

    /// Waits a moment, now and then for any event.
    fn rest(&mut self) -> Step {
        if !self.scene.rarely(8) {
            let wait = Duration::from_nanos(1 << self.scene.random.below(20));
            let platform = &self.scene.platform;
            platform.wait(&AtomicU32::new(0), 0, Some(platform.now() + wait));
            return Ok(());
        }
        let node = self.scene.random.below(2) as usize;
        let nodes = &self.scene.nodes;
        let evds = [nodes[node].completions, nodes[node].messages, nodes[node].requests];
        let evd = evds[self.scene.random.below(3) as usize];
        let micros = 1 << self.scene.random.below(11);
        match self.scene.wait(node, evd, micros)? {
            Some(event) => self.event(node, &event),
            None => Ok(()),
        }
    }

    /// Takes all events that are there.
    fn reap(&mut self) -> Step {
        for node in [0, 1] {
            let nodes = &self.scene.nodes;
            for evd in [nodes[node].requests, nodes[node].messages, nodes[node].completions] {
                if evd == self.scene.nodes[node].completions && self.scene.rarely(4) {
                    self.reap_many(node, evd)?;
                }
                loop {
                    match self.scene.nodes[node].ia.evd_dequeue(evd) {
                        Ok(event) => self.event(node, &event)?,
                        Err(Error::QueueEmpty) => break,
                        Err(error) => return Err(error).must("it_evd_dequeue"),
                    }
                }
            }
        }
        Ok(())
    }

    fn reap_many(&mut self, node: usize, evd: EvdHandle) -> Step {
        let mut done = [DtoCompletion::default(); 8];
        let count = match self.scene.nodes[node].ia.evd_dequeue_n(evd, &mut done) {
            Ok(count) => count,
            Err(Error::QueueEmpty) => 0,
            Err(error) => return Err(error).must("evd_dequeue_n"),
        };
        done[..count].iter().try_for_each(|done| self.event(node, &Event::Dto(*done)))
    }

    fn event(&mut self, node: usize, event: &Event) -> Step {
        match event {
            Event::Dto(done) => {
                if let Some(datagrams) = self.datagrams.as_mut().filter(|d| d.is_mine(node, done.ep)) {
                    return datagrams.completed(&mut self.scene, done);
                }
                if let Some(bare) = self.bare.as_mut().filter(|bare| bare.is_mine(node, done.ep)) {
                    return bare.completed(&mut self.scene, done);
                }
                for stream in &mut self.streams {
                    if let Some(side) = stream.side_of(node, done.ep) {
                        return stream.completed(&mut self.scene, side, done);
                    }
                }
                Err(Wrong(format!("a completion of an endpoint that was freed: {done:?}")))
            }
            Event::ConnRequest(request) => {
                for stream in &mut self.streams {
                    if stream.asked(&mut self.scene, node, request)? {
                        return Ok(());
                    }
                }
                if let Some(bare) = &mut self.bare
                    && bare.asked(&self.scene, node, request)?
                {
                    return Ok(());
                }
                Err(Wrong(format!("a request of nobody: {request:?}")))
            }
            Event::ConnEstablished { ep, .. }
            | Event::ConnDisconnect { ep, .. }
            | Event::ConnBroken { ep, .. }
            | Event::ConnPeerReject { ep, .. }
            | Event::ConnNonpeerReject { ep, .. } => {
                if let Some(bare) = self.bare.as_mut().filter(|bare| bare.is_mine(node, *ep)) {
                    return bare.message(&mut self.scene, event);
                }
                for stream in &mut self.streams {
                    if let Some(side) = stream.side_of(node, *ep) {
                        return stream.message(&mut self.scene, side, event);
                    }
                }
                let freed = self.streams.iter().any(|stream| stream.was_freed(node, *ep));
                hold!(freed, "an event of an endpoint that was freed: {event:?}");
                Ok(())
            }
            other => {
                hold!(false, "unexpected event {other:?}");
                Ok(())
            }
        }
    }
}
