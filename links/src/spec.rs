//! A link's description on the command line.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use roce::IpPrefix;

use crate::{Link, OpenError, Shm, SpecError, Stream, Switch, Udp, Unplugged};

/// Which link to open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkSpec {
    /// `none`: no link.
    None,
    /// `stream:PATH`: listen at a UNIX socket.
    Stream(PathBuf),
    /// `stream-connect:PATH`: connect to a UNIX socket.
    StreamConnect(PathBuf),
    /// `switch:PATH`: listen at a UNIX socket for several peers.
    Switch(PathBuf),
    /// `shm:PATH`: memory that is shared with other processes, which meet in a folder.
    Shm(PathBuf),
    /// `udp:ADDRESS`: RoCEv2 in the host's UDP port 4791.
    Udp(IpAddr),
}

impl LinkSpec {
    /// Opens the link for a port with this MAC and these addresses.
    pub fn open(&self, mac: [u8; 6], addresses: &[IpPrefix]) -> Result<Box<dyn Link + Send>, OpenError> {
        Ok(match self {
            LinkSpec::None => Box::new(Unplugged::new()),
            LinkSpec::Stream(path) => Box::new(Stream::listen(path)?),
            LinkSpec::StreamConnect(path) => Box::new(Stream::connect(path)?),
            LinkSpec::Switch(path) => Box::new(Switch::listen(path, mac)?),
            LinkSpec::Shm(folder) => Box::new(Shm::join(folder, mac, addresses)?),
            LinkSpec::Udp(address) => Box::new(Udp::bind(*address, mac)?),
        })
    }
}

impl FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<LinkSpec, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let path_of = |what: &str| match rest {
            "" => Err(SpecError(format!("{kind} needs the path of a {what}: {kind}:PATH"))),
            path => Ok(PathBuf::from(path)),
        };
        let path = || path_of("socket");
        match kind {
            "none" if text == kind => Ok(LinkSpec::None),
            "stream" => path().map(LinkSpec::Stream),
            "stream-connect" => path().map(LinkSpec::StreamConnect),
            "switch" => path().map(LinkSpec::Switch),
            "shm" => path_of("folder").map(LinkSpec::Shm),
            "udp" => match rest.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
                Ok(address) if !address.is_unspecified() && !address.is_multicast() => {
                    Ok(LinkSpec::Udp(address))
                }
                _ => Err(SpecError(format!(
                    "{rest:?} is no address for a link; write udp:ADDRESS, for example udp:127.0.0.2"
                ))),
            },
            _ => Err(SpecError(format!(
                "{text:?} is no link; a link is none, stream:PATH, stream-connect:PATH, switch:PATH, \
                 shm:PATH or udp:ADDRESS"
            ))),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkSpec::None => f.write_str("none"),
            LinkSpec::Stream(path) => write!(f, "stream:{}", path.display()),
            LinkSpec::StreamConnect(path) => write!(f, "stream-connect:{}", path.display()),
            LinkSpec::Switch(path) => write!(f, "switch:{}", path.display()),
            LinkSpec::Shm(path) => write!(f, "shm:{}", path.display()),
            LinkSpec::Udp(address) => write!(f, "udp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read_and_written() {
        for (text, spec) in [
            ("none", LinkSpec::None),
            ("stream:/tmp/a", LinkSpec::Stream("/tmp/a".into())),
            ("stream:a:b", LinkSpec::Stream("a:b".into())),
            ("stream-connect:x.sock", LinkSpec::StreamConnect("x.sock".into())),
            ("switch:/tmp/a", LinkSpec::Switch("/tmp/a".into())),
            ("shm:/dev/shm/a", LinkSpec::Shm("/dev/shm/a".into())),
            ("udp:127.0.0.2", LinkSpec::Udp([127, 0, 0, 2].into())),
            ("udp:::1", LinkSpec::Udp("::1".parse().unwrap())),
        ] {
            assert_eq!(text.parse::<LinkSpec>().as_ref(), Ok(&spec));
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("udp:[::1]".parse(), Ok(LinkSpec::Udp("::1".parse().unwrap())));
    }

    #[test]
    fn what_is_no_link_gets_one_line_that_says_what_is_one() {
        for (text, words) in [
            ("", "a link is none, stream:PATH"),
            ("tap:x", "\"tap:x\" is no link"),
            ("none:x", "is no link"),
            ("stream", "stream:PATH"),
            ("stream:", "needs the path of a socket"),
            ("stream-connect:", "stream-connect:PATH"),
            ("switch", "switch needs the path of a socket: switch:PATH"),
            ("shm:", "shm needs the path of a folder: shm:PATH"),
            ("udp", "write udp:ADDRESS"),
            ("udp:127.0.0.2:4791", "write udp:ADDRESS"),
            ("udp:0.0.0.0", "write udp:ADDRESS"),
            ("udp:ff02::1", "write udp:ADDRESS"),
        ] {
            let error = text.parse::<LinkSpec>().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text:?}: {error}");
        }
    }
}
