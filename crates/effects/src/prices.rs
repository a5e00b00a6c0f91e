//! What calls cost: the shipped dated table and the configured one.
//!
//! Invariant: a price that is not known gives no cost. Nothing is ever counted as free because it is unknown.

use domain::{PriceTable, Seller};

/// Prices are for this many tokens.
const TOKENS_PER_PRICE: u128 = 1_000_000;

/// The tokens of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Tokens read, cached ones included.
    pub(crate) input: u64,
    /// Those of them that came from the provider's cache.
    pub(crate) cached: u64,
    /// Those of them that the provider put into its cache, at a price of its own.
    pub(crate) cache_writes: u64,
    /// Tokens written.
    pub(crate) output: u64,
}

/// All known prices; earlier tables win.
#[derive(Debug, Clone)]
pub(crate) struct Prices(Vec<PriceTable>);

impl Prices {
    pub(crate) fn new(configured: Option<PriceTable>) -> Self {
        let shipped = [PriceTable::shipped()];
        Self(configured.into_iter().chain(shipped).collect())
    }

    /// Returns the cost in millionths and the table it comes from, if the price is known.
    pub(crate) fn cost(&self, seller: Seller<'_>, usage: Usage) -> Option<(u64, &str)> {
        let (table, price) = self.0.iter().find_map(|table| {
            let price = table.find(seller)?;
            Some((&table.table, price))
        })?;
        if usage.cache_writes > 0 {
            return None;
        }
        let cached = match (usage.cached, price.cached_input) {
            (0, _) => 0,
            (tokens, Some(price)) => u128::from(tokens) * u128::from(price),
            (_, None) => return None,
        };
        let fresh = u128::from(usage.input.saturating_sub(usage.cached)) * u128::from(price.input);
        let written = u128::from(usage.output) * u128::from(price.output);
        let micros = (cached + fresh + written + TOKENS_PER_PRICE / 2) / TOKENS_PER_PRICE;
        Some((u64::try_from(micros).ok()?, table))
    }
}

#[cfg(test)]
mod tests {
    use domain::Price;

    use super::*;

    fn prices() -> Prices {
        let table = PriceTable {
            table: "ours".to_owned(),
            models: vec![Price {
                provider: Some("main".to_owned()),
                host: None,
                model: "m".to_owned(),
                input: 1_000_000,
                cached_input: None,
                output: 3_000_000,
            }],
        };
        Prices::new(Some(table))
    }

    fn check(seller: (&str, &str, &str), usage: Usage, expected: Option<(u64, &str)>) {
        let (provider, host, model) = seller;
        let seller = Seller {
            provider,
            host,
            model,
        };
        assert_eq!(
            prices().cost(seller, usage),
            expected,
            "{seller:?} {usage:?}"
        );
    }

    #[test]
    fn a_cost_is_computed_in_whole_millionths() {
        let usage = Usage {
            input: 10,
            output: 5,
            ..Usage::default()
        };
        check(("main", "h", "m"), usage, Some((25, "ours")));
        check(
            ("x", "api.openai.com", "gpt-4o-mini-2024-07-18"),
            Usage {
                input: 1_000,
                cached: 1_000,
                ..Usage::default()
            },
            Some((75, "2026-11-01")),
        );
        check(
            ("x", "api.anthropic.com", "claude-sonnet-4-20250514"),
            Usage {
                output: 2,
                ..Usage::default()
            },
            Some((30, "2026-11-01")),
        );
    }

    #[test]
    fn an_unknown_price_is_no_price() {
        let usage = Usage {
            input: 10,
            ..Usage::default()
        };
        check(("other", "h", "m"), usage, None);
        check(("main", "h", "m2"), usage, None);
        // The shipped table speaks only for the hosts it names.
        check(("main", "127.0.0.1", "gpt-4o-mini"), usage, None);
        let cached = Usage { cached: 3, ..usage };
        check(("main", "h", "m"), cached, None);
        let writes = Usage {
            cache_writes: 1,
            ..usage
        };
        check(("main", "h", "m"), writes, None);
    }
}
