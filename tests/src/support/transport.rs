//! Over which transport the IAs of the tests are, and what of it tests need.
//!
//! Every test runs on IAs over InfiniBand. Those of no other transport or face (`ALONE`) also run
//! on IAs over iWARP. There a test is not shown
//!
//! - if it meets the want of a [`Need`]: a call that iWARP cannot do is refused
//!   ([`Needing::needing`]), or the IA reports that it has it not ([`Need::of`]). A helper that
//!   many tests use says it once, and no list names these tests. Where [`Setup::proves`] asks for
//!   it, a test that says so runs once more as if nothing were lacking, and must fail;
//! - if it is in `EXCEPTIONS`, with the reason. It runs nevertheless, and must fail.
//!
//! Over InfiniBand nothing is lacking: a test that meets such a want has failed.
//!
//! [`Setup::proves`]: crate::Setup::proves
//!
//! [`End::done`](crate::fixture::End::done) knows how an iWARP peer refuses a request: the request
//! has succeeded, and the connection breaks afterwards.

use alloc::format;
use alloc::sync::Arc;
use core::result::Result;
use core::sync::atomic::{AtomicBool, Ordering};

use kernel_agent::Agent;
use privileged_api::{Error, Ia, Limits, Provider, ServiceTypes, TransportType};

use crate::{Failure, Outcome, Test};

/// The transport of the IAs under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand.
    InfiniBand,
    /// iWARP.
    Iwarp,
}

/// Tests with these words at the beginning of their names have IAs of one transport only, which
/// they make themselves, or use a face of InfiniBand and VIA alone (DAT, VIPL).
const ALONE: &[&str] = &["dat_", "via_", "iwarp_ia::"];

/// What a test may need of a transport, and iWARP lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Datagram endpoints, address handles and service requests.
    Datagrams,
    /// Atomic operations.
    Atomics,
    /// Immediate data, and markers, which are Writes with it.
    Immediate,
    /// Connection establishment in three steps.
    ThreeWay,
    /// InfiniBand's addresses, paths, service IDs and messages of connections, or a rule that the
    /// pages have for it alone.
    InfiniBand,
    /// That the device spoils packets of requests and answers, as the test tells it to.
    Faults,
    /// A Send that waits until the peer has a Receive.
    Waiting,
}

impl Need {
    /// What is lacking, for the reader.
    const fn what(self) -> &'static str {
        match self {
            Need::Datagrams => "iWARP has no datagrams",
            Need::Atomics => "iWARP has no atomic operations",
            Need::Immediate => "iWARP has no immediate data",
            Need::ThreeWay => "iWARP's connections are made in two steps",
            Need::InfiniBand => "this is about InfiniBand's names, paths, messages and rules",
            Need::Faults => "the device spoils and loses InfiniBand's packets only",
            Need::Waiting => "over iWARP a Send does not wait for a Receive",
        }
    }

    /// The errors with which calls are refused for want of it.
    const fn errors(self) -> &'static [Error] {
        match self {
            Need::Datagrams => &[Error::InvalidSpigot, Error::InvalidSourcePath],
            Need::Atomics | Need::Immediate => &[Error::OpNotSupported],
            Need::ThreeWay => &[Error::InvalidCnEstFlags],
            Need::InfiniBand => &[Error::InvalidConnQual, Error::InvalidNetaddr, Error::InvalidSourcePath],
            Need::Faults | Need::Waiting => &[],
        }
    }

    /// Ends the test if this IA has it not.
    #[track_caller]
    pub fn of(self, ia: &Ia) -> Outcome {
        let info = ia.ia_query()?;
        let has = match self {
            Need::Datagrams => info.supported_service_types.contains(ServiceTypes::UD),
            Need::Atomics => info.atomic_support,
            Need::ThreeWay => info.three_way_handshake_support,
            Need::Immediate | Need::InfiniBand | Need::Faults | Need::Waiting => {
                info.transport_type != TransportType::IwarpTcp
            }
        };
        match has || self.can_be_proved() && PROVING.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(self.lacking()),
        }
    }

    /// Whether a test that goes on without it must fail. It may pass without these two, but then it
    /// has not seen what it is about.
    pub(crate) const fn can_be_proved(self) -> bool {
        !matches!(self, Need::Faults | Need::Waiting)
    }

    /// The end of a test that needs it.
    #[track_caller]
    pub fn lacking(self) -> Failure {
        Failure { lacking: Some(self), ..Failure::new(self.what()) }
    }
}

/// Calls that a transport may lack.
pub trait Needing<T> {
    /// The value; or, if the call was refused for want of this, the end of the test.
    #[track_caller]
    fn needing(self, need: Need) -> Result<T, Failure>;
}

impl<T> Needing<T> for Result<T, Error> {
    #[track_caller]
    fn needing(self, need: Need) -> Result<T, Failure> {
        match self {
            Ok(value) => Ok(value),
            Err(error) if need.errors().contains(&error) => Err(need.lacking()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Tests that fail over iWARP and meet no want, and why they may.
const EXCEPTIONS: Exceptions = &[];

/// Names of tests, and reasons.
type Exceptions = &'static [(&'static str, &'static str)];

/// A test runs as if nothing were lacking, to prove that it needs what it says.
static PROVING: AtomicBool = AtomicBool::new(false);

/// Runs a test that has ended for want of something as if it were there.
pub(crate) fn prove(run: impl FnOnce() -> Outcome) -> Outcome {
    PROVING.store(true, Ordering::Relaxed);
    let outcome = run();
    PROVING.store(false, Ordering::Relaxed);
    match outcome {
        Err(_) => Ok(()),
        Ok(()) => Err(Failure::new("says that it needs what iWARP lacks, and passes without")),
    }
}

impl Transport {
    /// Adds an interface of a NIC to a provider.
    pub(crate) fn add(
        self,
        provider: &Provider,
        name: &str,
        agent: Arc<Agent>,
        limits: Limits,
    ) -> Result<(), Error> {
        match self {
            Transport::InfiniBand => provider.add_limited(name, agent, limits),
            Transport::Iwarp => provider.add_iwarp(name, agent, limits),
        }
    }

    /// Whether a test runs on IAs over this transport.
    pub fn takes(self, test: &Test) -> bool {
        self == Transport::InfiniBand || !ALONE.iter().any(|word| test.name.starts_with(word))
    }

    /// What the outcome of a test means on IAs over this transport.
    pub(crate) fn judge(self, test: &Test, outcome: Outcome) -> Outcome {
        self.judge_by(EXCEPTIONS, test, outcome)
    }

    fn judge_by(self, exceptions: Exceptions, test: &Test, outcome: Outcome) -> Outcome {
        let exception = exceptions.iter().find(|(name, _)| *name == test.name);
        match (self, outcome, exception) {
            (Transport::InfiniBand, outcome, _) | (Transport::Iwarp, outcome @ Ok(()), None) => outcome,
            (Transport::Iwarp, Ok(()), Some(_)) => {
                Err(Failure::new("passes over iWARP: EXCEPTIONS of transport.rs need not name it"))
            }
            (Transport::Iwarp, Err(failure), Some((_, why))) => match failure.lacking {
                Some(_) => Err(Failure::new(format!("needs no place in EXCEPTIONS: {failure}"))),
                None => Err(Failure { not_shown: true, ..Failure::new(*why) }),
            },
            (Transport::Iwarp, Err(failure), None) => {
                Err(Failure { not_shown: failure.not_shown || failure.lacking.is_some(), ..failure })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Test {
        crate::all().find(|test| test.name == name).unwrap_or_else(|| panic!("no test {name}"))
    }

    #[test]
    fn the_exceptions_are_tests_that_run_over_iwarp_and_have_reasons() {
        for (at, (name, why)) in EXCEPTIONS.iter().enumerate() {
            assert!(Transport::Iwarp.takes(named(name)), "{name}");
            assert!(!why.is_empty(), "{name}");
            assert!(EXCEPTIONS.iter().skip(at + 1).all(|(other, _)| other != name), "{name} twice");
        }
    }

    #[test]
    fn each_word_of_those_alone_is_one_of_a_test() {
        for word in ALONE {
            assert!(crate::all().any(|test| test.name.starts_with(word)), "{word}");
        }
    }

    #[test]
    fn a_want_is_an_end_over_iwarp_and_a_failure_over_infiniband() {
        let test = named("pz::create_query_free");
        let want = || Err::<(), _>(Error::OpNotSupported).needing(Need::Atomics);
        let not_shown = |transport: Transport, outcome| transport.judge(test, outcome).unwrap_err().not_shown;
        assert!(not_shown(Transport::Iwarp, want()));
        assert!(!not_shown(Transport::InfiniBand, want()));
        // Another error is a failure everywhere.
        let other = || Err::<(), _>(Error::InvalidEp).needing(Need::Atomics);
        assert!(!not_shown(Transport::Iwarp, other()));
        assert!(!not_shown(Transport::InfiniBand, other()));
        assert_eq!(Transport::Iwarp.judge(test, Ok(())), Ok(()));
    }

    #[test]
    fn an_exception_must_fail() {
        let (name, other) = ("pz::create_query_free", named("pz::undefined_mask_bits"));
        let test = named(name);
        let judged_over = |over: Transport, test, outcome| {
            over.judge_by(&[("pz::create_query_free", "a reason")], test, outcome)
        };
        let judged = |outcome| judged_over(Transport::Iwarp, test, outcome);
        assert!(!judged(Ok(())).unwrap_err().not_shown);
        assert!(judged(Err(Failure::new("a fault"))).unwrap_err().not_shown);
        assert!(!judged(Err(Need::Atomics.lacking())).unwrap_err().not_shown);
        assert_eq!(judged_over(Transport::InfiniBand, test, Ok(())), Ok(()));
        assert_eq!(judged_over(Transport::Iwarp, other, Ok(())), Ok(()));
        assert!(!judged_over(Transport::Iwarp, other, Err(Failure::new("a fault"))).unwrap_err().not_shown);
    }

    #[test]
    fn a_need_is_proved_by_a_failure() {
        assert_eq!(prove(|| Err(Failure::new("it fails"))), Ok(()));
        assert!(prove(|| Ok(())).is_err());
    }
}
