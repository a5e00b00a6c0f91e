//! Servers that are not ours: newer words, lost answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::world::World;

/// One request as it came in: its first line, and the value of `Idempotency-Key`.
struct Asked {
    line: String,
    key: Option<String>,
    version: Option<String>,
}

/// Answers each connection's request by a script; none closes the connection without an answer.
fn stranger(mut script: Vec<Option<(u16, Value)>>) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        while !script.is_empty() {
            let (stream, _) = listener.accept().unwrap();
            let answer = script.remove(0);
            sender.send(read(&stream)).unwrap();
            let Some((status, body)) = answer else {
                continue;
            };
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let mut stream = stream;
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    (url, asked)
}

fn read(stream: &TcpStream) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut asked = Asked {
        line: String::new(),
        key: None,
        version: None,
    };
    reader.read_line(&mut asked.line).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "idempotency-key" => asked.key = Some(value.to_owned()),
            "harn-agents-protocol-version" => asked.version = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    asked
}

fn task(status: &str) -> Value {
    json!({"object": "task", "id": "task_1", "session_id": "session_1", "status": status, "metadata": {},
        "input": {}, "created_at": "2026-11-15T09:56:39Z", "added_later": {"x": [1]}})
}

#[test]
fn ap_ver_08_an_unknown_status_is_shown_and_is_no_success() {
    let world = World::new();
    let (url, _asked) = stranger(vec![Some((200, task("ARCHIVED")))]);
    let said = world.run(&["task", "get", "task_1", "--url", &url, "--key", "rpk_x"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stdout.contains("unknown: ARCHIVED"), "{said:?}");
}

#[test]
fn ap_idem_01_every_write_carries_a_key_and_a_lost_answer_is_asked_for_again_under_it() {
    let world = World::new();
    let session = json!({"object": "session", "id": "session_1"});
    let (url, asked) = stranger(vec![
        None,
        Some((201, session)),
        Some((
            503,
            json!({"error": {"code": "service_unavailable", "message": "later"}}),
        )),
        Some((202, task("COMPLETED"))),
    ]);
    let said = world.run(&["task", "submit", "Hello", "--url", &url, "--key", "rpk_x"]);
    assert_eq!(said.code, 0, "{said:?}");
    let asked: Vec<Asked> = asked.iter().take(4).collect();
    let lines: Vec<&str> = asked.iter().map(|asked| asked.line.trim()).collect();
    assert_eq!(lines[0], "POST /v1/sessions HTTP/1.1");
    assert_eq!(lines[1], lines[0]);
    assert_eq!(lines[2], "POST /v1/sessions/session_1/tasks HTTP/1.1");
    assert_eq!(lines[3], lines[2]);
    for request in &asked {
        assert!(request.key.is_some());
        assert_eq!(request.key, asked[0].key);
        assert_eq!(
            request.version.as_deref(),
            Some("agents-protocol-2026-04-25")
        );
    }
}

#[test]
fn words_of_a_server_do_not_drive_the_terminal() {
    let world = World::new();
    let error = json!({"error": {"code": "invalid_request", "message": "line\nbreak \u{1b}[2J"}});
    let (url, _asked) = stranger(vec![Some((400, error))]);
    let said = world.run(&["task", "get", "task_1", "--url", &url, "--key", "rpk_x"]);
    assert_eq!(said.stderr.lines().count(), 2, "{said:?}");
    assert!(!said.stderr.contains('\u{1b}'), "{said:?}");
}

#[test]
fn ap_card_06_no_command_asks_for_a_card_or_follows_one() {
    let world = World::new();
    let session = json!({"object": "session", "id": "session_1"});
    let (url, asked) = stranger(vec![
        Some((201, session)),
        Some((202, task("WORKING"))),
        Some((200, task("WORKING"))),
        Some((200, json!({"object": "list", "data": []}))),
        Some((200, task("CANCELED"))),
    ]);
    for command in [
        &["submit", "Hello"][..],
        &["get", "task_1"],
        &["list"],
        &["cancel", "task_1"],
    ] {
        let to = ["--url", &url, "--key", "rpk_x"];
        world.run(&[&["task"], command, &to].concat());
    }
    let lines: Vec<String> = asked.iter().take(5).map(|asked| asked.line).collect();
    assert_eq!(lines.len(), 5);
    assert!(!lines.iter().any(|line| line.contains("card")), "{lines:?}");
}
