//! Time as a value: integer microseconds since the Unix epoch.
//!
//! The clock is read elsewhere. One text form is written, `YYYY-MM-DDTHH:MM:SS.ffffffZ`; any RFC 3339
//! form is read.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in UTC with microsecond precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 time")]
pub struct ParseTimestampError(String);

impl Timestamp {
    /// The earliest moment with a four-digit year, and the latest that can be read again at any offset.
    const MIN_US: i64 = -62_167_219_200_000_000;
    const MAX_US: i64 = 253_402_207_200_999_999;

    /// Wraps microseconds since the epoch; values outside years 0 to 9999 are clamped.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(Self::MIN_US, Self::MAX_US))
    }

    /// Returns microseconds since the epoch.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 text with any offset.
    ///
    /// # Errors
    /// The text is not such a time.
    pub fn parse(text: &str) -> Result<Self, ParseTimestampError> {
        let refuse = || ParseTimestampError(text.chars().take(80).collect());
        let time: jiff::Timestamp = text.parse().map_err(|_| refuse())?;
        Ok(Self::from_micros(time.as_microsecond()))
    }

    /// Returns the one text form.
    fn text(self) -> [u8; TEXT_BYTES] {
        let seconds = self.0.div_euclid(1_000_000);
        let micros = self.0.rem_euclid(1_000_000);
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        // Days to civil date by 400-year eras that begin on 1 March, so that the leap day comes last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        // Every event has such a text, and some of them several: digits are put in their places.
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |places: Range<usize>, mut number: i64| {
            for place in text.get_mut(places).into_iter().flatten().rev() {
                *place = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, year);
        put(5..7, month);
        put(8..10, day);
        put(11..13, hour);
        put(14..16, minute);
        put(17..19, second);
        put(20..26, micros);
        text
    }
}

/// The length of `YYYY-MM-DDTHH:MM:SS.ffffffZ`.
const TEXT_BYTES: usize = 27;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        canon::deserialize_text(deserializer, Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ap_env_04_times_are_written_in_one_form() {
        assert_eq!(
            Timestamp::from_micros(0).to_string(),
            "1970-01-01T00:00:00.000000Z"
        );
        let time = Timestamp::parse("2026-04-25T21:00:02.5+02:00").unwrap();
        assert_eq!(time.to_string(), "2026-04-25T19:00:02.500000Z");
        assert!(Timestamp::parse("yesterday").is_err());
    }

    proptest! {
        #[test]
        fn writing_agrees_with_the_calendar_library(micros in -62_000_000_000_000_000i64..253_000_000_000_000_000) {
            let text = Timestamp::from_micros(micros).to_string();
            prop_assert_eq!(text.parse::<jiff::Timestamp>().unwrap().as_microsecond(), micros);
            prop_assert_eq!(Timestamp::parse(&text).unwrap().as_micros(), micros);
        }
    }
}
