//! The causal chain as a picture: Graphviz DOT and SVG, from the log alone.
//!
//! One node per event of the chain, in the order of the timeline; an edge from a reason to what it led to. The picture
//! is readable without colour: shapes and line styles tell kinds apart. Rows have a fixed height and each label its own
//! row, so that labels never overlap, however many there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{AnswerParts, Quotes, Reader, Target, chain, wording};
use crate::config::Limits;
use crate::error::Refusal;
use crate::event::{Entry, Event};
use crate::kind::Operation;
use crate::log::Log;

/// A causal chain as nodes and edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    title: String,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    label: String,
    shape: Shape,
}

/// What a node is, told by its outline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Unit,
    Conflict,
    Merge,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    from: usize,
    to: usize,
    label: &'static str,
}

impl Log {
    /// Returns the picture of a target's whole chain; `target.depth` is not looked at.
    ///
    /// # Errors
    /// The target does not exist, or its chain is larger than a timeline may be.
    pub fn graph(
        &self,
        target: &Target,
        reader: &Reader<'_>,
        limits: &Limits,
    ) -> Result<Graph, Refusal> {
        let (places, key) = chain::collect(self, target, limits)
            .map_err(|fault| fault.of(Some(Operation::Replay)))?;
        if places.len() > limits.replay_events_max {
            let message = format!("the chain has {} events", places.len());
            return Err(Refusal::new(
                crate::error::Code::ReplayTooLarge,
                message,
                Some(Operation::Replay),
            ));
        }
        let story = AnswerParts {
            log: self,
            reader,
            target,
            chain: places,
            key,
            quotes: Quotes::Words,
        };
        let entries: Vec<&Entry> = story
            .chain
            .iter()
            .filter_map(|place| self.entry(*place))
            .collect();
        Ok(Graph {
            title: format!("{} {}", target.kind, target.id),
            nodes: entries.iter().map(|entry| node(&story, entry)).collect(),
            edges: edges(&story, &entries),
        })
    }
}

fn node(story: &AnswerParts<'_, '_>, entry: &Entry) -> Node {
    let (agent, words) = if story.sees(entry) {
        (entry.agent_id.as_str(), wording::describe(story, entry))
    } else {
        (super::REDACTED, "(redacted)".to_owned())
    };
    let shape = match &entry.event {
        Event::Recorded(_) => Shape::Unit,
        Event::ConflictCreated { .. } | Event::ConflictEscalated { .. } => Shape::Conflict,
        Event::Merged(_) => Shape::Merge,
        _ => Shape::Other,
    };
    Node {
        label: format!("{} {agent}: {words}", entry.epoch),
        shape,
    }
}

/// Returns the edges between the entries of a chain, from reason to consequence, hidden units aside.
fn edges(story: &AnswerParts<'_, '_>, entries: &[&Entry]) -> Vec<Edge> {
    let mut units: BTreeMap<&str, usize> = BTreeMap::new();
    let mut conflicts: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, entry) in entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| story.sees(entry))
    {
        match &entry.event {
            Event::Recorded(recorded) => {
                units.insert(&recorded.unit_id, place);
            }
            Event::ConflictCreated { conflict_id, .. } => {
                conflicts.insert(conflict_id, place);
            }
            _ => {}
        }
    }
    let mut edges = Vec::new();
    let mut add = |from: Option<&usize>, to: Option<&usize>, label: &'static str| {
        if let (Some(from), Some(to)) = (from, to) {
            let (from, to) = (*from, *to);
            edges.push(Edge { from, to, label });
        }
    };
    for (place, entry) in entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| story.sees(entry))
    {
        match &entry.event {
            Event::Recorded(recorded) => {
                for relation in recorded.relations.iter().filter(|to| !to.unbound) {
                    let from = units.get(relation.target_id.as_str());
                    add(from, Some(&place), relation.kind.as_str());
                }
            }
            Event::ConflictCreated { unit_a, unit_b, .. } => {
                for unit in [unit_a, unit_b] {
                    add(units.get(unit.as_str()), Some(&place), "conflict");
                }
            }
            Event::Merged(merged) => {
                let conflict = conflicts.get(merged.conflict_id.as_str());
                add(conflict, Some(&place), "merge");
                let new = merged
                    .new_unit_id
                    .as_deref()
                    .and_then(|unit| units.get(unit));
                add(Some(&place), new, "synthesis");
            }
            event => {
                for unit in event.touched() {
                    add(units.get(unit.as_str()), Some(&place), "touched");
                }
            }
        }
    }
    edges
}

const ROW: usize = 28;
const TOP: usize = 48;
const LANES: usize = 12;
const LANE: usize = 14;
const LABEL_COLUMNS: usize = 110;
const COLUMN: usize = 8;

impl Graph {
    /// Returns how many events and connections the picture has.
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len(), self.edges.len())
    }

    /// Writes the picture in the language of Graphviz.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph replay {\n  rankdir=TB;\n");
        // Names that Graphviz knows the widths of.
        for kind in ["graph", "node", "edge"] {
            let _ = writeln!(dot, "  {kind} [fontname=\"Helvetica,Arial,sans-serif\"];");
        }
        let _ = writeln!(dot, "  label={};", quoted(&self.title));
        for (place, node) in self.nodes.iter().enumerate() {
            let shape = match node.shape {
                Shape::Unit => "box",
                Shape::Conflict => "octagon",
                Shape::Merge => "hexagon",
                Shape::Other => "note",
            };
            let _ = writeln!(
                dot,
                "  n{place} [shape={shape}, label={}];",
                quoted(&node.label)
            );
        }
        for edge in &self.edges {
            let _ = writeln!(
                dot,
                "  n{} -> n{} [label=\"{}\"];",
                edge.from, edge.to, edge.label
            );
        }
        dot.push_str("}\n");
        dot
    }

    /// Writes the picture as SVG: one row per event, arcs on the left from reason to consequence.
    pub fn to_svg(&self) -> String {
        let left = LANES * LANE + 24;
        let width = left + 24 + (LABEL_COLUMNS + 1) * COLUMN;
        let height = TOP + ROW * self.nodes.len() + 16;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"monospace\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <defs><marker id=\"arrow\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\" orient=\"auto\">\
             <path d=\"M0,0 L8,4 L0,8 z\"/></marker></defs>\n"
        );
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"28\" font-weight=\"bold\">{}</text>",
            escaped(&cut(&self.title))
        );
        let middle = |place: usize| TOP + ROW * place + ROW / 2;
        for (number, edge) in self.edges.iter().enumerate() {
            let lane = left.saturating_sub(16 + (number % LANES) * LANE);
            let dashes = match edge.label {
                "contradicts" | "conflict" => " stroke-dasharray=\"5 3\"",
                "touched" => " stroke-dasharray=\"1 3\"",
                _ => "",
            };
            let (from, to) = (middle(edge.from), middle(edge.to));
            let _ = writeln!(
                svg,
                "<path d=\"M{left},{from} C{lane},{from} {lane},{to} {left},{to}\" fill=\"none\" stroke=\"black\"{dashes} \
                 marker-end=\"url(#arrow)\"><title>{}</title></path>",
                edge.label
            );
        }
        for (place, node) in self.nodes.iter().enumerate() {
            let y = middle(place);
            let (x, top) = (left + 10, y - 6);
            let _ = match node.shape {
                Shape::Unit => writeln!(
                    svg,
                    "<rect x=\"{}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"white\" stroke=\"black\"/>",
                    x - 6
                ),
                Shape::Conflict => writeln!(
                    svg,
                    "<path d=\"M{x},{top} l8,12 h-16 z\" fill=\"white\" stroke=\"black\"/>"
                ),
                Shape::Merge => writeln!(
                    svg,
                    "<path d=\"M{x},{top} l7,6 l-7,6 l-7,-6 z\" fill=\"black\"/>"
                ),
                Shape::Other => writeln!(
                    svg,
                    "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"white\" stroke=\"black\"/>"
                ),
            };
            let label = cut(&node.label);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                left + 24,
                y + 5,
                escaped(&label)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Cuts a label to the width of the picture; letters of scripts from Hangul on take two columns.
fn cut(label: &str) -> String {
    let columns = |character: char| if character < '\u{1100}' { 1 } else { 2 };
    if label.chars().map(columns).sum::<usize>() <= LABEL_COLUMNS {
        return label.to_owned();
    }
    let mut used = 0;
    let shown = label.chars().take_while(|character| {
        used += columns(*character);
        used < LABEL_COLUMNS
    });
    shown.chain(['…']).collect()
}

/// Makes a text safe inside DOT quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            other if other.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Makes a text safe inside SVG.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            other if other.is_control() || matches!(other, '\u{fffe}' | '\u{ffff}') => {
                out.push(' ')
            }
            other => out.push(other),
        }
    }
    out
}
