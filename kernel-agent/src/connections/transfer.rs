//! Passing a peer's request from the client that listens to the one that answers.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::state::ConnectionManager;
use crate::cm::ConnectionId;
use crate::{Client, Error, Resource};

impl ConnectionManager {
    /// Makes another client of the agent the one that answers a request that waits, and that hears
    /// of it with `context`. A failure changes nothing.
    pub(crate) fn transfer(
        &self,
        from: &Client,
        id: ConnectionId,
        to: &Arc<Client>,
        context: u64,
    ) -> Result<(), Error> {
        if !Arc::ptr_eq(from.agent(), to.agent()) {
            return Err(Error::Foreign);
        }
        let former = {
            let mut tables = self.tables.lock();
            if tables.end(from, id)?.connected.is_some() {
                return Err(Error::ConnectionState);
            }
            if !tables.admits(to) {
                return Err(Error::NoResources(Resource::Connections));
            }
            let end = tables.ends.get_mut(&id).ok_or(Error::ConnectionState)?;
            from.connections.fetch_sub(1, Ordering::Relaxed);
            to.connections.fetch_add(1, Ordering::Relaxed);
            end.context = context;
            core::mem::replace(&mut end.client, to.clone())
        };
        // Without the lock.
        drop(former);
        Ok(())
    }
}
