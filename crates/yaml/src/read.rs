//! A tree as serde reads it.
//!
//! A scalar without quotes is a text where a text is wanted (`version: 1`), and JSON's words and numbers elsewhere. Nothing at all
//! is an empty list or map where one is wanted.

use std::rc::Rc;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

use crate::tree::{Kind, Node, is_null};
use crate::{YamlError, is_odd_number};

impl<'de> Deserializer<'de> for &Node {
    type Error = YamlError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match &self.kind {
            Kind::Plain(text) => self.plain(text, visitor),
            Kind::Text(text) => visitor.visit_str(text),
            Kind::List(items) => visitor.visit_seq(Items(items.iter())),
            Kind::Map(members) => visitor.visit_map(Members::new(members)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.scalar() {
            Some(text) if !self.is_null() => visitor.visit_str(text),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.is_null() {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.is_null() {
            true => visitor.visit_seq(Items([].iter())),
            false => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, YamlError> {
        match self.is_null() {
            true => visitor.visit_map(Members::new(&[])),
            false => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        // What serde derives would take the members of a list in the order of the fields.
        match &self.kind {
            Kind::List(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            Kind::Plain(_) | Kind::Text(_) | Kind::Map(_) => self.deserialize_map(visitor),
        }
    }

    /// Words only: no type that is read here has a variant with content.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, YamlError> {
        match self.scalar() {
            Some(text) if !self.is_null() => {
                let word: StrDeserializer<'_, YamlError> = text.into_deserializer();
                visitor.visit_enum(word)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct ignored_any
    }
}

impl Node {
    fn plain<'de, V: Visitor<'de>>(&self, text: &str, visitor: V) -> Result<V::Value, YamlError> {
        match text {
            "true" | "True" | "TRUE" => return visitor.visit_bool(true),
            "false" | "False" | "FALSE" => return visitor.visit_bool(false),
            text if is_null(text) => return visitor.visit_unit(),
            _ => {}
        }
        let starts = text.starts_with(|char: char| char == '-' || char.is_ascii_digit());
        let number = match starts {
            true => serde_json::from_str::<Number>(text).ok(),
            false => None,
        };
        let Some(number) = number else {
            if is_odd_number(text) {
                let message = format!(
                    "`{text}` is a number in some readers and a text in others: write it as JSON does, or in quotes"
                );
                return Err(YamlError::at(self.place, message));
            }
            return visitor.visit_str(text);
        };
        if let Some(number) = number.as_u64() {
            return visitor.visit_u64(number);
        }
        if let Some(number) = number.as_i64() {
            return visitor.visit_i64(number);
        }
        match number.as_f64() {
            Some(number) if text.contains(['.', 'e', 'E']) => visitor.visit_f64(number),
            _ => {
                let message = format!("`{text}` has more digits than a whole number may have");
                Err(YamlError::at(self.place, message))
            }
        }
    }
}

struct Items<'a>(std::slice::Iter<'a, Rc<Node>>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = YamlError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, YamlError> {
        self.0.next().map(|node| placed(seed, node)).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Members<'a> {
    left: std::slice::Iter<'a, (Rc<Node>, Rc<Node>)>,
    value: Option<&'a Node>,
}

impl<'a> Members<'a> {
    fn new(members: &'a [(Rc<Node>, Rc<Node>)]) -> Self {
        Self {
            left: members.iter(),
            value: None,
        }
    }
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = YamlError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, YamlError> {
        let Some((key, value)) = self.left.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        placed(seed, key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, YamlError> {
        match self.value.take() {
            Some(value) => placed(seed, value),
            None => Err(Error::custom("a value without a key")),
        }
    }
}

/// Reads a node, and says where it stands if something is wrong with it.
fn placed<'de, T: DeserializeSeed<'de>>(seed: T, node: &Node) -> Result<T::Value, YamlError> {
    seed.deserialize(node)
        .map_err(|error| error.or_at(node.place))
}
