//! The description of the API: an OpenAPI 3.1 document built from two tables.
//!
//! The table of operations is also what a test of the surface holds its routes against, so that a path cannot be
//! served without being described, nor described without being served.

mod governed;
mod memory;
mod operation;
mod operations;
mod receipts;
mod records;
mod schema;
mod schemas;

use canon::{Map, Value};
use serde_json::json;

pub use governed::is_governed_path;
pub use operation::{Body, Operation, Protocol, ResponseKind, Sizes};

use crate::PROTOCOL_VERSION;

/// Returns every operation of the surface, those of other protocols included.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    operations::OPERATIONS
        .iter()
        .chain(receipts::OPERATIONS)
        .chain(records::OPERATIONS)
        .chain(governed::OPERATIONS)
        .chain(memory::OPERATIONS)
}

/// Returns the document for a server of this version at this address that takes this much.
pub fn document(version: &str, base_url: &str, sizes: &Sizes) -> Value {
    let mut paths = Map::new();
    for operation in operations().filter(|operation| operation.protocol == Protocol::Agents) {
        let path = paths
            .entry(operation.path)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(methods) = path {
            methods.insert(operation.method.to_owned(), operation.describe(sizes));
        }
    }
    let mut schemas: Map<String, Value> = schemas::all()
        .map(|schema| (schema.name.to_owned(), schema.describe()))
        .collect();
    // What else a request may hold is the same everywhere.
    let first = schemas
        .get_mut("CreateSessionRequest")
        .and_then(|schema| schema.pointer_mut("/properties/initial_messages"));
    if let Some(Value::Object(first)) = first {
        first.insert("maxItems".to_owned(), json!(sizes.initial_messages_max));
    }
    schemas.insert(receipts::DOCUMENT.to_owned(), receipts::document_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Reprise",
            "version": PROTOCOL_VERSION,
            "x-program-version": version,
            "summary": "Sessions, tasks, events and artifacts of agents, recorded",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "security": [{"bearerAuth": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "parameters": operation::parameters(),
            "responses": {
                "Problem": {
                    "description": "The request was not carried out; `code` says why",
                    "headers": {
                        "x-request-id": {"schema": {"type": "string"}},
                        "retry-after": {"schema": {"type": "integer", "minimum": 0}},
                    },
                    "content": {"application/problem+json": {"schema": schema::reference("Problem")}},
                },
                "Error": {
                    "description": "The request was not carried out; `error.code` says why",
                    "headers": {
                        "x-request-id": {"schema": {"type": "string"}},
                        "retry-after": {"schema": {"type": "integer", "minimum": 0}},
                    },
                    "content": {"application/json": {"schema": schema::reference("ErrorResponse")}},
                },
            },
            "securitySchemes": {
                "bearerAuth": {"type": "http", "scheme": "bearer", "bearerFormat": "API key"},
            },
        },
    })
}

#[cfg(test)]
mod tests;
