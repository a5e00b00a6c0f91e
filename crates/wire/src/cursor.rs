//! Cursors of lists: opaque to clients, versioned, a key to go on after.

use crate::InputError;

/// Where a list goes on: after this key. Keys start at 1, so 0 is the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Reads what an earlier page gave as `next_cursor`.
    ///
    /// # Errors
    /// The text is none of ours, or of a version that is no longer read.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let key = text
            .strip_prefix("c1_")
            .filter(|digits| {
                digits.len() == 16
                    && digits
                        .bytes()
                        .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
            })
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        key.map(Cursor)
            .ok_or_else(|| InputError::invalid("cursor", "is not a cursor that this server issued"))
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "c1_{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ap_env_06_cursors_read_back(key: u64) {
            prop_assert_eq!(Cursor::parse(&Cursor(key).to_string()), Ok(Cursor(key)));
        }

        #[test]
        fn other_texts_are_refused(text in "\\PC{0,24}") {
            prop_assume!(!text.starts_with("c1_"));
            prop_assert!(Cursor::parse(&text).is_err());
        }
    }

    #[test]
    fn near_misses_are_refused() {
        for text in [
            "c1_",
            "c1_00000000000000G0",
            "c1_000000000000000A",
            "c2_0000000000000001",
            "c1_+000000000000001",
        ] {
            assert!(Cursor::parse(text).is_err(), "{text}");
        }
    }
}
