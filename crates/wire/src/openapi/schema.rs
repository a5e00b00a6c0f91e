//! A small notation for schemas, and their JSON Schema form.

use canon::{Map, Value};
use serde_json::json;

use crate::decode::{COUNT_MAX, METADATA_BYTES_MAX};

/// A named schema.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// What a named schema is.
#[derive(Debug)]
pub(super) enum Shape {
    /// An object with the envelope's members and these.
    Resource(&'static [Member]),
    /// An object with at least these members known.
    Plain(&'static [Member]),
    /// An object with these members and no others.
    Closed(&'static [Member]),
    /// A list of another schema.
    Page(&'static str),
    /// A type by itself.
    Just(Type),
}

/// A member of an object.
#[derive(Debug)]
pub(super) struct Member {
    name: &'static str,
    required: bool,
    of: Type,
}

/// A member that is always there.
pub(super) const fn req(name: &'static str, of: Type) -> Member {
    Member {
        name,
        required: true,
        of,
    }
}

/// A member that may be absent.
pub(super) const fn opt(name: &'static str, of: Type) -> Member {
    Member {
        name,
        required: false,
        of,
    }
}

/// The type of a value.
#[derive(Debug)]
pub(super) enum Type {
    Any,
    Text,
    NonEmpty,
    /// At most this many bytes of UTF-8.
    TextMax(usize),
    /// From 1 to this many bytes of UTF-8.
    Name(usize),
    /// The id or the name of something.
    Id,
    /// The caller's own members.
    Metadata,
    Matching(&'static str),
    Time,
    Words(&'static [&'static str]),
    Exactly(u64),
    /// An integer from 0, as far as JSON can tell them apart.
    Count,
    Number,
    /// A number from one to another.
    Between(u64, u64),
    Boolean,
    Object,
    Inline(&'static [Member]),
    MapOf(&'static Type),
    List(&'static Type),
    /// A list of at most this many.
    ListMax(usize, &'static Type),
    Ref(&'static str),
    AnyOf(&'static [Type]),
    OrNull(&'static Type),
}

/// The member of a schema that bounds the canonical bytes of an object. JSON Schema has no word for it.
pub(super) const CANONICAL_BYTES: &str = "x-canonical-bytes-max";

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

const ENVELOPE: &[Member] = &[
    req("id", Type::Text),
    req("object", Type::Text),
    req("created_at", Type::Time),
    req("updated_at", Type::Time),
    req("metadata", Type::Object),
];

impl Schema {
    pub(super) fn describe(&self) -> Value {
        match &self.shape {
            // A resource's own `object` comes later and replaces the general one.
            Shape::Resource(members) => object([ENVELOPE, members]),
            Shape::Plain(members) => object([members]),
            Shape::Closed(members) => {
                let mut schema = object([members]);
                if let Value::Object(map) = &mut schema {
                    map.insert("additionalProperties".to_owned(), Value::Bool(false));
                }
                schema
            }
            Shape::Page(of) => json!({
                "type": "object",
                "required": ["object", "data", "page"],
                "properties": {
                    "object": {"type": "string", "enum": ["list"]},
                    "data": {"type": "array", "items": reference(of)},
                    "page": reference("PageInfo"),
                    "has_more": {"type": "boolean"},
                    "next_cursor": {"type": ["string", "null"]},
                },
            }),
            Shape::Just(of) => of.describe(),
        }
    }
}

fn object<const N: usize>(lists: [&[Member]; N]) -> Value {
    let mut properties = Map::new();
    let mut required: Vec<&str> = Vec::new();
    for member in lists.into_iter().flatten() {
        properties.insert(member.name.to_owned(), member.of.describe());
        if member.required && !required.contains(&member.name) {
            required.push(member.name);
        }
    }
    json!({"type": "object", "required": required, "properties": properties})
}

impl Type {
    pub(super) fn describe(&self) -> Value {
        match self {
            Type::Any => json!({}),
            Type::Text => json!({"type": "string"}),
            Type::NonEmpty => json!({"type": "string", "minLength": 1}),
            Type::TextMax(bytes) => {
                json!({"type": "string", "maxLength": bytes, "description": format!("At most {bytes} bytes of UTF-8")})
            }
            Type::Name(bytes) => {
                json!({"type": "string", "minLength": 1, "maxLength": bytes, "description": format!("From 1 to {bytes} bytes of UTF-8")})
            }
            Type::Id => json!({"type": "string", "maxLength": domain::ID_BYTES_MAX}),
            Type::Metadata => json!({
                "type": "object",
                CANONICAL_BYTES: METADATA_BYTES_MAX,
                "description": format!("At most {METADATA_BYTES_MAX} bytes in canonical form (RFC 8785)"),
            }),
            Type::Matching(pattern) => json!({"type": "string", "pattern": pattern}),
            Type::Time => json!({"type": "string", "format": "date-time"}),
            Type::Words(words) => json!({"type": "string", "enum": words}),
            Type::Exactly(number) => json!({"type": "integer", "enum": [number]}),
            Type::Count => json!({"type": "integer", "minimum": 0, "maximum": COUNT_MAX}),
            Type::Number => json!({"type": "number"}),
            Type::Between(from, to) => json!({"type": "number", "minimum": from, "maximum": to}),
            Type::Boolean => json!({"type": "boolean"}),
            Type::Object => json!({"type": "object"}),
            Type::Inline(members) => object([members]),
            Type::MapOf(of) => json!({"type": "object", "additionalProperties": of.describe()}),
            Type::ListMax(count, of) => {
                json!({"type": "array", "maxItems": count, "items": of.describe()})
            }
            Type::List(of) => json!({"type": "array", "items": of.describe()}),
            Type::Ref(name) => reference(name),
            Type::AnyOf(types) => {
                json!({"anyOf": types.iter().map(Type::describe).collect::<Vec<_>>()})
            }
            Type::OrNull(of) => or_null(of.describe()),
        }
    }
}

fn or_null(mut schema: Value) -> Value {
    let plain = schema
        .get("type")
        .and_then(Value::as_str)
        .map(str::to_owned);
    match (&mut schema, plain) {
        (Value::Object(map), Some(name)) => {
            map.insert("type".to_owned(), json!([name, "null"]));
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.push(Value::Null);
            }
            schema
        }
        _ => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}
