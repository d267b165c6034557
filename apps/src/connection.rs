//! An endpoint of a program with its peer, and how long the program waits for that.

use alloc::collections::VecDeque;
use core::time::Duration;

use rdma::{
    ConnectError, Connecting, DatagramEndpoint, Done, Ending, Endpoint, PostError, Request, RequestError,
    Slice,
};

use crate::{Failure, fail};

/// How long after a request was flushed the reason may be reported.
const REASON: Duration = Duration::from_secs(1);

/// What a program does with an endpoint of either kind.
pub(crate) trait Channel {
    /// Starts to receive a message.
    fn receive(&self, into: Slice<'_>) -> Result<Request, PostError>;

    /// Starts to send a message to the peer.
    fn send(&self, message: Slice<'_>) -> Result<Request, Failure>;

    /// A message has arrived.
    fn arrived(&mut self, _done: &Done) -> Result<(), Failure> {
        Ok(())
    }

    /// How the connection has ended, after a request was flushed.
    fn ending(&self) -> Option<Ending> {
        None
    }
}

impl Channel for Endpoint {
    fn receive(&self, into: Slice<'_>) -> Result<Request, PostError> {
        Endpoint::receive(self, into)
    }

    fn send(&self, message: Slice<'_>) -> Result<Request, Failure> {
        Endpoint::send(self, message).map_err(Failure::new)
    }

    fn ending(&self) -> Option<Ending> {
        let _ = self.wait_closed(Some(REASON));
        Endpoint::ending(self)
    }
}

/// An endpoint for datagrams, and where they go.
pub(crate) struct Datagrams {
    pub endpoint: DatagramEndpoint,
    pub peer: Option<rdma::Destination>,
}

impl Channel for Datagrams {
    fn receive(&self, into: Slice<'_>) -> Result<Request, PostError> {
        self.endpoint.receive(into)
    }

    /// Sends a datagram with the endpoint's number as immediate data.
    fn send(&self, message: Slice<'_>) -> Result<Request, Failure> {
        let Some(peer) = self.peer else { fail!("no peer is known") };
        let datagram = rdma::Datagram::new(message, peer).immediate(self.endpoint.number());
        self.endpoint.start(datagram).map_err(Failure::new)
    }

    /// Who sends the first datagram is the peer.
    fn arrived(&mut self, done: &Done) -> Result<(), Failure> {
        if self.peer.is_none() {
            let Some(sender) = done.sender else { fail!("a datagram does not say where it came from") };
            self.peer = Some(self.endpoint.to(sender).map_err(Failure::new)?);
        }
        Ok(())
    }
}

/// An endpoint, and the requests that the program has not waited for, oldest first.
pub(crate) struct Connection<C> {
    pub endpoint: C,
    patience: Duration,
    receives: VecDeque<Request>,
    sends: VecDeque<Request>,
}

impl<C: Channel> Connection<C> {
    /// The endpoint may not be connected yet. `patience`: how long each step waits for the peer.
    pub fn new(endpoint: C, patience: Duration) -> Connection<C> {
        Connection { endpoint, patience, receives: VecDeque::new(), sends: VecDeque::new() }
    }

    /// Expects one more message.
    pub fn expect(&mut self, into: Slice<'_>) -> Result<(), Failure> {
        self.receives.push_back(self.endpoint.receive(into).map_err(Failure::new)?);
        Ok(())
    }

    /// Waits for the next message.
    pub fn received(&mut self) -> Result<Done, Failure> {
        let Some(receive) = self.receives.pop_front() else { fail!("no message is expected") };
        let done = self.done("Receive", receive)?;
        self.endpoint.arrived(&done)?;
        Ok(done)
    }

    /// Sends a message. [`Connection::sent`] waits until it is sent.
    pub fn send(&mut self, message: Slice<'_>) -> Result<(), Failure> {
        let send = self.endpoint.send(message)?;
        self.sending(send);
        Ok(())
    }

    /// The same for a Send that was started otherwise.
    pub fn sending(&mut self, send: Request) {
        self.sends.push_back(send);
    }

    /// Waits until all messages are sent.
    pub fn sent(&mut self) -> Result<(), Failure> {
        while let Some(send) = self.sends.pop_front() {
            self.done("Send", send)?;
        }
        Ok(())
    }

    /// Waits for the end of a request.
    pub fn done(&mut self, what: &str, request: Request) -> Result<Done, Failure> {
        match request.wait_timeout(self.patience) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(RequestError::Flushed)) => Err(self.lost()),
            Ok(Err(RequestError::RetryExceeded)) => fail!("the connection broke: the peer does not answer"),
            Ok(Err(error)) => fail!("{what}: {error}"),
            Err(_) => Err(silent(self.patience)),
        }
    }

    /// Why requests were flushed.
    fn lost(&mut self) -> Failure {
        if self.endpoint.ending() == Some(Ending::ByPeer) {
            return Failure::new("the peer disconnected");
        }
        // A Send that the program has not waited for may have failed with the reason.
        for send in self.sends.drain(..) {
            if let Ok(Err(error)) = send.wait_timeout(Duration::ZERO)
                && error != RequestError::Flushed
            {
                return Failure::new(format_args!("the connection broke: a Send: {error}"));
            }
        }
        Failure::new("the connection broke")
    }
}

impl Connection<Endpoint> {
    /// Waits until the connection that was asked for, or accepted, is established.
    pub fn established(&self, connecting: Connecting) -> Result<(), Failure> {
        match connecting.wait_timeout(self.patience) {
            // It has ended already, perhaps by a message that came before the peer's confirmation:
            // the requests say why.
            Ok(Err(ConnectError::Closed)) => Ok(()),
            Ok(outcome) => outcome.map(drop).map_err(refusal),
            Err(_) => Err(silent(self.patience)),
        }
    }

    /// Waits until the peer has disconnected.
    pub fn disconnected(&self) -> Result<(), Failure> {
        if self.endpoint.wait_closed(Some(self.patience)).is_err() {
            return Err(silent(self.patience));
        }
        match Endpoint::ending(&self.endpoint) {
            Some(Ending::ByPeer) => Ok(()),
            _ => fail!("the connection broke"),
        }
    }
}

/// The peer has not done the next step in time.
pub(crate) fn silent(patience: Duration) -> Failure {
    Failure::new(format_args!("nothing came from the peer for {} s", patience.as_secs()))
}

/// Why there is no connection.
fn refusal(error: ConnectError) -> Failure {
    Failure::new(match error {
        ConnectError::Rejected => "the peer refused the connection",
        ConnectError::TimedOut => "the peer does not answer",
        ConnectError::NoListener => "the connection was rejected; does a server listen at this port?",
        // The reasons that are about the path (IBTA vol. 1 table 109).
        ConnectError::RejectedByAgent(12..=17 | 24..=26 | 32) => {
            "the peer refuses the path; has its port a smaller MTU?"
        }
        ConnectError::RejectedByAgent(reason) => {
            return Failure::new(format_args!(
                "the connection was rejected (reason {reason}); does a server listen at this port?"
            ));
        }
        other => return Failure::new(other),
    })
}
