//! What a scalar means: the YAML 1.2 core schema, and numbers as JavaScript reads them.
//!
//! Knows nothing of documents, keys or tags beyond their names.

/// The meaning of a scalar; `Text` stands for the scalar's own characters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resolved {
    Null,
    Bool(bool),
    Number(f64),
    Text,
}

/// A core tag that a scalar may carry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Explicit {
    Str,
    Int,
    Float,
    Bool,
    Null,
}

impl Explicit {
    pub(super) fn named(suffix: &str) -> Option<Self> {
        match suffix {
            "str" => Some(Self::Str),
            "int" => Some(Self::Int),
            "float" => Some(Self::Float),
            "bool" => Some(Self::Bool),
            "null" => Some(Self::Null),
            _ => None,
        }
    }

    /// Returns the meaning under this tag, or nothing when the text does not fit it.
    pub(super) fn resolve(self, text: &str) -> Option<Resolved> {
        let resolved = resolve(text);
        match (self, resolved) {
            (Self::Str, _) => Some(Resolved::Text),
            (Self::Int, Resolved::Number(_)) if integer(text).is_some() => Some(resolved),
            // `!!float 3` is left a string by the reference, so only texts that are floats pass.
            (Self::Float, Resolved::Number(_)) if integer(text).is_none() => Some(resolved),
            (Self::Bool, Resolved::Bool(_)) | (Self::Null, Resolved::Null) => Some(resolved),
            _ => None,
        }
    }
}

/// Resolves a plain scalar.
pub(crate) fn resolve(text: &str) -> Resolved {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Resolved::Null,
        "true" | "True" | "TRUE" => return Resolved::Bool(true),
        "false" | "False" | "FALSE" => return Resolved::Bool(false),
        _ => {}
    }
    // Nearly every scalar is a word; its first byte rules a number out.
    if !text
        .as_bytes()
        .first()
        .is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.'))
    {
        return Resolved::Text;
    }
    integer(text)
        .or_else(|| float(text))
        .map_or(Resolved::Text, Resolved::Number)
}

fn integer(text: &str) -> Option<f64> {
    if let Some(digits) = text.strip_prefix("0o") {
        return power_of_two_radix(digits, 3);
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return power_of_two_radix(digits, 4);
    }
    let digits = unsigned(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn float(text: &str) -> Option<f64> {
    let body = unsigned(text);
    match body {
        ".inf" | ".Inf" | ".INF" => {
            return Some(if text.starts_with('-') {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            });
        }
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    let (mantissa, exponent) = match body.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(unsigned(exponent))),
        None => (body, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent_fits = exponent.is_none_or(|text| !text.is_empty() && digits(text));
    (mantissa_fits && exponent_fits)
        .then(|| text.parse().ok())
        .flatten()
}

fn unsigned(text: &str) -> &str {
    text.strip_prefix(['+', '-']).unwrap_or(text)
}

/// Reads digits of a radix 2^`bits` as the nearest double, ties to even.
fn power_of_two_radix(digits: &str, bits: u32) -> Option<f64> {
    if digits.is_empty() {
        return None;
    }
    let mut mantissa = 0_u64;
    let mut dropped_digits = 0_i32;
    let mut sticky = false;
    for digit in digits.chars() {
        let digit = u64::from(digit.to_digit(1 << bits)?);
        if mantissa.leading_zeros() >= bits {
            mantissa = mantissa << bits | digit;
        } else {
            dropped_digits = dropped_digits.saturating_add(1);
            sticky |= digit != 0;
        }
    }
    // At least 61 bits are held, so a sticky lowest bit rounds like the digits that were dropped.
    let head = (mantissa | u64::from(sticky)) as f64;
    let scale = 2_f64.powi(dropped_digits.saturating_mul(bits.cast_signed()));
    Some(head * scale)
}

/// Returns a number as JavaScript writes it when it becomes a member name.
pub(super) fn number_key(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number == f64::INFINITY {
        "Infinity".to_owned()
    } else if number == f64::NEG_INFINITY {
        "-Infinity".to_owned()
    } else {
        canon::number(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Resolved) {
        assert_eq!(resolve(text), expect, "{text}");
    }

    #[test]
    fn rb_can_04_only_core_spellings_are_numbers() {
        for (text, number) in [
            ("017", 17.0),
            ("0o17", 15.0),
            ("0x1f", 31.0),
            ("+12", 12.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("-.5", -0.5),
            ("1.e2", 100.0),
            ("1E+2", 100.0),
            ("-.INF", f64::NEG_INFINITY),
        ] {
            check(text, Resolved::Number(number));
        }
        for text in [
            "1_000", "0b11", "-0x1", "+0o7", "0x", "0o8", "1e", "1e+", ".", "-", "+.nan", ".e1",
            "1.2.3", "infinity", "nan", "inf", "0x1p3", "1e5e5", "12:30",
        ] {
            check(text, Resolved::Text);
        }
    }

    #[test]
    fn rb_can_06_hexadecimal_rounds_to_nearest_even() {
        check(
            "0x20000000000001",
            Resolved::Number(9_007_199_254_740_992.0),
        );
        check(
            "0x20000000000003",
            Resolved::Number(9_007_199_254_740_996.0),
        );
        // Half way, with and without a digit far to the right that decides.
        let tie = format!("0x20000000000001{}", "0".repeat(20));
        check(&tie, Resolved::Number(2_f64.powi(53 + 80)));
        let above = format!("0x20000000000001{}1", "0".repeat(19));
        check(
            &above,
            Resolved::Number((2_f64.powi(53) + 2.0) * 2_f64.powi(80)),
        );
        check(
            &format!("0x{}", "f".repeat(400)),
            Resolved::Number(f64::INFINITY),
        );
    }
}
