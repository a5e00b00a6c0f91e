//! The decoders, each with good input and what must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use canon::{Integers, Map, Value, jcs};
use runs::replay::{Bundle, Source};

/// A decoder under attack.
#[derive(Debug)]
pub struct Target {
    /// Its name, and that of its folder in `corpus`.
    pub name: &'static str,
    /// Good input, or nearly.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Decodes; says what does not hold.
    pub run: fn(&[u8]) -> Result<(), String>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("json", bodies, json),
    target("bodies", bodies, decode_bodies),
    target("replay_requests", replay_requests, replay_request),
    target("small_texts", small_texts, small_text),
    target("bundles", bundles, bundle),
    target("events", events, event),
    target("receipts", receipts_json, receipt),
    target("archives", archives, archive),
    target("trust", bodies, trust),
    target("key_sets", key_sets, key_set),
    target("notes", notes, note),
    target("sidecars", sidecars, sidecar),
    target("yaml", yamls, yaml),
    target("contracts", contracts, contract),
    target("arguments", bodies, arguments),
    target("streams", streams, stream),
    target("field", envelopes, envelope),
    target("json_rpc", messages, message),
];

const fn target(
    name: &'static str,
    seeds: fn() -> Vec<Vec<u8>>,
    run: fn(&[u8]) -> Result<(), String>,
) -> Target {
    Target { name, seeds, run }
}

const AGENT: &[u8] = include_bytes!("../../conformance/vectors/replay/agent.bundle");

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn must(holds: bool, what: &str) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(format!("does not hold: {what}")),
    }
}

fn bodies() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"session_id":"session_0000000000000001","input":{"role":"user","parts":[{"type":"text","text":"hello","visibility":"public"},{"type":"json","value":{"a":[1,-2.5e3,null,true,"é😀\u0001"]}}]},"metadata":{"workflow":"agent","a":{"b":[]}},"persona_id":"persona_x","branch_id":"branch_x","deadline_at":"2026-04-25T19:16:20.000000Z"}"#,
        r#"{"kind":"session","base_ref":"x","head_ref":null,"metadata":{}}"#,
        r#"{"kind":"file","mime_type":"a/b","visibility":"public","session_id":"session_1","sha256":"42113384139a607b58a27dcb7bd1e00beafad25f729c3d944972245909bd3bb5","bytes":3,"uri":"harn://x","name":"n"}"#,
        r#"{"name":"reviewer","version":"1","entry_workflow":"agent","description":"d","autonomy_tier":"suggest","receipt_policy":"required","system_prompt":"p","model":{"provider":"x","temperature":0.5},"tools":["a","b.c"],"limits":{"steps_max":4},"memory":"session"}"#,
        r#"{"name":"w","root":"harn://w","provider":"e","capabilities":["read"],"workspace_id":"workspace_local"}"#,
        r#"{"decision":"approve","answer":{"x":1},"reason":"r","reviewer":"me","remember":null,"kind":"tool_confirmation"}"#,
        r#"{"message":{"role":"user","parts":[{"type":"artifact_ref","artifact_id":"artifact_1"},{"type":"file","uri":"a:b","mime_type":"a/b"}]},"after_message_id":"message_1","at_event_id":"event_testlog1_0000000000000001","initial_messages":[{"role":"system","parts":[]}]}"#,
        r#"{"provider":"openai","wire":"openai-chat","request":{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[]},"response":{"id":"r","choices":[]},"attempt":1}"#,
        r#"{"sessionId":"s1","captures":[{"sessionId":"s1","schemaVersion":1,"content":{"a":[1,2]}}],"label":"urgent","tools":["refund"],"decision":"approve","reason":"r"}"#,
        r#"[{"id":"trust_1","hash":"sha256:aa","previous_hash":null,"signatures":[{"alg":"Ed25519","key_id":"k","signature":"AAAA"}]}]"#,
    ])
}

fn json(bytes: &[u8]) -> Result<(), String> {
    for integers in [Integers::Safe, Integers::Doubles] {
        let Ok(value) = canon::read(bytes, integers) else {
            continue;
        };
        let written = jcs(&value);
        let again = canon::read(&written, integers)
            .map_err(|error| format!("its own writing is refused: {error}"))?;
        must(jcs(&again) == written, "what is written reads the same")?;
    }
    Ok(())
}

fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    canon::read_object(bytes, Integers::Safe).ok()
}

/// Every decoder that an operation names, so that a new one is attacked too.
fn decode_bodies(bytes: &[u8]) -> Result<(), String> {
    use wire::decode::{DecodeInput, Settings};
    let Some(body) = object(bytes) else {
        return Ok(());
    };
    // The ids of a path are others' words too; those of the body will do.
    let words = body.values().filter_map(Value::as_str);
    let word = words.max_by_key(|word| word.len()).unwrap_or_default();
    for operation in wire::openapi::operations() {
        let Some(decode) = operation.decode else {
            continue;
        };
        let names = operation.path.split(['{', '}']).skip(1).step_by(2);
        for given in ["session_1", "task_1", word] {
            let named = names
                .clone()
                .map(|name| (name.to_owned(), given.to_owned()));
            let params: Vec<(String, String)> = named.collect();
            let _ = decode(&DecodeInput {
                params: &params,
                body: &body,
                settings: Settings {
                    initial_messages_max: 64,
                    replay_conformance: false,
                },
            });
        }
    }
    Ok(())
}

fn replay_requests() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"mode":"with_overrides","override":{"llm:main:1":{"kind":"llm_provider_response","event_id":"event_01JZ7001","value":{"id":"c","choices":[{"message":{"role":"assistant","content":"Done."}}]},"sha256":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","visibility":"receipt_only"}}}"#,
        r#"{"mode":"from_checkpoint","checkpoint_id":"checkpoint_1","refresh":["tools","time"],"metadata":{}}"#,
        r#"{"mode":"exact","live":true,"override":{"time:main:1":{"kind":"time","value":"2026-04-25T19:16:20Z"},"secret:main:x":{"kind":"secret","value":"v"},"tool:main:1":{"kind":"tool_result","artifact_id":"artifact_1"}}}"#,
    ])
}

fn replay_request(bytes: &[u8]) -> Result<(), String> {
    let Ok(body) = canon::read(bytes, Integers::Safe) else {
        return Ok(());
    };
    let _ = runs::replay::keys_to_check(&body);
    let _ = runs::replay::artifacts_named(&body);
    let _ = runs::replay::read_with(&body, None, &BTreeMap::new(), false);
    static SOURCE: LazyLock<Option<Source>> =
        LazyLock::new(|| Bundle::read(AGENT).ok()?.into_source().ok());
    if let Some(source) = &*SOURCE {
        let _ = runs::replay::read(&body, source, &BTreeMap::new(), true);
    }
    Ok(())
}

fn small_texts() -> Vec<Vec<u8>> {
    texts(&[
        "c1_00000000000000ff",
        "event_testlog1_0000000000000001",
        "task_replay_replay_00000001",
        "2026-04-25T19:16:20.000000Z",
        "2026-04-25T19:16:20+02:00",
        "sha256:42113384139a607b58a27dcb7bd1e00beafad25f729c3d944972245909bd3bb5",
        "tile/0/x001/234.p/5",
        "tile/entries/x001/067",
        "arguments.items[*].price",
        "-123.4500e3",
        "origin.example/log+abcdef01+AQIDBA==",
        "\u{2014} origin.example/log AAAAAAAAAAAA",
    ])
}

fn small_text(bytes: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Ok(());
    };
    if let Ok(cursor) = wire::Cursor::parse(text) {
        must(cursor.to_string() == text, "a cursor has one form")?;
    }
    let _ = domain::SessionId::parse(text);
    let _ = domain::MessageId::parse(text);
    let _ = domain::TaskId::parse(text);
    if let Ok(time) = domain::Timestamp::parse(text) {
        let written = time.to_string();
        let again = domain::Timestamp::parse(&written).map_err(|error| error.to_string())?;
        must(again == time, "a time reads the same again")?;
    }
    if let Ok(digest) = canon::Digest::parse(text) {
        let again = canon::Digest::parse(&digest.to_string()).ok();
        must(again == Some(digest), "a digest reads the same again")?;
    }
    let _ = receipts::tiles::Tile::parse(text);
    let _ = receipts::tiles::parse_entries_path(text);
    let _ = receipts::seconds_of(text);
    let _ = receipts::note::NoteKey::parse(text);
    if let Ok(line) = receipts::note::SignatureLine::parse(text) {
        let again = receipts::note::SignatureLine::parse(line.write().trim_end_matches('\n'));
        must(
            again.as_ref() == Ok(&line),
            "a signature line reads the same again",
        )?;
    }
    let _ = contracts::Path::parse(text);
    if let Ok(number) = contracts::Decimal::parse(text) {
        let again = contracts::Decimal::parse(&number.to_string());
        must(
            again.as_ref() == Ok(&number),
            "a number reads the same again",
        )?;
    }
    Ok(())
}

fn bundles() -> Vec<Vec<u8>> {
    vec![AGENT.to_vec()]
}

fn bundle(bytes: &[u8]) -> Result<(), String> {
    let Ok(read) = Bundle::read(bytes) else {
        return Ok(());
    };
    let written = read.to_bytes();
    let again = Bundle::read(&written).map_err(|error| format!("its own writing: {error}"))?;
    must(again.to_bytes() == written, "a bundle reads the same again")?;
    // Whoever imports it looks further.
    if let Ok(source) = read.into_source() {
        let _ = runs::replay::keys(&source);
    }
    Ok(())
}

fn events() -> Vec<Vec<u8>> {
    let bundle = Bundle::read(AGENT);
    let events = bundle.iter().flat_map(Bundle::events);
    events.map(|(bytes, _)| bytes.to_vec()).collect()
}

fn event(bytes: &[u8]) -> Result<(), String> {
    if let Ok(event) = domain::Event::parse(bytes) {
        let again = domain::Event::parse(bytes).ok();
        must(
            again.as_ref() == Some(&event),
            "an event is what its bytes say",
        )?;
        let _ = runs::replay::live::read(&event);
    }
    Ok(())
}

fn receipts_json() -> Vec<Vec<u8>> {
    let bundle = Bundle::read(AGENT);
    let receipt = bundle.iter().filter_map(Bundle::receipt);
    receipt.map(|receipt| receipt.bytes()).collect()
}

fn receipt(bytes: &[u8]) -> Result<(), String> {
    use receipts::verify::{Evidence, Form, Keys, Predecessor};
    for form in [Form::AnyJson, Form::Canonical] {
        let evidence = Evidence {
            form,
            predecessor: Predecessor::NotAsked,
            batches: &[],
            inclusion: None,
            keys: Keys::Unknown,
            at_time: None,
            trust_anchor: None,
            references: None,
        };
        let report = receipts::verify(bytes, &evidence);
        must(!report.is_valid(), "nothing is valid without a key")?;
    }
    if let Ok(receipt) = receipts::Receipt::read(bytes) {
        let again = receipts::Receipt::read(&receipt.bytes());
        must(
            again.as_ref() == Ok(&receipt),
            "a receipt reads the same again",
        )?;
        let archive = receipts::cbor::write(&receipt);
        let again = receipts::cbor::read(&archive);
        must(
            again.as_ref() == Ok(&receipt),
            "an archive holds the receipt",
        )?;
    }
    Ok(())
}

fn archives() -> Vec<Vec<u8>> {
    let receipts = receipts_json();
    let receipts = receipts
        .iter()
        .filter_map(|bytes| receipts::Receipt::read(bytes).ok());
    receipts
        .map(|receipt| receipts::cbor::write(&receipt))
        .collect()
}

fn archive(bytes: &[u8]) -> Result<(), String> {
    match receipts::cbor::read(bytes) {
        Ok(receipt) => must(
            receipts::cbor::write(&receipt) == bytes,
            "an archive has one form",
        ),
        Err(_) => Ok(()),
    }
}

fn trust(bytes: &[u8]) -> Result<(), String> {
    let _ = receipts::trust::verify_export(bytes);
    Ok(())
}

fn key_sets() -> Vec<Vec<u8>> {
    let key = |id: &str, secret: u8| {
        let signer = receipts::Signer::new(id, &[secret; 32]);
        receipts::PublicKey {
            key_id: id.to_owned(),
            bytes: signer.public(),
            not_before: Some(1),
            expires: None,
            retired: None,
        }
    };
    let mut all = texts(&[
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","use":"sig","alg":"EdDSA","nbf":1,"exp":2}]}"#,
    ]);
    let set = receipts::KeySet::new(vec![key("a", 1), key("b", 2)]);
    all.extend(set.iter().map(receipts::KeySet::to_jwks));
    all
}

fn key_set(bytes: &[u8]) -> Result<(), String> {
    if let Ok(keys) = receipts::KeySet::from_jwks(bytes) {
        let written = keys.to_jwks();
        let again = receipts::KeySet::from_jwks(&written)
            .map_err(|error| format!("its own writing: {error}"))?;
        must(again.to_jwks() == written, "keys read the same again")?;
    }
    Ok(())
}

fn notes() -> Vec<Vec<u8>> {
    texts(&[
        "origin.example/log\n42\nQhEzhBOaYHtYon3Le9HgC+r61fcpw9lElyIkWQm9O7U=\n\n\u{2014} origin.example/log AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "origin.example/log\n1\nQhEzhBOaYHtYon3Le9HgC+r61fcpw9lElyIkWQm9O7U=\nextension\n",
    ])
}

fn note(bytes: &[u8]) -> Result<(), String> {
    use receipts::note::{Checkpoint, Note};
    if let Ok(note) = Note::read(bytes) {
        must(note.write().as_bytes() == bytes, "a note has one form")?;
        let _ = Checkpoint::read(note.text());
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(checkpoint) = Checkpoint::read(text)
    {
        must(checkpoint.text() == text, "a head has one form")?;
    }
    Ok(())
}

fn sidecars() -> Vec<Vec<u8>> {
    let mut all = texts(&[
        r#"{"schema_version":1,"kind":"replay","run":{"command":["a","b"],"exit_code":0},"inputs":[{"path":"a/b","sha256":"42113384139a607b58a27dcb7bd1e00beafad25f729c3d944972245909bd3bb5"}]}"#,
    ]);
    all.push(include_bytes!("../../conformance/vectors/ahd/vectors.json").to_vec());
    all
}

fn sidecar(bytes: &[u8]) -> Result<(), String> {
    let strict = sidecar::read_sidecar(bytes, true).is_ok();
    let lenient = sidecar::read_sidecar(bytes, false).is_ok();
    must(
        !strict || lenient,
        "what is read strictly is read leniently",
    )?;
    if let Ok(text) = std::str::from_utf8(bytes) {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let _ = sidecar::find_secrets(&words);
    }
    let _ = sidecar::strip(bytes);
    Ok(())
}

fn yamls() -> Vec<Vec<u8>> {
    let mut all = contracts();
    all.extend(texts(&[
        "a: &x [1, 2.50, ~, true, 0x1f, .inf, 'é', \"\\u00e9\"]\nb: *x\nc:\n  - d: |\n      text\n    e: >-\n      folded\n",
        "? [a, b]\n: {c: d}\n",
    ]));
    all
}

fn yaml(bytes: &[u8]) -> Result<(), String> {
    for profile in [sidecar::Profile::Jcs1, sidecar::Profile::AhdJs1] {
        let first = sidecar::read_yaml(bytes, profile, sidecar::Limits::STANDARD);
        let again = sidecar::read_yaml(bytes, profile, sidecar::Limits::STANDARD);
        must(
            format!("{first:?}") == format!("{again:?}"),
            "the same bytes give the same text",
        )?;
    }
    Ok(())
}

fn contracts() -> Vec<Vec<u8>> {
    texts(&[
        "tool: refund\nversion: 1\ndescription: Pays money back\nside_effects: irreversible\nrequires:\n  - path: arguments.amount\n    op: lte\n    value: 100\nallowed_after: [lookup]\nmax_calls: 3\n",
        "session: desk\nbudget: { tool_calls: 10, cost_micros: 5000 }\nmodes:\n  - name: live\n    tools: [refund, lookup]\n",
    ])
}

fn contract(bytes: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Ok(());
    };
    let source = |file: &str| contracts::Source {
        file: file.to_owned(),
        text: text.to_owned(),
    };
    let all = [source("a.contract.yaml")];
    let alone = contracts::compile(&all, None);
    let _ = contracts::compile(&all, Some(&source("session.yaml")));
    let again = contracts::compile(&all, None);
    must(alone.is_ok() == again.is_ok(), "compiling is a function")
}

fn arguments(bytes: &[u8]) -> Result<(), String> {
    use contracts::json::{Limits, Numbers, read};
    if let Ok(text) = std::str::from_utf8(bytes) {
        let any = read(text, Limits::ARGUMENTS, Numbers::Any).is_ok();
        let exact = read(text, Limits::ARGUMENTS, Numbers::Doubles).is_ok();
        must(!exact || any, "what is exact is taken")?;
    }
    Ok(())
}

/// A streamed answer with a text and a call, in each wire format of the providers.
fn streams() -> Vec<Vec<u8>> {
    let chat = [
        r#"{"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"a \"quoted\" é"},"finish_reason":null}]}"#,
        r#"{"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"find","arguments":"{\"n\":"}}]},"finish_reason":null}]}"#,
        r#"{"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"finish_reason":null}]}"#,
        r#"{"id":"c1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
        "[DONE]",
    ];
    let messages = [
        r#"{"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"call_1","name":"find","input":{}}}"#,
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"n\":1}"}}"#,
        r#"{"type":"content_block_stop","index":1}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":2}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let responses = [
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"r1","object":"response","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"type":"function_call","id":"f1","call_id":"call_1","name":"find","arguments":"","status":"in_progress"}}"#,
        r#"{"type":"response.function_call_arguments.done","sequence_number":2,"output_index":0,"item_id":"f1","arguments":"{}"}"#,
        r#"{"type":"response.output_item.done","sequence_number":3,"output_index":0,"item":{"type":"function_call","id":"f1","call_id":"call_1","name":"find","arguments":"{}","status":"completed"}}"#,
        r#"{"type":"response.completed","sequence_number":4,"response":{"id":"r1","object":"response","status":"completed","output":[{"type":"function_call","id":"f1","call_id":"call_1","name":"find","arguments":"{}","status":"completed"}],"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}}"#,
    ];
    let named = |events: &[&str]| -> Vec<u8> {
        let lines = events.iter().map(|data| {
            let name = data.split('"').nth(3).unwrap_or_default();
            format!("event: {name}\r\ndata: {data}\r\n\r\n")
        });
        lines.collect::<String>().into_bytes()
    };
    let chat = chat.map(|data| format!(": keep-alive\n\ndata: {data}\n\n"));
    vec![
        chat.concat().into_bytes(),
        named(&messages),
        named(&responses),
    ]
}

/// Reads a streamed answer of a provider, in whichever wire format it is.
pub fn read_stream(bytes: &[u8]) -> Option<(contracts::wire::WireRequest, contracts::wire::Reply)> {
    use contracts::wire::{Reply, Wire, WireRequest};
    Wire::ALL.iter().find_map(|wire| {
        let body = br#"{"model":"m","messages":[],"input":"hi","stream":true}"#;
        let request = WireRequest::read(*wire, body, &BTreeSet::new());
        let reply = Reply::read(&request, bytes, true, false).ok()?;
        Some((request, reply))
    })
}

fn stream(bytes: &[u8]) -> Result<(), String> {
    use contracts::wire::Reply;
    let Some((request, reply)) = read_stream(bytes) else {
        return Ok(());
    };
    let again = Reply::read(&request, &reply.whole(), true, false).map_err(|e| e.to_string())?;
    must(
        again.response() == reply.response(),
        "a stream that is passed on whole reads the same",
    )?;
    let all: Vec<usize> = (0..reply.response().calls.len()).collect();
    let left = Reply::read(&request, &reply.stripped(&all, true), true, false);
    let left = left.map_err(|error| format!("without its calls: {error}"))?;
    must(left.response().calls.is_empty(), "no call is left")
}

/// One message of each kind, as the field that [`envelope`] prepares would take it.
fn envelopes() -> Vec<Vec<u8>> {
    let payloads = [
        (
            "REGISTER",
            r#"{"id":"ann","role":"r","interests":["a"],"required_operations":["RECORD"],"authority":4}"#,
        ),
        ("DEREGISTER", r#"{"agent_id":"ann"}"#),
        (
            "RECORD",
            r#"{"mode":"committed","type":"finding","content":"c","intent":{"purpose":"p","task_id":"t","question":"q"},"confidence":{"score":0.5,"reasoning":"r","evidence":["e"],"assumptions":[]},"relations":[{"type":"supports","target_id":"u","description":"d"}]}"#,
        ),
        (
            "ATTUNE",
            r#"{"scope":{"role":"r","max_units":3,"interests":["a"],"active_task_id":"t","max_tokens":100,"since_epoch":0},"context_hint":"h","format":"full"}"#,
        ),
        (
            "DETECT",
            r#"{"mode":"scan","filter":{"types":["finding"]}}"#,
        ),
        (
            "MERGE",
            r#"{"conflict_id":"c","strategy":"last_write_wins","resolution":{"rationale":"r","winner_id":null,"synthesis":"s"}}"#,
        ),
        (
            "SUBSCRIBE",
            r#"{"action":"create","filter":{"types":["finding"]},"debounce_ms":10}"#,
        ),
        (
            "REPLAY",
            r#"{"target_type":"memory_unit","target_id":"u","depth":"full_trace"}"#,
        ),
        (
            "COMPACT",
            r#"{"strategy":"archive","filter":{"before_epoch":3,"types":["finding"]}}"#,
        ),
        (
            "COORDINATE",
            r#"{"action":"create","title":"t","assignee":"ann"}"#,
        ),
        (
            "HANDOFF",
            r#"{"action":"offer","task_id":"t","to_agent":"ann"}"#,
        ),
        ("SESSION", r#"{"action":"create","goal":"g"}"#),
    ];
    let written = payloads.iter().map(|(operation, payload)| {
        format!(
            r#"{{"protocol":"akashik","version":"0.1.0","id":"m-{operation}","operation":"{operation}","agent_id":"ann","session_id":null,"epoch":0,"payload":{payload}}}"#
        )
    });
    written.map(String::into_bytes).collect()
}

/// A field in which one agent has recorded something; nothing is offered less than everything.
fn used_field() -> Option<field::Field> {
    let mut used = field::Field::new(field::Config::at(field::Level::Full));
    for (bytes, number) in envelopes().iter().zip(0u8..) {
        match number {
            0 => drop(said(&mut used, bytes, number)?),
            2 => drop(said(&mut used, bytes, number)),
            _ => {}
        }
    }
    Some(used)
}

/// Says something to a field; none when it is refused.
fn said(used: &mut field::Field, bytes: &[u8], number: u8) -> Option<Value> {
    let limits = used.config().limits.clone();
    let envelope = field::Envelope::read(bytes, &limits, None).ok()?;
    // Each message has an id of its own.
    let fresh = field::CallSeed {
        now: domain::Timestamp::from_micros(1_700_000_000_000_000),
        nonce: [number; 32],
    };
    let caller = field::Caller {
        key: "k".to_owned(),
        ceiling: field::OPERATOR,
        agents: Vec::new(),
    };
    let call = field::Call {
        envelope: &envelope,
        caller: Some(&caller),
        fresh: &fresh,
        embedding: field::Embedding::BuiltIn,
        detection: field::Detection::Here,
    };
    match field::decide(used, &call).ok()? {
        field::MessageDecision::Repeated(_) => Some(Value::Null),
        field::MessageDecision::New(decision) => {
            used.commit(&decision).ok()?;
            Some(decision.answer)
        }
    }
}

/// What a transport hands to a field: the envelope, and, where it is one, the payload of its operation.
fn envelope(bytes: &[u8]) -> Result<(), String> {
    thread_local! {
        static USED: Option<field::Field> = used_field();
    }
    USED.with(|used| {
        let Some(used) = used else {
            return Err("the field to be spoken to was not made".to_owned());
        };
        let limits = used.config().limits.clone();
        let Ok(envelope) = field::Envelope::read(bytes, &limits, None) else {
            return Ok(());
        };
        let mut used = used.clone();
        let before = (used.clock(), used.head());
        let answered = said(&mut used, bytes, 200).is_some();
        let is_same = before == (used.clock(), used.head());
        must(answered || is_same, "a refusal changes nothing")?;
        let again = field::Envelope::read(bytes, &limits, None).ok();
        must(
            again.as_ref() == Some(&envelope),
            "an envelope is what its bytes say",
        )
    })
}

fn messages() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"akashik_record","arguments":{"agent_id":"ann","content":"c"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32600,"message":"m"}}"#,
    ])
}

fn message(bytes: &[u8]) -> Result<(), String> {
    let (id, code) = match wire::json_rpc::id_of(bytes) {
        Ok(id) => (id, 0),
        Err(refused) => (refused.id, refused.code),
    };
    must(
        !id.is_object() && !id.is_array(),
        "an id is a text or a number",
    )?;
    let error = wire::json_rpc::error(&id, code, "m");
    let read = wire::json_rpc::id_of(&jcs(&error));
    must(read.is_ok(), "an error is a message")
}
