//! siw, Linux's iWARP in software. Debian's kernels are configured without it, so its module is
//! compiled here, of the kernel's own sources and with the headers that Debian makes for modules.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::run;

/// The module's folder in the kernel's sources.
const FOLDER: &str = "drivers/infiniband/sw/siw";
/// The library that a tool of the kernel's build needs, and those that this one needs. This machine
/// may lack them; the guest's programs need them too.
const LIBRARIES: [&str; 3] = ["libelf.so.1", "libz.so.1", "libzstd.so.1"];

/// The package with the sources of the kernel `version`, such as `6.1.0-56-amd64`.
pub fn sources_of(version: &str) -> io::Result<String> {
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("linux-source-{major}.{minor}")),
        _ => Err(io::Error::other(format!("{version}: not the version of a kernel"))),
    }
}

/// The packages of headers and tools that the package of headers depends on. It also depends on a
/// compiler, which this machine has.
pub fn needed_by_headers(depends: &str) -> Vec<String> {
    let words = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let is_needed = |name: &&str| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-");
    words.filter(is_needed).map(str::to_owned).collect()
}

/// The folder in which the module is compiled: below `work`, if its path is one that the kernel's
/// build takes, otherwise below the folder for temporary files.
pub fn folder(work: &Path) -> PathBuf {
    let folder = work.join("siw");
    match folder.to_str() {
        Some(path) if !path.contains([' ', ':']) => folder,
        _ => env::temp_dir().join(format!("ferrovia-siw-{}", std::process::id())),
    }
}

/// Compiles the module. `root` has the unpacked packages, `stage` the guest's libraries. Returns
/// the module's file.
pub fn compile(root: &Path, stage: &Path, version: &str) -> io::Result<PathBuf> {
    let name = sources_of(version)?;
    let archive = root.join(format!("usr/src/{name}.tar.xz"));
    run(Command::new("tar").arg("-C").arg(root).arg("-xJf").arg(archive).arg(format!("{name}/{FOLDER}")))?;
    let folder = root.join(name).join(FOLDER);
    let headers = root.join(format!("usr/src/linux-headers-{version}"));
    relocate(&headers, root)?;
    let libraries = root.join("libraries");
    fs::create_dir(&libraries)?;
    for library in LIBRARIES {
        symlink(stage.join("usr/lib/x86_64-linux-gnu").join(library), libraries.join(library))?;
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(&headers).arg(format!("M={}", folder.display()));
    // The headers name the compiler that built the kernel.
    make.args(["CC=cc", "CONFIG_RDMA_SIW=m", "modules"]).env("LD_LIBRARY_PATH", &libraries);
    run(&mut make)?;
    let module = folder.join("siw.ko");
    run(Command::new("strip").arg("--strip-debug").arg(&module))?;
    Ok(module)
}

/// Makes the headers in the folder `headers` name other files below `root` as if they were
/// installed there.
fn relocate(headers: &Path, root: &Path) -> io::Result<()> {
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    fs::write(makefile, text.replace("/usr/", &format!("{}/usr/", root.display())))?;
    for entry in fs::read_dir(headers)? {
        let link = entry?.path();
        if let Some(to) = link.read_link().ok().as_ref().and_then(|to| to.strip_prefix("/").ok()) {
            fs::remove_file(&link)?;
            symlink(root.join(to), link)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_those_of_the_kernels_version() {
        assert_eq!(sources_of("6.1.0-56-amd64").expect("a version"), "linux-source-6.1");
        assert_eq!(sources_of("6.12.57+deb13-amd64").expect("a version"), "linux-source-6.12");
        sources_of("amd64").expect_err("it is no version");
        let depends = "linux-headers-6.1.0-56-amd64\n  Depends: linux-headers-6.1.0-56-common\n  \
                       Depends: linux-kbuild-6.1\n  Depends: linux-compiler-gcc-12-x86\n";
        assert_eq!(needed_by_headers(depends), ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1"]);
    }

    #[test]
    fn a_path_that_make_does_not_take_is_left() {
        assert_eq!(folder(Path::new("/a/b")), Path::new("/a/b/siw"));
        for odd in ["/a b", "/a:b"] {
            assert!(!folder(Path::new(odd)).starts_with(odd));
        }
    }

    #[test]
    fn headers_are_found_where_they_are_unpacked() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let headers = root.join("usr/src/headers");
        fs::create_dir_all(&headers).expect("a folder");
        fs::write(headers.join("Makefile"), "include /usr/src/common/Makefile\n").expect("a file");
        symlink("/usr/lib/kbuild/tools", headers.join("tools")).expect("a link");
        symlink("../../lib/kbuild/scripts", headers.join("scripts")).expect("a link");
        relocate(&headers, root).expect("it is relocated");
        let text = fs::read_to_string(headers.join("Makefile")).expect("a file");
        assert_eq!(text, format!("include {}/usr/src/common/Makefile\n", root.display()));
        let to = |link: &str| fs::read_link(headers.join(link)).expect("a link");
        assert_eq!(to("tools"), root.join("usr/lib/kbuild/tools"));
        assert_eq!(to("scripts"), Path::new("../../lib/kbuild/scripts"));
    }
}
