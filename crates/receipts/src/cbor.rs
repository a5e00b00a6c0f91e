//! The archive form of a receipt: the same data in deterministic CBOR, RFC 8949 section 4.2.1.
//!
//! Speaks only what JSON can say: no tags, byte strings, undefined or indefinite lengths. The hash of
//! a receipt is never taken from this form.

use canon::{Map, Number, Value};

use crate::{receipt::Receipt, shape::ShapeError};

/// The media type of the archive form.
pub const MEDIA_TYPE: &str = "application/vnd.harn.receipt+cbor; schema=receipt-2026-04-25";

/// The bytes are not an archived receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// Not CBOR that JSON could say.
    #[error("{problem} at byte {at}")]
    Cbor {
        /// What was seen.
        problem: &'static str,
        /// Where it was seen.
        at: usize,
    },
    /// The same data has another, deterministic form.
    #[error("not in deterministic form")]
    NotDeterministic,
    /// The data has another shape than a receipt.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

/// Writes a receipt in the archive form.
pub fn write(receipt: &Receipt) -> Vec<u8> {
    let mut out = Vec::new();
    encode_map(&mut out, receipt.as_map());
    out
}

/// Reads a receipt from the archive form.
///
/// # Errors
/// The bytes are not deterministic CBOR of the JSON data model, or have another shape.
pub fn read(bytes: &[u8]) -> Result<Receipt, ArchiveError> {
    match decode(bytes)? {
        Value::Object(map) => Ok(Receipt::from_map(map)?),
        _ => Err(ArchiveError::Cbor {
            problem: "not a map",
            at: 0,
        }),
    }
}

const DEPTH_MAX: usize = 127;
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const SIMPLE: u8 = 7;

fn encode(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(false) => out.push(0xf4),
        Value::Bool(true) => out.push(0xf5),
        Value::Number(number) => encode_number(out, number),
        Value::String(text) => encode_text(out, text),
        Value::Array(items) => {
            head(out, ARRAY, items.len() as u64);
            for item in items {
                encode(out, item);
            }
        }
        Value::Object(map) => encode_map(out, map),
    }
}

fn encode_map(out: &mut Vec<u8>, map: &Map<String, Value>) {
    head(out, MAP, map.len() as u64);
    let mut members: Vec<(&String, &Value)> = map.iter().collect();
    // The encoded name starts with its length, so shorter names come first.
    members.sort_by_key(|(name, _)| (name.len(), name.as_bytes()));
    for (name, value) in members {
        encode_text(out, name);
        encode(out, value);
    }
}

fn encode_text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn encode_number(out: &mut Vec<u8>, number: &Number) {
    if let Some(integer) = number.as_u64() {
        head(out, UNSIGNED, integer);
    } else if let Some(integer) = number.as_i64() {
        head(out, NEGATIVE, !integer.cast_unsigned());
    } else if let Some(double) = number.as_f64() {
        let magnitude = double.abs();
        if double.fract() == 0.0 && magnitude <= SAFE_INTEGER_MAX as f64 {
            // Exact: whole and within 53 bits. JSON prints such doubles as integers too.
            let whole = magnitude as u64;
            if double < 0.0 {
                head(out, NEGATIVE, whole - 1);
            } else {
                head(out, UNSIGNED, whole);
            }
        } else {
            encode_double(out, double);
        }
    }
}

fn encode_double(out: &mut Vec<u8>, double: f64) {
    let single = double as f32;
    if f64::from(single) != double {
        out.push(0xfb);
        out.extend_from_slice(&double.to_be_bytes());
    } else if let Some(half) = half_from(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    let (info, length) = match argument {
        0..24 => (argument as u8, 0),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    out.push(major | info);
    out.extend_from_slice(bytes.get(8 - length..).unwrap_or_default());
}

/// Returns the half-precision bits of a finite single, if that loses nothing.
fn half_from(single: f32) -> Option<u16> {
    let bits = single.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23 & 0xff) as i32 - 127;
    let significand = bits & 0x7f_ffff;
    let half = match exponent {
        // Normal halves: ten bits of fraction.
        -14..=15 if significand.trailing_zeros() >= 13 => {
            ((exponent + 15) as u16) << 10 | (significand >> 13) as u16
        }
        // Subnormal halves: multiples of 2^-24.
        -24..=-15 => {
            let whole = significand | 0x80_0000;
            let shift = (-1 - exponent).cast_unsigned();
            if whole.trailing_zeros() < shift {
                return None;
            }
            (whole >> shift) as u16
        }
        _ => return None,
    };
    Some(sign | half)
}

fn double_from_half(half: u16) -> f64 {
    let fraction = f64::from(half & 0x3ff);
    let magnitude = match half >> 10 & 0x1f {
        0 => fraction / 16_777_216.0,
        31 => f64::INFINITY,
        exponent => (1024.0 + fraction) / 1024.0 * 2_f64.powi(i32::from(exponent) - 15),
    };
    if half & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Decodes leniently what can be told apart, then lets the encoder decide: whatever is not written
/// back to the same bytes was not in deterministic form.
fn decode(bytes: &[u8]) -> Result<Value, ArchiveError> {
    let mut decoder = Decoder { bytes, at: 0 };
    let value = decoder.value(1)?;
    if decoder.at != bytes.len() {
        return decoder.refuse("more after the end");
    }
    let mut again = Vec::with_capacity(bytes.len());
    encode(&mut again, &value);
    if again != bytes {
        return Err(ArchiveError::NotDeterministic);
    }
    Ok(value)
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, ArchiveError> {
        let (major, info) = self.initial()?;
        match major {
            UNSIGNED => {
                let integer = self.argument(info)?;
                self.safe(integer).map(Value::from)
            }
            NEGATIVE => {
                let integer = self.argument(info)?.saturating_add(1);
                self.safe(integer)
                    .map(|integer| Value::from(-integer.cast_signed()))
            }
            TEXT => self.text(info).map(|text| Value::String(text.to_owned())),
            ARRAY | MAP if depth > DEPTH_MAX => self.refuse("nested too deep"),
            ARRAY => {
                // No room is reserved: the length is only a claim until the items were read.
                let mut items = Vec::new();
                for _ in 0..self.argument(info)? {
                    items.push(self.value(depth + 1)?);
                }
                Ok(Value::Array(items))
            }
            MAP => {
                let mut map = Map::new();
                for _ in 0..self.argument(info)? {
                    let (major, info) = self.initial()?;
                    if major != TEXT {
                        return self.refuse("map key that is not a text");
                    }
                    let name = self.text(info)?.to_owned();
                    let value = self.value(depth + 1)?;
                    if map.insert(name, value).is_some() {
                        return self.refuse("duplicate map key");
                    }
                }
                Ok(Value::Object(map))
            }
            SIMPLE => self.simple(info),
            2 => self.refuse("byte string"),
            _ => self.refuse("tag"),
        }
    }

    fn simple(&mut self, info: u8) -> Result<Value, ArchiveError> {
        let double = match info {
            20 => return Ok(Value::Bool(false)),
            21 => return Ok(Value::Bool(true)),
            22 => return Ok(Value::Null),
            25 => double_from_half(u16::from_be_bytes(self.take()?)),
            26 => f64::from(f32::from_be_bytes(self.take()?)),
            27 => f64::from_be_bytes(self.take()?),
            _ => return self.refuse("simple value that JSON cannot say"),
        };
        if double.fract() == 0.0 && double.abs() > SAFE_INTEGER_MAX as f64 {
            return self.refuse("integer outside ±(2^53−1)");
        }
        match Number::from_f64(double) {
            Some(number) => Ok(Value::Number(number)),
            None => self.refuse("number that is not finite"),
        }
    }

    fn text(&mut self, info: u8) -> Result<&'a str, ArchiveError> {
        let length = self.argument(info)?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let raw = usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(..length));
        let Some(raw) = raw else {
            return self.refuse("unexpected end");
        };
        let Ok(text) = std::str::from_utf8(raw) else {
            return self.refuse("text that is not UTF-8");
        };
        self.at += raw.len();
        Ok(text)
    }

    fn initial(&mut self) -> Result<(u8, u8), ArchiveError> {
        let [byte] = self.take()?;
        Ok((byte >> 5, byte & 0x1f))
    }

    fn argument(&mut self, info: u8) -> Result<u64, ArchiveError> {
        match info {
            0..24 => Ok(u64::from(info)),
            24 => self.take().map(|[byte]| u64::from(byte)),
            25 => self
                .take()
                .map(|bytes| u64::from(u16::from_be_bytes(bytes))),
            26 => self
                .take()
                .map(|bytes| u64::from(u32::from_be_bytes(bytes))),
            27 => self.take().map(u64::from_be_bytes),
            _ => self.refuse("indefinite length"),
        }
    }

    fn safe(&self, integer: u64) -> Result<u64, ArchiveError> {
        if integer > SAFE_INTEGER_MAX {
            return self.refuse("integer outside ±(2^53−1)");
        }
        Ok(integer)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ArchiveError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(chunk) = rest.first_chunk::<N>() else {
            return self.refuse("unexpected end");
        };
        self.at += N;
        Ok(*chunk)
    }

    fn refuse<T>(&self, problem: &'static str) -> Result<T, ArchiveError> {
        Err(ArchiveError::Cbor {
            problem,
            at: self.at,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    /// Those examples of RFC 8949 appendix A that JSON can say, in deterministic form.
    #[test]
    fn ap_rcpt_11_published_examples_encode_and_decode() {
        for (json, hex) in [
            ("0", "00"),
            ("1", "01"),
            ("10", "0a"),
            ("23", "17"),
            ("24", "1818"),
            ("25", "1819"),
            ("100", "1864"),
            ("1000", "1903e8"),
            ("1000000", "1a000f4240"),
            ("1000000000000", "1b000000e8d4a51000"),
            ("-1", "20"),
            ("-10", "29"),
            ("-100", "3863"),
            ("-1000", "3903e7"),
            ("1.1", "fb3ff199999999999a"),
            ("1.5", "f93e00"),
            ("5.960464477539063e-8", "f90001"),
            ("0.00006103515625", "f90400"),
            ("-4.1", "fbc010666666666666"),
            ("false", "f4"),
            ("true", "f5"),
            ("null", "f6"),
            (r#""""#, "60"),
            (r#""a""#, "6161"),
            (r#""IETF""#, "6449455446"),
            (r#""\"\\""#, "62225c"),
            (r#""\u00fc""#, "62c3bc"),
            (r#""\u6c34""#, "63e6b0b4"),
            (r#""\ud800\udd51""#, "64f0908591"),
            ("[]", "80"),
            ("[1,2,3]", "83010203"),
            ("[1,[2,3],[4,5]]", "8301820203820405"),
            ("{}", "a0"),
            (r#"{"a":1,"b":[2,3]}"#, "a26161016162820203"),
            (r#"["a",{"b":"c"}]"#, "826161a161626163"),
        ] {
            let value = canon::read(json.as_bytes(), canon::Integers::Safe).unwrap();
            let mut out = Vec::new();
            encode(&mut out, &value);
            assert_eq!(out, unhex(hex), "{json}");
            assert_eq!(canon::jcs(&decode(&out).unwrap()), canon::jcs(&value));
        }
    }

    #[test]
    fn doubles_take_the_shortest_form_that_keeps_them() {
        for (double, hex) in [
            (0.5, "f93800"),
            (0.1, "fb3fb999999999999a"),
            (1.000_976_562_5, "f93c01"),
            (1.000_488_281_25, "fa3f801000"),
            // The smallest half, and half of it, which needs a single.
            (2_f64.powi(-24), "f90001"),
            (2_f64.powi(-25), "fa33000000"),
            (2_f64.powi(-24) * 1023.0, "f903ff"),
            (2_f64.powi(-24) * 1.5, "fa33c00000"),
            (2_f64.powi(-149), "fa00000001"),
            (5e-324, "fb0000000000000001"),
        ] {
            let mut out = Vec::new();
            encode(&mut out, &Value::from(double));
            assert_eq!(out, unhex(hex), "{double}");
            assert_eq!(decode(&out), Ok(Value::from(double)));
        }
    }

    #[test]
    fn integral_doubles_become_integers() {
        for (double, hex) in [
            (2.0, "02"),
            (-0.0, "00"),
            (-3.0, "22"),
            (65_504.0, "19ffe0"),
        ] {
            let mut out = Vec::new();
            encode(&mut out, &Value::from(double));
            assert_eq!(out, unhex(hex), "{double}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for (hex, wanted) in [
            ("9fff", "indefinite length"),
            ("7f6161ff", "indefinite length"),
            ("bfff", "indefinite length"),
            ("c000", "tag"),
            ("4161", "byte string"),
            ("f7", "simple value that JSON cannot say"),
            ("f818", "simple value that JSON cannot say"),
            ("a2616101616102", "duplicate map key"),
            ("a10001", "map key that is not a text"),
            ("61ff", "text that is not UTF-8"),
            ("f97e00", "number that is not finite"),
            ("fb7ff0000000000000", "number that is not finite"),
            ("1b0020000000000000", "integer outside ±(2^53−1)"),
            ("3b001fffffffffffff", "integer outside ±(2^53−1)"),
            ("3bffffffffffffffff", "integer outside ±(2^53−1)"),
            ("fb7e37e43c8800759c", "integer outside ±(2^53−1)"),
            ("0000", "more after the end"),
            ("82", "unexpected end"),
            ("9bffffffffffffffff", "unexpected end"),
            ("7bffffffffffffffff", "unexpected end"),
            ("", "unexpected end"),
        ] {
            match decode(&unhex(hex)) {
                Err(ArchiveError::Cbor { problem, .. }) => assert_eq!(problem, wanted, "{hex}"),
                other => panic!("{hex}: {other:?}"),
            }
        }
        // A longer head than needed, integral or too wide floats, members in another order.
        for hex in [
            "1800",
            "190018",
            "f94000",
            "fa3fc00000",
            "fb3ff8000000000000",
            "a2616201616102",
            "a262616101616202",
        ] {
            assert_eq!(
                decode(&unhex(hex)),
                Err(ArchiveError::NotDeterministic),
                "{hex}"
            );
        }
    }

    #[test]
    fn deep_nesting_is_refused_at_the_level_of_the_json_reader() {
        let nested = |levels: usize| [vec![0x81; levels], vec![0]].concat();
        assert!(decode(&nested(127)).is_ok());
        assert!(decode(&nested(128)).is_err());
        assert!(decode(&nested(1_000_000)).is_err());
        let json = |levels: usize| format!("{}0{}", "[".repeat(levels), "]".repeat(levels));
        let read = |text: String| canon::read(text.as_bytes(), canon::Integers::Safe);
        assert!(read(json(127)).is_ok());
        assert!(read(json(128)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = decode(&bytes) {
                let mut again = Vec::new();
                encode(&mut again, &value);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn any_double_survives(double in any::<f64>()) {
            prop_assume!(double.is_finite());
            prop_assume!(double.fract() != 0.0 || double.abs() <= SAFE_INTEGER_MAX as f64);
            let mut out = Vec::new();
            encode(&mut out, &Value::from(double));
            prop_assert_eq!(decode(&out).unwrap().as_f64(), Some(double));
        }
    }
}
