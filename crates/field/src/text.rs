//! Words, sentences and numbers of a text, found in the same way everywhere.

use std::collections::BTreeSet;

/// Words that say nothing about a subject.
const STOP: &[&str] = &[
    "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been",
    "being", "but", "by", "can", "could", "did", "do", "does", "for", "from", "had", "has", "have",
    "he", "her", "his", "how", "i", "if", "in", "into", "is", "it", "its", "may", "more", "most",
    "of", "on", "or", "our", "per", "she", "should", "so", "some", "such", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "to", "too", "was", "we",
    "were", "what", "when", "where", "which", "while", "who", "why", "will", "with", "would",
    "you", "your",
];

const NEGATIONS: &[&str] = &[
    "no", "not", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot",
    "cant", "dont", "doesnt", "didnt", "isnt", "arent", "wasnt", "werent", "wont", "wouldnt",
    "shouldnt", "couldnt", "hasnt", "havent", "hadnt",
];

/// Calls `word` with each word in lower case, an apostrophe inside it left out.
fn each_word(text: &str, mut word: impl FnMut(&str)) {
    let mut current = String::new();
    for character in text.chars() {
        if character.is_alphanumeric() {
            current.extend(character.to_lowercase());
        } else if !matches!(character, '\'' | '’') || current.is_empty() {
            if !current.is_empty() {
                word(&current);
            }
            current.clear();
        }
    }
    if !current.is_empty() {
        word(&current);
    }
}

/// Returns the words that carry meaning, reduced to a common stem, in order.
pub(crate) fn terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    each_word(text, |word| {
        if STOP.binary_search(&word).is_err() {
            terms.push(stem(word));
        }
    });
    terms
}

/// Takes the commonest English endings off a word.
///
/// Crude on purpose: two forms of one word must meet, and it costs nothing that the stem is not a word.
fn stem(word: &str) -> String {
    if !word.is_ascii() || word.bytes().any(|byte| byte.is_ascii_digit()) {
        return word.to_owned();
    }
    let cut =
        |ending: &str, least: usize| word.strip_suffix(ending).filter(|rest| rest.len() >= least);
    let base = if let Some(rest) = cut("ies", 2).or_else(|| cut("ied", 2)) {
        format!("{rest}y")
    } else if let Some(rest) = cut("sses", 2) {
        format!("{rest}ss")
    } else if let Some(rest) = cut("ing", 3).or_else(|| cut("ed", 3)) {
        undouble(rest)
    } else if let Some(rest) = cut("s", 3).filter(|rest| !rest.ends_with(['s', 'u', 'i'])) {
        rest.to_owned()
    } else {
        word.to_owned()
    };
    match base.strip_suffix('e') {
        Some(rest) if rest.len() >= 3 => rest.to_owned(),
        _ => base,
    }
}

fn undouble(word: &str) -> String {
    let mut ends = word.chars().rev();
    match (ends.next(), ends.next()) {
        (Some(last), Some(before))
            if last == before && !matches!(last, 'l' | 's' | 'z' | 'e' | 'o') =>
        {
            word.chars().take(word.chars().count() - 1).collect()
        }
        _ => word.to_owned(),
    }
}

/// Returns the numbers of a text, `1,000.50` read as `1000.5`.
pub(crate) fn numbers(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut current = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let goes_on = characters.peek().is_some_and(char::is_ascii_digit);
        match character {
            '0'..='9' => current.push(character),
            '.' if goes_on && !current.is_empty() && !current.contains('.') => current.push('.'),
            ',' if goes_on && !current.is_empty() => {}
            _ => note_number(&mut current, &mut found),
        }
    }
    note_number(&mut current, &mut found);
    found
}

fn note_number(current: &mut String, found: &mut BTreeSet<String>) {
    if current.is_empty() {
        return;
    }
    let number = if current.contains('.') {
        current.trim_end_matches('0').trim_end_matches('.')
    } else {
        current.as_str()
    };
    let number = number.trim_start_matches('0');
    let number = if number.is_empty() || number.starts_with('.') {
        format!("0{number}")
    } else {
        number.to_owned()
    };
    found.insert(number);
    current.clear();
}

/// What a text claims, as far as the search for contradictions looks: its numbers, and whether it denies.
///
/// Numbers are kept as their hashes: comparing them with those of thousands of units must cost little.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// Ascending.
    pub(crate) numbers: Vec<u64>,
    pub(crate) denies: bool,
}

impl Claims {
    pub(crate) fn of(text: &str) -> Self {
        let numbers = numbers(text);
        let hash = |number: &String| fnv1a(FNV_START, number.as_bytes());
        let mut numbers: Vec<u64> = numbers.iter().map(hash).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self {
            numbers,
            denies: negates(text),
        }
    }

    /// Returns whether two texts that say nearly the same differ in what matters.
    pub(crate) fn contradict(&self, other: &Self) -> bool {
        let within = |ours: &[u64], theirs: &[u64]| {
            let mut known = ours.iter().map(|number| theirs.binary_search(number));
            known.all(|found| found.is_ok())
        };
        let other_numbers =
            !within(&self.numbers, &other.numbers) && !within(&other.numbers, &self.numbers);
        other_numbers || self.denies != other.denies
    }
}

pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Goes on hashing.
pub(crate) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns whether a text denies something.
pub(crate) fn negates(text: &str) -> bool {
    let mut found = false;
    each_word(text, |word| found |= NEGATIONS.contains(&word));
    found
}

/// Returns the first characters of a text with white space collapsed.
pub(crate) fn start(text: &str, characters: usize) -> String {
    let mut collapsed = String::new();
    for word in text.split_whitespace() {
        if !collapsed.is_empty() {
            collapsed.push(' ');
        }
        collapsed.push_str(word);
        // A character is at most four bytes, so this is enough and the rest need not be read.
        if collapsed.len() > characters * 4 {
            break;
        }
    }
    collapsed.chars().take(characters).collect()
}

/// Returns the first sentence of a text, or its first 200 characters if that is shorter.
pub(crate) fn summary(text: &str) -> String {
    const CHARACTERS_MAX: usize = 200;
    let mut cut = String::new();
    let mut characters = text.trim_start().chars().take(CHARACTERS_MAX).peekable();
    while let Some(character) = characters.next() {
        cut.push(character);
        let ends = matches!(character, '.' | '!' | '?' | '。' | '！' | '？');
        if ends
            && characters
                .peek()
                .is_none_or(|next| next.is_whitespace() || !character.is_ascii())
        {
            break;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_words_are_sorted_because_they_are_searched() {
        assert!(STOP.is_sorted());
    }

    #[test]
    fn forms_of_one_word_meet() {
        for (one, other) in [
            ("queries", "query"),
            ("caching", "cache"),
            ("stopped", "stopping"),
            ("decided", "decides"),
            ("Latencies", "latency"),
            ("class", "classes"),
        ] {
            assert_eq!(terms(one), terms(other), "{one} {other}");
        }
        assert_ne!(terms("status"), terms("statue"));
    }

    #[test]
    fn numbers_are_compared_by_value() {
        assert_eq!(
            numbers("grew 1,000.50 and 0.5%"),
            numbers("1000.5 or 00.50")
        );
        assert_ne!(numbers("23% CAGR"), numbers("14% CAGR"));
        assert!(numbers("no numbers. None").is_empty());
    }

    #[test]
    fn claims_contradict_by_a_number_on_each_side_or_by_a_denial_on_one() {
        let check = |one: &str, other: &str, expected: bool| {
            let (one, other) = (Claims::of(one), Claims::of(other));
            assert_eq!(one.contradict(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.contradict(&one), expected, "{one:?} {other:?}");
        };
        check("grows by 23%", "grows by 14%", true);
        check("grows by 23% in 2026", "grows by 14% in 2026", true);
        check("grows by 23% in 2026", "grows by 23%", false);
        check("grows by 23%", "grows", false);
        check("grows", "does not grow", true);
        check("never grows", "does not grow", false);
        check("1,000.50 a day", "1000.5 a day", false);
    }

    #[test]
    fn a_negation_is_a_word_not_a_syllable() {
        assert!(negates("it does not hold") && negates("It doesn't hold") && negates("isn’t"));
        assert!(!negates("a notable knot"));
    }

    #[test]
    fn summaries_end_with_the_first_sentence() {
        assert_eq!(summary("Grew 2.5 percent. Then fell."), "Grew 2.5 percent.");
        assert_eq!(summary(&"x".repeat(300)).len(), 200);
        assert_eq!(start("  a \n\t b  c ", 3), "a b");
    }
}
