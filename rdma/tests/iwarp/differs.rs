//! What differs from InfiniBand: what the transport does not have, and when a refusal is seen.

use ferrovia_rdma::{
    Access, CreateError, Ending, Nic, PostError, RequestError, ResolveError, Transport, Work,
};

use crate::support::{Host, PORT, pair, poll};

#[test]
fn what_the_transport_does_not_have_is_refused_at_once() {
    let host = Host::new(2);
    let (nic, domain) = (host.nic(0), host.nic(0).domain().unwrap());
    assert_eq!(nic.transport(), Transport::Iwarp);
    let none = Some(CreateError::Unsupported("datagrams"));
    assert_eq!(domain.datagrams().build().err(), none);
    assert_eq!(nic.listen_for_datagrams(PORT).err(), none);
    assert_eq!(nic.resolve(host.address(1), PORT).wait().err(), Some(ResolveError::Unsupported));
    let (a, b) = pair(&host);
    let (from, to) = (region!(a, 64, Access::empty()), region!(b, 64, Access::all()));
    let at = to.remote().unwrap();
    for work in [
        Work::fetch_add(from.slice(..8), at, 5),
        Work::compare_swap(from.slice(..8), at, 12, 99),
        Work::send(from.slice(..8)).immediate(77),
        Work::write(from.slice(..8), at).immediate(78),
    ] {
        assert_eq!(a.post(work), Err(PostError::Unsupported));
    }
    // Nothing was posted, and the connection is as before.
    b.post_receive(to.slice(..), 1).unwrap();
    assert_eq!(a.send(from.slice(..8)).unwrap().wait().unwrap().len, 8);
    assert_eq!(poll(&b, 1)[0].result(), Ok(8));
}

#[test]
fn a_server_may_speak_first() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    let (into, from) = (region!(a, 8, Access::empty()), region!(b, 8, Access::empty()));
    let receive = a.receive(into.slice(..)).unwrap();
    from.slice(..).write(b"welcome!");
    b.send(from.slice(..)).unwrap().wait().unwrap();
    assert_eq!(receive.wait().unwrap().len, 8);
    assert_eq!(into.slice(..).to_vec(), b"welcome!");
}

#[test]
fn what_the_peer_refuses_has_succeeded_and_breaks_the_connection_afterwards() {
    let host = Host::new(2);
    let refused = |what: &str, ask: &dyn Fn(&ferrovia_rdma::Endpoint, &ferrovia_rdma::Endpoint)| {
        let (a, b) = pair(&host);
        ask(&a, &b);
        a.wait_closed(None).unwrap();
        b.wait_closed(None).unwrap();
        assert_eq!((a.ending(), b.ending()), (Some(Ending::Broken), Some(Ending::Broken)), "{what}");
    };
    refused("a Write without the right", &|a, b| {
        let from = region!(a, 8, Access::empty());
        let hidden = region!(b, 8, Access::READ);
        let write = a.write(from.slice(..), hidden.remote().unwrap()).unwrap();
        assert!(write.wait().is_ok());
        a.wait_closed(None).unwrap();
    });
    refused("a Send without a Receive", &|a, _| {
        let from = region!(a, 8, Access::empty());
        assert!(a.send(from.slice(..)).unwrap().wait().is_ok());
    });
    refused("a Send that is longer than its Receive", &|a, b| {
        let (from, into) = (region!(a, 9, Access::empty()), region!(b, 8, Access::empty()));
        let receive = b.receive(into.slice(..)).unwrap();
        assert!(a.send(from.slice(..)).unwrap().wait().is_ok());
        assert!(receive.wait().is_err());
    });
    // The Terminate names the Read, so this one fails.
    refused("a Read without the right", &|a, b| {
        let into = region!(a, 8, Access::empty());
        let hidden = region!(b, 8, Access::WRITE);
        let read = a.read(into.slice(..), hidden.remote().unwrap()).unwrap();
        assert_eq!(read.wait(), Err(RequestError::RemoteAccess));
    });
}

#[test]
fn an_end_is_the_peers_or_ones_own() {
    let host = Host::new(2);
    let (a, b) = pair(&host);
    a.disconnect();
    b.wait_closed(None).unwrap();
    a.wait_closed(None).unwrap();
    assert_eq!((a.ending(), b.ending()), (Some(Ending::BySelf), Some(Ending::ByPeer)));
}

#[test]
fn openings_of_both_transports_share_a_nic() {
    let host = Host::new(2);
    let both = pair(&host);
    let [a, b] = [0, 1].map(|number| Nic::open(&host.agents[number]).unwrap());
    // The same number: a TCP port, and a port of InfiniBand's connection manager.
    let listener = b.listen(PORT).unwrap();
    let (asks, takes) = [&a, &b].map(|nic| nic.domain().unwrap().endpoint().build().unwrap()).into();
    let connecting = asks.connect(b.address(), PORT);
    listener.wait().unwrap().accept(&takes).wait().unwrap();
    connecting.wait().unwrap();
    drop((asks, takes, both));
}
