//! Hosts that wait for asynchronous events.

use nvme::Status;
use nvme::async_event::Event;
use nvme::command::{Command, opcode};
use nvme::feature::{AsyncEvents, SetFeatures};
use nvme::log::GetLogPage;
use zerocopy::IntoBytes;

use crate::raw::Queue;

/// An admin queue whose host waits for events, and reads what they are about.
pub struct Listening(pub Queue);

impl Listening {
    /// The host wants to hear of these events.
    pub fn new(mut admin: Queue, events: AsyncEvents) -> Listening {
        let fid = nvme::feature::id::ASYNC_EVENT_CONFIGURATION;
        let set = SetFeatures { fid, save: false, nsid: 0, value: events.bits() };
        assert_eq!(admin.status(set.command()), Status::SUCCESS);
        let mut listening = Listening(admin);
        listening.listen();
        listening
    }

    fn listen(&mut self) {
        self.0.0.send(Command::new(opcode::admin::ASYNC_EVENT_REQUEST).with_cid(0x700).as_bytes());
    }

    /// Waits for an event.
    pub fn event(&mut self) -> Event {
        let event = self.0.0.response().expect("an event");
        assert_eq!((event.cid.get(), event.status()), (0x700, Status::SUCCESS));
        self.listen();
        let word = event.result.get() as u32;
        let event = Event::parse(word);
        assert_eq!(event.result(), word, "no other bits");
        event
    }

    /// Whether an event comes before the response to a later command.
    pub fn has_event(&mut self) -> bool {
        self.0.0.send(Command::new(opcode::admin::KEEP_ALIVE).with_cid(0x701).as_bytes());
        let first = self.0.0.response().expect("a response").cid.get();
        if first == 0x700 {
            self.0.0.response().expect("a response");
            self.listen();
        }
        first == 0x700
    }

    /// So many bytes of a log page.
    pub fn log(&mut self, lid: u8, lsp: u8, rae: bool, offset: u64, bytes: usize) -> Vec<u8> {
        let numd = bytes as u32 / 4 - 1;
        let page = GetLogPage { nsid: nvme::NSID_ALL, lid, lsp, rae, numd, offset };
        self.read(page.command(), bytes)
    }

    /// So many bytes of a command's data.
    pub fn read(&mut self, command: Command, bytes: usize) -> Vec<u8> {
        let sgl = self.0.0.keyed(0, bytes);
        assert_eq!(self.0.status(command.with_sgl(sgl)), Status::SUCCESS);
        let mut read = vec![0; bytes];
        self.0.0.memory.read(0, &mut read).unwrap();
        read
    }
}
