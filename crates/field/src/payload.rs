//! Reading the members of a payload: the type, the size, or a refusal that names the member.
//!
//! An optional member that is `null` counts as absent.

use canon::{Map, Value};

use crate::config::{ID_BYTES_MAX, LINE_BYTES_MAX};
use crate::error::{Check, Fault};

/// An object of a payload and the path to it.
#[derive(Clone, Copy)]
pub(crate) struct Members<'a> {
    map: &'a Map<String, Value>,
    path: &'static str,
}

impl<'a> Members<'a> {
    pub(crate) fn of(map: &'a Map<String, Value>) -> Self {
        Self { map, path: "" }
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn wrong(&self, name: &str, expected: &str) -> Fault {
        Fault::request(format!("`{}{name}` is not {expected}", self.path))
    }

    pub(crate) fn missing(&self, name: &str) -> Fault {
        Fault::request(format!("`{}{name}` is missing", self.path))
    }

    pub(crate) fn object(&self, name: &str, path: &'static str) -> Check<Option<Members<'a>>> {
        self.value(name)
            .map(|value| {
                let map = value
                    .as_object()
                    .ok_or_else(|| self.wrong(name, "an object"))?;
                Ok(Members { map, path })
            })
            .transpose()
    }

    /// A text of any length, the empty one included.
    pub(crate) fn text(&self, name: &str) -> Check<Option<&'a str>> {
        self.value(name)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(name, "a text")))
            .transpose()
    }

    fn sized(&self, name: &str, max: usize) -> Check<Option<&'a str>> {
        let text = self.text(name)?;
        match text {
            Some(text) if !(1..=max).contains(&text.len()) => {
                Err(self.wrong(name, &format!("a text of 1 to {max} bytes")))
            }
            _ => Ok(text),
        }
    }

    pub(crate) fn id(&self, name: &str) -> Check<Option<String>> {
        Ok(self.sized(name, ID_BYTES_MAX)?.map(str::to_owned))
    }

    pub(crate) fn required_id(&self, name: &str) -> Check<String> {
        self.id(name)?.ok_or_else(|| self.missing(name))
    }

    /// A role, a rationale, a reason: one line that says something.
    pub(crate) fn line(&self, name: &str) -> Check<Option<String>> {
        let text = self.sized(name, LINE_BYTES_MAX)?;
        match text {
            Some(text) if text.trim().is_empty() => Err(self.wrong(name, "a text with words")),
            _ => Ok(text.map(str::to_owned)),
        }
    }

    pub(crate) fn required_line(&self, name: &str) -> Check<String> {
        self.line(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn texts(&self, name: &str, len_max: usize) -> Check<Vec<String>> {
        let Some(value) = self.value(name) else {
            return Ok(Vec::new());
        };
        let list = value
            .as_array()
            .filter(|list| list.len() <= len_max)
            .ok_or_else(|| self.wrong(name, &format!("a list of at most {len_max} texts")))?;
        list.iter()
            .map(|item| {
                item.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| self.wrong(name, "a list of texts"))
            })
            .collect()
    }

    pub(crate) fn ids(&self, name: &str, len_max: usize) -> Check<Vec<String>> {
        let ids = self.texts(name, len_max)?;
        if ids.iter().any(|id| !(1..=ID_BYTES_MAX).contains(&id.len())) {
            return Err(self.wrong(name, &format!("a list of ids of 1 to {ID_BYTES_MAX} bytes")));
        }
        Ok(ids)
    }

    pub(crate) fn integer(&self, name: &str, min: u64) -> Check<Option<u64>> {
        self.value(name)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|number| *number >= min)
                    .ok_or_else(|| self.wrong(name, &format!("an integer of at least {min}")))
            })
            .transpose()
    }

    pub(crate) fn share(&self, name: &str) -> Check<Option<f64>> {
        self.value(name)
            .map(|value| {
                value
                    .as_f64()
                    .filter(|number| (0.0..=1.0).contains(number))
                    .ok_or_else(|| self.wrong(name, "a number from 0 to 1"))
            })
            .transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Check<bool> {
        self.value(name).map_or(Ok(false), |value| {
            value
                .as_bool()
                .ok_or_else(|| self.wrong(name, "true or false"))
        })
    }

    /// A name of a closed list.
    pub(crate) fn choice<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Check<Option<T>> {
        self.value(name)
            .map(|value| {
                value
                    .as_str()
                    .and_then(&parse)
                    .ok_or_else(|| self.wrong(name, "one of the listed values"))
            })
            .transpose()
    }

    pub(crate) fn required_choice<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Check<T> {
        self.choice(name, parse)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn choices<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        len_max: usize,
    ) -> Check<Vec<T>> {
        self.texts(name, len_max)?
            .iter()
            .map(|text| parse(text).ok_or_else(|| self.wrong(name, "a list of the listed values")))
            .collect()
    }
}
