//! Bugs that the simulation plants, to show that its seeds find them.
//!
//! The code that a bug changes asks [`planted`]. In ordinary builds that is the constant `false`,
//! which the compiler checks below, so the branches are not there. Builds with
//! `--cfg ferrovia_break`, which only `sim --break` makes, in a target folder of their own, choose
//! a bug when they run.

macro_rules! bugs {
    ($($bug:ident = $name:literal, $about:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $(#[doc = $about] $bug,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Bug] = &[$(Bug::$bug),*];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)*
                }
            }

            /// Whether it is one of the storage target, which other workloads do not reach.
            pub const fn is_of_storage(self) -> bool {
                matches!(
                    self,
                    Bug::ChallengeAgain
                        | Bug::CopyUnreserved
                        | Bug::EndKept
                        | Bug::FenceSkipped
                        | Bug::HiddenListed
                        | Bug::HiddenServed
                        | Bug::IoUnproven
                        | Bug::LeftoverForgotten
                        | Bug::PairAtOnce
                        | Bug::PreemptedStays
                        | Bug::ProofIgnored
                        | Bug::ReservationUntold
                        | Bug::StateUnflushed
                )
            }

            /// Whether it is one of the API for Rust, which other workloads do not reach.
            pub const fn is_of_face(self) -> bool {
                matches!(self, Bug::RegionEarly)
            }

            /// Whether it is one of iWARP, which few other workloads reach.
            pub const fn is_of_iwarp(self) -> bool {
                matches!(self, Bug::FpduCrcIgnored | Bug::FinTakenAsOrderly | Bug::MsnSkips | Bug::StaleStag)
            }

            /// What is wrong.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Bug::$bug => $about,)*
                }
            }
        }
    };
}

bugs! {
    AckForgotten = "ack-forgotten", "A request that comes again gets no acknowledgement.";
    AtomicTwice = "atomic-twice", "An atomic operation that comes again is carried out again.";
    ChallengeAgain = "challenge-again", "Each host that has to prove who it is gets the same challenge.";
    CopyUnreserved = "copy-unreserved", "A Copy is not checked against reservations.";
    CorruptTaken = "corrupt-taken", "A packet whose ICRC is wrong is taken.";
    CqeEarly = "cqe-early", "A receive is completed before all packets of its message have come.";
    DoorbellLost = "doorbell-lost", "The doorbell of a queue pair that has work is dropped.";
    DreqUnanswered = "dreq-unanswered", "A request to disconnect gets no reply.";
    EndKept = "end-kept", "A disk that gets shorter keeps its end.";
    FenceSkipped = "fence-skipped", "An Acquire is answered before the disk's earlier writes.";
    FinTakenAsOrderly = "fin-orderly", "The end of a stream inside a message counts as orderly.";
    FlushSkipped = "flush-skipped", "The receives of a broken queue pair are not flushed.";
    FlushSucceeds = "flush-succeeds", "A flushed request reports success.";
    FpduCrcIgnored = "fpdu-crc-ignored", "An FPDU whose CRC is wrong is taken.";
    GenerationIgnored = "generation-ignored", "The generation of a handle is not compared.";
    HiddenListed = "hidden-listed", "A host's list has namespaces that the host does not see.";
    HiddenServed = "hidden-served", "A namespace serves hosts that do not see it.";
    IoUnproven = "io-unproven", "An I/O queue serves a host that has not proved who it is.";
    LeftoverForgotten = "leftover-forgotten", "A host goes on before its lost connection's requests.";
    MessageTwice = "message-twice", "A message that comes again is delivered again.";
    MsnSkips = "msn-skips", "A peer of iWARP skips the number of a message.";
    PairAtOnce = "pair-at-once", "A fused Compare and Write waits for no other one.";
    PreemptedStays = "preempted-stays", "A registrant that is preempted stays registered.";
    ProofIgnored = "proof-ignored", "A wrong response proves who a host is.";
    PsnReversed = "psn-reversed", "The responder compares a PSN the wrong way round.";
    ReadOffset = "read-offset", "A Read that is asked for again in part is answered from its start.";
    ReceiveTwice = "receive-twice", "A receive of a shared queue is taken and stays in the queue.";
    RegionEarly = "region-early", "A dropped region is released while requests name it.";
    ReservationUntold = "reservation-untold", "A reservation is in force on one thread only.";
    RetryForgotten = "retry-forgotten", "A requester sends nothing again when an acknowledgement is late.";
    RnrIgnored = "rnr-ignored", "The requester takes \"receiver not ready\" for an acknowledgement.";
    StaleKey = "stale-key", "A remote key that was replaced is accepted.";
    StaleStag = "stale-stag", "Over iWARP an STag that was replaced is accepted.";
    StateUnflushed = "state-unflushed", "A reservation is in force before it persists.";
    UnlinkForgotten = "unlink-forgotten", "A Send that unlinks leaves the region linked.";
    WakeLost = "wake-lost", "A waiter sleeps without a last look at the queue that it has armed.";
    WindowOpen = "window-open", "An access may end behind the end of a region or window.";
}

/// Whether this bug is planted.
#[cfg(not(ferrovia_break))]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}

#[cfg(not(ferrovia_break))]
const _: () = {
    let mut n = 0;
    while n < Bug::ALL.len() {
        assert!(!planted(Bug::ALL[n]), "an ordinary build has no bugs planted");
        n += 1;
    }
};

#[cfg(ferrovia_break)]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(u8::MAX);

/// Whether this bug is planted.
#[cfg(ferrovia_break)]
#[inline]
pub fn planted(bug: Bug) -> bool {
    PLANTED.load(core::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Plants a bug for the rest of the process.
#[cfg(ferrovia_break)]
pub fn plant(bug: Bug) {
    PLANTED.store(bug as u8, core::sync::atomic::Ordering::Relaxed);
}
