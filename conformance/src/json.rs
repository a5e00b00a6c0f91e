//! Small readers for JSON answers.
//!
//! Owns lookup by path and the shape tests that several checks share. Absent members read as null, so that a check can
//! say what it found instead of stopping.

use serde_json::Value;

static NULL: Value = Value::Null;

/// Returns the value at a dotted path, null when there is none.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.')
        .fold(value, |here, name| member(here, name).unwrap_or(&NULL))
}

/// Sets the value at a dotted path of members.
pub(crate) fn put(value: &mut Value, path: &str, new: Value) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    if let Some(members) = value.as_object_mut() {
        let place = members.entry(name).or_insert(Value::Null);
        match rest {
            "" => *place = new,
            rest => put(place, rest, new),
        }
    }
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    }
}

/// Returns the string at a dotted path, empty when it is not a string.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// Returns the items of a list answer, none when it has no `data` array.
pub(crate) fn data(value: &Value) -> &[Value] {
    at(value, "data").as_array().map_or(&[], Vec::as_slice)
}

/// Returns the ids of some resources, in order.
pub(crate) fn ids(items: &[Value]) -> Vec<String> {
    items
        .iter()
        .map(|item| text(item, "id").to_owned())
        .collect()
}

/// Returns the members of `names` that the object lacks.
pub(crate) fn lacking(value: &Value, names: &[&str]) -> Vec<String> {
    names
        .iter()
        .filter(|name| value.get(**name).is_none())
        .map(|name| (*name).to_owned())
        .collect()
}

/// Tells whether a string is an RFC 3339 time in UTC written with `Z`.
pub(crate) fn is_utc_time(text: &str) -> bool {
    let Some((date, time)) = text.strip_suffix('Z').and_then(|rest| rest.split_once('T')) else {
        return false;
    };
    let (clock, fraction) = time
        .split_once('.')
        .map_or((time, None), |(clock, digits)| (clock, Some(digits)));
    let fields = |text: &str, mark: char, widths: &[usize]| -> Option<Vec<u32>> {
        let parts: Vec<&str> = text.split(mark).collect();
        let fits = parts.len() == widths.len()
            && parts.iter().zip(widths).all(|(part, width)| {
                part.len() == *width && part.bytes().all(|byte| byte.is_ascii_digit())
            });
        fits.then(|| parts.iter().filter_map(|part| part.parse().ok()).collect())
    };
    let (Some(date), Some(clock)) = (
        fields(date, '-', &[4, 2, 2]),
        fields(clock, ':', &[2, 2, 2]),
    ) else {
        return false;
    };
    let ([year, month, day], [hour, minute, second]) = (date.as_slice(), clock.as_slice()) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(day)
        && *hour < 24
        && *minute < 60
        && *second <= 60
        && fraction.is_none_or(|digits| {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// Cuts a text for a report line and keeps it on one line.
pub(crate) fn short(text: &str) -> String {
    let flat: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let mut cut: String = flat.chars().take(240).collect();
    if cut.len() < flat.len() {
        cut.push('…');
    }
    cut
}

/// Writes a value for a report line.
pub(crate) fn show(value: &Value) -> String {
    short(&value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_reads_members_and_items() {
        let value = json!({"a": {"b": [1, {"c": "x"}]}});
        assert_eq!(at(&value, "a.b.0"), &json!(1));
        assert_eq!(text(&value, "a.b.1.c"), "x");
        assert_eq!(at(&value, "a.z.c"), &Value::Null);
    }

    #[test]
    fn only_utc_times_with_z_are_times() {
        for good in ["2026-04-25T00:00:00Z", "2024-02-29T23:59:60.123456Z"] {
            assert!(is_utc_time(good), "{good}");
        }
        for bad in [
            "2026-04-25T00:00:00+00:00",
            "2026-04-25 00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-04-25T24:00:00Z",
            "2026-04-25T00:00:00.Z",
            "2026-4-25T00:00:00Z",
            "now",
        ] {
            assert!(!is_utc_time(bad), "{bad}");
        }
    }

    #[test]
    fn a_report_line_stays_one_short_line() {
        assert_eq!(short("a\nb"), "a b");
        assert_eq!(short(&"x".repeat(300)).chars().count(), 241);
    }
}
