//! Search over the text of units: BM25 by words, and vectors by model.
//!
//! A disposable reader of the units. Nothing here decides who may see what: it scores rows, the caller filters them. How much
//! a word counts is told by the rows that the caller may see and by no other, else scores would tell what hidden rows say.

use std::collections::{BTreeMap, BTreeSet};

use crate::text;
use crate::vector::{Matrix, Model, Sparse, Vector};

const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Rows that the words of one request are looked up in, over all its texts. Where there are more, the rarest words count.
pub(crate) const VISITS_MAX: usize = 4_000_000;

/// The words and vectors of all units that have a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Search {
    /// For each word the rows that have it, ascending, and how often.
    postings: BTreeMap<String, Vec<(u32, u32)>>,
    /// Words of each row.
    lengths: Vec<u32>,
    length_sum: u64,
    documents: u64,
    /// The circle that each row is for; 0 for everybody.
    circles: Vec<u32>,
    /// Of each circle how many rows it has, and how many words these have.
    circle_sizes: BTreeMap<u32, (u64, u64)>,
    /// For each word that a circle has, in how many of its rows.
    circle_words: BTreeMap<String, BTreeMap<u32, u32>>,
    matrices: BTreeMap<Model, Matrix>,
}

/// What words are weighed by: what a reader may see.
#[derive(Debug, Clone, Copy)]
struct Seen<'a> {
    hidden: &'a BTreeSet<u32>,
    documents: f64,
    average: f64,
}

impl Search {
    /// Adds the words of a row that a circle may see, or everybody where that is 0; rows come in ascending order.
    pub(crate) fn add_text(&mut self, row: u32, circle: u32, texts: &[&str]) {
        self.add_row(row, circle);
        for (term, count) in counted(texts) {
            self.add_term(&term, [(row, count)]);
        }
    }

    /// Adds a row whose words are still to come.
    pub(crate) fn add_row(&mut self, row: u32, circle: u32) {
        let index = usize::try_from(row).unwrap_or(usize::MAX);
        if self.lengths.len() <= index {
            self.lengths.resize(index + 1, 0);
            self.circles.resize(index + 1, 0);
        }
        self.documents += 1;
        if circle != 0 {
            if let Some(place) = self.circles.get_mut(index) {
                *place = circle;
            }
            self.circle_sizes.entry(circle).or_default().0 += 1;
        }
    }

    fn circle_of(&self, row: u32) -> u32 {
        let index = usize::try_from(row).unwrap_or(usize::MAX);
        self.circles.get(index).copied().unwrap_or_default()
    }

    /// Adds rows that have a word, and how often. They were added themselves, come in ascending order, and behind those
    /// that the word has already.
    pub(crate) fn add_term(&mut self, term: &str, rows: impl IntoIterator<Item = (u32, u32)>) {
        // Most words are known, and a name is made only for one that is not.
        let list = match self.postings.get_mut(term) {
            Some(list) => list,
            None => self.postings.entry(term.to_owned()).or_default(),
        };
        for (row, count) in rows {
            list.push((row, count));
            self.length_sum += u64::from(count);
            let length = usize::try_from(row)
                .ok()
                .and_then(|row| self.lengths.get_mut(row));
            if let Some(length) = length {
                *length += count;
            }
            let index = usize::try_from(row).unwrap_or(usize::MAX);
            let circle = self.circles.get(index).copied().unwrap_or_default();
            if circle != 0 {
                self.circle_sizes.entry(circle).or_default().1 += u64::from(count);
                let word = self.circle_words.entry(term.to_owned()).or_default();
                *word.entry(circle).or_default() += 1;
            }
        }
    }

    /// Takes the words and vectors of a row out.
    pub(crate) fn erase(&mut self, row: u32, texts: &[&str]) {
        let circle = self.circle_of(row);
        for text in texts {
            for term in text::terms(text) {
                if let Some(list) = self.postings.get_mut(&term) {
                    if let Ok(place) = list.binary_search_by_key(&row, |(row, _)| *row) {
                        list.remove(place);
                        leave_circle(&mut self.circle_words, &term, circle);
                    }
                    if list.is_empty() {
                        self.postings.remove(&term);
                    }
                }
            }
        }
        let index = usize::try_from(row).unwrap_or(usize::MAX);
        if let Some(length) = self.lengths.get_mut(index) {
            self.length_sum -= u64::from(*length);
            self.documents -= 1;
            if let Some((rows, words)) = self.circle_sizes.get_mut(&circle) {
                *rows = rows.saturating_sub(1);
                *words = words.saturating_sub(u64::from(*length));
            }
            *length = 0;
        }
        for matrix in self.matrices.values_mut() {
            matrix.erase(row);
        }
    }

    /// Adds the vector of a row.
    pub(crate) fn add_vector(&mut self, row: u32, model: &Model, components: &[i8]) {
        let matrix = match self.matrices.get_mut(model) {
            Some(matrix) => matrix,
            None => {
                let matrix = Matrix::of(model);
                self.matrices.entry(model.clone()).or_insert(matrix)
            }
        };
        matrix.add(row, components);
    }

    /// Returns the vector of a row under a model.
    pub(crate) fn vector(&self, row: u32, model: &Model) -> Option<Vector> {
        let components = self.matrices.get(model)?.components(row)?;
        Some(Vector {
            model: model.clone(),
            components,
        })
    }

    /// Returns the cosine of a row's vector to a query of the same model.
    pub(crate) fn cosine_at(&self, model: &Model, query: &Sparse, row: u32) -> Option<f64> {
        self.matrices.get(model)?.cosine_at(query, row)
    }

    /// Adds to `scores` how well each row matches the words of a query, 1 for a row of average length that has every
    /// word once. What is average, and how rare a word is, is told by the rows outside the hidden circles. Words are looked
    /// up from the rarest on while there are `visits` left.
    pub(crate) fn score_words(
        &self,
        query: &str,
        hidden: &BTreeSet<u32>,
        visits: &mut usize,
        scores: &mut [f64],
    ) {
        let seen = self.seen(hidden);
        let mut lists = self.weighted(query, seen);
        let needed: usize = lists.iter().map(|(list, _)| list.len()).sum();
        if needed > *visits {
            lists.sort_by_key(|(list, _)| list.len());
            let mut left = *visits;
            lists.retain(|(list, _)| {
                let fits = list.len() <= left;
                left = if fits { left - list.len() } else { 0 };
                fits
            });
        }
        *visits = visits.saturating_sub(needed);
        for (list, weight) in lists {
            for (row, times) in list {
                let index = usize::try_from(*row).unwrap_or(usize::MAX);
                let gain = weight * self.gain(index, *times, seen.average);
                if let Some(score) = scores.get_mut(index) {
                    *score += gain;
                }
            }
        }
    }

    /// Returns how well one row matches the words of a query, at the cost of the query alone.
    pub(crate) fn words_at(&self, query: &str, hidden: &BTreeSet<u32>, row: u32) -> f64 {
        let index = usize::try_from(row).unwrap_or(usize::MAX);
        let seen = self.seen(hidden);
        let mut score = 0.0;
        for (list, weight) in self.weighted(query, seen) {
            let found = list.binary_search_by_key(&row, |(row, _)| *row).ok();
            if let Some((_, times)) = found.and_then(|place| list.get(place)) {
                score += weight * self.gain(index, *times, seen.average);
            }
        }
        score
    }

    /// Returns the rows of each word of a query and what the word counts for.
    fn weighted(&self, query: &str, seen: Seen<'_>) -> Vec<(&[(u32, u32)], f64)> {
        let mut wanted = text::terms(query);
        wanted.sort_unstable();
        wanted.dedup();
        let weight_of = |term: &str, list: &[(u32, u32)]| {
            let rows = u64::try_from(list.len()).unwrap_or(u64::MAX);
            let rows = count(rows.saturating_sub(self.hidden_rows(term, seen.hidden)));
            ln(1.0 + (seen.documents - rows + 0.5) / (rows + 0.5))
        };
        let lists: Vec<(&[(u32, u32)], f64)> = wanted
            .iter()
            .map(|term| {
                let list = self.postings.get(term).map_or(&[][..], Vec::as_slice);
                (list, weight_of(term, list))
            })
            .collect();
        let best: f64 = lists.iter().map(|(_, weight)| weight).sum();
        if best <= 0.0 {
            return Vec::new();
        }
        lists
            .into_iter()
            .map(|(list, weight)| (list, weight / best))
            .collect()
    }

    /// Returns in how many rows of hidden circles a word stands, at the cost of the circles that have it.
    fn hidden_rows(&self, term: &str, hidden: &BTreeSet<u32>) -> u64 {
        if hidden.is_empty() {
            return 0;
        }
        let circles = self.circle_words.get(term).into_iter().flatten();
        let circles = circles.filter(|(circle, _)| hidden.contains(circle));
        circles.map(|(_, rows)| u64::from(*rows)).sum()
    }

    /// Returns how many rows there are outside the hidden circles, and how many words these have on average.
    fn seen<'a>(&self, hidden: &'a BTreeSet<u32>) -> Seen<'a> {
        let (mut documents, mut words) = (self.documents, self.length_sum);
        for circle in hidden {
            let (rows, length) = self.circle_sizes.get(circle).copied().unwrap_or_default();
            documents = documents.saturating_sub(rows);
            words = words.saturating_sub(length);
        }
        Seen {
            hidden,
            documents: count(documents),
            average: count(words) / count(documents).max(1.0),
        }
    }

    fn gain(&self, index: usize, times: u32, average: f64) -> f64 {
        let length = f64::from(self.lengths.get(index).copied().unwrap_or_default());
        let times = f64::from(times);
        let damped = K1 * (1.0 - B + B * length / average.max(1.0));
        times * (K1 + 1.0) / (times + damped)
    }

    /// Sets in `scores` the cosine of each row that has a vector of the query's model.
    pub(crate) fn score_vectors(&self, query: &Vector, scores: &mut [f64]) {
        if let Some(matrix) = self.matrices.get(&query.model) {
            matrix.search(query, |row, cosine| {
                let index = usize::try_from(row).unwrap_or(usize::MAX);
                if let Some(score) = scores.get_mut(index) {
                    *score = cosine;
                }
            });
        }
    }
}

/// Takes one row of a circle off a word.
fn leave_circle(words: &mut BTreeMap<String, BTreeMap<u32, u32>>, term: &str, circle: u32) {
    let Some(circles) = words.get_mut(term) else {
        return;
    };
    if let Some(rows) = circles.get_mut(&circle) {
        *rows -= 1;
        if *rows == 0 {
            circles.remove(&circle);
        }
    }
    if circles.is_empty() {
        words.remove(term);
    }
}

/// Returns the words of some texts with their counts, in order.
pub(crate) fn counted(texts: &[&str]) -> BTreeMap<String, u32> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for text in texts {
        for term in text::terms(text) {
            *counts.entry(term).or_default() += 1;
        }
    }
    counts
}

// Counts of units and words stay far below 2^53.
fn count(value: u64) -> f64 {
    value as f64
}

/// The natural logarithm by basic arithmetic alone: library versions differ in the last digit between machines.
fn ln(value: f64) -> f64 {
    if !value.is_normal() || value < 0.0 {
        return 0.0;
    }
    let mut mantissa = value;
    let mut twos = 0.0;
    while mantissa > 1.5 {
        mantissa /= 2.0;
        twos += 1.0;
    }
    while mantissa < 0.75 {
        mantissa *= 2.0;
        twos -= 1.0;
    }
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let (mut power, mut sum, mut odd) = (ratio, 0.0, 1.0);
    for _ in 0..16 {
        sum += power / odd;
        power *= square;
        odd += 2.0;
    }
    2.0 * sum + twos * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score_all(search: &Search, query: &str, hidden: &BTreeSet<u32>, scores: &mut [f64]) {
        let mut visits = VISITS_MAX;
        search.score_words(query, hidden, &mut visits, scores);
    }

    #[test]
    fn our_logarithm_is_the_logarithm() {
        for value in [1e-6, 0.3, 0.75, 1.0, 1.2, 1.5, 2.0, 10.0, 12_345.678, 1e9] {
            assert!((ln(value) - f64::ln(value)).abs() < 1e-12, "{value}");
        }
    }

    #[test]
    fn rare_words_count_more_and_erased_rows_are_gone() {
        let mut search = Search::default();
        let texts = [
            "cache latency rises",
            "cache is warm",
            "cache of the proxy",
            "latency budget",
        ];
        for (row, text) in (0_u32..).zip(texts) {
            search.add_text(row, 0, &[text]);
        }
        let all = BTreeSet::new();
        let mut scores = vec![0.0; 4];
        score_all(&search, "cache latency", &all, &mut scores);
        assert!(scores[0] > scores[3] && scores[3] > scores[1], "{scores:?}");
        search.erase(0, &[texts[0]]);
        let mut scores = vec![0.0; 4];
        score_all(&search, "rises", &all, &mut scores);
        assert_eq!(scores, [0.0; 4]);
    }

    #[test]
    fn of_more_words_than_there_is_room_for_the_rarest_count() {
        let mut search = Search::default();
        for row in 0..10 {
            let text = if row == 3 { "common rare" } else { "common" };
            search.add_text(row, 0, &[text]);
        }
        let all = BTreeSet::new();
        let (mut visits, mut scores) = (10, vec![0.0; 10]);
        search.score_words("common rare", &all, &mut visits, &mut scores);
        let found: Vec<usize> = (0..10).filter(|row| scores[*row] > 0.0).collect();
        assert_eq!((found, visits), (vec![3], 0));
        // Nothing is left for the next text.
        let mut scores = vec![0.0; 10];
        search.score_words("rare", &all, &mut visits, &mut scores);
        assert_eq!(scores, [0.0; 10]);
    }

    /// Whoever does not see a circle gets the scores of a search that never had its rows, before and after erasing one.
    #[test]
    fn hidden_rows_weigh_nothing() {
        let texts = [("cache latency rises", 0), ("proxy is warm today", 0)];
        let secret = [
            ("cache of the merger", 7),
            ("cache cache cache", 7),
            ("latency", 8),
        ];
        let mut without = Search::default();
        let mut with = Search::default();
        for (row, (text, circle)) in (0_u32..).zip(texts.into_iter().chain(secret)) {
            if circle == 0 {
                without.add_text(row, circle, &[text]);
            }
            with.add_text(row, circle, &[text]);
        }
        let (none, hidden) = (BTreeSet::new(), BTreeSet::from([7, 8]));
        let queries = [
            "cache latency",
            "merger proxy",
            "cache",
            "warm cache latency",
        ];
        for erased in [None, Some(3_u32)] {
            if let Some(row) = erased {
                with.erase(row, &[secret[1].0]);
            }
            for query in queries {
                let (mut one, mut other) = (vec![0.0; 2], vec![0.0; 2]);
                score_all(&without, query, &none, &mut one);
                score_all(&with, query, &hidden, &mut other);
                assert_eq!(one, other, "{query}");
                for row in 0..2 {
                    let at = with.words_at(query, &hidden, row);
                    assert_eq!(at, without.words_at(query, &none, row), "{query}");
                }
            }
        }
    }
}
