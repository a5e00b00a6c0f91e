//! The document holds together, and keeps what the published contract promises.

use std::collections::BTreeSet;

use super::*;

const SIZES: Sizes = Sizes {
    body_bytes_max: 1024 * 1024,
    artifact_bytes_max: 64 * 1024 * 1024,
    bundle_bytes_max: 256 * 1024 * 1024,
    initial_messages_max: 3,
};

fn ours() -> Value {
    document("0.0.0", "http://127.0.0.1:8080", &SIZES)
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.insert(target.clone());
            }
            map.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = ours();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for target in found {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target}");
    }
}

#[test]
fn operations_are_distinct_and_errors_are_described() {
    let ids: BTreeSet<&str> = operations().map(|operation| operation.id).collect();
    assert_eq!(ids.len(), operations().count());
    for operation in operations() {
        assert!(operation.describe(&SIZES)["responses"]["default"].is_object());
    }
}

/// The JSON types that a schema admits.
fn types(document: &Value, schema: &Value) -> BTreeSet<String> {
    const ALL: [&str; 6] = ["string", "number", "boolean", "object", "array", "null"];
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return types(document, document.pointer(&target[1..]).expect(target));
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(Value::Array(options)) = schema.get(key) {
            return options
                .iter()
                .flat_map(|option| types(document, option))
                .collect();
        }
    }
    if schema.get("allOf").is_some() {
        return BTreeSet::from(["object".to_owned()]);
    }
    match schema.get("type") {
        Some(Value::String(one)) => BTreeSet::from([one.replace("integer", "number")]),
        Some(Value::Array(several)) => several
            .iter()
            .map(|one| one.as_str().unwrap().replace("integer", "number"))
            .collect(),
        _ => ALL.iter().map(ToString::to_string).collect(),
    }
}

/// The members of a schema, those it takes over included.
fn members(document: &Value, schema: &Value) -> Map<String, Value> {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return members(document, document.pointer(&target[1..]).expect(target));
    }
    let mut all = Map::new();
    for part in schema
        .get("allOf")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        all.extend(members(document, part));
    }
    if let Some(Value::Object(own)) = schema.get("properties") {
        all.extend(own.clone());
    }
    all
}

fn words(document: &Value, schema: &Value) -> Vec<Value> {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return words(document, document.pointer(&target[1..]).expect(target));
    }
    let listed = schema.get("enum").and_then(Value::as_array);
    listed.cloned().unwrap_or_default()
}

#[test]
fn c_35_the_wire_payload_is_the_schema_of_the_format() {
    let document = ours();
    let schemas = &document["components"]["schemas"];
    let payload = &schemas["ReceiptWireEnvelope"]["properties"]["payload"];
    assert_eq!(payload["$ref"], "#/components/schemas/ReceiptDocument");
    let shipped: Value = serde_json::from_str(crate::receipt::SCHEMA).unwrap();
    let described = &schemas["ReceiptDocument"];
    assert_eq!(described["required"], shipped["required"]);
    assert_eq!(described["additionalProperties"], Value::Bool(false));
    for name in shipped["properties"].as_object().unwrap().keys() {
        let known = schemas["Receipt"]["properties"].get(name);
        assert!(known.is_some(), "the superset lists `{name}`");
    }
}

#[test]
fn ap_ver_06_every_path_method_and_member_of_the_contract_is_kept() {
    let contract = testing::published("data/openapi-agents-protocol-2026-04-25.yaml");
    let Some(contract) = contract else {
        return;
    };
    let contract: Value = serde_saphyr::from_slice(&contract).unwrap();
    let ours = ours();
    let mut missing = Vec::new();
    for (path, methods) in contract["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            let Some(theirs) = methods.get(method) else {
                continue;
            };
            let own = &ours["paths"][path][method];
            if own["operationId"] != theirs["operationId"] {
                missing.push(format!("{method} {path}"));
            }
            for status in theirs["responses"].as_object().unwrap().keys() {
                // C-09: 409 of a cancel is the same wrapped error as everywhere.
                if status != "409" && own["responses"].get(status).is_none() {
                    missing.push(format!("{method} {path} {status}"));
                }
            }
        }
    }
    for (name, schema) in contract["components"]["schemas"].as_object().unwrap() {
        let own = &ours["components"]["schemas"][name];
        let own_members = members(&ours, own);
        for (member, expected) in members(&contract, schema) {
            let Some(found) = own_members.get(&member) else {
                missing.push(format!("{name}.{member}"));
                continue;
            };
            // C-05: the receipt format's issuer is an object.
            let decided = name == "Receipt" && member == "issuer";
            if !decided && types(&ours, found) != types(&contract, &expected) {
                missing.push(format!("{name}.{member} is {found}, not {expected}"));
            }
            let known = words(&ours, found);
            for word in words(&contract, &expected) {
                if !known.contains(&word) {
                    missing.push(format!("{name}.{member} lacks {word}"));
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(contract["paths"].as_object().unwrap().len() > 60);
}

/// Whoever writes a persona finds every member of it in the documentation.
#[test]
fn the_documentation_names_every_member_of_a_persona() {
    let told = include_str!("../../../../docs/agents.md");
    let document = ours();
    let request = &document["components"]["schemas"]["CreatePersonaRequest"];
    for name in request["properties"].as_object().unwrap().keys() {
        // Refused: no module is run here.
        let is_told = name == "module_ref" || told.contains(&format!("`{name}`"));
        assert!(is_told, "docs/agents.md does not tell of `{name}`");
    }
}
