//! Programs that few tests want in the Linux guest: fio. They are no part of its image, which every
//! guest loads, but of an archive behind it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::images;
use crate::progress::Progress;

use super::image::{Apt, Archive, Image, Work, unpack};

/// The packages, and the programs that are taken out of them, with the libraries that these need.
const PACKAGES: [&str; 1] = ["fio"];
const PROGRAMS: [&str; 1] = ["usr/bin/fio"];
/// The folder of the libraries, a folder in it that has more, and the program that finds those of a
/// program.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const MORE_LIBRARIES: &str = "usr/lib/x86_64-linux-gnu/ceph";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// The image with these programs, too. It is made once.
pub(super) fn with_tools(image: &Image) -> Result<Image> {
    let folder = images::target_folder()?.join("tmp");
    let (kept, whole) = (folder.join("tools"), image.initrd.with_extension("tools"));
    let made = || -> io::Result<()> {
        let stamp = kept.join("made-of");
        let made_of = format!("{PACKAGES:?} {PROGRAMS:?}");
        let archive = kept.join("archive");
        if !fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
            let _progress = Progress::begin("downloading more programs for the Linux guest");
            let work = Work::begin(folder.join(format!("tools-{}", std::process::id())))?;
            fs::create_dir_all(&kept)?;
            pack(&work.0, &archive)?;
            fs::write(&stamp, made_of)?;
        }
        // Under its name it is whole, whatever happens meanwhile.
        let unfinished = whole.with_extension(std::process::id().to_string());
        fs::copy(&image.initrd, &unfinished)?;
        let mut both = File::options().append(true).open(&unfinished)?;
        io::copy(&mut File::open(archive)?, &mut both)?;
        fs::rename(unfinished, &whole)
    };
    made().map_err(|e| Error::system("get more programs for the Linux guest", e))?;
    Ok(Image { kernel: image.kernel.clone(), initrd: whole })
}

/// Makes the archive of the programs and their libraries.
fn pack(work: &Path, archive: &Path) -> io::Result<()> {
    let stage = work.join("stage");
    for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), stage.join(link))?;
    }
    let apt = Apt::begin(work)?;
    for package in apt.download_all(&PACKAGES)? {
        unpack(&package, &stage)?;
    }
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for program in PROGRAMS {
        files.insert(program.to_owned(), stage.join(program));
        files.extend(libraries(&stage, program)?);
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
