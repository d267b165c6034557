//! The network between the NICs of a simulation: a short cut, or a wire with faults that a seed
//! decides.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use links::{Chance, Counters, Dropped, Fault, Impaired, Impairment, Link, PairEnd, Rate, pair};
use nic_model::{Wire, port};
use platform::random::Random;
use platform::{Instant, Secret};

/// The link's MTU: the path MTU is then 1024, or 256.
const MTUS: [u32; 2] = [1500, 600];
/// The VLAN of both ports, under some seeds.
const VLAN: u16 = 7;
/// The node GUID of the first NIC; the others follow.
const GUID: u64 = 0x0266_65ff_fe72_0001;

/// What joins the NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// NICs reach each other without packets.
    ShortCut,
    /// Two NICs at the ends of a perfect link.
    Wire,
    /// Two NICs at the ends of a link that loses, repeats, reorders, corrupts and delays frames, so
    /// seldom that the usual retry counts suffice. A seed decides how much of each.
    Lossy,
    /// Two NICs at the ends of a link with faults that a seed decides: loss, duplication,
    /// reordering, corruption, delay, a rate, partitions, and flaps of the link.
    Faulty,
}

/// What a network did to frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Frames that arrived.
    pub frames: u64,
    /// Frames that met each fault. Frames get lost in a partition, too, or while the link is down.
    pub met: [u64; Fault::ALL.len()],
    /// Times at which all frames were lost for a while.
    pub partitions: u64,
    /// Times at which the link went down and came up again.
    pub flaps: u64,
}

/// What happens to the link for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Partition,
    Flap,
}

/// When something happens to the link, and until when.
#[derive(Clone, Copy, Debug)]
struct Spell {
    event: Event,
    from: Instant,
    until: Instant,
}

/// The counters of one end, with its partitions and flaps.
pub(crate) type Seen = Arc<Mutex<(Counters, u64, u64)>>;

/// One end of the wire.
pub(crate) struct End {
    link: Impaired<PairEnd>,
    /// The impairment while nothing else happens.
    usual: Impairment,
    /// What is still to happen, the next one last.
    spells: Vec<Spell>,
    /// It has begun.
    during: bool,
    partitions: u64,
    flaps: u64,
    seen: Seen,
}

impl End {
    /// Lets happen what is due.
    fn advance(&mut self, now: Instant) {
        while let Some(&Spell { event, from, until }) = self.spells.last() {
            if !self.during && now >= from {
                self.during = true;
                match event {
                    Event::Partition => {
                        self.partitions += 1;
                        self.link.set(self.usual.with(Fault::Loss, Chance::ALWAYS));
                    }
                    Event::Flap => {
                        self.flaps += 1;
                        self.link.plug(false);
                    }
                }
            }
            if !self.during || now < until {
                break;
            }
            self.during = false;
            self.link.set(self.usual);
            self.link.plug(true);
            self.spells.pop();
        }
    }
}

impl Wire for End {
    fn send(&mut self, frame: &[u8], now: Instant) {
        self.advance(now);
        self.link.send(frame, now);
    }

    fn has_room(&self) -> bool {
        self.link.has_room()
    }

    fn receive(&mut self, into: &mut [u8], now: Instant) -> Option<usize> {
        self.advance(now);
        self.link.receive(into, now)
    }

    fn flush(&mut self, now: Instant) {
        self.advance(now);
        self.link.flush(now);
        let counted = (self.link.counters(), self.partitions, self.flaps);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    }

    fn up(&self) -> bool {
        self.link.up()
    }

    fn deadline(&self) -> Option<Instant> {
        let spell = self.spells.last().map(|spell| if self.during { spell.until } else { spell.from });
        self.link.deadline().into_iter().chain(spell).min()
    }
}

/// The wire between two NICs.
pub(crate) struct Cable {
    pub(crate) ends: Vec<(Box<dyn Wire + Send>, port::Config)>,
    pub(crate) seen: Vec<Seen>,
}

impl Cable {
    /// The wire that `network` asks for; none for a short cut.
    pub(crate) fn new(network: Network, seed: u64) -> Cable {
        if network == Network::ShortCut {
            return Cable { ends: Vec::new(), seen: Vec::new() };
        }
        let mut random = Random::new(seed ^ 0x6e65_7477_6f72_6b00);
        let mtu = MTUS[random.below(2) as usize];
        let (usual, spells) = match network {
            Network::Faulty => (faults(&mut random), spells(&mut random)),
            Network::Lossy => (seldom(&mut random), Vec::new()),
            Network::Wire | Network::ShortCut => (Impairment::default(), Vec::new()),
        };
        let vlan = random.rarely(4).then_some(VLAN);
        let (mut ends, mut all_seen) = (Vec::new(), Vec::new());
        let (a, b) = pair();
        for (n, link) in [a, b].into_iter().enumerate() {
            // The first end impairs both directions; the link goes down at both ends.
            let usual = if n == 0 { usual } else { Impairment::default() };
            let spells = spells.iter().copied().filter(|spell| n == 0 || spell.event == Event::Flap);
            let seen = Seen::default();
            let end = End {
                link: Impaired::new(link, usual),
                usual,
                spells: spells.collect(),
                during: false,
                partitions: 0,
                flaps: 0,
                seen: seen.clone(),
            };
            let address = format!("10.0.0.{}/24", n + 1).parse().expect("an address of our own is valid");
            let config = port::Config::new(GUID + n as u64, mtu, &[address]);
            let config = port::Config { vlan, secret: Secret::new([seed, 0]), ..config };
            ends.push((Box::new(end) as Box<dyn Wire + Send>, config));
            all_seen.push(seen);
        }
        Cable { ends, seen: all_seen }
    }
}

/// What the ends have seen.
pub(crate) fn faults_of(seen: &[Seen]) -> NetworkFaults {
    let mut all = NetworkFaults::default();
    for (n, end) in seen.iter().enumerate() {
        let (counters, partitions, flaps) = *end.lock().unwrap_or_else(PoisonError::into_inner);
        all.frames += counters.received;
        for fault in Fault::ALL {
            all.met[fault as usize] += counters.met(fault);
        }
        all.met[Fault::Loss as usize] += counters.dropped(Dropped::NoPeer);
        if n == 0 {
            all.partitions = partitions;
            all.flaps = flaps;
        }
    }
    all
}

/// A choice of faults: some seeds have one kind, others several.
fn faults(random: &mut Random) -> Impairment {
    let chosen = Fault::ALL.into_iter().fold(Impairment::default(), |chosen, fault| {
        // Under one seed in how many it happens, and to how many frames of a thousand at most.
        let (often, most) = match fault {
            Fault::Loss => (2, 60),
            Fault::Dup => (3, 60),
            Fault::Reorder => (3, 100),
            Fault::Corrupt => (3, 30),
        };
        match random.rarely(often) {
            true => chosen.with(fault, Chance::of(1 + random.small(most), 1000)),
            false => chosen,
        }
    });
    let delay = if random.rarely(3) { random.below(2_000_000) } else { random.below(20_000) };
    let rate = if random.rarely(4) { Rate::bits(100_000_000 << random.below(7)) } else { None };
    Impairment { delay: Duration::from_nanos(delay), rate, seed: random.word(), ..chosen }
}

/// Faults with which a request still fails almost never: each at most once in a hundred frames.
fn seldom(random: &mut Random) -> Impairment {
    let chosen = Fault::ALL
        .into_iter()
        .fold(Impairment::default(), |chosen, fault| chosen.with(fault, Chance::of(random.small(11), 1000)));
    let delay = Duration::from_nanos(random.below(50_000));
    Impairment { delay, seed: random.word(), ..chosen }
}

/// When the link loses everything or goes down: the latest first.
fn spells(random: &mut Random) -> Vec<Spell> {
    let mut spells = Vec::new();
    let mut at = 0;
    for _ in 0..random.below(4) {
        at += random.below(60_000_000);
        let event = [Event::Partition, Event::Flap][random.below(2) as usize];
        // Short ones are hidden by retries, long ones break connections.
        let lasts = 1 << random.below(30);
        let from = Instant::from_nanos(at);
        at += lasts;
        spells.push(Spell { event, from, until: Instant::from_nanos(at) });
    }
    spells.reverse();
    spells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a frame over the cable, and returns how many arrive by the end of that millisecond.
    fn arrive(ends: &mut [(Box<dyn Wire + Send>, port::Config)], millis: u64) -> usize {
        let now = Instant::from_nanos(millis * 1_000_000);
        let soon = Instant::from_nanos(millis * 1_000_000 + 999_999);
        ends[0].0.send(&[7; 60], now);
        ends[0].0.flush(soon);
        let mut frame = [0; 100];
        std::iter::from_fn(|| ends[1].0.receive(&mut frame, soon)).count()
    }

    #[test]
    fn a_perfect_wire_loses_nothing() {
        let mut cable = Cable::new(Network::Wire, 3);
        assert!((0..50).all(|millis| arrive(&mut cable.ends, millis) == 1));
        assert_eq!(faults_of(&cable.seen).met, [0; Fault::ALL.len()]);
        assert!(Cable::new(Network::ShortCut, 3).ends.is_empty());
    }

    #[test]
    fn each_fault_fires_under_some_seed_and_a_seed_decides_all() {
        let mut all = NetworkFaults::default();
        for seed in 0..60 {
            let run = || {
                let mut cable = Cable::new(Network::Faulty, seed);
                (0..400).for_each(|millis| _ = arrive(&mut cable.ends, millis));
                faults_of(&cable.seen)
            };
            let fired = run();
            assert_eq!(fired, run());
            all.met.iter_mut().zip(fired.met).for_each(|(sum, times)| *sum += times);
            all.partitions += fired.partitions;
            all.flaps += fired.flaps;
        }
        assert!(all.met.iter().chain([&all.partitions, &all.flaps]).all(|&times| times > 10), "{all:?}");
    }

    #[test]
    fn a_lossy_wire_has_each_of_its_faults_and_is_neither_cut_off_nor_down() {
        let mut all = NetworkFaults::default();
        for seed in 0..40 {
            let mut cable = Cable::new(Network::Lossy, seed);
            (0..400).for_each(|millis| _ = arrive(&mut cable.ends, millis));
            let fired = faults_of(&cable.seen);
            assert!(
                fired.met[Fault::Loss as usize] < 20 && (fired.partitions, fired.flaps) == (0, 0),
                "{fired:?}"
            );
            all.met.iter_mut().zip(fired.met).for_each(|(sum, times)| *sum += times);
        }
        assert!(all.met.iter().all(|&times| times > 10), "{all:?}");
    }

    #[test]
    fn the_link_is_down_during_a_flap() {
        let mut cable = Cable::new(Network::Wire, 0);
        let (a, b) = pair();
        let spell = Spell { event: Event::Flap, from: Instant::from_nanos(5), until: Instant::from_nanos(9) };
        let mut end = End {
            link: Impaired::new(a, Impairment::default()),
            usual: Impairment::default(),
            spells: vec![spell],
            during: false,
            partitions: 0,
            flaps: 0,
            seen: cable.seen.remove(0),
        };
        let mut ups = Vec::new();
        for (now, next) in [(0, Some(5)), (5, Some(9)), (8, Some(9)), (9, None)] {
            end.flush(Instant::from_nanos(now));
            ups.push(end.up());
            assert_eq!(end.deadline(), next.map(Instant::from_nanos));
        }
        assert_eq!(ups, [true, false, false, true]);
        drop(b);
    }
}
