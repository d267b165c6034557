//! Two endpoints for datagrams: each datagram arrives intact, or is lost as a whole.

use std::collections::BTreeMap;
use std::time::Duration;

use rdma::{Datagram, Region};

use super::Scene;
use crate::harness::memory::{difference, pattern};
use crate::harness::wrong::{Step, Wrong, hold};

/// Bytes of a datagram at most.
const MOST: u64 = 900;
/// How long a datagram is waited for on a network that may lose it.
const PATIENCE: Duration = Duration::from_millis(5);

/// A datagram: its number and a pattern.
fn content(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(number, len - 8));
    bytes
}

/// Runs two endpoints until one has sent some datagrams.
pub(super) fn live(scene: &mut Scene, service: u16) -> Step {
    let at = [(); 2].map(|()| scene.random.below(2) as usize);
    let make = |scene: &Scene, nic: usize| -> Step<Option<_>> {
        let Some(domain) = scene.value(scene.nics[nic].domain(), "a domain")? else { return Ok(None) };
        scene.value(domain.datagrams().segments(2).build(), "an endpoint for datagrams")
    };
    let (Some(a), Some(b)) = (make(scene, at[0])?, make(scene, at[1])?) else { return Ok(()) };
    let Some(offered) = scene.value(b.serve(service), "a service")? else { return Ok(()) };
    let asked = scene.nics[at[0]].resolve(scene.nics[at[1]].address(), service);
    let answer = if scene.random.rarely(2) { asked.wait() } else { scene.block_on(asked)? };
    let Some(resolved) = scene.value(answer, "resolving a service")? else { return Ok(()) };
    hold!(resolved.destination.number() == b.number(), "another endpoint than the one that was offered");
    drop(offered);
    let mut sent = BTreeMap::new();
    let mut receive: Option<(rdma::Request, Region)> = None;
    for _ in 0..4 + scene.random.small(12) {
        let (request, into) = match receive.take() {
            Some(waits) => waits,
            None => {
                let Some(into) = scene.value(b.domain().region(MOST as usize), "a region")? else { break };
                let halves = [into.slice(..100), into.slice(100..)];
                let Some(request) = scene.value(b.receive(&halves), "a receive")? else { break };
                (request, into)
            }
        };
        let longest = MOST.min(a.longest() as u64);
        let (number, len) = (scene.number(), 8 + scene.random.below(longest - 7) as usize);
        let Some(from) = scene.value(a.domain().region(len), "a region")? else { break };
        from.slice(..).write(&content(number, len));
        sent.insert(number, len);
        let datagram = Datagram::new(from.slice(..), resolved.destination);
        if scene.random.rarely(2) {
            if scene.value(a.start(datagram), "a datagram")?.is_none() {
                break;
            }
        } else {
            let Some(request) = scene.value(a.start(datagram), "a datagram")? else { break };
            drop(from);
            let done = scene.wait(request)?;
            if scene.value(done, "a datagram")?.is_none() {
                break;
            }
        }
        // Without a fault it arrives; else it is waited for a moment only.
        let patience = scene.excused().then_some(PATIENCE);
        let done = match patience {
            None => Ok(scene.wait(request)?),
            Some(patience) => request.wait_timeout(patience),
        };
        match done {
            Ok(done) => {
                let Some(done) = scene.value(done, "a receive of a datagram")? else { break };
                let bytes = into.slice(..done.len).to_vec();
                let number = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
                let Some(&len) = sent.get(&number) else {
                    return Err(Wrong(format!("datagram {number} was not sent")));
                };
                let wrong = difference(&bytes, &content(number, len));
                hold!(wrong.is_none(), "datagram {number} arrived with {}", wrong.unwrap_or_default());
                hold!(done.sender.is_some_and(|sender| sender.number() == a.number()), "another sender");
                if !scene.shared.faulty {
                    sent.remove(&number);
                }
                scene.tally.did("datagrams received");
            }
            Err(waits) => {
                scene.tally.did("datagrams waited for in vain");
                receive = Some((waits, into));
            }
        }
    }
    let first = if scene.random.rarely(2) { a } else { b };
    drop(first);
    Ok(())
}
