//! Opening, connecting, sending, disconnecting, closing.

use dat::*;

use super::world::*;
use crate::fixture::PAGE;
use crate::{Test, check_eq, test};

pub(crate) const TESTS: &[Test] = &[
    // Endpoints exchange a message in each direction, and the connection ends.
    test("dat_basics::a_message_goes_through", &[], |f| {
        world(f, |w| {
            let (a, b) = w.pair()?;
            check_eq!((a.state()?, b.state()?), (EpState::Connected, EpState::Connected));
            let (from, to) = (w.region(&a, PAGE, MemPriv::ALL)?, w.region(&b, PAGE, MemPriv::ALL)?);
            from.fill(3);
            b.receive(&[to.segment(0, 100)], 7)?;
            a.send(&[from.segment(0, 60), from.segment(200, 20)], 8)?;
            let (done, number, extension) = b.received(7, DtoStatus::Success)?;
            check_eq!((number, extension), (EventNumber::DTO_COMPLETION, None));
            check_eq!((done.operation, done.transferred_length), (Dto::RECEIVE, 80));
            check_eq!((to.bytes(0, 60), to.bytes(60, 20)), (from.bytes(0, 60), from.bytes(200, 20)));
            let (done, number, _) = a.done(8, DtoStatus::Success)?;
            check_eq!((number, done.operation), (EventNumber::DTO_COMPLETION, Dto::SEND));
            a.disconnect()?;
            expect(&b.ia, b.connect, EventNumber::CONNECTION_DISCONNECTED)?;
            check_eq!((a.state()?, b.state()?), (EpState::Disconnected, EpState::Disconnected));
            Ok(())
        })
    }),
];
