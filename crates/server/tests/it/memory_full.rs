//! Level 3 of the memory protocol over HTTP: sessions, tasks, authority, purges, and notifications over a WebSocket.

use std::sync::Arc;
use std::time::Duration;

use engine::port::{BlobStore, KeyStore};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::fixture::{KEY, Server, config, key, limits};
use crate::memory::{Memory, id_of, refused, replay_of, unit};

/// Sends an operation in a session.
async fn in_session(
    memory: &Memory,
    session: &str,
    operation: &str,
    agent: &str,
    payload: Value,
) -> (u16, Value) {
    let mut envelope = Memory::envelope(operation, agent, payload);
    envelope["session_id"] = json!(session);
    memory.post(operation, &envelope).await
}

fn session(action: &str, id: &str) -> Value {
    json!({"action": action, "session": {"id": id, "goal": "to know"}})
}

#[tokio::test]
async fn ak_ses_01_cor_01_sec_07_08_sessions_and_tasks_are_events_that_fold_to_the_same_field() {
    let mut server = Server::start().await;
    for (text, scope) in [("rk_ann", "field:write"), ("rk_bob", "field:write")] {
        server.add_key(key(text, text, &[scope], None)).await;
    }
    let memory = Memory::at(&server);
    let boss = json!({"id": "boss", "role": "lead", "authority": 10});
    memory.ok("register", "boss", boss).await;
    let [ann, bob] = ["rk_ann", "rk_bob"].map(|key| memory.with_key(key));
    ann.join("ann").await;
    bob.join("bob").await;
    let made = ann.ok("session", "ann", session("create", "s")).await;
    assert_eq!(made["session"]["members"], json!(["ann"]));
    let (status, hidden) =
        in_session(&ann, "s", "record", "ann", unit("For members", json!({}))).await;
    assert_eq!(status, 201, "{hidden}");
    let hidden = id_of(&hidden);
    // Who is not a member neither writes there nor sees it, in no view.
    let got = in_session(&bob, "s", "record", "bob", unit("x", json!({}))).await;
    refused(&got, 403, "FORBIDDEN", json!("RECORD"));
    let scope = || json!({"scope": {"role": "analyst", "max_units": 9}});
    assert_eq!(bob.ok("attune", "bob", scope()).await["record"], json!([]));
    let path = format!("field/graph?target_type=memory_unit&target_id={hidden}");
    for (memory, seen) in [(&ann, true), (&bob, false), (&memory, true)] {
        let count = usize::from(seen);
        let (_, status) = memory.get("field/status").await;
        let units = status["units"]["active"].as_u64().unwrap_or(0);
        assert_eq!(units as usize, count, "{status}");
        let (_, drawn) = memory.get(&path).await;
        assert_eq!(drawn.to_string().contains("For members"), seen, "{drawn}");
    }
    let told = bob
        .ok("replay", "bob", replay_of("memory_unit", &hidden))
        .await;
    assert_eq!(told["timeline"][0]["agent_id"], "redacted", "{told}");
    // A task of the session, and its steps.
    let task = json!({"action": "create", "task": {"id": "t", "title": "T", "assignee": "ann"}});
    let (status, made) = in_session(&ann, "s", "coordinate", "ann", task).await;
    assert_eq!((status, &made["task"]["status"]), (200, &json!("assigned")));
    let step = |action: &str| json!({"action": action, "task": {"id": "t"}});
    let got = ann.send("coordinate", "ann", step("complete")).await;
    refused(&got, 409, "INVALID_TRANSITION", json!("COORDINATE"));
    ann.ok("coordinate", "ann", step("start")).await;
    let got = bob.send("coordinate", "bob", step("start")).await;
    refused(&got, 404, "UNIT_NOT_FOUND", json!("COORDINATE"));
    let (_, agents) = memory.get("agents").await;
    let status = |agents: &Value| {
        let agents = agents["agents"].as_array().unwrap();
        let ann = agents.iter().find(|agent| agent["id"] == "ann").unwrap();
        (ann["status"].clone(), ann["current_task_id"].clone())
    };
    assert_eq!(status(&agents), (json!("working"), json!("t")));
    let end = memory.ok("session", "boss", session("end", "s")).await;
    assert_eq!(end["session"]["status"], "ended");
    let before = memory.get("field/status").await;

    let store = Arc::new(server.store.reopened());
    server.begin_stop();
    server.stopped().await;
    let server = Server::start_on(store, config(), limits()).await;
    let memory = Memory::at(&server);
    let [ann, bob] = ["rk_ann", "rk_bob"].map(|key| memory.with_key(key));
    assert_eq!(memory.get("field/status").await, before);
    assert_eq!(
        status(&memory.get("agents").await.1),
        (json!("working"), json!("t"))
    );
    let got = in_session(&ann, "s", "record", "ann", unit("x", json!({}))).await;
    refused(&got, 409, "INVALID_TRANSITION", json!("RECORD"));
    assert_eq!(bob.ok("attune", "bob", scope()).await["record"], json!([]));
    let seen = ann.ok("replay", "ann", replay_of("session", "s")).await;
    assert_eq!(seen["total_events"], 4, "{seen}");
    ann.ok("coordinate", "ann", step("complete")).await;
}

#[tokio::test]
async fn ak_sec_03_04_05_mrg_12_13_authority_is_that_of_the_agent_below_that_of_its_key() {
    let server = Server::start().await;
    server
        .add_key(key("rk_write", "w", &["field:write"], None))
        .await;
    let memory = Memory::at(&server);
    memory.join("root").await;
    let write = memory.with_key("rk_write");
    let claim = |id: &str, authority: u8| json!({"id": id, "role": "r", "authority": authority});
    let got = write.send("register", "ann", claim("ann", 8)).await;
    refused(&got, 403, "FORBIDDEN", json!("REGISTER"));
    for (agent, authority) in [("ann", 6), ("bob", 4), ("cid", 4)] {
        write.ok("register", agent, claim(agent, authority)).await;
    }
    let first = id_of(&write.note("ann", "It is one", json!({})).await);
    let more = json!({"relations": [{"type": "contradicts", "target_id": first}]});
    let answer = write.note("bob", "It is two", more).await;
    let conflict = answer["conflicts_detected"][0].clone();
    let merge = |strategy: &str| {
        json!({
            "conflict_id": conflict, "strategy": strategy,
            "resolution": {"rationale": "r", "winner_id": first},
        })
    };
    let got = write.send("merge", "bob", merge("authority")).await;
    refused(&got, 403, "FORBIDDEN", json!("MERGE"));
    assert_eq!(
        got.1["message"],
        "this needs authority 6, and the sender is registered with 4"
    );
    // Four have authority 4 or more: three votes for the same unit end it.
    for (agent, status) in [
        ("bob", "pending_vote"),
        ("cid", "pending_vote"),
        ("ann", "resolved"),
    ] {
        let voted = write.ok("merge", agent, merge("vote")).await;
        assert_eq!(voted["status"], status, "{agent}");
    }
}

/// R-15: a vote that takes too long is given up, whether somebody says something to the field or not.
#[tokio::test]
async fn a_vote_that_takes_too_long_is_escalated_and_a_late_one_does_not_count() {
    const TIMEOUT_US: i64 = 200_000;
    let server = Server::start().await;
    let voting = field::Config {
        vote_timeout_us: Some(TIMEOUT_US),
        ..field::Config::at(field::Level::Full)
    };
    server.engine.set_fields(voting.clone());
    let disputed = async |memory: &Memory, name: &str| {
        for agent in ["ann", "bob", "cid"] {
            memory.join(&format!("{agent}_{name}")).await;
        }
        let ann = format!("ann_{name}");
        let first = id_of(
            &memory
                .note(&ann, &format!("{name} is one"), json!({}))
                .await,
        );
        let more = json!({"relations": [{"type": "contradicts", "target_id": first}]});
        let answer = memory.note(&ann, &format!("{name} is two"), more).await;
        let vote = json!({
            "conflict_id": answer["conflicts_detected"][0], "strategy": "vote",
            "resolution": {"rationale": "r", "winner_id": first},
        });
        let voted = memory.ok("merge", &ann, vote.clone()).await;
        assert_eq!(voted["status"], "pending_vote");
        vote
    };
    let escalated = async |memory: &Memory, vote: &Value| {
        let (_, listed) = memory.get("conflicts").await;
        let conflicts = listed["conflicts"].as_array().unwrap();
        let of = conflicts.iter().find(|of| of["id"] == vote["conflict_id"]);
        of.is_some_and(|of| of["status"] == "escalated")
    };

    let memory = Memory::at(&server);
    let vote = disputed(&memory, "silent").await;
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !escalated(&memory, &vote).await {
        assert!(std::time::Instant::now() < patience, "it is voted on still");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }

    // Nobody waits for the end of a vote in a field that nobody reads: the next message finds it overdue.
    let vote = disputed(&memory, "asleep").await;
    let later = server.reopened().await;
    later.engine.set_fields(voting);
    tokio::time::sleep(std::time::Duration::from_micros(TIMEOUT_US as u64)).await;
    let memory = Memory::at(&later);
    for agent in ["bob_asleep", "cid_asleep", "bob_silent", "cid_silent"] {
        let got = memory.send("merge", agent, vote.clone()).await;
        refused(&got, 403, "FORBIDDEN", json!("MERGE"));
    }
    assert!(escalated(&memory, &vote).await);
}

#[tokio::test]
async fn ak_cmp_04_log_05_06_a_purge_erases_words_beside_the_log_and_in_answers() {
    let mut server = Server::start().await;
    let memory = Memory::at(&server);
    let boss = json!({"id": "boss", "role": "lead", "authority": 10});
    memory.ok("register", "boss", boss).await;
    memory.join("ann").await;
    let secret = "the password is swordfish ".repeat(20);
    let known = id_of(&memory.note("ann", &secret, json!({})).await);
    let kept = memory
        .note("ann", "stays", json!({"type": "decision"}))
        .await;
    let attune = Memory::envelope(
        "attune",
        "boss",
        json!({"scope": {"role": "lead", "max_units": 9}}),
    );
    let replay = Memory::envelope("replay", "boss", replay_of("memory_unit", &known));
    for (operation, envelope) in [("attune", &attune), ("replay", &replay)] {
        let (_, answer) = memory.post(operation, envelope).await;
        assert!(answer.to_string().contains("swordfish"));
    }
    let holds = async |server: &Server| {
        let events = server.client().get("/v1/events?limit=100").await.1;
        let entries = events["data"].as_array().unwrap().clone();
        let mut texts = String::new();
        for entry in &entries {
            let payload = &entry["payload"];
            for digest in [
                &payload["data"]["text_sha256"],
                &payload["message"]["answer_sha256"],
            ] {
                let Some(digest) = digest.as_str() else {
                    continue;
                };
                let digest = canon::Digest::parse(digest).unwrap();
                let found = server.store.blob(digest).await.unwrap();
                texts.push_str(&String::from_utf8(found.unwrap_or_default()).unwrap());
            }
        }
        (texts.matches("swordfish").count(), texts.contains("stays"))
    };
    // The words lie there once, however often they were read.
    assert_eq!(holds(&server).await, (20, true));
    let purge = json!({"strategy": "purge", "filter": {"types": ["finding"]}, "reason": "a slip"});
    let got = memory.send("compact", "ann", purge.clone()).await;
    refused(&got, 403, "FORBIDDEN", json!("COMPACT"));
    let purged = memory.ok("compact", "boss", purge).await;
    assert_eq!(purged["units_affected"], 1);
    assert_eq!(holds(&server).await, (0, true));
    for _ in 0..2 {
        let memory = Memory::at(&server);
        for (operation, envelope) in [("attune", &attune), ("replay", &replay)] {
            let (status, answer) = memory.post(operation, envelope).await;
            assert_eq!(status, 200, "{answer}");
            let answer = answer.to_string();
            assert!(!answer.contains("swordfish"), "{answer}");
            assert!(answer.contains("(content purged)"), "{answer}");
        }
        let scope = json!({"scope": {"role": "lead", "max_units": 9}});
        let seen = memory.ok("attune", "boss", scope).await;
        assert_eq!(seen["record"].as_array().unwrap().len(), 1, "{seen}");
        assert_eq!(
            seen["record"][0]["memory_unit"]["id"],
            kept["memory_unit_id"]
        );
        let store = Arc::new(server.store.reopened());
        server.begin_stop();
        server.stopped().await;
        server = Server::start_on(store, config(), limits()).await;
    }
}

#[tokio::test]
async fn a_purge_that_was_cut_short_is_finished_when_the_field_is_read_again() {
    let mut server = Server::start().await;
    let memory = Memory::at(&server);
    let boss = json!({"id": "boss", "role": "lead", "authority": 10});
    memory.ok("register", "boss", boss).await;
    memory.note("boss", "swordfish", json!({})).await;
    let events = server.client().get("/v1/events?limit=100").await.1;
    let events = events["data"].as_array().unwrap();
    let text = events
        .iter()
        .find_map(|event| event["payload"]["data"].get("text_sha256"));
    let text = text.unwrap().clone();
    let digest = canon::Digest::parse(text.as_str().unwrap()).unwrap();
    let bytes = server.store.blob(digest).await.unwrap().unwrap();
    let purge = json!({"strategy": "purge", "filter": {"types": ["finding"]}});
    memory.ok("compact", "boss", purge).await;
    assert_eq!(server.store.blob(digest).await.unwrap(), None);
    // As if the process had died after the entry and before the words were gone.
    let store = Arc::new(server.store.reopened());
    store.put_blob(domain::Blob::new(bytes)).await.unwrap();
    server.begin_stop();
    server.stopped().await;
    let server = Server::start_on(store, config(), limits()).await;
    Memory::at(&server).get("field/status").await;
    assert_eq!(server.store.blob(digest).await.unwrap(), None);
}

#[tokio::test]
async fn reading_much_stores_little() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("bob").await;
    let long = "A long story about nothing at all. ".repeat(500);
    for _ in 0..10 {
        memory.note("ann", &long, json!({})).await;
    }
    let scope = json!({"scope": {"role": "analyst", "max_units": 10}});
    let seen = memory.ok("attune", "bob", scope).await;
    assert_eq!(seen["record"].as_array().unwrap().len(), 10);
    let events = server.client().get("/v1/events?limit=100").await.1;
    let entries = events["data"].as_array().unwrap();
    let read = entries.last().unwrap();
    assert_eq!(read["payload"]["event_type"], "ATTUNE");
    let stored = read["payload"]["content_bytes"].as_u64().unwrap();
    assert!(
        stored < 3_000,
        "{stored} bytes for {}",
        seen.to_string().len()
    );
}

type Socket = WebSocketStream<TcpStream>;

/// Opens a WebSocket with a key and further headers.
async fn open(url: &str, key: &str, headers: &[(&'static str, &str)]) -> Result<Socket, u16> {
    let mut request = url.into_client_request().unwrap();
    let bearer = format!("Bearer {key}");
    for (name, value) in headers
        .iter()
        .copied()
        .chain([("authorization", bearer.as_str())])
    {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let address = request.uri().authority().unwrap().to_string();
    let stream = TcpStream::connect(address).await.unwrap();
    match client_async(request, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

async fn next(socket: &mut Socket) -> Message {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), socket.next()).await;
        match next.expect("nothing comes").expect("it has ended").unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

fn code(message: Message) -> u16 {
    match message {
        Message::Close(Some(frame)) => frame.code.into(),
        other => panic!("{other:?}"),
    }
}

async fn subscribed(memory: &Memory, agent: &str) -> String {
    let subscription = json!({
        "action": "subscribe",
        "subscription": {"id": null, "events": ["memory.recorded", "task.assigned"]},
    });
    let answer = memory.ok("subscribe", agent, subscription).await;
    answer["push"]["websocket_url"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn ak_sub_02_http_07_notifications_over_a_websocket() {
    let mut server = Server::start().await;
    for (text, scope) in [("rk_other", "field:write"), ("rk_none", "tasks:read")] {
        server.add_key(key(text, text, &[scope], None)).await;
    }
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("bob & co").await;
    let url = subscribed(&memory, "bob & co").await;
    let expected = server.url.replace("http", "ws")
        + "/akashik/v1/notifications/socket?agent_id=bob%20%26%20co";
    assert_eq!(url, expected);
    // Whoever may not have the notifications gets no socket; neither does a page of somebody else.
    assert_eq!(open(&url, "rk_wrong", &[]).await.err(), Some(401));
    assert_eq!(open(&url, "rk_none", &[]).await.err(), Some(403));
    assert_eq!(open(&url, "rk_other", &[]).await.err(), Some(403));
    let unknown = url.replace("bob", "zoe");
    assert_eq!(open(&unknown, KEY, &[]).await.err(), Some(403));
    let evil = [("origin", "https://evil.example")];
    assert_eq!(open(&url, KEY, &evil).await.err(), Some(403));
    let host = [("host", "evil.example")];
    assert_eq!(open(&url, KEY, &host).await.err(), Some(421));
    let got = memory.get("notifications/socket?agent_id=ann").await;
    refused(&got, 400, "INVALID_REQUEST", Value::Null);

    let own = [("origin", server.url.as_str())];
    let mut socket = open(&url, KEY, &own).await.unwrap();
    let mut second = open(&url, KEY, &[]).await.unwrap();
    let first = memory.note("ann", "It is one", json!({})).await;
    memory.note("bob & co", "My own", json!({})).await;
    let task = json!({"action": "create", "task": {"title": "T", "assignee": "bob & co"}});
    memory.ok("coordinate", "ann", task).await;
    for socket in [&mut socket, &mut second] {
        let mut said = Vec::new();
        for _ in 0..2 {
            let Message::Text(text) = next(socket).await else {
                panic!("a text frame");
            };
            said.push(serde_json::from_str::<Value>(&text).unwrap());
        }
        assert_eq!(said[0]["event"], "memory.recorded");
        assert_eq!(said[0]["memory_unit_id"], first["memory_unit_id"]);
        assert_eq!(said[0]["epoch"], first["epoch"]);
        assert_eq!(said[1]["event"], "task.assigned");
        assert_eq!(said[1]["requires_action"], true);
    }
    // Pings are answered; anything else is not read here.
    second.send(Message::Ping("x".into())).await.unwrap();
    let pong = tokio::time::timeout(Duration::from_secs(20), second.next()).await;
    assert!(matches!(pong, Ok(Some(Ok(Message::Pong(_))))), "{pong:?}");
    second.send(Message::Text("hello".into())).await.unwrap();
    assert_eq!(code(next(&mut second).await), 1003);
    // A message that is too long ends it.
    let mut third = open(&url, KEY, &[]).await.unwrap();
    let long = Message::Binary(vec![0; 100_000].into());
    let _ = third.send(long).await;
    let ended = tokio::time::timeout(Duration::from_secs(20), third.next()).await;
    assert!(
        !matches!(ended, Ok(Some(Ok(Message::Text(_))))),
        "{ended:?}"
    );
    // The stop of the server says goodbye, and waits for nobody who does not answer.
    server.begin_stop();
    assert_eq!(code(next(&mut socket).await), 1001);
    tokio::time::timeout(Duration::from_secs(10), server.stopped())
        .await
        .expect("the server stops");
}

#[tokio::test]
async fn a_websocket_ends_with_its_key_and_holds_a_place_while_it_is_open() {
    let mut config = config();
    config.connections_max = 8;
    let server = Server::start_with(config).await;
    let lent = key("rk_lent", "lent", &["field:admin"], None);
    server.add_key(lent.clone()).await;
    let memory = Memory::at(&server).with_key("rk_lent");
    memory.join("ann").await;
    let url = subscribed(&memory, "ann").await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(open(&url, "rk_lent", &[]).await.unwrap());
    }
    let mut revoked = lent;
    revoked.revoked_at = Some(domain::Timestamp::from_micros(1));
    server.store.put_api_key(revoked).await.unwrap();
    for socket in &mut sockets {
        assert_eq!(code(next(socket).await), 1008);
    }
}

#[tokio::test]
async fn a_close_is_answered_with_a_close() {
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let url = subscribed(&memory, "ann").await;
    let mut socket = open(&url, KEY, &[]).await.unwrap();
    let frame = tungstenite::protocol::CloseFrame {
        code: 1000.into(),
        reason: "done".into(),
    };
    socket.close(Some(frame)).await.unwrap();
    let mut answered = false;
    while let Some(message) = socket.next().await {
        match message.expect("the handshake of closing is completed") {
            Message::Ping(_) => {}
            message => {
                assert_eq!(code(message), 1000);
                answered = true;
            }
        }
    }
    assert!(answered);
}

/// Takes 16 seconds: pings come no closer together than every five.
#[tokio::test]
async fn a_websocket_is_pinged_and_whoever_answers_no_ping_is_cut_off() {
    let mut config = config();
    config.sse_heartbeat = Duration::from_secs(1);
    let server = Server::start_with(config).await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    let url = subscribed(&memory, "ann").await;
    let mut awake = open(&url, KEY, &[]).await.unwrap();
    // What this one reads are bytes, and it answers none of them.
    let mut silent = open(&url, KEY, &[]).await.unwrap().into_inner();
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        let read = silent.read_to_end(&mut bytes);
        let _ = tokio::time::timeout(Duration::from_secs(25), read).await;
        bytes
    });
    let mut pings = 0;
    let until = tokio::time::Instant::now() + Duration::from_secs(19);
    while let Ok(message) = tokio::time::timeout_at(until, awake.next()).await {
        match message.expect("whoever answers stays").unwrap() {
            Message::Ping(_) => pings += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(pings >= 3, "{pings}");
    let bytes = reading.await.unwrap();
    let farewell = [&[0x88, 24, 0x03, 0xf0][..], b"pings are not answered"].concat();
    assert_eq!(bytes, [&[0x89, 0, 0x89, 0][..], &farewell].concat());
}

/// Takes some 15 seconds: a client has ten to take a frame.
#[tokio::test]
async fn a_websocket_client_that_takes_nothing_is_cut_off_and_holds_nobody_up() {
    const SUBSCRIPTIONS: usize = 64;
    const NOTES: usize = 500;
    let server = Server::start().await;
    let memory = Memory::at(&server);
    memory.join("ann").await;
    memory.join("bob").await;
    let mut url = String::new();
    for _ in 0..SUBSCRIPTIONS {
        url = subscribed(&memory, "bob").await;
    }
    let mut request = url.as_str().into_client_request().unwrap();
    let bearer = format!("Bearer {KEY}").parse().unwrap();
    request.headers_mut().insert("authorization", bearer);
    let narrow = tokio::net::TcpSocket::new_v4().unwrap();
    narrow.set_recv_buffer_size(2_048).unwrap();
    let address = request.uri().authority().unwrap().to_string();
    let stream = narrow.connect(address.parse().unwrap()).await.unwrap();
    let (mut slow, _) = client_async(request, stream).await.unwrap();
    for number in 0..NOTES {
        let content = format!("note {number}");
        let note = memory.note("ann", &content, json!({}));
        let noted = tokio::time::timeout(Duration::from_secs(5), note).await;
        noted.expect("nobody waits for a client that does not read");
    }
    tokio::time::sleep(Duration::from_secs(12)).await;
    let mut taken = 0;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(5), slow.next()).await;
        match next.expect("it is cut off") {
            Some(Ok(Message::Text(_))) => taken += 1,
            Some(Ok(Message::Ping(_))) => {}
            Some(Ok(other)) => panic!("{other:?}"),
            Some(Err(_)) | None => break,
        }
    }
    assert!(taken < SUBSCRIPTIONS * NOTES, "{taken}");
}

#[tokio::test]
async fn ak_rec_16_a_unit_is_taken_back_by_its_author_or_the_operator() {
    let server = Server::start().await;
    for (text, scopes) in [
        ("rk_write", &["field:write"][..]),
        ("rk_other", &["field:write"]),
    ] {
        server.add_key(key(text, text, scopes, None)).await;
    }
    let memory = Memory::at(&server);
    let op = json!({"id": "op", "role": "operator", "authority": 10});
    memory.ok("register", "op", op).await;
    let [write, other] = ["rk_write", "rk_other"].map(|key| memory.with_key(key));
    write.join("ann").await;
    other.join("bob").await;
    let [one, two] = [
        id_of(&write.note("ann", "It holds", json!({})).await),
        id_of(&write.note("ann", "It does", json!({})).await),
    ];
    let retraction =
        |agent: &str, unit: &str| json!({"agent_id": agent, "unit_id": unit, "reason": "wrong"});
    let path = "field/retract";
    let mut misspelt = retraction("ann", &one);
    misspelt["why"] = json!("wrong");
    let null = Value::Null;
    for (by, body, status, code) in [
        (&write, misspelt, 400, "INVALID_REQUEST"),
        (&write, json!([]), 400, "INVALID_REQUEST"),
        (&write, json!({"agent_id": "ann"}), 400, "INVALID_REQUEST"),
        (&write, retraction("ann", "none"), 404, "UNIT_NOT_FOUND"),
        (&other, retraction("ann", &one), 403, "FORBIDDEN"),
        (&other, retraction("bob", &one), 403, "FORBIDDEN"),
        (&other, retraction("eve", &one), 403, "AGENT_NOT_REGISTERED"),
        (&write, retraction("persona_x", &one), 403, "FORBIDDEN"),
    ] {
        refused(&by.post(path, &body).await, status, code, null.clone());
    }
    for (by, agent, unit) in [(&write, "ann", &one), (&memory, "op", &two)] {
        let (status, body) = by.post(path, &retraction(agent, unit)).await;
        assert_eq!((status, &body["status"]), (200, &json!("ok")), "{body}");
        let again = by.post(path, &retraction(agent, unit)).await;
        refused(&again, 409, "INVALID_TRANSITION", null.clone());
    }
    let scope = json!({"scope": {"role": "r", "max_units": 9}});
    let seen = other.ok("attune", "bob", scope).await;
    assert_eq!(seen["record"], json!([]));
    let told = other
        .ok("replay", "bob", replay_of("memory_unit", &one))
        .await;
    assert_eq!(told["timeline"][1]["event_type"], "UNIT_RETRACTED");
    assert_eq!(told["timeline"][1]["description"], "Retracted: wrong");
}

/// R-01: a key may name the agents that it acts for.
#[tokio::test]
async fn ak_sec_02_a_key_that_names_its_agents_acts_for_these_whoever_registered_them() {
    let server = Server::start().await;
    for (text, scopes) in [
        ("rk_write", &["field:write"][..]),
        ("rk_named", &["field:write", "agent:ann", "agent:team-*"]),
    ] {
        server.add_key(key(text, text, scopes, None)).await;
    }
    let memory = Memory::at(&server);
    memory.join("root").await;
    let [write, named] = ["rk_write", "rk_named"].map(|key| memory.with_key(key));
    for agent in ["ann", "bob"] {
        write.join(agent).await;
    }
    named.join("team-1").await;
    named.note("ann", "It holds", json!({})).await;
    named.note("team-1", "It does", json!({})).await;
    for (agent, operation) in [("bob", "record"), ("free", "register")] {
        let payload = match operation {
            "record" => unit("x", json!({})),
            _ => json!({"id": agent, "role": "r"}),
        };
        let got = named.send(operation, agent, payload).await;
        refused(&got, 403, "FORBIDDEN", json!(operation.to_uppercase()));
    }
    // Others keep theirs.
    write.note("ann", "Still", json!({})).await;
    let got = write.send("record", "team-1", unit("x", json!({}))).await;
    refused(&got, 403, "FORBIDDEN", json!("RECORD"));
}
