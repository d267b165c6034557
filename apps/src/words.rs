//! The words of a command line: `key=value`, plain words, and one address.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;

use crate::{Failure, Host, Program, fail};

/// Words that are for the kernel or the image, not for the program.
const KERNELS: [&str; 2] = ["log=", "transport="];

/// The words that no option has taken yet. A program takes its options one by one, and what is left
/// then is a mistake.
pub struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// The words of a line, which blanks separate.
    pub fn new(line: &'a str) -> Words<'a> {
        let kernels = |word: &&str| KERNELS.iter().any(|key| word.starts_with(key));
        Words(line.split_whitespace().filter(|word| !kernels(word)).collect())
    }

    /// Takes a plain word; false if it is not there.
    pub fn has(&mut self, word: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|&other| other != word);
        self.0.len() < before
    }

    /// Takes the word `server` or `client`, and runs that program with the others.
    pub(crate) fn either(
        mut self,
        host: &mut Host<'_>,
        server: Program,
        client: Program,
    ) -> Result<(), Failure> {
        match (self.has("server"), self.has("client")) {
            (true, false) => server(host, self),
            (false, true) => client(host, self),
            _ => fail!("say `server` or `client`"),
        }
    }

    /// Takes the number `key=…`, which must be in a range; `otherwise` if there is none. Of several
    /// the last one counts.
    pub fn number<T>(&mut self, key: &str, otherwise: T, range: RangeInclusive<T>) -> Result<T, Failure>
    where
        T: Copy + FromStr + PartialOrd + core::fmt::Display,
    {
        let mut number = otherwise;
        for text in self.values(key) {
            match text.parse() {
                Ok(value) if range.contains(&value) => number = value,
                _ => fail!("{key}={text}: not a number from {} to {}", range.start(), range.end()),
            }
        }
        Ok(number)
    }

    /// Takes `patience=…`: how many seconds a step of the peer may take.
    pub(crate) fn patience(&mut self) -> Result<Duration, Failure> {
        self.number("patience", 30, 1..=1_000_000).map(Duration::from_secs)
    }

    fn values(&mut self, key: &str) -> Vec<&'a str> {
        let value = |word: &&'a str| word.strip_prefix(key)?.strip_prefix('=');
        let values = self.0.iter().filter_map(value).collect();
        self.0.retain(|word| value(word).is_none());
        values
    }

    /// Takes the only word that is left, which must be an IPv4 or IPv6 address.
    pub fn address(&mut self) -> Result<IpAddr, Failure> {
        let mut plain = self.0.iter().position(|word| !word.contains('='));
        let Some(word) = plain.take().map(|place| self.0.remove(place)) else {
            fail!("the server's address is missing: an IPv4 or IPv6 address");
        };
        word.parse().map_err(|_| Failure::new(format_args!("{word}: not an IPv4 or IPv6 address")))
    }

    /// Fails if a word is left.
    pub fn end(self) -> Result<(), Failure> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => fail!("{word}: this program has no such word"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn options_are_taken_out_one_by_one() {
        let mut words = Words::new(" log=warn 10.0.0.2  count=3 verify count=5");
        assert_eq!(words.number("count", 1, 0..=9).ok(), Some(5));
        assert_eq!(words.number("size", 64_usize, 1..=65536).ok(), Some(64));
        assert!(words.has("verify") && !words.has("verify"));
        assert_eq!(words.address().ok(), Some(IpAddr::from([10, 0, 0, 2])));
        assert!(words.end().is_ok());
        let mut words = Words::new("fe80::1");
        assert_eq!(words.address().ok(), "fe80::1".parse().ok());
    }

    #[test]
    fn mistakes_are_named() {
        let said = |result: Result<(), Failure>| result.err().map(|failure| failure.to_string());
        let number = |line| said(Words::new(line).number("port", 1_u16, 1..=65535).map(drop));
        for line in ["port=0", "port=65536", "port=x", "port=", "port=-1"] {
            assert!(number(line).is_some_and(|said| said.contains(line)), "{line}");
        }
        assert_eq!(number("ports=9"), None);
        for line in ["10.0.0", "server", "::g"] {
            let said = said(Words::new(line).address().map(drop));
            assert!(said.is_some_and(|said| said.contains(line)), "{line}");
        }
        assert!(said(Words::new("port=7").address().map(drop)).is_some_and(|said| said.contains("missing")));
        assert!(said(Words::new("conut=7").end()).is_some_and(|said| said.contains("conut=7")));
    }
}
