//! The command line: words separated by blanks, which are `key=value` pairs and plain words. Double
//! quotes group: `"two words"`.

use spin::Once;

static RAW: Once<&'static str> = Once::new();

/// A command line.
#[derive(Clone, Copy, Debug)]
pub struct Args(&'static str);

/// The command line that the kernel was started with.
pub fn args() -> Args {
    Args(RAW.get().copied().unwrap_or(""))
}

pub(crate) fn init(raw: &'static str) {
    RAW.call_once(|| raw);
}

impl Args {
    /// Takes `raw` as a command line.
    pub const fn new(raw: &'static str) -> Args {
        Args(raw)
    }

    /// The text as it was given.
    pub fn raw(self) -> &'static str {
        self.0
    }

    /// The value of the last `key=value`.
    pub fn get(self, key: &str) -> Option<&'static str> {
        self.all(key).last()
    }

    /// The values of all `key=value`, in order.
    pub fn all(self, key: &str) -> impl Iterator<Item = &'static str> {
        self.iter().filter_map(move |word| word.strip_prefix(key)?.strip_prefix('=')).map(unquoted)
    }

    /// The words that are not `key=value`. A word in quotes counts as one of these even with a `=`.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        self.iter().filter(|word| word.starts_with('"') || !word.contains('=')).map(unquoted)
    }

    /// Whether one of [`Args::words`] is `word`.
    pub fn has(self, word: &str) -> bool {
        self.words().any(|w| w == word)
    }

    fn iter(self) -> impl Iterator<Item = &'static str> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            rest = rest.trim_start();
            if rest.is_empty() {
                return None;
            }
            let mut quoted = false;
            let end = rest
                .find(|c: char| {
                    quoted ^= c == '"';
                    c.is_whitespace() && !quoted
                })
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            Some(word)
        })
    }
}

fn unquoted(word: &'static str) -> &'static str {
    word.strip_prefix('"').map_or(word, |word| word.strip_suffix('"').unwrap_or(word))
}
