use std::sync::Arc;

use ferrovia::kernel_agent::Error;
use ferrovia::{Agent, Config, Platform, Privileged, Provider, Transport};

pub fn start(
    platform: Arc<dyn Platform>,
    nics: Vec<Arc<dyn Transport>>,
) -> Result<(Provider, Privileged), Error> {
    let provider = Provider::new(platform.clone());
    for (number, nic) in (0..).zip(nics) {
        // Resets the NIC, reads what it can do, makes QP1 and starts the thread "agent-N".
        let agent = Agent::open(platform.clone(), nic, number, Config::default())?;
        provider.add(&format!("rnic{number}"), agent).expect("the name is not taken");
    }
    // SAFETY: this is boot code. It gives the token only to consumers that may reach all memory.
    let privileged = unsafe { Privileged::assert() };
    Ok((provider, privileged))
}
