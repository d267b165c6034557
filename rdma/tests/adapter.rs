//! The life of an adapter, whatever its face adds: which step comes after which.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use ferrovia_rdma::handle::Tag;
use ferrovia_rdma::{Adapter, Ended, Face, Opening, OutOfResources};
use host::Machine;
use kernel_agent::{Agent, AsyncEvent, CmEvent, Config, Counts, Death, Upcalls};

ferrovia_rdma::handles! {
    /// The handle of an adapter.
    Named = Tag::new(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    CloseQueues,
    WakeAll,
    DeviceDied,
    Callbacks(u32),
    DestroyObjects,
    Forget,
}

use Step::{Callbacks, CloseQueues, DestroyObjects, DeviceDied, Forget, WakeAll};

/// A face that tells its steps.
struct Told {
    adapter: Adapter<Told>,
    steps: Mutex<Sender<Step>>,
}

impl Told {
    fn tell(&self, step: Step) {
        // Who listens may have gone.
        let _ = self.steps.lock().expect("no panic").send(step);
    }
}

impl Upcalls for Told {
    fn completion(&self, _cq_context: u64) {}
    fn asynchronous(&self, _event: AsyncEvent) {}
    fn connection(&self, _event: CmEvent<'_>) {}
    fn catastrophic(&self, _death: Death) {
        self.adapter.disable(self);
    }
}

impl Face for Told {
    fn adapter(&self) -> &Adapter<Told> {
        &self.adapter
    }
    fn close_queues(&self) {
        self.tell(CloseQueues);
    }
    fn wake_all(&self) {
        self.tell(WakeAll);
    }
    fn device_died(&self) {
        self.tell(DeviceDied);
    }
    fn run_callbacks(self: &Arc<Told>, place: u32) {
        self.tell(Callbacks(place));
    }
    fn destroy_objects(&self) {
        self.tell(DestroyObjects);
    }
    fn forget(&self) {
        self.tell(Forget);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.adapter.dropped(self);
    }
}

/// Runs a test with an adapter, and returns the steps that were told by the end of it.
fn with(test: impl FnOnce(Arc<Told>, &Receiver<Step>)) -> Vec<Step> {
    let machine = Machine::new(1);
    let agent = Agent::open(machine.platform(), machine.transport(0), 0, Config::default()).expect("a NIC");
    let (steps, told) = channel();
    let opening = Opening::begin(agent.clone(), "told").expect("an opening");
    opening.reserve_callbacks(7).expect("room");
    let make = |adapter| Told { adapter, steps: Mutex::new(steps) };
    let face = opening.open(u32::MAX, Some("told"), make).expect("an adapter");
    assert_eq!(face.adapter().name(), "told");
    test(face, &told);
    let all = told.into_iter().collect();
    assert_eq!(agent.counts(), Counts::default(), "the client is left");
    agent.close();
    all
}

#[test]
fn an_end_has_its_steps_once_and_in_their_order() {
    let steps = with(|face, _| {
        let adapter = face.adapter();
        assert_eq!((adapter.check(), adapter.is_freed()), (Ok(()), false));
        assert_eq!(adapter.end(&face, || Ok::<(), Ended>(())), Ok(()));
        assert_eq!((adapter.check(), adapter.is_freed()), (Err(Ended::Freed), true));
        assert!(adapter.begin_call(&()).is_err());
        // Neither a second end nor a death has steps, nor the last clone.
        assert_eq!(adapter.end(&face, || panic!("it is decided")), Err(Ended::Freed));
        adapter.disable(&face);
    });
    // A disabling that comes too late closes the queues in vain.
    assert_eq!(steps, [CloseQueues, CloseQueues, WakeAll, DestroyObjects, Forget, CloseQueues]);
}

#[test]
fn an_end_that_is_refused_changes_nothing() {
    let steps = with(|face, told| {
        #[derive(Debug, PartialEq)]
        struct Refused;
        impl From<Ended> for Refused {
            fn from(ended: Ended) -> Refused {
                panic!("{ended:?}")
            }
        }
        assert_eq!(face.adapter().end(&face, || Err(Refused)), Err(Refused));
        assert_eq!(face.adapter().check(), Ok(()));
        assert!(told.try_recv().is_err());
        face.adapter().schedule(7);
        assert_eq!(told.recv(), Ok(Callbacks(7)));
    });
    // The last clone may be the callback thread's for a moment. It ends the adapter; nobody waits.
    assert_eq!(steps, [DestroyObjects, Forget]);
}

#[test]
fn a_death_is_reported_once_and_after_the_waiters_were_woken() {
    let steps = with(|face, _| {
        let adapter = face.adapter();
        adapter.disable(&face);
        adapter.disable(&face);
        assert_eq!(adapter.check(), Err(Ended::Disabled));
        let mut closed = false;
        adapter.created(|| closed = true);
        assert!(closed, "the queue of an object that was being created");
        assert_eq!(adapter.end(&face, || Ok::<(), Ended>(())), Ok(()));
    });
    let (death, end) = steps.split_at(5);
    assert_eq!(death, [CloseQueues, CloseQueues, WakeAll, DeviceDied, CloseQueues]);
    assert_eq!(end, [CloseQueues, CloseQueues, WakeAll, DestroyObjects, Forget]);
}

#[test]
fn an_end_waits_for_calls_in_progress_before_it_destroys_their_objects() {
    let steps = with(|face, told| {
        let call = face.adapter().begin_call(&face).expect("it is enabled");
        thread::scope(|threads| {
            threads.spawn(|| face.adapter().end(&face, || Ok::<(), Ended>(())));
            assert_eq!([(); 3].map(|()| told.recv()), [Ok(CloseQueues), Ok(CloseQueues), Ok(WakeAll)]);
            assert!(face.adapter().begin_call(&face).is_err(), "no other call begins");
            assert!(told.try_recv().is_err());
            call.adapter().face().expect("the call keeps what it uses").tell(Callbacks(0));
            drop(call);
        });
    });
    assert_eq!(steps, [Callbacks(0), DestroyObjects, Forget]);
}

#[test]
fn who_finds_an_adapter_ended_finds_nothing_left_of_it() {
    let steps = with(|face, told| {
        let call = face.adapter().begin_call(&face).expect("it is enabled");
        let (begins, begun) = channel();
        thread::scope(|threads| {
            threads.spawn(|| face.adapter().end(&face, || Ok::<(), Ended>(())));
            assert_eq!([(); 3].map(|()| told.recv()), [Ok(CloseQueues), Ok(CloseQueues), Ok(WakeAll)]);
            threads.spawn(|| {
                begins.send(()).expect("somebody listens");
                assert_eq!(face.adapter().end(&face, || panic!("it is decided")), Err(Ended::Freed));
                face.tell(Callbacks(1));
            });
            begun.recv().expect("the second call begins");
            drop(call);
        });
    });
    assert_eq!(steps, [DestroyObjects, Forget, Callbacks(1)]);
}

#[test]
fn handles_of_two_adapters_differ() {
    let _ = with(|first, _| {
        let agent = first.adapter().agent().clone();
        let second = Opening::begin(agent, "second").expect("an opening");
        let (steps, _told) = channel();
        let make = |adapter| Told { adapter, steps: Mutex::new(steps) };
        let second = second.open(u32::MAX, None, make).map_err(|OutOfResources| ()).expect("an adapter");
        let (first, second): (Named, Named) = (first.adapter().handle(), second.adapter().handle());
        assert_ne!(first.as_raw(), second.as_raw());
    });
}
