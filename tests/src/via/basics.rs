//! Opening, connecting, sending on each level, disconnecting, closing.

use vipl::*;

use super::world::*;
use crate::{Test, check, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // On each level one Send takes one Receive, each end gets the completion of its own descriptor,
    // and both work queues return the posted descriptor.
    test("via_basics::a_message_goes_through", &["via-2.3.1 B02"], |f| {
        world(f, |w| {
            for level in LEVELS {
                let (a, b) = w.pair(level)?;
                a.fill(3);
                b.receive(0, &[b.data(0, 60), b.data(100, 100)])?;
                a.send(0, &[a.data(0, 70), a.data(200, 10)], Some(0x1234_5678))?;
                a.sent_well(0)?;
                check_eq!(operation(a.descriptor(0)?.status()), Status::empty());
                let status = b.received(0)?;
                success(status)?;
                check_eq!(operation(status), Status::OP_RECEIVE);
                check!(status.contains(Status::IMMEDIATE), "{status:?}");
                let receive = b.descriptor(0)?;
                check_eq!((receive.length(), receive.immediate()), (80, 0x1234_5678));
                check_eq!((b.bytes(0, 60), b.bytes(100, 10)), (a.bytes(0, 60), a.bytes(60, 10)));
                check_eq!(b.bytes(110, 10), a.bytes(200, 10));
                check_eq!(
                    (a.nic.send_done(a.vi), b.nic.recv_done(b.vi)),
                    (Err(Error::NotDone), Err(Error::NotDone))
                );
                a.destroy()?;
                b.destroy()?;
            }
            Ok(())
        })
    }),
];
