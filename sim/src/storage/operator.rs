//! What an operator changes while the target runs: a namespace comes and goes, disks change their
//! size, hosts see other namespaces than before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ::storage::target::{Control, Export, Host, MOST_NAMESPACES, Refusal, Visible};
use block::{Disk, split};
use nvme::auth::Group;
use nvme::auth::hosts::Choice;
use platform::Instant;
use platform::random::Random;

use super::plan::TAIL;
use super::shared::{Guest, Shared, View, locked};
use super::{host, intruder, keys, rude, sharer};
use crate::harness::story::{Story, Tally};
use crate::harness::wrong::{Step, Wrong, hold};

/// The time between two changes of the kind that hosts do not notice at once.
const PERIOD: Duration = Duration::from_millis(250);

pub(super) struct Operator {
    shared: Arc<Shared>,
    random: Random,
    story: Story,
    /// The identifiers that the guest has had.
    used: BTreeSet<u32>,
    /// When disks may change their size again, and hosts may see something else.
    next_size: Instant,
    next_view: Instant,
}

impl Operator {
    pub(super) fn new(shared: &Arc<Shared>, seed: u64, story: &Story) -> Operator {
        let now = shared.now();
        Operator {
            shared: shared.clone(),
            random: Random::new(seed),
            story: story.of("operator"),
            used: BTreeSet::new(),
            next_size: now,
            next_view: now,
        }
    }

    /// A disk, for one target of so many.
    fn export(&self, number: usize, disk: Arc<dyn Disk>) -> Export {
        Export::new(disk, [number as u8 + 1; 16])
    }

    /// The namespaces of each target when it starts.
    pub(super) fn exports(&self, targets: usize) -> Vec<Vec<Export>> {
        let mut all: Vec<Vec<Export>> = (0..targets).map(|_| Vec::new()).collect();
        for number in 0..self.shared.plan.fixed() {
            let handles = split::split(self.shared.disks[number].disk.clone(), targets);
            for (exports, disk) in all.iter_mut().zip(handles) {
                exports.push(self.export(number, disk));
            }
        }
        let common = self.shared.common.iter();
        all[0].extend(common.map(|common| Export::new(common.disk.clone(), [0xcc; 16])));
        all
    }

    /// Chooses what hosts see, or lets them see all; returns the hosts that the target is to know.
    pub(super) fn hosts(&mut self, see_all: bool) -> Step<Vec<Host>> {
        let plan = &self.shared.plan;
        if !plan.has_keys && !plan.has_views {
            return Ok(Vec::new());
        }
        let random = &mut self.random;
        let mut views = vec![View::MAX; plan.hosts.len()];
        for view in views.iter_mut().filter(|_| plan.has_views && !see_all) {
            *view = random.word() | random.word();
        }
        let key = if plan.has_keys { Some(keys::right()?) } else { None };
        let groups: &[Group] = if plan.exchanges { &[Group::Ffdhe2048, Group::Null] } else { &[Group::Null] };
        let groups = Choice::new(groups.iter().copied()).ok_or(Wrong("groups".into()))?;
        let known = |name: String, view: View| {
            let last = plan.namespaces();
            let fixed = (1..=last).filter(|nsid| view >> nsid & 1 != 0).map(|nsid| (nsid, nsid));
            let guests = (view & 1 != 0).then_some((last + 1, MOST_NAMESPACES as u32));
            let namespaces = match view {
                View::MAX => Visible::ALL,
                _ => Visible::some(fixed.chain(guests)),
            };
            Host { key: key.clone(), groups, namespaces, ..Host::new(name) }
        };
        let mut hosts: Vec<Host> =
            views.iter().enumerate().map(|(number, &view)| known(host::name(number), view)).collect();
        hosts.extend((1..=plan.sharers).map(|who| known(sharer::name(who), View::MAX)));
        hosts.push(known(intruder::name(), View::MAX));
        hosts.push(Host { key: None, ..known(rude::NAME.into(), View::MAX) });
        let now = self.shared.now();
        locked(&self.shared.views).set(now, views);
        Ok(hosts)
    }

    /// Changes something now and then.
    pub(super) fn act(&mut self, control: &Control, tally: &mut Tally) -> Step {
        let plan = &self.shared.plan;
        let (has_guest, resizes, has_views) = (plan.has_guest, plan.resizes, plan.has_views);
        let now = self.shared.now();
        if has_guest && self.random.rarely(3) {
            self.change_guest(control, tally)?;
        }
        if resizes && now >= self.next_size && self.random.rarely(3) {
            self.next_size = now + PERIOD;
            self.resize();
            tally.did("operator: sizes");
        }
        if has_views && now >= self.next_view && self.random.rarely(3) {
            self.next_view = now + PERIOD;
            let hosts = self.hosts(false)?;
            let changed = control.set_hosts(hosts);
            changed.map_err(|refusal| Wrong(format!("hosts are not replaced: {refusal}")))?;
            tally.did("operator: views");
        }
        Ok(())
    }

    fn change_guest(&mut self, control: &Control, tally: &mut Tally) -> Step {
        let guest = self.shared.guest();
        let Some(nsid) = guest.nsid else {
            let last = self.shared.plan.disks.len() - 1;
            match control.add(self.export(last, self.shared.disks[last].disk.clone())) {
                Ok(nsid) => {
                    self.story.tell(|| format!("the guest is namespace {nsid}"));
                    let is_new = nsid > self.shared.plan.namespaces() && self.used.insert(nsid);
                    hold!(is_new || self.used.len() > 48, "namespace {nsid} was another one before");
                    self.shared.set_guest(Guest { nsid: Some(nsid), last: Some(nsid), is_gone: false });
                    tally.did("operator: namespaces added");
                }
                // It has commands of the time when it was one.
                Err(Refusal::UuidInUse) => {}
                Err(refusal) => return Err(Wrong(format!("a disk is not added: {refusal}"))),
            }
            return Ok(());
        };
        self.shared.set_guest(Guest { nsid: None, is_gone: false, ..guest });
        if let Err(refusal) = control.remove(nsid) {
            return Err(Wrong(format!("namespace {nsid} is not removed: {refusal}")));
        }
        self.story.tell(|| format!("namespace {nsid} is removed"));
        self.shared.set_guest(Guest { nsid: None, is_gone: true, ..guest });
        tally.did("operator: namespaces removed");
        Ok(())
    }

    fn resize(&mut self) {
        let number = self.random.below(self.shared.disks.len() as u64) as usize;
        let blocks = self.shared.plan.least_blocks() + self.random.below(TAIL + 1);
        self.story.tell(|| format!("disk {number} gets {blocks} blocks"));
        let now = self.shared.now();
        locked(&self.shared.sizes[number]).set(now, blocks);
        self.shared.disks[number].disk.resize(blocks);
    }
}
