//! `reprise log import` on real servers: runs of one machine replayed on another.

mod upkeep;
mod vectors;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::World;

/// A client that also wants to see refusals.
struct Client {
    url: String,
    key: String,
}

impl Client {
    fn of(world: &World, server: &Server) -> Self {
        let made = world.ok(&["key", "create", "--actor", "importer"]);
        Self::with(server, made.trim())
    }

    fn with(server: &Server, key: &str) -> Self {
        Self {
            url: server.url.clone(),
            key: key.to_owned(),
        }
    }

    fn ask(&self, method: &str, path: &str, more: &[&str]) -> (u64, Vec<u8>) {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-X", method, "-w", "\n%{http_code}"]);
        curl.args(["-H", &format!("Authorization: Bearer {}", self.key)]);
        curl.args([
            "-H",
            "Harn-Agents-Protocol-Version: agents-protocol-2026-04-25",
        ]);
        let output = curl.args(more).arg(format!("{}{path}", self.url));
        let mut said = output.output().unwrap().stdout;
        let code = said.split_off(said.len() - 3);
        said.pop();
        (String::from_utf8(code).unwrap().parse().unwrap(), said)
    }

    fn call(&self, method: &str, path: &str, more: &[&str]) -> (u64, Value) {
        let (code, body) = self.ask(method, path, more);
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn get(&self, path: &str) -> Value {
        let (code, value) = self.call("GET", path, &[]);
        assert_eq!(code, 200, "{path}: {value}");
        value
    }

    /// Sends a file as a bundle.
    fn import(&self, file: &Path, query: &str, more: &[&str]) -> (u64, Value) {
        let data = format!("@{}", file.display());
        let sent = ["--data-binary", &data, "-H", "Content-Type: text/plain"];
        let path = format!("/v1/tasks/import{query}");
        self.call("POST", &path, &[&sent[..], more].concat())
    }

    fn events(&self) -> usize {
        let all = self.get("/v1/events?limit=200");
        assert_eq!(all["has_more"], false, "{all}");
        all["data"].as_array().unwrap().len()
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("{pointer} of {value}"))
}

/// A task that ran on a server which is gone, as the file `run.bundle` and as it was shown there.
struct Elsewhere {
    world: World,
    task: Value,
    receipt: String,
    exact: String,
}

impl Elsewhere {
    fn new(args: &[&str]) -> Self {
        let world = World::new();
        let server = world.serve_with(&["--listen", "127.0.0.1:0"]);
        let task = world.json(&[&["task", "submit"], args, &["--json"]].concat());
        let id = text(&task, "/id").to_owned();
        world.ok(&["task", "export", &id, "run.bundle"]);
        let receipt = world.ok(&["receipt", "show", text(&task, "/receipt_id"), "--wire"]);
        let exact = world.ok(&["replay", &id, "--receipt"]);
        server.stop();
        Self {
            world,
            task,
            receipt,
            exact,
        }
    }

    fn file(&self) -> std::path::PathBuf {
        self.world.home.path().join("run.bundle")
    }

    fn id(&self) -> &str {
        text(&self.task, "/id")
    }
}

/// B9: the task is here with its ids, its times and its bytes, and says that it comes from elsewhere.
#[test]
fn an_imported_task_is_what_it_was_on_its_own_server() {
    let there = Elsewhere::new(&["What happened?", "--metadata", "ticket=OPS-7"]);
    let here = World::new();
    let server = here.serve();
    let file = there.file();
    let file = file.to_str().unwrap();
    let said = here.run(&["log", "import", file]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(said.stdout.trim(), there.id());
    assert!(said.stderr.contains("to replay it: reprise replay task_"));

    let client = Client::of(&here, &server);
    let shown = client.get(&format!("/v1/tasks/{}", there.id()));
    let mut expected = there.task.clone();
    for member in ["updated_at", "outcome_id", "branch_id"] {
        expected[member] = shown[member].clone();
    }
    expected["metadata"]["imported"] = json!(true);
    assert_eq!(shown, expected);
    assert_eq!(shown["outcome_id"], Value::Null);
    let listed = client.get("/v1/tasks");
    assert_eq!(listed["data"][0]["id"], there.id());
    let session = client.get(&format!("/v1/sessions/{}", text(&shown, "/session_id")));
    assert_eq!(session["metadata"], json!({"imported": true}));

    // The bundle comes out as it went in, and so does the log.
    here.ok(&["task", "export", there.id(), "again.bundle"]);
    let read = |world: &World, name: &str| std::fs::read(world.home.path().join(name)).unwrap();
    assert!(read(&here, "again.bundle") == read(&there.world, "run.bundle"));
    let path = format!("/v1/artifacts/event_log_{}/content", there.id());
    let (code, log) = client.ask("GET", &path, &[]);
    assert_eq!(code, 200);
    let first = log.split(|byte| *byte == b'\n').next().unwrap();
    let first: Value = serde_json::from_slice(first).unwrap();
    assert_eq!(first["event"], "task.submitted");

    // C-36: its events have the ids they had; after them this log tells what happened here. Page by page it is the same.
    let path = format!("/v1/tasks/{}/events", there.id());
    let all = client.get(&format!("{path}?limit=200"));
    let all = all["data"].as_array().unwrap();
    let own: Vec<Value> = log
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(all[..own.len()], own);
    let kinds = all[own.len()..].iter();
    let kinds: Vec<&str> = kinds.map(|event| text(event, "/event")).collect();
    assert_eq!(kinds, ["vendor.task_imported", "vendor.receipt_imported"]);
    let mut paged: Vec<Value> = Vec::new();
    loop {
        let after = paged.last().map(|last| text(last, "/id").to_owned());
        let after = after.map_or(String::new(), |id| format!("&after_event_id={id}"));
        let page = client.get(&format!("{path}?limit=5{after}"));
        paged.extend(page["data"].as_array().unwrap().iter().cloned());
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!(&paged, all);
    let listed = here.ok(&["replay", there.id(), "--list"]);
    assert!(listed.contains("llm:main:1"), "{listed}");

    // A replay runs in its Session here. Only the issuer is another one.
    let replayed = here.json(&["replay", there.id(), "--json"]);
    assert_eq!(replayed["result_equal"], true, "{replayed}");
    let replay = client.get(&format!("/v1/tasks/{}", text(&replayed, "/task_id")));
    assert_eq!(replay["session_id"], there.task["session_id"]);
    assert_eq!(replay["input"]["id"], there.task["input"]["id"]);
    assert_eq!(replay["input"]["parts"], there.task["input"]["parts"]);
    let receipt: Value = client.get(&format!(
        "/v1/receipts/{}?view=wire",
        text(&replayed, "/receipt_id")
    ));
    let mut found = receipt.clone();
    let mut exact: Value = serde_json::from_str(&there.exact).unwrap();
    for value in [&mut found, &mut exact] {
        for member in ["issuer", "chain", "signatures"] {
            value[member] = Value::Null;
        }
    }
    assert_eq!(found, exact);
    let verdict = here.run(&["receipt", "verify", text(&replayed, "/receipt_id")]);
    assert_eq!(verdict.code, 0, "{verdict:?}");
    let same = here.json(&["diff", there.id(), text(&replayed, "/task_id"), "--json"]);
    assert_eq!(same["equal"], true, "{same}");
}

/// The receipt is another server's: its bytes are here, what they say holds, and who signed them is not known here.
#[test]
fn the_receipt_of_an_imported_task_is_read_and_its_verdict_is_honest() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    here.ok(&["log", "import", there.file().to_str().unwrap()]);
    let client = Client::of(&here, &server);
    let id = text(&there.task, "/receipt_id");
    let (code, bytes) = client.ask("GET", &format!("/v1/receipts/{id}?view=wire"), &[]);
    assert_eq!(code, 200);
    assert_eq!(String::from_utf8(bytes).unwrap(), there.receipt);
    let listed = client.get(&format!("/v1/tasks/{}/receipts", there.id()));
    assert_eq!(listed["data"][0]["id"], id);

    let (code, verdict) = client.call("POST", &format!("/v1/receipts/{id}/verify"), &[]);
    assert_eq!(code, 200, "{verdict}");
    assert_eq!(
        (&verdict["valid"], &verdict["reason"]),
        (&json!(false), &json!("key_unknown"))
    );
    let details = &verdict["details"];
    assert_eq!(details["imported"], true);
    assert_eq!(details["merkle"], Value::Null);
    assert_eq!(details["materials"]["unavailable"], json!([]), "{verdict}");
    for check in details["checks"].as_array().unwrap() {
        let is_signature = text(check, "/name").starts_with("signature/");
        assert_eq!(check["ok"], !is_signature, "{check}");
    }
    let (code, refused) = client.call("GET", &format!("/v1/receipts/{id}/proof"), &[]);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["details"]["reason"], "imported_receipt");
}

/// The same bundle twice is one task; another one under its id, or under the ids of something else, is refused.
#[test]
fn an_import_is_repeated_without_harm_and_collisions_are_refused() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    let client = Client::of(&here, &server);
    let file = there.file();
    let key = ["-H", "Idempotency-Key: import-1"];
    let (code, first) = client.import(&file, "", &key);
    assert_eq!(code, 201, "{first}");
    let events = client.events();
    for more in [&key[..], &[]] {
        let (code, again) = client.import(&file, "", more);
        assert_eq!((code, &again), (200, &first));
    }
    let other = here.home.path().join("other.bundle");
    std::fs::write(&other, without_a_blob_line(&there)).unwrap();
    let (code, refused) = client.import(&other, "", &key);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["code"], "idempotency_key_reused");
    let (code, refused) = client.import(&other, "", &[]);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["details"]["reason"], "task_exists");
    assert_eq!(client.events(), events);

    // Its own server has it already, under its own log.
    let own = there.world.serve();
    let owner = Client::of(&there.world, &own);
    let before = owner.events();
    let (code, refused) = owner.import(&file, "", &[]);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["details"]["reason"], "task_exists");
    // Another task of a session that lives there, made elsewhere, is no part of it.
    let forged = there.world.home.path().join("forged.bundle");
    std::fs::write(&forged, vectors::renamed_task(&there)).unwrap();
    let (code, refused) = owner.import(&forged, "", &[]);
    assert_eq!(code, 409, "{refused}");
    assert_eq!(refused["error"]["details"]["reason"], "session_exists");
    assert_eq!(owner.events(), before);
}

/// The same task in a bundle with other bytes: it says that there is one event less beside it.
fn without_a_blob_line(there: &Elsewhere) -> Vec<u8> {
    let bytes = std::fs::read(there.file()).unwrap();
    let bundle = runs::replay::Bundle::read(&bytes).unwrap();
    let events: Vec<std::sync::Arc<[u8]>> = bundle
        .events()
        .map(|(bytes, _)| std::sync::Arc::from(bytes))
        .collect();
    let mut blobs = bundle.blobs().clone();
    blobs.insert(canon::sha256(b"more"), b"more".to_vec());
    let receipt = bundle.receipt().cloned();
    let other = runs::replay::Bundle::new(&events, blobs, receipt).unwrap();
    other.to_bytes()
}

/// Only an administrator imports: neither a key with every `:write`, nor one that is bound to workspaces.
#[test]
fn ap_auth_02_an_import_needs_an_administrators_key() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    let writer = ["--scope", "*:write", "--scope", "*:read"];
    let bound = ["--workspace", "workspace_local"];
    for flags in [&writer[..], &bound] {
        let key = here.ok(&[&["key", "create", "--actor", "other"], flags].concat());
        let client = Client::with(&server, key.trim());
        let (code, refused) = client.import(&there.file(), "", &[]);
        assert_eq!(code, 403, "{refused}");
        let scopes = refused["error"]["details"]["required_scopes"].to_string();
        assert!(scopes.contains("tasks:import"), "{refused}");
    }
    let scoped = ["--scope", "tasks:import", "--scope", "tasks:read"];
    let key = here.ok(&[&["key", "create", "--actor", "other"], &scoped[..]].concat());
    let (code, task) = Client::with(&server, key.trim()).import(&there.file(), "", &[]);
    assert_eq!(code, 201, "{task}");
}

/// It goes where it is told to, and nowhere that is not.
#[test]
fn an_import_goes_into_the_workspace_it_names() {
    let there = Elsewhere::new(&["Hello"]);
    let here = World::new();
    let server = here.serve();
    let client = Client::of(&here, &server);
    let body = json!({"name": "lab", "root": "reprise://lab"}).to_string();
    let json = ["-H", "Content-Type: application/json", "-d", &body];
    let (_, workspace) = client.call("POST", "/v1/workspaces", &json);
    let id = text(&workspace, "/id").to_owned();
    let (code, refused) = client.import(&there.file(), "?workspace_id=workspace_none", &[]);
    assert_eq!(
        (code, &refused["error"]["param"]),
        (404, &json!("workspace_id"))
    );
    let file = there.file();
    let file = file.to_str().unwrap();
    let task = here.json(&["log", "import", file, "--workspace", &id, "--json"]);
    assert_eq!(task["workspace_id"], id.as_str());
    // Where it is, is where it stays.
    let again = here.json(&["log", "import", file, "--json"]);
    assert_eq!(again, task);
    let said = here.run(&["log", "import", file, "--workspace", "workspace_local"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("there is another task"), "{said:?}");
}
