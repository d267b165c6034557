//! `storage-ctl`: sends one command to a launcher's control socket, and prints the answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::launch::print_line;

/// How long an answer may take. A command waits for the guest, and for those of other clients.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest answer.
const LONGEST: u64 = 8 << 20;

/// Sends the command in `words` (its name, and arguments as `name=value`) and prints the answer.
pub(crate) fn run(socket: &Path, words: &[String]) -> Result<u8> {
    print_line(&format!("{:#}", answer_of(socket, words)?))?;
    Ok(0)
}

/// The answer to the command in `words`, unless it was not carried out.
pub(super) fn answer_of(socket: &Path, words: &[String]) -> Result<Value> {
    let answer = ask(socket, &command(words)?)?;
    let parsed: Value = serde_json::from_str(&answer)
        .map_err(|_| Error::Tool(format!("{}: the answer is no JSON", socket.display())))?;
    if parsed["ok"] == Value::Bool(true) {
        return Ok(parsed);
    }
    Err(Error::Tool(parsed["error"].as_str().unwrap_or("the answer says nothing").to_owned()))
}

/// The line of a command.
fn command(words: &[String]) -> Result<String> {
    let (name, arguments) =
        words.split_first().ok_or_else(|| Error::Usage("no command; `list` shows the target".into()))?;
    let mut object = Map::from_iter([("command".to_owned(), Value::from(name.as_str()))]);
    for argument in arguments {
        if argument == "read-only" {
            object.insert(argument.clone(), true.into());
            continue;
        }
        let (name, value) = argument
            .split_once('=')
            .filter(|(name, _)| *name != "command")
            .ok_or_else(|| Error::Usage(format!("{argument:?} is no argument like nsid=2")))?;
        // The launcher may run in another folder.
        let value = match name {
            "file" => {
                let path = std::path::absolute(value);
                path.map_err(|source| Error::File { path: value.into(), source })?.display().to_string()
            }
            _ => value.to_owned(),
        };
        object.insert(name.to_owned(), value.into());
    }
    Ok(Value::Object(object).to_string())
}

fn ask(socket: &Path, line: &str) -> Result<String> {
    let failed = |source| Error::File { path: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream).take(LONGEST).read_line(&mut answer).map_err(failed)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_an_object() {
        let line = |words: &[&str]| command(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        assert_eq!(line(&["list"]).expect("a command"), r#"{"command":"list"}"#);
        let expected = r#"{"command":"resize","nsid":"2","size":"1G"}"#;
        assert_eq!(line(&["resize", "nsid=2", "size=1G"]).expect("a command"), expected);
        assert_eq!(line(&["add", "file=/a=b"]).expect("a command"), r#"{"command":"add","file":"/a=b"}"#);
        assert!(line(&["add", "file=b"]).expect("a command").contains("\"file\":\"/"), "an absolute path");
        let expected = r#"{"command":"add","file":"/a","read-only":true}"#;
        assert_eq!(line(&["add", "file=/a", "read-only"]).expect("a command"), expected);
        for wrong in [&[][..], &["remove", "2"], &["list", "command=end"]] {
            assert!(matches!(line(wrong), Err(Error::Usage(_))), "{wrong:?}");
        }
    }
}
