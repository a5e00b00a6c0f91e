//! Forgetting for good: a purge with somebody reading the database, with no room left, and after kill -9.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::tamper::Tamper;
use testing::process::Server;

use crate::world::World;

/// A field over HTTP.
struct Field {
    http: reqwest::Client,
    url: String,
    key: String,
    runtime: tokio::runtime::Runtime,
}

impl Field {
    fn of(server: &Server, key: &str) -> Self {
        Self {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            url: format!("{}/akashik/v1", server.url),
            key: key.trim().to_owned(),
            runtime: tokio::runtime::Runtime::new().unwrap(),
        }
    }

    fn send(&self, operation: &str, agent: &str, id: &str, payload: &Value) -> (u16, Value) {
        let envelope = json!({
            "protocol": "akashik", "version": "0.1.0", "id": id, "operation": operation.to_uppercase(),
            "agent_id": agent, "session_id": null, "epoch": 0, "payload": payload,
        });
        let request = self.http.post(format!("{}/{operation}", self.url));
        let request = request.bearer_auth(&self.key).json(&envelope);
        self.runtime.block_on(async {
            let answer = request.send().await.unwrap();
            (answer.status().as_u16(), answer.json().await.unwrap())
        })
    }

    #[track_caller]
    fn ok(&self, operation: &str, agent: &str, id: &str, payload: &Value) -> Value {
        let (status, answer) = self.send(operation, agent, id, payload);
        assert!(status < 300, "{answer}");
        answer
    }

    fn register(&self, agent: &str, authority: u8) {
        let claim = json!({"id": agent, "role": "r", "authority": authority});
        self.ok("register", agent, &format!("register-{agent}"), &claim);
    }
}

fn unit(mode: &str, content: &str) -> Value {
    json!({
        "mode": mode, "type": "finding", "content": content, "intent": {"purpose": "p"},
        "confidence": {"score": 0.5, "reasoning": "r"},
    })
}

fn admin(world: &World, server: &Server) -> Field {
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    Field::of(server, &key)
}

/// Somebody who reads the database and does not come to an end.
fn slow_reader(world: &World) -> Tamper {
    let reader = Tamper::open(&world.data());
    reader.run("BEGIN");
    reader.count("blobs");
    reader
}

fn purge() -> Value {
    json!({"strategy": "purge", "filter": {"types": ["finding"]}, "reason": "a slip"})
}

#[test]
fn ak_cmp_04_a_purge_says_whether_a_file_still_holds_the_words() {
    let world = World::new();
    let server = world.serve();
    let field = admin(&world, &server);
    field.register("boss", 10);
    field.ok("record", "boss", "m", &unit("committed", "swordfish"));
    let reader = slow_reader(&world);
    let begun = Instant::now();
    let purged = field.ok("compact", "boss", "first", &purge());
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "it waits a bounded time"
    );
    assert_eq!(
        (&purged["units_affected"], &purged["erasure"]),
        (&json!(1), &json!("pending"))
    );
    // The same message again, and another that finds nothing to purge, say the same: the words are still somewhere.
    let again = field.ok("compact", "boss", "first", &purge());
    assert_eq!(again, purged);
    let said = world.ok(&[
        "field", "compact", "purge", "--agent", "boss", "--type", "finding",
    ]);
    assert!(said.contains("still in a file"), "{said}");
    drop(reader);
    let begun = Instant::now();
    while field.ok("compact", "boss", "first", &purge())["erasure"] != "complete" {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it ends with the reader"
        );
    }
    // After a kill too, with nobody asking the field for anything.
    field.ok("record", "boss", "n", &unit("committed", "swordfish"));
    let reader = slow_reader(&world);
    let purged = field.ok("compact", "boss", "second", &purge());
    assert_eq!(purged["erasure"], "pending");
    server.kill();
    drop(reader);
    let owed = "meta WHERE name LIKE 'erasure%'";
    assert_eq!(Tamper::open(&world.data()).count(owed), 1);
    let server = world.serve();
    assert_eq!(Tamper::open(&world.data()).count(owed), 0);
    let field = admin(&world, &server);
    let again = field.ok("compact", "boss", "second", &purge());
    assert_eq!(again["erasure"], "complete");
    server.stop();
    world.ok(&["log", "verify"]);
}

#[test]
fn reading_takes_no_room_from_writing_and_a_purge_needs_none() {
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("REPRISE_LIMITS_STORED_MIB_MAX", "1");
    let server = Server::start(&mut command).unwrap();
    let field = admin(&world, &server);
    field.register("boss", 10);
    let made = world.json(&[
        "key",
        "create",
        "--actor",
        "reader",
        "--scope",
        "field:read",
        "--json",
    ]);
    let reader = Field::of(&server, made["key"].as_str().unwrap());
    reader.register("eve", 2);
    field.ok("record", "boss", "fact", &unit("committed", "a fact"));
    let big = "word ".repeat(16_000);
    // Whoever may only look comes to an end of its own.
    let drafts = (0..40).find(|number| {
        let (status, said) =
            reader.send("record", "eve", &format!("d{number}"), &unit("draft", &big));
        assert!(status == 201 || said["code"] == "STORAGE_FULL", "{said}");
        status != 201
    });
    let look = json!({"scope": {"role": "r", "max_units": 5}});
    let (_, said) = reader.send(
        "attune",
        "eve",
        "look",
        &json!({"scope": {"role": "r".repeat(4_000), "max_units": 5}}),
    );
    assert!(
        drafts.is_some_and(|drafts| (8..=16).contains(&drafts)),
        "{drafts:?} {said}"
    );
    // Others write as if nothing had been read, and then read on.
    let notes = (0..40).find(|number| {
        let (status, said) = field.send(
            "record",
            "boss",
            &format!("n{number}"),
            &unit("committed", &big),
        );
        assert!(status == 201 || said["code"] == "STORAGE_FULL", "{said}");
        status != 201
    });
    let notes = notes.expect("there is an end to writing");
    assert!((8..=16).contains(&notes), "{notes}");
    let _ = field.send("attune", "boss", "look", &look);
    // A field that is full can still forget, and is asked to once more.
    for (id, units) in [("one", notes + 1 + drafts.unwrap_or_default()), ("two", 0)] {
        let purged = field.ok("compact", "boss", id, &purge());
        assert_eq!(purged["units_affected"], units, "{purged}");
        assert_eq!(purged["erasure"], "complete");
    }
    server.stop();
    world.ok(&["log", "verify"]);
}
