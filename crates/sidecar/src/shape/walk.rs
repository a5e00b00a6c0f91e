//! Walking a document along a table of members, collecting problems and unknown members.

use std::fmt;

use canon::Value;

use super::text;

/// A place in a document that does not fit, and what would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer of the place.
    pub pointer: String,
    /// What was expected there.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pointer = if self.pointer.is_empty() {
            "(document)"
        } else {
            &self.pointer
        };
        write!(f, "{pointer} {}", self.message)
    }
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What does not fit; empty for a valid document.
    pub problems: Vec<Problem>,
    /// JSON pointers of members that the shape does not name.
    pub unknown: Vec<String>,
}

pub(super) type Check = fn(&mut Walk, &Value, &str);

pub(super) struct Member {
    name: &'static str,
    required: bool,
    check: Check,
}

impl Member {
    pub(super) const fn required(name: &'static str, check: Check) -> Self {
        Self {
            name,
            required: true,
            check,
        }
    }

    pub(super) const fn optional(name: &'static str, check: Check) -> Self {
        Self {
            name,
            required: false,
            check,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Walk {
    problems: Vec<Problem>,
    unknown: Vec<String>,
}

impl Walk {
    pub(super) fn finish(self) -> Shape {
        Shape {
            problems: self.problems,
            unknown: self.unknown,
        }
    }

    pub(super) fn expect(&mut self, fits: bool, at: &str, message: &str) {
        if !fits {
            self.problems.push(Problem {
                pointer: at.to_owned(),
                message: message.to_owned(),
            });
        }
    }

    pub(super) fn object(&mut self, value: &Value, at: &str, members: &[Member]) {
        let Some(object) = value.as_object() else {
            return self.expect(false, at, "must be an object");
        };
        for member in members {
            match object.get(member.name) {
                Some(value) => (member.check)(self, value, &child(at, member.name)),
                None => self.expect(!member.required, &child(at, member.name), "is missing"),
            }
        }
        for name in object.keys() {
            if !members.iter().any(|member| member.name == name) {
                self.unknown.push(child(at, name));
            }
        }
    }

    pub(super) fn items(&mut self, value: &Value, at: &str, check: Check) {
        let Some(items) = value.as_array() else {
            return self.expect(false, at, "must be an array");
        };
        for (index, item) in items.iter().enumerate() {
            check(self, item, &format!("{at}/{index}"));
        }
    }

    pub(super) fn string(&mut self, value: &Value, at: &str) {
        self.expect(value.is_string(), at, "must be a string");
    }

    pub(super) fn filled(&mut self, value: &Value, at: &str) {
        let filled = value.as_str().is_some_and(|text| !text.is_empty());
        self.expect(filled, at, "must be a string that is not empty");
    }

    pub(super) fn strings(&mut self, value: &Value, at: &str) {
        self.items(value, at, Self::string);
    }

    pub(super) fn boolean(&mut self, value: &Value, at: &str) {
        self.expect(value.is_boolean(), at, "must be true or false");
    }

    pub(super) fn boolean_or_null(&mut self, value: &Value, at: &str) {
        let fits = value.is_boolean() || value.is_null();
        self.expect(fits, at, "must be true, false or null");
    }

    pub(super) fn number_or_null(&mut self, value: &Value, at: &str) {
        let fits = value.is_number() || value.is_null();
        self.expect(fits, at, "must be a number or null");
    }

    pub(super) fn integer(&mut self, value: &Value, at: &str) {
        self.expect(is_integer(value), at, "must be an integer");
    }

    pub(super) fn integer_or_null(&mut self, value: &Value, at: &str) {
        let fits = is_integer(value) || value.is_null();
        self.expect(fits, at, "must be an integer or null");
    }

    pub(super) fn positive(&mut self, value: &Value, at: &str) {
        let fits = is_integer(value) && value.as_f64().is_some_and(|number| number >= 1.0);
        self.expect(fits, at, "must be an integer of 1 or more");
    }

    pub(super) fn count(&mut self, value: &Value, at: &str) {
        let fits = is_integer(value) && value.as_f64().is_some_and(|number| number >= 0.0);
        self.expect(fits, at, "must be an integer of 0 or more");
    }

    pub(super) fn hash(&mut self, value: &Value, at: &str) {
        let fits = value
            .as_str()
            .and_then(|text| text.strip_prefix("sha256:"))
            .is_some_and(|hex| text::hex(hex, 64));
        self.expect(fits, at, "must be sha256: and 64 lower-case hex digits");
    }

    pub(super) fn time(&mut self, value: &Value, at: &str) {
        let fits = value.as_str().is_some_and(text::is_utc_time);
        self.expect(fits, at, "must be a UTC time with Z");
    }
}

/// A number without fraction is an integer, however it is written.
fn is_integer(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Appends a member name to a JSON pointer.
pub(super) fn child(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}
