//! Writes a file anew, with its mutants behind switches.

use super::sites::{Alternative, Kind, Range, Site};

/// The text with all sites, which are in the order of [`super::sites::find`], rewritten.
pub fn rewrite(text: &str, sites: Vec<Site>) -> String {
    Writer { text, sites }.part((0, text.len()), None)
}

struct Writer<'a> {
    text: &'a str,
    sites: Vec<Site>,
}

/// What stands in front of a mutant's number in its condition.
pub const SWITCH: &str = "::mutant_switch::on(";

/// The condition that a mutant is in force.
fn on(number: u32) -> String {
    format!("{SWITCH}{number})")
}

/// `if … { … } else` for each alternative.
fn choices(others: &[Alternative], each: impl Fn(&str) -> String) -> String {
    let choice = |(number, other): &Alternative| format!("if {} {{ {} }} else ", on(*number), each(other));
    others.iter().map(choice).collect()
}

impl Writer<'_> {
    /// A part of the text. `inside` is the site whose part it is.
    fn part(&self, (from, to): Range, inside: Option<usize>) -> String {
        let mut written = String::new();
        let mut at = from;
        let first = self.sites.partition_point(|site| site.range.0 < from);
        for (index, site) in self.sites.iter().enumerate().skip(first) {
            let (begin, end) = site.range;
            if begin > to {
                break;
            }
            // Sites in a site that was written are written already; a site around the part, or the
            // one whose part it is, is being written.
            if end > to || begin < at || inside.is_some_and(|inside| index <= inside) {
                continue;
            }
            written.push_str(&self.text[at..begin]);
            written.push_str(&self.site(index));
            at = end;
        }
        written.push_str(&self.text[at..to]);
        written
    }

    fn site(&self, index: usize) -> String {
        let part = |range: &Range| self.part(*range, Some(index));
        match &self.sites[index].kind {
            Kind::Body(others) => {
                let leave =
                    |(number, value): &Alternative| format!(" if {} {{ return {value}; }} ", on(*number));
                others.iter().map(leave).collect()
            }
            // The left side in a statement of its own, whose temporary values (guards of locks) end
            // before the right side, as those of an operand of `&&` do.
            Kind::Lazy { left, right, is_and, others } => {
                let (left, right) = (part(left), part(right));
                let mut goes_on = if *is_and { "left".to_owned() } else { "!left".to_owned() };
                let mut choice = String::new();
                for (number, other) in others {
                    if other == "&&" || other == "||" {
                        goes_on = format!("({} ^ {goes_on})", on(*number));
                    } else {
                        choice += &format!("if {} {{ left {other} ({right}) }} else ", on(*number));
                    }
                }
                format!(
                    "({{ let left: bool = {left}; {choice} if {goes_on} {{ {right} }} else {{ left }} }})"
                )
            }
            // By reference, since a comparison does not move its operands.
            Kind::Comparison { left, right, operator, others } => {
                let choice = choices(others, |other| format!("*left {other} *right"));
                let (left, right) = (part(left), part(right));
                format!(
                    "(match (&({left}), &({right})) {{ \
                     (left, right) => {{ {choice} {{ *left {operator} *right }} }} }})"
                )
            }
            Kind::Operation { left, right, operator, others } => {
                let choice = choices(others, |other| format!("left {other} right"));
                format!(
                    "(match (({}), ({})) {{ (left, right) => {{ {choice} {{ left {operator} right }} }} }})",
                    part(left),
                    part(right)
                )
            }
            Kind::Assignment { left, right, operator, others } => {
                let (left, right) = (part(left), part(right));
                let choice = choices(others, |other| format!("{left} {other} {right};"));
                format!("{{ {choice} {{ {left} {operator} {right}; }} }}")
            }
            Kind::Prefix { operator, operand, number } => {
                let operand = part(operand);
                format!("(if {} {{ {operand} }} else {{ {operator}{operand} }})", on(*number))
            }
            Kind::Arm { guard: None, deleted, .. } => {
                deleted.map_or(String::new(), |number| format!(" if !{}", on(number)))
            }
            Kind::Arm { guard: Some(guard), deleted, always, never } => {
                let mut condition = format!("({})", part(guard));
                if let Some(number) = never {
                    condition = format!("(!{} && {condition})", on(*number));
                }
                if let Some(number) = always {
                    condition = format!("({} || {condition})", on(*number));
                }
                if let Some(number) = deleted {
                    condition = format!("(!{} && {condition})", on(*number));
                }
                condition
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sites::{self, Mutant};
    use super::rewrite;

    /// The text with mutants: the genre, the text that is replaced (its first occurrence), and what
    /// replaces it.
    fn with(text: &str, mutants: &[(&str, &str, &str)]) -> String {
        let place = |at: usize| {
            let line = text[..at].matches('\n').count() + 1;
            let column = text[..at].rsplit('\n').next().unwrap_or("").chars().count() + 1;
            (line, column)
        };
        let mutant = |(number, &(genre, from, to)): (u32, &(&str, &str, &str))| {
            let at = text.find(from).expect("the text is there");
            Mutant {
                number,
                genre: genre.into(),
                replacement: to.into(),
                start: place(at),
                end: place(at + from.len()),
            }
        };
        let mutants: Vec<Mutant> = (0..).zip(mutants).map(mutant).collect();
        let sites = sites::find(text, mutants.iter()).expect("it is Rust");
        assert_eq!(sites.iter().flat_map(sites::Site::numbers).count(), mutants.len());
        let written = rewrite(text, sites);
        assert!(syn::parse_file(&written).is_ok(), "{written}");
        written
    }

    #[test]
    fn text_without_mutants_stays_as_it_is() {
        let text = "fn f(a: u8) -> bool {\n    // ä\n    a > 1 && a < 4\n}\n";
        assert_eq!(with(text, &[]), text);
    }

    #[test]
    fn operators_are_switched_one_inside_the_other() {
        let text = "fn f(a: u8) -> bool { 'ä'; a + 1 < 2 }";
        let changed = with(text, &[("BinaryOperator", "<", ">"), ("BinaryOperator", "+", "*")]);
        assert_eq!(
            changed,
            "fn f(a: u8) -> bool { 'ä'; \
             (match (&((match ((a), (1)) { (left, right) => { \
             if ::mutant_switch::on(1) { left * right } else  { left + right } } })), &(2)) \
             { (left, right) => { \
             if ::mutant_switch::on(0) { *left > *right } else  { *left < *right } } }) }"
        );
    }

    #[test]
    fn the_right_side_of_a_lazy_operator_stays_lazy() {
        let changed = with("fn f() -> bool { a() || b() }", &[("BinaryOperator", "||", "&&")]);
        assert_eq!(
            changed,
            "fn f() -> bool { ({ let left: bool = a();  \
             if (::mutant_switch::on(0) ^ !left) { b() } else { left } }) }"
        );
    }

    #[test]
    fn bodies_arms_guards_and_prefixes_are_switched() {
        let text = "fn f(a: u8) -> u8 { match a { 0 => 1, 1 if !b() => 2, _ => 3 } }";
        let changed = with(
            text,
            &[
                ("FnValue", "match a { 0 => 1, 1 if !b() => 2, _ => 3 }", "7"),
                ("MatchArm", "0 => 1,", ""),
                ("MatchArmGuard", "!b()", "true"),
                ("UnaryOperator", "!", ""),
            ],
        );
        assert_eq!(
            changed,
            "fn f(a: u8) -> u8 { if ::mutant_switch::on(0) { return 7; }  \
             match a { 0 if !::mutant_switch::on(1) => 1, \
             1 if (::mutant_switch::on(2) || ((if ::mutant_switch::on(3) { b() } else { !b() }))) => 2, \
             _ => 3 } }"
        );
    }

    #[test]
    fn constants_and_conditions_with_variables_have_no_switch() {
        let text = "const fn f(a: u8) -> u8 { a + 1 } const A: u8 = 2 - 1; \
                    fn g() -> bool { if let Some(a) = h() && a { true } else { false } }";
        let mutants = ["+", "-", "&&"].map(|operator| {
            let at = text.find(operator).expect("it is there") + 1;
            Mutant {
                number: 0,
                genre: "BinaryOperator".into(),
                replacement: "*".into(),
                start: (1, at),
                end: (1, at + operator.len()),
            }
        });
        assert!(sites::find(text, mutants.iter()).expect("it is Rust").is_empty());
    }
}
