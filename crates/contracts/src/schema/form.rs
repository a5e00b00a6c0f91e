//! What of a schema is checked, whatever the arguments are.

use std::collections::BTreeSet;

use super::{DEPTH_MAX, is_type};
use crate::path::Path;
use crate::pattern::{Pattern, PatternBudget, PatternError};
use crate::value::Value;

/// Findings of each kind that are kept: enough to see what is the matter.
const KEPT_MAX: usize = 16;
/// Describe, and ask nothing.
const SILENT: [&str; 6] = [
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$comment",
];

/// What a program should know about the schema of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchemaForm {
    /// Keywords that are not understood, or not in the form they have: nothing checks them. The first sixteen.
    pub ignored: BTreeSet<String>,
    /// What makes it no schema: a keyword that is understood demands something impossible. The first sixteen.
    pub wrong: Vec<String>,
    /// True when its patterns would cost more than is left for them.
    pub is_too_large: bool,
}

impl SchemaForm {
    /// Looks at a schema, except in excluded places.
    pub(crate) fn of(schema: &Value, exclude: &[Path], patterns: &mut PatternBudget) -> Self {
        let mut reader = Reader {
            exclude,
            patterns,
            form: Self::default(),
        };
        reader.schema(schema, &Path::root(), DEPTH_MAX);
        reader.form
    }
}

struct Reader<'a> {
    exclude: &'a [Path],
    patterns: &'a mut PatternBudget,
    form: SchemaForm,
}

impl Reader<'_> {
    fn ignore(&mut self, keyword: &str) {
        if self.form.ignored.len() < KEPT_MAX {
            self.form.ignored.insert(keyword.to_owned());
        }
    }

    fn wrong(&mut self, path: &Path, what: &str) {
        if self.form.wrong.len() < KEPT_MAX {
            self.form.wrong.push(format!("{path}: {what}"));
        }
    }

    fn schema(&mut self, schema: &Value, path: &Path, depth_left: usize) {
        if self.exclude.iter().any(|excluded| excluded.covers(path)) {
            return;
        }
        let Some(keywords) = schema.as_object() else {
            if !is_bool(schema) {
                self.wrong(path, "a schema is an object, `true` or `false`");
            }
            return;
        };
        if depth_left == 0 {
            return self.ignore("nesting deeper than 16");
        }
        for (keyword, operand) in keywords {
            self.keyword(keyword, operand, path, depth_left - 1);
        }
    }

    fn pattern(&mut self, text: &str, path: &Path) {
        match Pattern::compile_within(text, self.patterns) {
            Ok(_) => {}
            Err(PatternError::TooMuch(message)) => {
                self.form.is_too_large = true;
                self.wrong(path, message);
            }
            // One that is written for another engine is not checked.
            Err(PatternError::Wrong(_)) => self.ignore("pattern"),
        }
    }

    fn keyword(&mut self, keyword: &str, operand: &Value, path: &Path, depth_left: usize) {
        let is_right = match keyword {
            "const" => true,
            "type" => is_type(&Value::Null, operand).is_some(),
            "enum" => operand.as_array().is_some(),
            // A switch in older drafts.
            "exclusiveMinimum" | "exclusiveMaximum" if is_bool(operand) => {
                self.ignore(keyword);
                true
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                operand.as_decimal().is_some()
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" => operand
                .as_decimal()
                .is_some_and(|bound| bound.as_u64().is_some()),
            "pattern" => {
                if let Some(text) = operand.as_str() {
                    self.pattern(text, path);
                }
                operand.as_str().is_some()
            }
            "required" => operand
                .as_array()
                .is_some_and(|names| names.iter().all(|name| name.as_str().is_some())),
            "properties" => {
                for (name, schema) in operand.as_object().into_iter().flatten() {
                    self.schema(schema, &path.member(name), depth_left);
                }
                operand.as_object().is_some()
            }
            "items" if operand.as_object().is_some() => {
                // A place below one element says nothing about the others.
                let exclude = std::mem::take(&mut self.exclude);
                self.schema(operand, &path.element(0), depth_left);
                self.exclude = exclude;
                true
            }
            "items" => {
                self.ignore(keyword);
                is_bool(operand) || operand.as_array().is_some()
            }
            "additionalProperties" => {
                if operand.as_object().is_some() {
                    self.ignore(keyword);
                }
                is_bool(operand) || operand.as_object().is_some()
            }
            other => {
                if !SILENT.contains(&other) {
                    self.ignore(other);
                }
                true
            }
        };
        if !is_right {
            self.wrong(
                path,
                &format!("`{keyword}` has another form than a schema allows"),
            );
        }
    }
}

fn is_bool(value: &Value) -> bool {
    matches!(value, Value::Bool(_))
}
