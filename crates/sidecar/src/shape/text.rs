//! The patterns of the two schemas, as plain functions.

pub(super) fn hex(text: &str, len: usize) -> bool {
    text.len() == len
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Lower-case words joined by single separators.
pub(super) fn words(text: &str, separators: &str) -> bool {
    text.split(|char| separators.contains(char)).all(|word| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

pub(super) fn relative_path(path: &str) -> bool {
    let bytes = path.as_bytes();
    let drive = bytes.first().is_some_and(u8::is_ascii_alphabetic) && bytes.get(1) == Some(&b':');
    !path.is_empty()
        && !path.starts_with('/')
        && !drive
        && !path.contains('\\')
        && path.split('/').all(|part| part != "..")
}

pub(super) fn image(text: &str) -> bool {
    text.split_once('@').is_some_and(|(name, digest)| {
        !name.is_empty()
            && digest
                .strip_prefix("sha256:")
                .is_some_and(|digits| hex(digits, 64))
    })
}

pub(super) fn pointer(text: &str) -> bool {
    let starts = text.is_empty() || text.starts_with('/');
    let escapes = text
        .split('~')
        .skip(1)
        .all(|rest| rest.starts_with(['0', '1']));
    starts && escapes
}

pub(super) fn base64url(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Says whether a text is `YYYY-MM-DDTHH:MM:SS[.f…]Z` that names a real day; 23:59:60 is a leap second.
pub fn is_utc_time(text: &str) -> bool {
    let Some((date, time)) = text.strip_suffix('Z').and_then(|text| text.split_once('T')) else {
        return false;
    };
    let (clock, fraction) = match time.split_once('.') {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (time, None),
    };
    if fraction.is_some_and(|digits| digits.is_empty() || number(digits, digits.len()).is_none()) {
        return false;
    }
    let parts = |text: &str, separator: char, lens: [usize; 3]| {
        let mut parts = text
            .split(separator)
            .zip(lens)
            .map(|(part, len)| number(part, len));
        let three = [parts.next()??, parts.next()??, parts.next()??];
        (text.split(separator).count() == 3).then_some(three)
    };
    let (Some([year, month, day]), Some([hour, minute, second])) =
        (parts(date, '-', [4, 2, 2]), parts(clock, ':', [2, 2, 2]))
    else {
        return false;
    };
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    let second_fits = second < 60 || (second == 60 && hour == 23 && minute == 59);
    (1..=days).contains(&day) && hour < 24 && minute < 60 && second_fits
}

/// Reads exactly `len` digits; fractions of any length count as 0.
fn number(text: &str, len: usize) -> Option<u32> {
    if text.len() != len || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rb_x_04_times_are_real_utc_times() {
        for text in [
            "2024-02-29T00:00:00Z",
            "2000-02-29T23:59:59.5Z",
            "2026-12-31T23:59:60Z",
            "2026-04-30T00:00:00.000000000000000000000001Z",
        ] {
            assert!(is_utc_time(text), "{text}");
        }
        for text in [
            "2024-02-30T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "1900-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00Z",
            "2026-01-01-01T00:00:00Z",
            "2026-01-01T00:00:00+00:00",
            "+026-01-01T00:00:00Z",
            "",
        ] {
            assert!(!is_utc_time(text), "{text}");
        }
    }
}
