//! What the user chooses: variables of the environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `FERROVIA_LINK` | the link, as `--link` of the launcher names it; without it the memory that this user's processes share |
//! | `FERROVIA_IP` | addresses with the lengths of their prefixes, separated by commas; without it the link's own, or the first of 127.0.0.2 to 127.0.0.254 that is free there |
//! | `FERROVIA_MTU` | the size of IP packets at most |
//! | `FERROVIA_IMPAIR` | what the link loses and delays, as `--impair` |
//! | `FERROVIA_NAME` | the device's name |

use std::env;
use std::str::FromStr;

use links::{Impairment, IpPrefix, LinkSpec, Shm};
use nic_model::port;

/// Large enough for packets of 4,096 bytes with all headers; loopback takes more.
const MTU: u32 = 4200;
/// The usual name, which some programs choose devices by.
const NAME: &str = "rxe0";

/// What the user has chosen.
pub struct Environment {
    /// The link.
    pub link: LinkSpec,
    /// The addresses; empty: those that follow from the link.
    pub addresses: Vec<IpPrefix>,
    /// The size of IP packets at most.
    pub mtu: u32,
    /// What the link does to frames.
    pub impairment: Option<Impairment>,
    /// The device's name.
    pub name: String,
}

/// The value of a variable; an error names the variable.
fn value<T: FromStr>(variable: &str) -> Result<Option<T>, String>
where
    T::Err: std::fmt::Display,
{
    match env::var(variable) {
        Ok(text) if !text.is_empty() => {
            text.parse().map(Some).map_err(|error| format!("{variable}={text}: {error}"))
        }
        _ => Ok(None),
    }
}

impl Environment {
    /// Reads the variables. `link` is the link to be used in place of `FERROVIA_LINK`, if it is not
    /// empty. An error is one line.
    pub fn read(link: &str) -> Result<Environment, String> {
        let list: Option<String> = value("FERROVIA_IP")?;
        let parse = |text: &str| {
            text.trim().parse::<IpPrefix>().map_err(|error| format!("FERROVIA_IP={text}: {error}"))
        };
        let addresses = list.iter().flat_map(|list| list.split(',')).map(parse).collect::<Result<_, _>>()?;
        let mtu = value("FERROVIA_MTU")?.unwrap_or(MTU);
        if !(port::MIN_MTU..=port::MAX_MTU).contains(&mtu) {
            let (least, most) = (port::MIN_MTU, port::MAX_MTU);
            return Err(format!("FERROVIA_MTU={mtu}: an MTU is from {least} to {most}"));
        }
        let given = match link {
            "" => value("FERROVIA_LINK")?,
            link => Some(link.parse().map_err(|error| format!("the link {link}: {error}"))?),
        };
        let link = match given {
            Some(link) => link,
            None => LinkSpec::Shm(Shm::own_folder().map_err(|error| error.to_string())?),
        };
        Ok(Environment {
            link,
            addresses,
            mtu,
            impairment: value("FERROVIA_IMPAIR")?,
            name: value("FERROVIA_NAME")?.unwrap_or_else(|| NAME.to_string()),
        })
    }
}

/// The lists of addresses of the port to try. A link by UDP carries its own address only: another
/// one is refused.
pub(crate) fn candidates(environment: &Environment) -> Result<Vec<Vec<IpPrefix>>, String> {
    let (link, given) = (&environment.link, &environment.addresses);
    if let LinkSpec::Udp(own) = link
        && let Some(other) = given.iter().find(|prefix| prefix.address() != *own)
    {
        let other = other.address();
        return Err(format!("the link udp:{own} carries its own address only, not {other}"));
    }
    Ok(match given.is_empty() {
        true => link.choices().into_iter().map(|address| vec![address]).collect(),
        false => vec![given.clone()],
    })
}
