//! C programs on the verbs library, and on the provider of DAT: `verbs`.
//!
//! A program that is linked to libibverbs and librdmacm loads the libraries of these names that it
//! finds first. The launcher builds Ferrovia's, puts it into a folder under that name, and runs the
//! program with the folder in front of `LD_LIBRARY_PATH`. Some programs look into `/sys` and `/dev`
//! for devices, too: what shows them the library's is in front of `LD_PRELOAD` (`verbs/preload`). A
//! program that is linked to libdat2 finds the provider by the file `dat.conf` of the same folder,
//! which `DAT_OVERRIDE` names. The options about links become variables that the libraries read
//! when the program first asks for devices (`host/process/src/environment.rs`).

use std::env;
use std::ffi::{OsStr, OsString};
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
/// The name of what is loaded in front of all libraries.
const PRELOAD_NAME: &str = "libferrovia-preload.so";
const PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";
/// The name of the device unless the user gives one.
const DEVICE: &str = "rxe0";
/// The provider of DAT, the file that names it, the variable that names the file, and the name of
/// the interface adapter there.
const PROVIDER: &str = "libferrovia-dat.so";
const CONF: &str = "dat.conf";
const CONF_VARIABLE: &str = "DAT_OVERRIDE";
const ADAPTER: &str = "ferrovia0";

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
            put(&images::build_libraries()?, folder)?;
            let names = [&[NAME][..], &OTHER_NAMES, &[PRELOAD_NAME, PROVIDER, CONF]].concat();
            print_line(&format!("put into {}: {}", folder.display(), names.join(", ")))?;
            Ok(0)
        }
        (None, true, None) => {
            let folder = own_folder()?;
            print_line(&format!("export {CONF_VARIABLE}={}", quoted(folder.join(CONF).as_os_str())))?;
            for (name, value) in [(PATH, folder.clone()), (PRELOAD, folder.join(PRELOAD_NAME))] {
                let value = quoted(value.as_os_str());
                print_line(&format!("export {name}={value}${{{name}:+:${name}}}"))?;
            }
            for (name, value) in variables {
                print_line(&format!("export {name}={}", quoted(&value)))?;
            }
            Ok(0)
        }
        (None, false, Some((program, arguments))) => {
            let folder = own_folder()?;
            let in_front = |value: PathBuf, variable: &str| {
                let mut value = value.into_os_string();
                if let Some(former) = env::var_os(variable).filter(|former| !former.is_empty()) {
                    value.push(":");
                    value.push(former);
                }
                value
            };
            let mut command = Command::new(program);
            command.env(CONF_VARIABLE, folder.join(CONF));
            command.env(PRELOAD, in_front(folder.join(PRELOAD_NAME), PRELOAD));
            command.env(PATH, in_front(folder, PATH));
            // It returns only if it fails.
            let error = command.args(arguments).envs(variables).exec();
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

/// The folder in the target folder that has the libraries, which are built.
fn own_folder() -> Result<PathBuf> {
    let folder = images::target_folder()?.join("verbs").join("lib");
    put(&images::build_libraries()?, &folder)?;
    Ok(folder)
}

/// Puts the libraries into a folder, with links to the one of the verbs. A program that has a
/// former one open keeps it.
fn put(libraries: &images::Libraries, folder: &Path) -> Result<()> {
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
    replace(NAME, &|next| fs::copy(&libraries.verbs, next).map(drop))?;
    replace(PRELOAD_NAME, &|next| fs::copy(&libraries.preload, next).map(drop))?;
    for name in OTHER_NAMES {
        replace(name, &|next| symlink(NAME, next))?;
    }
    replace(PROVIDER, &|next| fs::copy(&libraries.dat, next).map(drop))?;
    let provider = folder.canonicalize().map_err(failed(folder))?.join(PROVIDER);
    replace(CONF, &|next| fs::write(next, conf(&provider)))
}

/// The line by which the registry of DAT finds the provider. Programs ask for one that is not
/// thread-safe; this one is. The last two members are the link, if it is not the one that the
/// variables name, and nothing.
fn conf(provider: &Path) -> String {
    let provider = provider.display();
    format!("{ADAPTER} u2.0 nonthreadsafe default \"{provider}\" ferrovia.1.0 \"\" \"\"\n")
}

/// The variables that tell the libraries of the options.
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
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}
