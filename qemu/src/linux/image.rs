//! The Linux guest's kernel and initial RAM disk, made of packages of the Debian release that this
//! machine runs. apt downloads and verifies them, in a state folder of its own; none of them is
//! installed. The result stays in the target folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{images, setup};

use super::tools::{self, FIO};
use super::{modules, siw};

/// The packages with the guest's programs; their dependencies are added.
const PACKAGES: [&str; 9] = [
    "busybox-static",
    "dash",
    "e2fsprogs",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "nvme-cli",
    "perftest",
    "rdmacm-utils",
];
/// A kernel of the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The one that the release has had from the beginning.
    Stable,
    /// A newer one, which authenticates NVMe hosts and controllers. It comes without siw.
    Newer,
}

impl Kernel {
    /// The package that depends on the current version.
    fn package(self) -> &'static str {
        match self {
            Kernel::Stable => "linux-image-amd64",
            Kernel::Newer => "linux-image-6.12-amd64",
        }
    }

    /// The folder with the finished image.
    fn folder(self) -> &'static str {
        match self {
            Kernel::Stable => "linux",
            Kernel::Newer => "linux-6.12",
        }
    }
}

/// The modules that the guest loads when it boots.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_net",
    // rdma_rxe and libcrc32c request these under other names.
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "rdma_rxe",
    "ipv6",
];
/// Modules that `modprobe` loads when they are wanted ([`super::storage`], [`super::blktests`],
/// [`super::Linux::use_iwarp`]).
const ON_DEMAND: [&str; 12] = [
    "brd",
    // What nvme_auth requests under other names.
    "dh_generic",
    "ext4",
    "hmac",
    "loop",
    "nvme_rdma",
    "nvmet_rdma",
    "sha256_generic",
    "sha512_generic",
    "siw",
    "virtio_blk",
    "xfs",
];
/// The folders of the packages that go into the guest. The kernel's configuration is in `boot`.
const FOLDERS: [&str; 6] = ["usr/bin", "usr/sbin", "usr/lib64", "usr/lib/x86_64-linux-gnu", "etc", "boot"];
/// Prefixes of the names of files and folders in these that the guest does not need.
const LEFT_OUT: [&str; 5] = ["perl", "libperl", "gconv", "vmlinuz", "System.map"];
const INIT: &str = include_str!("init");
/// A test program for the guest, and the packages with the headers that it includes. The libraries
/// are the guest's.
const PROGRAM: &str = include_str!("immediate.c");
const PROGRAM_NAME: &str = "immediate";
const HEADERS: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// A kernel and its initial RAM disk.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The RAM disk.
    pub initrd: PathBuf,
}

impl Image {
    /// Finds the image, or builds it if there is none with these packages and modules.
    pub fn find() -> Result<Image> {
        Image::with(Kernel::Stable)
    }

    /// The same with programs that few tests want: fio.
    pub fn with_tools() -> Result<Image> {
        let image = Image::find()?;
        let whole = image.initrd.with_extension("tools");
        image.followed_by(&[tools::archive(&FIO)?], &whole)
    }

    /// The image whose RAM disk, the file `whole`, consists of this one and archives behind it.
    pub(super) fn followed_by(&self, archives: &[PathBuf], whole: &Path) -> Result<Image> {
        let joined = || -> io::Result<()> {
            // Under its name it is whole, whatever happens meanwhile.
            let unfinished = whole.with_extension(std::process::id().to_string());
            fs::copy(&self.initrd, &unfinished)?;
            let mut all = File::options().append(true).open(&unfinished)?;
            for archive in archives {
                io::copy(&mut File::open(archive)?, &mut all)?;
            }
            fs::rename(unfinished, whole)
        };
        joined().map_err(|e| Error::system("add programs to the Linux guest", e))?;
        Ok(Image { kernel: self.kernel.clone(), initrd: whole.to_owned() })
    }

    /// The same with this kernel.
    pub fn with(kernel: Kernel) -> Result<Image> {
        let _building = one_at_a_time();
        let folder = images::target_folder()?.join("tmp");
        let cache = folder.join(kernel.folder());
        let image = Image { kernel: cache.join("vmlinuz"), initrd: cache.join("initrd") };
        let stamp = cache.join("made-of");
        let made_of =
            format!("{PACKAGES:?} {MODULES:?} {ON_DEMAND:?} {FOLDERS:?} {LEFT_OUT:?}\n{INIT}\n{PROGRAM}");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == made_of) {
            return Ok(image);
        }
        setup::ensure_tools_for_modules()?;
        complain!("ferrovia: downloading and building the Linux guest, once");
        let progress = Progress::begin("building the Linux guest");
        let work = Work::begin(folder.join(format!("{}-{}", kernel.folder(), std::process::id())));
        let built = work.and_then(|work| build(&work.0, kernel, &image, &progress));
        let built = built.and_then(|()| fs::write(stamp, made_of));
        drop(progress);
        built.map(|()| image).map_err(|e| Error::system("build the Linux guest", e))
    }
}

/// What keeps several threads from making the same files.
pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static BUILDING: Mutex<()> = Mutex::new(());
    BUILDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary folder, which is removed at the end.
pub(super) struct Work(pub(super) PathBuf);

impl Work {
    pub(super) fn begin(folder: PathBuf) -> io::Result<Work> {
        fs::create_dir_all(&folder).map(|()| Work(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A folder that is left behind does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn build(work: &Path, kernel: Kernel, image: &Image, progress: &Progress) -> io::Result<()> {
    let stage = work.join("stage");
    for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), stage.join(link))?;
    }
    progress.message("downloading Debian's packages");
    let apt = Apt::begin(work)?;
    let packages = download(&apt, kernel)?;
    progress.message("unpacking and compiling");
    for package in packages.programs {
        unpack(&package, &stage)?;
    }
    let headers = work.join("headers");
    fs::create_dir_all(&headers)?;
    for package in packages.headers {
        unpack(&package, &headers)?;
    }
    compile(work, &headers, &stage)?;
    let version = packages.version;
    let all_modules = stage.join("lib/modules").join(&version);
    if let Some(cache) = image.kernel.parent() {
        fs::create_dir_all(cache)?;
        if kernel == Kernel::Stable {
            // It takes most of the download, and is the same until the kernel is another one.
            let kept = cache.join(format!("siw-{}.ko", packages.exact_version));
            if !kept.is_file() {
                make_siw(&apt, work, &stage, &version, &kept, progress)?;
            }
            fs::copy(kept, all_modules.join("siw.ko"))?;
        }
    }
    progress.message("packing");
    fs::copy(stage.join(format!("boot/vmlinuz-{version}")), &image.kernel)?;
    let mut archive = Archive::new(BufWriter::new(File::create(&image.initrd)?));
    for folder in ["applets", "dev", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "usr/lib"] {
        archive.folder(folder)?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        archive.link(link, &format!("usr/{link}"))?;
    }
    for folder in FOLDERS {
        archive.tree(&stage.join(folder), folder)?;
    }
    let folder = format!("usr/lib/modules/{version}");
    archive.folder("usr/lib/modules")?;
    archive.folder(&folder)?;
    let modules = modules::find(&all_modules, &[&MODULES[..], &ON_DEMAND].concat())?;
    for module in &modules {
        archive.entry(&format!("{folder}/{}", module.file()), 0o100_644, &module.content)?;
    }
    archive.entry(&format!("{folder}/modules.dep"), 0o100_644, modules::table(&modules).as_bytes())?;
    archive.entry("modules", 0o100_644, modules::list_of(&MODULES, &modules).as_bytes())?;
    archive.entry("init", 0o100_755, INIT.as_bytes())?;
    archive.end()
}

pub(super) fn unpack(package: &Path, into: &Path) -> io::Result<()> {
    let unpack = "dpkg-deb --fsys-tarfile \"$0\" | tar -C \"$1\" -x --keep-directory-symlink --no-same-owner";
    run(Command::new("bash").args(["-o", "pipefail", "-c", unpack]).arg(package).arg(into))
}

/// Compiles the test program. The guest has the libraries of the release that this machine runs, so
/// a program of this machine's compiler runs there.
fn compile(work: &Path, headers: &Path, stage: &Path) -> io::Result<()> {
    let source = work.join(PROGRAM_NAME).with_extension("c");
    fs::write(&source, PROGRAM)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Werror"]).arg("-I").arg(headers.join("usr/include"));
    compiler.arg("-o").arg(stage.join("usr/bin").join(PROGRAM_NAME)).arg(&source);
    let folder = stage.join("usr/lib/x86_64-linux-gnu");
    compiler.args(LIBRARIES.map(|library| folder.join(library)));
    // The libraries that these libraries need are in the guest.
    run(compiler.arg("-Wl,--allow-shlib-undefined"))
}

/// Makes the module siw, as the file `kept`.
fn make_siw(
    apt: &Apt,
    work: &Path,
    stage: &Path,
    version: &str,
    kept: &Path,
    progress: &Progress,
) -> io::Result<()> {
    let headers = format!("linux-headers-{version}");
    let sources = siw::sources_of(version)?;
    progress.message("downloading the kernel's sources (150 MB)");
    let mut names = siw::needed_by_headers(&apt.depends(&headers)?);
    names.extend([headers, sources]);
    let root = Work::begin(siw::folder(work))?;
    for package in apt.download("siw", &names)? {
        unpack(&package, &root.0)?;
    }
    progress.message("compiling siw");
    let module = siw::compile(&root.0, stage, version)?;
    // Under its name it is whole, even if this process is killed meanwhile.
    let unfinished = kept.with_extension(format!("{}", std::process::id()));
    fs::copy(module, &unfinished)?;
    fs::rename(unfinished, kept)
}

/// The packages that were downloaded.
struct Packages {
    /// The guest's programs, with all their dependencies, and its kernel.
    programs: Vec<PathBuf>,
    headers: Vec<PathBuf>,
    /// The kernel's version, by which its files are named.
    version: String,
    /// The version of the kernel's package.
    exact_version: String,
}

/// Downloads the packages and all their dependencies.
fn download(apt: &Apt, kernel: Kernel) -> io::Result<Packages> {
    let meta = kernel.package();
    let programs = apt.download_all(&PACKAGES)?;
    let depends = apt.depends(meta)?;
    let mut words = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let version = words.find_map(|name| name.strip_prefix("linux-image-")).ok_or_else(|| missing(meta))?;
    let kernel = apt.download("kernel", &[format!("linux-image-{version}")])?;
    // NAME_VERSION_ARCHITECTURE.deb
    let file = kernel.first().and_then(|file| file.file_name()?.to_str());
    let exact_version = file.and_then(|file| file.split('_').nth(1)).ok_or_else(|| missing(meta))?;
    Ok(Packages {
        version: version.to_owned(),
        exact_version: exact_version.to_owned(),
        headers: apt.download("headers", &HEADERS)?,
        programs: [programs, kernel].concat(),
    })
}

/// apt with a state of its own, in which no package is installed. It checks signatures.
pub(super) struct Apt {
    state: PathBuf,
    config: PathBuf,
}

impl Apt {
    /// Downloads the lists of packages.
    pub(super) fn begin(work: &Path) -> io::Result<Apt> {
        let state = work.join("apt");
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(state.join(folder))?;
        }
        fs::write(state.join("status"), "")?;
        let settings = format!(
            "Dir::State \"{0}\"; Dir::State::lists \"{0}/lists\"; Dir::State::status \"{0}/status\";\n\
             Dir::State::extended_states \"{0}/extended_states\"; Dir::Cache \"{0}\";\n\
             Dir::Cache::archives \"{0}/archives\"; APT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; }}; APT::Install-Recommends \"0\"; Debug::NoLocking \"1\";\n\
             APT::Sandbox::User \"root\";\n",
            state.display()
        );
        let config = state.join("apt.conf");
        fs::write(&config, settings)?;
        let apt = Apt { state, config };
        run(apt.in_folder("archives", "apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    fn in_folder(&self, folder: &str, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).current_dir(self.state.join(folder));
        command
    }

    /// What `apt-cache` writes about the dependencies of a package.
    pub(super) fn depends(&self, package: &str) -> io::Result<String> {
        let output = self.in_folder("archives", "apt-cache").args(["depends", package]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Downloads packages and all their dependencies; returns the files.
    pub(super) fn download_all(&self, packages: &[&str]) -> io::Result<Vec<PathBuf>> {
        let words = ["-qq", "-y", "--download-only", "install"];
        run(self.in_folder("archives", "apt-get").args(words).args(packages))?;
        packages_in(&self.state.join("archives"))
    }

    /// Downloads packages without their dependencies into a folder of their own; returns the files.
    pub(super) fn download(&self, folder: &str, packages: &[impl AsRef<OsStr>]) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(self.state.join(folder))?;
        run(self.in_folder(folder, "apt-get").args(["-qq", "download"]).args(packages))?;
        packages_in(&self.state.join(folder))
    }
}

/// The packages in a folder, in the order of their names.
fn packages_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut packages = Vec::new();
    for file in fs::read_dir(folder)? {
        packages.push(file?.path());
    }
    packages.retain(|file| file.extension().is_some_and(|extension| extension == "deb"));
    packages.sort();
    Ok(packages)
}

pub(super) fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("{command:?}: {}\n{said}", output.status)))
        }
    }
}

fn missing(what: &str) -> io::Error {
    io::Error::other(format!("apt has no {what}; the Linux guest is made of Debian's packages"))
}

/// A cpio archive in the format "newc", in which root owns all files.
pub(super) struct Archive {
    file: BufWriter<File>,
    entries: u32,
    written: usize,
}

impl Archive {
    pub(super) fn new(file: BufWriter<File>) -> Archive {
        Archive { file, entries: 0, written: 0 }
    }

    /// Writes what is behind the last entry. Another archive may follow.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.file.flush()
    }

    pub(super) fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let (links, len) = (1, data.len() as u32);
        let fields = [self.entries, mode, 0, 0, links, 0, len, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(name);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(data)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len();
        let fill = self.written.wrapping_neg() % 4;
        self.written += fill;
        self.file.write_all(&[0; 3][..fill])
    }

    pub(super) fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, 0o40_755, &[])
    }

    pub(super) fn link(&mut self, name: &str, to: &str) -> io::Result<()> {
        self.entry(name, 0o120_777, to.as_bytes())
    }

    /// Adds the file or folder `file` as `name`.
    pub(super) fn tree(&mut self, file: &Path, name: &str) -> io::Result<()> {
        let kind = match fs::symlink_metadata(file) {
            Ok(kind) => kind,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if kind.is_symlink() {
            return self.link(name, &fs::read_link(file)?.display().to_string());
        }
        if !kind.is_dir() {
            return self.entry(name, 0o100_000 | kind.permissions().mode() & 0o777, &fs::read(file)?);
        }
        self.folder(name)?;
        let mut inside = fs::read_dir(file)?.collect::<io::Result<Vec<_>>>()?;
        inside.sort_by_key(|entry| entry.file_name());
        for entry in inside {
            let its = entry.file_name();
            let bytes = its.as_encoded_bytes();
            if !LEFT_OUT.iter().any(|left_out| bytes.starts_with(left_out.as_bytes())) {
                self.tree(&entry.path(), &format!("{name}/{}", its.display()))?;
            }
        }
        Ok(())
    }
}
