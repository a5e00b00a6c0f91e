//! Vectors of texts: what makes them, the built-in `hash-1024`, and exact search over int8 rows.
//!
//! A vector carries the name and digest of its model; vectors of two models are never compared. Everything is integer
//! or correctly rounded arithmetic, so that the same text gives the same numbers on every machine.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use canon::Digest;
use serde::{Deserialize, Serialize};

use crate::text::{self, FNV_START, fnv1a};

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
        let mut add = |hash: u64, weight: f64, count: u32| {
            let dimension = usize::try_from(hash % 1_024).unwrap_or_default();
            let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
            if let Some(sum) = sums.get_mut(dimension) {
                *sum += sign * weight * f64::from(count).sqrt();
            }
        };
        for (word, count) in &words {
            add(fnv1a(fnv1a(FNV_START, b"w"), word.as_bytes()), 8.0, *count);
        }
        for (gram, count) in &grams {
            let hash = gram.iter().fold(fnv1a(FNV_START, b"g"), |hash, letter| {
                fnv1a(hash, letter.encode_utf8(&mut [0; 4]).as_bytes())
            });
            add(hash, 3.0, *count);
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
        Some(cosine(
            dot,
            norm(&self.components) * norm(&other.components),
        ))
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

/// A query for single units: most of its components are zero, and are left out.
#[derive(Debug)]
pub(crate) struct Sparse {
    dimensions: usize,
    components: Vec<(usize, i8)>,
    norm: f64,
}

impl Sparse {
    pub(crate) fn of(vector: &Vector) -> Self {
        let components = vector.components.iter().copied().enumerate();
        Self {
            dimensions: vector.components.len(),
            components: components.filter(|(_, value)| *value != 0).collect(),
            norm: norm(&vector.components),
        }
    }
}

/// Rows in one block.
const BLOCK: usize = 1_024;

/// All vectors of one model, for exact search.
///
/// Rows lie in blocks. A model outside gives dense vectors, which lie one after the other: a query reads everything, in one
/// stretch. The built-in vectors lie by dimension within a block: a query of few words has few components that are not
/// zero, and only those are read.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    by_dimension: bool,
    dimensions: usize,
    blocks: Vec<Vec<i8>>,
    norms: Vec<f64>,
    /// The unit of each row.
    units: Vec<u32>,
    row_of: BTreeMap<u32, usize>,
}

impl Matrix {
    /// Makes an empty one for the vectors of a model.
    pub(crate) fn of(model: &Model) -> Self {
        Self {
            by_dimension: model.is_hash_1024(),
            dimensions: 0,
            blocks: Vec::new(),
            norms: Vec::new(),
            units: Vec::new(),
            row_of: BTreeMap::new(),
        }
    }

    /// Where in its block a component lies, first and from one to the next.
    fn places(&self, row: usize) -> (usize, usize) {
        if self.by_dimension {
            (row % BLOCK, BLOCK)
        } else {
            (row % BLOCK * self.dimensions, 1)
        }
    }

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
        let (first, step) = self.places(row);
        let Some(block) = self.blocks.get_mut(row / BLOCK) else {
            return;
        };
        // A new row is zero, and most components of the built-in vectors are.
        for (dimension, component) in components.iter().enumerate() {
            if *component != 0
                && let Some(cell) = block.get_mut(first + dimension * step)
            {
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
            let (first, step) = self.places(row);
            let block = self.blocks.get_mut(row / BLOCK);
            let cells = block.into_iter().flatten().skip(first).step_by(step);
            for cell in cells.take(self.dimensions) {
                *cell = 0;
            }
        }
    }

    /// Returns the components of a unit's vector.
    pub(crate) fn components(&self, unit: u32) -> Option<Vec<i8>> {
        let row = *self.row_of.get(&unit)?;
        let (first, step) = self.places(row);
        let cells = self.blocks.get(row / BLOCK)?.iter();
        let cells = cells.skip(first).step_by(step).take(self.dimensions);
        Some(cells.copied().collect())
    }

    /// Returns the cosine of a unit's vector to a query of which only the components that are not zero are given.
    pub(crate) fn cosine_at(&self, query: &Sparse, unit: u32) -> Option<f64> {
        let row = *self.row_of.get(&unit)?;
        let (first, step) = self.places(row);
        let block = self.blocks.get(row / BLOCK)?;
        let products = query.components.iter().filter_map(|(dimension, factor)| {
            let component = block.get(first + dimension * step)?;
            Some(i64::from(*component) * i64::from(*factor))
        });
        let norms = query.norm * self.norms.get(row)?;
        (query.dimensions == self.dimensions).then(|| cosine(products.sum(), norms))
    }

    /// Calls `each` with every unit and the cosine of its vector to the query.
    pub(crate) fn search(&self, query: &Vector, each: impl FnMut(u32, f64)) {
        if query.components.len() == self.dimensions {
            // Compiled for wider registers as well, which are used where the processor has them: sums of integers are the
            // same in any order.
            pulp::Arch::new().dispatch(|| self.scan(&query.components, each));
        }
    }

    #[inline(always)]
    fn scan(&self, query: &[i8], mut each: impl FnMut(u32, f64)) {
        let norm = norm(query);
        let wide: Vec<i16> = query.iter().map(|value| i16::from(*value)).collect();
        let factors = wide.iter().copied().enumerate();
        let factors: Vec<(usize, i16)> = factors.filter(|(_, factor)| *factor != 0).collect();
        let rows = self.units.chunks(BLOCK).zip(self.norms.chunks(BLOCK));
        for (block, (units, norms)) in self.blocks.iter().zip(rows) {
            let mut sums = [0_i32; BLOCK];
            if self.by_dimension {
                let (columns, _) = block.as_chunks::<BLOCK>();
                for four in factors.chunks(COLUMNS) {
                    add_products(&mut sums, columns, four);
                }
            } else {
                let rows = block.chunks_exact(self.dimensions.max(1));
                for ((sum, row), _) in sums.iter_mut().zip(rows).zip(units) {
                    *sum = product(row, &wide);
                }
            }
            for ((sum, unit), row_norm) in sums.iter().zip(units).zip(norms) {
                each(*unit, cosine(i64::from(*sum), norm * row_norm));
            }
        }
    }
}

#[inline(always)]
fn product(row: &[i8], query: &[i16]) -> i32 {
    let products = row.iter().zip(query);
    // At most 2^14 products below 2^14.
    products.fold(0, |sum: i32, (component, factor)| {
        sum.wrapping_add(i32::from(*component).wrapping_mul(i32::from(*factor)))
    })
}

/// Columns that are read together: sums are loaded and stored once for all of them.
const COLUMNS: usize = 4;

/// Adds to the sum of each row its components in some columns, each times the factor of its column.
///
/// Two products of components, which are at most 127, fit 16 bits together: only their sum is widened.
#[inline(always)]
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
        let mut matrix = Matrix::of(&one.model);
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
        let query = Vector::hash_1024("topic 3");
        let outside = Model {
            name: "another".into(),
            ..Model::hash_1024()
        };
        for model in [Model::hash_1024(), outside] {
            let mut matrix = Matrix::of(&model);
            for (unit, vector) in vectors.iter().enumerate() {
                matrix.add(u32::try_from(unit).unwrap(), &vector.components);
            }
            matrix.erase(17);
            assert_eq!(matrix.components(17).unwrap(), [0; DIMENSIONS]);
            for unit in [0, 16, 18, 1_023, 1_024, 2_499] {
                let kept = matrix.components(unit).unwrap();
                assert_eq!(kept, vectors[unit as usize].components, "{unit}");
            }
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
            let sparse = Sparse::of(&query);
            let alone = matrix.cosine_at(&sparse, 1_500).unwrap();
            assert_eq!(Some(alone), query.cosine(&vectors[1_500]));
            assert_eq!(matrix.cosine_at(&sparse, 2_500), None);
        }
    }

    #[test]
    fn the_largest_components_do_not_overflow() {
        let dimensions = 4 * COLUMNS + 3;
        let vector = |component: i8| Vector {
            model: Model::hash_1024(),
            components: vec![component; dimensions],
        };
        let mut matrix = Matrix::of(&Model::hash_1024());
        matrix.add(0, &vector(127).components);
        matrix.add(1, &vector(-127).components);
        let mut found = Vec::new();
        matrix.search(&vector(-127), |_, cosine| found.push(cosine));
        assert!((found[0] + 1.0).abs() < 1e-12 && (found[1] - 1.0).abs() < 1e-12);
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
