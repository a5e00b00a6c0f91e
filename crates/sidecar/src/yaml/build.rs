//! Events to one value: open collections, anchors, aliases, and the bounds.
//!
//! Knows nothing of scalars' meaning: keys and values arrive resolved.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Map, Value};

use super::{Limits, YamlError, YamlRefusal};

/// A member name, and whether it was made from something that is not a string scalar.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) derived: bool,
}

/// A scalar that an alias may repeat: what it gives as a key and as a value.
#[derive(Debug)]
pub(super) struct Anchor {
    pub(super) id: usize,
    pub(super) key: String,
    pub(super) value: Value,
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

/// What an anchor names, once its node is complete.
#[derive(Debug)]
struct Anchored {
    value: Value,
    /// The name this node gives as a key; collections give none.
    key: Option<String>,
    size: Size,
    /// The reference's guard against expansion: uses (the node itself is one) times the heaviest
    /// alias inside.
    uses: usize,
    weight: usize,
}

/// `uses × weight` beyond this is refused, as in the reference: the hundredth alias of a scalar.
const ALIAS_WEIGHT_MAX: usize = 100;

#[derive(Debug)]
enum Open {
    Sequence(Vec<Value>),
    Mapping {
        members: Map<String, Value>,
        derived: BTreeSet<String>,
        key: Option<String>,
    },
}

#[derive(Debug)]
struct Frame {
    open: Open,
    anchor: usize,
    before: Size,
    weight: usize,
}

#[derive(Debug)]
pub(super) struct Builder {
    limits: Limits,
    frames: Vec<Frame>,
    anchors: BTreeMap<usize, Anchored>,
    size: Size,
    root: Value,
}

impl Builder {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            frames: Vec::new(),
            anchors: BTreeMap::new(),
            size: Size::default(),
            root: Value::Null,
        }
    }

    pub(super) fn finish(self) -> Value {
        self.root
    }

    /// Says whether the next node is a member name.
    pub(super) fn wants_key(&self) -> bool {
        matches!(
            self.frames.last(),
            Some(Frame {
                open: Open::Mapping { key: None, .. },
                ..
            })
        )
    }

    pub(super) fn key(
        &mut self,
        key: Key,
        anchor: Option<Anchor>,
        line: usize,
    ) -> Result<(), YamlError> {
        self.leaf(key.name.len(), anchor, line)?;
        self.put_key(key, line)
    }

    pub(super) fn scalar(
        &mut self,
        value: Value,
        anchor: Option<Anchor>,
        line: usize,
    ) -> Result<(), YamlError> {
        self.leaf(value.as_str().map_or(0, str::len), anchor, line)?;
        self.put(value, line)
    }

    fn leaf(&mut self, bytes: usize, anchor: Option<Anchor>, line: usize) -> Result<(), YamlError> {
        let size = Size { nodes: 1, bytes };
        self.charge(size, line)?;
        if let Some(Anchor { id, key, value }) = anchor {
            let anchored = Anchored {
                value,
                key: Some(key),
                size,
                uses: 1,
                weight: 1,
            };
            self.anchors.insert(id, anchored);
        }
        Ok(())
    }

    pub(super) fn alias(&mut self, anchor: usize, line: usize) -> Result<(), YamlError> {
        let wants_key = self.wants_key();
        let Some(target) = self.anchors.get_mut(&anchor) else {
            return Err(unsupported("an alias inside the node it names", line));
        };
        target.uses += 1;
        let weight = target.uses.saturating_mul(target.weight);
        if weight > ALIAS_WEIGHT_MAX {
            return Err(YamlError::new(
                YamlRefusal::TooLarge,
                "too many uses of one alias",
                line,
            ));
        }
        let size = target.size;
        if wants_key {
            let Some(name) = target.key.clone() else {
                return Err(unsupported("a collection as a key", line));
            };
            self.charge(size, line)?;
            // An alias is not compared with its target by the reference: a collision is no duplicate.
            let key = Key {
                name,
                derived: true,
            };
            return self.put_key(key, line);
        }
        if self.size.nodes + size.nodes > self.limits.nodes_max {
            return Err(too_large("nodes", self.limits.nodes_max, line));
        }
        let value = target.value.clone();
        if let Some(frame) = self.frames.last_mut() {
            frame.weight = frame.weight.max(weight);
        }
        self.charge(size, line)?;
        self.put(value, line)
    }

    pub(super) fn open_sequence(&mut self, anchor: usize, line: usize) -> Result<(), YamlError> {
        self.open(Open::Sequence(Vec::new()), anchor, line)
    }

    pub(super) fn open_mapping(&mut self, anchor: usize, line: usize) -> Result<(), YamlError> {
        let open = Open::Mapping {
            members: Map::new(),
            derived: BTreeSet::new(),
            key: None,
        };
        self.open(open, anchor, line)
    }

    fn open(&mut self, open: Open, anchor: usize, line: usize) -> Result<(), YamlError> {
        if self.wants_key() {
            return Err(unsupported("a collection as a key", line));
        }
        if self.frames.len() >= self.limits.depth_max {
            return Err(too_large("levels", self.limits.depth_max, line));
        }
        let before = self.size;
        self.charge(Size { nodes: 1, bytes: 0 }, line)?;
        self.frames.push(Frame {
            open,
            anchor,
            before,
            weight: 1,
        });
        Ok(())
    }

    pub(super) fn close(&mut self, line: usize) -> Result<(), YamlError> {
        let Some(frame) = self.frames.pop() else {
            return Err(YamlError::new(YamlRefusal::Syntax, "unbalanced end", line));
        };
        let value = match frame.open {
            Open::Sequence(items) => Value::Array(items),
            Open::Mapping { members, .. } => Value::Object(members),
        };
        if frame.anchor > 0 {
            let size = Size {
                nodes: self.size.nodes - frame.before.nodes,
                bytes: self.size.bytes - frame.before.bytes,
            };
            let anchored = Anchored {
                value: value.clone(),
                key: None,
                size,
                uses: 1,
                weight: frame.weight,
            };
            self.anchors.insert(frame.anchor, anchored);
        }
        if let Some(parent) = self.frames.last_mut() {
            parent.weight = parent.weight.max(frame.weight);
        }
        self.put(value, line)
    }

    fn charge(&mut self, size: Size, line: usize) -> Result<(), YamlError> {
        self.size.nodes += size.nodes;
        self.size.bytes += size.bytes;
        if self.size.nodes > self.limits.nodes_max {
            return Err(too_large("nodes", self.limits.nodes_max, line));
        }
        if self.size.bytes > self.limits.expanded_bytes_max {
            let max = self.limits.expanded_bytes_max;
            return Err(too_large("bytes of text after expansion", max, line));
        }
        Ok(())
    }

    fn put_key(&mut self, new: Key, line: usize) -> Result<(), YamlError> {
        let Some(Frame {
            open:
                Open::Mapping {
                    members,
                    derived,
                    key,
                },
            ..
        }) = self.frames.last_mut()
        else {
            return Err(YamlError::new(
                YamlRefusal::Syntax,
                "a key outside a map",
                line,
            ));
        };
        if new.name == "__proto__" {
            return Err(unsupported("`__proto__` as a key", line));
        }
        if members.contains_key(&new.name) {
            let shown: String = new.name.chars().take(40).collect();
            return Err(if new.derived == derived.contains(&new.name) {
                YamlError::new(
                    YamlRefusal::Syntax,
                    format!("duplicate key `{shown}`"),
                    line,
                )
            } else {
                unsupported(&format!("two keys that are both `{shown}` as text"), line)
            });
        }
        if new.derived {
            derived.insert(new.name.clone());
        }
        *key = Some(new.name);
        Ok(())
    }

    fn put(&mut self, value: Value, line: usize) -> Result<(), YamlError> {
        match self.frames.last_mut().map(|frame| &mut frame.open) {
            None => self.root = value,
            Some(Open::Sequence(items)) => items.push(value),
            Some(Open::Mapping { members, key, .. }) => {
                let Some(name) = key.take() else {
                    return Err(unsupported("a collection as a key", line));
                };
                members.insert(name, value);
            }
        }
        Ok(())
    }
}

fn unsupported(message: &str, line: usize) -> YamlError {
    YamlError::new(YamlRefusal::Unsupported, message, line)
}

fn too_large(what: &str, max: usize, line: usize) -> YamlError {
    YamlError::new(
        YamlRefusal::TooLarge,
        format!("more than {max} {what}"),
        line,
    )
}
