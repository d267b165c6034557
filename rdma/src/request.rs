//! A started request: somebody waits for its end, as a thread or as a task.
//!
//! An endpoint has a cell for each request that can be outstanding, unless it was built for posted
//! requests only. A cell is taken when a request
//! is started, and free again when its outcome was taken, or came after nobody waited any more. So
//! a [`Request`] that is dropped cancels nothing: the request goes on, and its memory stays.
//!
//! Locks: the cells' (spins, leaf).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use platform::sync::Mutex;

use crate::completion::Completion;
use crate::datagram::Sender;
use crate::endpoint::Inner as Endpoint;
use crate::error::{CreateError, RequestError, TimedOut};

/// How a started request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes that were transferred between local memory and the peer: never more than the request's
    /// memory has.
    pub len: usize,
    /// A Receive that an RDMA Write with immediate data took: how many bytes the peer wrote, where
    /// it chose. `len` is 0 then.
    pub written: Option<usize>,
    /// The number that came with a received message, if one did.
    pub immediate: Option<u32>,
    /// The key that the peer's message has invalidated here, if it did:
    /// [`FastRegion::is_ended_by_key`](crate::FastRegion::is_ended_by_key) compares it.
    pub invalidated: Option<u32>,
    /// Who sent the datagram that a Receive took.
    pub sender: Option<Sender>,
}

type Outcome = Result<Done, RequestError>;

enum State {
    Free,
    /// The request is outstanding. Whether somebody waits, and the task that does.
    Outstanding {
        wanted: bool,
        waker: Option<Waker>,
    },
    Over(Outcome),
}

struct Cell {
    /// How often the cell was taken, so that a late completion finds no other request.
    generation: u32,
    state: State,
}

/// The cells of an endpoint.
pub(crate) struct Cells {
    count: u32,
    table: Mutex<Table>,
}

struct Table {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

fn id(index: u32, generation: u32) -> u64 {
    u64::from(index) | u64::from(generation) << 32
}

impl Cells {
    pub(crate) fn new(count: u32) -> Result<Cells, CreateError> {
        let (mut cells, mut free) = (Vec::new(), Vec::new());
        cells.try_reserve_exact(count as usize)?;
        free.try_reserve_exact(count as usize)?;
        cells.extend((0..count).map(|_| Cell { generation: 0, state: State::Free }));
        free.extend((0..count).rev());
        Ok(Cells { count, table: Mutex::new(Table { cells, free }) })
    }

    /// Whether there is none: no request can be started.
    pub(crate) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// Takes a cell for a request that is about to be posted; `None` if all are in use.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut table = self.table.lock();
        let index = table.free.pop()?;
        let cell = table.cells.get_mut(index as usize)?;
        cell.generation = cell.generation.wrapping_add(1);
        cell.state = State::Outstanding { wanted: true, waker: None };
        Some(id(index, cell.generation))
    }

    /// The request was not posted.
    pub(crate) fn give_back(&self, id: u64) {
        self.table.lock().release(id);
    }

    /// A request has ended. Returns the task that waits for it.
    pub(crate) fn end(&self, id: u64, outcome: Outcome) -> Option<Waker> {
        let mut table = self.table.lock();
        let cell = table.cell(id)?;
        let State::Outstanding { wanted, waker } = &mut cell.state else { return None };
        let (wanted, waker) = (*wanted, waker.take());
        if wanted {
            cell.state = State::Over(outcome);
        } else {
            table.release(id);
        }
        waker
    }

    /// Ends all requests that are outstanding; `each` gets the tasks that wait.
    pub(crate) fn end_all(&self, error: RequestError, mut each: impl FnMut(Waker)) {
        for index in 0..self.count {
            let generation = self.table.lock().cells.get(index as usize).map_or(0, |cell| cell.generation);
            if let Some(waker) = self.end(id(index, generation), Err(error)) {
                each(waker);
            }
        }
    }

    /// The outcome, if the request has ended; the cell is free then.
    fn outcome(&self, id: u64) -> Option<Outcome> {
        let mut table = self.table.lock();
        let State::Over(outcome) = table.cell(id)?.state else { return None };
        table.release(id);
        Some(outcome)
    }

    /// Has a task woken when the request ends. Whether it is the first that waits for it.
    fn wake(&self, id: u64, task: &Waker) -> bool {
        // Code of the executor's, so not under the lock.
        let task = task.clone();
        let former = {
            let mut table = self.table.lock();
            match table.cell(id).map(|cell| &mut cell.state) {
                Some(State::Outstanding { waker, .. }) => waker.replace(task),
                _ => return false,
            }
        };
        former.is_none()
    }

    /// Nobody waits for the request any more. Returns the task that did.
    fn forget(&self, id: u64) -> Option<Waker> {
        let mut table = self.table.lock();
        match table.cell(id).map(|cell| &mut cell.state) {
            Some(State::Outstanding { wanted, waker }) => {
                *wanted = false;
                waker.take()
            }
            Some(State::Over(_)) => {
                table.release(id);
                None
            }
            _ => None,
        }
    }
}

impl Table {
    fn cell(&mut self, id: u64) -> Option<&mut Cell> {
        let cell = self.cells.get_mut(id as u32 as usize)?;
        (cell.generation == (id >> 32) as u32).then_some(cell)
    }

    fn release(&mut self, id: u64) {
        if let Some(cell) = self.cell(id)
            && !matches!(cell.state, State::Free)
        {
            cell.state = State::Free;
            // There is room for all.
            self.free.push(id as u32);
        }
    }
}

/// A request that was started. It is a future of its end; [`Request::wait`] blocks for it instead.
///
/// Dropping it cancels nothing: the request goes on, and what it names stays registered.
#[must_use = "the request's outcome is lost if nobody waits for it"]
pub struct Request {
    endpoint: Arc<Endpoint>,
    id: u64,
    over: bool,
}

impl Request {
    pub(crate) fn new(endpoint: Arc<Endpoint>, id: u64) -> Request {
        Request { endpoint, id, over: false }
    }

    fn look(&self) -> Option<Outcome> {
        self.endpoint.cells.outcome(self.id)
    }

    /// Takes what has completed, and looks. A request that will not complete any more has ended.
    fn look_again(&self) -> Option<Outcome> {
        let lost = || {
            let (nic, queue) = (self.endpoint.nic(), &self.endpoint.queue);
            let failed = || queue.has_failed().then_some(RequestError::Flushed);
            self.endpoint.end_requests(nic.ended().or_else(failed)?);
            self.look()
        };
        self.look()
            .or_else(|| {
                self.endpoint.queue.drain();
                self.look()
            })
            .or_else(lost)
    }

    /// Blocks until the request has ended.
    pub fn wait(self) -> Result<Done, RequestError> {
        match self.wait_for(None) {
            Ok(outcome) => outcome,
            // There is no deadline.
            Err(_) => Err(RequestError::Flushed),
        }
    }

    /// Blocks until the request has ended, or the time is over; then the request is returned.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<Done, RequestError>, Request> {
        self.wait_for(Some(timeout))
    }

    fn wait_for(mut self, timeout: Option<Duration>) -> Result<Result<Done, RequestError>, Request> {
        let deadline = self.endpoint.nic().deadline(timeout);
        let queue = self.endpoint.queue.clone();
        match queue.wait_for(deadline, || self.look_again()) {
            Ok(outcome) => {
                self.over = true;
                Ok(outcome)
            }
            Err(TimedOut) => Err(self),
        }
    }
}

impl Future for Request {
    type Output = Result<Done, RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut found = self.look_again();
        if found.is_none() {
            if self.endpoint.cells.wake(self.id, context.waker()) {
                self.endpoint.queue.task_waits();
            }
            self.endpoint.queue.arm();
            // What came before the queue was armed is not announced.
            found = self.look_again();
        }
        match found {
            Some(outcome) => {
                self.over = true;
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.over && self.endpoint.cells.forget(self.id).is_some() {
            self.endpoint.queue.task_is_woken();
        }
    }
}

pub(crate) fn outcome(completion: &Completion) -> Outcome {
    let (written, immediate) = (completion.written(), completion.immediate());
    let (invalidated, sender) = (completion.invalidated(), completion.sender());
    completion.result().map(|len| Done { len, written, immediate, invalidated, sender })
}
