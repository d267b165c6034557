//! Finds the places of mutants in the syntax tree.

use std::collections::HashMap;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, BinOp, Block, Expr, ExprBinary, ExprConst, ExprRepeat, ExprUnary, GenericArgument, ImplItemConst,
    ImplItemFn, ItemConst, ItemFn, ItemStatic, Pat, TraitItemConst, TraitItemFn, Type, Variant,
};

/// A mutant of a file.
pub struct Mutant {
    pub number: u32,
    /// What kind of code it changes, in the words of cargo-mutants.
    pub genre: String,
    pub replacement: String,
    /// Line and column, both from 1, of the code that is replaced.
    pub start: (usize, usize),
    pub end: (usize, usize),
}

/// Offsets into the text: from, to.
pub type Range = (usize, usize);

/// An alternative: the mutant's number, and what stands in the place of the original.
pub type Alternative = (u32, String);

/// A place in the text with mutants.
pub struct Site {
    pub range: Range,
    pub kind: Kind,
}

/// What the mutants of a place change.
pub enum Kind {
    /// A body returns something at once.
    Body(Vec<Alternative>),
    /// `left && right`, or `left || right`.
    Lazy { left: Range, right: Range, is_and: bool, others: Vec<Alternative> },
    /// A comparison, whose operands stay where they are.
    Comparison { left: Range, right: Range, operator: String, others: Vec<Alternative> },
    /// Another operation of two operands.
    Operation { left: Range, right: Range, operator: String, others: Vec<Alternative> },
    /// `left += right` and its like.
    Assignment { left: Range, right: Range, operator: String, others: Vec<Alternative> },
    /// An operator in front of an operand is left out.
    Prefix { operator: String, operand: Range, number: u32 },
    /// An arm of a match is left out, or its guard is always true or always false.
    Arm { guard: Option<Range>, deleted: Option<u32>, always: Option<u32>, never: Option<u32> },
}

impl Site {
    /// The numbers of its mutants.
    pub fn numbers(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Body(others)
            | Kind::Lazy { others, .. }
            | Kind::Comparison { others, .. }
            | Kind::Operation { others, .. }
            | Kind::Assignment { others, .. } => others.iter().map(|other| other.0).collect(),
            Kind::Prefix { number, .. } => vec![*number],
            Kind::Arm { deleted, always, never, .. } => {
                [deleted, always, never].into_iter().flatten().copied().collect()
            }
        }
    }
}

/// The sites of a file, in the order of the text; of two that begin at the same place the longer
/// one comes first.
pub fn find<'a>(text: &'a str, mutants: impl Iterator<Item = &'a Mutant>) -> syn::Result<Vec<Site>> {
    let file = syn::parse_file(text)?;
    let mut lines = vec![0];
    lines.extend(text.match_indices('\n').map(|(at, _)| at + 1));
    let mut by_start: HashMap<_, Vec<&Mutant>> = HashMap::new();
    for mutant in mutants {
        by_start.entry(mutant.start).or_default().push(mutant);
    }
    let mut finder = Finder { text, lines, by_start, constant: 0, sites: Vec::new() };
    finder.visit_file(&file);
    let mut sites = finder.sites;
    sites.sort_by_key(|site| (site.range.0, std::cmp::Reverse(site.range.1)));
    Ok(sites)
}

struct Finder<'a> {
    text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
    by_start: HashMap<(usize, usize), Vec<&'a Mutant>>,
    /// How many constant contexts are around the place: the switch is no constant.
    constant: usize,
    sites: Vec<Site>,
}

impl<'a> Finder<'a> {
    fn offset(&self, place: LineColumn) -> usize {
        let begin = self.lines[place.line - 1];
        let rest = &self.text[begin..];
        begin + rest.char_indices().nth(place.column).map_or(rest.len(), |(at, _)| at)
    }

    fn range(&self, span: Span) -> Range {
        (self.offset(span.start()), self.offset(span.end()))
    }

    /// The mutants of a genre that begin where the span does.
    fn beginning(&self, span: Span, genre: &str) -> Vec<&'a Mutant> {
        let LineColumn { line, column } = span.start();
        let all = self.by_start.get(&(line, column + 1)).into_iter().flatten();
        all.copied().filter(|mutant| mutant.genre == genre).collect()
    }

    /// The mutants of a genre that replace what the span covers.
    fn covering(&self, span: Span, genre: &str) -> Vec<&'a Mutant> {
        let LineColumn { line, column } = span.end();
        let mut all = self.beginning(span, genre);
        all.retain(|mutant| mutant.end == (line, column + 1));
        all
    }

    /// Looks at something that is constant if `constant` says so.
    fn look_at(&mut self, constant: bool, look: impl FnOnce(&mut Self)) {
        self.constant += usize::from(constant);
        look(self);
        self.constant -= usize::from(constant);
    }

    fn constant(&mut self, look: impl FnOnce(&mut Self)) {
        self.look_at(true, look);
    }

    fn add(&mut self, range: Range, kind: Kind) {
        if self.constant == 0 {
            self.sites.push(Site { range, kind });
        }
    }

    /// Looks for mutants of a whole body.
    fn body(&mut self, block: &Block) {
        let Some(first) = block.stmts.first() else { return };
        let others = alternatives(&self.beginning(first.span(), "FnValue"));
        if !others.is_empty() {
            let begin = self.offset(block.brace_token.span.open().end());
            self.add((begin, begin), Kind::Body(others));
        }
    }
}

fn alternatives(mutants: &[&Mutant]) -> Vec<Alternative> {
    mutants.iter().map(|mutant| (mutant.number, mutant.replacement.clone())).collect()
}

/// Whether a condition declares variables, whose scope a change of its form would end.
fn declares(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => declares(&binary.left) || declares(&binary.right),
        Expr::Paren(paren) => declares(&paren.expr),
        _ => false,
    }
}

fn is_comparison(operator: &str) -> bool {
    ["==", "!=", "<", "<=", ">", ">="].contains(&operator)
}

fn is_assignment(operator: &str) -> bool {
    operator.ends_with('=') && !is_comparison(operator)
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.look_at(item.sig.constness.is_some(), |finder| {
            finder.body(&item.block);
            visit::visit_item_fn(finder, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.look_at(item.sig.constness.is_some(), |finder| {
            finder.body(&item.block);
            visit::visit_impl_item_fn(finder, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.constant(|finder| visit::visit_item_const(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.constant(|finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast TraitItemConst) {
        self.constant(|finder| visit::visit_trait_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.constant(|finder| visit::visit_item_static(finder, item));
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.constant(|finder| visit::visit_variant(finder, variant));
    }

    fn visit_type(&mut self, kind: &'ast Type) {
        self.constant(|finder| visit::visit_type(finder, kind));
    }

    fn visit_generic_argument(&mut self, argument: &'ast GenericArgument) {
        self.constant(|finder| visit::visit_generic_argument(finder, argument));
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.constant(|finder| visit::visit_pat(finder, pattern));
    }

    fn visit_expr_const(&mut self, expression: &'ast ExprConst) {
        self.constant(|finder| visit::visit_expr_const(finder, expression));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.constant(|finder| finder.visit_expr(&repeat.len));
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let others = alternatives(&self.covering(binary.op.span(), "BinaryOperator"));
        let (left, right) = (self.range(binary.left.span()), self.range(binary.right.span()));
        let at = self.range(binary.op.span());
        let operator = self.text[at.0..at.1].to_owned();
        let is_lazy = matches!(binary.op, BinOp::And(_) | BinOp::Or(_));
        let is_plain = !is_lazy || !declares(&binary.left) && !declares(&binary.right);
        if !others.is_empty() && is_plain {
            let kind = match binary.op {
                BinOp::And(_) | BinOp::Or(_) => Kind::Lazy { left, right, is_and: operator == "&&", others },
                _ if is_assignment(&operator) => Kind::Assignment { left, right, operator, others },
                _ if is_comparison(&operator) => Kind::Comparison { left, right, operator, others },
                _ => Kind::Operation { left, right, operator, others },
            };
            self.add((left.0, right.1), kind);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        let mutants = self.covering(unary.op.span(), "UnaryOperator");
        if let Some(mutant) = mutants.first()
            && !declares(&unary.expr)
        {
            let (at, operand) = (self.range(unary.op.span()), self.range(unary.expr.span()));
            let operator = self.text[at.0..at.1].to_owned();
            self.add((at.0, operand.1), Kind::Prefix { operator, operand, number: mutant.number });
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let deleted = self.beginning(arm.span(), "MatchArm").first().map(|mutant| mutant.number);
        let (mut always, mut never) = (None, None);
        let mut is_simple = true;
        let guard = arm.guard.as_ref().map(|(_, guard)| {
            is_simple = !declares(guard);
            for mutant in self.covering(guard.span(), "MatchArmGuard") {
                let kept = if mutant.replacement.contains("true") { &mut always } else { &mut never };
                *kept = Some(mutant.number);
            }
            self.range(guard.span())
        });
        if is_simple && (deleted.is_some() || always.is_some() || never.is_some()) {
            let behind = self.range(arm.pat.span()).1;
            let range = guard.unwrap_or((behind, behind));
            self.add(range, Kind::Arm { guard, deleted, always, never });
        }
        visit::visit_arm(self, arm);
    }
}
