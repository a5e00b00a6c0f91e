//! Times as people write them: a moment, a day, or how long ago.

use std::time::{SystemTime, UNIX_EPOCH};

use domain::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo};

/// What `--since` takes, for hints and help.
const FORMS: &str = "write how long ago (45s, 30m, 1h30m, 2d, 1w), a day such as 2026-04-25, or a time such as \
    2026-04-25T12:00:00Z; without an offset it is UTC";

/// Returns this machine's time.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Reads a length of time such as `1h30m`, in microseconds. A day has 24 hours and a week seven days; months and years
/// have no length of their own and are refused, and so is what lies behind.
pub(crate) fn span(text: &str) -> Option<i64> {
    let span: Span = text.parse().ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    let micros = i64::try_from(duration.as_micros()).ok()?;
    (micros >= 0).then_some(micros)
}

/// Reads a time, a day, or how long ago it was.
pub(crate) fn since(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(time) = Timestamp::parse(text) {
        return Ok(time);
    }
    if let Some(ago) = span(text) {
        return Ok(Timestamp::from_micros((now().as_micros() - ago).max(0)));
    }
    let civil: Result<DateTime, _> = text.parse();
    let moment = civil.and_then(|civil| civil.to_zoned(TimeZone::UTC));
    moment
        .map(|moment| Timestamp::from_micros(moment.timestamp().as_microsecond()))
        .map_err(|_| FORMS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment_a_day_or_how_long_ago() {
        for (text, expected) in [
            ("2026-04-25T12:00:00Z", "2026-04-25T12:00:00.000000Z"),
            ("2026-04-25T12:00:00+02:00", "2026-04-25T10:00:00.000000Z"),
            ("2026-04-25", "2026-04-25T00:00:00.000000Z"),
            ("2026-04-25T12:30", "2026-04-25T12:30:00.000000Z"),
            ("2026-04-25 12:30:01", "2026-04-25T12:30:01.000000Z"),
        ] {
            assert_eq!(since(text).unwrap().to_string(), expected, "{text}");
        }
        for (text, seconds) in [
            ("45s", 45),
            ("30m", 1_800),
            ("1h30m", 5_400),
            ("2d", 172_800),
            ("1w", 604_800),
            ("2 days", 172_800),
        ] {
            let then = since(text).unwrap();
            let ago = now().as_micros() - then.as_micros();
            let late = ago - seconds * 1_000_000;
            assert!((0..1_000_000).contains(&late), "{text}: {late}");
        }
        for bad in [
            "",
            "d",
            "1x",
            "yesterday-ish",
            "-1d",
            "1mo",
            "2026-13-01",
            "é",
        ] {
            assert!(since(bad).is_err(), "{bad}");
        }
    }
}
