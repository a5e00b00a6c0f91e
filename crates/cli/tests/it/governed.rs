//! Governed sessions with the program itself: killed between proposal and receipt, and while people are asked; and the
//! webhook that announces what waits.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use testing::process::{PATIENCE, Server};

use crate::world::World;

/// A program that drives a session of a server, with the key of the server's folder.
pub(crate) struct Program<'a> {
    world: &'a World,
    url: String,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Program<'a> {
    pub(crate) fn new(world: &'a World, server: &Server) -> Self {
        Self {
            world,
            url: server.url.clone(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    pub(crate) fn send(&self, key: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let key = std::fs::read_to_string(self.world.data().join(key)).unwrap();
        let url = format!("{}{path}", self.url);
        self.runtime.block_on(async {
            let client = reqwest::Client::new();
            let request = match body {
                Some(body) => client.post(url).body(body.to_string()),
                None => client.get(url),
            };
            let request = request
                .header("authorization", format!("Bearer {}", key.trim()))
                .header("harn-agents-protocol-version", "agents-protocol-2026-04-25")
                .header("content-type", "application/json");
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            let bytes = answer.bytes().await.unwrap();
            (status, serde_json::from_slice(&bytes).unwrap_or_default())
        })
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.send("api-key", path, Some(body));
        assert!(status < 300, "{path}: {status} {answer}");
        answer
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, answer) = self.send("api-key", path, None);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    fn open(&self, id: &str, contract: &str) {
        let files = json!([{"file": "pay.yaml", "text": contract}]);
        let new = json!({"session_id": id, "contracts": {"contracts": files}});
        self.post("/api/v1/replay/sessions", new);
    }

    fn propose(&self, id: &str) -> Value {
        let path = format!("/api/v1/replay/sessions/{id}");
        let version = self.get(&path)["stateVersion"].clone();
        let asked = json!({"expected_state_version": version, "offered_tools": [{"name": "pay", "schema": {}}],
            "provider": "openai", "model": "m"});
        let prepared = self.post(&format!("{path}/preflight"), asked);
        let proposal = json!({"prepared_request_id": prepared["prepared_request_id"],
            "finish_reason": "tool_calls",
            "tool_calls": [{"id": "c", "name": "pay", "arguments": "{\"cents\": 5}"}]});
        self.post(&format!("{path}/proposals"), proposal)
    }

    fn report(&self, id: &str, proposal: &Value) -> Value {
        let verdict = &proposal["verdicts"][0];
        let report = json!({"proposal_id": proposal["proposal_id"], "call_id": "c",
            "arguments_digest": verdict["arguments_digest"], "outcome": "success"});
        self.post(&format!("/api/v1/replay/sessions/{id}/receipts"), report)
    }
}

fn asking(seconds: u64) -> String {
    format!(
        "tool: pay\nside_effect: write\ncheckpoint: {{ reason: large, timeout_seconds: {seconds} }}\n"
    )
}

#[test]
fn a_session_survives_a_kill_between_proposal_and_receipt() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    program.open("killed", "tool: pay\nside_effect: write\n");
    let proposal = program.propose("killed");
    assert_eq!(proposal["status"], "allowed", "{proposal}");
    let before = program.get("/api/v1/replay/sessions/killed?include=pending");
    server.kill();

    let server = world.serve();
    let program = Program::new(&world, &server);
    let after = program.get("/api/v1/replay/sessions/killed?include=pending");
    assert_eq!(after, before);
    assert_eq!(after["pending"][0]["call_id"], "c");
    let reported = program.report("killed", &proposal);
    assert_eq!(reported["committed"], true, "{reported}");
    program.post("/api/v1/replay/sessions/killed/restore", json!({}));
    let task = after["protocol"]["task_id"].as_str().unwrap();
    let shown = world.json(&["task", "get", task, "--json"]);
    assert_eq!(shown["status"], "COMPLETED");
    drop(server);
    world.ok(&["log", "verify"]);
}

#[test]
fn a_question_survives_a_kill_and_times_out_by_itself_if_nobody_answers() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    program.open("answered", &asking(600));
    program.open("forgotten", &asking(2));
    let answered = program.propose("answered");
    let forgotten = program.propose("forgotten");
    for proposal in [&answered, &forgotten] {
        assert_eq!(proposal["status"], "pending_approval", "{proposal}");
    }
    server.kill();
    std::thread::sleep(Duration::from_millis(2_100));

    let server = world.serve();
    let program = Program::new(&world, &server);
    let id = answered["proposal_id"].as_str().unwrap();
    let path = format!("/api/v1/replay/sessions/answered/proposals/{id}/approve");
    let yes = json!({"decision": "approve", "decided_by": "bea"});
    let (status, decided) = program.send("approver-key", &path, Some(yes));
    assert_eq!((status, decided), (200, json!({"status": "approved"})));
    assert_eq!(program.report("answered", &answered)["committed"], true);
    // Nobody asks about the other one: its record must come to say so.
    let task = program.get("/api/v1/replay/sessions/forgotten")["protocol"]["task_id"].clone();
    let path = format!("/v1/tasks/{}/events?limit=200", task.as_str().unwrap());
    let begun = Instant::now();
    loop {
        if program
            .get(&path)
            .to_string()
            .contains("checkpoint_timeout")
        {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the question was never settled");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(world.json(&["approvals", "list", "--json"]), json!([]));
}

/// What a receiver was sent: the signature and the body.
type Message = (String, Vec<u8>);

/// Listens on a port and answers with these statuses in turn, then with the last one.
fn receiver(statuses: &'static [u16]) -> (u16, Receiver<Message>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut signature, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                let (name, value) = line.split_once(':').unwrap_or((&line, ""));
                match name.to_ascii_lowercase().as_str() {
                    "x-harn-signature" => signature = value.trim().to_owned(),
                    "content-length" => length = value.trim().parse().unwrap(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            let _ = reader.read_exact(&mut body);
            let status = statuses
                .get(number)
                .or(statuses.last())
                .copied()
                .unwrap_or(200);
            let answer =
                format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            if sender.send((signature, body)).is_err() {
                return;
            }
        }
    });
    (port, messages)
}

const SECRET: &str = "a-secret-of-the-webhook-0123456789";

fn serve_with_webhook(world: &World, port: u16) -> Server {
    let config = format!(
        "listen = \"127.0.0.1:0\"\n[[approval_webhooks]]\nurl = \"http://127.0.0.1:{port}/hooks/s3cret-path\"\nsecret_env = \"HOOK_SECRET\"\n"
    );
    std::fs::write(world.home.path().join("reprise.toml"), config).unwrap();
    let mut command = world.command(&["serve", "--config", "reprise.toml"]);
    Server::start(command.env("HOOK_SECRET", SECRET)).unwrap_or_else(|said| panic!("{said:?}"))
}

#[track_caller]
fn check_message((signature, body): &Message) -> Value {
    let (time, mac) = signature
        .strip_prefix("t=")
        .and_then(|rest| rest.split_once(",v1="))
        .unwrap_or_else(|| panic!("{signature}"));
    let mut expected = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    expected.update(format!("{time}.").as_bytes());
    expected.update(body);
    let expected: String = expected
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(mac, expected);
    serde_json::from_slice(body).unwrap()
}

#[test]
fn ap_sdk_11_a_waiting_approval_is_announced_signed_until_it_is_taken() {
    let world = World::new();
    let (port, messages) = receiver(&[500, 302, 200]);
    let server = serve_with_webhook(&world, port);
    let program = Program::new(&world, &server);
    program.open("hooked", &asking(600));
    let proposal = program.propose("hooked");
    assert_eq!(proposal["status"], "pending_approval", "{proposal}");
    let sent: Vec<Value> = (0..3)
        .map(|_| check_message(&messages.recv_timeout(PATIENCE).unwrap()))
        .collect();
    assert_eq!(sent[0], sent[2], "the same message until it is taken");
    let request = &world.json(&["approvals", "list", "--json"])[0];
    assert_eq!(sent[0]["id"], request["id"], "{request}");
    assert_eq!(sent[0]["type"], "approval.requested");
    let governed = &sent[0]["event"]["payload"]["request"]["governed"];
    assert_eq!(governed["session_id"], "hooked", "{}", sent[0]);
    assert!(sent[0]["task"]["id"].is_string());
    // Taken is taken.
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(messages.try_recv().is_err());
    let (_, log) = server.stop();
    assert!(log.contains("an approval was not announced"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
    assert!(!log.contains("s3cret-path"), "{log}");
}

#[test]
fn what_still_waits_after_a_kill_is_announced_again() {
    let world = World::new();
    let (port, messages) = receiver(&[503]);
    let server = serve_with_webhook(&world, port);
    let program = Program::new(&world, &server);
    program.open("again", &asking(600));
    program.propose("again");
    let first = check_message(&messages.recv_timeout(PATIENCE).unwrap());
    server.kill();
    let (port, messages) = receiver(&[200]);
    let server = serve_with_webhook(&world, port);
    let second = check_message(&messages.recv_timeout(PATIENCE).unwrap());
    assert_eq!(second["id"], first["id"]);
    drop(server);
}

#[test]
fn a_webhook_that_cannot_be_trusted_stops_the_start() {
    let world = World::new();
    for (url, says) in [
        ("http://chat.example/", "not encrypted"),
        ("https://169.254.169.254/", "not the address of a receiver"),
    ] {
        let config =
            format!("[[approval_webhooks]]\nurl = \"{url}\"\nsecret_env = \"HOOK_SECRET\"\n");
        std::fs::write(world.home.path().join("bad.toml"), config).unwrap();
        let mut command = world.command(&["serve", "--config", "bad.toml", "--check-config"]);
        let said = testing::process::run_to_end({
            command.env("HOOK_SECRET", SECRET);
            command
        });
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains(says), "{said:?}");
    }
    let config =
        "[[approval_webhooks]]\nurl = \"https://chat.example/\"\nsecret_env = \"HOOK_SECRET\"\n";
    std::fs::write(world.home.path().join("bad.toml"), config).unwrap();
    let said = world.run(&["serve", "--config", "bad.toml", "--check-config"]);
    assert!(
        said.stderr.contains("`HOOK_SECRET` holds no secret"),
        "{said:?}"
    );
}

#[test]
fn the_operator_sets_the_floor_of_governed_sessions() {
    let world = World::new();
    let config =
        "listen = \"127.0.0.1:0\"\n[governed]\nmode = \"enforce\"\nunmatched_policy = \"block\"\n";
    std::fs::write(world.home.path().join("floor.toml"), config).unwrap();
    let server = world.serve_with(&["--config", "floor.toml"]);
    let program = Program::new(&world, &server);
    let path = "/api/v1/replay/sessions";
    let (status, refused) = program.send("api-key", path, Some(json!({"mode": "log-only"})));
    assert_eq!(
        (status, &refused["code"]),
        (403, &json!("weaker_than_demanded")),
        "{refused}"
    );
    program.open("strict", "tool: pay\nside_effect: write\n");
}
