//! The short form in which a test names the rows of the catalogue that it shows: a page, then its
//! rows, of which several in a row may be written as a range.

use alloc::format;
use alloc::string::String;

/// The rows that an entry names: `it_lmr_query B04 F01-F03` names `it_lmr_query.B04`,
/// `it_lmr_query.F01`, `it_lmr_query.F02` and `it_lmr_query.F03`.
pub(crate) fn expand(entry: &'static str) -> impl Iterator<Item = String> {
    let (page, rows) = entry.split_once(' ').unwrap_or((entry, ""));
    rows.split(' ').flat_map(move |rows| {
        let (first, last) = rows.split_once('-').unwrap_or((rows, rows));
        let kind = first.get(..1).unwrap_or_default();
        let numbers = number(first).zip(number(last)).map(|(first, last)| first..=last);
        let in_a_row = numbers.into_iter().flatten().map(move |number| format!("{page}.{kind}{number:02}"));
        // Rows of return codes have the code's name.
        let named = (number(first).is_none() && !rows.is_empty()).then(|| format!("{page}.{rows}"));
        in_a_row.chain(named)
    })
}

/// The number of a row such as `F01`.
fn number(row: &str) -> Option<u32> {
    row.get(1..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn an_entry_names_the_rows_of_one_page() {
        let rows = |entry| expand(entry).collect::<Vec<_>>();
        assert_eq!(rows("4.2 B04"), ["4.2.B04"]);
        assert_eq!(rows("it_pz_free B01 IT_ERR_PZ_BUSY"), ["it_pz_free.B01", "it_pz_free.IT_ERR_PZ_BUSY"]);
        let several = ["A.it_ep.B09", "A.it_ep.F09", "A.it_ep.F10", "A.it_ep.F11", "A.it_ep.S100"];
        assert_eq!(rows("A.it_ep B09 F09-F11 S100"), several);
    }

    #[test]
    fn the_entries_of_all_tests_have_this_form() {
        for test in crate::all() {
            for entry in test.rows {
                assert!(expand(entry).count() > 0, "{}: {entry}", test.name);
                let written = entry.split(' ').skip(1).count();
                assert!(written > 0 && expand(entry).count() >= written, "{}: {entry}", test.name);
            }
        }
    }
}
