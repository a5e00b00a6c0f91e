//! Text to hand in: random, printable, never twice the same.

use fastrand::Rng;

/// Returns printable ASCII without the two letters that JSON escapes, so that its length is its length in JSON.
pub(crate) fn printable(rng: &mut Rng, len: usize) -> String {
    std::iter::repeat_with(|| char::from(rng.u8(b' '..=b'~')))
        .filter(|letter| !matches!(letter, '"' | '\\'))
        .take(len)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_long_in_json() {
        let text = printable(&mut Rng::with_seed(1), 1_000);
        assert_eq!(text.len(), 1_000);
        assert_eq!(serde_json::to_string(&text).unwrap().len(), 1_002);
    }
}
