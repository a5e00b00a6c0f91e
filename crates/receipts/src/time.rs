//! RFC 3339 times as texts that were given: checks them and orders them.
//!
//! Never writes a time: a receipt keeps the text it was issued with, because the text is hashed.

/// Reads an RFC 3339 `date-time` as whole seconds since 1970, or nothing if the text is not one.
///
/// A fraction is dropped: all that is compared here are whole seconds. A leap second counts as the
/// second after it, as POSIX time does.
pub fn parse(text: &str) -> Option<i64> {
    let mut rest = text.as_bytes();
    let year = digits(&mut rest, 4)?;
    one_of(&mut rest, b"-")?;
    let month = digits(&mut rest, 2)?;
    one_of(&mut rest, b"-")?;
    let day = digits(&mut rest, 2)?;
    one_of(&mut rest, b"Tt")?;
    let hour = digits(&mut rest, 2)?;
    one_of(&mut rest, b":")?;
    let minute = digits(&mut rest, 2)?;
    one_of(&mut rest, b":")?;
    let second = digits(&mut rest, 2)?;
    skip_fraction(&mut rest)?;
    let offset_minutes = offset(&mut rest)?;
    if !rest.is_empty()
        || !(1..=12).contains(&month)
        || !(1..=days_in(year, month)).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let minutes = hour * 60 + minute - offset_minutes;
    // A leap second exists only at the end of a UTC day.
    if second == 60 && minutes.rem_euclid(1440) != 1439 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + minutes * 60 + second)
}

fn one_of(rest: &mut &[u8], allowed: &[u8]) -> Option<u8> {
    let (first, tail) = rest.split_first()?;
    allowed.contains(first).then(|| {
        *rest = tail;
        *first
    })
}

fn digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    head.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit()
            .then(|| value * 10 + i64::from(byte - b'0'))
    })
}

fn skip_fraction(rest: &mut &[u8]) -> Option<()> {
    if one_of(rest, b".").is_some() {
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *rest = rest.get(length..)?;
        return (length > 0).then_some(());
    }
    Some(())
}

fn offset(rest: &mut &[u8]) -> Option<i64> {
    let sign = match one_of(rest, b"Zz+-")? {
        b'+' => 1,
        b'-' => -1,
        _ => return Some(0),
    };
    let hours = digits(rest, 2)?;
    one_of(rest, b":")?;
    let minutes = digits(rest, 2)?;
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Counts days in the proleptic Gregorian calendar, with years starting in March so that the leap
/// day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    year * 365 + leap_days + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_points_in_time() {
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2000-02-29T00:00:00z"), Some(951_782_400));
        assert_eq!(parse("2026-04-25T19:17:33Z"), Some(1_777_144_653));
        assert_eq!(
            parse("2026-04-25t21:17:33.000001+02:00"),
            Some(1_777_144_653)
        );
        assert_eq!(parse("1969-12-31T23:59:59Z"), Some(-1));
        assert_eq!(
            parse("2016-12-31T18:59:60-05:00"),
            parse("2017-01-01T00:00:00Z")
        );
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "2026-04-25",
            "2026-04-25T19:17Z",
            "2026-04-25T19:17:33",
            "2026-04-25 19:17:33Z",
            "2026-04-25T19:17:33.Z",
            "2026-04-25T19:17:33Z ",
            "2026-13-25T19:17:33Z",
            "2026-02-29T19:17:33Z",
            "2026-04-00T19:17:33Z",
            "2026-04-25T24:00:00Z",
            "2026-04-25T19:60:33Z",
            "2026-04-25T19:17:60Z",
            "2026-04-25T19:17:61Z",
            "2026-04-25T19:17:33+24:00",
            "2026-04-25T19:17:33+0200",
            "2026-04-25T19:1/:33Z",
            "２026-04-25T19:17:33Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
