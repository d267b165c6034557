//! The documentation is a reference manual: that of each call of the specification states its
//! errors, blocking, use in callbacks, thread safety and page.

use std::path::{Path, PathBuf};

/// The topics that the documentation of a call must state: the name of a topic, and words of which
/// at least one must occur.
const TOPICS: [(&str, &[&str]); 5] = [
    ("errors", &["Errors"]),
    ("blocking", &["block", "Blocks", "wait"]),
    ("callbacks", &["allback"]),
    ("thread safety", &["hread-safe"]),
    ("its page", &["Page it_", "Pages it_"]),
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn each_call_documents_errors_blocking_callbacks_threads_and_its_page() {
    let mut files = Vec::new();
    // Cargo runs tests in the package's folder, wherever the checkout was moved.
    sources(Path::new("src"), &mut files);
    let (mut calls, mut gaps) = (0, Vec::new());
    for file in files {
        let mut above = String::new();
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            let line = line.trim();
            if line.starts_with("///") || line.starts_with("#[") {
                // Without the slashes, so that words are found across the end of a line.
                above += line.trim_start_matches("///").trim_start();
                above.push(' ');
                continue;
            }
            let is_call = line.starts_with("pub fn ") || line.starts_with("pub unsafe fn ");
            if is_call && above.contains("#[doc(alias = \"it_") {
                calls += 1;
                for (topic, words) in TOPICS {
                    if !words.iter().any(|word| above.contains(word)) {
                        gaps.push(format!("{}: {line}: does not state {topic}", file.display()));
                    }
                }
            }
            above.clear();
        }
    }
    assert!(calls >= 60, "only {calls} calls were found");
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}
