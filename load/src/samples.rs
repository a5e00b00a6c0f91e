//! Durations of many equal things.

use std::time::Duration;

/// Durations in the order they were taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    seconds: Vec<f64>,
}

impl Samples {
    pub(crate) fn add(&mut self, took: Duration) {
        self.seconds.push(took.as_secs_f64());
    }

    pub(crate) fn append(&mut self, other: Samples) {
        self.seconds.extend(other.seconds);
    }

    pub(crate) fn len(&self) -> usize {
        self.seconds.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.percentile(99)
    }

    pub(crate) fn max(&self) -> f64 {
        self.percentile(100)
    }

    /// Returns the smallest sample that at least this share is not above; no number without samples.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_rank() {
        let mut samples = Samples::default();
        assert!(samples.median().is_nan());
        for seconds in (1..=200).rev() {
            samples.add(Duration::from_secs(seconds));
        }
        assert_eq!((samples.median(), samples.p99()), (100.0, 198.0));
        assert_eq!(samples.max(), 200.0);
    }
}
