//! Figures: how the image writes them, and how the launcher shows them.

use std::fmt;

/// One measured figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub p99: Option<f64>,
    pub unit: String,
    pub baseline: Option<f64>,
    /// The wanted ratio to the baseline.
    pub wanted: Option<Wanted>,
}

/// A bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Wanted {
    /// Reads what `Display` writes.
    fn parse(text: &str) -> Option<Wanted> {
        let (relation, bound) = text.split_once(' ')?;
        let bound = bound.parse::<f64>().ok().filter(|bound| bound.is_finite())?;
        match relation {
            ">=" => Some(Wanted::AtLeast(bound)),
            "<=" => Some(Wanted::AtMost(bound)),
            _ => None,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::AtLeast(bound) => write!(f, ">= {bound}"),
            Wanted::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

impl Figure {
    /// A figure without a baseline.
    pub fn new(name: impl Into<String>, value: f64, unit: &str) -> Figure {
        let (name, unit) = (name.into(), unit.to_owned());
        Figure { name, value, p99: None, unit, baseline: None, wanted: None }
    }

    /// A figure with a baseline, and the wanted ratio to it.
    pub fn against(self, baseline: f64, wanted: Option<Wanted>) -> Figure {
        Figure { baseline: Some(baseline), wanted, ..self }
    }

    /// Reads the rest of a line after `@bench `.
    pub fn parse(text: &str) -> Option<Figure> {
        let mut fields = text.split('|').map(str::trim);
        let number = |field: &str| field.parse::<f64>().ok().filter(|x| x.is_finite());
        let optional = |field: &str| if field == "-" { Some(None) } else { number(field).map(Some) };
        let figure = Figure {
            name: fields.next().filter(|name| !name.is_empty())?.to_owned(),
            value: number(fields.next()?)?,
            p99: optional(fields.next()?)?,
            unit: fields.next()?.to_owned(),
            baseline: optional(fields.next()?)?,
            wanted: match fields.next() {
                Some(wanted) => Some(Wanted::parse(wanted)?),
                None => None,
            },
        };
        fields.next().is_none().then_some(figure)
    }

    pub fn ratio(&self) -> Option<f64> {
        self.baseline.filter(|&baseline| baseline != 0.0).map(|baseline| self.value / baseline)
    }
}

/// A number with three significant digits, or with all digits before the point if those are more.
fn digits(value: f64) -> String {
    let whole = value.abs().log10().floor();
    let decimals = if whole.is_finite() && whole < 2.0 { (2.0 - whole) as usize } else { 0 };
    format!("{value:.*}", decimals.min(6))
}

pub fn table(figures: &[Figure]) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), digits);
    let heading = ["figure", "median", "p99", "unit", "baseline", "ratio", "wanted"].map(str::to_owned);
    let rows = figures.iter().map(|f| {
        [
            f.name.clone(),
            digits(f.value),
            optional(f.p99),
            f.unit.clone(),
            optional(f.baseline),
            optional(f.ratio()),
            f.wanted.map_or_else(|| "-".to_owned(), |wanted| wanted.to_string()),
        ]
    });
    let rows: Vec<[String; 7]> = std::iter::once(heading).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [w0, w1, w2, w3, w4, w5, w6] = [0, 1, 2, 3, 4, 5, 6].map(width);
    let line = |[name, value, p99, unit, baseline, ratio, wanted]: &[String; 7]| {
        format!(
            "{name:w0$}  {value:>w1$}  {p99:>w2$}  {unit:w3$}  {baseline:>w4$}  {ratio:>w5$}  {wanted:>w6$}"
        )
    };
    rows.iter().map(line).collect()
}

/// A list of {name, value, unit, baseline, ratio, wanted}; a p99 is an entry of its own.
pub fn to_json(figures: &[Figure]) -> String {
    let mut entries = Vec::new();
    for figure in figures {
        let Figure { name, value, p99, unit, baseline, wanted } = figure;
        let (ratio, wanted) = (figure.ratio(), wanted.map(|wanted| wanted.to_string()));
        entries.push(serde_json::json!({
            "name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio,
            "wanted": wanted,
        }));
        entries.extend(p99.map(|p99| {
            let (name, none) = (format!("{name}, p99"), None::<f64>);
            serde_json::json!({
                "name": name, "value": p99, "unit": unit, "baseline": none, "ratio": none, "wanted": none,
            })
        }));
    }
    format!("{:#}\n", serde_json::Value::from(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_or_refused() {
        let figure = Figure::parse("64-byte write, polled|0.5|0.75|us|0.25").expect("a figure");
        assert_eq!(figure.name, "64-byte write, polled");
        assert_eq!((figure.value, figure.p99, figure.baseline), (0.5, Some(0.75), Some(0.25)));
        assert_eq!((figure.ratio(), figure.wanted), (Some(2.0), None));
        let wanted = |text| Figure::parse(text).and_then(|figure| figure.wanted);
        assert_eq!(wanted("a|1|2|us|3|<= 5"), Some(Wanted::AtMost(5.0)));
        assert_eq!(wanted("a|1|-|us|3|>= 0.8"), Some(Wanted::AtLeast(0.8)));
        assert_eq!(Figure::parse("bare|0.5|-|us|-").and_then(|f| f.ratio()), None);
        assert_eq!(Figure::parse("zero|0.5|-|us|0").expect("a figure").ratio(), None);
        for wrong in [
            "",
            "a",
            "a|1|2|us",
            "a|1|2|us|3|4",
            "a|1|2|us|3|== 4",
            "a|1|2|us|3|<= x",
            "a|1|2|us|3|<= 4|",
            "a|x|-|us|-",
            "|1|-|us|-",
            "a|NaN|-|us|-",
            "a|1|-|us|inf",
        ] {
            assert_eq!(Figure::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_the_json_complete() {
        let figures = [
            Figure { p99: Some(0.38), ..Figure::new("bare", 0.1512, "us") },
            Figure::new("write \"1\"", 12345.6, "MB/s").against(10_000.0, Some(Wanted::AtLeast(1.25))),
            Figure::new("cpu", 0.25, "us").against(1.0, Some(Wanted::AtMost(0.5))),
        ];
        assert_eq!(
            table(&figures),
            [
                "figure     median    p99  unit  baseline  ratio   wanted",
                "bare        0.151  0.380  us           -      -        -",
                "write \"1\"   12346      -  MB/s     10000   1.23  >= 1.25",
                "cpu         0.250      -  us        1.00  0.250   <= 0.5",
            ]
        );
        let json: serde_json::Value = serde_json::from_str(&to_json(&figures)).expect("it is JSON");
        assert_eq!(
            json,
            serde_json::json!([
                {
                    "name": "bare", "value": 0.1512, "unit": "us", "baseline": null, "ratio": null,
                    "wanted": null,
                },
                {
                    "name": "bare, p99", "value": 0.38, "unit": "us", "baseline": null, "ratio": null,
                    "wanted": null,
                },
                {
                    "name": "write \"1\"", "value": 12345.6, "unit": "MB/s",
                    "baseline": 10000.0, "ratio": 1.23456, "wanted": ">= 1.25",
                },
                {
                    "name": "cpu", "value": 0.25, "unit": "us", "baseline": 1.0, "ratio": 0.25,
                    "wanted": "<= 0.5",
                },
            ])
        );
    }
}
