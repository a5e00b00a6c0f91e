//! The schemas of the API's description, by family.

mod local;
mod parts;
mod requests;
mod resources;

use super::governed;
use super::receipts;
use super::records;
use super::schema::Schema;

/// Every schema.
pub(super) fn all() -> impl Iterator<Item = &'static Schema> {
    [
        resources::SCHEMAS,
        parts::SCHEMAS,
        requests::SCHEMAS,
        local::SCHEMAS,
        receipts::SCHEMAS,
        records::SCHEMAS,
        governed::SCHEMAS,
    ]
    .into_iter()
    .flatten()
}
