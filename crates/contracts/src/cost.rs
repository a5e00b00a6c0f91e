//! What a model call costs: exact decimals, or not known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;

/// Prices by `provider/model`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prices {
    by_model: BTreeMap<String, Price>,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Tokens sent.
    pub input: Decimal,
    /// Tokens received.
    pub output: Decimal,
    /// Tokens read from the provider's cache; absent: the price of input.
    pub cache_read: Option<Decimal>,
    /// Tokens written to the provider's cache; absent: twice the price of input.
    pub cache_write: Option<Decimal>,
}

/// What a provider says a call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens sent, without those below.
    pub input: u64,
    /// Tokens received.
    pub output: u64,
    /// Tokens read from the cache.
    pub cache_read: u64,
    /// Tokens written to the cache.
    pub cache_write: u64,
}

impl Prices {
    /// Sets the price of a model.
    pub fn set(&mut self, provider_model: &str, price: Price) {
        self.by_model.insert(provider_model.to_owned(), price);
    }

    /// Returns the price of a model.
    pub fn get(&self, provider_model: &str) -> Option<&Price> {
        self.by_model.get(provider_model)
    }
}

impl Price {
    /// Returns the exact cost of a call, or nothing when it has too many digits to be exact.
    pub fn cost(&self, usage: Usage) -> Option<Decimal> {
        let twice = self.input.checked_add(self.input)?;
        let parts = [
            (usage.input, self.input),
            (usage.output, self.output),
            (usage.cache_read, self.cache_read.unwrap_or(self.input)),
            (usage.cache_write, self.cache_write.unwrap_or(twice)),
        ];
        let mut sum = Decimal::ZERO;
        for (tokens, price) in parts {
            sum = sum.checked_add(Decimal::from(tokens).checked_mul(price)?)?;
        }
        Some(sum.shifted_right(6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r26_cost_is_exact_and_the_cache_has_its_defaults() {
        let decimal = |text| Decimal::parse(text).unwrap();
        let mut price = Price {
            input: decimal("0.15"),
            output: decimal("0.60"),
            cache_read: None,
            cache_write: None,
        };
        let usage = Usage {
            input: 3,
            output: 7,
            cache_read: 10,
            cache_write: 10,
        };
        // 0.45 + 4.2 + 1.5 + 3.0 = 9.15 millionths.
        assert_eq!(price.cost(usage), Some(decimal("0.00000915")));
        price.cache_read = Some(decimal("0.075"));
        price.cache_write = Some(decimal("0"));
        assert_eq!(price.cost(usage), Some(decimal("0.0000054")));
    }
}
