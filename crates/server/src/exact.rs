//! Numbers that reading would change.
//!
//! Bodies are read with doubles, as canonical JSON has them. Where a rule would judge another number than the one that was
//! sent, the body is refused instead.

/// Returns the first number of a JSON text that is another one as a double. The text must have been read before.
pub(crate) fn changed_number(text: &[u8]) -> Option<&str> {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = after_string(text, at + 1),
            b'-' | b'0'..=b'9' => {
                let rest = text.get(at..).unwrap_or_default();
                let is_part =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let len = rest.iter().take_while(|byte| is_part(byte)).count();
                let number = std::str::from_utf8(rest.get(..len)?).ok()?;
                if !survives(number) {
                    return Some(number);
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    None
}

fn after_string(text: &[u8], mut at: usize) -> usize {
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn survives(number: &str) -> bool {
    let Ok(double) = number.parse::<f64>() else {
        return false;
    };
    double.is_finite() && decimal(number) == decimal(&format!("{double:e}"))
}

/// Returns the digits of a number without zeros around them, and the power of ten of the last one.
fn decimal(number: &str) -> Option<(String, i64)> {
    let number = number.strip_prefix('-').unwrap_or(number);
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (number, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let trimmed = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - trimmed.len()).ok()?;
    let digits = trimmed.trim_start_matches('0').to_owned();
    if digits.is_empty() {
        return Some((digits, 0));
    }
    let places = i64::try_from(fraction.len()).ok()?;
    let power = exponent.checked_sub(places)?.checked_add(zeros)?;
    Some((digits, power))
}

#[cfg(test)]
mod tests {
    use super::changed_number;

    #[test]
    fn r13_a_number_that_a_double_changes_is_found_and_others_pass() {
        for text in [
            r#"{"a":[100,-0.1,1.50,1e3,120e-1,0,0.0,-0,123456789012345]}"#,
            r#"{"a":"1e-400 \" 100.00000000000000000001","b":5e-324}"#,
        ] {
            assert_eq!(changed_number(text.as_bytes()), None, "{text}");
        }
        for number in [
            "100.00000000000000000001",
            "1e-400",
            "0.1000000000000000055511151231257827",
            "-1e400",
            "9007199254740993",
            "1e99999999999999999999",
        ] {
            let text = format!(r#"{{"s":"\\","n":{{"amount":{number}}}}}"#);
            assert_eq!(changed_number(text.as_bytes()), Some(number));
        }
    }
}
