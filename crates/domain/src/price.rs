//! What models cost: one dated table for the whole product, used by receipts, limits of personas and budgets of contracts.
//!
//! The prices are compiled by hand. They are defaults to start from, not a quotation: whoever is billed otherwise overrides
//! them. Invariant: a price that is not known is no price. Nothing is ever counted as free because it is unknown.

use serde::{Deserialize, Serialize};

/// A dated list of prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceTable {
    /// Its name, which is recorded with each call.
    pub table: String,
    /// The prices.
    #[serde(default)]
    pub models: Vec<Price>,
}

/// What a million tokens cost, in millionths of a US dollar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The configured provider that this holds for; any when absent.
    pub provider: Option<String>,
    /// The host that this holds for; any when absent.
    pub host: Option<String>,
    /// The model, with or without the date that some providers append.
    pub model: String,
    /// Tokens read.
    pub input: u64,
    /// Tokens read from the provider's cache; unknown when absent.
    pub cached_input: Option<u64>,
    /// Tokens written.
    pub output: u64,
}

/// Who sells a call.
#[derive(Debug, Clone, Copy)]
pub struct Seller<'a> {
    /// The name that the configuration gives to the provider.
    pub provider: &'a str,
    /// Its host.
    pub host: &'a str,
    /// The model.
    pub model: &'a str,
}

/// The date of the table that ships with the program, which is its name.
const SHIPPED: &str = "2026-11-01";

/// Host, model, input, cached input, output. An entry holds only for the host that sells at this price: the same model name
/// behind another address has no price until the configuration gives it one.
const ENTRIES: &[(&str, &str, u64, u64, u64)] = &[
    ("api.openai.com", "gpt-4.1", 2_000_000, 500_000, 8_000_000),
    (
        "api.openai.com",
        "gpt-4.1-mini",
        400_000,
        100_000,
        1_600_000,
    ),
    ("api.openai.com", "gpt-4o", 2_500_000, 1_250_000, 10_000_000),
    ("api.openai.com", "gpt-4o-mini", 150_000, 75_000, 600_000),
    (
        "api.anthropic.com",
        "claude-3-5-haiku",
        800_000,
        80_000,
        4_000_000,
    ),
    (
        "api.anthropic.com",
        "claude-opus-4",
        15_000_000,
        1_500_000,
        75_000_000,
    ),
    (
        "api.anthropic.com",
        "claude-sonnet-4",
        3_000_000,
        300_000,
        15_000_000,
    ),
];

impl PriceTable {
    /// Returns the table that ships with the program.
    pub fn shipped() -> Self {
        let models = ENTRIES
            .iter()
            .map(|(host, model, input, cached, output)| Price {
                provider: None,
                host: Some((*host).to_owned()),
                model: (*model).to_owned(),
                input: *input,
                cached_input: Some(*cached),
                output: *output,
            });
        Self {
            table: SHIPPED.to_owned(),
            models: models.collect(),
        }
    }

    /// Finds the price of a call. The exact name wins over the name without its date.
    pub fn find(&self, seller: Seller<'_>) -> Option<&Price> {
        let sold_here = |price: &&Price| {
            let is = |wanted: &Option<String>, given: &str| {
                wanted.as_deref().is_none_or(|wanted| wanted == given)
            };
            is(&price.provider, seller.provider) && is(&price.host, seller.host)
        };
        let named = |name: &str| {
            let mut sold = self.models.iter().filter(sold_here);
            sold.find(|price| price.model == name)
        };
        named(seller.model).or_else(|| named(without_date(seller.model)))
    }
}

/// `name-20260101` and `name-2026-01-01` are dated forms of `name`.
fn without_date(model: &str) -> &str {
    for length in ["-20260101".len(), "-2026-01-01".len()] {
        let at = model.len().saturating_sub(length);
        if let Some((name, date)) = model.split_at_checked(at)
            && date.starts_with('-')
            && date.bytes().filter(u8::is_ascii_digit).count() == 8
        {
            return name;
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_holds_for_its_host_and_for_dated_names() {
        let table = PriceTable::shipped();
        let input = |host, model| {
            let seller = Seller {
                provider: "any",
                host,
                model,
            };
            table.find(seller).map(|price| price.input)
        };
        assert_eq!(input("api.openai.com", "gpt-4o"), Some(2_500_000));
        let dated = "claude-sonnet-4-20250514";
        assert_eq!(input("api.anthropic.com", dated), Some(3_000_000));
        assert_eq!(
            input("api.openai.com", "gpt-4o-2024-08-06"),
            Some(2_500_000)
        );
        assert_eq!(input("127.0.0.1", "gpt-4o"), None);
        assert_eq!(input("api.openai.com", "gpt-4o-audio"), None);
    }
}
