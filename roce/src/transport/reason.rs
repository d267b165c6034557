//! What a device counts: why an engine dropped something, or went back.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $counter:literal;)*) => {
        /// Why an engine dropped, refused or repeated something.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them; a reason's place is its number.
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The counter's name. Where Linux's `hw_counters` have one it is theirs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Reason::$name => $counter,)*
                }
            }
        }
    };
}

reasons! {
    // The responder.
    /// A request that was carried out before; it is answered again. On an unreliable connection: a
    /// packet that comes late or again.
    DuplicateRequest = "duplicate_request";
    /// A request behind a gap.
    OutOfSequence = "out_of_sequence";
    /// A message without a receive to put it into: the answer is an RNR NAK.
    OutOfBuffer = "out_of_buffer";
    /// The message does not fit its receive, or its length is not the announced one.
    RespLocalLengthError = "resp_local_length_error";
    /// The requester has no right to the memory that it asked for.
    RespRemoteAccessErrors = "resp_remote_access_errors";
    /// The packet may not follow the one before it.
    BadOpcodeSequence = "resp_opcode_sequence_error";
    /// The payload's length is not the path MTU, or a multiple of it, where it has to be.
    BadPacketLength = "resp_packet_length_error";
    /// The request is one that the queue pair does not carry out.
    UnsupportedRequest = "resp_unsupported_request";
    /// More RDMA Reads and atomic operations are outstanding than the responder announced.
    TooManyReads = "resp_too_many_reads";
    /// The responder could not carry out the request.
    RespOperationalError = "resp_operational_error";
    /// A repeated RDMA Read or atomic operation whose first execution is not remembered.
    ForgottenRequest = "resp_forgotten_request";
    /// A message of an unreliable connection of which a packet is missing.
    IncompleteMessage = "resp_incomplete_message";
    /// The engine has failed before.
    Closed = "closed";
    // The requester.
    /// The responder reported a gap.
    PacketSeqErr = "packet_seq_err";
    /// A later answer came: the answer of an RDMA Read or atomic operation is lost.
    ImpliedNakSeqErr = "implied_nak_seq_err";
    /// The responder had no receive.
    RnrNakRetryErr = "rnr_nak_retry_err";
    /// No answer came in time.
    LocalAckTimeoutErr = "local_ack_timeout_err";
    /// The responder refused an access.
    ReqRemoteAccessErrors = "req_remote_access_errors";
    /// The responder called a request invalid.
    ReqRemoteInvalidRequest = "req_remote_invalid_request";
    /// The responder could not carry out a request.
    ReqRemoteOperationalErrors = "req_remote_operational_errors";
    /// The answer of an RDMA Read or atomic operation is of another kind or length.
    BadAnswer = "req_bad_answer";
    /// An answer to what has been answered.
    DuplicateAnswer = "req_duplicate_answer";
    /// An answer that shows a loss which is being made good.
    KnownGap = "req_known_gap";
    /// An answer to what was not sent.
    AnswerNeverAskedFor = "req_answer_never_asked_for";
    // Datagrams.
    /// The queue key is not the queue pair's.
    BadQKey = "qkey_violation";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let names: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for (place, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
