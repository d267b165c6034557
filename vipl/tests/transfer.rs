//! Connections and transfers on the host's platform, on each reliability level.

extern crate ferrovia_vipl as vipl;

use std::sync::mpsc::channel;
use std::time::Duration;

use vipl::*;

mod support;
use support::*;

const LEVELS: [ReliabilityLevel; 3] =
    [ReliabilityLevel::Unreliable, ReliabilityLevel::Delivery, ReliabilityLevel::Reception];

#[test]
fn messages_cross_on_each_level_and_completions_are_written_in_place() {
    let world = World::new(2);
    for level in LEVELS {
        for nics in [[0, 0], [0, 1]] {
            let (a, b) = pair(&world, nics, level);
            a.buffer.write(DATA, b"hello, world").unwrap();
            b.descriptor(0).receive(&[b.data(0, 5), b.data(100, 100)]).unwrap();
            b.post_recv(0);
            a.descriptor(0).send(&[a.data(0, 7), a.data(7, 5)], Some(0x1234)).unwrap();
            a.post_send(0);
            assert!(is_success(a.sent(0)), "{level:?}: {:?}", a.descriptor(0).status());
            let status = b.received(0);
            assert!(is_success(status), "{level:?}: {status:?}");
            assert_eq!(operation(status), Status::OP_RECEIVE);
            assert!(status.contains(Status::IMMEDIATE));
            let receive = b.descriptor(0);
            assert_eq!((receive.length(), receive.immediate()), (12, 0x1234));
            assert_eq!((b.read(0, 5), b.read(100, 7)), (b"hello".to_vec(), b", world".to_vec()));
            done(&world, &[&a, &b]);
        }
    }
}

#[test]
fn posts_link_their_predecessor_and_descriptors_leave_in_order() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Delivery);
    for number in 0..3 {
        b.descriptor(number).receive(&[]).unwrap();
        b.post_recv(number);
    }
    let next = |number| (b.descriptor(number).next(), b.descriptor(number).next_handle());
    assert_eq!(next(0), (b.descriptor(1).address(), b.memory.as_raw()));
    assert_eq!(next(1), (b.descriptor(2).address(), b.memory.as_raw()));
    assert_eq!(next(2), (0, 0));
    assert_eq!(b.nic.recv_done(b.vi), Err(Error::NotDone));
    for number in 0..3 {
        a.descriptor(number).send(&[], None).unwrap();
        a.post_send(number);
    }
    for number in 0..3 {
        assert!(is_success(a.sent(number)) && is_success(b.received(number)));
    }
    done(&world, &[&a, &b]);
}

#[test]
fn rdma_moves_data_and_the_status_word_alone_tells_of_it() {
    let world = World::new(1);
    for level in [ReliabilityLevel::Delivery, ReliabilityLevel::Reception] {
        let (a, b) = pair(&world, [0, 0], level);
        a.buffer.write(DATA, b"written").unwrap();
        b.buffer.write(DATA + 500, b"to be read").unwrap();
        b.descriptor(0).receive(&[]).unwrap();
        b.post_recv(0);
        a.descriptor(0).rdma_write(&b.remote(200), &[a.data(0, 7)], Some(7)).unwrap();
        a.post_send(0);
        while !b.descriptor(0).is_done() {
            std::hint::spin_loop();
        }
        assert_eq!(operation(b.descriptor(0).status()), Status::OP_REMOTE_RDMA_WRITE);
        assert_eq!((b.descriptor(0).immediate(), b.read(200, 7)), (7, b"written".to_vec()));
        assert!(is_success(b.received(0)) && is_success(a.sent(0)));
        a.descriptor(1).rdma_read(&b.remote(500), &[a.data(300, 10)]).unwrap();
        a.post_send(1);
        let status = a.sent(1);
        assert!(is_success(status), "{status:?}");
        assert_eq!((operation(status), a.read(300, 10)), (Status::OP_RDMA_READ, b"to be read".to_vec()));
        done(&world, &[&a, &b]);
    }
}

#[test]
fn completion_queues_name_the_interface_and_the_queue() {
    let world = World::new(1);
    let nic = world.open(0);
    let cq = nic.create_cq(16).unwrap();
    let a = Side::on(&world, nic.clone(), ReliabilityLevel::Delivery, [cq, CqHandle::NULL]);
    let b = Side::on(&world, nic.clone(), ReliabilityLevel::Delivery, [CqHandle::NULL, cq]);
    connect(&a, &b, b"x");
    assert_eq!(nic.cq_done(cq), Err(Error::NotDone));
    assert_eq!(nic.cq_wait(cq, 1), Err(Error::Timeout));
    assert_eq!(nic.send_wait(a.vi, 0), Err(Error::ErrorResource));
    b.descriptor(0).receive(&[]).unwrap();
    b.post_recv(0);
    a.descriptor(0).send(&[], None).unwrap();
    a.post_send(0);
    let mut entries = [nic.cq_wait(cq, PATIENCE).unwrap(), nic.cq_wait(cq, PATIENCE).unwrap()];
    entries.sort_by_key(|(_, receive)| *receive);
    assert_eq!(entries, [(a.vi, false), (b.vi, true)]);
    assert_eq!(nic.send_done(a.vi), Ok(a.descriptor(0).address()));
    assert_eq!(nic.recv_done(b.vi), Ok(b.descriptor(0).address()));
    assert_eq!(nic.destroy_cq(cq), Err(Error::ErrorResource));
    let (sender, calls) = channel();
    let handler = move |context, nic: &Nic, vi, receive| {
        sender.send((context, nic.handle(), vi, receive)).unwrap();
    };
    nic.cq_notify(cq, 5, Box::new(handler)).unwrap();
    nic.disconnect(a.vi).unwrap();
    a.descriptor(0).send(&[], None).unwrap();
    a.post_send(0);
    assert_eq!(calls.recv().unwrap(), (5, nic.handle(), a.vi, false));
    assert_eq!(nic.send_done(a.vi), Ok(a.descriptor(0).address()));
    nic.destroy_vi(a.vi).unwrap();
    nic.disconnect(b.vi).unwrap();
    nic.destroy_vi(b.vi).unwrap();
    nic.destroy_cq(cq).unwrap();
    assert_eq!(nic.cq_done(cq), Err(Error::InvalidParameter));
    done(&world, &[&a, &b]);
}

#[test]
fn a_handler_is_called_once_for_a_descriptor_and_may_make_any_call() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Delivery);
    let (sender, calls) = channel();
    for number in 0..2 {
        let sender = sender.clone();
        let handler = move |context, nic: &Nic, vi, descriptor| {
            let state = nic.query_vi(vi).unwrap().0;
            sender.send((context, vi, descriptor, state)).unwrap();
        };
        b.nic.recv_notify(b.vi, number, Box::new(handler)).unwrap();
        b.descriptor(number as usize).receive(&[]).unwrap();
        b.post_recv(number as usize);
    }
    b.descriptor(2).receive(&[]).unwrap();
    b.post_recv(2);
    for number in 0..3 {
        a.descriptor(number).send(&[], None).unwrap();
        a.post_send(number);
    }
    for number in 0..2 {
        let called = (number, b.vi, b.descriptor(number as usize).address(), ViState::Connected);
        assert_eq!(calls.recv().unwrap(), called);
    }
    assert!(is_success(b.received(2)), "the third is not a handler's");
    assert!(calls.try_recv().is_err());
    done(&world, &[&a, &b]);
}

#[test]
fn an_interface_is_disconnected_flushed_and_connected_again() {
    let world = World::new(1);
    for level in LEVELS {
        let (a, b) = pair(&world, [0, 0], level);
        let (sender, errors) = channel();
        let handler = move |context, error: &ErrorDescriptor| sender.send((context, *error)).unwrap();
        b.nic.error_callback(9, Some(Box::new(handler))).unwrap();
        for side in [&a, &b] {
            side.descriptor(0).receive(&[]).unwrap();
            side.post_recv(0);
        }
        assert_eq!(a.nic.destroy_vi(a.vi), Err(Error::ErrorResource));
        a.nic.disconnect(a.vi).unwrap();
        assert_eq!(a.state(), ViState::Idle);
        assert!(a.descriptor(0).status().contains(Status::DONE | Status::DESC_FLUSHED_ERROR));
        assert_eq!(a.nic.destroy_vi(a.vi), Err(Error::ErrorResource), "it was not taken");
        assert_eq!(a.nic.recv_done(a.vi), Ok(a.descriptor(0).address()));
        let (context, error) = errors.recv().unwrap();
        assert_eq!((context, error.vi, error.nic), (9, b.vi, b.nic.handle()));
        assert_eq!((error.error_code, error.resource_code), (ErrorCode::ConnLost, ResourceCode::Vi));
        assert_eq!(b.state(), ViState::Error);
        assert!(b.received(0).contains(Status::DESC_FLUSHED_ERROR));
        b.nic.disconnect(b.vi).unwrap();
        connect(&a, &b, b"again");
        b.descriptor(1).receive(&[b.data(0, 3)]).unwrap();
        b.post_recv(1);
        a.buffer.write(DATA, b"new").unwrap();
        a.descriptor(1).send(&[a.data(0, 3)], None).unwrap();
        a.post_send(1);
        assert!(is_success(a.sent(1)) && is_success(b.received(1)));
        assert_eq!(b.read(0, 3), b"new");
        assert!(errors.try_recv().is_err());
        done(&world, &[&a, &b]);
    }
}

#[test]
fn sends_of_an_idle_interface_complete_at_once_and_its_receives_stay() {
    let world = World::new(1);
    let a = Side::new(&world, 0, ReliabilityLevel::Reception, [CqHandle::NULL; 2]);
    a.descriptor(0).receive(&[]).unwrap();
    a.post_recv(0);
    a.descriptor(1).send(&[], None).unwrap();
    a.post_send(1);
    assert!(a.sent(1).contains(Status::DESC_FLUSHED_ERROR));
    assert_eq!(a.nic.recv_wait(a.vi, 1), Err(Error::Timeout));
    // Nobody serves there, so the attempt runs out of time, and the receive is still posted.
    let (own, nobody) = (a.nic.address(b"me").unwrap(), a.nic.address(b"nobody").unwrap());
    assert_eq!(a.nic.connect_request(a.vi, &own, &nobody, 20), Err(Error::Timeout));
    assert_eq!((a.state(), a.nic.recv_done(a.vi)), (ViState::Idle, Err(Error::NotDone)));
    assert_eq!(a.nic.connect_request(a.vi, &own, &nobody, 0), Err(Error::Timeout));
    a.nic.disconnect(a.vi).unwrap();
    assert!(a.received(0).contains(Status::DESC_FLUSHED_ERROR));
    a.nic.destroy_vi(a.vi).unwrap();
    assert_eq!(a.nic.post_send(a.vi, 0, a.memory), Err(Error::InvalidParameter));
    assert_eq!(a.nic.send_done(a.vi), Err(Error::InvalidParameter));
    done(&world, &[&a]);
}

#[test]
fn a_refused_accept_leaves_the_request_valid_and_a_reject_tells_the_client() {
    let world = World::new(2);
    let a = Side::new(&world, 0, ReliabilityLevel::Delivery, [CqHandle::NULL; 2]);
    let b = Side::new(&world, 1, ReliabilityLevel::Unreliable, [CqHandle::NULL; 2]);
    let server = b.nic.address(b"server").unwrap();
    let own = a.nic.address(b"the client").unwrap();
    let ask = || a.nic.connect_request(a.vi, &own, &server, PATIENCE);
    std::thread::scope(|threads| {
        let client = threads.spawn(ask);
        let request = b.nic.connect_wait(&server, Some(&own), PATIENCE).unwrap();
        assert_eq!(request.remote_addr, own);
        let (_, attributes) = a.nic.query_vi(a.vi).unwrap();
        assert_eq!(request.remote_vi_attribs, ViAttributes { ptag: PtagHandle::NULL, ..attributes });
        let accept = || b.nic.connect_accept(request.conn, b.vi);
        assert_eq!(accept(), Err(Error::InvalidReliabilityLevel));
        let set = |change: &dyn Fn(&mut ViAttributes)| {
            let mut attributes = ViAttributes { ptag: b.ptag, ..attributes };
            change(&mut attributes);
            b.nic.set_vi_attributes(b.vi, &attributes).unwrap();
        };
        set(&|attributes| attributes.max_transfer_size += 1);
        assert_eq!(accept(), Err(Error::InvalidMtu));
        set(&|attributes| attributes.qos = Qos(1));
        assert_eq!(accept(), Err(Error::InvalidQos));
        assert_eq!((a.state(), b.state()), (ViState::ConnectPending, ViState::Idle));
        set(&|_| {});
        accept().unwrap();
        let (_, ours) = b.nic.query_vi(b.vi).unwrap();
        assert_eq!(client.join().unwrap(), Ok(ViAttributes { ptag: PtagHandle::NULL, ..ours }));
        assert_eq!(accept(), Err(Error::InvalidParameter), "used up");
        assert_eq!(b.nic.connect_reject(request.conn), Err(Error::InvalidParameter));
    });
    for side in [&a, &b] {
        side.nic.disconnect(side.vi).unwrap();
    }
    std::thread::scope(|threads| {
        let client = threads.spawn(ask);
        let request = b.nic.connect_wait(&server, None, PATIENCE).unwrap();
        b.nic.connect_reject(request.conn).unwrap();
        assert_eq!(client.join().unwrap(), Err(Error::Reject));
    });
    assert_eq!(a.state(), ViState::Idle);
    done(&world, &[&a, &b]);
}

#[test]
fn requests_wait_for_their_discriminator_on_any_opening_of_the_nic() {
    let world = World::new(1);
    let (first, second) = (world.open(0), world.open(0));
    let none = [CqHandle::NULL; 2];
    let clients = [b"one", b"two"].map(|_| Side::new(&world, 0, ReliabilityLevel::Delivery, none));
    let server = |name: &[u8]| first.address(name).unwrap();
    std::thread::scope(|threads| {
        let asked: Vec<_> = clients
            .iter()
            .zip([b"one", b"two"])
            .map(|(client, name)| {
                let own = client.nic.address(name).unwrap();
                let to = server(name);
                threads.spawn(move || client.nic.connect_request(client.vi, &own, &to, PATIENCE))
            })
            .collect();
        let request = second.connect_wait(&server(b"two"), None, PATIENCE).unwrap();
        assert_eq!(request.remote_addr, server(b"two"));
        assert_eq!(first.connect_wait(&server(b"two"), None, 0), Err(Error::Timeout));
        assert_eq!(first.connect_wait(&server(b"three"), None, 0), Err(Error::Timeout));
        let any = first.connect_wait(&server(b""), None, PATIENCE).unwrap();
        assert_eq!(any.remote_addr, server(b"one"));
        assert_eq!(second.connect_reject(any.conn), Err(Error::InvalidParameter), "another opening's");
        first.connect_reject(any.conn).unwrap();
        second.connect_reject(request.conn).unwrap();
        for client in asked {
            assert_eq!(client.join().unwrap(), Err(Error::Reject));
        }
    });
    first.close_nic().unwrap();
    second.close_nic().unwrap();
    done(&world, &[&clients[0], &clients[1]]);
}

#[test]
fn a_full_queue_and_a_descriptor_elsewhere_are_asynchronous_errors() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Unreliable);
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(*error).unwrap();
    b.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    let room = b.nic.query_nic().unwrap().max_descriptors_per_queue;
    b.descriptor(0).receive(&[]).unwrap();
    for _ in 0..room {
        b.post_recv(0);
    }
    assert!(errors.try_recv().is_err());
    b.post_recv(0);
    let error = errors.recv().unwrap();
    assert_eq!((error.error_code, error.vi), (ErrorCode::ViOverrun, b.vi));
    assert_eq!((error.descriptor, error.op_code), (b.descriptor(0).address(), 1));
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(*error).unwrap();
    a.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    let at = a.descriptor(0).address();
    for (address, memory) in [(at + 32, a.memory), (at + 4096, a.memory), (at, MemHandle::from_raw(77))] {
        a.nic.post_send(a.vi, address, memory).unwrap();
        let error = errors.recv().unwrap();
        assert_eq!((error.error_code, error.descriptor), (ErrorCode::PostDesc, address));
        assert_eq!(error.resource_code, ResourceCode::Descriptor);
        assert_eq!(a.nic.send_done(a.vi), Err(Error::NotDone), "it never comes back");
    }
    assert_eq!(a.state(), ViState::Connected);
    done(&world, &[&a, &b]);
}

#[test]
fn a_full_queue_breaks_a_reliable_connection() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Reception);
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(error.error_code).unwrap();
    b.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    b.descriptor(0).receive(&[]).unwrap();
    let room = b.nic.query_nic().unwrap().max_descriptors_per_queue;
    for _ in 0..=room {
        b.post_recv(0);
    }
    assert_eq!([errors.recv().unwrap(), errors.recv().unwrap()], [ErrorCode::ViOverrun, ErrorCode::ConnLost]);
    assert_eq!(b.state(), ViState::Error);
    done(&world, &[&a, &b]);
}

#[test]
fn closing_the_nic_and_the_death_of_the_device_end_all_waits() {
    let mut world = World::new(1);
    let a = Side::new(&world, 0, ReliabilityLevel::Delivery, [CqHandle::NULL; 2]);
    let cq = a.nic.create_cq(1).unwrap();
    let any = a.nic.address(b"").unwrap();
    let wait = |expected| {
        let (started, starts) = channel();
        let (nic, vi, any) = (a.nic.clone(), a.vi, any.clone());
        let waiter = std::thread::spawn(move || {
            started.send(()).unwrap();
            assert_eq!(nic.recv_wait(vi, INFINITE), Err(expected));
            assert_eq!(nic.cq_wait(cq, INFINITE), Err(expected));
            assert_eq!(nic.connect_wait(&any, None, INFINITE), Err(expected));
        });
        starts.recv().unwrap();
        waiter
    };
    let waiter = wait(Error::InvalidParameter);
    a.nic.close_nic().unwrap();
    waiter.join().unwrap();
    assert_eq!(a.nic.close_nic(), Err(Error::InvalidParameter));
    assert_eq!(a.nic.post_recv(a.vi, 0, a.memory), Err(Error::InvalidParameter));
    assert_eq!(a.nic.query_nic(), Err(Error::InvalidParameter));

    let b = Side::new(&world, 0, ReliabilityLevel::Delivery, [CqHandle::NULL; 2]);
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(*error).unwrap();
    b.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    let (nic, vi) = (b.nic.clone(), b.vi);
    let waiter = std::thread::spawn(move || nic.send_wait(vi, INFINITE));
    world.machine.kill();
    assert_eq!(waiter.join().unwrap(), Err(Error::ErrorResource));
    let error = errors.recv().unwrap();
    assert_eq!((error.resource_code, error.vi), (ResourceCode::Nic, ViHandle::NULL));
    assert_eq!(b.nic.post_send(b.vi, 0, b.memory), Err(Error::ErrorResource));
    assert_eq!(b.nic.create_ptag(), Err(Error::ErrorResource));
    assert_eq!(b.nic.close_nic(), Ok(()));
    assert_eq!(b.nic.create_ptag(), Err(Error::InvalidParameter));
}

#[test]
fn who_waits_hears_that_the_agent_is_closed() {
    let world = World::new(1);
    let a = Side::new(&world, 0, ReliabilityLevel::Delivery, [CqHandle::NULL; 2]);
    let (sender, errors) = channel();
    let handler = move |_, error: &ErrorDescriptor| sender.send(*error).unwrap();
    a.nic.error_callback(0, Some(Box::new(handler))).unwrap();
    let (nic, vi) = (a.nic.clone(), a.vi);
    let waiter = std::thread::spawn(move || nic.recv_wait(vi, INFINITE));
    world.agents[0].close();
    assert_eq!(waiter.join().unwrap(), Err(Error::ErrorResource));
    let error = errors.recv_timeout(Duration::from_secs(60)).expect("the handler is told");
    assert_eq!((error.resource_code, error.vi), (ResourceCode::Nic, ViHandle::NULL));
    assert_eq!(a.nic.close_nic(), Ok(()));
}

#[test]
fn an_overrun_of_a_former_connection_neither_breaks_nor_hinders_the_next() {
    let world = World::new(1);
    let (a, b) = pair(&world, [0, 0], ReliabilityLevel::Delivery);
    let c = Side::on(&world, a.nic.clone(), ReliabilityLevel::Delivery, [CqHandle::NULL; 2]);
    let (reports, errors) = channel();
    let report = move |_, error: &ErrorDescriptor| reports.send((error.error_code, error.vi)).unwrap();
    a.nic.error_callback(0, Some(Box::new(report))).unwrap();
    // A handler holds the thread up that reports overruns.
    let (go, gate) = channel::<()>();
    let (begun, started) = channel::<()>();
    let hold = move |_: u64, _: &Nic, _: ViHandle, _: u64| {
        begun.send(()).unwrap();
        gate.recv().unwrap();
    };
    c.nic.send_notify(c.vi, 0, Box::new(hold)).unwrap();
    c.descriptor(0).send(&[], None).unwrap();
    c.post_send(0);
    started.recv().unwrap();
    a.descriptor(0).receive(&[]).unwrap();
    for _ in 0..257 {
        a.post_recv(0);
    }
    a.nic.disconnect(a.vi).unwrap();
    while a.nic.recv_done(a.vi).is_ok() {}
    b.nic.disconnect(b.vi).unwrap();
    connect(&a, &b, b"again");
    go.send(()).unwrap();
    let patience = std::time::Duration::from_millis(PATIENCE.into());
    assert_eq!(errors.recv_timeout(patience), Ok((ErrorCode::ViOverrun, a.vi)));
    // Whatever else was scheduled before runs before this handler.
    let (ran, runs) = channel();
    c.nic.send_notify(c.vi, 0, Box::new(move |_, _, _, _| ran.send(()).unwrap())).unwrap();
    c.post_send(0);
    runs.recv_timeout(patience).unwrap();
    b.descriptor(0).receive(&[]).unwrap();
    b.post_recv(0);
    a.descriptor(1).send(&[], None).unwrap();
    a.post_send(1);
    assert!(is_success(a.sent(1)) && is_success(b.received(0)));
    assert_eq!((a.state(), b.state()), (ViState::Connected, ViState::Connected));
    done(&world, &[&a, &b, &c]);
}

#[test]
fn as_many_handlers_wait_for_a_completion_queue_as_it_has_entries() {
    let world = World::new(1);
    let nic = world.open(0);
    let cq = nic.create_cq(4).unwrap();
    let notify = || nic.cq_notify(cq, 0, Box::new(|_, _, _, _| ()));
    // The ring may have more room than was asked for.
    let most = (0..1000).take_while(|_| notify().is_ok()).count();
    assert!((4..=8).contains(&most), "{most}");
    assert_eq!(notify(), Err(Error::ErrorResource));
    nic.close_nic().unwrap();
}
