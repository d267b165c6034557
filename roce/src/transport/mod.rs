//! The transport engines: what a requester and a responder do, packet by packet (IBTA vol. 1
//! chapter 9).
//!
//! An engine decides *what* is to be done. The device that drives it does it: it reaches memory,
//! checks rights, takes receives, completes work requests, and moves packets. An engine does no I/O
//! and takes the time as an argument. It allocates when it is created, not for a packet, and no
//! input makes it panic. The work for a packet does not depend on how many there were.
//!
//! | module | subject |
//! |---|---|
//! | [`piece`] | what a requester sends: a request packet, or several without their bytes |
//! | [`answer`] | what a responder sends |
//! | [`message`] | which packet may follow; what the device carries out, and how that went |
//! | [`requester`] | the requester of a reliable connection |
//! | [`responder`] | the responder of a reliable connection |
//! | [`uc`] | the unreliable connection |
//! | [`ud`] | the unreliable datagram |
//! | [`code`] | credits and RNR timers in acknowledgements |
//! | [`reason`] | what a device counts |
//!
//! # The short cut
//!
//! Two queue pairs of one process need no packets. The same engines then exchange [`Piece`]s and
//! [`Answer`]s that cover as many packets as the device likes: the requester's device passes each
//! piece to the responder at once, and the bytes go from memory to memory. A device that passes one
//! whole message after the other ([`Message::whole`]), and gets its answer at once, needs no
//! [`Requester`]: it asks [`Limits::admit`] whether the connection takes the message, and
//! [`Persistence`] when to repeat one that was not carried out.
//!
//! ```
//! use ferrovia_roce::transport::*;
//! use ferrovia_roce::{PathMtu, Psn, TimeoutCode};
//! use platform::Instant;
//!
//! let (psn, mtu, now) = (Psn::new(7), PathMtu::B1024, Instant::ZERO);
//! let timeout = TimeoutCode::new(14).unwrap();
//! let limits = Limits { max_rd_atomic: 4, timeout, retry_count: 7, rnr_retry: 7 };
//! let (window, first_window) = (4096, 256);
//! let config = Config { psn, mtu, depth: 64, window, first_window, credits: false, limits };
//! let mut requester = Requester::new(&config);
//! let mut responder = Responder::new(psn, mtu, 4);
//!
//! let operation = Operation::Write;
//! let (addr, key, extra) = (0x1000, 5, Extra::None);
//! let message =
//!     Message { id: 1, operation, length: 1 << 20, addr, key, extra, solicited: false, fence: false };
//! requester.post(message).unwrap();
//! // 256 KiB at a time.
//! while let Some(Transmit::Piece { piece, offset, .. }) = requester.transmit(now, 256) {
//!     match responder.receive(&piece) {
//!         Verdict::Execute(execution) => {
//!             // Here the device checks rights, and copies `execution.length` bytes from byte
//!             // `execution.offset` of the message on.
//!             assert_eq!((execution.offset, execution.length), (offset, 256 << 10));
//!             responder.executed(execution, Executed::Done(0));
//!         }
//!         Verdict::Nothing(reason) | Verdict::Refused(reason) => panic!("{reason:?}"),
//!     }
//!     while let Some(response) = responder.respond(256, None) {
//!         assert_eq!(requester.receive(&response.answer, now), Received::Acknowledged);
//!     }
//! }
//! assert_eq!(requester.poll(), Some(Event::Completed { id: 1 }));
//! ```
//!
//! # Errors
//!
//! How an engine's errors show at the two ends (IBTA vol. 1 sections 9.9.2, 9.9.3, 10.10.2 and
//! 11.6.3). A device maps them to the completion statuses and events of its interface; the names in
//! the last columns are those of `nic-abi`.
//!
//! | the requester's [`Status`] | completion of the work request | event |
//! |---|---|---|
//! | `RetryExceeded` | `RetryExceeded` | `QpFatal` |
//! | `RnrRetryExceeded` | `RnrRetryExceeded` | `QpFatal` |
//! | `RemoteInvalidRequest` | `RemoteInvalidRequest` | `QpFatal` |
//! | `RemoteAccess` | `RemoteAccess` | `QpFatal` |
//! | `RemoteOperation` | `RemoteOperation` | `QpFatal` |
//! | `BadResponse` | `BadResponse` | `QpFatal` |
//! | `Aborted` | what the device aborted it for | `QpFatal` |
//!
//! | the responder's [`Reason`] | its NAK | completion of the receive that was taken | event |
//! |---|---|---|---|
//! | `RespRemoteAccessErrors` | remote access error | `LocalAccess` | `QpAccessError` |
//! | `RespOperationalError` | remote operational error | `LocalProtection` or `LocalQpOperation` | `QpFatal` |
//! | `RespLocalLengthError` | invalid request | `LocalLength` | `QpInvalidRequest` |
//! | any other of [`Verdict::Refused`] | invalid request | `RemoteInvalidRequest` | `QpInvalidRequest` |
//!
//! Where no receive was taken, the event alone shows the error. A requester's failure leaves the
//! later work requests to be completed as flushed.

pub mod answer;
pub mod code;
pub mod message;
pub mod piece;
pub mod reason;
pub mod requester;
pub mod responder;
pub mod uc;
pub mod ud;

pub use answer::{Answer, Body};
pub use message::{Executed, Execution};
pub use piece::{Extra, MAX_MESSAGE, Operation, Piece, Remote};
pub use reason::Reason;
pub use requester::{
    Config, Event, Limits, Message, Persistence, PostError, Received, Requester, Status, Transmit,
};
pub use responder::{Responder, Response, Verdict};

/// How many PSNs may be outstanding: half of the circle (IBTA vol. 1 section 9.7.1).
const HALF: u32 = 1 << 23;

/// The service of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
}
