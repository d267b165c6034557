//! The kernel modules of the guest, and the table in which `modprobe` finds the dependencies of
//! each.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A module that goes into the guest.
pub struct Module {
    /// Its name, with underscores.
    name: String,
    /// The file's content.
    pub content: Vec<u8>,
    /// The names of all modules that have to be loaded before it, in the order of loading.
    needs: Vec<String>,
}

impl Module {
    /// The name of its file in the guest.
    pub fn file(&self) -> String {
        format!("{}.ko", self.name)
    }
}

/// The modules with these names and all their dependencies, in an order in which they can be
/// loaded. `folder` belongs to the kernel's version. A name without a file is built into the
/// kernel.
pub fn find(folder: &Path, names: &[&str]) -> io::Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    list(folder, &mut files)?;
    let mut modules = Vec::new();
    for name in names {
        add(name, &files, &mut modules)?;
    }
    Ok(modules)
}

/// The table `modules.dep`: a module's file, followed by those that it needs, the last to load
/// first.
pub fn table(modules: &[Module]) -> String {
    let line = |module: &Module| {
        let needs = module.needs.iter().rev().map(|name| format!(" {name}.ko"));
        format!("{}:{}\n", module.file(), needs.collect::<String>())
    };
    modules.iter().map(line).collect()
}

/// The modules among `names`, one per line.
pub fn list_of(names: &[&str], modules: &[Module]) -> String {
    let is_there = |name: &&&str| modules.iter().any(|module| module.name == **name);
    names.iter().filter(is_there).map(|name| format!("{name}\n")).collect()
}

fn list(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, files)?;
        } else if let Some((name, "ko" | "ko.xz")) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('.'))
        {
            files.insert(name.replace('-', "_"), path.clone());
        }
    }
    Ok(())
}

/// Adds a module after its dependencies. Returns their names and its own, in the order of loading.
fn add(name: &str, files: &BTreeMap<String, PathBuf>, modules: &mut Vec<Module>) -> io::Result<Vec<String>> {
    let chain = |module: &Module| module.needs.iter().chain([&module.name]).cloned().collect();
    if let Some(module) = modules.iter().find(|module| module.name == name) {
        return Ok(chain(module));
    }
    let Some(file) = files.get(name) else { return Ok(Vec::new()) };
    let content = read(file)?;
    let mut needs = Vec::new();
    for needed in depends(&content) {
        for name in add(&needed, files, modules)? {
            if !needs.contains(&name) {
                needs.push(name);
            }
        }
    }
    let module = Module { name: name.to_owned(), content, needs };
    let names = chain(&module);
    modules.push(module);
    Ok(names)
}

/// The names of the modules that a module declares as dependencies.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = module.windows(KEY.len()).position(|bytes| bytes == KEY).map(|at| at + KEY.len());
    let list = at.and_then(|at| module[at..].split(|byte| *byte == 0).next()).unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(file);
    }
    let output = Command::new("xz").args(["-dc"]).arg(file).output()?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_behind_what_they_need() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, depends: &str| {
            let text = format!("ELF\0license=GPL\0depends={depends}\0name={name}\0");
            fs::write(folder.path().join(name), text).expect("a file");
        };
        fs::create_dir(folder.path().join("net")).expect("a folder");
        write("net/nvme-rdma.ko", "nvme-core,rdma_cm,nvme-fabrics");
        write("net/nvme-fabrics.ko", "nvme-core");
        write("nvme-core.ko", "");
        write("rdma_cm.ko", "ib_core,built-in");
        write("ib_core.ko", "");
        write("unused.ko", "");
        let modules = find(folder.path(), &["nvme_rdma", "ib_core", "built_in"]).expect("readable");
        assert_eq!(
            table(&modules),
            "nvme_core.ko:\n\
             ib_core.ko:\n\
             rdma_cm.ko: ib_core.ko\n\
             nvme_fabrics.ko: nvme_core.ko\n\
             nvme_rdma.ko: nvme_fabrics.ko rdma_cm.ko ib_core.ko nvme_core.ko\n"
        );
        assert_eq!(list_of(&["nvme_rdma", "built_in", "ib_core"], &modules), "nvme_rdma\nib_core\n");
    }
}
