use ferrovia::it_api::{Error, EvdHandle, Event, Ia};

/// The next event of an EVD that was created with `EvdFlags::CREATE_FD`.
pub async fn next_event(ia: &Ia, evd: EvdHandle) -> Result<Event, Error> {
    let notification = ia.evd_notification(evd)?;
    loop {
        match ia.evd_dequeue(evd) {
            Err(Error::QueueEmpty) => notification.ready().await?,
            event_or_error => return event_or_error,
        }
    }
}
