//! The catalogue in tests/catalogue, and the rules that tie every test to it.
//!
//! These are unit tests on the host. A test of the suite names only rows that exist; no two tests
//! have the same name; each row of IT-API, of VIA and of the DAT documents is named by a test, or
//! stands in not-applicable.tsv with a reason, but not both.

use std::collections::{BTreeMap, BTreeSet};
use std::string::String;
use std::vec::Vec;

const DOCUMENTS: [(&str, &str); 7] = [
    ("it-api-1", include_str!("../../catalogue/it-api-1.tsv")),
    ("it-api-2", include_str!("../../catalogue/it-api-2.tsv")),
    ("it-api-3", include_str!("../../catalogue/it-api-3.tsv")),
    ("it-api-4", include_str!("../../catalogue/it-api-4.tsv")),
    ("via", include_str!("../../catalogue/via.tsv")),
    ("dat-ib", include_str!("../../catalogue/dat-ib.tsv")),
    ("dat-srq", include_str!("../../catalogue/dat-srq.tsv")),
];
const NOT_APPLICABLE: &str = include_str!("../../catalogue/not-applicable.tsv");

/// The kind of each row, by its id.
fn rows() -> BTreeMap<&'static str, &'static str> {
    let mut rows = BTreeMap::new();
    for (document, text) in DOCUMENTS {
        for (number, line) in text.lines().enumerate().skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            assert_eq!(columns.len(), 7, "{document} line {}", number + 1);
            assert!(rows.insert(columns[0], columns[3]).is_none(), "{} appears twice", columns[0]);
        }
    }
    rows
}

fn not_applicable() -> BTreeMap<&'static str, &'static str> {
    let mut reasons = BTreeMap::new();
    for line in NOT_APPLICABLE.lines().skip(1) {
        let (id, reason) = line.split_once('\t').unwrap_or_else(|| panic!("no reason: {line}"));
        assert!(!reason.trim().is_empty(), "{id} has no reason");
        assert!(reasons.insert(id, reason).is_none(), "{id} appears twice");
    }
    reasons
}

#[test]
fn every_row_that_a_test_names_exists() {
    let rows = rows();
    let mut unknown = Vec::new();
    for test in crate::all() {
        let mut seen = BTreeSet::new();
        for row in test.rows() {
            if !rows.contains_key(row.as_str()) {
                unknown.push(std::format!("{}: {row}", test.name));
            }
            assert!(seen.insert(row.clone()), "{} names {row} twice", test.name);
        }
    }
    assert!(unknown.is_empty(), "no such rows: {unknown:#?}");
}

#[test]
fn every_test_name_is_unique() {
    let mut names = BTreeSet::new();
    for test in crate::all() {
        assert!(names.insert(test.name), "{} appears twice", test.name);
        let (area, case) = test.name.split_once("::").expect("area::case");
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(area.chars().all(word) && case.chars().all(word), "{}", test.name);
    }
}

#[test]
fn each_row_has_a_test_or_a_reason() {
    let reasoned = not_applicable();
    let named: BTreeSet<String> = crate::all().flat_map(crate::Test::rows).collect();
    let covered = |id: &str| reasoned.contains_key(id) || named.contains(id);
    let ids = DOCUMENTS
        .iter()
        .flat_map(|(_, text)| text.lines().skip(1).filter_map(|line| line.split('\t').next()));
    let open: Vec<&str> = ids.filter(|id| !covered(id)).collect();
    assert!(open.is_empty(), "neither a test nor a reason: {open:#?}");
}

#[test]
fn a_row_is_shown_or_not_applicable_but_not_both() {
    let rows = rows();
    let reasoned = not_applicable();
    let unknown: Vec<_> = reasoned.keys().filter(|id| !rows.contains_key(*id)).collect();
    assert!(unknown.is_empty(), "no such rows: {unknown:?}");
    let both: Vec<String> = crate::all()
        .flat_map(|test| test.rows().map(move |row| (test.name, row)))
        .filter(|(_, row)| reasoned.contains_key(row.as_str()))
        .map(|(name, row)| std::format!("{name}: {row}"))
        .collect();
    assert!(both.is_empty(), "shown and not applicable: {both:#?}");
}
