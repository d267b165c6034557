//! Opening an agent.

use host::Machine;
use kernel_agent::{Agent, Config};

use super::*;

#[test]
fn an_agent_is_opened_or_the_device_is_as_before() {
    let machine = Machine::new(1);
    let open = || Agent::open(machine.platform(), machine.transport(0), 0, Config::default());
    // What the machine keeps from the first opening on must not count.
    open().expect("an agent").close();
    let lent = machine.arena().lent();
    for requests in 0..REQUESTS {
        match CountedHeap::ending_after(requests, open) {
            Ok(agent) => {
                println!("Agent::open: {requests} requests");
                CountedHeap::ending_after(0, || agent.close());
                drop(agent);
                assert_eq!(machine.arena().lent(), lent);
                return;
            }
            Err(error) => {
                assert_eq!(error, kernel_agent::Error::OutOfMemory, "{requests} requests");
                assert_eq!(machine.arena().lent(), lent, "{requests} requests");
            }
        }
    }
    panic!("an agent is never opened");
}
