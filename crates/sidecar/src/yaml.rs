//! The reader of structured inputs: YAML 1.2 core schema (and so JSON) to one JSON value.
//!
//! Works on parser events and resolves scalars, keys, tags and aliases itself, because the recorded
//! hashes depend on each of these choices. What the reference stack hashes with loss is refused here
//! and never guessed: the caller gets an error, not another hash.
//!
//! Owns no file and no hash. Every size is bounded by [`Limits`].

mod build;
mod scalar;
mod source;

use std::borrow::Cow;

use canon::Value;
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use build::{Anchor, Builder, Key};
use scalar::Explicit;

pub(crate) use scalar::{Resolved, resolve as resolve_plain};

/// What to do with infinities and NaN, which no JSON value can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonFinite {
    /// Read them as null, as `ahd-js-1` writes them.
    Null,
    /// Refuse them, as `jcs-1` does.
    Refuse,
}

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
pub fn read_yaml(bytes: &[u8], non_finite: NonFinite, limits: Limits) -> Result<Value, YamlError> {
    let source = source::prepare(bytes, limits.input_bytes_max)?;
    let mut builder = Builder::new(limits);
    let mut documents = 0;
    let mut last_style = ScalarStyle::Plain;
    let mut blank_tail = false;
    for event in Parser::new_from_str(source.text()) {
        let (event, span) = event.map_err(|error| refuse_scan(&error))?;
        let at = span.start;
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(YamlError::new(
                        YamlRefusal::Syntax,
                        "more than one document",
                        at.line(),
                    ));
                }
            }
            Event::Alias(id) => builder.alias(id, at.line())?,
            Event::Scalar(text, style, anchor, tag) => {
                last_style = style;
                blank_tail |= ends_in_blank_line(&text, style);
                let text = source.restore(text, style == ScalarStyle::DoubleQuoted);
                let resolved = resolve(&text, style, tag.as_deref(), at)?;
                check_number(resolved, &text, non_finite, at)?;
                let anchor = (anchor > 0).then(|| Anchor {
                    id: anchor,
                    key: key_of(resolved, Cow::Borrowed(&*text)).name,
                    value: value_of(resolved, Cow::Borrowed(&*text)),
                });
                if builder.wants_key() {
                    builder.key(key_of(resolved, text), anchor, at.line())?;
                } else {
                    builder.scalar(value_of(resolved, text), anchor, at.line())?;
                }
            }
            Event::SequenceStart(anchor, tag) => {
                expect_tag(tag.as_deref(), "seq", at)?;
                builder.open_sequence(anchor, at.line())?;
            }
            Event::MappingStart(anchor, tag) => {
                expect_tag(tag.as_deref(), "map", at)?;
                builder.open_mapping(anchor, at.line())?;
            }
            Event::SequenceEnd | Event::MappingEnd => builder.close(at.line())?,
        }
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
    Ok(builder.finish())
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
    non_finite: NonFinite,
    at: Marker,
) -> Result<(), YamlError> {
    let Resolved::Number(number) = resolved else {
        return Ok(());
    };
    let message = if number.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit()) {
        "number beyond a double"
    } else if !number.is_finite() && non_finite == NonFinite::Refuse {
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

fn key_of(resolved: Resolved, text: Cow<'_, str>) -> Key {
    let (name, derived) = match resolved {
        Resolved::Null => (String::new(), true),
        Resolved::Bool(value) => (value.to_string(), true),
        Resolved::Number(number) => (scalar::number_key(number), true),
        Resolved::Text => (text.into_owned(), false),
    };
    Key { name, derived }
}

fn value_of(resolved: Resolved, text: Cow<'_, str>) -> Value {
    match resolved {
        Resolved::Null => Value::Null,
        Resolved::Bool(value) => Value::Bool(value),
        Resolved::Number(number) => scalar::number_value(number),
        Resolved::Text => Value::String(text.into_owned()),
    }
}
