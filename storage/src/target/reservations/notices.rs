//! The reservation notifications of a controller: those that its host has not read yet.

use nvme::reservation::{Mask, Notice, NoticePage};

use crate::target::MOST_NAMESPACES;

/// The most that are kept. Later ones replace the oldest; the host sees that by the count.
const MOST: usize = 64;

/// See the module's documentation.
pub(crate) struct Notices {
    /// The oldest first, each with its count.
    kept: heapless::Deque<(u64, Notice, u32), MOST>,
    /// The count of the last one.
    count: u64,
    /// What the host does not want, by namespace.
    masks: [Mask; MOST_NAMESPACES],
    /// The next event may be reported: the host has read the log page since the last one.
    is_armed: bool,
}

impl Default for Notices {
    fn default() -> Notices {
        Notices {
            kept: heapless::Deque::new(),
            count: 0,
            masks: [Mask::empty(); MOST_NAMESPACES],
            is_armed: true,
        }
    }
}

impl Notices {
    /// Adds one, unless the host masks it.
    pub(crate) fn add(&mut self, nsid: u32, notice: Notice) {
        if self.mask(nsid).is_none_or(|mask| mask.masks(notice)) {
            return;
        }
        // Base 5.14.1.16.1: 0 is skipped.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.kept.is_full() {
            self.kept.pop_front();
        }
        let _ = self.kept.push_back((self.count, notice, nsid));
    }

    /// Whether an event is to be reported. Then none follows before the host has read the log page.
    pub(crate) fn take_due(&mut self) -> bool {
        let is_due = self.is_armed && !self.kept.is_empty();
        self.is_armed &= !is_due;
        is_due
    }

    /// The log page: the oldest one.
    pub(crate) fn page(&self) -> Option<NoticePage> {
        let &(count, notice, nsid) = self.kept.front()?;
        Some(NoticePage::new(count, notice, (self.kept.len() - 1) as u8, nsid))
    }

    /// The host has read the oldest one.
    pub(crate) fn read(&mut self) {
        self.kept.pop_front();
        self.is_armed = true;
    }

    /// What the host does not want of a namespace.
    pub(crate) fn mask(&self, nsid: u32) -> Option<Mask> {
        self.masks.get((nsid as usize).checked_sub(1)?).copied()
    }

    /// Sets what the host does not want, of one namespace or all of them.
    pub(crate) fn set_mask(&mut self, nsid: u32, mask: Mask) {
        match nsid {
            nvme::NSID_ALL => self.masks.fill(mask),
            nsid => {
                let place = (nsid as usize).checked_sub(1).and_then(|place| self.masks.get_mut(place));
                if let Some(place) = place {
                    *place = mask;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_once_in_order_and_an_event_follows_each_reading() {
        let mut notices = Notices::default();
        assert!(!notices.take_due() && notices.page().is_none());
        notices.add(2, Notice::ReservationReleased);
        notices.add(1, Notice::RegistrationPreempted);
        assert!(notices.take_due() && !notices.take_due());
        assert_eq!(notices.page(), Some(NoticePage::new(1, Notice::ReservationReleased, 1, 2)));
        notices.read();
        assert!(notices.take_due());
        assert_eq!(notices.page(), Some(NoticePage::new(2, Notice::RegistrationPreempted, 0, 1)));
        notices.read();
        assert!(!notices.take_due() && notices.page().is_none());
    }

    #[test]
    fn those_that_are_masked_are_not_kept_and_the_oldest_make_room() {
        let mut notices = Notices::default();
        notices.set_mask(3, Mask::RESERVATION_RELEASED);
        notices.add(3, Notice::ReservationReleased);
        notices.add(0, Notice::ReservationPreempted);
        notices.add(1000, Notice::ReservationPreempted);
        assert_eq!(notices.page(), None);
        notices.set_mask(nvme::NSID_ALL, Mask::empty());
        (0..100).for_each(|_| notices.add(3, Notice::ReservationReleased));
        assert_eq!(notices.page(), Some(NoticePage::new(37, Notice::ReservationReleased, 63, 3)));
    }
}
