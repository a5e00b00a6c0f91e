//! YAML files to trees whose nodes know their place.
//!
//! Accepts the part of YAML that JSON has, with comments and block style: no anchors, aliases, tags or several
//! documents. Everything that can be found is found in one read; only a syntax error ends it.

use ::yaml::is_odd_number;
use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::decimal::{Decimal, ParseDecimalError};
use crate::finding::{Code, Findings, Place, shown};
use crate::value::{Number, Value};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: Place,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
    /// Something that a finding already speaks of.
    Broken,
}

/// A member name and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) at: Place,
}

impl Node {
    /// Returns the word for what the node is.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "a boolean",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "a text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
            Kind::Broken => "unreadable",
        }
    }

    /// Returns the node as a JSON value.
    pub(crate) fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Null | Kind::Broken => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(decimal) => Value::Number(Number::Exact(*decimal)),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Kind::Map(members) => {
                let members = members.iter();
                let pairs = members.map(|(key, node)| (key.name.clone(), node.to_value()));
                Value::Object(pairs.collect())
            }
        }
    }
}

const BYTES_MAX: usize = 256 << 10;
const NODES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;

/// Reads one file. Returns nothing when there is no tree to look at; the findings then say why.
pub(crate) fn read(text: &str, findings: &mut Findings) -> Option<Node> {
    let start = Place::default();
    if text.len() > BYTES_MAX {
        findings.error(start, Code::TooLarge, "the file is larger than 256 KiB");
        return None;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder {
        findings,
        open: Vec::new(),
        root: None,
        nodes: 0,
    };
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(pair) => pair,
            Err(error) => {
                let marker = error.marker();
                let at = place(marker.line(), marker.col());
                builder.findings.error(at, Code::Syntax, error.info());
                return None;
            }
        };
        let at = place(span.start.line(), span.start.col());
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                let message = "a file holds one document";
                builder.findings.error(at, Code::UnsupportedYaml, message);
                return None;
            }
        }
        builder.take(event, at)?;
    }
    if builder.root.is_none() {
        builder
            .findings
            .error(start, Code::Syntax, "the file is empty");
    }
    builder.root
}

fn place(line: usize, column: usize) -> Place {
    Place {
        line,
        column: column + 1,
    }
}

struct Builder<'a> {
    findings: &'a mut Findings,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

struct Open {
    at: Place,
    collection: Collection,
}

enum Collection {
    List(Vec<Node>),
    Map {
        members: Vec<(Key, Node)>,
        key: Option<Key>,
    },
}

impl Builder<'_> {
    /// Takes one event; nothing when reading must end.
    fn take(&mut self, event: Event<'_>, at: Place) -> Option<()> {
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
            Event::Alias(_) => {
                self.refuse(at, "aliases are not allowed: write the value out");
                self.close(Node {
                    at,
                    kind: Kind::Broken,
                })?;
            }
            Event::Scalar(text, style, anchor, tag) => {
                if anchor > 0 {
                    self.refuse(at, "anchors are not allowed: write the value out");
                }
                if tag.is_some() {
                    self.refuse(at, "tags are not allowed");
                }
                let kind = if style == ScalarStyle::Plain {
                    self.plain(&text, at)
                } else {
                    Kind::Text(text.into_owned())
                };
                self.close(Node { at, kind })?;
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(at, anchor, tag.is_some(), Collection::List(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                let members = Vec::new();
                let map = Collection::Map { members, key: None };
                self.open(at, anchor, tag.is_some(), map)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let open = self.open.pop()?;
                let kind = match open.collection {
                    Collection::List(items) => Kind::List(items),
                    Collection::Map { members, .. } => Kind::Map(members),
                };
                self.attach(Node { at: open.at, kind });
            }
        }
        Some(())
    }

    fn refuse(&mut self, at: Place, message: &str) {
        self.findings.error(at, Code::UnsupportedYaml, message);
    }

    fn open(&mut self, at: Place, anchor: usize, tag: bool, collection: Collection) -> Option<()> {
        if anchor > 0 {
            self.refuse(at, "anchors are not allowed: write the value out");
        }
        if tag {
            self.refuse(at, "tags are not allowed");
        }
        if self.open.len() >= DEPTH_MAX {
            let message = "nested deeper than 64 levels";
            self.findings.error(at, Code::TooLarge, message);
            return None;
        }
        self.count(at)?;
        self.open.push(Open { at, collection });
        Some(())
    }

    fn count(&mut self, at: Place) -> Option<()> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = "more than 20,000 values";
            self.findings.error(at, Code::TooLarge, message);
            return None;
        }
        Some(())
    }

    fn close(&mut self, node: Node) -> Option<()> {
        self.count(node.at)?;
        self.attach(node);
        Some(())
    }

    fn attach(&mut self, node: Node) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut open.collection {
            Collection::List(items) => items.push(node),
            Collection::Map { members, key } => match key.take() {
                Some(key) => members.push((key, node)),
                None => {
                    let at = node.at;
                    let name = match node.kind {
                        Kind::Text(name) => name,
                        Kind::Null
                        | Kind::Bool(_)
                        | Kind::Number(_)
                        | Kind::List(_)
                        | Kind::Map(_)
                        | Kind::Broken => {
                            let message = "a key is a text; put it in quotes";
                            self.findings.error(at, Code::WrongType, message);
                            // A name that no field has, and that no other such key repeats.
                            format!("\u{0}{}:{}", at.line, at.column)
                        }
                    };
                    if members.iter().any(|(earlier, _)| earlier.name == name) {
                        let message = format!("key {} occurs twice", shown(&name));
                        self.findings.error(at, Code::DuplicateKey, message);
                    }
                    *key = Some(Key { name, at });
                }
            },
        }
    }

    /// Resolves a plain scalar: JSON's words and numbers; other spellings of numbers are refused, not guessed.
    fn plain(&mut self, text: &str, at: Place) -> Kind {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
            "true" | "True" | "TRUE" => return Kind::Bool(true),
            "false" | "False" | "FALSE" => return Kind::Bool(false),
            _ => {}
        }
        match Decimal::parse(text) {
            Ok(decimal) => Kind::Number(decimal),
            Err(ParseDecimalError::OutOfRange { .. }) => {
                let message = format!("{} has more than 34 digits or is too large", shown(text));
                self.findings.error(at, Code::BadValue, message);
                Kind::Broken
            }
            Err(ParseDecimalError::Syntax) if is_odd_number(text) => {
                let message = format!(
                    "{} is a number in some readers and a text in others: write it as JSON does, or in quotes",
                    shown(text)
                );
                self.findings.error(at, Code::BadValue, message);
                Kind::Broken
            }
            Err(ParseDecimalError::Syntax) => Kind::Text(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut findings = Findings::new("f.yaml");
        read(text, &mut findings);
        let list = findings.into_list();
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_tree_knows_its_places() {
        let mut findings = Findings::new("f.yaml");
        let node = read("a: 1\nb:\n  - x\n  - {c: yes, d: 0.50}\n", &mut findings).unwrap();
        assert!(findings.into_list().is_empty());
        assert_eq!(
            node.to_value().to_json(),
            r#"{"a":1,"b":["x",{"c":"yes","d":0.5}]}"#
        );
        let Kind::Map(members) = &node.kind else {
            panic!("not a map")
        };
        assert_eq!(members[1].0.at, Place { line: 2, column: 1 });
    }

    #[test]
    fn everything_odd_is_found_at_once_with_line_and_column() {
        let text = "a: &x 1\nb: *x\nc: !!str 2\na: 0x10\n? [k]\n: 1\n";
        assert_eq!(
            found(text),
            [
                "f.yaml:1:4: error[unsupported_yaml]: anchors are not allowed: write the value out",
                "f.yaml:2:4: error[unsupported_yaml]: aliases are not allowed: write the value out",
                "f.yaml:3:4: error[unsupported_yaml]: tags are not allowed",
                "f.yaml:4:1: error[duplicate_key]: key `a` occurs twice",
                "f.yaml:4:4: error[bad_value]: `0x10` is a number in some readers and a text in others: \
                 write it as JSON does, or in quotes",
                "f.yaml:5:3: error[wrong_type]: a key is a text; put it in quotes",
            ]
        );
    }

    #[test]
    fn texts_that_look_like_numbers_are_texts_only_when_every_reader_agrees() {
        for text in [
            "1_000", "+5", ".5", "5.", "010", ".inf", "-.Inf", "0o17", "0b1",
        ] {
            assert_eq!(found(&format!("a: {text}")).len(), 1, "{text}");
        }
        for text in [
            "2026-11-15",
            "1.2.3",
            "v1",
            "a.b",
            "e5",
            "12:30",
            "yes",
            "12ab",
        ] {
            assert!(found(&format!("a: {text}")).is_empty(), "{text}");
        }
    }

    #[test]
    fn r35_sizes_of_files_hold() {
        assert!(found(&format!("# {}", "x".repeat(256 << 10)))[0].contains("too_large"));
        assert!(found(&format!("[{}]", "1,".repeat(20_000)))[0].contains("too_large"));
        assert!(found(&format!("[{}]", "1,".repeat(19_990))).is_empty());
        assert!(!found(&"[".repeat(60_000)).is_empty());
        assert!(!found(&"- ".repeat(100)).is_empty());
        assert_eq!(found(""), ["f.yaml: error[syntax]: the file is empty"]);
        assert!(found("a: 1\n---\nb: 1\n")[0].contains("one document"));
        assert!(found("a: [1\nb: 2")[0].contains("error[syntax]"));
    }
}
