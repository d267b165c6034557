//! The local segments of a work request or a receive: checked, they become spans.

use nic_abi::ident::KEY_RESERVED;
use nic_abi::wqe::{LinkFlags, Segment};

use crate::Frontend;
use crate::keys::{Span, Violation};
use crate::nic::Nic;
use crate::transfer::Spans;

impl<F: Frontend> Nic<F> {
    /// Checks local segments and appends their memory to `spans`. Where `reserved`, the reserved
    /// key means bus addresses.
    #[inline]
    pub fn local_spans(
        &self,
        segments: &[Segment],
        pd: u32,
        right: LinkFlags,
        reserved: bool,
        spans: &mut Spans,
    ) -> Result<(), Violation> {
        for segment in segments {
            // A segment of no bytes accesses nothing, so its key is not checked (IBTA 10.6.3.1).
            if segment.length == 0 {
                continue;
            }
            let length = u64::from(segment.length);
            let span = if segment.key == KEY_RESERVED {
                let end = segment.addr.checked_add(length);
                if !reserved || end.is_none_or(|end| end > self.config.dma_limit) {
                    return Err(Violation);
                }
                Span { region: 0, offset: segment.addr, length }
            } else {
                self.keys.local(segment.key, pd, segment.addr, length, right)?
            };
            spans.push(span).map_err(|_| Violation)?;
        }
        Ok(())
    }
}
