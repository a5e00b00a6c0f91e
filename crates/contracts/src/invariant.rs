//! Invariants: a path and the operators that must hold there.
//!
//! A test has three results. "Undecidable" (nothing there, or a value the operator does not apply to) counts as failed
//! where something is allowed by it, and as holding where somebody would be asked because of it.

use crate::decimal::Decimal;
use crate::decode::{self, Fields};
use crate::finding::{Code, Findings, Place, shown};
use crate::path::Path;
use crate::pattern::{Pattern, Steps};
use crate::value::{Number, Type, Value};
use crate::yaml::{Kind, Node};

/// One entry of a list of invariants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invariant {
    path: Path,
    when_present: bool,
    operators: Vec<Operator>,
    at: Place,
}

/// What must hold at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// The path leads to a value, or does not.
    Exists(bool),
    /// The value has a JSON type.
    Type(Type),
    /// The value equals another.
    Equals(Value),
    /// The value equals one of several.
    OneOf(Vec<Value>),
    /// The value is a text in which the pattern is found.
    Regex(Pattern),
    /// The value is a number at least as large.
    Gte(Decimal),
    /// The value is a number at most as large.
    Lte(Decimal),
    /// The text or list has at least this length.
    LengthGte(u64),
    /// The text or list has at most this length.
    LengthLte(u64),
    /// The text contains a text, or the list an element.
    Contains(Value),
    /// The value equals what is bound to a slot.
    Ref(String),
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nothing there, or a value the operator does not apply to.
    Undecidable,
}

impl Truth {
    /// False if one is false, else undecidable if one is, else true.
    pub fn all(truths: impl Iterator<Item = Truth>) -> Truth {
        let mut all = Truth::True;
        for truth in truths {
            match truth {
                Truth::True => {}
                Truth::False => return Truth::False,
                Truth::Undecidable => all = Truth::Undecidable,
            }
        }
        all
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Truth::True } else { Truth::False }
    }
}

/// Which operators a list accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowedOperators {
    /// All of them.
    All,
    /// All but `ref`.
    NoRef,
    /// `equals`, `exists`, `gte` and `lte`.
    Output,
}

/// Most invariants in one list.
pub(crate) const LIST_LEN_MAX: usize = 256;

impl Invariant {
    /// Returns where the invariant looks.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what must hold there.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// Tests all operators but `ref`.
    pub fn test(&self, root: &Value, steps: &Steps) -> Truth {
        let found = self.path.find(root);
        if self.passes_as_absent(found) {
            return Truth::True;
        }
        let operators = self.operators.iter();
        Truth::all(operators.map(|operator| operator.test(found, steps)))
    }

    /// Returns the operators that do not hold, without `ref`, and what was found.
    pub(crate) fn failures<'a>(
        &'a self,
        root: &'a Value,
        steps: &'a Steps,
    ) -> impl Iterator<Item = (&'a Operator, Option<&'a Value>)> {
        let found = self.path.find(root);
        let absent = self.passes_as_absent(found);
        let operators = self
            .operators
            .iter()
            .filter(move |operator| !absent && operator.test(found, steps) != Truth::True);
        operators.map(move |operator| (operator, found))
    }

    /// Returns the slot that the value must equal, if the invariant has one and applies to this root.
    pub(crate) fn slot<'a>(&'a self, root: &'a Value) -> Option<(&'a str, Option<&'a Value>)> {
        let found = self.path.find(root);
        if self.passes_as_absent(found) {
            return None;
        }
        self.slot_name().map(|slot| (slot, found))
    }

    /// Returns the name of the slot that the invariant refers to.
    pub(crate) fn slot_name(&self) -> Option<&str> {
        self.operators.iter().find_map(|operator| match operator {
            Operator::Ref(slot) => Some(slot.as_str()),
            Operator::Exists(_)
            | Operator::Type(_)
            | Operator::Equals(_)
            | Operator::OneOf(_)
            | Operator::Regex(_)
            | Operator::Gte(_)
            | Operator::Lte(_)
            | Operator::LengthGte(_)
            | Operator::LengthLte(_)
            | Operator::Contains(_) => None,
        })
    }

    /// Returns that name, and where the invariant stands.
    pub(crate) fn slot_used(&self) -> Option<(&str, Place)> {
        self.slot_name().map(|slot| (slot, self.at))
    }

    /// Says whether a missing path makes the entry hold.
    pub(crate) fn holds_when_absent(&self) -> bool {
        self.when_present
    }

    fn passes_as_absent(&self, found: Option<&Value>) -> bool {
        self.when_present && found.is_none()
    }

    /// Reads a list of invariants.
    pub(crate) fn list(
        node: Option<&Node>,
        accepts: AllowedOperators,
        findings: &mut Findings,
    ) -> Vec<Invariant> {
        decode::list_of(node, LIST_LEN_MAX, findings, |item, findings| {
            Self::decode(item, accepts, findings)
        })
    }

    fn decode(node: &Node, accepts: AllowedOperators, findings: &mut Findings) -> Option<Self> {
        let mut fields = Fields::of(node, findings)?;
        let path = fields.required("path", findings);
        let path = path.and_then(|node| decode::path(node, findings));
        let mut when_present = false;
        if accepts != AllowedOperators::Output {
            let flag = fields.optional("when_present");
            when_present = flag.and_then(|node| decode::boolean(node, findings)) == Some(true);
        }
        let mut operators = Vec::new();
        let mut named = 0;
        for name in NAMES {
            if !accepts.takes(name) {
                continue;
            }
            if let Some(operand) = fields.optional(name) {
                named += 1;
                operators.extend(Operator::decode(name, operand, findings));
            }
        }
        let at = fields.at();
        fields.finish(findings);
        if named == 0 {
            let message = "an invariant needs an operator beside `path`";
            findings.error(at, Code::MissingKey, message);
        }
        check_satisfiable(&operators, at, findings);
        Some(Self {
            path: path?,
            when_present,
            operators,
            at,
        })
    }
}

const NAMES: [&str; 11] = [
    "exists",
    "type",
    "equals",
    "one_of",
    "regex",
    "gte",
    "lte",
    "length_gte",
    "length_lte",
    "contains",
    "ref",
];

impl AllowedOperators {
    fn takes(self, name: &str) -> bool {
        match self {
            AllowedOperators::All => true,
            AllowedOperators::NoRef => name != "ref",
            AllowedOperators::Output => matches!(name, "equals" | "exists" | "gte" | "lte"),
        }
    }
}

fn check_satisfiable(operators: &[Operator], at: Place, findings: &mut Findings) {
    let (mut gte, mut lte, mut longer, mut shorter) = (None, None, None, None);
    for operator in operators {
        match operator {
            Operator::Gte(bound) => gte = Some(bound),
            Operator::Lte(bound) => lte = Some(bound),
            Operator::LengthGte(bound) => longer = Some(bound),
            Operator::LengthLte(bound) => shorter = Some(bound),
            Operator::Exists(false) if operators.len() > 1 => {
                let message = "`exists: false` cannot stand beside an operator that needs a value";
                findings.error(at, Code::Contradiction, message);
            }
            Operator::Exists(_)
            | Operator::Type(_)
            | Operator::Equals(_)
            | Operator::OneOf(_)
            | Operator::Regex(_)
            | Operator::Contains(_)
            | Operator::Ref(_) => {}
        }
    }
    if gte.zip(lte).is_some_and(|(gte, lte)| gte > lte) {
        findings.error(
            at,
            Code::Contradiction,
            "`gte` is above `lte`: nothing satisfies it",
        );
    }
    if longer
        .zip(shorter)
        .is_some_and(|(longer, shorter)| longer > shorter)
    {
        let message = "`length_gte` is above `length_lte`: nothing satisfies it";
        findings.error(at, Code::Contradiction, message);
    }
}

impl Operator {
    /// Returns the operator's name in files.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::Exists(_) => "exists",
            Operator::Type(_) => "type",
            Operator::Equals(_) => "equals",
            Operator::OneOf(_) => "one_of",
            Operator::Regex(_) => "regex",
            Operator::Gte(_) => "gte",
            Operator::Lte(_) => "lte",
            Operator::LengthGte(_) => "length_gte",
            Operator::LengthLte(_) => "length_lte",
            Operator::Contains(_) => "contains",
            Operator::Ref(_) => "ref",
        }
    }

    /// True for a regular expression.
    pub(crate) fn is_pattern(&self) -> bool {
        matches!(self, Operator::Regex(_))
    }

    /// Returns the operand as JSON text.
    pub fn operand(&self) -> String {
        match self {
            Operator::Exists(value) => value.to_string(),
            Operator::Type(expected) => {
                let named = Type::ALL.iter().find(|(_, value)| value == expected);
                named
                    .map(|(name, _)| format!("\"{name}\""))
                    .unwrap_or_default()
            }
            Operator::Equals(value) | Operator::Contains(value) => value.to_json(),
            Operator::OneOf(values) => Value::Array(values.clone()).to_json(),
            Operator::Regex(pattern) => Value::from(pattern.text()).to_json(),
            Operator::Gte(bound) | Operator::Lte(bound) => bound.to_string(),
            Operator::LengthGte(bound) | Operator::LengthLte(bound) => bound.to_string(),
            Operator::Ref(slot) => Value::from(slot.as_str()).to_json(),
        }
    }

    /// Tests the operator on what a path led to. `ref` is not tested here and holds.
    /// What would take more steps than are left is undecidable.
    pub fn test(&self, found: Option<&Value>, steps: &Steps) -> Truth {
        let value = match (self, found) {
            (Operator::Exists(expected), found) => return (found.is_some() == *expected).into(),
            (Operator::Ref(_), _) => return Truth::True,
            (_, None) => return Truth::Undecidable,
            (_, Some(value)) => value,
        };
        match self {
            Operator::Exists(_) | Operator::Ref(_) => Truth::True,
            Operator::Type(expected) => value.is_type(*expected).into(),
            Operator::Equals(other) => equals(value, other),
            Operator::OneOf(members) => {
                let mut all = Truth::Undecidable;
                for member in members {
                    match equals(value, member) {
                        Truth::True => return Truth::True,
                        Truth::False => all = Truth::False,
                        Truth::Undecidable => {}
                    }
                }
                all
            }
            Operator::Regex(pattern) => match value.as_str() {
                Some(text) => pattern
                    .is_match(text, steps)
                    .map_or(Truth::Undecidable, Truth::from),
                None => Truth::Undecidable,
            },
            Operator::Gte(bound) => compare(value, |number| number >= *bound),
            Operator::Lte(bound) => compare(value, |number| number <= *bound),
            Operator::LengthGte(bound) => measure(value, |len| len >= *bound),
            Operator::LengthLte(bound) => measure(value, |len| len <= *bound),
            Operator::Contains(other) => contains(value, other),
        }
    }

    fn decode(name: &str, node: &Node, findings: &mut Findings) -> Option<Self> {
        Some(match name {
            "exists" => Operator::Exists(decode::boolean(node, findings)?),
            "type" => Operator::Type(decode::word(node, &Type::ALL, findings)?),
            "equals" => Operator::Equals(operand(node)?),
            "one_of" => {
                let items = decode::items(node, LIST_LEN_MAX, findings)?;
                if items.is_empty() {
                    let message = "`one_of` is empty: nothing satisfies it";
                    findings.error(node.at, Code::Contradiction, message);
                    return None;
                }
                Operator::OneOf(items.iter().filter_map(operand).collect())
            }
            "regex" => {
                let text = decode::text(node, findings)?;
                match Pattern::compile_within(text, &mut findings.patterns) {
                    Ok(pattern) => Operator::Regex(pattern),
                    Err(problem) => {
                        let message = format!("{}: {problem}", shown(text));
                        findings.error(node.at, Code::BadValue, message);
                        return None;
                    }
                }
            }
            "gte" => Operator::Gte(decode::number(node, findings)?),
            "lte" => Operator::Lte(decode::number(node, findings)?),
            "length_gte" => Operator::LengthGte(decode::integer(node, 0, LEN_MAX, findings)?),
            "length_lte" => Operator::LengthLte(decode::integer(node, 0, LEN_MAX, findings)?),
            "contains" => Operator::Contains(operand(node)?),
            _ => Operator::Ref(decode::named(node, findings)?.name),
        })
    }
}

const LEN_MAX: u64 = 1 << 53;

/// Returns an operand as a value; nothing for what a finding already speaks of.
fn operand(node: &Node) -> Option<Value> {
    match &node.kind {
        Kind::Broken => None,
        Kind::Null
        | Kind::Bool(_)
        | Kind::Number(_)
        | Kind::Text(_)
        | Kind::List(_)
        | Kind::Map(_) => Some(node.to_value()),
    }
}

fn equals(value: &Value, other: &Value) -> Truth {
    let exact = !matches!(value, Value::Number(Number::OutOfRange { .. }));
    if exact && value.type_name() == other.type_name() {
        value.equals(other).into()
    } else {
        Truth::Undecidable
    }
}

fn compare(value: &Value, holds: impl Fn(Decimal) -> bool) -> Truth {
    match value.as_decimal() {
        Some(number) => holds(number).into(),
        None => Truth::Undecidable,
    }
}

fn measure(value: &Value, holds: impl Fn(u64) -> bool) -> Truth {
    let len = match value {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Truth::Undecidable;
        }
    };
    holds(u64::try_from(len).unwrap_or(u64::MAX)).into()
}

fn contains(value: &Value, other: &Value) -> Truth {
    match (value, other) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()).into(),
        (Value::Array(items), other) => items.iter().any(|item| item.equals(other)).into(),
        (
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_),
            _,
        ) => Truth::Undecidable,
    }
}
