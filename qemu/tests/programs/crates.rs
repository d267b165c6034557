//! Rust programs of others, from crates.io: the tests of sideway, which finds the libraries when it
//! runs, and an example of `ibverbs` (rust-ibverbs), which is linked to them.
//!
//! Cargo builds both once, in a folder of their own with the versions of `crates/Cargo.lock`. They
//! are built with Clang's library. They also call CMake, in whose place is `crates/cmake`.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

/// The folder beside this file.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/crates");

/// Cargo, in a folder in which both are built.
struct Built {
    folder: PathBuf,
    clang: programs::Clang,
}

impl Built {
    fn find() -> &'static Built {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(Built::make)
    }

    fn make() -> Built {
        // Which also builds the library.
        let kept = debians("").join("../../..").canonicalize().expect("the folder of what is kept");
        let built = Built { folder: kept.join("crates"), clang: programs::clang().expect("Clang's library") };
        for part in ["sideway/src", "ibverbs/src", "bin", "lib", "include/infiniband"] {
            fs::create_dir_all(built.folder.join(part)).expect("a folder");
        }
        for file in ["Cargo.toml", "Cargo.lock", "sideway/Cargo.toml", "ibverbs/Cargo.toml"] {
            fs::copy(Path::new(FOLDER).join(file), built.folder.join(file)).expect("a file");
        }
        link(&Path::new(FOLDER).join("cmake"), &built.folder.join("bin/cmake"));
        // The name that a linker looks for; Debian has it in libibverbs-dev.
        let library = kept.join("../verbs/lib/libibverbs.so.1").canonicalize().expect("the library");
        link(&library, &built.folder.join("lib/libibverbs.so"));
        fs::write(built.folder.join("sideway/src/lib.rs"), "").expect("a file");
        fs::write(built.folder.join("ibverbs/src/main.rs"), "fn main() {}").expect("a file");
        built.take_from_the_packages();
        succeed(built.cargo().args(["test", "--locked", "--quiet", "--no-run"]));
        succeed(built.cargo().args(["build", "--locked", "--quiet"]));
        built
    }

    /// Copies what the packages have as tests and examples, and makes a folder of the headers of
    /// rdma-core, of which `ibverbs` has the sources, as that would be installed.
    fn take_from_the_packages(&self) {
        let output = self.cargo().args(["metadata", "--locked", "--format-version", "1"]).output();
        let output = output.expect("cargo runs");
        assert!(output.status.success(), "{}", said(&output));
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let package = |name: &str| {
            let mut all = metadata["packages"].as_array().expect("packages").iter();
            let found = all.find(|package| package["name"] == name).expect("the package");
            let manifest = found["manifest_path"].as_str().expect("a path");
            Path::new(manifest).parent().expect("a folder").to_owned()
        };
        let tests = self.folder.join("sideway/tests");
        fs::create_dir_all(&tests).expect("a folder");
        for name in ["test_atomic.rs", "test_cq.rs", "test_mr_and_cq.rs", "test_post_send.rs", "test_qp.rs"] {
            fs::copy(package("sideway").join("tests").join(name), tests.join(name)).expect("its test");
        }
        let example = package("ibverbs").join("examples/loopback.rs");
        fs::copy(example, self.folder.join("ibverbs/src/main.rs")).expect("its example");
        let sources = package("ibverbs-sys").join("vendor/rdma-core");
        let include = self.folder.join("include");
        link(&sources.join("kernel-headers/rdma"), &include.join("rdma"));
        let headers = fs::read_dir(sources.join("libibverbs")).expect("the sources of libibverbs");
        let headers = headers.map(|entry| entry.expect("an entry").path());
        let headers = headers.filter(|path| path.extension().is_some_and(|extension| extension == "h"));
        let of_kernel = sources.join("kernel-headers/rdma/ib_user_ioctl_verbs.h");
        for header in headers.chain([of_kernel]) {
            link(&header, &include.join("infiniband").join(header.file_name().expect("a name")));
        }
    }

    /// Cargo in this folder, with what the packages need when they are built.
    fn cargo(&self) -> Command {
        self.set(Command::new(cargo()))
    }

    /// Cargo with the library under the programs that it runs.
    fn cargo_with_verbs(&self, arguments: &[&str]) -> Command {
        self.set(launcher(&[], &cargo(), arguments))
    }

    fn set(&self, mut command: Command) -> Command {
        let in_front = |folder: &Path, variable: &str| {
            let former = std::env::var(variable).unwrap_or_default();
            format!("{}:{former}", folder.display())
        };
        // What cargo says to the programs that it runs is not for the packages here.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_") && name != "CARGO_HOME") {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.folder).env("CARGO_TARGET_DIR", self.folder.join("target"));
        command.env("PATH", in_front(&self.folder.join("bin"), "PATH"));
        command.env("LIBRARY_PATH", self.folder.join("lib"));
        command.env("LIBCLANG_PATH", &self.clang.libraries);
        command.env("LD_LIBRARY_PATH", &self.clang.libraries);
        let headers: Vec<_> =
            self.clang.headers.iter().cloned().chain([self.folder.join("include")]).collect();
        let words: Vec<_> = headers.iter().map(|folder| format!("-I{}", folder.display())).collect();
        command.env("BINDGEN_EXTRA_CLANG_ARGS", words.join(" "));
        command
    }
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or("cargo".into())
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", said(&output));
}

/// Makes a link; one of a former run is replaced.
fn link(to: &Path, at: &Path) {
    let _ = fs::remove_file(at);
    symlink(to, at).expect("a link");
}

#[test]
fn sideway_passes_its_tests() {
    let built = Built::find();
    let arguments = ["test", "--locked", "--offline", "--no-fail-fast", "-p", "tests-of-sideway"];
    let output = Running::start(built.cargo_with_verbs(&arguments)).end();
    let said = said(&output);
    let passed = said.matches(" ... ok\n").count();
    assert!(output.status.success() && passed == 9, "{said}");
}

#[test]
fn a_program_of_rust_ibverbs_sends_to_itself() {
    let built = Built::find();
    let [one, two] = [(); 2].map(|()| address());
    // It takes the second address of the port.
    let options = ["--ip", &format!("{one}/8,{two}/8")];
    let program = built.folder.join("target/debug/loopback-of-ibverbs");
    let output = Running::start(launcher(&options, program.to_str().expect("a path"), &[])).end();
    let said = said(&output);
    assert!(output.status.success() && said.contains("sent") && said.contains("received"), "{said}");
}
