//! Reading the members of one JSON object.

use canon::{Map, Value, jcs};

use super::{COUNT_MAX, LIST_LEN_MAX, METADATA_BYTES_MAX};
use crate::InputError;

/// The members of an object and where in the request it stands.
#[derive(Debug, Clone)]
pub struct Members<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
}

type Read<T> = Result<T, InputError>;

impl<'a> Members<'a> {
    /// The members of the request body.
    pub fn of(map: &'a Map<String, Value>) -> Self {
        Self {
            map,
            prefix: String::new(),
        }
    }

    /// The members of an object further in.
    pub fn at(map: &'a Map<String, Value>, prefix: impl Into<String>) -> Self {
        Self {
            map,
            prefix: format!("{}.", prefix.into()),
        }
    }

    /// The members of a value further in, which must be an object.
    pub fn within(value: &'a Value, place: String) -> Read<Self> {
        match value {
            Value::Object(map) => Ok(Self::at(map, place)),
            _ => Err(InputError::invalid(place, "must be an object")),
        }
    }

    /// Returns the dotted name of a member.
    pub fn param(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the members themselves.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// True when a member is there, null included.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(super) fn wrong(&self, name: &str, message: &str) -> InputError {
        InputError::invalid(self.param(name), message)
    }

    pub(super) fn missing(&self, name: &str) -> InputError {
        InputError::invalid(
            self.param(name),
            format!("`{}` is required", self.param(name)),
        )
    }

    /// Reads an optional string of at most this many bytes.
    pub fn string(&self, name: &str, bytes_max: usize) -> Read<Option<String>> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text.clone())),
            Some(Value::String(_)) => {
                Err(self.wrong(name, &format!("is longer than {bytes_max} bytes")))
            }
            Some(_) => Err(self.wrong(name, "must be a string")),
        }
    }

    /// Reads a string that must be there.
    pub fn required_string(&self, name: &str, bytes_max: usize) -> Read<String> {
        self.string(name, bytes_max)?
            .ok_or_else(|| self.missing(name))
    }

    /// Reads an optional string that may be null: absent, null and text are three answers.
    pub fn nullable_string(&self, name: &str, bytes_max: usize) -> Read<Option<Option<String>>> {
        match self.map.get(name) {
            Some(Value::Null) => Ok(Some(None)),
            None | Some(_) => Ok(self.string(name, bytes_max)?.map(Some)),
        }
    }

    /// Reads an optional string where null means absent.
    pub fn string_or_null(&self, name: &str, bytes_max: usize) -> Read<Option<String>> {
        Ok(self.nullable_string(name, bytes_max)?.flatten())
    }

    /// Reads one of a few words.
    pub fn word<T>(
        &self,
        name: &str,
        words: &[&str],
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Read<Option<T>> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if words.contains(&text.as_str()) => Ok(parse(text)),
            Some(_) => Err(self.wrong(name, &format!("must be one of {}", words.join(", ")))),
        }
    }

    /// Reads one of a few words where null means absent.
    pub fn word_or_null(&self, name: &str, words: &[&str]) -> Read<Option<String>> {
        match self.map.get(name) {
            Some(Value::Null) => Ok(None),
            None | Some(_) => self.word(name, words, |text| Some(text.to_owned())),
        }
    }

    /// Reads an optional id where null means absent. What is no id of the kind names nothing.
    pub fn id<T, E>(
        &self,
        name: &str,
        object: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Read<Option<T>> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => match parse(text) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(InputError::Unknown {
                    object,
                    param: self.param(name),
                }),
            },
            Some(_) => Err(self.wrong(name, "must be a string")),
        }
    }

    /// Reads an optional truth value.
    pub fn boolean(&self, name: &str) -> Read<Option<bool>> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(*truth)),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    /// Reads an integer from 0 that must be there.
    pub fn required_count(&self, name: &str) -> Read<u64> {
        self.count(name)?.ok_or_else(|| self.missing(name))
    }

    /// Reads an optional integer from 0.
    pub fn count(&self, name: &str) -> Read<Option<u64>> {
        let Some(value) = self.map.get(name) else {
            return Ok(None);
        };
        // 2.0 is the integer 2 in JSON.
        let whole = value.as_u64().or_else(|| {
            value
                .as_f64()
                .filter(|number| {
                    (0.0..=9_007_199_254_740_991.0).contains(number) && number.fract() == 0.0
                })
                .map(|number| number as u64)
        });
        whole
            .filter(|whole| *whole <= COUNT_MAX)
            .map(Some)
            .ok_or_else(|| self.wrong(name, "must be an integer from 0 to 2^53−1"))
    }

    /// Reads an optional object.
    pub fn object(&self, name: &str) -> Read<Option<&'a Map<String, Value>>> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "must be an object")),
        }
    }

    /// Reads an optional list.
    pub fn array(&self, name: &str, len_max: usize) -> Read<Option<&'a [Value]>> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) if items.len() <= len_max => Ok(Some(items)),
            Some(Value::Array(_)) => {
                Err(self.wrong(name, &format!("has more than {len_max} items")))
            }
            Some(_) => Err(self.wrong(name, "must be a list")),
        }
    }

    /// Reads an optional list of strings.
    pub fn strings(
        &self,
        name: &str,
        len_max: usize,
        bytes_max: usize,
    ) -> Read<Option<Vec<String>>> {
        let Some(items) = self.array(name, len_max)? else {
            return Ok(None);
        };
        let texts = items.iter().enumerate().map(|(index, item)| match item {
            Value::String(text) if text.len() <= bytes_max => Ok(text.clone()),
            Value::String(_) => Err(self.wrong(
                &format!("{name}.{index}"),
                &format!("is longer than {bytes_max} bytes"),
            )),
            _ => Err(self.wrong(&format!("{name}.{index}"), "must be a string")),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// Reads an optional list of ids or names whose content is not looked at.
    pub fn names(&self, name: &str) -> Read<()> {
        self.strings(name, LIST_LEN_MAX, domain::ID_BYTES_MAX)
            .map(drop)
    }

    /// Reads the caller's own members, when they are there.
    pub fn metadata_if_any(&self) -> Read<Option<Map<String, Value>>> {
        self.bounded_object("metadata")
    }

    /// Reads an optional object whose content is not looked at; it is as large as metadata may be.
    pub(super) fn bounded_object(&self, name: &str) -> Read<Option<Map<String, Value>>> {
        let Some(object) = self.object(name)? else {
            return Ok(None);
        };
        let object = Value::Object(object.clone());
        if jcs(&object).len() > METADATA_BYTES_MAX {
            let message = format!("is longer than {METADATA_BYTES_MAX} bytes (metadata_bytes_max)");
            return Err(self.wrong(name, &message));
        }
        match object {
            Value::Object(map) => Ok(Some(map)),
            _ => Ok(None),
        }
    }

    /// Reads the caller's own members; none are an empty object.
    pub fn metadata(&self) -> Read<Map<String, Value>> {
        Ok(self.metadata_if_any()?.unwrap_or_default())
    }
}
