//! Questions to a guest, and its answers, in the guest's memory (`kernel`, `mailbox.rs`, has the
//! layout). Any thread of the launcher may ask; one question is under way at a time.
//!
//! The guest is not trusted: what it announces has to lie in its memory, and an answer has a bound.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nic_model::GuestMemory;

use crate::console::MailboxPlace;
use device::memory::GuestRam;

/// How long an answer may take: an operator's command waits for a disk for 5 s at most.
const PATIENCE: Duration = Duration::from_secs(12);
/// The time between two looks for the answer.
const PERIOD: Duration = Duration::from_millis(5);
/// The longest question and the longest answer that a guest may announce.
const MOST: u64 = 4 << 20;
/// Where the words and the question are.
const ASKED: usize = 0;
const ANSWERED: usize = 4;
const QUESTION_BYTES: usize = 8;
const ANSWER_BYTES: usize = 12;
const QUESTION: u64 = 64;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The image has not announced a mailbox, yet.
    #[error("the target is not ready")]
    NotReady,
    /// The question is longer than the guest takes.
    #[error("the command is too long")]
    TooLong,
    /// The guest works at an earlier question, or did not answer in time.
    #[error("the target does not answer")]
    Silent,
    /// The guest has ended.
    #[error("the target has ended")]
    Ended,
}

/// A guest's mailbox. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Mailbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ram: GuestRam,
    place: OnceLock<MailboxPlace>,
    asking: Mutex<()>,
    ended: AtomicBool,
}

impl Mailbox {
    /// That of the guest with this memory, which has not announced it yet.
    pub fn new(ram: GuestRam) -> Mailbox {
        let (place, asking) = (OnceLock::new(), Mutex::new(()));
        Mailbox(Arc::new(Inner { ram, place, asking, ended: AtomicBool::new(false) }))
    }

    /// The guest announces it. A place that is not in its memory is ignored, and so is a second
    /// one.
    pub fn announce(&self, place: MailboxPlace) {
        let MailboxPlace { address, question, answer } = place;
        let fits = question <= MOST && answer <= MOST && address.is_multiple_of(8);
        if fits && self.0.ram.get(address, QUESTION + question + answer).is_ok() {
            let _ = self.0.place.set(place);
        }
    }

    /// The guest has ended.
    pub fn close(&self) {
        self.0.ended.store(true, Ordering::Release);
    }

    /// Asks, and waits for the answer.
    pub fn ask(&self, question: &[u8]) -> Result<Vec<u8>, NoAnswer> {
        let Inner { ram, place, asking, ended } = &*self.0;
        let place = place.get().ok_or(NoAnswer::NotReady)?;
        if question.len() as u64 > place.question {
            return Err(NoAnswer::TooLong);
        }
        let all = QUESTION + place.question + place.answer;
        let memory = ram.get(place.address, all).map_err(|_| NoAnswer::NotReady)?;
        let word = |at| memory.atomic_u32(at).map_err(|_| NoAnswer::NotReady);
        let _alone = asking.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = word(ASKED)?.load(Ordering::Relaxed);
        // The guest may still read an earlier question that was given up.
        if word(ANSWERED)?.load(Ordering::Acquire) != asked {
            return Err(NoAnswer::Silent);
        }
        memory.write(QUESTION as usize, question).map_err(|_| NoAnswer::TooLong)?;
        word(QUESTION_BYTES)?.store(question.len() as u32, Ordering::Relaxed);
        let asked = asked.wrapping_add(1);
        word(ASKED)?.store(asked, Ordering::Release);
        let until = Instant::now() + PATIENCE;
        while word(ANSWERED)?.load(Ordering::Acquire) != asked {
            if ended.load(Ordering::Acquire) {
                return Err(NoAnswer::Ended);
            }
            if Instant::now() >= until {
                return Err(NoAnswer::Silent);
            }
            std::thread::sleep(PERIOD);
        }
        let bytes = u64::from(word(ANSWER_BYTES)?.load(Ordering::Relaxed)).min(place.answer);
        let mut answer = vec![0; bytes as usize];
        let at = (QUESTION + place.question) as usize;
        memory.read(at, &mut answer).map_err(|_| NoAnswer::Silent)?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that answers each question once by its bytes in reverse.
    fn guest(ram: &GuestRam, place: MailboxPlace, questions: usize) {
        let memory = ram.get(place.address, QUESTION + place.question + place.answer).expect("its memory");
        let word = |at| memory.atomic_u32(at).expect("a word");
        for _ in 0..questions {
            while word(ASKED).load(Ordering::Acquire) == word(ANSWERED).load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let mut bytes = vec![0; word(QUESTION_BYTES).load(Ordering::Acquire) as usize];
            memory.read(QUESTION as usize, &mut bytes).expect("a question");
            bytes.reverse();
            memory.write((QUESTION + place.question) as usize, &bytes).expect("an answer");
            word(ANSWER_BYTES).store(bytes.len() as u32, Ordering::Release);
            word(ANSWERED).fetch_add(1, Ordering::AcqRel);
        }
    }

    #[test]
    fn each_of_several_threads_gets_the_answer_to_its_question() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        let mailbox = Mailbox::new(ram.clone());
        assert_eq!(mailbox.ask(b"x"), Err(NoAnswer::NotReady));
        let place = MailboxPlace { address: 0x1000, question: 16, answer: 16 };
        mailbox.announce(place);
        assert!(mailbox.0.place.get().is_some());
        std::thread::scope(|scope| {
            scope.spawn(|| guest(&ram, place, 40));
            for thread in 0..4 {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    for n in 0..10 {
                        let question = format!("{thread}-{n}");
                        let answer = mailbox.ask(question.as_bytes()).expect("an answer");
                        assert_eq!(answer, question.bytes().rev().collect::<Vec<_>>());
                    }
                });
            }
        });
        assert_eq!(mailbox.ask(&[0; 17]), Err(NoAnswer::TooLong));
        mailbox.close();
        assert_eq!(mailbox.ask(b"x"), Err(NoAnswer::Ended));
        // The question that nobody answers is still there, and no other one overwrites it.
        assert_eq!(mailbox.ask(b"y"), Err(NoAnswer::Silent));
    }

    #[test]
    fn a_guest_s_lies_reach_no_memory_beyond_its_own() {
        let ram = GuestRam::new(1 << 20).expect("1 MiB");
        for (address, question, answer) in
            [(0xf_ffc0, 16, 16), (0, MOST + 1, 16), (u64::MAX - 7, 16, 16), (4, 16, 16), (0, 16, u64::MAX)]
        {
            let mailbox = Mailbox::new(ram.clone());
            mailbox.announce(MailboxPlace { address, question, answer });
            assert!(mailbox.0.place.get().is_none(), "{address:#x} {question} {answer}");
        }
        let mailbox = Mailbox::new(ram.clone());
        mailbox.announce(MailboxPlace { address: 0, question: 16, answer: 16 });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let memory = ram.get(0, 96).expect("its memory");
                let word = |at| memory.atomic_u32(at).expect("a word");
                while word(ASKED).load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                word(ANSWER_BYTES).store(u32::MAX, Ordering::Release);
                word(ANSWERED).store(1, Ordering::Release);
            });
            assert_eq!(mailbox.ask(b"x").expect("an answer").len(), 16);
        });
    }
}
