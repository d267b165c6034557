//! C programs on the verbs library: `verbs`.
//!
//! A program that is linked to libibverbs and librdmacm loads the libraries of these names that it
//! finds first. The
//! launcher builds Ferrovia's, puts it into a folder under that name, and runs the program with the
//! folder in front of `LD_LIBRARY_PATH`. The options about links become variables that the library
//! reads when the program first asks for devices (`host/process/src/environment.rs`).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{Error, Result};
use crate::images;
use crate::launch::print_line;
use crate::network::{Plug, Transport};
use crate::options::Options;

/// The name of the library, and those under which programs load it, too: links to it, so that a
/// program that loads it under several names has it once. Programs that are linked to the libraries
/// of vendors, as perftest is, load these too.
const NAME: &str = "libibverbs.so.1";
const OTHER_NAMES: [&str; 3] = ["librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"];
const PATH: &str = "LD_LIBRARY_PATH";
/// The name of the device unless the user gives one.
const DEVICE: &str = "rxe0";

/// What `verbs` is to do.
#[derive(Args, Debug)]
pub struct Asked {
    /// Print the commands of a shell that make the programs it runs use the library
    #[arg(long)]
    print_env: bool,
    /// The name of the device that programs see
    #[arg(long, value_name = "NAME", default_value = DEVICE)]
    name: String,
    /// `install DIR` puts the library into the folder DIR, under the names that programs load
    #[arg(value_name = "install DIR", num_args = 0..=2)]
    words: Vec<OsString>,
    /// The program, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Builds the library, and does what was asked for.
pub fn verbs(options: &Options, asked: &Asked) -> Result<u8> {
    let usage = |why: &str| Err(Error::Usage(why.to_owned()));
    let install = match &asked.words[..] {
        [] => None,
        [word, folder] if word == "install" => Some(PathBuf::from(folder)),
        _ => return usage("write: verbs install DIR, or verbs -- PROGRAM ARGUMENTS…"),
    };
    let variables = variables(options, &asked.name)?;
    match (&install, asked.print_env, asked.program.split_first()) {
        (Some(folder), false, None) => {
            put(&images::build_library()?, folder)?;
            print_line(&format!("put into {}: {NAME}, {}", folder.display(), OTHER_NAMES.join(", ")))?;
            Ok(0)
        }
        (None, true, None) => {
            let folder = own_folder()?;
            print_line(&format!("export {PATH}={}${{{PATH}:+:${PATH}}}", quoted(&folder.into_os_string())))?;
            for (name, value) in variables {
                print_line(&format!("export {name}={}", quoted(&value)))?;
            }
            Ok(0)
        }
        (None, false, Some((program, arguments))) => {
            let mut path = own_folder()?.into_os_string();
            if let Some(former) = env::var_os(PATH).filter(|former| !former.is_empty()) {
                path.push(":");
                path.push(former);
            }
            // It returns only if it fails.
            let error = Command::new(program).args(arguments).env(PATH, path).envs(variables).exec();
            Err(Error::System { what: format!("run {}", Path::new(program).display()), source: error })
        }
        (None, false, None) => usage("which program? for example: cargo run -- verbs -- ibv_devinfo"),
        _ => usage("choose one of --print-env, install DIR and a program"),
    }
}

/// A program of Debian's packages on the library, which is built. What the options say of links
/// counts.
pub(crate) fn command(options: &Options, program: &Path, arguments: &[&str]) -> Result<Command> {
    let mut path = own_folder()?.into_os_string();
    // The libraries of perftest that are not of rdma-core.
    if let Some(root) = program.parent().and_then(Path::parent) {
        path.push(":");
        path.push(root.join("lib/x86_64-linux-gnu"));
    }
    let mut command = Command::new(program);
    command.args(arguments).env(PATH, path).envs(variables(options, DEVICE)?);
    Ok(command)
}

/// The folder in the target folder that has the library, which is built.
fn own_folder() -> Result<PathBuf> {
    let folder = images::target_folder()?.join("verbs").join("lib");
    put(&images::build_library()?, &folder)?;
    Ok(folder)
}

/// Puts the library into a folder, with links to it. A program that has the former one open keeps
/// it.
fn put(library: &Path, folder: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let replace = |name: &str, make: &dyn Fn(&Path) -> io::Result<()>| {
        let (place, next) = (folder.join(name), folder.join(format!(".{name}.{}", std::process::id())));
        make(&next).map_err(failed(&next))?;
        fs::rename(&next, &place).map_err(failed(&place))
    };
    replace(NAME, &|next| fs::copy(library, next).map(drop))?;
    for name in OTHER_NAMES {
        replace(name, &|next| symlink(NAME, next))?;
    }
    Ok(())
}

/// The variables that tell the library of the options.
fn variables(options: &Options, name: &str) -> Result<Vec<(&'static str, OsString)>> {
    let network = &options.network;
    let mut variables = vec![("FERROVIA_NAME", OsString::from(name))];
    let of_guests = [
        ("--vlan", network.vlan.is_some()),
        ("--pcap", network.pcap.is_some()),
        ("--counters", network.counters.is_some()),
        ("--transport iwarp", network.transport() == Transport::Iwarp),
    ];
    if let Some((option, _)) = of_guests.iter().find(|(_, given)| *given) {
        return Err(Error::Usage(format!("verbs has no {option}; leave it out")));
    }
    match &network.links[..] {
        [] => {}
        [Plug::Link(link)] => variables.push(("FERROVIA_LINK", link.to_string().into())),
        [_, _, ..] => {
            return Err(Error::Usage("a program has one NIC; give --link once".into()));
        }
        [plug] => {
            return Err(Error::Usage(format!(
                "--link {plug} joins machines of one launcher, and programs are processes: choose \
                 shm:PATH, udp:ADDRESS, stream:PATH, stream-connect:PATH or switch:PATH, or leave out \
                 --link"
            )));
        }
    }
    if !network.addresses.is_empty() {
        let addresses: Vec<String> = network.addresses.iter().map(ToString::to_string).collect();
        variables.push(("FERROVIA_IP", addresses.join(",").into()));
    }
    if let Some(mtu) = network.mtu {
        variables.push(("FERROVIA_MTU", mtu.to_string().into()));
    }
    if let Some(impairment) = &network.impair {
        variables.push(("FERROVIA_IMPAIR", impairment.to_string().into()));
    }
    Ok(variables)
}

/// A word of a shell.
fn quoted(word: &OsString) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}
