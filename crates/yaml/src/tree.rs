//! Parser events to a tree whose nodes know their place.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use crate::{Limits, Place, YamlError};

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) kind: Kind,
    /// How many values it is, with those inside.
    nodes: usize,
}

/// What a node is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A scalar without quotes: what it is depends on who asks.
    Plain(String),
    Text(String),
    List(Vec<Rc<Node>>),
    /// Keys are scalars, and no two are the same.
    Map(Vec<(Rc<Node>, Rc<Node>)>),
}

impl Node {
    /// Returns the text of a scalar.
    pub(crate) fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Plain(text) | Kind::Text(text) => Some(text),
            Kind::List(_) | Kind::Map(_) => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Plain(text) if is_null(text))
    }
}

pub(crate) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Reads the one document of a text.
pub(crate) fn parse(text: &str, limits: Limits) -> Result<Rc<Node>, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder {
        limits,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        root: None,
        nodes: 0,
    };
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| YamlError::at(place(*error.marker()), error.info()))?;
        let at = place(span.start);
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                return Err(YamlError::at(at, "a file holds one document"));
            }
        }
        builder.take(event, at)?;
    }
    Ok(builder.root.unwrap_or_else(|| {
        Rc::new(Node {
            place: Place { line: 1, column: 1 },
            kind: Kind::Plain(String::new()),
            nodes: 1,
        })
    }))
}

fn place(marker: Marker) -> Place {
    Place {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

struct Builder {
    limits: Limits,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Rc<Node>>,
    root: Option<Rc<Node>>,
    nodes: usize,
}

/// A collection whose end has not come.
struct Open {
    place: Place,
    anchor: usize,
    /// How many values came before it.
    before: usize,
    collection: Collection,
}

enum Collection {
    List(Vec<Rc<Node>>),
    Map {
        members: Vec<(Rc<Node>, Rc<Node>)>,
        names: BTreeSet<String>,
        key: Option<Rc<Node>>,
    },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Place) -> Result<(), YamlError> {
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
                    return Err(YamlError::at(at, "an alias inside of what it names"));
                };
                self.count(node.nodes, at)?;
                self.attach(node, at)
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                self.count(1, at)?;
                let text = text.into_owned();
                let kind = match style {
                    ScalarStyle::Plain => Kind::Plain(text),
                    ScalarStyle::SingleQuoted
                    | ScalarStyle::DoubleQuoted
                    | ScalarStyle::Literal
                    | ScalarStyle::Folded => Kind::Text(text),
                };
                self.close(kind, 1, anchor, at)
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                self.open(Collection::List(Vec::new()), anchor, at)
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                let map = Collection::Map {
                    members: Vec::new(),
                    names: BTreeSet::new(),
                    key: None,
                };
                self.open(map, anchor, at)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else {
                    return Ok(());
                };
                let kind = match open.collection {
                    Collection::List(items) => Kind::List(items),
                    Collection::Map { members, .. } => Kind::Map(members),
                };
                let nodes = self.nodes - open.before;
                self.close(kind, nodes, open.anchor, open.place)
            }
        }
    }

    fn open(
        &mut self,
        collection: Collection,
        anchor: usize,
        place: Place,
    ) -> Result<(), YamlError> {
        if self.open.len() >= self.limits.depth_max {
            let message = format!("nested deeper than {} levels", self.limits.depth_max);
            return Err(YamlError::at(place, message));
        }
        let before = self.nodes;
        self.count(1, place)?;
        self.open.push(Open {
            place,
            anchor,
            before,
            collection,
        });
        Ok(())
    }

    fn count(&mut self, nodes: usize, at: Place) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.limits.nodes_max {
            let message = format!("more than {} values", self.limits.nodes_max);
            return Err(YamlError::at(at, message));
        }
        Ok(())
    }

    fn close(
        &mut self,
        kind: Kind,
        nodes: usize,
        anchor: usize,
        place: Place,
    ) -> Result<(), YamlError> {
        let node = Rc::new(Node { place, kind, nodes });
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.attach(node, place)
    }

    /// Puts a node into the collection it stands in. An alias stands elsewhere than what it names.
    fn attach(&mut self, node: Rc<Node>, at: Place) -> Result<(), YamlError> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.collection {
            Collection::List(items) => items.push(node),
            Collection::Map {
                members,
                names,
                key,
            } => match key.take() {
                Some(key) => members.push((key, node)),
                None => {
                    let Some(name) = node.scalar().filter(|_| !node.is_null()) else {
                        return Err(YamlError::at(at, "a key is a text; put it in quotes"));
                    };
                    if matches!(&node.kind, Kind::Plain(name) if name == "<<") {
                        let message = "merge keys are not supported: write the members out";
                        return Err(YamlError::at(at, message));
                    }
                    if !names.insert(name.to_owned()) {
                        return Err(YamlError::at(at, format!("key `{name}` occurs twice")));
                    }
                    *key = Some(node);
                }
            },
        }
        Ok(())
    }
}

fn refuse_tag(has_tag: bool, at: Place) -> Result<(), YamlError> {
    match has_tag {
        true => Err(YamlError::at(at, "tags are not supported")),
        false => Ok(()),
    }
}
