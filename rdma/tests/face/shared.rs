//! Receives that endpoints share.

use ferrovia_rdma::{Access, PostError, Work};

use crate::support::{Host, PORT, poll};

infiniband! {
#[test]
fn endpoints_share_receives_and_a_message_gives_its_buffer_back() {
    const CLIENTS: u64 = 3;
    let host = Host::new(2);
    let (clients, server) = (host.nic(0), host.nic(1));
    let domain = server.domain().unwrap();
    let (receives, queue) = (domain.shared_receives(2, 16).unwrap(), server.queue(64).unwrap());
    let listener = server.listen(PORT).unwrap();
    let own = clients.domain().unwrap();
    let memory = own.region(16).unwrap();
    let connect = |_| {
        let (asks, takes) =
            (own.endpoint().build().unwrap(), domain.endpoint().queue(&queue).shared(&receives));
        let takes = takes.build().unwrap();
        let connecting = asks.connect(server.address(), PORT);
        listener.wait().unwrap().accept(&takes).wait().unwrap();
        connecting.wait().unwrap();
        (asks, takes)
    };
    let pairs: Vec<_> = (0..CLIENTS).map(connect).collect();
    assert_eq!(pairs[0].1.post_receive(memory.slice(..), 0), Err(PostError::NoReceives));
    for round in 0..10u8 {
        // One message more than there are buffers: it waits until one is given back.
        let all: Vec<_> = pairs
            .iter()
            .map(|(asks, _)| {
                memory.slice(..).write(&[round; 5]);
                asks.send(memory.slice(..5)).unwrap()
            })
            .collect();
        let mut from = Vec::new();
        while from.len() < CLIENTS as usize {
            for end in poll(&pairs[0].1, 1) {
                let message = receives.message(&end).expect("a message");
                assert!(receives.message(&end).is_none(), "once for each completion");
                assert_eq!(message.slice().to_vec(), [round; 5]);
                drop(message);
                assert!(receives.message(&end).is_none(), "the buffer is posted again");
                from.push(end.endpoint());
            }
        }
        all.into_iter().for_each(|sent| _ = sent.wait().unwrap());
        assert!(pairs.iter().all(|(_, takes)| from.contains(&takes.id())), "each client was heard");
    }
}
}

infiniband! {
#[test]
fn a_shared_buffer_comes_back_from_a_receive_that_failed_or_was_written() {
    let host = Host::new(2);
    let (client, server) = (host.nic(0).domain().unwrap(), host.nic(1).domain().unwrap());
    let (receives, others) = (server.shared_receives(1, 8).unwrap(), server.shared_receives(1, 8).unwrap());
    let listener = server.nic().listen(PORT).unwrap();
    let memory = client.region(64).unwrap();
    let store = server.shared_region(64, Access::WRITE).unwrap();
    let connect = || {
        let (asks, takes) =
            (client.endpoint().build().unwrap(), server.endpoint().shared(&receives).build().unwrap());
        let connecting = asks.connect(server.nic().address(), PORT);
        listener.wait().unwrap().accept(&takes).wait().unwrap();
        connecting.wait().unwrap();
        (asks, takes)
    };
    // A message that is longer than the only buffer ends its connection, and not the pool.
    for _ in 0..3 {
        let (asks, takes) = connect();
        let sent = asks.send(memory.slice(..9)).unwrap();
        let failed = poll(&takes, 1)[0];
        assert!(failed.result().is_err(), "{failed:?}");
        assert!(others.message(&failed).is_none() && receives.message(&failed).is_none());
        assert!(sent.wait().is_err());
    }
    let (asks, takes) = connect();
    let work = Work::write(memory.slice(..32), store.remote().unwrap()).immediate(7);
    asks.start(work).unwrap().wait().unwrap();
    let written = poll(&takes, 1)[0];
    assert_eq!((written.result(), written.written(), written.immediate()), (Ok(0), Some(32), Some(7)));
    assert!(others.message(&written).is_none(), "of another pool");
    assert!(receives.message(&written).unwrap().slice().is_empty());
    asks.send(memory.slice(..8)).unwrap().wait().unwrap();
    let came = poll(&takes, 1)[0];
    // The endpoint may go before its messages are looked at.
    drop(takes);
    assert_eq!(receives.message(&came).unwrap().slice().len(), 8);
    let (asks, takes) = connect();
    asks.send(memory.slice(..8)).unwrap().wait().unwrap();
    assert!(receives.message(&poll(&takes, 1)[0]).is_some());
}
}
