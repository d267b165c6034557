//! How much of the specifications the suite covers: the rows of the catalogue, by document and
//! page.
//!
//! tests/catalogue/DOCUMENT.tsv has a row for each requirement; not-applicable.tsv lists the rows
//! that cannot apply, with reasons. A row is shown if tests of this run name it and all of them
//! passed on every machine. Each row of IT-API, of VIA and of the DAT documents has to be shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::launch::print_line;
use crate::options::Options;
use crate::runner::{self, Summary};
use crate::sources;
use crate::suite::Outcome;

/// The file of the rows that cannot apply.
const REASONED: &str = "not-applicable.tsv";
/// The specifications whose rows have to be shown: the prefix of their documents' names, and their
/// closing lines. IT-API's is the very last line.
const COUNTED: [(&str, &str); 4] = [
    ("dat-ib", "conformance dat-ib"),
    ("dat-srq", "conformance dat-srq"),
    ("via", "conformance via"),
    ("it-api-", "conformance"),
];

/// One requirement.
#[derive(Clone, Debug)]
struct Row {
    id: String,
    page: String,
    requirement: String,
}

/// All requirements.
#[derive(Debug, Default)]
struct Catalogue {
    /// By document, in the order of its file.
    documents: BTreeMap<String, Vec<Row>>,
    reasoned: BTreeMap<String, String>,
}

impl Catalogue {
    /// Reads all tables of a folder.
    fn load(folder: &Path) -> Result<Catalogue> {
        let mut catalogue = Catalogue::default();
        let failed = |source| Error::File { path: folder.to_owned(), source };
        let mut files: Vec<_> =
            fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<_>>().map_err(failed)?;
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let path = file.path();
            let name = file.file_name().to_string_lossy().into_owned();
            let Some(document) = name.strip_suffix(".tsv").filter(|_| name != REASONED) else { continue };
            let text = fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
            catalogue.documents.insert(document.to_owned(), parse_rows(&name, &text)?);
        }
        let path = folder.join(REASONED);
        if path.exists() {
            let text = fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
            catalogue.reasoned = parse_reasons(&text)?;
        }
        catalogue.check()?;
        Ok(catalogue)
    }

    /// Checks that each row exists once, and that every row of not-applicable.tsv exists.
    fn check(&self) -> Result<()> {
        let mut ids = BTreeSet::new();
        for row in self.documents.values().flatten() {
            if !ids.insert(row.id.as_str()) {
                return Err(Error::Catalogue(format!("row {} stands twice", row.id)));
            }
        }
        match self.reasoned.keys().find(|id| !ids.contains(id.as_str())) {
            Some(id) => Err(Error::Catalogue(format!("{REASONED} names {id}, which is no row"))),
            None => Ok(()),
        }
    }

    /// The rows that have to be shown and were not.
    fn missing(&self, shown: &BTreeSet<String>) -> Vec<&Row> {
        let counted = |document: &str| COUNTED.iter().any(|(prefix, _)| document.starts_with(prefix));
        let rows = self.documents.iter().filter(|(document, _)| counted(document)).flat_map(|(_, rows)| rows);
        rows.filter(|row| self.applies(row) && !shown.contains(&row.id)).collect()
    }

    fn applies(&self, row: &Row) -> bool {
        !self.reasoned.contains_key(&row.id)
    }

    /// Errors in the rows that the tests of a run name.
    fn objections(&self, summary: &Summary) -> BTreeSet<String> {
        let results = summary.results.iter().map(|ran| &ran.result);
        results.flat_map(|result| self.objections_to(&result.name, &result.rows)).collect()
    }

    /// Errors in the rows that a test names.
    fn objections_to(&self, test: &str, rows: &[String]) -> Vec<String> {
        let known = |id: &String| self.documents.values().flatten().any(|row| row.id == *id);
        rows.iter()
            .filter_map(|id| {
                if !known(id) {
                    Some(format!("test {test} names {id}, which is no row"))
                } else if self.reasoned.contains_key(id) {
                    Some(format!("test {test} names {id}, which {REASONED} says can't apply"))
                } else {
                    None
                }
            })
            .collect()
    }

    /// The report on a set of shown rows.
    fn report(&self, shown: &BTreeSet<String>, missing: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (document, rows) in &self.documents {
            let applying: Vec<&Row> = rows.iter().filter(|row| self.applies(row)).collect();
            let is_shown = |row: &&&Row| shown.contains(&row.id);
            let document_shown = applying.iter().filter(is_shown).count();
            lines.push(format!("{document}: {document_shown} / {}", applying.len()));
            let mut pages: Vec<(&str, usize, usize)> = Vec::new();
            let mut place: BTreeMap<&str, usize> = BTreeMap::new();
            for row in &applying {
                let at = *place.entry(&row.page).or_insert_with(|| {
                    pages.push((&row.page, 0, 0));
                    pages.len() - 1
                });
                pages[at].1 += usize::from(shown.contains(&row.id));
                pages[at].2 += 1;
            }
            for (page, shown, applying) in pages {
                lines.push(format!("  {page:44} {shown:4} / {applying}"));
            }
            if missing {
                for row in applying.iter().filter(|row| !is_shown(row)) {
                    lines.push(format!("  not shown: {}: {}", row.id, row.requirement));
                }
            }
        }
        lines.push(format!("reasoned: {}", self.reasoned.len()));
        lines.extend(self.closing(shown));
        lines
    }

    /// The closing lines.
    fn closing(&self, shown: &BTreeSet<String>) -> Vec<String> {
        let closing = COUNTED.iter().map(|(prefix, label)| {
            let documents = self.documents.iter().filter(|(document, _)| document.starts_with(prefix));
            let applying: Vec<&Row> =
                documents.flat_map(|(_, rows)| rows).filter(|row| self.applies(row)).collect();
            let count = applying.iter().filter(|row| shown.contains(&row.id)).count();
            format!("{label}: shown {count} of {} rows", applying.len())
        });
        closing.collect()
    }
}

/// Reads a table: id, source, page, kind, applies, requirement, observable.
fn parse_rows(file: &str, text: &str) -> Result<Vec<Row>> {
    let wrong = |line: usize, why: &str| Error::Catalogue(format!("{file}:{line}: {why}"));
    let mut lines = text.lines().enumerate();
    let heading: Vec<&str> = lines.next().map(|(_, line)| line.split('\t').collect()).unwrap_or_default();
    let column = |name: &str| {
        heading
            .iter()
            .position(|&h| h == name)
            .ok_or_else(|| wrong(1, &format!("there is no column {name:?}")))
    };
    let (id, page, requirement) = (column("id")?, column("page")?, column("requirement")?);
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(at, line)| {
            let fields: Vec<&str> = line.split('\t').collect();
            let field = |i: usize| fields.get(i).filter(|f| !f.is_empty()).map(|f| (*f).to_owned());
            match (field(id), field(page), field(requirement)) {
                (Some(id), Some(page), Some(requirement)) => Ok(Row { id, page, requirement }),
                _ => Err(wrong(at + 1, "an empty or missing field")),
            }
        })
        .collect()
}

/// Reads the rows that cannot apply: id and reason. A heading, if there is one, begins with `id`.
fn parse_reasons(text: &str) -> Result<BTreeMap<String, String>> {
    let mut reasons = BTreeMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (id, reason) = line.split_once('\t').unwrap_or((line, ""));
        if at == 0 && id == "id" {
            continue;
        }
        let wrong = |why: &str| Error::Catalogue(format!("{REASONED}:{}: {id}: {why}", at + 1));
        if reason.trim().is_empty() {
            return Err(wrong("no reason"));
        }
        if reasons.insert(id.to_owned(), reason.to_owned()).is_some() {
            return Err(wrong("stands twice"));
        }
    }
    Ok(reasons)
}

/// The catalogue of the sources.
fn catalogue() -> Result<Catalogue> {
    Catalogue::load(&sources::root()?.join("tests/catalogue"))
}

/// Runs the suite in the kernel and prints which rows it shows; returns the process's status.
pub fn conformance(options: &Options, missing: bool) -> Result<u8> {
    let catalogue = catalogue()?;
    let summary = runner::run_suite(options, &[], false, |ran| match ran.result.outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed(_) | Outcome::NotShown(_) => runner::print_result(ran),
    })?;
    runner::print_closing(&summary)?;
    for line in catalogue.report(&summary.shown(), missing) {
        print_line(&line)?;
    }
    let complete = complain_about(&catalogue, &summary);
    Ok(if summary.is_success() && complete { 0 } else { 1 })
}

/// Whether a run of all tests shows every row. Prints the closing lines, and all errors.
pub fn is_complete(summary: &Summary) -> Result<bool> {
    let catalogue = catalogue()?;
    for closing in catalogue.closing(&summary.shown()) {
        print_line(&closing)?;
    }
    Ok(complain_about(&catalogue, summary))
}

/// Prints all errors in the rows of a run. Returns whether there are none.
fn complain_about(catalogue: &Catalogue, summary: &Summary) -> bool {
    let (shown, mut objections) = (summary.shown(), catalogue.objections(summary));
    let missing = catalogue.missing(&shown);
    objections.extend(missing.iter().map(|row| format!("{} is not shown: {}", row.id, row.requirement)));
    for objection in &objections {
        complain!("ferrovia: catalogue: {objection}");
    }
    objections.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "id\tsource\tpage\tkind\tapplies\trequirement\tobservable\n";

    fn catalogue() -> (tempfile::TempDir, Result<Catalogue>) {
        let dir = tempfile::tempdir().expect("a folder");
        let row = |id: &str, page: &str| format!("{id}\tL1\t{page}\tbehaviour\tall\tdo {id}\tsee it\n");
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).expect("write");
        write(
            "it-api-1.tsv",
            HEADING.to_owned() + &row("b.B01", "b") + &row("a.B01", "a") + &row("b.B02", "b"),
        );
        write("it-api-2.tsv", HEADING.to_owned() + &row("c.B01", "c") + &row("c.B02", "c"));
        write("dat-ib.tsv", HEADING.to_owned() + &row("d.B01", "d") + &row("d.B02", "d"));
        write("via.tsv", HEADING.to_owned() + &row("via-1.B01", "via-1"));
        let reasons = "id\treason\nc.B02\tthere is no C\nvia-1.B01\tthere is no VIA\nd.B02\tthere is no D\n";
        write(REASONED, reasons.into());
        write("README.md", "not a table".into());
        let catalogue = Catalogue::load(dir.path());
        (dir, catalogue)
    }

    fn shown(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn rows_are_counted_by_document_and_page() {
        let (_dir, catalogue) = catalogue();
        let lines = catalogue.expect("good").report(&shown(&["b.B02", "c.B01", "d.B01"]), true);
        let lines: Vec<String> =
            lines.iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "dat-ib: 1 / 1",
                "d 1 / 1",
                "it-api-1: 1 / 3",
                "b 1 / 2",
                "a 0 / 1",
                "not shown: b.B01: do b.B01",
                "not shown: a.B01: do a.B01",
                "it-api-2: 1 / 1",
                "c 1 / 1",
                "via: 0 / 0",
                "reasoned: 3",
                "conformance dat-ib: shown 1 of 1 rows",
                "conformance dat-srq: shown 0 of 0 rows",
                "conformance via: shown 0 of 0 rows",
                "conformance: shown 2 of 4 rows",
            ]
        );
    }

    #[test]
    fn a_row_that_applies_and_is_not_shown_is_missing() {
        let (_dir, catalogue) = catalogue();
        let catalogue = catalogue.expect("good");
        let missing = |ids: &[&str]| {
            catalogue.missing(&shown(ids)).iter().map(|row| row.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(missing(&["b.B02", "c.B01"]), ["d.B01", "b.B01", "a.B01"]);
        assert!(missing(&["a.B01", "b.B01", "b.B02", "c.B01", "d.B01"]).is_empty());
    }

    #[test]
    fn a_test_can_name_only_rows_that_apply() {
        let (_dir, catalogue) = catalogue();
        let catalogue = catalogue.expect("good");
        let named = ["a.B01", "c.B02", "z.B01"].map(str::to_owned);
        assert_eq!(
            catalogue.objections_to("t", &named),
            [
                "test t names c.B02, which not-applicable.tsv says can't apply",
                "test t names z.B01, which is no row"
            ]
        );
    }

    #[test]
    fn a_catalogue_that_contradicts_itself_is_refused() {
        let (dir, _) = catalogue();
        let refused = |name: &str, text: &str| {
            let path = dir.path().join(name);
            let before = fs::read_to_string(&path).ok();
            fs::write(&path, text).expect("write");
            let error = Catalogue::load(dir.path()).expect_err("it must be refused").to_string();
            match before {
                Some(before) => fs::write(&path, before).expect("restore"),
                None => fs::remove_file(&path).expect("remove"),
            }
            error
        };
        assert!(refused(REASONED, "q.B01\twhy\n").contains("names q.B01"));
        assert!(refused(REASONED, "a.B01\t\n").contains("no reason"));
        assert!(refused(REASONED, "a.B01\n").contains("no reason"));
        assert!(refused(REASONED, "a.B01\tx\na.B01\ty\n").contains("stands twice"));
        assert!(
            refused("x.tsv", &(HEADING.to_owned() + "a.B01\tL\tp\tk\tall\tr\to\n"))
                .contains("a.B01 stands twice")
        );
        assert!(refused("x.tsv", "id\tpage\n").contains("requirement"));
        assert!(refused("x.tsv", &(HEADING.to_owned() + "e.B01\tL\n")).contains("x.tsv:2"));
        assert!(Catalogue::load(dir.path()).is_ok());
    }

    #[test]
    fn the_projects_own_catalogue_is_sound() {
        let catalogue =
            Catalogue::load(&sources::root().expect("the sources").join("tests/catalogue")).expect("sound");
        let count = |prefix: &str| {
            let documents = catalogue.documents.iter().filter(|(document, _)| document.starts_with(prefix));
            documents.map(|(_, rows)| rows.len()).sum::<usize>()
        };
        assert_eq!(COUNTED.map(|(prefix, _)| count(prefix)), [214, 72, 635, 719 + 789 + 864 + 781]);
    }
}
