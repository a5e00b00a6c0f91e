//! `reprise canonicalize`: one value in, canonical bytes out.
//!
//! Each profile is read by its own rules: RFC 8785 from strict JSON with numbers as doubles, ahd-js-1 as replay blocks
//! read structured files, so that what has no lossless form there (RB-CAN-10) is refused here too. Receipts are stricter:
//! they hold no integer beyond ±(2^53−1), however it is written.

use std::io::{Read as _, Write as _};

use canon::{Integers, Reason};
use sidecar::{Profile, YamlRefusal, canonical_text};

use crate::args::{CanonicalProfile, CanonicalizeArgs};
use crate::exit::{Exit, OrHint, Problem};

/// Reads stdin and writes stdout.
pub(crate) fn run(args: &CanonicalizeArgs) -> anyhow::Result<Exit> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .or_hint("stdin", "give the text on stdin")?;
    let text = match args.profile {
        CanonicalProfile::Jcs => jcs(&bytes)?,
        CanonicalProfile::AhdJs1 => ahd_js_1(&bytes)?,
    };
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(Exit::Ok)
}

fn jcs(bytes: &[u8]) -> Result<Vec<u8>, Problem> {
    let value = canon::read(bytes, Integers::Doubles).map_err(|error| {
        let hint = match error.reason() {
            Reason::DuplicateKey => "name each member once",
            _ => "give one JSON text in UTF-8",
        };
        Problem::new(format!("stdin: {error}"), hint)
    })?;
    if let Some(integer) = changed_integer(bytes) {
        return Err(Problem::new(
            format!("stdin: the integer `{integer}` would become another number"),
            "write the integer as a string; as a number it would get other digits",
        ));
    }
    Ok(canon::jcs(&value))
}

/// Returns the first integer, written as such, that has another value as a double. The text is known to be JSON.
fn changed_integer(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    // Every second piece between unescaped quotation marks is a string.
    let mut is_string = false;
    let mut is_escaped = false;
    let outside = text.split(|character: char| {
        let ends = character == '"' && !is_escaped;
        is_escaped = is_string && character == '\\' && !is_escaped;
        is_string ^= ends;
        ends
    });
    let numbers = outside.step_by(2).flat_map(|piece| {
        piece.split(|character: char| !matches!(character, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'))
    });
    let mut integers = numbers.filter(|number| {
        let digits = number.strip_prefix('-').unwrap_or(number);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    // The shortest form of a double pads with zeros, which are not always its digits: what counts is what it says.
    integers.find(|integer| {
        let double = integer.parse::<f64>().map(|double| format!("{double:e}"));
        double.map(|double| magnitude(&double)) != Ok(magnitude(integer))
    })
}

/// Returns the digits of a number without zeros at their ends, and where the point stands.
fn magnitude(number: &str) -> (String, i64) {
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let mantissa = mantissa.trim_start_matches('-');
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0');
    let zeros = digits.len() - significant.len();
    if significant.is_empty() {
        return (String::new(), 0);
    }
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let point = whole.len() as i64 - zeros as i64 + exponent;
    (significant.trim_end_matches('0').to_owned(), point)
}

fn ahd_js_1(bytes: &[u8]) -> Result<Vec<u8>, Problem> {
    canonical_text(bytes, Profile::AhdJs1).map_err(|error| {
        let hint = match error.refusal() {
            YamlRefusal::Syntax => "give one JSON or YAML 1.2 document in UTF-8, each key once",
            YamlRefusal::Unsupported => "write it in a form that JSON can hold without loss",
            YamlRefusal::TooLarge => "hash a file of this size by its bytes",
        };
        Problem::new(format!("stdin: {error}"), hint)
    })
}
