//! Checks that the schema of a tool's parameters implies, on top of what a contract writes down.
//!
//! Understands a fixed list of keywords; others are ignored, and [`SchemaForm`] names them, so that the program can say so.

mod form;

use std::collections::BTreeMap;

use crate::decimal::Decimal;
use crate::path::Path;
use crate::pattern::{Pattern, Steps};
use crate::value::{Type, Value};

pub use form::SchemaForm;

/// What a schema says about a value.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) failures: Vec<Failure>,
}

/// A keyword that does not hold.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) path: Path,
    pub(crate) keyword: &'static str,
    pub(crate) expected: Option<String>,
    pub(crate) found: Option<Value>,
}

const DEPTH_MAX: usize = 16;

/// Checks arguments against a schema, except in excluded places.
pub(crate) fn check(
    schema: &Value,
    arguments: &Value,
    exclude: &[Path],
    steps: &Steps,
) -> Findings {
    let mut findings = Findings::default();
    let mut checker = Checker {
        exclude,
        steps,
        patterns: BTreeMap::new(),
        findings: &mut findings,
    };
    checker.value(schema, arguments, &Path::root(), DEPTH_MAX);
    findings
}

struct Checker<'a> {
    exclude: &'a [Path],
    steps: &'a Steps,
    /// Those that were met, compiled; none for one of another engine.
    patterns: BTreeMap<String, Option<Pattern>>,
    findings: &'a mut Findings,
}

impl Checker<'_> {
    fn fail(&mut self, path: &Path, keyword: &'static str, operand: &Value, found: Option<&Value>) {
        self.findings.failures.push(Failure {
            path: path.clone(),
            keyword,
            expected: Some(operand.to_json()),
            found: found.cloned(),
        });
    }

    fn is_excluded(&self, path: &Path) -> bool {
        self.exclude.iter().any(|excluded| excluded.covers(path))
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &Path, depth_left: usize) {
        if self.is_excluded(path) {
            return;
        }
        let Some(keywords) = schema.as_object() else {
            // The schema `false` accepts nothing; any other form is not a schema.
            if *schema == Value::Bool(false) {
                self.fail(path, "false", schema, Some(value));
            }
            return;
        };
        if depth_left == 0 {
            return;
        }
        for (keyword, operand) in keywords {
            self.keyword(keyword, operand, keywords, value, path, depth_left - 1);
        }
    }

    fn keyword(
        &mut self,
        keyword: &str,
        operand: &Value,
        keywords: &BTreeMap<String, Value>,
        value: &Value,
        path: &Path,
        depth_left: usize,
    ) {
        // Nothing is demanded by what cannot be read.
        let mut test = |name: &'static str, holds: Option<bool>| {
            if holds == Some(false) {
                self.fail(path, name, operand, Some(value));
            }
        };
        match keyword {
            "type" => test("type", is_type(value, operand)),
            "enum" => {
                let members = operand.as_array();
                let holds = |members: &[Value]| members.iter().any(|member| member.equals(value));
                test("enum", members.map(holds));
            }
            "const" => test("const", Some(value.equals(operand))),
            "minimum" => test("minimum", number(value, operand, |a, b| a >= b)),
            "maximum" => test("maximum", number(value, operand, |a, b| a <= b)),
            "exclusiveMinimum" => test("exclusiveMinimum", number(value, operand, |a, b| a > b)),
            "exclusiveMaximum" => test("exclusiveMaximum", number(value, operand, |a, b| a < b)),
            "minLength" => test("minLength", length(text_len(value), operand, |a, b| a >= b)),
            "maxLength" => test("maxLength", length(text_len(value), operand, |a, b| a <= b)),
            "minItems" => test("minItems", length(list_len(value), operand, |a, b| a >= b)),
            "maxItems" => test("maxItems", length(list_len(value), operand, |a, b| a <= b)),
            "pattern" if self.pattern(value, operand) == Some(false) => {
                self.fail(path, "pattern", operand, Some(value));
            }
            "required" => self.required(operand, value, path),
            "properties" => self.properties(operand, value, path, depth_left),
            "items" => self.items(operand, value, path, depth_left),
            "additionalProperties" => self.additional(operand, keywords, value, path),
            _ => {}
        }
    }

    /// What cannot be looked at within the steps that are left does not hold.
    fn pattern(&mut self, value: &Value, operand: &Value) -> Option<bool> {
        let written = operand.as_str()?;
        let Some(text) = value.as_str() else {
            return Some(true);
        };
        if !self.patterns.contains_key(written) {
            let Some(compiled) = Pattern::compile_in(written, self.steps) else {
                return Some(false);
            };
            self.patterns.insert(written.to_owned(), compiled.ok());
        }
        let pattern = self.patterns.get(written)?.as_ref()?;
        Some(pattern.is_match(text, self.steps) == Some(true))
    }

    fn required(&mut self, operand: &Value, value: &Value, path: &Path) {
        let Some(names) = operand.as_array() else {
            return;
        };
        let Some(members) = value.as_object() else {
            return;
        };
        for name in names.iter().filter_map(Value::as_str) {
            let place = path.member(name);
            if !members.contains_key(name) && !self.is_excluded(&place) {
                self.fail(&place, "required", &Value::Bool(true), None);
            }
        }
    }

    fn properties(&mut self, operand: &Value, value: &Value, path: &Path, depth_left: usize) {
        let Some(schemas) = operand.as_object() else {
            return;
        };
        let Some(members) = value.as_object() else {
            return;
        };
        for (name, schema) in schemas {
            if let Some(member) = members.get(name) {
                self.value(schema, member, &path.member(name), depth_left);
            }
        }
    }

    fn items(&mut self, operand: &Value, value: &Value, path: &Path, depth_left: usize) {
        if operand.as_object().is_none() {
            return;
        }
        for (index, item) in value.as_array().unwrap_or_default().iter().enumerate() {
            self.value(operand, item, &path.element(index), depth_left);
        }
    }

    fn additional(
        &mut self,
        operand: &Value,
        keywords: &BTreeMap<String, Value>,
        value: &Value,
        path: &Path,
    ) {
        if *operand != Value::Bool(false) {
            return;
        }
        let Some(members) = value.as_object() else {
            return;
        };
        let listed = keywords.get("properties").and_then(Value::as_object);
        for (name, member) in members {
            let place = path.member(name);
            let known = listed.is_some_and(|listed| listed.contains_key(name));
            if !known && !self.is_excluded(&place) {
                self.fail(&place, "additionalProperties", operand, Some(member));
            }
        }
    }
}

fn is_type(value: &Value, operand: &Value) -> Option<bool> {
    let fits = |word: &str| Type::named(word).map(|expected| value.is_type(expected));
    match operand {
        Value::String(word) => fits(word),
        Value::Array(words) => {
            let fits: Option<Vec<bool>> = words
                .iter()
                .map(|word| word.as_str().and_then(fits))
                .collect();
            fits.map(|fits| fits.contains(&true))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Bounds bind numbers; a number that cannot be held exactly is outside every bound.
fn number(value: &Value, bound: &Value, holds: impl Fn(Decimal, Decimal) -> bool) -> Option<bool> {
    let bound = bound.as_decimal()?;
    match value {
        Value::Number(_) => Some(
            value
                .as_decimal()
                .is_some_and(|number| holds(number, bound)),
        ),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Some(true)
        }
    }
}

fn length(len: Option<usize>, bound: &Value, holds: impl Fn(u64, u64) -> bool) -> Option<bool> {
    let bound = bound.as_decimal()?.as_u64()?;
    let holds = |len: usize| holds(u64::try_from(len).unwrap_or(u64::MAX), bound);
    Some(len.is_none_or(holds))
}

fn text_len(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}

fn list_len(value: &Value) -> Option<usize> {
    value.as_array().map(<[Value]>::len)
}
