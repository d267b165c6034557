//! Samples. The process that counts prints the name of each sample, and Callgrind writes a file for
//! each, in the same order.

use std::collections::BTreeMap;

use crate::counted;

/// The role of a sample in its row. The row's value is the lowest `Count`, minus the lowest `Less`,
/// divided by the lowest `Against`, each for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Count,
    Less,
    Against,
}

const ROLES: [(Role, &str); 3] = [(Role::Count, "count"), (Role::Less, "less"), (Role::Against, "against")];

/// Where a group records its samples.
#[derive(Default)]
pub struct Recorder {
    kept: Option<Samples>,
}

impl Recorder {
    /// A recorder for values that the group measures without Callgrind.
    pub fn kept() -> Recorder {
        Recorder { kept: Some(Samples::default()) }
    }

    pub fn into_samples(self) -> Samples {
        self.kept.unwrap_or_default()
    }

    /// Counts `f`, which does `operations` operations of the row `key`.
    pub fn count<R>(&mut self, key: &str, operations: usize, f: impl FnOnce() -> R) -> R {
        self.count_as(Role::Count, key, operations, f)
    }

    /// As [`Recorder::count`], for a sample with another role.
    pub fn count_as<R>(&mut self, role: Role, key: &str, operations: usize, f: impl FnOnce() -> R) -> R {
        let name = ROLES.iter().find(|(known, _)| *known == role).map_or("count", |(_, name)| name);
        println!("{key} {name} {operations}");
        counted(f)
    }

    /// Records a value that the group measured.
    pub fn value(&mut self, key: &str, value: f64) {
        if let Some(samples) = &mut self.kept {
            samples.add(key, Role::Count, value);
        }
    }
}

/// The lowest sample of each row and role.
#[derive(Default)]
pub struct Samples(BTreeMap<(String, Role), f64>);

impl Samples {
    fn add(&mut self, key: &str, role: Role, value: f64) {
        let least = self.0.entry((key.to_owned(), role)).or_insert(value);
        *least = least.min(value);
    }

    /// Adds a sample, given the line that [`Recorder::count_as`] printed for it.
    pub fn add_line(&mut self, line: &str, instructions: u64) -> Option<()> {
        let mut words = line.split(' ');
        let (key, name) = (words.next()?, words.next()?);
        let operations: u32 = words.next()?.parse().ok()?;
        let (role, _) = ROLES.iter().find(|(_, known)| *known == name)?;
        self.add(key, *role, instructions as f64 / f64::from(operations));
        Some(())
    }

    /// The value of a row.
    pub fn value(&self, key: &str) -> Option<f64> {
        let of = |role| self.0.get(&(key.to_owned(), role)).copied();
        Some((of(Role::Count)? - of(Role::Less).unwrap_or(0.0)) / of(Role::Against).unwrap_or(1.0))
    }
}
