//! Vectors of texts: what makes them, the built-in `hash-1024`, and exact search over int8 rows.
//!
//! A vector carries the name and digest of its model; vectors of two models are never compared. Everything is integer
//! or correctly rounded arithmetic, so that the same text gives the same numbers on every machine.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use canon::Digest;
use serde::{Deserialize, Serialize};

use crate::text;

/// What made a vector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The name of the model.
    pub name: String,
    /// The digest of its weights or, for the built-in one, of its definition.
    pub sha256: Digest,
}

impl Model {
    /// The built-in model: words and their groups of three letters, hashed to 1,024 dimensions.
    ///
    /// Close on wording, weak on paraphrase; needs no weights and repeats everywhere.
    pub fn hash_1024() -> Self {
        Self {
            name: HASH_1024.into(),
            sha256: *HASH_1024_SHA256,
        }
    }

    /// Returns whether it is the built-in one.
    pub(crate) fn is_hash_1024(&self) -> bool {
        self.name == HASH_1024 && self.sha256 == *HASH_1024_SHA256
    }
}

const HASH_1024: &str = "hash-1024";
static HASH_1024_SHA256: LazyLock<Digest> =
    LazyLock::new(|| canon::sha256(HASH_1024_DEFINITION.as_bytes()));

/// Changing what `hash_1024` computes means changing this text: stored vectors then belong to another model.
const HASH_1024_DEFINITION: &str = "hash-1024/1: stemmed words weight 8, padded letter 3-grams weight 3, \
     square root of counts, FNV-1a 64, sign by the top bit, int8 by the largest component";
const DIMENSIONS: usize = 1_024;
pub(crate) const DIMENSIONS_MAX: usize = 16_384;

/// A vector of small integers; only directions are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What made it.
    pub model: Model,
    /// Its components.
    pub components: Vec<i8>,
}

impl Vector {
    /// Makes a vector of what a model answered; nothing if there are no components, too many, or one is not a number.
    pub fn quantized(model: Model, components: &[f32]) -> Option<Self> {
        let largest = components
            .iter()
            .map(|value| value.abs())
            .fold(0.0, f32::max);
        let usable = (1..=DIMENSIONS_MAX).contains(&components.len())
            && components.iter().all(|value| value.is_finite())
            && largest > 0.0;
        usable.then(|| Self {
            model,
            components: components
                .iter()
                .map(|value| quantize(f64::from(*value) / f64::from(largest)))
                .collect(),
        })
    }

    /// Makes the built-in vector of a text.
    pub fn hash_1024(text: &str) -> Self {
        let mut words: BTreeMap<String, u32> = BTreeMap::new();
        let mut grams: BTreeMap<[char; 3], u32> = BTreeMap::new();
        for term in text::terms(text) {
            let padded: Vec<char> = std::iter::once('_')
                .chain(term.chars())
                .chain(std::iter::once('_'))
                .collect();
            for gram in padded.windows(3) {
                if let [a, b, c] = *gram {
                    *grams.entry([a, b, c]).or_default() += 1;
                }
            }
            *words.entry(term).or_default() += 1;
        }
        let mut sums = vec![0.0_f64; DIMENSIONS];
        let mut add = |feature: &str, weight: f64, count: u32| {
            let hash = fnv1a(feature.as_bytes());
            let dimension = usize::try_from(hash % 1_024).unwrap_or_default();
            let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
            if let Some(sum) = sums.get_mut(dimension) {
                *sum += sign * weight * f64::from(count).sqrt();
            }
        };
        for (word, count) in &words {
            add(&format!("w{word}"), 8.0, *count);
        }
        for (gram, count) in &grams {
            add(
                &format!("g{}", gram.iter().collect::<String>()),
                3.0,
                *count,
            );
        }
        let largest = sums.iter().map(|value| value.abs()).fold(0.0, f64::max);
        let components = sums
            .iter()
            .map(|value| {
                if largest > 0.0 {
                    quantize(value / largest)
                } else {
                    0
                }
            })
            .collect();
        Self {
            model: Model::hash_1024(),
            components,
        }
    }

    /// Returns the cosine of the angle to another vector; nothing between two models.
    pub fn cosine(&self, other: &Self) -> Option<f64> {
        if self.model != other.model || self.components.len() != other.components.len() {
            return None;
        }
        let dot: i64 = self
            .components
            .iter()
            .zip(&other.components)
            .map(|(a, b)| i64::from(*a) * i64::from(*b))
            .sum();
        Some(cosine(dot, norm(&self.components) * norm(&other.components)))
    }
}

fn norm(components: &[i8]) -> f64 {
    // At most 2^14 squares below 2^14: the sum fits.
    let squares: i32 = components
        .iter()
        .map(|value| i32::from(*value) * i32::from(*value))
        .sum();
    exact(i64::from(squares)).sqrt()
}

/// Components and their products stay far below 2^53.
// Sums of at most 2^14 products of bytes.
fn exact(value: i64) -> f64 {
    value as f64
}

fn cosine(dot: i64, norms: f64) -> f64 {
    if norms > 0.0 { exact(dot) / norms } else { 0.0 }
}

// Within ±127 after the clamp.
fn quantize(share: f64) -> i8 {
    (share * 127.0).round().clamp(-127.0, 127.0) as i8
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Rows in one block.
const BLOCK: usize = 1_024;

/// All vectors of one model, for exact search.
///
/// Components lie by dimension within blocks of rows. A query of few words has few components that are not zero, and
/// only those are read; the sums of a block stay in the fastest cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct Matrix {
    dimensions: usize,
    blocks: Vec<Vec<i8>>,
    norms: Vec<f64>,
    /// The unit of each row.
    units: Vec<u32>,
    row_of: BTreeMap<u32, usize>,
}

impl Matrix {
    /// Adds the vector of a unit. One of another length than the first is left out: it cannot be compared.
    pub(crate) fn add(&mut self, unit: u32, components: &[i8]) {
        if self.units.is_empty() {
            self.dimensions = components.len();
        }
        if components.len() != self.dimensions || self.row_of.contains_key(&unit) {
            return;
        }
        let row = self.units.len();
        if row.is_multiple_of(BLOCK) {
            self.blocks.push(vec![0; self.dimensions * BLOCK]);
        }
        self.units.push(unit);
        self.row_of.insert(unit, row);
        self.norms.push(norm(components));
        // A new row is zero, and most components of the built-in vectors are.
        let cells = components.iter().enumerate();
        let Some(block) = self.blocks.get_mut(row / BLOCK) else {
            return;
        };
        for (dimension, component) in cells.filter(|(_, component)| **component != 0) {
            if let Some(cell) = block.get_mut(dimension * BLOCK + row % BLOCK) {
                *cell = *component;
            }
        }
    }

    /// Makes the vector of a unit unfindable and erases it.
    pub(crate) fn erase(&mut self, unit: u32) {
        if let Some(row) = self.row_of.get(&unit).copied() {
            if let Some(norm) = self.norms.get_mut(row) {
                *norm = 0.0;
            }
            let block = self.blocks.get_mut(row / BLOCK);
            let cells = block.into_iter().flatten();
            for cell in cells.skip(row % BLOCK).step_by(BLOCK) {
                *cell = 0;
            }
        }
    }

    /// Returns the components of a unit's vector.
    pub(crate) fn components(&self, unit: u32) -> Option<Vec<i8>> {
        let row = *self.row_of.get(&unit)?;
        let block = self.blocks.get(row / BLOCK)?;
        Some(
            block
                .iter()
                .skip(row % BLOCK)
                .step_by(BLOCK)
                .copied()
                .collect(),
        )
    }

    /// Calls `each` with every unit and the cosine of its vector to the query.
    pub(crate) fn search(&self, query: &Vector, mut each: impl FnMut(u32, f64)) {
        if query.components.len() != self.dimensions {
            return;
        }
        let wanted: Vec<(usize, i16)> = query
            .components
            .iter()
            .enumerate()
            .filter(|(_, component)| **component != 0)
            .map(|(dimension, component)| (dimension, i16::from(*component)))
            .collect();
        let norm = norm(&query.components);
        let rows = self.units.chunks(BLOCK).zip(self.norms.chunks(BLOCK));
        for (block, (units, norms)) in self.blocks.iter().zip(rows) {
            let (columns, _) = block.as_chunks::<BLOCK>();
            let mut sums = [0_i32; BLOCK];
            for four in wanted.chunks(COLUMNS) {
                add_products(&mut sums, columns, four);
            }
            for ((sum, unit), row_norm) in sums.iter().zip(units).zip(norms) {
                each(*unit, cosine(i64::from(*sum), norm * row_norm));
            }
        }
    }
}

/// Columns that are read together: sums are loaded and stored once for all of them.
const COLUMNS: usize = 4;

/// Adds to the sum of each row its components in some columns, each times the factor of its column.
///
/// Two products of components, which are at most 127, fit 16 bits together, and every processor handles eight of those
/// at once; only their sum is widened.
fn add_products(sums: &mut [i32; BLOCK], columns: &[[i8; BLOCK]], wanted: &[(usize, i16)]) {
    const NOTHING: [i8; BLOCK] = [0; BLOCK];
    let column = |place: usize| {
        let (dimension, factor) = wanted.get(place).copied().unwrap_or((0, 0));
        (columns.get(dimension).unwrap_or(&NOTHING), factor)
    };
    let [(a, by_a), (b, by_b), (c, by_c), (d, by_d)] = [column(0), column(1), column(2), column(3)];
    let pair = |one: i8, by_one: i16, other: i8, by_other: i16| {
        let one = i16::from(one).wrapping_mul(by_one);
        i32::from(one.wrapping_add(i16::from(other).wrapping_mul(by_other)))
    };
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *sum = sum
            .wrapping_add(pair(*a, by_a, *b, by_b))
            .wrapping_add(pair(*c, by_c, *d, by_d));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_point_the_same_way() {
        let one = Vector::hash_1024("The market grows at 23% a year");
        let same = Vector::hash_1024("markets growing 23% year");
        let other = Vector::hash_1024("Deploy the container on Tuesday");
        assert!(one.cosine(&same).unwrap() > 0.9);
        assert!(one.cosine(&other).unwrap() < 0.3);
        assert!((one.cosine(&one).unwrap() - 1.0).abs() < 1e-12);
        assert!(
            Vector::hash_1024("")
                .components
                .iter()
                .all(|value| *value == 0)
        );
    }

    #[test]
    fn vectors_of_two_models_are_never_compared() {
        let one = Vector::hash_1024("text");
        let mut other = one.clone();
        other.model.name = "another".into();
        assert_eq!(one.cosine(&other), None);
        let mut matrix = Matrix::default();
        matrix.add(0, &one.components);
        let short = Vector {
            model: Model::hash_1024(),
            components: vec![1; 8],
        };
        let mut seen = 0;
        matrix.search(&short, |_, _| seen += 1);
        assert_eq!(seen, 0);
    }

    #[test]
    fn search_over_blocks_is_the_plain_product_and_erased_rows_are_silent() {
        let texts: Vec<String> = (0..2_500)
            .map(|n| format!("unit {n} about topic {}", n % 7))
            .collect();
        let vectors: Vec<Vector> = texts.iter().map(|text| Vector::hash_1024(text)).collect();
        let mut matrix = Matrix::default();
        for (unit, vector) in vectors.iter().enumerate() {
            matrix.add(u32::try_from(unit).unwrap(), &vector.components);
        }
        matrix.erase(17);
        let query = Vector::hash_1024("topic 3");
        let mut seen = 0;
        matrix.search(&query, |unit, found| {
            let expected = if unit == 17 {
                0.0
            } else {
                query.cosine(&vectors[unit as usize]).unwrap()
            };
            assert!((found - expected).abs() < 1e-12, "{unit}");
            seen += 1;
        });
        assert_eq!(seen, 2_500);
    }

    #[test]
    fn the_largest_components_do_not_overflow() {
        let dimensions = 4 * COLUMNS + 3;
        let vector = |component: i8| Vector {
            model: Model::hash_1024(),
            components: vec![component; dimensions],
        };
        let mut matrix = Matrix::default();
        matrix.add(0, &vector(127).components);
        matrix.add(1, &vector(-127).components);
        let mut found = Vec::new();
        matrix.search(&vector(-127), |_, cosine| found.push(cosine));
        assert_eq!(found, [-1.0, 1.0]);
    }

    #[test]
    fn what_a_model_answers_is_quantized_or_refused() {
        let model = Model::hash_1024();
        let vector = Vector::quantized(model.clone(), &[0.5, -1.0, 0.25]).unwrap();
        assert_eq!(vector.components, [64, -127, 32]);
        assert_eq!(Vector::quantized(model.clone(), &[f32::NAN]), None);
        assert_eq!(Vector::quantized(model.clone(), &[0.0, 0.0]), None);
        assert_eq!(Vector::quantized(model, &[]), None);
    }
}
