use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrovia::platform::SharedSlice;
use ferrovia::{InterruptHandler, Transport};

pub struct MyNic {
    /// The mapped BAR of the register file: ordinary, cached memory that the device writes as well.
    registers: SharedSlice<'static>,
    /// The register that wakes the device.
    doorbell: &'static AtomicU32,
    /// By MSI-X vector. A kernel keeps them where its interrupt entry finds them.
    handlers: Mutex<Vec<Option<InterruptHandler>>>,
}

impl MyNic {
    /// # Safety
    ///
    /// `len` bytes from `bar` on stay mapped, and no Rust reference into them exists.
    pub unsafe fn new(bar: NonNull<u8>, len: usize, doorbell: &'static AtomicU32, vectors: u16) -> MyNic {
        // SAFETY: the caller's promise.
        let registers = unsafe { SharedSlice::from_raw(bar, len) };
        let handlers = Mutex::new((0..vectors).map(|_| None).collect());
        MyNic { registers, doorbell, handlers }
    }

    /// What the kernel's interrupt entry calls.
    pub fn interrupt(&self, vector: u16) {
        let handlers = self.handlers.lock().unwrap();
        if let Some(Some(handler)) = handlers.get(usize::from(vector)) {
            handler();
        }
    }
}

impl Transport for MyNic {
    fn registers(&self) -> SharedSlice<'_> {
        self.registers
    }

    fn kick(&self) {
        // A kernel uses `write_volatile` to uncached memory: the access that traps under a
        // hypervisor.
        self.doorbell.store(0, Ordering::Release);
    }

    fn vectors(&self) -> u16 {
        self.handlers.lock().unwrap().len() as u16
    }

    fn set_vector(&self, vector: u16, handler: Option<InterruptHandler>) -> bool {
        // `interrupt` holds this lock while a handler runs, so the replaced handler does not run
        // any more when this call returns.
        let mut handlers = self.handlers.lock().unwrap();
        let Some(slot) = handlers.get_mut(usize::from(vector)) else { return false };
        *slot = handler;
        true
    }
}
