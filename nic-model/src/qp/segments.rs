//! The local segments of a work request or a receive: a check turns them into spans.

use nic_abi::ident::KEY_RESERVED;
use nic_abi::wqe::{LinkFlags, Segment};

use crate::Frontend;
use crate::keys::{Span, Violation};
use crate::nic::Nic;
use crate::transfer::Spans;

/// The kind of keys in local segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// Local keys.
    Local,
    /// Local keys, and the reserved key for bus addresses.
    LocalOrReserved,
    /// Memory handles of a virtual interface, which are remote keys.
    Handles,
}

impl<F: Frontend> Nic<F> {
    /// Checks local segments and appends their memory to `spans`.
    #[inline(always)]
    pub fn local_spans(
        &self,
        segments: &[Segment],
        pd: u32,
        right: LinkFlags,
        kind: KeyKind,
        spans: &mut Spans,
    ) -> Result<(), Violation> {
        if kind == KeyKind::Handles {
            return self.handle_spans(segments, pd, right, spans);
        }
        for segment in segments {
            // A segment of no bytes accesses nothing, so its key is not checked (IBTA 10.6.3.1).
            if segment.length == 0 {
                continue;
            }
            let length = u64::from(segment.length);
            let span = if segment.key == KEY_RESERVED {
                let end = segment.addr.checked_add(length);
                if kind == KeyKind::Local || end.is_none_or(|end| end > self.config.dma_limit) {
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

    /// As [`Nic::local_spans`], for a virtual interface.
    #[inline(never)]
    fn handle_spans(
        &self,
        segments: &[Segment],
        pd: u32,
        right: LinkFlags,
        spans: &mut Spans,
    ) -> Result<(), Violation> {
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            let span = self.keys.by_handle(segment.key, pd, segment.addr, segment.length.into(), right)?;
            spans.push(span).map_err(|_| Violation)?;
        }
        Ok(())
    }
}
