//! The machines that the suite runs on: NICs and CPUs.
//!
//! With one NIC both IAs of a test are of that NIC; with more they are of the first and of the second, which a short
//! cut joins.

use std::fmt;

use crate::options::Options;

/// What sets one machine of the suite's apart from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How many NICs it has.
    pub nics: u32,
    /// How many CPUs it has.
    pub cpus: u32,
}

/// Where the suite runs unless something else is asked for. With more of each there are more threads at once than one
/// CPU can show races between, and each connection has two agents; two whole runs are what a test may take.
const USUAL: [Machine; 2] = [Machine { nics: 1, cpus: 1 }, Machine { nics: 2, cpus: 2 }];

impl Machine {
    /// The machines that the options ask for: all the usual ones, each with what is given in place of its own.
    pub fn of(options: &Options) -> Vec<Machine> {
        let mut machines: Vec<Machine> = USUAL
            .iter()
            .filter(|machine| options.nics.is_none_or(|nics| (nics == 1) == (machine.nics == 1)))
            .copied()
            .collect();
        for machine in &mut machines {
            machine.nics = options.nics.unwrap_or(machine.nics);
            machine.cpus = options.cpus.unwrap_or(machine.cpus);
        }
        machines
    }

    /// The same options, for this machine.
    pub fn options(&self, options: &Options) -> Options {
        Options { nics: Some(self.nics), cpus: Some(self.cpus), ..options.clone() }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u32| if n == 1 { "" } else { "s" };
        let Machine { nics, cpus } = *self;
        write!(f, "{nics} NIC{}, {cpus} CPU{}", plural(nics), plural(cpus))
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
    fn what_is_given_takes_the_place_of_the_usual() {
        assert_eq!(machines(None, None), ["1 NIC, 1 CPU", "2 NICs, 2 CPUs"]);
        assert_eq!(machines(None, Some(2)), ["1 NIC, 2 CPUs", "2 NICs, 2 CPUs"]);
        assert_eq!(machines(None, Some(1)), ["1 NIC, 1 CPU", "2 NICs, 1 CPU"]);
        assert_eq!(machines(Some(1), None), ["1 NIC, 1 CPU"]);
        assert_eq!(machines(Some(2), None), ["2 NICs, 2 CPUs"]);
        assert_eq!(machines(Some(3), Some(4)), ["3 NICs, 4 CPUs"]);
    }
}
