//! A stream of bytes: what is sent arrives in order and intact, or the stream has a reason to end.
//! Some streams become a connection of iWARP.

use rdma::{Access, Endpoint, Nic, Stream, StreamError};

use super::{PATIENCE, Scene};
use crate::harness::memory::{difference, pattern};
use crate::harness::wrong::{Step, hold};

/// Bytes in one direction at most.
const MOST: u64 = 60_000;
/// Between two looks at a stream for which there is nothing to do, nanoseconds.
const PAUSE: u64 = 50_000;
/// What one end says last before a conversion.
const LAST: &[u8] = b"convert";

/// Runs a stream.
pub(super) fn live(scene: &mut Scene, nics: &[Nic; 2], port: u16) -> Step {
    let [first, second] = [(); 2].map(|()| scene.random.below(2) as usize);
    let (active, passive) = (&nics[first], &nics[second]);
    let listened = passive.listen_for_streams(port);
    let Some(listener) = scene.value(listened, "a listener of streams")? else { return Ok(()) };
    let connects = async { active.connect_stream(passive.address(), port).await.map_err(|e| e.to_string()) };
    let accepts = async { listener.accept().await.map_err(|error| error.to_string()) };
    let connected = scene.both(connects, accepts)?;
    let Some((a, b)) = scene.value(connected, "connecting a stream")? else { return Ok(()) };
    scene.tally.did("streams");
    for (from, to) in [(&a, &b), (&b, &a)] {
        if !pass(scene, from, to)? {
            return Ok(());
        }
    }
    match scene.random.below(3) {
        0 => finish(scene, &a, &b),
        1 => reset(scene, a, b),
        _ => convert(scene, (a, active), (b, passive)),
    }
}

/// Passes bytes from one end to the other. Whether the stream goes on.
fn pass(scene: &mut Scene, from: &Stream, to: &Stream) -> Step<bool> {
    let bytes = pattern(scene.random.word(), scene.random.below(MOST) as usize);
    let (mut sent, mut came) = (0, 0);
    let mut part = [0; 3000];
    let deadline = scene.shared.platform.now() + PATIENCE;
    while came < bytes.len() {
        let end = bytes.len().min(sent + 1 + scene.random.below(5000) as usize);
        let Some(more) = scene.value(from.try_send(&bytes[sent..end]), "sending bytes")? else {
            return Ok(false);
        };
        sent += more;
        let most = 1 + scene.random.below(part.len() as u64) as usize;
        let Some(arrived) = scene.value(to.try_receive(&mut part[..most]), "receiving bytes")? else {
            return Ok(false);
        };
        match arrived {
            Some(0) => {
                hold!(scene.excused(), "a stream has ended after {came} of {} bytes", bytes.len());
                return Ok(false);
            }
            Some(count) => {
                hold!(came + count <= sent, "{} bytes came, and {sent} were sent", came + count);
                let wrong = difference(&part[..count], &bytes[came..came + count]);
                hold!(wrong.is_none(), "byte {came} of a stream: {}", wrong.unwrap_or_default());
                came += count;
            }
            None if more == 0 => scene.pause(PAUSE),
            None => {}
        }
        hold!(scene.shared.platform.now() < deadline, "{came} of {sent} bytes have come");
    }
    Ok(true)
}

/// One end sends no more: the other one learns it, and still sends.
fn finish(scene: &mut Scene, a: &Stream, b: &Stream) -> Step {
    if scene.value(a.finish(), "finishing a stream")?.is_none() {
        return Ok(());
    }
    let ended = scene.block_on(b.receive(&mut [0; 8]))?;
    if let Some(count) = scene.value(ended, "the end of a stream")? {
        hold!(count == 0, "{count} bytes came behind the end");
        pass(scene, b, a)?;
        scene.tally.did("streams finished");
    }
    Ok(())
}

/// One end resets the stream: the other one learns it, unless the network may lose that.
fn reset(scene: &mut Scene, a: Stream, b: Stream) -> Step {
    a.reset();
    if !scene.excused() {
        let ended = scene.block_on(b.receive(&mut [0; 8]))?;
        hold!(ended == Err(StreamError::Broken) || scene.excused(), "after a reset: {ended:?}");
        scene.tally.did("streams reset");
    }
    Ok(())
}

/// The stream becomes a connection, on which a message arrives.
fn convert(scene: &mut Scene, (a, active): (Stream, &Nic), (b, passive): (Stream, &Nic)) -> Step {
    let end = |scene: &Scene, nic: &Nic| -> Step<Option<Endpoint>> {
        let Some(domain) = scene.value(nic.domain(), "a domain")? else { return Ok(None) };
        scene.value(domain.endpoint().build(), "an endpoint")
    };
    let (Some(asks), Some(says)) = (end(scene, active)?, end(scene, passive)?) else { return Ok(()) };
    let active = async {
        let (mut said, mut count) = ([0; LAST.len()], 0);
        while count < said.len() {
            match a.receive(&mut said[count..]).await.map_err(|error| error.to_string())? {
                0 => return Err("the stream ends before the last message".into()),
                some => count += some,
            }
        }
        if said != LAST {
            return Err(format!("the last message is {said:?}"));
        }
        a.convert(&asks).await.map(drop).map_err(|error| error.to_string())
    };
    let passive = async { b.convert_after(&says, LAST).await.map(drop).map_err(|error| error.to_string()) };
    let converted = scene.both(active, passive)?;
    if scene.value(converted, "converting a stream")?.is_none() {
        return Ok(());
    }
    let bytes = pattern(scene.random.word(), 100);
    let region = |scene: &Scene, of: &Endpoint| {
        scene.value(of.domain().shared_region(bytes.len(), Access::empty()), "a region")
    };
    let (Some(from), Some(into)) = (region(scene, &asks)?, region(scene, &says)?) else { return Ok(()) };
    from.slice(..).write(&bytes);
    let Some(receive) = scene.value(says.receive(into.slice(..)), "a receive")? else { return Ok(()) };
    let Some(send) = scene.value(asks.send(from.slice(..)), "a message")? else { return Ok(()) };
    let (sent, came) = (scene.wait(send)?, scene.wait(receive)?);
    if scene.value(sent.and(came), "a message of a converted stream")?.is_some() {
        let wrong = difference(&into.slice(..).to_vec(), &bytes);
        hold!(wrong.is_none(), "a message of a converted stream: {}", wrong.unwrap_or_default());
        scene.tally.did("streams converted");
    }
    Ok(())
}
