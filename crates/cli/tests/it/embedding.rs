//! A field whose vectors a model outside makes: an embeddings endpoint on loopback that knows two subjects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::process::PATIENCE;

use crate::world::World;

/// An endpoint in the wire format of a provider.
struct Endpoint {
    url: String,
    down: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Endpoint {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            down: Arc::default(),
            asked: Arc::default(),
        };
        let (down, asked) = (Arc::clone(&endpoint.down), Arc::clone(&endpoint.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                asked.fetch_add(1, Ordering::SeqCst);
                answer(stream, down.load(Ordering::SeqCst));
            }
        });
        endpoint
    }
}

fn answer(stream: TcpStream, down: bool) {
    let mut reader = BufReader::new(&stream);
    let (mut length, mut line, mut first) = (0, String::new(), String::new());
    while reader.read_line(&mut line).unwrap_or_default() > 0 && line != "\r\n" {
        let lower = line.to_ascii_lowercase();
        if first.is_empty() {
            first.clone_from(&line);
        }
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (status, said) = if down || !first.starts_with("POST /v1/embeddings ") {
        (
            "500 Internal Server Error",
            json!({"error": {"message": "out of order"}}),
        )
    } else {
        let texts = asked["input"].as_array().unwrap().iter().enumerate();
        // The last first: the index counts, not the place.
        let data = texts.rev().map(|(index, text)| {
            let text = text.as_str().unwrap().to_lowercase();
            let has = |words: [&str; 2]| words.iter().any(|word| text.contains(word));
            let vector = match (has(["car", "automobile"]), has(["banana", "fruit"])) {
                (true, _) => [1.0, 0.1, 0.0],
                (_, true) => [0.0, 1.0, 0.1],
                _ => [0.1, 0.0, 1.0],
            };
            json!({"object": "embedding", "index": index, "embedding": vector})
        });
        let data: Vec<Value> = data.collect();
        (
            "200 OK",
            json!({"object": "list", "model": asked["model"], "data": data}),
        )
    };
    let said = said.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        said.len()
    );
    let _ = (&stream).write_all(format!("{head}{said}").as_bytes());
}

fn settings(world: &World, endpoint: &Endpoint, model: &str) {
    let text = format!(
        "[[providers]]\nid = \"near\"\nkind = \"openai\"\nbase_url = \"{}\"\n\n[fields]\n\
         embeddings_provider = \"near\"\nembeddings_model = \"{model}\"\n",
        endpoint.url
    );
    std::fs::write(world.home.path().join("settings.toml"), text).unwrap();
}

fn serve(world: &World) -> testing::process::Server {
    world.serve_with(&["--listen", "127.0.0.1:0", "--config", "settings.toml"])
}

fn record(world: &World, content: &str) -> Value {
    world.json(&[
        "field",
        "record",
        content,
        "--agent",
        "ann",
        "--purpose",
        "to know",
        "--score",
        "0.5",
        "--reasoning",
        "seen",
        "--json",
    ])
}

/// What an agent is shown first, for words that no unit has.
fn first(world: &World, hint: &str) -> String {
    let seen = world.json(&[
        "field", "attune", "--agent", "sam", "--role", "analyst", "--hint", hint, "--json",
    ]);
    seen["record"][0]["memory_unit"]["content"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn units(world: &World) -> Value {
    world.json(&["field", "status", "--json"])["status"]["units"].clone()
}

#[test]
fn a_model_outside_ranks_by_meaning_and_units_that_it_missed_get_their_vectors_later() {
    let world = World::new();
    let endpoint = Endpoint::start();
    settings(&world, &endpoint, "tiny");
    let server = serve(&world);
    for agent in ["ann", "sam"] {
        world.ok(&["field", "register", agent, "--role", "analyst"]);
    }
    record(&world, "A car stood there");
    record(&world, "A banana was eaten");
    record(&world, "Nothing else happened");
    assert_eq!(first(&world, "automobile"), "A car stood there");
    assert_eq!(first(&world, "fruit"), "A banana was eaten");
    // Which model made a vector is in the log.
    let events = world.ok(&["event", "list", "--json"]);
    assert!(
        events.contains("\"name\":\"tiny\"") || events.contains("\"name\": \"tiny\""),
        "{events}"
    );
    let named = server.url.clone();
    assert!(!events.contains(&endpoint.url) && !named.is_empty());

    endpoint.down.store(true, Ordering::SeqCst);
    let answer = record(&world, "The automobile broke down");
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("ENRICHMENT_FAILED: the embeddings endpoint answered 500"),
        "{warning}"
    );
    assert_eq!(units(&world)["pending_enrichment"], 1, "{}", units(&world));
    // A model that fails is left alone for a while, and nobody waits for it.
    let before = endpoint.asked.load(Ordering::SeqCst);
    let answer = record(&world, "Another automobile did");
    assert!(
        answer["warnings"][0]
            .as_str()
            .unwrap()
            .contains("a moment ago"),
        "{answer}"
    );
    assert_eq!(endpoint.asked.load(Ordering::SeqCst), before);
    // Not even a kill loses them.
    server.kill();
    let server = serve(&world);
    assert_eq!(units(&world)["pending_enrichment"], 2);
    endpoint.down.store(false, Ordering::SeqCst);
    assert_eq!(first(&world, "fruit"), "A banana was eaten");
    let start = Instant::now();
    while units(&world).get("pending_enrichment").is_some() {
        assert!(start.elapsed() < PATIENCE, "{}", units(&world));
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = world.json(&[
        "field", "attune", "--agent", "sam", "--role", "analyst", "--hint", "car", "--max", "3",
        "--json",
    ]);
    let seen = seen["record"].to_string();
    assert!(
        seen.contains("The automobile broke down") && seen.contains("Another automobile"),
        "{seen}"
    );

    // Vectors of another model are not compared with these: what is left are words.
    drop(server);
    settings(&world, &endpoint, "other");
    let _server = serve(&world);
    record(&world, "Rain fell");
    let seen = world.json(&[
        "field", "attune", "--agent", "sam", "--role", "analyst", "--hint", "fruit", "--json",
    ]);
    let reasons = seen["record"].as_array().unwrap().iter();
    let banana = reasons
        .clone()
        .find(|one| one["memory_unit"]["content"] == "A banana was eaten")
        .unwrap();
    let said = banana["relevance_reason"].as_str().unwrap();
    assert!(
        !said.contains("meaning") && !said.contains("close"),
        "{said}"
    );
    world.ok(&["field", "status"]);
}

#[test]
fn a_field_whose_model_cannot_be_asked_stops_the_start() {
    let world = World::new();
    for (fields, words) in [
        (
            "embeddings_provider = \"gone\"\nembeddings_model = \"m\"",
            "no provider `gone`",
        ),
        ("embeddings_provider = \"near\"", "embeddings_model"),
    ] {
        let text =
            format!("[[providers]]\nid = \"near\"\nkind = \"openai\"\n\n[fields]\n{fields}\n");
        std::fs::write(world.home.path().join("settings.toml"), text).unwrap();
        let said = world.run(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--config",
            "settings.toml",
        ]);
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.stderr.contains(words), "{said:?}");
    }
}
