//! What the launcher asks an image, and the image's answers: any bytes, one question at a time.
//!
//! The questions and answers lie in memory of the guest, whose address the image tells the launcher
//! ([`control`](crate::control)). In its first words the launcher counts questions and the image
//! answers, so a question is there while these differ. The launcher cannot raise an interrupt, so a
//! thread looks at the word.
//!
//! | at | bytes | who writes | |
//! |---|---|---|---|
//! | 0 | 4 | launcher | how many questions there were |
//! | 4 | 4 | image | how many of them are answered |
//! | 8 | 4 | launcher | the bytes of the question |
//! | 12 | 4 | image | the bytes of the answer |
//! | 64 | so many as announced | launcher | the question |
//! | behind it | so many as announced | image | the answer |

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;

use platform::{DmaBuffer, OutOfMemory, Platform};

use crate::{launcher, thread};

/// The time between two looks for a question.
const PERIOD: Duration = Duration::from_millis(20);
/// Where the words are.
const ASKED: usize = 0;
const ANSWERED: usize = 4;
const QUESTION_BYTES: usize = 8;
const ANSWER_BYTES: usize = 12;
/// Where the question begins.
const QUESTION: usize = 64;

/// Where the launcher asks, and the image answers.
#[derive(Debug)]
pub struct Mailbox {
    memory: DmaBuffer,
    question: usize,
    answer: usize,
}

impl Mailbox {
    /// A mailbox for questions and answers of so many bytes at most, of which the launcher is told.
    pub fn open(
        platform: &Arc<dyn Platform>,
        question: usize,
        answer: usize,
    ) -> Result<Mailbox, OutOfMemory> {
        let memory = DmaBuffer::new(platform, QUESTION + question + answer, 4096)?;
        memory.slice().fill(0);
        launcher::control(&format!("mailbox {} {question} {answer}", memory.bus()));
        Ok(Mailbox { memory, question, answer })
    }

    fn word(&self, at: usize) -> u32 {
        // The words lie in the memory, aligned.
        self.memory.slice().atomic_u32(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(&self, at: usize, value: u32) {
        if let Ok(word) = self.memory.slice().atomic_u32(at) {
            word.store(value, Ordering::Release);
        }
    }

    /// Blocks until the launcher asks; its question. A question that is longer than there is room
    /// for is cut.
    pub fn question(&mut self) -> Vec<u8> {
        while self.word(ASKED) == self.word(ANSWERED) {
            thread::sleep(PERIOD);
        }
        let mut bytes = alloc::vec![0; self.question.min(self.word(QUESTION_BYTES) as usize)];
        // It lies in the memory.
        let _ = self.memory.read(QUESTION, &mut bytes);
        bytes
    }

    /// Answers the question that was taken last. False if the answer is longer than there is room
    /// for: then the question is still to be answered.
    pub fn answer(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.answer || self.memory.write(QUESTION + self.question, bytes).is_err() {
            return false;
        }
        self.set(ANSWER_BYTES, bytes.len() as u32);
        self.set(ANSWERED, self.word(ASKED));
        true
    }
}
