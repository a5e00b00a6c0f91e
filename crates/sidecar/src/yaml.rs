//! The reader of structured inputs: YAML 1.2 core schema (and so JSON) to one canonical text.
//!
//! Works on parser events and resolves scalars, keys, tags and aliases itself, because the recorded
//! hashes depend on each of these choices. What the reference stack hashes with loss is refused here
//! and never guessed: the caller gets an error, not another hash.
//!
//! Owns no file. Every size is bounded by [`Limits`].

mod members;
mod scalar;
mod source;
mod text;
#[cfg(test)]
mod tree;
mod write;

use std::borrow::Cow;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::hash::Profile;
use scalar::Explicit;
use write::Writer;

pub(crate) use scalar::{Resolved, resolve as resolve_plain};
pub use text::CanonicalText;

/// Bounds of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest input. The parser buffers a whole flow collection, about 30 bytes for each byte read.
    pub input_bytes_max: usize,
    /// Deepest nesting of collections.
    pub depth_max: usize,
    /// Most nodes after alias expansion.
    pub nodes_max: usize,
    /// Most bytes of text in scalars after alias expansion.
    pub expanded_bytes_max: usize,
}

impl Limits {
    /// The bounds used for recorded inputs.
    pub const STANDARD: Self = Self {
        input_bytes_max: 4 << 20,
        depth_max: 200,
        nodes_max: 100_000,
        expanded_bytes_max: 16 << 20,
    };
}

/// Why a structured input was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YamlRefusal {
    /// Not one YAML document, or one with a duplicate key.
    Syntax,
    /// Valid YAML whose canonical form would lose meaning.
    Unsupported,
    /// Beyond one of the [`Limits`].
    TooLarge,
}

/// A refused structured input: the class, a message for people, and the line (0 when unknown).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (line {line})")]
pub struct YamlError {
    refusal: YamlRefusal,
    message: String,
    line: usize,
}

impl YamlError {
    fn new(refusal: YamlRefusal, message: impl Into<String>, line: usize) -> Self {
        Self {
            refusal,
            message: message.into(),
            line,
        }
    }

    /// Returns the class of the refusal.
    pub fn refusal(&self) -> YamlRefusal {
        self.refusal
    }
}

/// Reads one structured input.
///
/// # Errors
/// Not UTF-8, not YAML, several documents, a duplicate key, a construct that cannot be hashed without
/// loss, or a limit: see [`YamlRefusal`].
pub fn read_yaml(
    bytes: &[u8],
    profile: Profile,
    limits: Limits,
) -> Result<CanonicalText, YamlError> {
    let order = match profile {
        Profile::Jcs1 => canon::Profile::Jcs,
        Profile::AhdJs1 => canon::Profile::AhdJs1,
    };
    let mut writer = Writer::new(order, limits);
    walk(bytes, profile, limits, |item, line| writer.take(item, line))?;
    Ok(writer.finish())
}

/// What an event means to a value.
#[derive(Debug)]
enum Item<'a> {
    Scalar {
        resolved: Resolved,
        text: Cow<'a, str>,
        anchor: usize,
    },
    Alias(usize),
    OpenSequence(usize),
    OpenMapping(usize),
    Close,
}

/// Passes on the one document of a text, item by item with its line. Anchors count from 1; 0 is none.
fn walk(
    bytes: &[u8],
    profile: Profile,
    limits: Limits,
    mut pass: impl FnMut(Item<'_>, usize) -> Result<(), YamlError>,
) -> Result<(), YamlError> {
    let mut source = source::prepare(bytes, limits.input_bytes_max)?;
    accept_tabs(&mut source);
    let mut documents = 0;
    let mut last_style = ScalarStyle::Plain;
    let mut blank_tail = false;
    for event in Parser::new_from_str(source.text()) {
        let (event, span) = event.map_err(|error| refuse_scan(&error))?;
        let at = span.start;
        let item = match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(YamlError::new(
                        YamlRefusal::Syntax,
                        "more than one document",
                        at.line(),
                    ));
                }
                continue;
            }
            Event::Alias(id) => Item::Alias(id),
            Event::Scalar(text, style, anchor, tag) => {
                last_style = style;
                refuse_misread(&text, style, &source, span)?;
                blank_tail |= ends_in_blank_line(&text, style);
                let text = source.restore(text, style == ScalarStyle::DoubleQuoted);
                let resolved = resolve(&text, style, tag.as_deref(), at)?;
                check_number(resolved, &text, profile, at)?;
                Item::Scalar {
                    resolved,
                    text,
                    anchor,
                }
            }
            Event::SequenceStart(anchor, tag) => {
                expect_tag(tag.as_deref(), "seq", at)?;
                Item::OpenSequence(anchor)
            }
            Event::MappingStart(anchor, tag) => {
                expect_tag(tag.as_deref(), "map", at)?;
                Item::OpenMapping(anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => Item::Close,
        };
        pass(item, at.line())?;
    }
    // What such lines add to a block scalar differs between readers.
    let block = matches!(last_style, ScalarStyle::Literal | ScalarStyle::Folded);
    if (block && source.ends_in_blanks()) || (blank_tail && source.may_state_indentation()) {
        return Err(YamlError::new(
            YamlRefusal::Unsupported,
            "a block scalar that ends in a line of blanks",
            0,
        ));
    }
    Ok(())
}

/// How many bytes are parsed again, at most, to find tabs that the parser refuses.
const REPARSED_BYTES_MAX: usize = 64 << 20;

/// Makes spaces of tabs between a colon and a plain scalar. The parser says where it refuses one; where tabs are part of a
/// text it never does.
fn accept_tabs(source: &mut source::Source<'_>) {
    let mut parsed = 0;
    while source.text().contains(":\t") && parsed < REPARSED_BYTES_MAX {
        parsed += source.text().len();
        let refused = Parser::new_from_str(source.text()).find_map(Result::err);
        let at = refused
            .filter(|error| error.info() == "':' must be followed by a valid YAML whitespace")
            .map(|error| error.marker().index());
        if !at.is_some_and(|at| source.accept_tab_before(at)) {
            return;
        }
    }
}

/// Refuses scalars that the parser reads otherwise than the reference, or that the reference refuses.
fn refuse_misread(
    text: &str,
    style: ScalarStyle,
    source: &source::Source<'_>,
    span: Span,
) -> Result<(), YamlError> {
    let line = span.start.line();
    // Characters that no plain scalar begins with.
    const INDICATORS: [char; 14] = [
        ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '%', '@', '`',
    ];
    let is_plain = style == ScalarStyle::Plain;
    if is_plain && (text == "?" || text.starts_with(INDICATORS)) {
        let message = "a plain text that begins with an indicator";
        return Err(YamlError::new(YamlRefusal::Syntax, message, line));
    }
    let joins = || source.joins_empty_line(span.start.index(), span.end.index());
    if style == ScalarStyle::DoubleQuoted && joins() {
        let message = "a line that ends in a backslash before an empty line";
        return Err(YamlError::new(YamlRefusal::Unsupported, message, line));
    }
    Ok(())
}

fn ends_in_blank_line(text: &str, style: ScalarStyle) -> bool {
    let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
    let last = || text.trim_end_matches('\n').rsplit('\n').next();
    block
        && last().is_some_and(|line| !line.is_empty() && line.trim_matches([' ', '\t']).is_empty())
}

fn refuse_scan(error: &ScanError) -> YamlError {
    // The parser knows no surrogate escapes; whole pairs were joined before it saw the text.
    let refusal = if error.info().contains("invalid Unicode character escape") {
        YamlRefusal::Unsupported
    } else if error.info() == "recursion limit exceeded" {
        // Flow collections are scanned whole, so its own limit of depth comes before ours.
        YamlRefusal::TooLarge
    } else {
        YamlRefusal::Syntax
    };
    YamlError::new(refusal, error.info(), error.marker().line())
}

fn resolve(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Marker,
) -> Result<Resolved, YamlError> {
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => scalar::resolve(text),
            ScalarStyle::SingleQuoted
            | ScalarStyle::DoubleQuoted
            | ScalarStyle::Literal
            | ScalarStyle::Folded => Resolved::Text,
        });
    };
    core_suffix(tag)
        .and_then(Explicit::named)
        .and_then(|explicit| explicit.resolve(text))
        .ok_or_else(|| unsupported_tag(tag, at))
}

fn expect_tag(tag: Option<&Tag>, suffix: &str, at: Marker) -> Result<(), YamlError> {
    match tag {
        None => Ok(()),
        Some(tag) if core_suffix(tag) == Some(suffix) => Ok(()),
        Some(tag) => Err(unsupported_tag(tag, at)),
    }
}

fn core_suffix(tag: &Tag) -> Option<&str> {
    const CORE: &str = "tag:yaml.org,2002:";
    match tag.handle.as_str() {
        CORE => Some(&tag.suffix),
        "" => tag.suffix.strip_prefix(CORE),
        _ => None,
    }
}

fn unsupported_tag(tag: &Tag, at: Marker) -> YamlError {
    YamlError::new(
        YamlRefusal::Unsupported,
        format!(
            "tag `{}{}` here has no lossless form",
            tag.handle, tag.suffix
        ),
        at.line(),
    )
}

fn check_number(
    resolved: Resolved,
    text: &str,
    profile: Profile,
    at: Marker,
) -> Result<(), YamlError> {
    let Resolved::Number(number) = resolved else {
        return Ok(());
    };
    let message = if number.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit()) {
        "number beyond a double"
    } else if !number.is_finite() && profile == Profile::Jcs1 {
        "number without a JSON form"
    } else {
        return Ok(());
    };
    let shown: String = text.chars().take(40).collect();
    Err(YamlError::new(
        YamlRefusal::Unsupported,
        format!("{message}: `{shown}`"),
        at.line(),
    ))
}
