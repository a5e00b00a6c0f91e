//! Every answer that any test gets is held against the API's description, and against the published contract when it
//! is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};
use wire::openapi::{Operation, ResponseKind, operations};

/// Where the description is looser than the contract on purpose.
fn differs_on_purpose(operation: &Operation, text: &str) -> bool {
    // C-48: no A2A interface answers yet, so none is listed; AP-PRIV-03: descriptors stand for private parts;
    // AP-PART-03: parts of unknown types are kept.
    // C-05: the issuer of a receipt is the format's object.
    let named = ["getAgentCard", "getReceipt", "listTaskReceipts"];
    named.contains(&operation.id) || text.contains("\"redacted\"") || text.contains("hologram")
}

struct Documents {
    ours: Value,
    contract: Option<Value>,
}

/// What is taken is no part of the shapes that are compared here.
const SIZES: wire::openapi::Sizes = wire::openapi::Sizes {
    body_bytes_max: 1,
    artifact_bytes_max: 1,
    bundle_bytes_max: 1,
    initial_messages_max: 1,
};

fn documents() -> &'static Documents {
    static DOCUMENTS: OnceLock<Documents> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let contract = testing::published("data/openapi-agents-protocol-2026-04-25.yaml");
        Documents {
            ours: wire::openapi::document("0", "http://x", &SIZES),
            contract: contract.map(|text| serde_saphyr::from_slice(&text).unwrap()),
        }
    })
}

fn matches(template: &str, path: &str) -> bool {
    let mut wanted = template.split('/');
    let mut given = path.split('/');
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(want), Some(give)) if want == give || want.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// Building a validator takes longer than a request: one for each schema will do.
fn validator(document: &Value, is_contract: bool, schema: &Value) -> Arc<Validator> {
    type Built = BTreeMap<(bool, String), Arc<Validator>>;
    static BUILT: Mutex<Built> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap();
    let build = || {
        let mut whole = schema.clone();
        whole["components"] = document["components"].clone();
        Arc::new(jsonschema::draft202012::new(&whole).unwrap())
    };
    let key = (is_contract, schema.to_string());
    Arc::clone(built.entry(key).or_insert_with(build))
}

/// Checks a JSON answer.
pub(crate) fn check(method: &str, path: &str, status: u16, text: &str) {
    let path = path.split('?').next().unwrap();
    let operation = operations()
        .filter(|operation| operation.method.eq_ignore_ascii_case(method))
        .filter(|operation| matches(operation.path, path))
        // A fixed path wins over a parameter, as in the router.
        .min_by_key(|operation| operation.path.matches('{').count());
    let Some(operation) = operation else { return };
    let body: Value = serde_json::from_str(text).unwrap();
    let documents = documents();
    for document in [Some(&documents.ours), documents.contract.as_ref()]
        .into_iter()
        .flatten()
    {
        // What the contract does not know, it does not describe.
        if document["paths"].get(operation.path).is_none() {
            continue;
        }
        let described = &document["paths"][operation.path][operation.method]["responses"];
        let schema = match (status, described.get(status.to_string())) {
            // A client is told of every way in which an operation says no.
            (400.., None) if std::ptr::eq(document, &raw const documents.ours) => {
                panic!(
                    "{} refuses with {status}, which is not described: {text}",
                    operation.id
                )
            }
            (400.., _) if wire::openapi::is_governed_path(path) => {
                json!({"$ref": "#/components/schemas/Problem"})
            }
            (400.., _) => json!({"$ref": "#/components/schemas/ErrorResponse"}),
            (_, Some(response)) => response["content"]["application/json"]["schema"].clone(),
            // The contract knows one status of success; the same answer again is 200.
            (200, None) => continue,
            (_, None) => panic!("{} answers {status}, which is not described", operation.id),
        };
        let is_contract = !std::ptr::eq(document, &raw const documents.ours);
        if schema.is_null()
            || operation.gives == ResponseKind::Nothing
            || is_contract && differs_on_purpose(operation, text)
        {
            continue;
        }
        let validator = validator(document, is_contract, &schema);
        let problems: Vec<String> = validator
            .iter_errors(&body)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        let whose = if is_contract {
            "contract"
        } else {
            "description"
        };
        assert!(
            problems.is_empty(),
            "{whose}, {}: {problems:#?}\n{body:#}",
            operation.id
        );
    }
}

#[test]
fn the_check_itself_notices_what_is_wrong() {
    let refused = |path: &str, status: u16, body: Value| {
        let text = body.to_string();
        std::panic::catch_unwind(|| check("GET", path, status, &text)).is_err()
    };
    assert!(refused("/v1/tasks", 200, json!({"object": "list"})));
    assert!(refused("/v1/tasks/x", 200, json!({"object": "task"})));
    assert!(refused(
        "/v1/tasks",
        404,
        json!({"error": {"code": "lost"}})
    ));
    assert!(refused("/v1/tasks", 299, json!({})));
    assert!(!refused("/v1", 200, wire::card::discovery(None)));
}

/// Follows a reference within a document.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(place) => document.pointer(place.trim_start_matches('#')).unwrap(),
        None => value,
    }
}

fn query_parameters(document: &Value, item: &Value, method: &str) -> Vec<String> {
    let lists = [&item["parameters"], &item[method]["parameters"]];
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    let all = all.map(|parameter| resolved(document, parameter));
    let query = all.filter(|parameter| parameter["in"] == "query");
    query
        .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn everything_of_the_published_contract_is_described() {
    let Documents { ours, contract } = documents();
    let Some(contract) = contract else {
        return;
    };
    let mut count = 0;
    for (path, item) in contract["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            let Some(theirs) = item.get(method) else {
                continue;
            };
            let described = &ours["paths"][path.as_str()][method];
            assert!(described.is_object(), "{method} {path}");
            count += 1;
            let known = query_parameters(ours, &ours["paths"][path.as_str()], method);
            for name in query_parameters(contract, item, method) {
                assert!(known.contains(&name), "{method} {path}: `{name}`");
            }
            for status in theirs["responses"].as_object().unwrap().keys() {
                let is_success = status.starts_with('2');
                assert!(
                    !is_success || described["responses"].get(status).is_some(),
                    "{method} {path}: {status}"
                );
            }
        }
    }
    assert!(count >= 85, "{count} operations");
}

#[test]
fn what_a_request_needs_is_described_as_needed() {
    let ours = &documents().ours;
    let parameters = &ours["components"]["parameters"];
    for name in ["from", "to", "other"] {
        assert_eq!(parameters[name]["required"], true, "{name}");
    }
    assert_eq!(parameters["view"]["schema"]["enum"], json!(["wire"]));
    for (path, item) in ours["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let statuses = operation["responses"].as_object().unwrap();
            assert!(
                statuses.keys().any(|status| status.starts_with('4')),
                "{method} {path}"
            );
        }
    }
}
