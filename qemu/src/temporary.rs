//! Sockets in the folder for temporary files.

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use links::MAX_SOCKET_PATH;

use crate::error::{Error, Result};

/// The path of this process's socket `name` in the folder for temporary files. It holds in every
/// folder, since other programs get it.
pub(crate) fn socket(name: &str) -> Result<PathBuf> {
    socket_in(&env::temp_dir(), name)
}

fn socket_in(folder: &Path, name: &str) -> Result<PathBuf> {
    let folder = std::path::absolute(folder).map_err(|e| {
        Error::system(format!("find the folder for temporary files, {}", folder.display()), e)
    })?;
    let path = folder.join(format!("ferrovia-{}-{name}", std::process::id()));
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > MAX_SOCKET_PATH {
        return Err(Error::Tool(format!(
            "{}: the path of a socket has {MAX_SOCKET_PATH} bytes at most, and this has {bytes}; set TMPDIR \
             to the path of a folder that is at least {} bytes shorter",
            path.display(),
            bytes - MAX_SOCKET_PATH
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_an_absolute_path() {
        let path = socket_in(Path::new("x, y"), "nic0").expect("a path");
        let here = env::current_dir().expect("a folder");
        assert_eq!(path, here.join("x, y").join(format!("ferrovia-{}-nic0", std::process::id())));
    }

    #[test]
    fn a_path_that_is_too_long_gets_a_line_with_the_variable_and_the_limit() {
        let name = format!("/ferrovia-{}-nic0", std::process::id());
        let folder = |bytes: usize| format!("/{}", "x".repeat(bytes - name.len() - 1));
        assert!(socket_in(Path::new(&folder(107)), "nic0").is_ok());
        let error = socket_in(Path::new(&folder(109)), "nic0").unwrap_err().to_string();
        for words in ["TMPDIR", "107 bytes at most, and this has 109", "at least 2 bytes shorter"] {
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
