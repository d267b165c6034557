//! The file that says which hosts may use a target: a line for each host.
//!
//! ```text
//! # a comment
//! nqn.2014-08.org.nvmexpress:uuid:…  key=DHHC-1:00:…:  controller-key=DHHC-1:00:…:  namespaces=1,3-4
//! ```
//!
//! A line begins with the host's name. Words follow, in any order and each at most once:
//!
//! - `key=`: the host has to prove that it has this key;
//! - `controller-key=`: the controller can prove that it has this one;
//! - `namespaces=`: the host sees only these;
//! - `hashes=`: the target takes only these hash functions, the first that the host offers;
//! - `groups=`: the same of groups.

use core::fmt;

use super::digest::Hash;
use super::group::Group;
use super::secret::{Secret, SecretError};
use crate::nqn::{Nqn, NqnError};

/// The most hosts of a file.
pub const MOST_HOSTS: usize = 1024;

/// What a line says of a host.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Its name.
    pub nqn: &'a str,
    /// The key that it has to have; without one it need not authenticate.
    pub key: Option<Secret>,
    /// The key of the subsystem, for hosts that want it to authenticate.
    pub controller_key: Option<Secret>,
    /// The namespaces that it sees; `None` for all.
    pub namespaces: Option<Namespaces<'a>>,
    /// The hash functions that the target takes, its favourite first.
    pub hashes: Choice<Hash, 3>,
    /// The groups that the target takes, its favourite first.
    pub groups: Choice<Group, 6>,
}

/// Some of a few things, in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<T, const N: usize> {
    all: [Option<T>; N],
}

impl<T: Copy + PartialEq, const N: usize> Choice<T, N> {
    /// These, in this order; `None` if one is there twice, or there are more than `N`.
    pub fn new(from: impl IntoIterator<Item = T>) -> Option<Choice<T, N>> {
        let mut choice = Choice { all: [None; N] };
        for (at, item) in from.into_iter().enumerate() {
            if choice.iter().any(|other| other == item) {
                return None;
            }
            *choice.all.get_mut(at)? = Some(item);
        }
        Some(choice)
    }

    /// They, in their order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.all.iter().flatten().copied()
    }
}

/// The strongest hash function first: it costs next to nothing.
pub const HASHES: Choice<Hash, 3> =
    Choice { all: [Some(Hash::Sha512), Some(Hash::Sha384), Some(Hash::Sha256)] };

/// The cheapest exchange first, and none last.
pub const GROUPS: Choice<Group, 6> = Choice {
    all: [
        Some(Group::Ffdhe2048),
        Some(Group::Ffdhe3072),
        Some(Group::Ffdhe4096),
        Some(Group::Ffdhe6144),
        Some(Group::Ffdhe8192),
        Some(Group::Null),
    ],
};

/// Identifiers of namespaces, as people write them: `1,3-4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces<'a>(&'a str);

impl<'a> Namespaces<'a> {
    /// The identifiers that a text names; `None` if it is wrong.
    pub fn parse(text: &'a str) -> Option<Namespaces<'a>> {
        let namespaces = Namespaces(text);
        let is_right = text.split(',').all(|part| range(part).is_some());
        is_right.then_some(namespaces)
    }

    /// Its ranges: the first and the last identifier of each.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        self.0.split(',').filter_map(range)
    }
}

/// The first and the last identifier of a range.
fn range(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|&nsid| nsid != 0 && nsid != crate::NSID_ALL);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last)
}

/// What is wrong in a line. It holds no part of the line, which may be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line, from 1.
    pub line: usize,
    /// What.
    pub fault: Fault,
}

/// A fault of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The name.
    Name(NqnError),
    /// The key of the host.
    Key(SecretError),
    /// The key of the controller.
    ControllerKey(SecretError),
    /// Something else.
    Other(&'static str),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match self.fault {
            Fault::Name(error) => write!(f, "{error}"),
            Fault::Key(error) => write!(f, "key=: {error}"),
            Fault::ControllerKey(error) => write!(f, "controller-key=: {error}"),
            Fault::Other(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for LineError {}

/// Reads a file, line by line. After an error the rest is of no use.
pub fn parse(text: &str) -> impl Iterator<Item = Result<Host<'_>, LineError>> {
    let hosts = (1..).zip(text.lines()).filter_map(|(line, content)| {
        let content = content.trim();
        let is_host = !content.is_empty() && !content.starts_with('#');
        is_host.then(|| host(content).map(|host| (line, host)).map_err(|fault| LineError { line, fault }))
    });
    let is_early = move |nqn: &str, before: usize| {
        let names = text.lines().take(before - 1).filter_map(|line| line.split_whitespace().next());
        names.into_iter().any(|name| name == nqn)
    };
    hosts.enumerate().map(move |(count, host)| {
        let (line, host) = host?;
        let wrong = |what| Err(LineError { line, fault: Fault::Other(what) });
        if count >= MOST_HOSTS {
            return wrong("there are more than 1024 hosts");
        }
        if is_early(host.nqn, line) {
            return wrong("this host is there twice");
        }
        Ok(host)
    })
}

/// Reads a line.
fn host(line: &str) -> Result<Host<'_>, Fault> {
    let mut words = line.split_whitespace();
    let nqn = words.next().unwrap_or_default();
    Nqn::new(nqn.as_bytes()).map_err(Fault::Name)?;
    let (mut key, mut controller_key, mut namespaces) = (None, None, None);
    let (mut hashes, mut groups) = (None, None);
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or(Fault::Other("a word is not of the form name=value"))?;
        let is_new = match name {
            "key" => key.replace(Secret::parse(value).map_err(Fault::Key)?).is_none(),
            "controller-key" => {
                let secret = Secret::parse(value).map_err(Fault::ControllerKey)?;
                controller_key.replace(secret).is_none()
            }
            "namespaces" => {
                let wrong = Fault::Other("namespaces= has numbers from 1, and ranges, like 1,3-4");
                namespaces.replace(Namespaces::parse(value).ok_or(wrong)?).is_none()
            }
            "hashes" => {
                let wrong = Fault::Other("hashes= has some of sha256,sha384,sha512, each once");
                let all = choice(value, Hash::from_name).ok_or(wrong)?;
                hashes.replace(all).is_none()
            }
            "groups" => {
                let wrong = Fault::Other(
                    "groups= has some of null,ffdhe2048,ffdhe3072,ffdhe4096,ffdhe6144,ffdhe8192, each once",
                );
                let all = choice(value, Group::from_name).ok_or(wrong)?;
                groups.replace(all).is_none()
            }
            _ => {
                return Err(Fault::Other(
                    "a word is none of key=, controller-key=, namespaces=, hashes= and groups=",
                ));
            }
        };
        if !is_new {
            return Err(Fault::Other("a word is there twice"));
        }
    }
    if key.is_none() && (controller_key.is_some() || hashes.is_some() || groups.is_some()) {
        return Err(Fault::Other("controller-key=, hashes= and groups= need key="));
    }
    let (hashes, groups) = (hashes.unwrap_or(HASHES), groups.unwrap_or(GROUPS));
    Ok(Host { nqn, key, controller_key, namespaces, hashes, groups })
}

/// Names that commas separate.
fn choice<T: Copy + PartialEq, const N: usize>(
    text: &str,
    named: impl Fn(&str) -> Option<T>,
) -> Option<Choice<T, N>> {
    let mut is_right = true;
    let all = Choice::new(text.split(',').map_while(|name| {
        let found = named(name);
        is_right &= found.is_some();
        found
    }));
    all.filter(|_| is_right)
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;

    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_file_names_hosts() {
        let text = format!(
            "# hosts\n\n  nqn.2026-01.org.x:a key={KEY} controller-key={KEY} namespaces=1,3-4 \
             groups=ffdhe8192,null hashes=sha384\r\n\tnqn.2026-01.org.x:b\n"
        );
        let hosts: Vec<Host<'_>> = parse(&text).collect::<Result<_, _>>().expect("hosts");
        let [a, b] = &hosts[..] else { panic!("{} hosts", hosts.len()) };
        assert_eq!((a.nqn, b.nqn), ("nqn.2026-01.org.x:a", "nqn.2026-01.org.x:b"));
        assert!(a.key.is_some() && a.controller_key.is_some());
        assert!(b.key.is_none() && b.controller_key.is_none() && b.namespaces.is_none());
        let ranges: Vec<(u32, u32)> = a.namespaces.expect("some").ranges().collect();
        assert_eq!(ranges, [(1, 1), (3, 4)]);
        assert_eq!(a.groups.iter().collect::<Vec<_>>(), [Group::Ffdhe8192, Group::Null]);
        assert_eq!(a.hashes.iter().collect::<Vec<_>>(), [Hash::Sha384]);
        assert_eq!((b.hashes, b.groups), (HASHES, GROUPS));
    }

    #[test]
    fn a_fault_names_its_line_and_no_key() {
        let name = "nqn.2026-01.org.x:a";
        for (line, what) in [
            ("x", "line 2: the NQN is not of the form nqn.yyyy-mm.NAME"),
            (&format!("{name} kye={KEY}"), "line 2: a word is none of key="),
            (&format!("{name} {KEY}"), "line 2: a word is not of the form"),
            (&format!("{name} key={KEY} key={KEY}"), "line 2: a word is there twice"),
            (&format!("{name} key={}", &KEY[1..]), "line 2: key=: a key is not of the form DHHC-1"),
            (&format!("{name} key={}", KEY.replace("AAE", "AAF")), "line 2: key=: the checksum"),
            (
                &format!("{name} key={KEY} controller-key="),
                "line 2: controller-key=: a key is not of the form",
            ),
            (&format!("{name} controller-key={KEY}"), "line 2: controller-key=, hashes= and groups= need"),
            (&format!("{name} groups=null"), "line 2: controller-key=, hashes= and groups= need"),
            (&format!("{name} namespaces="), "line 2: namespaces="),
            (&format!("{name} namespaces=0"), "line 2: namespaces="),
            (&format!("{name} namespaces=4-3"), "line 2: namespaces="),
            (&format!("{name} namespaces=1,"), "line 2: namespaces="),
            (&format!("{name} key={KEY} hashes=sha1"), "line 2: hashes="),
            (&format!("{name} key={KEY} hashes=sha256,sha256"), "line 2: hashes="),
            (&format!("{name} key={KEY} groups=null,ffdhe1"), "line 2: groups="),
            (&format!("{name}\n{name}"), "line 3: this host is there twice"),
        ] {
            let text = format!("# first\n{line}\n");
            let error = parse(&text).find_map(Result::err).expect("an error");
            let said = format!("{error}");
            assert!(said.starts_with(what), "{line}: {said}");
            assert!(!said.contains("AwQFBgcI"), "{said}");
        }
    }

    #[test]
    fn a_file_has_a_bound() {
        let mut text = std::string::String::new();
        (0..MOST_HOSTS).for_each(|n| text.push_str(&format!("nqn.2026-01.org.x:{n}\n")));
        assert_eq!(parse(&text).filter(Result::is_ok).count(), MOST_HOSTS);
        text.push_str("nqn.2026-01.org.x:more\n");
        assert!(parse(&text).any(|host| host.is_err()));
    }
}
