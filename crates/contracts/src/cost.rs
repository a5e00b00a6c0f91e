//! What a model call costs: exact decimals, or not known.

use std::collections::BTreeMap;

use domain::{PriceTable, Seller};
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;

/// Prices by `provider/model`: those that were given, and else the dated table of the product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    given: BTreeMap<String, Price>,
    shipped: PriceTable,
}

impl Default for Prices {
    fn default() -> Self {
        Self {
            given: BTreeMap::new(),
            shipped: PriceTable::shipped(),
        }
    }
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
        self.given.insert(provider_model.to_owned(), price);
    }

    /// Returns the price of a model. The table speaks for the two providers by their own names only; a model in neither has
    /// no price.
    pub fn get(&self, provider_model: &str) -> Option<Price> {
        let given = self.given.get(provider_model).copied();
        given.or_else(|| self.of_the_table(provider_model))
    }

    /// Says whether a given price is below the one of the table, or stands for a model that the table does not have.
    pub fn is_underpriced(&self) -> bool {
        let mut given = self.given.iter();
        given.any(|(model, price)| {
            let listed = self.of_the_table(model);
            listed.is_none_or(|listed| price.is_below(&listed))
        })
    }

    fn of_the_table(&self, provider_model: &str) -> Option<Price> {
        let (provider, model) = provider_model.split_once('/')?;
        let host = match provider {
            "openai" => "api.openai.com",
            "anthropic" => "api.anthropic.com",
            _ => return None,
        };
        let price = self.shipped.find(Seller {
            provider,
            host,
            model,
        })?;
        let dollars = |micros: u64| Decimal::from(micros).shifted_right(6);
        Some(Price {
            input: dollars(price.input),
            output: dollars(price.output),
            cache_read: price.cached_input.map(dollars),
            cache_write: None,
        })
    }

    /// Returns the name of the product's table, which is its date.
    pub fn table(&self) -> &str {
        &self.shipped.table
    }
}

impl Price {
    fn is_below(&self, other: &Price) -> bool {
        let parts = |price: &Price| {
            let twice = price.input.checked_add(price.input);
            [
                Some(price.input),
                Some(price.output),
                Some(price.cache_read.unwrap_or(price.input)),
                price.cache_write.or(twice),
            ]
        };
        let (own, others) = (parts(self), parts(other));
        own.into_iter().zip(others).any(|(own, other)| own < other)
    }

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
    fn r26_the_dated_table_is_asked_where_nothing_else_was_given() {
        let mut prices = Prices::default();
        assert_eq!(prices.table(), "2026-11-01");
        let usage = Usage {
            input: 1_000,
            cache_read: 1_000,
            output: 10,
            cache_write: 1_000,
        };
        // 2.50 + 1.25 + 0.10 dollars a thousand times less; what is written into the cache costs twice the input.
        let price = prices.get("openai/gpt-4o-2024-08-06").unwrap();
        let cost = price.cost(usage).unwrap();
        assert_eq!(cost, Decimal::parse("0.00885").unwrap());
        for unknown in ["openai/gpt-9", "azure/gpt-4o", "gpt-4o"] {
            assert_eq!(prices.get(unknown), None, "{unknown}");
        }
        let one = Decimal::from(1);
        let own = Price {
            input: one,
            output: one,
            cache_read: None,
            cache_write: None,
        };
        prices.set("openai/gpt-4o", own);
        assert_eq!(prices.get("openai/gpt-4o"), Some(own));
    }

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
