//! What the operator asks for, by the launcher: a JSON object with `command` and its arguments. The
//! answer is an object with `ok`, and with `error` if that is false.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use block::Disk;
use block::ram::RamDisk;
use kernel::Mailbox;
use platform::Platform;
use serde_json::{Value, json};
use storage::target::{AnaState, Control, Export, Host, SubsystemConfig};

use crate::{Chosen, figures, random_uuid};

/// The longest question: a file of hosts.
const QUESTION: usize = 256 << 10;
/// The longest answer: figures of 64 namespaces, 64 hosts and 256 queues.
const ANSWER: usize = 512 << 10;
/// How long a disk may take to have the size that the launcher gave it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(20);

/// What is behind a namespace.
pub enum Source {
    /// Memory.
    Ram(Arc<RamDisk>),
    /// A disk of the machine, by its number.
    Disk(usize),
}

/// The operator's side of the target.
pub struct Operator {
    pub platform: Arc<dyn Platform>,
    pub control: Control,
    /// The machine's disks.
    pub disks: Vec<Arc<dyn Disk>>,
    /// What is behind each namespace.
    pub sources: Vec<(u32, Source)>,
}

/// Why something is not done.
type Refused = String;

impl Operator {
    /// Answers questions until the target ends.
    pub fn serve(mut self, mut mailbox: Mailbox) {
        loop {
            let question = mailbox.question();
            let answer = match self.carry_out(&question) {
                Ok(Value::Object(mut answer)) => {
                    answer.insert("ok".into(), true.into());
                    Value::Object(answer)
                }
                Ok(_) => json!({"ok": true}),
                Err(why) => json!({"ok": false, "error": why}),
            };
            if !mailbox.answer(answer.to_string().as_bytes()) {
                mailbox.answer(br#"{"ok":false,"error":"the answer is too long"}"#);
            }
        }
    }

    /// A mailbox for it.
    pub fn mailbox(platform: &Arc<dyn Platform>) -> Result<Mailbox, platform::OutOfMemory> {
        Mailbox::open(platform, QUESTION, ANSWER)
    }

    fn carry_out(&mut self, question: &[u8]) -> Result<Value, Refused> {
        let question: Value = serde_json::from_slice(question).map_err(|error| error.to_string())?;
        let number = |name: &str| {
            let value = question.get(name).and_then(Value::as_u64);
            value.ok_or_else(|| format!("no number {name:?}"))
        };
        let text = |name: &str| question[name].as_str().ok_or_else(|| format!("no text {name:?}"));
        let nsid =
            || number("nsid").and_then(|nsid| u32::try_from(nsid).map_err(|_| "no such namespace".into()));
        let said = |error: storage::target::Refusal| error.to_string();
        match text("command")? {
            "list" => {
                let overview = self.control.overview().map_err(said)?;
                self.sources.retain(|(nsid, _)| overview.namespaces.iter().any(|one| one.nsid == *nsid));
                Ok(figures::overview(&overview, &self.sources))
            }
            "metrics" => self.control.metrics().map(|metrics| figures::metrics(&metrics)).map_err(said),
            "add-ram" => self.add_ram(number("bytes")?, chosen(&question)?),
            "add-disk" => {
                let name = u128::from_str_radix(text("uuid")?, 16).map_err(|error| error.to_string())?;
                self.add_disk(number("disk")?, number("bytes")?, name, chosen(&question)?)
            }
            "remove" => self.remove(nsid()?),
            "add-subsystem" => {
                let (nqn, serial) = (text("nqn")?.into(), text("serial")?.into());
                let subsystem = SubsystemConfig { nqn, serial, hosts: hosts(&question)? };
                self.control.add_subsystem(subsystem).map(|()| Value::Null).map_err(said)
            }
            "remove-subsystem" => {
                self.control.remove_subsystem(text("nqn")?).map(|()| Value::Null).map_err(said)
            }
            "allow" => {
                let allowed = self.control.set_subsystem_hosts(text("nqn")?, hosts(&question)?);
                allowed.map(|()| Value::Null).map_err(said)
            }
            "resize-ram" => self.resize_ram(nsid()?, number("bytes")?),
            "ana" => {
                let state: AnaState = text("state")?.parse().map_err(|_| "no such state")?;
                let given = |name: &str| question.get(name).map(|_| number(name)).transpose();
                let port = given("port")?.map(|port| u16::try_from(port).map_err(|_| "no such port"));
                let nsid = question.get("nsid").map(|_| nsid()).transpose()?;
                self.control.set_ana_state(port.transpose()?, nsid, state).map_err(said)?;
                Ok(Value::Null)
            }
            "disconnect" => {
                let controllers = self.control.disconnect(text("host")?).map_err(said)?;
                Ok(json!({"controllers": controllers}))
            }
            "hosts" => {
                let hosts = Host::parse_all(text("text")?).map_err(|error| error.to_string())?;
                if hosts.is_empty() {
                    return Err("no host is named".into());
                }
                let count = hosts.len();
                self.control.set_hosts(hosts).map_err(said)?;
                Ok(json!({"hosts": count}))
            }
            "drain" => self.control.drain().map(|()| Value::Null).map_err(said),
            "resume" => self.control.resume().map(|()| Value::Null).map_err(said),
            "end" => {
                self.control.stop();
                Ok(Value::Null)
            }
            other => Err(format!("no command {other:?}")),
        }
    }

    fn add_ram(&mut self, bytes: u64, chosen: Chosen) -> Result<Value, Refused> {
        let disk = Arc::new(chosen.ram_disk(&self.platform, bytes).map_err(|_| too_little())?);
        let source = Source::Ram(disk.clone());
        self.add(chosen.export(disk, random_uuid()), source)
    }

    fn add_disk(&mut self, number: u64, bytes: u64, name: u128, chosen: Chosen) -> Result<Value, Refused> {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        let disk = self.disks.get(place).ok_or("there is no such disk")?.clone();
        let has_come = || {
            // A disk that is not exported notices its size only here.
            disk.poll(1, &mut |_, _| ());
            let geometry = disk.geometry();
            geometry.blocks * u64::from(geometry.block_size) == bytes
        };
        if !self.wait_for(has_come) {
            return Err("the disk has not got its size".into());
        }
        let disk = chosen.view(disk).map_err(|error| error.to_string())?;
        self.add(chosen.export(disk, name.to_be_bytes()), Source::Disk(place))
    }

    fn add(&mut self, export: Export, source: Source) -> Result<Value, Refused> {
        let uuid = export.uuid;
        let nsid = self.control.add(export).map_err(|refusal| match refusal {
            storage::target::Refusal::Disk(storage::Error::OutOfMemory) => too_little(),
            other => other.to_string(),
        })?;
        self.sources.retain(|(its, _)| *its != nsid);
        self.sources.push((nsid, source));
        Ok(json!({"nsid": nsid, "uuid": figures::uuid(&uuid)}))
    }

    fn remove(&mut self, nsid: u32) -> Result<Value, Refused> {
        self.control.remove(nsid).map(|()| Value::Null).map_err(|refusal| refusal.to_string())
    }

    fn resize_ram(&mut self, nsid: u32, bytes: u64) -> Result<Value, Refused> {
        let source = self.sources.iter().find(|(its, _)| *its == nsid);
        match source {
            Some((_, Source::Ram(disk))) => {
                disk.resize(bytes / u64::from(disk.geometry().block_size)).map_err(|_| too_little())?;
                Ok(Value::Null)
            }
            Some(_) => Err("the namespace is no RAM disk".into()),
            None => Err("there is no such namespace".into()),
        }
    }

    fn wait_for(&self, holds: impl Fn() -> bool) -> bool {
        let until = self.platform.now() + PATIENCE;
        loop {
            if holds() {
                return true;
            }
            if self.platform.now() >= until {
                return false;
            }
            kernel::thread::sleep(PERIOD);
        }
    }
}

/// The hosts that a question names; `None` if it names none.
fn hosts(question: &Value) -> Result<Option<Vec<String>>, Refused> {
    match question.get("hosts") {
        None => Ok(None),
        Some(Value::Array(hosts)) => {
            let names = hosts.iter().map(|host| host.as_str().map(String::from));
            Ok(Some(names.collect::<Option<Vec<String>>>().ok_or("a host's name is no text")?))
        }
        Some(_) => Err("the hosts are no list".into()),
    }
}

/// What a question chooses for a disk.
fn chosen(question: &Value) -> Result<Chosen, Refused> {
    let block_size = question.get("block_size").and_then(Value::as_u64).map(u32::try_from).transpose();
    Ok(Chosen {
        block_size: block_size.map_err(|_| "no such block size")?,
        is_read_only: question["read_only"] == true,
        hosts: hosts(question)?,
        subsystem: question.get("subsystem").and_then(Value::as_str).map(String::from),
    })
}

fn too_little() -> String {
    "the machine has too little memory; give it more by --memory".to_string()
}
