//! Exact decimals: the numbers of contracts, arguments and money.
//!
//! A decimal has up to 34 significant digits and an exponent within ±6144 when it is read. Comparison is always exact;
//! arithmetic is exact or refuses (`None`), and never rounds.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that is exactly what was written.
///
/// Kept without trailing zeros, so that equal numbers are equal values: `1`, `1.0` and `1e0` are one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Decimal {
    negative: bool,
    coefficient: u128,
    exponent: i32,
}

/// Why a text is not a usable decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseDecimalError {
    /// Not a number as JSON writes it.
    #[error("not a number")]
    Syntax,
    /// More than 34 significant digits, or an exponent beyond ±6144.
    #[error("a number beyond 34 digits or an exponent beyond ±6144")]
    OutOfRange {
        /// True when the number has no fractional part.
        is_integer: bool,
    },
}

const DIGITS_MAX: usize = 34;
const EXPONENT_MAX: i64 = 6144;
/// Results of arithmetic have as many digits as what is read, so that a result that was written reads back.
const COEFFICIENT_END: u128 = 10_u128.pow(34);
/// On the way to a result: what always fits the coefficient, padded or not.
const SCALED_END: u128 = 10_u128.pow(38);

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self {
        negative: false,
        coefficient: 0,
        exponent: 0,
    };

    /// Reads a number in JSON syntax.
    ///
    /// # Errors
    /// The text is not a JSON number, or is one that cannot be held exactly.
    pub fn parse(text: &str) -> Result<Self, ParseDecimalError> {
        let (negative, body) = match text.strip_prefix('-') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let (mantissa, exponent) = match body.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (body, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return Err(ParseDecimalError::Syntax),
            None => (mantissa, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let leading_zero = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || leading_zero || !all_digits(whole) || !all_digits(fraction) {
            return Err(ParseDecimalError::Syntax);
        }
        let written = read_exponent(exponent)?;
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let significant = digits.iter().rposition(|digit| *digit != b'0');
        let Some(last) = significant else {
            return Ok(Self::ZERO);
        };
        let dropped = digits.len() - 1 - last;
        let exponent = written
            .saturating_sub(to_i64(fraction.len()))
            .saturating_add(to_i64(dropped));
        let kept = digits
            .get(..=last)
            .unwrap_or_default()
            .iter()
            .skip_while(|digit| **digit == b'0');
        let count = kept.clone().count();
        let adjusted = exponent.saturating_add(to_i64(count) - 1);
        if count > DIGITS_MAX || adjusted.abs() > EXPONENT_MAX {
            return Err(ParseDecimalError::OutOfRange {
                is_integer: exponent >= 0,
            });
        }
        let coefficient = kept.fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
        Ok(Self {
            negative,
            coefficient,
            // Bounded by the check above: at most 6144 + 34 away from zero.
            exponent: i32::try_from(exponent).unwrap_or_default(),
        })
    }

    /// True for numbers below zero.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// True for numbers without a fractional part.
    pub fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    /// Returns the number as an unsigned integer, if it is one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        if self.negative {
            return None;
        }
        let power = 10_u128.checked_pow(u32::try_from(self.exponent).ok()?)?;
        u64::try_from(self.coefficient.checked_mul(power)?).ok()
    }

    /// Returns the exact sum, or nothing when it has more than 34 digits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        if self.coefficient == 0 {
            return Some(other);
        }
        if other.coefficient == 0 {
            return Some(self);
        }
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.scaled_to(exponent)?, other.scaled_to(exponent)?);
        let (negative, coefficient) = if self.negative == other.negative {
            (self.negative, a.checked_add(b)?)
        } else if a >= b {
            (self.negative, a - b)
        } else {
            (other.negative, b - a)
        };
        Self::normalised(negative, coefficient, exponent)
    }

    /// Returns the exact difference, or nothing when it has more than 34 digits.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        let opposite = Self {
            negative: !other.negative && other.coefficient != 0,
            ..other
        };
        self.checked_add(opposite)
    }

    /// Returns the exact product, or nothing when it has more than 34 digits.
    pub fn checked_mul(self, other: Self) -> Option<Self> {
        let coefficient = self.coefficient.checked_mul(other.coefficient)?;
        let exponent = self.exponent.checked_add(other.exponent)?;
        Self::normalised(self.negative != other.negative, coefficient, exponent)
    }

    /// Returns the number divided by a power of ten, which is always exact.
    pub fn shifted_right(self, digits: u8) -> Self {
        if self.coefficient == 0 {
            return self;
        }
        Self {
            exponent: self.exponent.saturating_sub(i32::from(digits)),
            ..self
        }
    }

    fn scaled_to(self, exponent: i32) -> Option<u128> {
        let steps = u32::try_from(self.exponent.checked_sub(exponent)?).ok()?;
        let scaled = self.coefficient.checked_mul(10_u128.checked_pow(steps)?)?;
        (scaled < SCALED_END).then_some(scaled)
    }

    fn normalised(negative: bool, mut coefficient: u128, mut exponent: i32) -> Option<Self> {
        if coefficient == 0 {
            return Some(Self::ZERO);
        }
        while coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent = exponent.checked_add(1)?;
        }
        (coefficient < COEFFICIENT_END).then_some(Self {
            negative,
            coefficient,
            exponent,
        })
    }

    fn digit_count(&self) -> u32 {
        self.coefficient.checked_ilog10().unwrap_or_default() + 1
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        if self.coefficient == 0 || other.coefficient == 0 {
            return self.coefficient.cmp(&other.coefficient);
        }
        let (digits, other_digits) = (self.digit_count(), other.digit_count());
        let adjusted = i64::from(self.exponent) + i64::from(digits);
        let other_adjusted = i64::from(other.exponent) + i64::from(other_digits);
        // Invariant: coefficients have at most 34 digits, so both fit when padded to the longer one.
        let pad =
            |value: u128, from: u32, to: u32| value * 10_u128.pow(to.saturating_sub(from).min(37));
        adjusted.cmp(&other_adjusted).then_with(|| {
            pad(self.coefficient, digits, other_digits).cmp(&pad(
                other.coefficient,
                other_digits,
                digits,
            ))
        })
    }
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX / 4)
}

fn read_exponent(text: Option<&str>) -> Result<i64, ParseDecimalError> {
    let Some(text) = text else {
        return Ok(0);
    };
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseDecimalError::Syntax);
    }
    // Longer exponents are out of range whatever they are.
    let magnitude = digits.bytes().fold(0_i64, |sum, digit| {
        sum.saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
            .min(i64::MAX / 4)
    });
    Ok(if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    })
}

impl From<u64> for Decimal {
    fn from(value: u64) -> Self {
        Self::normalised(false, u128::from(value), 0).unwrap_or(Self::ZERO)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl Default for Decimal {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Decimal {
    /// Writes plain digits where they are short, else an exponent; always a JSON number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let digits = self.coefficient.to_string();
        if (0..=20).contains(&self.exponent) {
            let zeros = usize::try_from(self.exponent).unwrap_or_default();
            return write!(f, "{sign}{digits}{}", "0".repeat(zeros));
        }
        let places = usize::try_from(self.exponent.unsigned_abs()).unwrap_or_default();
        if self.exponent < 0 && places <= 40 {
            let padded = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = padded.split_at(padded.len() - places);
            return write!(f, "{sign}{whole}.{fraction}");
        }
        write!(f, "{sign}{digits}e{}", self.exponent)
    }
}

impl fmt::Debug for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Decimal> for String {
    fn from(value: Decimal) -> Self {
        value.to_string()
    }
}

impl TryFrom<String> for Decimal {
    type Error = ParseDecimalError;

    fn try_from(text: String) -> Result<Self, ParseDecimalError> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn one_number_has_one_value() {
        for text in ["1", "1.0", "1e0", "10e-1", "0.1E1", "1.000"] {
            assert_eq!(decimal(text), decimal("1"), "{text}");
        }
        for text in ["0", "-0", "0.000", "0e99999999999999999999", "-0e-5"] {
            assert_eq!(decimal(text), Decimal::ZERO, "{text}");
        }
    }

    #[test]
    fn only_json_numbers_are_numbers() {
        for text in [
            "", "-", "+1", "01", ".5", "1.", "1e", "1e+", "0x1", "1_0", " 1", "1 ", "NaN", "--1",
            "1.2.3", "-.1", "١",
        ] {
            assert_eq!(
                Decimal::parse(text),
                Err(ParseDecimalError::Syntax),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_held_exactly_is_out_of_range() {
        let out = |is_integer| Err(ParseDecimalError::OutOfRange { is_integer });
        assert_eq!(Decimal::parse(&"1".repeat(35)), out(true));
        assert_eq!(Decimal::parse("1e6145"), out(true));
        assert_eq!(Decimal::parse("1e-6145"), out(false));
        assert_eq!(Decimal::parse("1e99999999999999999999999"), out(true));
        assert!(Decimal::parse(&"1".repeat(34)).is_ok());
        assert!(Decimal::parse("1e6144").is_ok());
        assert!(Decimal::parse(&format!("1{}", "0".repeat(100))).is_ok());
    }

    #[test]
    fn comparison_is_exact_at_every_scale() {
        let ordered = [
            "-1e6144",
            "-9007199254740993",
            "-9007199254740992",
            "-0.1",
            "0",
            "1e-6144",
            "0.1",
            "0.10000000000000000000000000000001",
            "1",
            "1.5",
            "2",
            "10",
            "9007199254740992",
            "9007199254740993",
            "9999999999999999999999999999999999",
            "1e34",
            "1e6144",
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(decimal(a).cmp(&decimal(b)), i.cmp(&j), "{a} {b}");
            }
        }
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let sum = |a, b| {
            decimal(a)
                .checked_add(decimal(b))
                .map(|sum| sum.to_string())
        };
        assert_eq!(sum("0.1", "0.2").as_deref(), Some("0.3"));
        assert_eq!(sum("-5", "5").as_deref(), Some("0"));
        assert_eq!(
            sum("9007199254740993", "1").as_deref(),
            Some("9007199254740994")
        );
        assert_eq!(sum("1e33", "1").map(|text| text.len()), Some(34));
        assert_eq!(sum("1e34", "1"), None);
        assert_eq!(sum("1e6144", "1e-6144"), None);
    }

    #[test]
    fn the_text_form_reads_back() {
        for text in [
            "0",
            "-12.5",
            "40000",
            "0.000001",
            "1e300",
            "-3e-77",
            "1234567890.0987654321",
        ] {
            assert_eq!(decimal(&decimal(text).to_string()), decimal(text), "{text}");
        }
        assert_eq!(decimal("2.50").to_string(), "2.5");
    }
}
