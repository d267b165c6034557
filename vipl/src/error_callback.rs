//! Asynchronous errors (page VipErrorCallback, 9.9.1; the error descriptor, 9.10.3).
//!
//! Errors wait in a queue until the NIC's handler thread delivers them. A virtual interface has at
//! most [`MOST_OF_VI`] in it, so the queue is bounded, and an interface with many errors does not
//! displace the errors of others; of those of the NIC one waits at most.
//!
//! No error of a virtual interface begins to be delivered after it was destroyed.
//!
//! Locks: `queue`, then `handler` (both spin).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use kernel_agent::ViError;
use platform::heap;
use platform::sync::Mutex;
use platform::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::error::Result;
use crate::handle::{CqHandle, NicHandle, ViHandle};
use crate::nic::{Core, Nic};
use crate::vi::Vi;

/// The errors of one virtual interface that wait for delivery; further ones are lost, and counted.
const MOST_OF_VI: u32 = 32;

rdma::enumeration! {
    /// What caused an error (VIP_RESOURCE_CODE).
    #[doc(alias = "VIP_RESOURCE_CODE")]
    pub enum ResourceCode: u32 {
        /// The NIC: it is dead, or its port is down.
        Nic = 0, "VIP_RESOURCE_NIC";
        /// A virtual interface.
        Vi = 1, "VIP_RESOURCE_VI";
        /// A completion queue.
        Cq = 2, "VIP_RESOURCE_CQ";
        /// A descriptor.
        Descriptor = 3, "VIP_RESOURCE_DESCRIPTOR";
    }
}

rdma::enumeration! {
    /// Which error it is (VIP_ERROR_CODE). The page lists VIP_ERROR_RDMAW_PROT twice; the second
    /// one is the protection error of an RDMA Read.
    #[doc(alias = "VIP_ERROR_CODE")]
    pub enum ErrorCode: u32 {
        /// The address and the memory handle of a posted descriptor were not valid.
        PostDesc = 0, "VIP_ERROR_POST_DESC";
        /// The connection was lost; of the NIC: the NIC is dead, or its port is down.
        ConnLost = 1, "VIP_ERROR_CONN_LOST";
        /// A message was dropped because no Receive was posted.
        RecvqEmpty = 2, "VIP_ERROR_RECVQ_EMPTY";
        /// A descriptor was posted to a full queue.
        ViOverrun = 3, "VIP_ERROR_VI_OVERRUN";
        /// The peer's RDMA Write reached for memory that it may not write.
        RdmawProt = 4, "VIP_ERROR_RDMAW_PROT";
        /// The data of the peer's RDMA Write was corrupt.
        RdmawData = 5, "VIP_ERROR_RDMAW_DATA";
        /// A part of the peer's RDMA Write was missing.
        RdmawAbort = 6, "VIP_ERROR_RDMAW_ABORT";
        /// The peer's RDMA Read reached for memory that it may not read.
        RdmarProt = 7, "VIP_ERROR_RDMAR_PROT";
        /// The status of a descriptor could not be written.
        CompProt = 8, "VIP_ERROR_COMP_PROT";
    }
}

impl From<ViError> for ErrorCode {
    fn from(error: ViError) -> ErrorCode {
        match error {
            ViError::PostDescriptor => ErrorCode::PostDesc,
            ViError::ConnectionLost => ErrorCode::ConnLost,
            ViError::ReceiveQueueEmpty => ErrorCode::RecvqEmpty,
            ViError::Overrun => ErrorCode::ViOverrun,
            ViError::WriteProtection => ErrorCode::RdmawProt,
            ViError::WriteData => ErrorCode::RdmawData,
            ViError::WriteAbort => ErrorCode::RdmawAbort,
            ViError::ReadProtection => ErrorCode::RdmarProt,
            ViError::CompletionProtection => ErrorCode::CompProt,
        }
    }
}

impl ErrorCode {
    fn resource(self) -> ResourceCode {
        match self {
            ErrorCode::PostDesc | ErrorCode::CompProt => ResourceCode::Descriptor,
            _ => ResourceCode::Vi,
        }
    }
}

/// An error descriptor (9.10.3).
#[doc(alias = "VIP_ERROR_DESCRIPTOR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorDescriptor {
    /// The NIC that reports the error.
    pub nic: NicHandle,
    /// The virtual interface, or null.
    pub vi: ViHandle,
    /// The completion queue, or null.
    pub cq: CqHandle,
    /// The virtual address of the descriptor, or 0.
    pub descriptor: u64,
    /// The operation, coded as the completed operation in a descriptor's status (bits 18:16).
    pub op_code: u32,
    /// What caused the error.
    pub resource_code: ResourceCode,
    /// Which error it is.
    pub error_code: ErrorCode,
}

/// A consumer's error handler. It gets its context and the error descriptor, in the NIC's handler
/// thread, and may make any call.
pub type ErrorHandler = Box<dyn Fn(u64, &ErrorDescriptor) + Send + Sync>;

struct Registered {
    context: u64,
    handler: ErrorHandler,
}

/// An error that waits for delivery.
struct Waiting {
    error: ErrorDescriptor,
    /// The virtual interface that counts it.
    of: Option<Arc<Vi>>,
}

/// The errors of a NIC and who handles them.
pub(crate) struct Errors {
    handler: Mutex<Option<Arc<Registered>>>,
    queue: Mutex<VecDeque<Waiting>>,
    /// An error of the NIC waits. Changed with `queue` locked.
    nic_waits: AtomicBool,
    reported: AtomicU64,
    lost: AtomicU64,
}

impl Errors {
    pub(crate) fn new() -> Errors {
        Errors {
            handler: Mutex::new(None),
            queue: Mutex::new(VecDeque::new()),
            nic_waits: AtomicBool::new(false),
            reported: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Errors that were delivered, and those that were lost since too many waited.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.reported.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }

    /// Forgets the errors that wait, and the handler.
    pub(crate) fn clear(&self) {
        let queue = {
            let mut queue = self.queue.lock();
            self.nic_waits.store(false, Ordering::Relaxed);
            core::mem::take(&mut *queue)
        };
        let handler = self.handler.lock().take();
        // Without the locks.
        drop((queue, handler));
    }

    /// Adds an error, unless its virtual interface was destroyed, or it is one of the NIC and
    /// another one waits: both say the same.
    fn add(&self, waiting: Waiting) -> Result<()> {
        let mut queue = self.queue.lock();
        if waiting.of.as_ref().is_some_and(|vi| vi.is_silent.load(Ordering::Relaxed)) {
            return Ok(());
        }
        if waiting.of.is_none() && self.nic_waits.load(Ordering::Relaxed) {
            return Ok(());
        }
        queue.try_reserve(1)?;
        if waiting.of.is_none() {
            self.nic_waits.store(true, Ordering::Relaxed);
        }
        queue.push_back(waiting);
        Ok(())
    }

    /// Forgets the errors of a virtual interface that is destroyed, now and for good.
    pub(crate) fn forget(&self, vi: &Vi) {
        let mut queue = self.queue.lock();
        vi.is_silent.store(true, Ordering::Relaxed);
        queue.retain(|waiting| waiting.of.as_ref().is_none_or(|of| !core::ptr::eq(&**of, vi)));
    }

    /// Delivers the error that has waited longest; true if there are more. Without locks.
    pub(crate) fn deliver(&self) -> bool {
        let (next, handler) = {
            let mut queue = self.queue.lock();
            let next = queue.pop_front();
            if next.as_ref().is_some_and(|waiting| waiting.of.is_none()) {
                self.nic_waits.store(false, Ordering::Relaxed);
            }
            // With the lock: a handler that is registered after a virtual interface was destroyed
            // gets no error of it.
            (next, self.handler.lock().clone())
        };
        let Some(Waiting { error, of }) = next else { return false };
        if let Some(vi) = of {
            vi.waiting_errors().fetch_sub(1, Ordering::Relaxed);
        }
        self.reported.fetch_add(1, Ordering::Relaxed);
        match handler {
            Some(registered) => (registered.handler)(registered.context, &error),
            None => log::error!("VIPL: asynchronous error: {error:?}"),
        }
        !self.queue.lock().is_empty()
    }
}

impl Core {
    /// Has an error of a virtual interface delivered.
    pub(crate) fn report(&self, vi: &Arc<Vi>, error_code: ErrorCode, op_code: u32, descriptor: u64) {
        let waiting: &AtomicU32 = vi.waiting_errors();
        if waiting.fetch_add(1, Ordering::Relaxed) >= MOST_OF_VI {
            waiting.fetch_sub(1, Ordering::Relaxed);
            self.errors.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let error = ErrorDescriptor {
            nic: self.handle,
            vi: vi.handle,
            cq: CqHandle::NULL,
            descriptor,
            op_code,
            resource_code: error_code.resource(),
            error_code,
        };
        self.queue_error(Waiting { error, of: Some(vi.clone()) });
    }

    /// Has an error of the NIC delivered.
    pub(crate) fn report_nic(&self) {
        let error = ErrorDescriptor {
            nic: self.handle,
            vi: ViHandle::NULL,
            cq: CqHandle::NULL,
            descriptor: 0,
            op_code: 0,
            resource_code: ResourceCode::Nic,
            error_code: ErrorCode::ConnLost,
        };
        self.queue_error(Waiting { error, of: None });
    }

    fn queue_error(&self, waiting: Waiting) {
        if self.errors.add(waiting).is_err() {
            self.errors.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.schedule_errors();
    }
}

impl Nic {
    /// Registers the handler of asynchronous errors, in the place of an earlier one; `None`
    /// restores the default, which logs them.
    ///
    /// Asynchronous errors are those that no descriptor shows. A handler that runs at this moment
    /// may go on to run. Errors of an [`Idle`](crate::ViState::Idle) virtual interface are not
    /// reported here, but by the next attempt to connect it (5.1).
    ///
    /// Errors: `InvalidParameter` (the NIC is closed), `ErrorResource` (no memory, or the NIC is
    /// dead). Does not block. May be called in handlers. Thread-safe. Page VipErrorCallback.
    #[doc(alias = "VipErrorCallback")]
    pub fn error_callback(&self, context: u64, handler: Option<ErrorHandler>) -> Result<()> {
        let core = self.live()?;
        let registered = match handler {
            Some(handler) => {
                heap::room_for_arc::<Registered>()?;
                Some(Arc::new(Registered { context, handler }))
            }
            None => None,
        };
        let former = core::mem::replace(&mut *core.errors.handler.lock(), registered);
        // Without the lock, since this runs the consumer's code.
        drop(former);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::mpsc;

    use super::*;
    use crate::ReliabilityLevel;
    use crate::scene::Scene;

    #[test]
    fn one_error_of_the_nic_waits_at_most() {
        let errors = Errors::new();
        let error = ErrorDescriptor {
            nic: NicHandle::from_raw(1),
            vi: ViHandle::NULL,
            cq: CqHandle::NULL,
            descriptor: 0,
            op_code: 0,
            resource_code: ResourceCode::Nic,
            error_code: ErrorCode::ConnLost,
        };
        for _ in 0..2 {
            for _ in 0..3 {
                errors.add(Waiting { error, of: None }).unwrap();
            }
            assert_eq!(errors.queue.lock().len(), 1);
            assert!(!errors.deliver());
        }
        errors.add(Waiting { error, of: None }).unwrap();
        errors.clear();
        errors.add(Waiting { error, of: None }).unwrap();
        assert_eq!((errors.queue.lock().len(), errors.counts()), (1, (2, 0)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "a device takes long")]
    fn errors_of_one_interface_that_wait_are_bounded_and_leave_room_for_another() {
        let scene = Scene::new();
        let [(_, many), (_, few)] = [(); 2].map(|()| scene.vi(ReliabilityLevel::Delivery));
        let (begun, begins) = mpsc::channel();
        let (goes_on, go_on) = mpsc::channel::<()>();
        let go_on = Mutex::new(go_on);
        // The handler is held in the first error, which does not wait any more then.
        let handler = move |_: u64, error: &ErrorDescriptor| {
            begun.send(error.vi).unwrap();
            let _ = go_on.lock().recv();
        };
        scene.nic.error_callback(0, Some(Box::new(handler))).unwrap();
        let core = scene.core();
        core.report(&many, ErrorCode::RecvqEmpty, 0, 0);
        assert_eq!(begins.recv(), Ok(many.handle));
        for _ in 0..MOST_OF_VI + 5 {
            core.report(&many, ErrorCode::RecvqEmpty, 0, 0);
        }
        core.report(&few, ErrorCode::RecvqEmpty, 0, 0);
        assert_eq!(core.errors.counts(), (1, 5));
        drop(goes_on);
        // As they came: those of the first, and the one of the second.
        for _ in 0..MOST_OF_VI {
            assert_eq!(begins.recv(), Ok(many.handle));
        }
        assert_eq!(begins.recv(), Ok(few.handle));
        // There is room again.
        core.report(&many, ErrorCode::RecvqEmpty, 0, 0);
        assert_eq!(begins.recv(), Ok(many.handle));
        assert_eq!(core.errors.counts().1, 5);
    }

    #[test]
    fn codes_have_the_numbers_of_the_page_and_of_the_device() {
        for number in 0..9 {
            let error = ViError::from_byte(number).unwrap();
            assert_eq!(ErrorCode::from(error) as u32, u32::from(number));
        }
        let resources = [ResourceCode::Nic, ResourceCode::Vi, ResourceCode::Cq, ResourceCode::Descriptor];
        assert_eq!(resources.map(|resource| resource as u32), [0, 1, 2, 3]);
        assert_eq!(ErrorCode::CompProt.resource(), ResourceCode::Descriptor);
        assert_eq!(ErrorCode::ConnLost.resource(), ResourceCode::Vi);
    }
}
