//! The machines that the suite runs on: NICs, CPUs, and the transport of the IAs.
//!
//! With one NIC both IAs of a test are on that NIC. With several NICs they are on the first and on
//! the second one, which a short cut joins.

use std::fmt;

use crate::network::{Network, Transport};
use crate::options::Options;

/// A machine of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The number of NICs.
    pub nics: u32,
    /// The number of CPUs.
    pub cpus: u32,
    /// The transport of the IAs.
    pub transport: Transport,
}

/// The machines unless the options name others. The second one shows races between CPUs, and its
/// connections involve two agents. There are only two machines, because each needs a whole run.
const USUAL: [Machine; 2] = [Machine::new(1, 1), Machine::new(2, 2)];

impl Machine {
    /// A machine with IAs over InfiniBand.
    pub const fn new(nics: u32, cpus: u32) -> Machine {
        Machine { nics, cpus, transport: Transport::Infiniband }
    }

    /// The machines that the options ask for: the usual ones, with the options' numbers of NICs and
    /// CPUs.
    pub fn of(options: &Options) -> Vec<Machine> {
        let mut machines: Vec<Machine> = USUAL
            .iter()
            .filter(|machine| options.chosen_nics().is_none_or(|nics| (nics == 1) == (machine.nics == 1)))
            .copied()
            .collect();
        for machine in &mut machines {
            machine.nics = options.chosen_nics().unwrap_or(machine.nics);
            machine.cpus = options.cpus.unwrap_or(machine.cpus);
            machine.transport = options.network.transport();
        }
        machines
    }

    /// The same options, for this machine.
    pub fn options(&self, options: &Options) -> Options {
        let network = Network { transport: Some(self.transport), ..options.network.clone() };
        Options { nics: Some(self.nics), cpus: Some(self.cpus), network, ..options.clone() }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u32| if n == 1 { "" } else { "s" };
        let Machine { nics, cpus, transport } = *self;
        write!(f, "{nics} NIC{}, {cpus} CPU{}", plural(nics), plural(cpus))?;
        match transport {
            Transport::Infiniband => Ok(()),
            Transport::Iwarp => f.write_str(", iWARP"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(nics: Option<u32>, cpus: Option<u32>) -> Vec<String> {
        let options = Options { nics, cpus, ..Options::default() };
        Machine::of(&options).iter().map(Machine::to_string).collect()
    }

    #[test]
    fn given_numbers_replace_the_usual_ones() {
        assert_eq!(machines(None, None), ["1 NIC, 1 CPU", "2 NICs, 2 CPUs"]);
        assert_eq!(machines(None, Some(2)), ["1 NIC, 2 CPUs", "2 NICs, 2 CPUs"]);
        assert_eq!(machines(None, Some(1)), ["1 NIC, 1 CPU", "2 NICs, 1 CPU"]);
        assert_eq!(machines(Some(1), None), ["1 NIC, 1 CPU"]);
        assert_eq!(machines(Some(2), None), ["2 NICs, 2 CPUs"]);
        assert_eq!(machines(Some(3), Some(4)), ["3 NICs, 4 CPUs"]);
        let over_iwarp = Network { transport: Some(Transport::Iwarp), ..Network::default() };
        let options = Options { network: over_iwarp, ..Options::default() };
        let names: Vec<String> = Machine::of(&options).iter().map(Machine::to_string).collect();
        assert_eq!(names, ["1 NIC, 1 CPU, iWARP", "2 NICs, 2 CPUs, iWARP"]);
        assert!(
            Machine::of(&options).iter().all(|machine| {
                machine.options(&Options::default()).network.transport() == Transport::Iwarp
            })
        );
    }
}
