//! The commands of `storage-ctl`: a JSON object with `command` and its arguments. The answer is an
//! object with `ok`, and with `error` if that is false.
//!
//! | command | arguments | effect |
//! |---|---|---|
//! | `list` | | what the target does, its namespaces and hosts |
//! | `metrics` | | all figures |
//! | `add` | `ram` or `file`; `block-size`, `hosts`, `subsystem`, `read-only` | one more namespace |
//! | `remove` | `nsid` | a namespace goes, after the commands that it has |
//! | `resize` | `nsid`, `size` | a namespace and its file get another size |
//! | `add-subsystem` | `nqn`; `serial`, `hosts` | one more subsystem, without namespaces |
//! | `remove-subsystem` | `nqn` | a subsystem without namespaces goes |
//! | `allow` | `nqn`; `hosts` | only these hosts may use a subsystem from now on |
//! | `hosts` | `file` | the target takes its hosts and their keys from the file again, or from another |
//! | `ana` | `state`, `nsid`, `port` | how well hosts reach a namespace, or all of them |
//! | `disconnect` | `host` | all controllers of a host are disconnected |
//! | `drain`, `resume` | | hosts are disconnected and none may come; they may again |
//! | `save` | `file` | the options, with the namespaces as they are now, are written to a file |
//! | `end` | | the target disconnects its hosts and ends |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvme::log::AnaState;
use serde_json::{Map, Value, json};

use crate::disks::{self, Disk, node_name, slot_name};
use crate::guests::Caller;
use crate::mailbox::Mailbox;
use crate::options::Size;
use crate::storage::{NO_RAM_DISK, Names, Subsystem, serial_number, word};
use crate::storage_config::StorageConfig;
use crate::storage_disks::{BlockSize, DiskOptions, READ_ONLY_RAM};

/// How long a namespace that is removed may have commands before the operator is told that it has.
const RELEASE: Duration = Duration::from_secs(5);
/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// The names of all commands, for messages.
const COMMANDS: &str = "list, metrics, add, remove, resize, add-subsystem, remove-subsystem, allow, ana, \
    hosts, disconnect, drain, resume, save, end";

/// What the target began with.
pub(crate) struct Exported {
    /// Its files, and that of its state.
    pub files: Vec<Disk>,
    /// Disks without a medium.
    pub slots: usize,
    /// The hosts that see its namespaces, in their order; none for all.
    pub hosts: Vec<Vec<String>>,
}

/// Carries out commands, one at a time. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Operator {
    mailbox: Mailbox,
    state: Arc<Mutex<State>>,
}

struct State {
    mailbox: Mailbox,
    caller: Caller,
    names: Names,
    /// The files that the target began with.
    files: Vec<Disk>,
    /// The files in its slots, and whether hosts may only read them.
    slots: Vec<Option<(PathBuf, bool)>>,
    /// The hosts that see a namespace, by its number; none for all.
    hosts: BTreeMap<u64, Vec<String>>,
    /// The slots whose namespaces were removed when they had commands still.
    leaving: Vec<usize>,
    /// The options, for a file of them.
    config: StorageConfig,
}

/// Why a command is not carried out, in one line.
type Refused = String;

impl Operator {
    pub fn new(
        mailbox: Mailbox,
        caller: Caller,
        names: Names,
        disks: Exported,
        config: StorageConfig,
    ) -> Operator {
        let state = State {
            mailbox: mailbox.clone(),
            caller,
            names,
            files: disks.files,
            slots: vec![None; disks.slots],
            hosts: (1..).zip(disks.hosts).collect(),
            leaving: Vec::new(),
            config,
        };
        Operator { mailbox, state: Arc::new(Mutex::new(state)) }
    }

    /// Carries out the command in a line; returns the line of its answer.
    pub fn answer(&self, line: &[u8]) -> String {
        let answer = parse(line).and_then(|(name, arguments)| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.carry_out(&name, &arguments)
        });
        let answer = match answer {
            Ok(mut answer) => {
                answer.insert("ok".into(), true.into());
                answer
            }
            Err(why) => Map::from_iter([("ok".into(), false.into()), ("error".into(), why.into())]),
        };
        Value::Object(answer).to_string()
    }

    /// The target's figures. They wait for no command.
    pub fn metrics(&self) -> Result<Value, Refused> {
        ask(&self.mailbox, json!({"command": "metrics"})).map(Value::Object)
    }
}

/// The command in a line, and its arguments.
fn parse(line: &[u8]) -> Result<(String, Map<String, Value>), Refused> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("no JSON: {error}"))?;
    let Value::Object(mut arguments) = value else { return Err("not a JSON object".into()) };
    match arguments.remove("command") {
        Some(Value::String(name)) => Ok((name, arguments)),
        Some(_) => Err("\"command\" is no text".into()),
        None => Err(format!("no \"command\"; the commands are {COMMANDS}")),
    }
}

/// Asks the guest; its answer without `ok`.
fn ask(mailbox: &Mailbox, question: Value) -> Result<Map<String, Value>, Refused> {
    let answer = mailbox.ask(question.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_slice(&answer).map_err(|_| "the target's answer is no JSON")?;
    let Value::Object(mut answer) = answer else { return Err("the target's answer is no object".into()) };
    match (answer.remove("ok"), answer.remove("error")) {
        (Some(Value::Bool(true)), _) => Ok(answer),
        (_, Some(Value::String(why))) => Err(why),
        _ => Err("the target's answer says nothing".into()),
    }
}

/// A number, as JSON has it or as text, as `storage-ctl` sends all arguments.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn size(value: &Value) -> Result<u64, Refused> {
    let text = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|mib| mib.to_string()));
    let text = text.ok_or("not a size like 512M or 2G")?;
    Size::of_disk(&text).map(|size| size.0).map_err(|error| format!("{text:?}: {error}"))
}

/// Checks that there are no arguments but these.
fn only(arguments: &Map<String, Value>, names: &[&str]) -> Result<(), Refused> {
    match arguments.keys().find(|name| !names.contains(&name.as_str())) {
        Some(other) => Err(format!("{other:?} is no argument of this command")),
        None => Ok(()),
    }
}

/// The question of the command `ana`.
fn ana(arguments: &Map<String, Value>) -> Result<Value, Refused> {
    only(arguments, &["state", "nsid", "port"])?;
    let state = arguments.get("state").and_then(Value::as_str);
    let state = state.ok_or("no \"state\", how well hosts reach the namespaces")?;
    state.parse::<AnaState>().map_err(|error| format!("{state:?} is {error}"))?;
    let mut question = json!({"command": "ana", "state": state});
    for name in ["nsid", "port"] {
        if let Some(value) = arguments.get(name) {
            question[name] = number(value).ok_or_else(|| format!("{name:?} is no number"))?.into();
        }
    }
    Ok(question)
}

/// The hosts that arguments name.
fn hosts(arguments: &Map<String, Value>) -> Result<Vec<String>, Refused> {
    let hosts: Vec<String> = match arguments.get("hosts") {
        None => Vec::new(),
        // As `storage-ctl` sends them. JSON can have names with commas.
        Some(Value::String(names)) => names.split(',').map(str::to_owned).collect(),
        Some(Value::Array(names)) => {
            let names: Option<Vec<String>> = names.iter().map(|name| Some(name.as_str()?.into())).collect();
            names.filter(|names| !names.is_empty()).ok_or("\"hosts\" is no list of names")?
        }
        Some(_) => return Err("\"hosts\" is no list of names".into()),
    };
    for host in &hosts {
        nvme::Nqn::new(host.as_bytes()).map_err(|_| format!("{host:?} is no host's name"))?;
    }
    Ok(hosts)
}

/// The question of a command about a subsystem.
fn subsystem(name: &str, arguments: &Map<String, Value>) -> Result<Value, Refused> {
    let nqn = arguments.get("nqn").and_then(Value::as_str).ok_or("no \"nqn\", the subsystem's name")?;
    let nqn = word(nqn)?;
    let mut question = json!({"command": name, "nqn": nqn});
    if name == "add-subsystem" {
        let serial = arguments.get("serial").map(|serial| serial.as_str().ok_or("\"serial\" is no text"));
        let serial = serial.transpose()?.map(serial_number).transpose()?;
        question["serial"] = Subsystem { nqn, serial, hosts: Vec::new() }.serial().into();
    }
    let hosts = hosts(arguments)?;
    if !hosts.is_empty() {
        question["hosts"] = hosts.into();
    }
    Ok(question)
}

/// The subsystems beside the first one, as the guest lists them.
fn others(list: &Map<String, Value>) -> Vec<Subsystem> {
    let all = list.get("subsystems").and_then(Value::as_array).into_iter().flatten().skip(1);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let other = |one: &Value| {
        let hosts = one["hosts"].as_array().into_iter().flatten().filter_map(text).collect();
        Some(Subsystem { nqn: text(&one["nqn"])?, serial: text(&one["serial"]), hosts })
    };
    all.filter_map(other).collect()
}

/// What `add` chooses for its disk.
fn disk_options(arguments: &Map<String, Value>) -> Result<DiskOptions, Refused> {
    let block_size = match arguments.get("block-size") {
        Some(value) => Some(BlockSize::new(number(value).ok_or("\"block-size\" is no number")?)?),
        None => None,
    };
    let is_read_only = match arguments.get("read-only") {
        None => false,
        Some(Value::Bool(value)) => *value,
        Some(_) => return Err("\"read-only\" is neither true nor false".into()),
    };
    let hosts = hosts(arguments)?;
    let subsystem = arguments.get("subsystem").map(|nqn| nqn.as_str().ok_or("\"subsystem\" is no name"));
    let subsystem = subsystem.transpose()?.map(str::to_owned);
    Ok(DiskOptions { uuid: None, block_size, is_read_only, hosts, subsystem })
}

impl State {
    fn carry_out(
        &mut self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Refused> {
        let nsid = || arguments.get("nsid").and_then(number).ok_or("no \"nsid\", the namespace's number");
        match name {
            "list" => {
                only(arguments, &[])?;
                self.free_slots()?;
                self.list()
            }
            "metrics" | "drain" | "resume" | "end" => {
                only(arguments, &[])?;
                ask(&self.mailbox, json!({"command": name}))
            }
            "hosts" => {
                only(arguments, &["file"])?;
                let file = arguments.get("file").map(|file| file.as_str().ok_or("\"file\" is no text"));
                self.read_hosts(file.transpose()?)
            }
            "disconnect" => {
                only(arguments, &["host"])?;
                let host =
                    arguments.get("host").and_then(Value::as_str).ok_or("no \"host\", a host's NQN")?;
                ask(&self.mailbox, json!({"command": name, "host": host}))
            }
            "add" => {
                only(arguments, &["ram", "file", "block-size", "hosts", "subsystem", "read-only"])?;
                let its = disk_options(arguments)?;
                match (arguments.get("ram"), arguments.get("file").map(Value::as_str)) {
                    (Some(_), None) if self.config.shares_disks() => Err(NO_RAM_DISK.into()),
                    (Some(_), None) if its.is_read_only => Err(READ_ONLY_RAM.into()),
                    (Some(ram), None) => {
                        let question = json!({"command": "add-ram", "bytes": size(ram)?});
                        self.add(question, &its)
                    }
                    (None, Some(Some(file))) => self.add_file(Path::new(file), &its),
                    _ => Err("one of \"ram\", a size, and \"file\", a path".into()),
                }
            }
            "remove" => {
                only(arguments, &["nsid"])?;
                self.remove(nsid()?)
            }
            "resize" => {
                only(arguments, &["nsid", "size"])?;
                self.resize(nsid()?, size(arguments.get("size").ok_or("no \"size\"")?)?)
            }
            "ana" => ask(&self.mailbox, ana(arguments)?),
            "add-subsystem" | "allow" | "remove-subsystem" => {
                only(
                    arguments,
                    match name {
                        "add-subsystem" => &["nqn", "serial", "hosts"],
                        "allow" => &["nqn", "hosts"],
                        _ => &["nqn"],
                    },
                )?;
                ask(&self.mailbox, subsystem(name, arguments)?)
            }
            "save" => {
                only(arguments, &["file"])?;
                self.save(arguments.get("file").and_then(Value::as_str).ok_or("no \"file\", a path")?)
            }
            other => Err(format!("no command {other:?}; the commands are {COMMANDS}")),
        }
    }

    /// The guest's list, with the files of its disks.
    fn list(&mut self) -> Result<Map<String, Value>, Refused> {
        let mut list = ask(&self.mailbox, json!({"command": "list"}))?;
        for namespace in list.get_mut("namespaces").and_then(Value::as_array_mut).into_iter().flatten() {
            let hosts = namespace["nsid"].as_u64().and_then(|nsid| self.hosts.get(&nsid));
            if let Some(hosts) = hosts.filter(|hosts| !hosts.is_empty()) {
                namespace["hosts"] = hosts.clone().into();
            }
            let Some(number) = namespace["disk"].as_u64() else { continue };
            let file = self.file(number as usize).map(|(file, _)| file.display().to_string());
            namespace["file"] = file.into();
        }
        Ok(list)
    }

    /// The file of the guest's disk `number`, and whether hosts may only read it.
    fn file(&self, number: usize) -> Option<(&Path, bool)> {
        match number.checked_sub(self.files.len()) {
            None => self.files.get(number).map(|disk| (&*disk.path, disk.read_only)),
            Some(slot) => self.slots.get(slot)?.as_ref().map(|(path, read_only)| (&**path, *read_only)),
        }
    }

    /// The number of a namespace's disk; `None` for memory.
    fn disk_of(&self, nsid: u64) -> Result<Option<usize>, Refused> {
        let namespace = self.namespace(nsid)?.ok_or("there is no such namespace")?;
        Ok(namespace["disk"].as_u64().map(|number| number as usize))
    }

    /// A namespace, as the guest lists it.
    fn namespace(&self, nsid: u64) -> Result<Option<Value>, Refused> {
        Ok(self.namespaces()?.into_iter().find(|one| one["nsid"].as_u64() == Some(nsid)))
    }

    /// All namespaces, as the guest lists them.
    fn namespaces(&self) -> Result<Vec<Value>, Refused> {
        let mut list = ask(&self.mailbox, json!({"command": "list"}))?;
        match list.remove("namespaces") {
            Some(Value::Array(namespaces)) => Ok(namespaces),
            _ => Ok(Vec::new()),
        }
    }

    /// Has the guest add a disk with these options.
    fn add(&mut self, mut question: Value, its: &DiskOptions) -> Result<Map<String, Value>, Refused> {
        question["block_size"] = its.block_size().bytes().into();
        question["read_only"] = its.is_read_only.into();
        if !its.hosts.is_empty() {
            question["hosts"] = its.hosts.clone().into();
        }
        if let Some(nqn) = &its.subsystem {
            question["subsystem"] = nqn.as_str().into();
        }
        let added = ask(&self.mailbox, question)?;
        if let Some(nsid) = added.get("nsid").and_then(Value::as_u64) {
            self.hosts.insert(nsid, its.hosts.clone());
        }
        Ok(added)
    }

    fn add_file(&mut self, path: &Path, its: &DiskOptions) -> Result<Map<String, Value>, Refused> {
        self.free_slots()?;
        let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let disk = Disk { path: path.clone(), read_only: false, failing: None };
        disks::check(std::slice::from_ref(&disk)).map_err(|error| error.to_string())?;
        its.block_size().check(&path).map_err(|error| error.to_string())?;
        let uuid = self.names.uuid(&path).map_err(|error| error.to_string())?;
        let bytes = path.metadata().map_err(|error| error.to_string())?.len();
        let slot = self.caller.with(move |vm| vm.attach(&disk)).ok_or("the target has ended")??;
        let number = self.files.len() + slot;
        let question = json!({"command": "add-disk", "disk": number, "bytes": bytes, "uuid": uuid});
        let added = self.add(question, its);
        match &added {
            Ok(_) => {
                if let Some(place) = self.slots.get_mut(slot) {
                    *place = Some((path, its.is_read_only));
                }
            }
            Err(_) => {
                let _ = self.caller.with(move |vm| vm.detach(slot));
            }
        }
        added
    }

    fn remove(&mut self, nsid: u64) -> Result<Map<String, Value>, Refused> {
        let disk = self.disk_of(nsid)?;
        ask(&self.mailbox, json!({"command": "remove", "nsid": nsid}))?;
        let until = Instant::now() + RELEASE;
        let is_released = loop {
            let is_released = self.namespace(nsid)?.is_none();
            if is_released || Instant::now() >= until {
                break is_released;
            }
            std::thread::sleep(PERIOD);
        };
        let slot = disk.and_then(|number| number.checked_sub(self.files.len()));
        // A disk that has requests still keeps its file, and its slot.
        match slot {
            Some(slot) if is_released => self.free(slot)?,
            Some(slot) if !self.leaving.contains(&slot) => self.leaving.push(slot),
            _ => {}
        }
        Ok(Map::from_iter([("released".into(), is_released.into())]))
    }

    /// Frees a slot, whose disk the target has given back.
    fn free(&mut self, slot: usize) -> Result<(), Refused> {
        self.caller.with(move |vm| vm.detach(slot)).ok_or("the target has ended")??;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = None;
        }
        self.leaving.retain(|&other| other != slot);
        Ok(())
    }

    /// Frees the slots of namespaces that were removed, and have ended their commands since.
    fn free_slots(&mut self) -> Result<(), Refused> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        let used: Vec<u64> = self.namespaces()?.iter().filter_map(|one| one["disk"].as_u64()).collect();
        for slot in self.leaving.clone() {
            if !used.contains(&((self.files.len() + slot) as u64)) {
                self.free(slot)?;
            }
        }
        Ok(())
    }

    /// Gives the target the hosts of a file: the one that it has, unless another is named.
    fn read_hosts(&mut self, file: Option<&str>) -> Result<Map<String, Value>, Refused> {
        let file = match file {
            Some(file) => std::path::absolute(file).map_err(|error| format!("{file}: {error}"))?,
            None => self.config.hosts().ok_or("the target has no file of hosts; name one")?.to_owned(),
        };
        let text = crate::storage::hosts(&file).map_err(|error| error.to_string())?;
        let answer = ask(&self.mailbox, json!({"command": "hosts", "text": text}))?;
        self.config.set_hosts(file);
        Ok(answer)
    }

    fn save(&mut self, file: &str) -> Result<Map<String, Value>, Refused> {
        let (mut files, mut ram_disks) = (Vec::new(), Vec::new());
        let list = ask(&self.mailbox, json!({"command": "list"}))?;
        let subsystems = others(&list);
        let is_first = |nqn: &str| list.get("nqn").and_then(Value::as_str) == Some(nqn);
        for one in list.get("namespaces").and_then(Value::as_array).into_iter().flatten() {
            let block_size = one["block_size"].as_u64().and_then(|bytes| BlockSize::new(bytes).ok());
            let hosts = one["nsid"].as_u64().and_then(|nsid| self.hosts.get(&nsid));
            let its = DiskOptions {
                block_size: block_size.filter(|size| *size != BlockSize::USUAL),
                hosts: hosts.cloned().unwrap_or_default(),
                subsystem: one["subsystem"].as_str().filter(|nqn| !is_first(nqn)).map(str::to_owned),
                ..DiskOptions::default()
            };
            match one["disk"].as_u64().and_then(|number| self.file(number as usize)) {
                _ if one["state"] == "leaving" => {}
                Some((path, is_read_only)) => {
                    let uuid = one["uuid"].as_str().map(str::to_owned);
                    files.push((path.to_owned(), DiskOptions { uuid, is_read_only, ..its }));
                }
                None => ram_disks.push((one["bytes"].as_u64().unwrap_or_default(), its)),
            }
        }
        self.config
            .with(&subsystems, files, ram_disks)
            .write(Path::new(file))
            .map_err(|error| error.to_string())?;
        Ok(Map::new())
    }

    fn resize(&mut self, nsid: u64, bytes: u64) -> Result<Map<String, Value>, Refused> {
        let Some(number) = self.disk_of(nsid)? else {
            return ask(&self.mailbox, json!({"command": "resize-ram", "nsid": nsid, "bytes": bytes}));
        };
        let (_, read_only) = self.file(number).ok_or("the disk has no file")?;
        if read_only {
            return Err("the file is read-only".into());
        }
        let node = match number.checked_sub(self.files.len()) {
            None => node_name(number),
            Some(slot) => slot_name(slot),
        };
        let resized = self.caller.with(move |vm| vm.resize_disk(&node, bytes));
        resized.ok_or("the target has ended")?.map(|()| Map::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_command_gets_one_line_that_says_why() {
        for (line, words) in [
            (&b""[..], "no JSON"),
            (b"{", "no JSON"),
            (b"\xff\x00", "no JSON"),
            (b"[1, 2]", "not a JSON object"),
            (b"{}", "no \"command\"; the commands are list,"),
            (b"{\"command\": 7}", "\"command\" is no text"),
        ] {
            let error = parse(line).expect_err(words);
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
        let (name, arguments) = parse(b"{\"command\": \"remove\", \"nsid\": 3}").expect("a command");
        assert_eq!((name.as_str(), number(&arguments["nsid"])), ("remove", Some(3)));
        assert!(only(&arguments, &["nsid"]).is_ok() && only(&arguments, &[]).is_err());
        assert_eq!((number(&json!("12")), number(&json!(-1)), number(&json!("x"))), (Some(12), None, None));
        assert_eq!((size(&json!("2M")), size(&json!(3))), (Ok(2 << 20), Ok(3 << 20)));
        assert!(size(&json!([])).is_err() && size(&json!("0")).is_err());
    }

    #[test]
    fn a_disk_that_comes_has_options_of_its_own() {
        let options = |arguments: Value| disk_options(arguments.as_object().expect("an object"));
        let whole = options(
            json!({"block-size": "4096", "read-only": true, "hosts": "nqn.2026-01.x:a,nqn.2026-01.x:b"}),
        );
        let whole = whole.expect("options");
        assert_eq!((whole.block_size().bytes(), whole.is_read_only, whole.hosts.len()), (4096, true, 2));
        let list = options(json!({"hosts": ["nqn.2026-01.x:a,b"]})).expect("options");
        assert_eq!(list.hosts, ["nqn.2026-01.x:a,b"]);
        assert_eq!(options(json!({"ram": "1M"})), Ok(DiskOptions::default()));
        for (arguments, words) in [
            (json!({"block-size": 1024}), "512 and 4096"),
            (json!({"block-size": "x"}), "no number"),
            (json!({"read-only": "yes"}), "neither true nor false"),
            (json!({"hosts": []}), "no list of names"),
            (json!({"hosts": [1]}), "no list of names"),
            (json!({"hosts": 1}), "no list of names"),
            (json!({"hosts": "x"}), "\"x\" is no host's name"),
        ] {
            let error = options(arguments.clone()).expect_err(words);
            assert!(error.contains(words) && !error.contains('\n'), "{arguments}: {error}");
        }
    }

    #[test]
    fn a_subsystem_that_comes_has_a_name_and_a_serial_number() {
        let question =
            |name: &str, arguments: Value| subsystem(name, arguments.as_object().expect("an object"));
        let whole = json!({"nqn": "nqn.2026-01.x:a", "serial": "S1", "hosts": "nqn.2026-01.x:h"});
        let asked = question("add-subsystem", whole).expect("a question");
        let expected = json!({
            "command": "add-subsystem",
            "nqn": "nqn.2026-01.x:a",
            "serial": "S1",
            "hosts": ["nqn.2026-01.x:h"],
        });
        assert_eq!(asked, expected);
        let plain = question("add-subsystem", json!({"nqn": "nqn.2026-01.x:a"})).expect("a question");
        assert!(
            plain["serial"].as_str().is_some_and(|serial| serial.len() == 16) && plain["hosts"].is_null()
        );
        let allow = question("allow", json!({"nqn": "nqn.2026-01.x:a"})).expect("a question");
        assert_eq!(allow, json!({"command": "allow", "nqn": "nqn.2026-01.x:a"}));
        for (arguments, words) in [
            (json!({}), "no \"nqn\""),
            (json!({"nqn": "a b"}), "no blanks"),
            (json!({"nqn": "nqn.x:a", "serial": 1}), "no text"),
            (json!({"nqn": "nqn.x:a", "serial": ""}), "1 to 20"),
            (json!({"nqn": "nqn.x:a", "hosts": "x"}), "no host's name"),
        ] {
            let error = question("add-subsystem", arguments.clone()).expect_err(words);
            assert!(error.contains(words), "{arguments}: {error}");
        }
        let list = json!({"nqn": "a", "subsystems": [
            {"nqn": "a", "serial": "1"},
            {"nqn": "b", "serial": "2", "hosts": ["h"]},
            {"nqn": "c", "serial": "3"},
        ]});
        let others = others(list.as_object().expect("an object"));
        let [b, c] = &others[..] else { panic!("{others:?}") };
        assert_eq!((&*b.nqn, b.serial.as_deref(), b.hosts.len()), ("b", Some("2"), 1));
        assert_eq!((&*c.nqn, c.hosts.len()), ("c", 0));
    }

    #[test]
    fn a_state_of_paths_has_a_name_and_numbers() {
        let question = |arguments: Value| ana(arguments.as_object().expect("an object"));
        let whole = question(json!({"state": "non-optimized", "nsid": "2", "port": 1}));
        assert_eq!(
            whole.expect("a question"),
            json!({"command": "ana", "state": "non-optimized", "nsid": 2, "port": 1})
        );
        let all = question(json!({"state": "inaccessible"})).expect("a question");
        assert_eq!(all, json!({"command": "ana", "state": "inaccessible"}));
        for (arguments, words) in [
            (json!({}), "no \"state\""),
            (json!({"state": 1}), "no \"state\""),
            (json!({"state": "up"}), "\"up\" is no state; there are optimized, non-optimized, inaccessible"),
            (json!({"state": "change", "nsid": "x"}), "\"nsid\" is no number"),
            (json!({"state": "change", "port": -1}), "\"port\" is no number"),
            (json!({"state": "change", "group": 1}), "\"group\" is no argument"),
        ] {
            let error = question(arguments.clone()).expect_err(words);
            assert!(error.contains(words) && !error.contains('\n'), "{arguments}: {error}");
        }
    }
}
