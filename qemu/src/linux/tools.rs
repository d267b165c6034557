//! Programs that few tests want in the Linux guest. They are no part of its image, which every
//! guest loads, but of archives behind it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::images;
use crate::progress::Progress;

use super::image::{Apt, Archive, Work, one_at_a_time, unpack};

/// Programs that go into one archive, with the libraries that they need.
pub(super) struct Tools {
    /// The name of the folder with the archive.
    pub folder: &'static str,
    /// The packages.
    pub packages: &'static [&'static str],
    /// The names of the programs that are taken out of them.
    pub programs: &'static [&'static str],
    /// The names of libraries that these load by themselves.
    pub libraries: &'static [&'static str],
}

pub(super) const FIO: Tools =
    Tools { folder: "tools", packages: &["fio"], programs: &["fio"], libraries: &[] };

/// The folder of the libraries, a folder in it that has more, and the program that finds those of a
/// program.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const MORE_LIBRARIES: &str = "usr/lib/x86_64-linux-gnu/ceph";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// The first bytes of a program that needs libraries. A script has others.
const ELF: &[u8] = b"\x7fELF";

/// The archive of these programs. It is made once.
pub(super) fn archive(tools: &Tools) -> Result<PathBuf> {
    let _building = one_at_a_time();
    let folder = images::target_folder()?.join("tmp");
    let kept = folder.join(tools.folder);
    let archive = kept.join("archive");
    let made = || -> io::Result<()> {
        let stamp = kept.join("made-of");
        let made_of = format!("{:?} {:?} {:?}", tools.packages, tools.programs, tools.libraries);
        if fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
            return Ok(());
        }
        let _progress = Progress::begin("downloading more programs for the Linux guest");
        let work = Work::begin(folder.join(format!("{}-{}", tools.folder, std::process::id())))?;
        fs::create_dir_all(&kept)?;
        pack(tools, &work.0, &archive)?;
        fs::write(&stamp, made_of)
    };
    made().map_err(|e| Error::system("get more programs for the Linux guest", e))?;
    Ok(archive)
}

/// Makes the archive of the programs and their libraries.
fn pack(tools: &Tools, work: &Path, archive: &Path) -> io::Result<()> {
    let stage = work.join("stage");
    for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), stage.join(link))?;
    }
    let apt = Apt::begin(work)?;
    for package in apt.download_all(tools.packages)? {
        unpack(&package, &stage)?;
    }
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in tools.programs {
        let places = ["usr/bin", "usr/sbin"].map(|folder| format!("{folder}/{name}"));
        let program = places.into_iter().find(|place| stage.join(place).is_file());
        let program = program.ok_or_else(|| io::Error::other(format!("no package has {name}")))?;
        let file = stage.join(&program);
        if fs::read(&file)?.starts_with(ELF) {
            files.extend(libraries(&stage, &program)?);
        }
        files.insert(program, file);
    }
    for name in tools.libraries {
        let library = format!("{LIBRARIES}/{name}");
        files.insert(library.clone(), stage.join(&library));
    }
    let mut archive = Archive::new(BufWriter::new(File::create(archive)?));
    for (name, file) in files {
        archive.entry(&name, 0o100_755, &fs::read(file)?)?;
    }
    archive.end()
}

/// The libraries that a program of the stage needs: where the guest has them, and where they are.
fn libraries(stage: &Path, program: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let [folder, more] = [LIBRARIES, MORE_LIBRARIES].map(|folder| stage.join(folder).display().to_string());
    let mut list = Command::new(stage.join(LOADER));
    list.arg("--library-path").arg(format!("{folder}:{more}")).arg("--list").arg(stage.join(program));
    let output = list.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{list:?}: {}\n{said}", output.status)));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    // NAME => FILE (ADDRESS)
    let files = said.lines().filter_map(|line| line.trim().split_once(" => ")?.1.split(' ').next());
    let library = |file: &str| {
        let name = Path::new(file).file_name()?.to_str()?;
        Some((format!("{LIBRARIES}/{name}"), PathBuf::from(file)))
    };
    Ok(files.filter_map(library).collect())
}
