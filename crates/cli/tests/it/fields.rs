//! The memory that agents share, from the command line: a scene, its replay, and what is left after kill -9.

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::World;

fn record(world: &World, agent: &str, content: &str, more: &[&str]) -> Value {
    let common = [
        "field",
        "record",
        content,
        "--agent",
        agent,
        "--purpose",
        "to know",
        "--reasoning",
        "seen",
        "--json",
    ];
    world.json(&[&common, more].concat())
}

fn id(answer: &Value) -> String {
    answer["memory_unit_id"].as_str().unwrap().to_owned()
}

fn replay(world: &World, kind: &str, id: &str) -> Value {
    world.json(&[
        "field",
        "replay",
        kind,
        id,
        "--agent",
        "sam",
        "--depth",
        "full_trace",
        "--json",
    ])
}

#[test]
fn three_agents_a_contradiction_a_merge_and_the_reasons_behind_a_decision() {
    let world = World::new();
    let _server = world.serve();
    for (agent, role) in [
        ("ann", "analyst"),
        ("bob", "analyst"),
        ("sam", "strategist"),
    ] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            role,
            "--authority",
            "6",
        ]);
    }
    let first = record(
        &world,
        "ann",
        "The market grows by 23%",
        &["--score", "0.8", "--task", "market"],
    );
    let relation = format!("contradicts={}", id(&first));
    let second = record(
        &world,
        "bob",
        "The market grows by 14%",
        &["--score", "0.4", "--relation", &relation],
    );
    let conflict = second["conflicts_detected"][0].as_str().unwrap().to_owned();
    // Saying the same twice is no fault; being somebody else is.
    world.ok(&["field", "register", "ann", "--role", "analyst"]);
    let said = world.run(&["field", "register", "ann", "--role", "critic"]);
    assert_eq!(said.code, 1, "{said:?}");
    let listed = world.json(&["field", "detect", "--agent", "sam", "--json"]);
    assert_eq!(listed[0]["id"], conflict.as_str(), "{listed}");
    let listed = world.ok(&["field", "detect", "--agent", "sam"]);
    assert!(
        listed.contains(&conflict) && listed.contains("detected"),
        "{listed}"
    );
    let merged = world.ok(&[
        "field",
        "merge",
        &conflict,
        "--agent",
        "sam",
        "--strategy",
        "confidence_weighted",
        "--rationale",
        "the better source",
    ]);
    assert!(
        merged.contains(&format!("{} stays", id(&first))),
        "{merged}"
    );
    // What is settled is not listed, unless somebody asks for it.
    assert_eq!(world.ok(&["field", "detect", "--agent", "sam", "-q"]), "");
    let all = world.ok(&["field", "detect", "--agent", "sam", "-q", "--all"]);
    assert_eq!(all.trim(), conflict);
    let relation = format!("depends_on={}", id(&first));
    let more = [
        "--type",
        "decision",
        "--score",
        "0.9",
        "--relation",
        &relation,
    ];
    let decision = id(&record(&world, "sam", "We enter the market", &more));

    let told = world.ok(&[
        "field",
        "replay",
        "decision",
        &decision,
        "--agent",
        "sam",
        "--depth",
        "full_trace",
        "--dot",
        "reasons.dot",
        "--svg",
        "reasons.svg",
    ]);
    for words in [
        "ann",
        "bob",
        "CONFLICT_CREATED",
        "Resolved via confidence_weighted",
        "We enter the market",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let file = |name: &str| std::fs::read_to_string(world.home.path().join(name)).unwrap();
    assert!(file("reasons.dot").starts_with("digraph"));
    assert!(
        file("reasons.svg").contains("<svg") && file("reasons.svg").contains("We enter the market")
    );
    let seen = world.ok(&[
        "field",
        "attune",
        "--agent",
        "bob",
        "--role",
        "analyst",
        "--hint",
        "market growth",
    ]);
    assert!(
        seen.contains("The market grows by 23%") && !seen.contains("14%"),
        "{seen}"
    );
    let status = world.ok(&["field", "status"]);
    assert!(
        status.contains("2 active, 1 superseded") && status.contains("strategist"),
        "{status}"
    );
    assert!(
        world
            .ok(&["field", "compact", "archive", "--agent", "sam"])
            .starts_with("3 units archived")
    );

    // Refusals are answers, with advice.
    let said = world.run(&["field", "attune", "--agent", "zoe", "--role", "r"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("field register"), "{said:?}");
    let said = world.run(&["field", "record", "x", "--agent", "ann", "--purpose", "p"]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(
        said.stderr.contains("error: --score is missing"),
        "{said:?}"
    );
    let merge = [
        "field",
        "merge",
        "conflict_1",
        "--agent",
        "sam",
        "--rationale",
        "r",
    ];
    let said = world.run(&[&merge[..], &["--strategy", "toss"]].concat());
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("confidence_weighted"), "{said:?}");
    let said = world.run(&[&merge[..], &["--strategy", "authority"]].concat());
    assert!(said.stderr.contains("--winner"), "{said:?}");
    let said = world.run(&[
        "field", "replay", "unit", "mem_none", "--agent", "sam", "--json",
    ]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("UNIT_NOT_FOUND"), "{said:?}");
}

/// Everything that a field can be asked, without what the asking itself changes.
fn everything(world: &World, targets: &[(&str, &str)]) -> Value {
    let told: Vec<Value> = targets
        .iter()
        .map(|(kind, id)| replay(world, kind, id))
        .collect();
    let mut status = world.json(&["field", "status", "--json"]);
    status["status"]["epoch"] = Value::Null;
    json!({"told": told, "status": status})
}

#[test]
fn ak_log_03_04_after_kill_9_between_operations_the_field_is_the_fold_of_its_log() {
    let world = World::new();
    let server = world.serve();
    for agent in ["ann", "sam"] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            "analyst",
            "--authority",
            "6",
        ]);
    }
    let first = id(&record(&world, "ann", "It is one", &["--score", "0.5"]));
    let mut last = first.clone();
    let mut server = Some(server);
    for number in 0..3 {
        let relation = format!("supersedes={last}");
        let content = format!("It is {number}");
        let answer = record(
            &world,
            "ann",
            &content,
            &["--score", "0.5", "--relation", &relation],
        );
        last = id(&answer);
        let epoch = answer["epoch"].as_u64().unwrap();
        let targets = [("unit", first.as_str()), ("unit", last.as_str())];
        let before = everything(&world, &targets);
        server.take().unwrap().kill();
        server = Some(world.serve());
        assert_eq!(everything(&world, &targets), before, "{number}");
        let next = record(&world, "sam", "Something else", &["--score", "0.5"]);
        assert!(next["epoch"].as_u64().unwrap() > epoch);
    }
    server.take().unwrap().kill();
    // Whoever folds everything again from the events finds no difference, and every byte is what it was.
    world.ok(&["log", "verify"]);
    world.ok(&["log", "rebuild"]);
    let server = world.serve();
    let told = replay(&world, "unit", &first);
    drop(server);
    assert_eq!(told["total_events"], 4, "{told}");
}

/// F14: texts in a field count to what is stored, whatever lies beside the log.
#[test]
fn f14_a_field_takes_no_more_than_its_share_of_the_disk() {
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("REPRISE_LIMITS_STORED_MIB_MAX", "1");
    let server = Server::start(&mut command).unwrap();
    world.ok(&["field", "register", "ann", "--role", "analyst"]);
    let text = "word ".repeat(20_000);
    let refused = (0..20).find_map(|number| {
        let text = format!("{number} {text}");
        let said = world.run(&[
            "field",
            "record",
            &text,
            "--agent",
            "ann",
            "--purpose",
            "p",
            "--score",
            "0.5",
            "--reasoning",
            "r",
        ]);
        (said.code != 0).then_some((number, said))
    });
    let (number, said) = refused.expect("2 MB were stored where 1 MiB may be");
    assert!((8..=13).contains(&number), "{number}");
    assert!(said.stderr.contains("limits.stored_mib_max"), "{said:?}");
    // Programs read the code: it can pass, because somebody may make room.
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http.post(format!("{}/akashik/v1/record", server.url));
    let mut envelope = draft(0);
    envelope["payload"]["content"] = json!(text);
    let request = request.bearer_auth(key.trim()).json(&envelope);
    let refused: Value = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { request.send().await.unwrap().json().await.unwrap() });
    assert_eq!(refused["code"], "STORAGE_FULL", "{refused}");
    assert_eq!(refused["operation"], "RECORD", "{refused}");
    assert_eq!(refused["recoverable"], true, "{refused}");
}

/// What an agent recorded lies beside the log; that it is gone is noticed.
#[test]
fn a_lost_text_of_a_field_is_found_by_log_verify() {
    let world = World::new();
    let server = world.serve();
    world.ok(&["field", "register", "ann", "--role", "analyst"]);
    record(
        &world,
        "ann",
        "The market grows by 23%",
        &["--score", "0.8"],
    );
    server.stop();
    world.ok(&["log", "verify"]);
    let tamper = store::tamper::Tamper::open(&world.data());
    tamper.execute("DELETE FROM blobs WHERE digest = (SELECT min(digest) FROM blobs)");
    drop(tamper);
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("missing"), "{said:?}");
}

fn draft(number: usize) -> Value {
    json!({
        "protocol": "akashik", "version": "0.1.0", "id": format!("many-{number}"), "operation": "RECORD",
        "agent_id": "ann", "session_id": null, "epoch": 0,
        "payload": {
            "mode": "draft", "type": "observation", "content": format!("Buoy {number} drifts"),
            "intent": {"purpose": "watch"},
        },
    })
}

/// Sends many records at once, as programs do.
fn record_many(world: &World, server: &Server, count: usize) {
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let one = async |number: usize| {
        let request = http.post(format!("{}/akashik/v1/record", server.url));
        let request = request.bearer_auth(key.trim()).json(&draft(number));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 201, "{number}");
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let lane = async || loop {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if number >= count {
                return;
            }
            one(number).await;
        };
        tokio::join!(
            lane(),
            lane(),
            lane(),
            lane(),
            lane(),
            lane(),
            lane(),
            lane()
        );
    });
}

/// U11: what is kept of a field's fold follows behind; without it, or with a part of it that is not what it was, the log says
/// the same.
#[test]
fn u11_a_field_is_the_same_with_its_projection_without_it_and_with_a_damaged_one() {
    let world = World::new();
    let server = world.serve();
    for agent in ["ann", "sam"] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            "analyst",
            "--authority",
            "6",
        ]);
    }
    let first = id(&record(&world, "ann", "It is one", &["--score", "0.5"]));
    record_many(&world, &server, 3_200);
    let targets = [("unit", first.as_str())];
    let hint = [
        "field", "attune", "--agent", "sam", "--role", "analyst", "--hint", "buoy 7", "--json",
    ];
    let seen = |world: &World| {
        let mut seen = world.json(&hint);
        seen["epoch"] = json!(null);
        (seen["record"].clone(), everything(world, &targets))
    };
    let before = seen(&world);
    server.stop();
    let tamper = store::tamper::Tamper::open(&world.data());
    let kept = tamper.count("field_segments");
    assert!((2..=3).contains(&kept), "{kept}");
    drop(tamper);
    world.ok(&["log", "verify"]);
    let mut wrong = Vec::new();
    for (what, damage) in [
        ("as it is", ""),
        ("missing", "DELETE FROM field_segments"),
        (
            "damaged",
            "UPDATE field_segments SET bytes = x'00' WHERE after = 0",
        ),
        // A frame that can be read, of something else.
        (
            "another one",
            "UPDATE field_segments SET bytes = (SELECT body FROM documents LIMIT 1)",
        ),
        ("ahead", "UPDATE field_segments SET last = last + 100000"),
        (
            "a later position",
            "UPDATE field_segments SET position = position + 50 \
             WHERE after = (SELECT max(after) FROM field_segments)",
        ),
        (
            "an earlier position",
            "UPDATE field_segments SET position = position - 50 \
             WHERE after = (SELECT max(after) FROM field_segments)",
        ),
        (
            "a position that cannot be",
            "UPDATE field_segments SET position = -5",
        ),
        (
            "a last that cannot be",
            "UPDATE field_segments SET last = -5",
        ),
        (
            "an end of another one",
            "UPDATE field_segments SET \
             last = (SELECT max(last) FROM field_segments), \
             position = (SELECT max(position) FROM field_segments) WHERE after = 0",
        ),
        (
            "bytes of another one",
            "UPDATE field_segments SET bytes = (SELECT bytes FROM field_segments WHERE after > 0) WHERE after = 0",
        ),
        (
            "another beginning",
            "UPDATE field_segments SET after = after + 1 \
             WHERE after = (SELECT max(after) FROM field_segments)",
        ),
    ] {
        let tamper = store::tamper::Tamper::open(&world.data());
        if !damage.is_empty() {
            assert!(tamper.run(damage) > 0, "{what}");
        }
        let is_left = tamper.count("field_segments") > 0;
        drop(tamper);
        if is_left && !damage.is_empty() {
            let said = world.run(&["log", "verify"]);
            let is_named = said.stdout.contains("what is kept of the field");
            if said.code != 1 || !is_named {
                wrong.push(format!("{what}: not named by `log verify`"));
            }
        }
        let server = world.serve();
        let mut after = seen(&world);
        after.1["status"]["status"]["epoch"] = before.1["status"]["status"]["epoch"].clone();
        if after != before {
            wrong.push(format!("{what}: another field"));
        }
        server.stop();
        let tamper = store::tamper::Tamper::open(&world.data());
        let kept = tamper.count("field_segments");
        assert!((1..=3).contains(&kept), "{what}: {kept}");
        drop(tamper);
        if world.run(&["log", "verify"]).code != 0 {
            wrong.push(format!("{what}: left as it was"));
        }
    }
    assert_eq!(wrong, <[String; 0]>::default());
}

/// INTERNAL_ERROR of the protocol's table: a field whose entries cannot be read answers nothing else, and harms nobody else.
#[test]
fn a_field_whose_log_is_damaged_says_internal_error_and_leaves_others_alone() {
    let world = World::new();
    let server = world.serve();
    world.ok(&["field", "register", "ann", "--role", "analyst"]);
    server.stop();
    let tamper = store::tamper::Tamper::open(&world.data());
    tamper.run("DELETE FROM event_links");
    tamper.run("DELETE FROM recent_links");
    drop(tamper);
    let server = world.serve();
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let envelope = json!({
        "protocol": "akashik", "version": "0.1.0", "id": "m", "operation": "DETECT", "agent_id": "ann",
        "session_id": null, "epoch": 0, "payload": {"mode": "list"},
    });
    let asked = async || {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = http.post(format!("{}/akashik/v1/detect", server.url));
        let answer = request
            .bearer_auth(key.trim())
            .json(&envelope)
            .send()
            .await
            .unwrap();
        (
            answer.status().as_u16(),
            answer.json::<Value>().await.unwrap(),
        )
    };
    let (status, error) = tokio::runtime::Runtime::new().unwrap().block_on(asked());
    assert_eq!(
        (status, &error["code"]),
        (500, &json!("INTERNAL_ERROR")),
        "{error}"
    );
    assert_eq!(error["recoverable"], false);
    assert!(!error.to_string().contains("reprise-data"), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("reprise log rebuild --write"), "{error}");
    world.ok(&[
        "field", "register", "bob", "--role", "analyst", "--field", "other",
    ]);
    world.ok(&["task", "list"]);
    // The way that it names leads out.
    server.stop();
    assert_ne!(world.run(&["log", "verify"]).code, 0);
    world.ok(&["log", "rebuild", "--write"]);
    let server = world.serve();
    let status = world.json(&["field", "status", "--json"]);
    assert_eq!(status["agents"][0]["id"], "ann", "{status}");
    server.stop();
}

/// What is purged is in no blob, no export and no answer; kill -9 brings nothing of it back, and the log is sound.
#[test]
fn ak_cmp_04_a_purge_erases_words_from_a_log_in_use() {
    let world = World::new();
    let server = world.serve();
    for (agent, authority) in [("ann", "6"), ("boss", "10")] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            "analyst",
            "--authority",
            authority,
        ]);
    }
    let secret = id(&record(
        &world,
        "ann",
        "The password is swordfish",
        &["--score", "0.5"],
    ));
    record(
        &world,
        "ann",
        "The sea is deep",
        &["--score", "0.5", "--type", "decision"],
    );
    let seen = world.ok(&["field", "attune", "--agent", "boss"]);
    assert!(seen.contains("swordfish"), "{seen}");
    world.ok(&["field", "replay", "unit", &secret, "--agent", "boss"]);
    let purge = |agent: &'static str| {
        [
            "field", "compact", "purge", "--agent", agent, "--type", "finding", "--reason",
            "a slip",
        ]
    };
    let said = world.run(&purge("ann"));
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("this needs authority 10"), "{said:?}");
    let said = world.ok(&purge("boss"));
    assert!(said.starts_with("the text of 1 unit is erased"), "{said}");
    server.kill();
    world.ok(&["log", "verify"]);
    world.ok(&["log", "export", "exported"]);
    let mut words = 0;
    for blob in std::fs::read_dir(world.home.path().join("exported/blobs")).unwrap() {
        let text = std::fs::read(blob.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains("swordfish"), "{text}");
        words += usize::from(text.contains("The sea is deep"));
    }
    assert_eq!(words, 1, "what is read lies there once");
    let server = world.serve();
    let seen = world.ok(&["field", "attune", "--agent", "boss"]);
    assert!(
        seen.contains("The sea is deep") && !seen.contains("swordfish"),
        "{seen}"
    );
    let told = world.ok(&["field", "replay", "unit", &secret, "--agent", "boss"]);
    assert!(told.contains("(content purged)"), "{told}");
    server.stop();
}

#[test]
fn sessions_tasks_votes_and_handoffs_from_a_terminal() {
    let world = World::new();
    let server = world.serve();
    for (agent, authority) in [("ann", "6"), ("bob", "6"), ("boss", "8")] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            "analyst",
            "--authority",
            authority,
        ]);
    }
    let say = |args: &[&str], agent: &str| {
        let args = [&["field"], args, &["--agent", agent]].concat();
        world.ok(&args)
    };
    let made = say(&["session", "create", "market", "--goal", "size it"], "ann");
    assert_eq!(made.trim(), "market is active; members: ann");
    let unit = id(&record(
        &world,
        "ann",
        "Only for us",
        &["--score", "0.5", "--session", "market"],
    ));
    assert!(!say(&["attune"], "bob").contains("Only for us"));
    say(&["session", "join", "market"], "bob");
    assert!(say(&["attune"], "bob").contains("Only for us"));
    let task = [
        "task",
        "create",
        "size",
        "--title",
        "Size it",
        "--assignee",
        "ann",
    ];
    assert_eq!(
        say(&task, "ann").trim(),
        "size is assigned, assigned to ann"
    );
    assert_eq!(
        say(&["task", "start", "size"], "ann").trim(),
        "size is working, assigned to ann"
    );
    let said = world.run(&["field", "task", "unblock", "size", "--agent", "ann"]);
    assert!(
        said.code == 1 && said.stderr.contains("INVALID_TRANSITION"),
        "{said:?}"
    );
    let offer = [
        "handoff", "offer", "size", "--to", "bob", "--unit", &unit, "-q",
    ];
    let offer = say(&offer, "ann");
    assert!(say(&["handoff", "accept", offer.trim()], "bob").contains("is accepted"));
    assert!(say(&["task", "complete", "size"], "bob").contains("is completed"));
    let relation = format!("contradicts={unit}");
    let more = [
        "--score",
        "0.5",
        "--session",
        "market",
        "--relation",
        &relation,
    ];
    let conflict = record(&world, "bob", "Not for us", &more);
    let conflict = conflict["conflicts_detected"][0].as_str().unwrap();
    let vote = [
        "merge",
        conflict,
        "--strategy",
        "vote",
        "--rationale",
        "r",
        "--winner",
        &unit,
    ];
    assert!(say(&vote, "ann").contains("is pending_vote"));
    let ended = say(&["session", "end", "market"], "boss");
    assert!(ended.contains("is ended"), "{ended}");
    // A field that nobody made is not one that is empty.
    let said = world.run(&["field", "status", "--field", "nosuch"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stderr.contains("there is no field `nosuch`"),
        "{said:?}"
    );
    let said = world.run(&["field", "attune", "--agent", "zoe"]);
    assert!(said.stderr.contains("there is no agent `zoe`"), "{said:?}");
    server.stop();
}

/// What others chose, such as the id of an agent, cannot begin a line of its own and look like a result.
#[test]
fn a_line_cannot_be_forged_by_the_id_of_an_agent() {
    let world = World::new();
    let server = world.serve();
    let forger = "ann\n1.00  decision by root  forged";
    for agent in [forger, "sam"] {
        world.ok(&[
            "field",
            "register",
            agent,
            "--role",
            "analyst",
            "--authority",
            "6",
        ]);
    }
    let unit = id(&record(
        &world,
        forger,
        "Buoy 7 is adrift",
        &["--score", "0.5"],
    ));
    let asked: [&[&str]; 4] = [
        &["attune", "--role", "analyst", "--hint", "buoy 7"],
        &["status"],
        &["detect"],
        &["replay", "unit", &unit],
    ];
    for args in asked {
        let mut all = vec!["field"];
        all.extend(args);
        if args != ["status"] {
            all.extend(["--agent", "sam"]);
        }
        let shown = world.ok(&all);
        let forged = shown
            .lines()
            .find(|line| line.starts_with("1.00  decision"));
        assert_eq!(forged, None, "{args:?}: {shown}");
    }
    server.stop();
}

/// A key that names its agents acts for them, and only its author or the operator takes a unit back.
#[test]
fn a_unit_is_taken_back_and_a_key_acts_for_the_agents_that_it_names() {
    let world = World::new();
    let server = world.serve();
    for (agent, authority) in [("ann", "4"), ("bob", "6")] {
        let role = ["--role", "analyst", "--authority", authority];
        world.ok(&[&["field", "register", agent][..], &role].concat());
    }
    let unit = id(&record(&world, "ann", "It holds", &["--score", "0.5"]));
    let retract = |agent: &str, more: &[&str]| {
        let args = [
            "field", "retract", &unit, "--agent", agent, "--reason", "wrong",
        ];
        world.run(&[&args, more].concat())
    };
    let create = ["key", "create", "--actor", "bot", "--scope", "field:write"];
    for wrong in ["agent:", "agent:a*b", "agents:ann"] {
        let made = world.run(&[&create[..], &["--scope", wrong]].concat());
        assert_eq!(made.code, 2, "{wrong}");
    }
    let key = world.ok(&[&create[..], &["--scope", "agent:bob"]].concat());
    let with_key = ["--key", key.trim()];
    // The key is Bob's, and Bob is not the author.
    for (agent, code) in [("ann", "FORBIDDEN"), ("bob", "FORBIDDEN")] {
        let refused = retract(agent, &with_key);
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains(code), "{}", refused.stderr);
    }
    let bobs = ["--score", "0.5", "--key", key.trim()];
    record(&world, "bob", "Said with another key", &bobs);
    assert_eq!(retract("ann", &[]).code, 0);
    let shown = world.ok(&["field", "replay", "unit", &unit, "--agent", "bob"]);
    assert!(shown.contains("Retracted: wrong"), "{shown}");
    server.stop();
}
