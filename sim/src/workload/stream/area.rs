//! Memory that is open to the peer, and the ways to it.

use std::sync::Arc;

use platform::DmaBuffer;
use privileged_api::*;

use crate::harness::memory::{POISON, difference, poisoned};
use crate::harness::wrong::{Must, Step, hold};
use crate::workload::node::{Node, Scene};

/// Bytes of an area; no peer may access the first and the last [`EDGE`] bytes.
pub(crate) const AREA: usize = 16 << 10;
const EDGE: usize = 4096;
/// What a target covers, all at pages: the region, the window, the list.
const RANGES: [(usize, usize); 3] = [(EDGE, 3 * EDGE), (EDGE, 2 * EDGE), (2 * EDGE, 3 * EDGE)];

/// Whether peers may use a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    /// A request that links or unlinks it is under way.
    Changing,
    Up,
    /// Its connection broke meanwhile.
    Unknown,
}

/// A region or a window of an area.
pub(crate) struct Target {
    pub(crate) lmr: LmrHandle,
    pub(crate) window: Option<RmrHandle>,
    pub(crate) way: Way,
    pub(crate) context: RmrContext,
    /// A context that is not valid any more.
    pub(crate) stale: Option<RmrContext>,
    /// The bytes of the area.
    pub(crate) range: (usize, usize),
    /// Requests of the peer that use it.
    pub(crate) users: usize,
}

impl Target {
    pub(crate) fn handle(&self) -> Handle {
        match self.window {
            Some(window) => window.into(),
            None => self.lmr.into(),
        }
    }
}

/// An area with its targets: 0 is a region that is always open, 1 a window, 2 a region that is
/// linked to a list of pages.
pub(crate) struct Area {
    pub(crate) buffer: Option<Arc<DmaBuffer>>,
    /// What it must hold once the peer's requests are complete.
    pub(crate) shadow: Vec<u8>,
    /// A request that would have changed it failed.
    pub(crate) unsure: bool,
    /// What it held when its regions had been freed: from then on nothing may change it.
    frozen: Option<Vec<u8>>,
    pub(crate) targets: Vec<Target>,
}

impl Area {
    pub(crate) const fn none() -> Area {
        Area { buffer: None, shadow: Vec::new(), unsure: false, frozen: None, targets: Vec::new() }
    }

    pub(crate) fn new(scene: &mut Scene, node: usize) -> Step<Area> {
        let buffer = poisoned(&scene.platform, AREA)?;
        let Node { ia, pz, .. } = &scene.nodes[node];
        let (start, end) = RANGES[0];
        let memory = LmrMemory::Buffer { buffer: &buffer, offset: start };
        let (region, context) = ia
            .lmr_create(
                *pz,
                memory,
                (end - start) as u64,
                AddrMode::Absolute,
                MemPriv::ALL,
                LmrFlags::NONE,
                0,
            )
            .must("it_lmr_create")?;
        let list = ia.lmr_create_unlinked(*pz, 2, LmrFlags::NONE, 0).must("it_lmr_create_unlinked")?;
        let narrow = scene.random.rarely(2);
        let kind = if narrow { RmrType::Narrow } else { RmrType::Wide };
        let window = ia.rmr_create(*pz, kind).must("it_rmr_create")?;
        let target = |n: usize, lmr, window, way, context| Target {
            lmr,
            window,
            way,
            context,
            stale: None,
            range: RANGES[n],
            users: 0,
        };
        let Some(context) = context else {
            hold!(false, "it_lmr_create returned no context");
            return Ok(Area::none());
        };
        let targets = vec![
            target(0, region, None, Way::Up, context),
            target(1, region, Some(window), Way::Down, RmrContext(0)),
            target(2, list, None, Way::Down, RmrContext(0)),
        ];
        Ok(Area { buffer: Some(buffer), shadow: vec![POISON; AREA], unsure: false, frozen: None, targets })
    }

    /// The address of a byte.
    pub(crate) fn addr(&self, at: usize) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.addr()) + at
    }

    /// Posts the link of a target on the endpoint of its side.
    pub(crate) fn post_link(
        &mut self,
        node: &Node,
        target: usize,
        ep: EpHandle,
        cookie: u64,
        flags: DtoFlags,
    ) -> Step {
        let (start, end) = self.targets[target].range;
        let (addr, bus) = (self.addr(start), self.buffer.as_ref().map_or(0, |buffer| buffer.bus()));
        let length = (end - start) as u64;
        let mode = AddrMode::Absolute;
        let (lmr, window) = (self.targets[target].lmr, self.targets[target].window);
        let context = match window {
            Some(rmr) => node
                .ia
                .rmr_link(rmr, lmr, addr, length, mode, MemPriv::REMOTE, ep, cookie, flags)
                .must("it_rmr_link")?,
            None => {
                let pages = [IoAddr(bus + start as u64)];
                let iobl = Iobl::pages(&pages, 4096, 0);
                let linked = node
                    .ia
                    .lmr_link(lmr, addr, &iobl, length, mode, MemPriv::ALL, ep, cookie, flags)
                    .must("it_lmr_link")?;
                linked.unwrap_or(RmrContext(0))
            }
        };
        let target = &mut self.targets[target];
        if target.context.0 != 0 {
            target.stale = Some(target.context);
        }
        (target.context, target.way) = (context, Way::Changing);
        Ok(())
    }

    /// Posts the unlink of a target on the endpoint of its side.
    pub(crate) fn post_unlink(
        &mut self,
        node: &Node,
        target: usize,
        ep: EpHandle,
        cookie: u64,
        flags: DtoFlags,
    ) -> Step {
        let target = &mut self.targets[target];
        let posted = match target.window {
            Some(rmr) => node.ia.rmr_unlink(rmr, ep, cookie, flags),
            None => node.ia.lmr_unlink(target.lmr, ep, cookie, flags),
        };
        posted.must("an unlink")?;
        target.way = Way::Changing;
        Ok(())
    }

    pub(crate) fn came_up(&mut self, target: usize) {
        self.targets[target].way = Way::Up;
    }

    pub(crate) fn went_down(&mut self, target: usize) {
        let target = &mut self.targets[target];
        target.way = Way::Down;
        target.stale = Some(target.context);
    }

    fn content(&self) -> Step<Vec<u8>> {
        let Some(buffer) = &self.buffer else { return Ok(Vec::new()) };
        let mut found = vec![0; AREA];
        buffer.read(0, &mut found).must("reading an area")?;
        Ok(found)
    }

    /// Checks the memory; the peer has no request under way.
    pub(crate) fn check(&self, name: &str) -> Step {
        let found = self.content()?;
        if found.is_empty() {
            return Ok(());
        }
        let (start, end) = RANGES[0];
        let edges = found[..start].iter().chain(&found[end..]).all(|&byte| byte == POISON);
        hold!(edges, "{name}: memory beside its regions was written");
        if let Some(frozen) = &self.frozen {
            let wrong = difference(&found, frozen);
            hold!(
                wrong.is_none(),
                "{name}: memory was written after its release: {}",
                wrong.unwrap_or_default()
            );
        } else if !self.unsure {
            let wrong = difference(&found, &self.shadow);
            hold!(wrong.is_none(), "{name}: its memory differs: {}", wrong.unwrap_or_default());
        }
        Ok(())
    }

    /// Frees all regions. From then on nothing may write their memory.
    pub(crate) fn free(&mut self, node: &Node) -> Step {
        for target in self.targets.drain(..).rev() {
            match target.window {
                Some(window) => node.ia.rmr_free(window).must("it_rmr_free")?,
                None => node.ia.lmr_free(target.lmr).must("it_lmr_free")?,
            }
        }
        self.frozen = Some(self.content()?);
        Ok(())
    }
}
