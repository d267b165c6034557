//! What the ports of NICs are plugged into: the options, and the links that they describe.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use links::{Capture, Impaired, Impairment, IpPrefix, LinkSpec, OpenError, SpecError, Stream};
use nic_model::port;

use device::thread::Wire;
use device::{Plugged, Plugs};

use crate::error::{Error, Result};
use crate::temporary;

/// How programs connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// InfiniBand's connections, over RoCEv2
    #[default]
    Infiniband,
    /// RDMA over TCP
    Iwarp,
}

impl Transport {
    /// The word on the kernel's command line that tells it, if it is not the usual one.
    pub const fn word(self) -> Option<&'static str> {
        match self {
            Transport::Infiniband => None,
            Transport::Iwarp => Some("transport=iwarp"),
        }
    }
}

/// The most NICs of a guest.
const MOST_NICS: usize = 8;
/// The MTU of a link unless the user chooses another.
const DEFAULT_MTU: u32 = 1500;

/// The options about links.
#[derive(Args, Clone, Debug, Default)]
pub struct Network {
    /// Plug the NIC into LINK: stream:PATH (listen at a UNIX socket, in the framing of QEMU's
    /// netdev stream), stream-connect:PATH, switch:PATH (listen for several peers, which also reach
    /// each other), shm:PATH (processes of this machine, which meet in a folder), udp:ADDRESS
    /// (RoCEv2 in the host's UDP port 4791), none (no cable), pair (two NICs, joined by packets),
    /// or stream (two NICs, joined by a stream socket; the machines of `pair` are then on device
    /// processes of their own); given several times, there is a NIC on each link [default:
    /// short-cut, NICs without packets]
    #[arg(long = "link", global = true, value_name = "LINK", help_heading = "Network")]
    pub links: Vec<Plug>,

    /// Connect by this: for the tour, transfer, test, bench, rping-server, rping-client, cmatose,
    /// storage and storage-client, and `pair` with these [default: infiniband]
    #[arg(long, global = true, value_enum, value_name = "NAME")]
    #[arg(help_heading = "Network")]
    pub transport: Option<Transport>,

    /// Give the NIC this address, with the length of its prefix; once for each address, or with
    /// several links once for each of them, in their order, and with commas between a NIC's
    /// addresses [default: 10.0.0.1/24; with stream-connect 10.0.0.2/24, with udp the link's own,
    /// with shm the first free of 127.0.0.2/8 to 127.0.0.254/8]
    #[arg(long = "ip", global = true, value_name = "ADDRESS/LEN", help_heading = "Network")]
    pub addresses: Vec<Addresses>,

    /// Let the link carry IP packets of this size at most [default: 1500]
    #[arg(long, global = true, value_name = "N", help_heading = "Network")]
    #[arg(value_parser = clap::value_parser!(u32).range(port::MIN_MTU as i64..=port::MAX_MTU as i64))]
    pub mtu: Option<u32>,

    /// Make the NIC's port a member of this VLAN (802.1Q): its frames have the tag, and it takes no
    /// others [default: none, frames without a tag]
    #[arg(long, global = true, value_name = "ID", help_heading = "Network")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(port::MAX_VLAN)))]
    pub vlan: Option<u16>,

    /// Write what crosses the link to FILE, for tshark or Wireshark
    #[arg(long, global = true, value_name = "FILE", help_heading = "Network")]
    pub pcap: Option<PathBuf>,

    /// The link's impairment.
    #[arg(long, global = true, value_name = "SPEC", help_heading = "Network", help = Impairment::help())]
    pub impair: Option<Impairment>,

    /// Write the NICs' counters to FILE as JSON, once a second and at the end
    #[arg(long, global = true, value_name = "FILE", help_heading = "Network")]
    pub counters: Option<PathBuf>,
}

/// What the NICs' ports are plugged into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plug {
    /// Short cuts between NICs of one device, without packets.
    #[default]
    ShortCut,
    /// Two NICs of one device, joined by packets.
    Pair,
    /// A stream socket between two NICs: of one machine, or of two machines that a launcher starts,
    /// each on its own device.
    Stream,
    /// A link to other processes or machines.
    Link(LinkSpec),
}

impl FromStr for Plug {
    type Err = SpecError;

    fn from_str(text: &str) -> std::result::Result<Plug, SpecError> {
        match text {
            "short-cut" => Ok(Plug::ShortCut),
            "pair" => Ok(Plug::Pair),
            "stream" => Ok(Plug::Stream),
            _ => text.parse().map(Plug::Link),
        }
    }
}

impl fmt::Display for Plug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plug::ShortCut => f.write_str("short-cut"),
            Plug::Pair => f.write_str("pair"),
            Plug::Stream => f.write_str("stream"),
            Plug::Link(spec) => spec.fmt(f),
        }
    }
}

/// Addresses of a NIC, with commas between them on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<IpPrefix>);

impl FromStr for Addresses {
    type Err = <IpPrefix as FromStr>::Err;

    fn from_str(text: &str) -> std::result::Result<Addresses, Self::Err> {
        text.split(',').map(str::parse).collect::<std::result::Result<_, _>>().map(Addresses)
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&words.join(","))
    }
}

impl Network {
    /// How programs connect.
    pub fn transport(&self) -> Transport {
        self.transport.unwrap_or_default()
    }

    /// What the first NIC is plugged into.
    pub(crate) fn plug(&self) -> Plug {
        self.links.first().cloned().unwrap_or_default()
    }

    /// Whether NICs exchange requests without packets.
    pub fn is_short_cut(&self) -> bool {
        self.plug() == Plug::ShortCut
    }

    /// The number of NICs of a device on this link; `None` if it is not fixed.
    pub fn nics(&self) -> Option<u32> {
        match self.plug() {
            Plug::ShortCut => None,
            Plug::Pair | Plug::Stream => Some(2),
            Plug::Link(_) => Some(self.links.len() as u32),
        }
    }

    /// Checks that the options fit a device with this many NICs.
    fn check_number(&self, nics: u32) -> Result<()> {
        if let Some(wanted) = self.nics().filter(|wanted| *wanted != nics) {
            let plural = if wanted == 1 { "" } else { "s" };
            let plug = self.links.iter().map(Plug::to_string).collect::<Vec<_>>().join(" --link ");
            return Err(Error::Usage(format!(
                "--link {plug} is for {wanted} NIC{plural}, and there are {nics}; leave out --nics, or \
                 choose another link"
            )));
        }
        Ok(())
    }

    /// Whether the link loses or repeats packets, or changes their order.
    pub(crate) fn is_lossy(&self) -> bool {
        self.impair.is_some_and(|impairment| impairment.is_lossy())
    }

    /// Checks that the options fit together.
    pub fn check(&self) -> Result<()> {
        let plug = self.plug();
        let of_links = [
            ("--ip", !self.addresses.is_empty()),
            ("--mtu", self.mtu.is_some()),
            ("--vlan", self.vlan.is_some()),
            ("--pcap", self.pcap.is_some()),
            ("--impair", self.impair.is_some()),
        ];
        match of_links.iter().find(|(_, given)| *given) {
            Some((option, _)) if plug == Plug::ShortCut => Err(Error::Usage(format!(
                "{option} needs a link that carries packets: --link stream:PATH, stream-connect:PATH, \
                 switch:PATH, shm:PATH, udp:ADDRESS or pair"
            ))),
            _ if matches!(plug, Plug::Pair | Plug::Stream) && !self.addresses.is_empty() => {
                Err(Error::Usage(format!(
                    "--link {plug} gives the NICs the addresses 10.0.0.1 and 10.0.0.2; leave out --ip"
                )))
            }
            _ => self.check_links(),
        }
    }

    /// Checks each of the links, and that they fit together.
    fn check_links(&self) -> Result<()> {
        if self.links.len() > 1 {
            self.check_several()?;
        }
        for (n, plug) in (0..).zip(&self.links) {
            let is_udp = matches!(plug, Plug::Link(LinkSpec::Udp(_)));
            if is_udp && self.vlan.is_some() {
                return Err(Error::Usage(format!(
                    "--link {plug} carries no Ethernet frames, and so no VLAN; leave out --vlan"
                )));
            }
            if is_udp && self.transport() == Transport::Iwarp {
                return Err(Error::Usage(format!(
                    "--link {plug} carries RoCEv2 only, and no TCP; leave out --transport iwarp"
                )));
            }
            self.check_addresses(n)?;
        }
        Ok(())
    }

    /// Checks that there may be several links, and that each has addresses.
    fn check_several(&self) -> Result<()> {
        let (links, addresses) = (self.links.len(), self.addresses.len());
        if let Some(plug) = self.links.iter().find(|plug| !matches!(plug, Plug::Link(_))) {
            return Err(Error::Usage(format!(
                "--link {plug} is for all NICs; give several links only as stream:PATH, \
                 stream-connect:PATH, switch:PATH, shm:PATH, udp:ADDRESS or none"
            )));
        }
        if links > MOST_NICS {
            return Err(Error::Usage(format!(
                "--link is given {links} times, and a guest has 8 NICs at most"
            )));
        }
        if links != addresses {
            return Err(Error::Usage(format!(
                "--link is given {links} times and --ip {addresses} times; give one --ip for each link, in \
                 their order, with commas between several addresses"
            )));
        }
        // The GUID and the MAC.
        let mut names: Vec<u64> = (0..links as u8).map(|n| self.port(n).0).collect();
        names.sort_unstable();
        if names.windows(2).any(|two| two[0] == two[1]) {
            return Err(Error::Usage(
                "the first addresses of two links end in the same three bytes, which a NIC has its MAC \
                 from; give them others"
                    .into(),
            ));
        }
        Ok(())
    }

    /// The arguments that give a launcher one end of the stream socket at `socket`. The end of the
    /// second machine listens, since that machine may start long before the first. The other link
    /// options go to the first end, and affect both directions.
    pub(crate) fn of_an_end(&self, number: usize, socket: &Path) -> Vec<OsString> {
        let mut link = OsString::from(if number == 0 { "stream-connect:" } else { "stream:" });
        link.push(socket);
        let address = format!("10.0.0.{}/24", number + 1);
        let mut arguments = vec!["--link".into(), link, "--ip".into(), address.into()];
        let mut add = |name: &str, value: Option<OsString>| {
            arguments.extend(value.into_iter().flat_map(|value| [name.into(), value]));
        };
        add("--mtu", self.mtu.map(|mtu| mtu.to_string().into()));
        add("--vlan", self.vlan.map(|vlan| vlan.to_string().into()));
        let other = self.transport.filter(|&transport| transport != Transport::default());
        let name = other.and_then(|transport| transport.to_possible_value());
        add("--transport", name.map(|value| value.get_name().into()));
        if number == 0 {
            add("--pcap", self.pcap.clone().map(PathBuf::into_os_string));
            add("--counters", self.counters.clone().map(PathBuf::into_os_string));
            add("--impair", self.impair.map(|impairment| impairment.to_string().into()));
        }
        arguments
    }

    /// Checks the addresses of NIC `n`, which is on a link of its own.
    fn check_addresses(&self, n: u8) -> Result<()> {
        if let Some(Plug::Link(LinkSpec::Udp(own))) = self.links.get(usize::from(n))
            && self.port_addresses(n).iter().all(|prefix| prefix.address() != *own)
        {
            return Err(Error::Usage(format!("--link udp:{own} needs --ip {own}/LEN, or no --ip")));
        }
        let (_, config) = self.port(n);
        port::Port::new(&config).map(drop).map_err(|error| Error::Usage(error.to_string()))
    }

    /// The addresses of NIC `n`.
    fn port_addresses(&self, n: u8) -> Vec<IpPrefix> {
        let given = match self.links.len() {
            0 | 1 => &self.addresses[..],
            _ => self.addresses.get(usize::from(n)).map_or(&[][..], core::slice::from_ref),
        };
        if !given.is_empty() {
            return given.iter().flat_map(|addresses| addresses.0.clone()).collect();
        }
        let address = match self.plug() {
            Plug::Link(spec) => spec.address(),
            Plug::ShortCut | Plug::Pair | Plug::Stream => links::numbered(n),
        };
        address.into_iter().collect()
    }

    /// The node's GUID and the port of NIC `n`.
    fn port(&self, n: u8) -> (u64, port::Config) {
        self.port_with(&self.port_addresses(n), n)
    }

    fn port_with(&self, addresses: &[IpPrefix], n: u8) -> (u64, port::Config) {
        let mtu = self.mtu.unwrap_or(DEFAULT_MTU);
        let (node_guid, config) = links::port_at(addresses, n, mtu);
        (node_guid, port::Config { vlan: self.vlan, ..config })
    }

    /// Opens the link of a device with this many NICs.
    pub(crate) fn open(&self, nics: usize) -> Result<Plugs> {
        self.check_number(u32::try_from(nics).unwrap_or(u32::MAX))?;
        self.check()?;
        let capture = self.pcap.as_deref().map(Capture::create).transpose()?;
        let dress = |link: Wire| -> Wire {
            let link = match &capture {
                Some(capture) => Box::new(capture.tap(link)),
                None => link,
            };
            match self.impair {
                Some(impairment) => Box::new(Impaired::new(link, impairment)),
                None => link,
            }
        };
        let port = |n| {
            let (node_guid, port) = self.port(n);
            move |wire: Wire| Plugged { node_guid, port, wire }
        };
        let plugged = match self.plug() {
            Plug::ShortCut => Vec::new(),
            Plug::Pair => {
                let (first, second) = links::pair();
                vec![port(0)(dress(Box::new(first))), port(1)(Box::new(second))]
            }
            // For two machines joined by a stream, each launcher gets a link with a path.
            Plug::Stream => {
                let path = temporary::socket("link")?;
                let first = Stream::listen(&path)?;
                vec![port(0)(dress(Box::new(first))), port(1)(Box::new(Stream::connect(&path)?))]
            }
            Plug::Link(_) => {
                let mut plugged = Vec::new();
                for (n, plug) in (0..).zip(&self.links) {
                    // The other kinds are alone.
                    let Plug::Link(spec) = plug else { continue };
                    plugged.push(self.plug_into(spec, n, dress)?);
                }
                plugged
            }
        };
        let complain = |line: &str| complain!("{line}");
        Ok(Plugs { plugged, capture, counters: self.counters.clone(), complain })
    }

    /// Opens a link to other processes for NIC `n`. Without addresses from the user the port has
    /// the first one that is free there.
    fn plug_into(&self, spec: &LinkSpec, n: u8, dress: impl Fn(Wire) -> Wire) -> Result<Plugged> {
        let choices = if self.addresses.is_empty() { spec.choices() } else { Vec::new() };
        let (last, others) = match choices.split_last() {
            Some((last, others)) => (vec![*last], others),
            None => (self.port_addresses(n), &[][..]),
        };
        let open = |addresses: &[IpPrefix]| -> std::result::Result<Plugged, OpenError> {
            let (node_guid, port) = self.port_with(addresses, n);
            Ok(Plugged { wire: dress(spec.open(port.mac, addresses)?), node_guid, port })
        };
        for address in others {
            match open(&[*address]) {
                Err(OpenError::Taken { .. }) => {}
                opened => return Ok(opened?),
            }
        }
        Ok(open(&last)?)
    }
}

#[cfg(test)]
mod tests {
    use platform::Instant;

    use super::*;

    fn network(link: &str, addresses: &[&str]) -> Network {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Network { links: vec![link.parse().expect("a link")], addresses, ..Network::default() }
    }

    fn addresses(network: &Network, n: u8) -> Vec<String> {
        network.port_addresses(n).iter().map(IpPrefix::to_string).collect()
    }

    #[test]
    fn both_ends_of_a_stream_have_addresses_and_macs_of_their_own() {
        let ends = ["stream:x", "stream-connect:x"].map(|link| network(link, &[]));
        assert_eq!(addresses(&ends[0], 0), ["10.0.0.1/24"]);
        assert_eq!(addresses(&ends[1], 0), ["10.0.0.2/24"]);
        let [(guid, a), (_, b)] = ends.each_ref().map(|end| end.port(0));
        assert_eq!((guid, a.mac), (0x0266_65ff_fe00_0001, [2, 0x66, 0x65, 0, 0, 1]));
        assert!(a.mac != b.mac && a.link_local != b.link_local);
        let given = network("stream:x", &["fd00::7/64", "192.168.7.3/16"]);
        assert_eq!(addresses(&given, 0), ["fd00::7/64", "192.168.7.3/16"]);
        assert_eq!(given.port(0).1.mac, [2, 0x66, 0x65, 0, 0, 7]);
    }

    #[test]
    fn a_udp_link_has_the_address_of_its_socket() {
        assert_eq!(addresses(&network("udp:127.0.0.9", &[]), 0), ["127.0.0.9/8"]);
        assert_eq!(addresses(&network("udp:::1", &[]), 0), ["::1/64"]);
        assert!(network("udp:127.0.0.9", &["127.0.0.9/16"]).check().is_ok());
        let error = network("udp:127.0.0.9", &["127.0.0.8/16"]).check().unwrap_err().to_string();
        assert_eq!(error, "--link udp:127.0.0.9 needs --ip 127.0.0.9/LEN, or no --ip");
    }

    #[test]
    fn options_that_contradict_each_other_get_one_line() {
        let ip = || vec!["10.0.0.1/24".parse().expect("an address")];
        for (network, nics, words) in [
            (network("pair", &[]), 1, "is for 2 NICs, and there are 1"),
            (network("stream:x", &[]), 2, "--link stream:x is for 1 NIC, and there are 2"),
            (network("switch:x", &[]), 2, "--link switch:x is for 1 NIC, and there are 2"),
            (Network { addresses: ip(), ..Network::default() }, 2, "--ip needs a link"),
            (Network { mtu: Some(1500), ..Network::default() }, 2, "--mtu needs a link"),
            (Network { vlan: Some(7), ..Network::default() }, 2, "--vlan needs a link"),
            (Network { vlan: Some(7), ..network("udp:127.0.0.9", &[]) }, 1, "leave out --vlan"),
            (Network { impair: Some(Impairment::default()), ..Network::default() }, 2, "--impair needs"),
            (Network { pcap: Some("x".into()), ..network("short-cut", &[]) }, 2, "--pcap needs a link"),
            (network("pair", &["10.0.0.1/24"]), 2, "leave out --ip"),
            (network("none", &["10.0.0.1/24", "10.0.0.1/24"]), 1, "10.0.0.1/24 is there twice"),
        ] {
            let result = network.check_number(nics).and_then(|()| network.check());
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        for (network, nics) in [(Network::default(), 3), (network("pair", &[]), 2)] {
            assert!(network.check_number(nics).is_ok() && network.check().is_ok());
        }
    }

    #[test]
    fn each_of_several_links_has_a_nic_with_addresses_of_its_own() {
        let links = |links: &[&str], addresses: &[&str]| Network {
            links: links.iter().map(|link| link.parse().expect("a link")).collect(),
            ..network("none", addresses)
        };
        let two = links(&["switch:x", "none"], &["10.0.0.1/24,fd00::1/64", "10.0.1.2/24"]);
        assert!(two.check().is_ok() && two.check_number(2).is_ok() && two.nics() == Some(2));
        assert_eq!(addresses(&two, 0), ["10.0.0.1/24", "fd00::1/64"]);
        assert_eq!(addresses(&two, 1), ["10.0.1.2/24"]);
        assert_ne!(two.port(0).1.mac, two.port(1).1.mac);
        let plan = links(&["none", "none"], &["10.0.0.1/24", "10.0.0.2/24"]).open(2).expect("no cables");
        assert_eq!(plan.plugged.len(), 2);
        for (network, words) in [
            (
                links(&["switch:x", "none"], &["10.0.0.1/24"]),
                "--link is given 2 times and --ip 1 times; give",
            ),
            (links(&["switch:x", "none"], &[]), "and --ip 0 times"),
            (links(&["switch:x", "pair"], &["10.0.0.1/24", "10.0.0.2/24"]), "--link pair is for all NICs"),
            (links(&["pair", "none"], &[]), "--link pair is for all NICs"),
            (links(&["none", "none"], &["10.0.0.1/24", "11.0.0.1/24"]), "the same three bytes"),
            (links(&["none", "udp:::1"], &["10.0.0.1/24", "10.0.0.2/24"]), "needs --ip ::1/LEN"),
            (links(&["none"; 9], &[]), "8 NICs at most"),
        ] {
            let error = network.check().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        let error = two.check_number(1).unwrap_err().to_string();
        assert!(error.contains("--link switch:x --link none is for 2 NICs, and there are 1"), "{error}");
    }

    #[test]
    fn the_launchers_of_two_machines_get_the_options_once() {
        let network = Network {
            mtu: Some(4200),
            vlan: Some(9),
            pcap: Some("x.pcap".into()),
            impair: Some("loss=1%,seed=3".parse().expect("an impairment")),
            transport: Some(Transport::Iwarp),
            ..network("stream", &[])
        };
        assert!(network.check().is_ok());
        let text = |n| network.of_an_end(n, Path::new("/s")).join(std::ffi::OsStr::new(" "));
        assert_eq!(text(1), "--link stream:/s --ip 10.0.0.2/24 --mtu 4200 --vlan 9 --transport iwarp");
        let first = text(0).into_string().expect("text");
        assert!(first.starts_with(
            "--link stream-connect:/s --ip 10.0.0.1/24 --mtu 4200 --vlan 9 --transport iwarp --pcap x.pcap"
        ));
        assert!(first.ends_with(",seed=3"), "{first}");
    }

    #[test]
    fn a_pair_is_two_ports_on_one_wire() {
        for link in ["pair", "stream"] {
            let mut plan = network(link, &[]).open(2).expect(link);
            let [a, b] = &mut plan.plugged[..] else { panic!("two NICs") };
            // The connecting end comes up first.
            for end in [&mut *b, &mut *a] {
                end.wire.flush(Instant::ZERO);
                assert!(end.wire.receive(&mut [0; 64], Instant::ZERO).is_none());
            }
            assert!(a.wire.up() && b.wire.up() && a.port.mac != b.port.mac, "{link}");
            b.wire.send(&[7; 60], Instant::ZERO);
            b.wire.flush(Instant::ZERO);
            assert_eq!(a.wire.receive(&mut [0; 64], Instant::ZERO), Some(60), "{link}");
        }
        assert!(Network::default().open(5).expect("short cuts").plugged.is_empty());
    }
}
