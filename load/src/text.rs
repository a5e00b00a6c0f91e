//! Text to hand in: random, never twice the same, of three kinds that compress differently.

use fastrand::Rng;

/// Returns printable ASCII without the two letters that JSON escapes, so that its length is its length in JSON.
pub(crate) fn printable(rng: &mut Rng, len: usize) -> String {
    std::iter::repeat_with(|| char::from(rng.u8(b' '..=b'~')))
        .filter(|letter| !matches!(letter, '"' | '\\'))
        .take(len)
        .collect()
}

/// Returns text that is as hard to compress as printable UTF-8 can be: every character is about as likely as its
/// length in bytes allows. At most that many bytes, and at least four fewer.
pub(crate) fn unicode(rng: &mut Rng, len: usize) -> String {
    let mut text = String::with_capacity(len);
    while text.len() < len.saturating_sub(3) {
        let letter = match rng.u16(..1_000) {
            0..809 => char::from(rng.u8(b' '..=b'~')),
            809..954 => rng.char('\u{a0}'..='\u{7ff}'),
            954..994 => rng.char('\u{800}'..='\u{ffff}'),
            _ => rng.char('\u{10000}'..='\u{10ffff}'),
        };
        if !matches!(letter, '"' | '\\') {
            text.push(letter);
        }
    }
    text
}

/// Returns sentences of made-up words, a few of them common and most of them rare, as in a language.
pub(crate) fn prose(rng: &mut Rng, len: usize) -> String {
    const WORDS: u32 = 4_000;
    let mut text = String::with_capacity(len);
    while text.len() < len {
        // Squaring twice makes low numbers common: about as steep as English.
        let part = rng.f64();
        let number = (f64::from(WORDS) * part * part * part * part) as u64;
        // The same number is the same word in every text.
        let mut letters = Rng::with_seed(number);
        for _ in 0..letters.u8(1..=4) {
            text.push(*letters.choice(b"bcdfghklmnprstvw").unwrap_or(&b't') as char);
            text.push(*letters.choice(b"aeiou").unwrap_or(&b'e') as char);
        }
        text.push_str(if rng.u8(..12) == 0 { ". " } else { " " });
    }
    text.truncate(len);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of texts of 4 KiB when each is compressed by itself, in hundredths.
    fn compressed(write: fn(&mut Rng, usize) -> String) -> usize {
        let mut rng = Rng::with_seed(1);
        let texts: Vec<String> = (0..50).map(|_| write(&mut rng, 4_096)).collect();
        let frames = texts
            .iter()
            .map(|text| zstd::bulk::compress(text.as_bytes(), 3).unwrap().len());
        100 * frames.sum::<usize>() / texts.iter().map(String::len).sum::<usize>()
    }

    #[test]
    fn text_is_as_long_in_json() {
        let text = printable(&mut Rng::with_seed(1), 1_000);
        assert_eq!(text.len(), 1_000);
        for text in [
            text,
            unicode(&mut Rng::with_seed(1), 1_000),
            prose(&mut Rng::with_seed(1), 1_000),
        ] {
            assert_eq!(serde_json::to_string(&text).unwrap().len(), text.len() + 2);
            assert!((997..=1_000).contains(&text.len()), "{}", text.len());
        }
    }

    #[test]
    fn each_kind_compresses_as_its_name_says() {
        let [ascii, hard, easy] = [printable, unicode, prose].map(compressed);
        assert!((82..85).contains(&ascii), "{ascii}");
        assert!((95..100).contains(&hard), "{hard}");
        assert!((40..50).contains(&easy), "{easy}");
    }
}
