//! Content of artifacts, in and out, against the real program: how much memory it takes and what it leaves on the disk.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testing::process::Server;

use crate::world::World;

const MIB: usize = 1024 * 1024;

/// A client that speaks HTTP/1.1 on sockets of its own, so that it can stop in the middle.
struct Client {
    address: String,
    key: String,
}

impl Client {
    fn new(world: &World, server: &Server) -> Self {
        let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
        Self {
            address: server.address(),
            key: key.trim().to_owned(),
        }
    }

    /// Sends the head of a request and returns the connection.
    fn begin(&self, method: &str, path: &str, length: usize) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Harn-Agents-Protocol-Version: agents-protocol-2026-04-25\r\nContent-Length: {length}\r\n\r\n",
            self.key
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    }

    fn call(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut socket = self.begin(method, path, body.len());
        // Who refuses a body does not read it to its end.
        let _ = socket.write_all(body);
        answer(&mut socket)
    }

    /// Registers an artifact and returns its id.
    fn artifact(&self, sha256: Option<&str>) -> String {
        let body = json!({"kind": "dataset", "mime_type": "a/b", "visibility": "public", "sha256": sha256});
        let (status, body) = self.call("POST", "/v1/artifacts", body.to_string().as_bytes());
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
        let made: Value = serde_json::from_slice(&body).unwrap();
        made["id"].as_str().unwrap().to_owned()
    }
}

/// Reads an answer to its end.
fn answer(socket: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut all = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    // One that was refused in the middle ends with a reset, behind its answer.
    while let Ok(count @ 1..) = socket.read(&mut piece) {
        all.extend_from_slice(&piece[..count]);
    }
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&all[9..12]).unwrap().parse().unwrap();
    (status, all[end + 4..].to_vec())
}

/// Bytes that do not repeat, from a number.
fn noise(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let words = (0..length / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

/// The memory that a process has in KiB, now or at most.
fn memory_kib(server: &Server, line: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let found = status.lines().find(|known| known.starts_with(line));
    let number = found.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.map(|entry| {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => size_of(&entry.path()),
            false => entry.metadata().unwrap().len(),
        }
    });
    sizes.sum()
}

/// U25: what is transferred is not in memory: sixteen uploads at once, then downloads that nobody reads.
#[test]
fn u25_parallel_uploads_and_stalled_downloads_take_little_memory() {
    // More than is allowed together, so that whoever keeps bodies in memory is found out.
    let length = std::env::var("REPRISE_TEST_UPLOAD_MIB").map_or(12, |mib| mib.parse().unwrap());
    let length = length * MIB;
    let world = World::new();
    let server = world.serve();
    let client = Client::new(&world, &server);
    let ids: Vec<String> = (0..16).map(|_| client.artifact(None)).collect();
    let idle = memory_kib(&server, "VmRSS");
    std::thread::scope(|scope| {
        for (number, id) in ids.iter().enumerate() {
            let client = &client;
            scope.spawn(move || {
                let path = format!("/v1/artifacts/{id}/content");
                let (status, body) = client.call("PUT", &path, &noise(number as u64, length));
                assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
            });
        }
    });
    let uploads = memory_kib(&server, "VmHWM") - idle;
    let stalled: Vec<TcpStream> = (0..24)
        .map(|number| {
            let path = format!("/v1/artifacts/{}/content", ids[number % 16]);
            client.begin("GET", &path, 0)
        })
        .collect();
    // Each has begun to answer and waits for its reader.
    for mut socket in &stalled {
        let mut first = [0; 12];
        socket.read_exact(&mut first).unwrap();
        assert_eq!(&first[9..12], b"200");
    }
    std::thread::sleep(Duration::from_millis(300));
    let downloads = memory_kib(&server, "VmHWM") - idle;
    println!(
        "{length} bytes each: uploads {uploads} KiB, with downloads {downloads} KiB above {idle} KiB"
    );
    assert!(downloads < 64 * 1024, "{uploads} KiB, {downloads} KiB");
    drop(stalled);
    let (status, read) = client.call("GET", &format!("/v1/artifacts/{}/content", ids[3]), b"");
    assert_eq!((status, read.len()), (200, length));
    assert!(read == noise(3, length), "other bytes came back");
    assert_eq!(size_of(&world.data().join("blobs/incoming")), 0);
}

/// F14: what is refused, given up or cut off by a crash leaves nothing on the disk.
#[test]
fn f14_uploads_that_come_to_nothing_leave_nothing_behind() {
    let world = World::new();
    let server = world.serve();
    let client = Client::new(&world, &server);
    let blobs = world.data().join("blobs");
    let before = size_of(&blobs);
    let stated = client.artifact(Some(&"0".repeat(64)));
    let path = format!("/v1/artifacts/{stated}/content");
    let (status, _) = client.call("PUT", &path, &noise(1, 5 * MIB));
    assert_eq!(status, 409);
    assert_eq!(size_of(&blobs), before, "refused");

    let id = client.artifact(None);
    let path = format!("/v1/artifacts/{id}/content");
    let half = || {
        let mut socket = client.begin("PUT", &path, 5 * MIB);
        socket.write_all(&noise(2, 3 * MIB)).unwrap();
        let began = Instant::now();
        while size_of(&blobs) <= before {
            assert!(began.elapsed() < Duration::from_secs(20), "nothing arrives");
            std::thread::sleep(Duration::from_millis(10));
        }
        socket
    };
    drop(half());
    let began = Instant::now();
    while size_of(&blobs) > before {
        assert!(began.elapsed() < Duration::from_secs(20), "given up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let socket = half();
    server.kill();
    drop(socket);
    assert!(size_of(&blobs) > before, "the crash left something");
    let server = world.serve();
    assert_eq!(size_of(&blobs), before, "cleared by the start");
    drop(server);
    world.ok(&["log", "verify"]);
}

/// Content that was damaged on the disk is not passed off as what was stored: the answer ends before its length.
#[test]
fn damaged_content_is_never_sent_whole() {
    let world = World::new();
    let server = world.serve();
    let client = Client::new(&world, &server);
    let id = client.artifact(None);
    let path = format!("/v1/artifacts/{id}/content");
    let content = noise(5, 2 * MIB);
    assert_eq!(client.call("PUT", &path, &content).0, 200);
    let mut files = Vec::new();
    for shelf in std::fs::read_dir(world.data().join("blobs")).unwrap() {
        let entries = std::fs::read_dir(shelf.unwrap().path()).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    assert_eq!(files.len(), 1);
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[MIB] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    let (status, read) = client.call("GET", &path, b"");
    assert_eq!(status, 200, "its beginning was sound");
    assert!(read.len() < content.len(), "{} bytes", read.len());
}

/// U25: imports are whole in memory while they are checked, and so few at once that it is bounded.
#[test]
fn u25_parallel_imports_take_turns() {
    let there = World::new();
    let server = there.serve();
    let client = Client::new(&there, &server);
    let task = there.submit("ask");
    let body =
        json!({"kind": "dataset", "mime_type": "a/b", "visibility": "public", "task_id": task});
    let (status, made) = client.call("POST", "/v1/artifacts", body.to_string().as_bytes());
    assert_eq!(status, 201, "{}", String::from_utf8_lossy(&made));
    let made: Value = serde_json::from_slice(&made).unwrap();
    let path = format!("/v1/artifacts/{}/content", made["id"].as_str().unwrap());
    assert_eq!(client.call("PUT", &path, &noise(1, 12 * MIB)).0, 200);
    there.ok(&["task", "answer", &task, "done"]);
    there.ok(&["task", "watch", &task]);
    let (status, bundle) = client.call("GET", &format!("/v1/tasks/{task}/bundle"), b"");
    assert_eq!(status, 200);
    drop(server);

    let here = World::new();
    let mut command = here.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env(
        "REPRISE_LIMITS_LARGE_BODIES_BYTES_MAX",
        (32 * MIB).to_string(),
    );
    let server = Server::start(&mut command).unwrap();
    let client = Client::new(&here, &server);
    let idle = memory_kib(&server, "VmRSS");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let import = || client.call("POST", "/v1/tasks/import", &bundle).0;
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(import)).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect()
    });
    let used = memory_kib(&server, "VmHWM") - idle;
    let length = bundle.len() / 1024;
    println!("{length} KiB, 8 at once: {used} KiB above {idle} KiB, {statuses:?}");
    assert!(statuses.contains(&201), "{statuses:?}");
    assert!(
        statuses
            .iter()
            .all(|status| [200, 201, 429].contains(status)),
        "{statuses:?}"
    );
    assert!(used < 6 * length, "{used} KiB for bundles of {length} KiB");
}

/// U3, AP-ART-03: where the output of a tool was too long for its event stands what to fetch. Streams carry it whole, replays
/// and comparisons are about the output itself.
#[test]
fn u3_a_long_output_is_referred_to_in_its_place() {
    let world = World::new();
    let home = world.home.path();
    std::fs::create_dir(home.join("files")).unwrap();
    let config = "[[providers]]\nid = 'script'\nkind = 'scripted'\nfile = 'answers.yaml'\n\
        [[tools]]\nname = 'print'\nfolder = 'files'\nread_only = true\n\
        argv = ['sh', '-c', 'head -c 50000 /dev/zero | tr \"\\\\0\" x']\n";
    let answers = "answers:\n  - { when: { key: 'llm:main:1' }, tool_calls: [{ name: print }] }\n  - { answer: done }\n";
    let persona = "name: printer\nversion: '1'\nentry_workflow: agent\ndescription: d\nautonomy_tier: act_auto\n\
        receipt_policy: required\nmodel: { provider: script }\ntools: [print]\n";
    for (name, text) in [
        ("reprise.toml", config),
        ("answers.yaml", answers),
        ("printer.yaml", persona),
    ] {
        std::fs::write(home.join(name), text).unwrap();
    }
    let server = world.serve_with(&["--listen", "127.0.0.1:0", "--config", "reprise.toml"]);
    world.ok(&["persona", "apply", "printer.yaml"]);
    let run = || {
        let task = world.ok(&["task", "submit", "Print", "--persona", "printer", "-q"]);
        world.ok(&["task", "watch", task.trim()]);
        task.trim().to_owned()
    };
    let task = run();
    let events = world.json(&["event", "list", "--task", &task, "--oldest", "--json"]);
    let mut told = events.as_array().unwrap().iter();
    let told = told.find(|event| event["event"] == "agent.tool_result");
    let told = told.unwrap_or_else(|| panic!("{events}"));
    let id = told["id"].as_str().unwrap();
    assert_eq!(
        told["payload"]["output"],
        json!({"type": "artifact_ref", "artifact_id": id})
    );
    let output = world.json(&["artifact", "get", id]);
    assert_eq!(output["stdout"], "x".repeat(50_000));
    let digest = canon::sha256(&canon::jcs(&output));
    assert_eq!(
        told["payload"]["blobs"]["output"]["sha256"],
        digest.to_string()
    );
    let client = Client::new(&world, &server);
    for (artifact, kind) in [
        (id.to_owned(), "other"),
        (format!("event_log_{task}"), "log"),
    ] {
        let (status, body) = client.call("GET", &format!("/v1/artifacts/{artifact}"), b"");
        let shown: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &shown["kind"]), (200, &json!(kind)), "{shown}");
        assert_eq!(shown["task_id"], task.as_str());
        let path = format!("/v1/artifacts/{artifact}/content");
        let (_, content) = client.call("GET", &path, b"");
        assert_eq!(shown["sha256"], canon::sha256(&content).hex());
    }

    // In a stream the output is in its place, and the stored form can be had from the frame.
    let frames = world.ok(&["task", "watch", &task, "--json"]);
    let frames = frames
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut frame: Value = frames
        .into_iter()
        .find(|frame: &Value| frame["id"] == id)
        .unwrap();
    assert_eq!(frame["payload"]["output"], output);
    assert_eq!(frame["expanded"], json!(["output"]));
    assert_eq!(frame["referenced"], json!(["output"]));
    frame["payload"]["output"] = json!({"type": "artifact_ref", "artifact_id": id});
    for mark in ["expanded", "referenced", "replay", "replayed"] {
        frame.as_object_mut().unwrap().remove(mark);
    }
    assert_eq!(frame, *told);

    // Everything that reads a run reads the output and not the reference.
    let shown = world.ok(&["task", "show", &task]);
    assert!(shown.contains(&"x".repeat(50_000)), "the result is told");
    let replayed = world.ok(&["replay", &task]);
    assert!(replayed.contains("equal to the source"), "{replayed}");
    let said = world.run(&["diff", &task, &run()]);
    assert_eq!(said.code, 0, "{said:?}");
    world.ok(&["task", "export", &task, "run.bundle"]);
    world.ok(&["replay", "--bundle", "run.bundle"]);
    world.ok(&["log", "verify"]);
    world.ok(&["log", "export", "evidence"]);
    let (_, keys) = client.call("GET", "/.well-known/jwks.json", b"");
    std::fs::write(home.join("jwks.json"), keys).unwrap();
    world.ok(&[
        "receipt",
        "verify",
        "--bundle",
        "evidence",
        "--keys",
        "jwks.json",
    ]);
}

/// A caller that is bound to a Workspace of its own.
fn tenant(world: &World, server: &Server, name: &str) -> (Client, String) {
    let admin = Client::new(world, server);
    let body = json!({"name": name, "root": "/"});
    let (status, made) = admin.call("POST", "/v1/workspaces", body.to_string().as_bytes());
    assert_eq!(status, 201);
    let made: Value = serde_json::from_slice(&made).unwrap();
    let workspace = made["id"].as_str().unwrap().to_owned();
    let key = world.ok(&["key", "create", "--actor", name, "--workspace", &workspace]);
    let client = Client {
        key: key.trim().to_owned(),
        ..admin
    };
    (client, workspace)
}

/// Registers an artifact of a Workspace and uploads content; returns the last answer.
fn store_some(client: &Client, workspace: &str, number: u64, length: usize) -> (u16, Value) {
    let body = json!({"kind": "dataset", "mime_type": "a/b", "visibility": "public",
        "workspace_id": workspace});
    let (status, made) = client.call("POST", "/v1/artifacts", body.to_string().as_bytes());
    let made: Value = serde_json::from_slice(&made).unwrap();
    if status != 201 {
        return (status, made);
    }
    let path = format!("/v1/artifacts/{}/content", made["id"].as_str().unwrap());
    let (status, answer) = client.call("PUT", &path, &noise(number, length));
    (status, serde_json::from_slice(&answer).unwrap())
}

/// F14, U25: what is stored is bounded and shared out: one Workspace may have all of it and keeps no other out, neither after
/// a crash nor after a stop; what was pruned counts no more.
#[test]
fn f14_what_workspaces_store_is_shared_out() {
    let world = World::new();
    let start = || {
        let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("REPRISE_LIMITS_STORED_MIB_MAX", "16");
        Server::start(&mut command).unwrap()
    };
    let server = start();
    let (greedy, hers) = tenant(&world, &server, "greedy");
    let (modest, his) = tenant(&world, &server, "modest");
    for number in 0..3 {
        let (status, answer) = store_some(&greedy, &hers, number, 5 * MIB);
        assert_eq!(status, 200, "{answer}");
    }
    let refused = |client: &Client, workspace: &str| {
        let (status, answer) = store_some(client, workspace, 9, 5 * MIB);
        assert_eq!(status, 429, "{answer}");
        let details = &answer["error"]["details"];
        assert_eq!(details["limit"], "stored_mib_max", "{answer}");
        assert_eq!(details["setting"], "limits.stored_mib_max", "{answer}");
        assert_eq!(details["max"], 16, "{answer}");
    };
    refused(&greedy, &hers);
    // Within the quarter that is kept for those below their share.
    let (status, answer) = store_some(&modest, &his, 20, 3 * MIB);
    assert_eq!(status, 200, "{answer}");
    // Above the limit she stores nothing any more, whatever it is, and can still end what runs.
    let session = json!({"workspace_id": hers}).to_string();
    assert_eq!(
        greedy.call("POST", "/v1/sessions", session.as_bytes()).0,
        429
    );
    // A crash forgets nothing of it, nor does a stop.
    let address = server.address();
    server.kill();
    let again = |server: &Server| {
        let of = |client: &Client| Client {
            address: server.address(),
            key: client.key.clone(),
        };
        (of(&greedy), of(&modest))
    };
    let server = start();
    assert_ne!(address, "");
    let (she, he) = again(&server);
    refused(&she, &hers);
    let session = json!({"workspace_id": his}).to_string();
    assert_eq!(he.call("POST", "/v1/sessions", session.as_bytes()).0, 201);
    server.stop();
    world.ok(&["log", "verify"]);
    let server = start();
    refused(&again(&server).0, &hers);
    server.stop();
    // The count is held to the events.
    let change = |sql: &str| store::tamper::Tamper::open(&world.data()).execute(sql);
    change("UPDATE usage SET bytes = 1 WHERE workspace IN (SELECT max(workspace) FROM usage)");
    let said = world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout.contains("what each workspace has stored"),
        "{said:?}"
    );
}

/// F14: requests that come together are held to the limit together: what each of them brings is counted where they stand in a
/// row, not only before they are taken on.
#[test]
fn f14_parallel_requests_do_not_pass_the_limit_together() {
    const LIMIT: usize = 4 * MIB;
    let world = World::new();
    let mut command = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("REPRISE_LIMITS_STORED_MIB_MAX", "4");
    let server = Server::start(&mut command).unwrap();
    let (greedy, hers) = tenant(&world, &server, "greedy");
    let call = |path: &str, body: Value| {
        let (status, made) = greedy.call("POST", path, body.to_string().as_bytes());
        assert_eq!(status, 201);
        let made: Value = serde_json::from_slice(&made).unwrap();
        made["id"].as_str().unwrap().to_owned()
    };
    let session = call("/v1/sessions", json!({"workspace_id": hers}));
    let messages = format!("/v1/sessions/{session}/messages");
    let artifact = json!({"kind": "dataset", "mime_type": "a/b", "visibility": "public",
        "workspace_id": hers});
    let artifacts: Vec<String> = (0..12)
        .map(|_| call("/v1/artifacts", artifact.clone()))
        .collect();
    // Half of them messages, half of them content: together five times the limit.
    let text = "x".repeat(MIB / 2);
    let message = json!({"role": "user", "parts": [{"type": "text", "text": text}]}).to_string();
    let barrier = std::sync::Barrier::new(2 * artifacts.len());
    let send = |method: &str, path: &str, body: &[u8]| {
        barrier.wait();
        let (status, answer) = greedy.call(method, path, body);
        if status == 429 {
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(
                answer["error"]["details"]["limit"], "stored_mib_max",
                "{answer}"
            );
        }
        (status, body.len())
    };
    let taken: Vec<(u16, usize)> = std::thread::scope(|scope| {
        let (send, messages, message) = (&send, &messages, &message);
        let mut threads = Vec::new();
        for (id, number) in artifacts.iter().zip(0..) {
            threads.push(scope.spawn(move || send("POST", messages, message.as_bytes())));
            threads.push(scope.spawn(move || {
                let path = format!("/v1/artifacts/{id}/content");
                send("PUT", &path, &noise(number, MIB))
            }));
        }
        let answers = threads.into_iter().map(|thread| thread.join().unwrap());
        answers.collect()
    });
    let refused = taken.iter().filter(|(status, _)| *status == 429).count();
    assert!(refused > 0, "{taken:?}");
    let stored: usize = taken
        .iter()
        .filter(|(status, _)| *status < 300)
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(stored <= LIMIT, "{stored} of {LIMIT}: {taken:?}");
    // What was refused left nothing behind, and room that was kept for it is free again.
    let blobs = |folder: std::path::PathBuf| -> u64 {
        let mut bytes = 0;
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => bytes += entry.metadata().unwrap().len(),
                }
            }
        }
        bytes
    };
    let on_disk = blobs(world.data().join("blobs"));
    assert!(on_disk <= LIMIT as u64, "{on_disk}");
    let small = json!({"role": "user", "parts": [{"type": "text", "text": "s"}]}).to_string();
    if stored + 64 * 1024 < LIMIT {
        assert_eq!(greedy.call("POST", &messages, small.as_bytes()).0, 201);
    }
    server.stop();
    world.ok(&["log", "verify"]);
}
