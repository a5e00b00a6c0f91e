//! U27: what goes wrong before a request reaches the router still has the protocol's error.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{KEY, Server, VERSION, check_error, config};

/// Sends bytes and reads until the other end is closed, or for a while.
async fn exchange(server: &Server, bytes: &[u8], wait: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // A server that refuses early does not read the rest.
    let _ = stream.write_all(bytes).await;
    let mut said = Vec::new();
    let _ = tokio::time::timeout(wait, stream.read_to_end(&mut said)).await;
    said
}

/// Splits answers; each must be whole.
fn answers(mut said: &[u8]) -> Vec<(u16, String, Vec<u8>)> {
    let mut all = Vec::new();
    while !said.is_empty() {
        let end = said
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(said[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.eq_ignore_ascii_case("content-length")).then(|| value.trim().parse().unwrap())
        });
        let length: usize = length.unwrap_or_default();
        all.push((status, head, said[end + 4..][..length].to_vec()));
        said = &said[end + 4 + length..];
    }
    all
}

fn check(said: &[u8], status: u16, reason: &str) {
    let all = answers(said);
    let (got, head, body) = all.last().unwrap_or_else(|| panic!("{status}: no answer"));
    assert_eq!(*got, status, "{head}");
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|_| panic!("{head}"));
    assert_eq!(body["error"]["details"]["reason"], reason, "{body}");
    let id = body["error"]["request_id"].as_str().unwrap();
    assert!(head.contains(&format!("x-request-id: {id}")), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    check_error(status, &body);
}

fn get(path: &str, more: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").into_bytes()
}

#[tokio::test]
async fn u27_heads_that_cannot_be_read_have_the_errors_shape() {
    let server = Server::start().await;
    let long = "a".repeat(70_000);
    let many: String = (0..150)
        .map(|number| format!("X-{number}: y\r\n"))
        .collect();
    let large = format!("X-Large: {}\r\n", "b".repeat(200_000));
    let mut raw = get("/v1", "");
    raw[6] = 0xff;
    for (bytes, status, reason) in [
        (get(&format!("/{long}"), ""), 414, "uri_too_long"),
        (get(&format!("/v1?x={long}"), ""), 414, "uri_too_long"),
        (get("/v1", &many), 431, "headers_too_large"),
        (get("/v1", &large), 431, "headers_too_large"),
        (get("/v1", "X: a\0b\r\n"), 400, "malformed_head"),
        (get("/v1", "X: a\r\n folded\r\n"), 400, "malformed_head"),
        (get("/v1", "No colon\r\n"), 400, "malformed_head"),
        (
            get("/v1", "Content-Length: 1\r\nContent-Length: 2\r\n"),
            400,
            "malformed_head",
        ),
        (get("/v1", "Content-Length: -1\r\n"), 400, "malformed_head"),
        (raw, 400, "malformed_head"),
        (b"GET\r\n\r\n".to_vec(), 400, "malformed_head"),
        (
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n".to_vec(),
            400,
            "malformed_head",
        ),
        (
            b"GET / HTTP/1.2\r\nHost: localhost\r\n\r\n".to_vec(),
            505,
            "http_version",
        ),
        (
            b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n".to_vec(),
            505,
            "http_version",
        ),
    ] {
        let said = exchange(&server, &bytes, Duration::from_secs(5)).await;
        check(&said, status, reason);
        // And behind a good request on the same connection.
        let mut second = get("/healthz", "");
        second.extend_from_slice(&bytes);
        let said = exchange(&server, &second, Duration::from_secs(5)).await;
        let all = answers(&said);
        assert_eq!(all.first().unwrap().0, 200);
        assert_eq!(all.len(), 2, "{status}");
        // Sent together with the answer before it, it may stay bare: see docs.
        assert!(all[1].0 >= 400);
    }
    let (_, metrics) = (
        0,
        reqwest::get(format!("{}/metrics", server.url))
            .await
            .unwrap(),
    );
    assert!(metrics.text().await.unwrap().contains("unreadable"));
}

#[tokio::test]
async fn u27_a_second_head_that_cannot_be_read_is_answered_when_the_first_answer_is_out() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(&get("/healthz", "")).await.unwrap();
        let mut buffer = vec![0; 4_096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
    }
    stream
        .write_all(b"GET / HTTP/1.1\r\nno\r\n\r\n")
        .await
        .unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    check(&said, 400, "malformed_head");
}

#[tokio::test]
async fn u27_a_head_that_does_not_end_is_answered_before_it_is_cut() {
    let mut config = config();
    config.header_read_timeout = Duration::from_millis(600);
    let server = Server::start_with(config).await;
    for start in [
        "GET /v1 HTTP/1.1\r\nHost: loc",
        "GET /v",
        "POST /v1/tasks HTTP/1.1\r\n",
    ] {
        let began = Instant::now();
        let said = exchange(&server, start.as_bytes(), Duration::from_secs(10)).await;
        check(&said, 408, "head_timeout");
        let took = began.elapsed();
        assert!(
            took > Duration::from_millis(400) && took < Duration::from_secs(5),
            "{took:?}"
        );
    }
    // Nothing was asked: nothing is answered.
    for start in ["", "PRI * HT"] {
        let said = exchange(&server, start.as_bytes(), Duration::from_secs(10)).await;
        assert_eq!(said, b"", "{start}");
    }
}

/// What an answer holds is never taken for an answer of the library.
#[tokio::test]
async fn u27_content_that_looks_like_a_refusal_arrives_as_it_is() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let look = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for content in [
        look.to_owned(),
        look.repeat(1_000),
        format!("{}{look}", "x".repeat(65_536)),
    ] {
        let body = serde_json::json!({"kind": "file", "mime_type": "a/b", "visibility": "public", "session_id": session});
        let (_, artifact) = api.post("/v1/artifacts", body).await;
        let path = format!("/v1/artifacts/{}/content", artifact["id"].as_str().unwrap());
        let put = api
            .request("PUT", &path)
            .body(content.clone())
            .send()
            .await
            .unwrap();
        assert_eq!(put.status(), 200);
        let got = api.request("GET", &path).send().await.unwrap();
        assert_eq!(got.text().await.unwrap(), content);
    }
}

#[tokio::test]
async fn encoded_bodies_and_other_types_are_refused_by_name() {
    let server = Server::start().await;
    let api = server.client();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)], body: &'static str| {
        let mut request = api.request(method, path).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };
    for (headers, status, reason) in [
        ([("content-encoding", "gzip")], 415, "content_encoding"),
        (
            [("content-encoding", "identity, zstd")],
            415,
            "content_encoding",
        ),
        ([("content-type", "application/xml")], 415, "content_type"),
        (
            [("content-type", "multipart/form-data; boundary=x")],
            415,
            "content_type",
        ),
        (
            [("content-type", "application/json; charset=utf-16")],
            415,
            "content_type",
        ),
    ] {
        let (got, body) = send("POST", "/v1/sessions", &headers, "{}").await;
        assert_eq!(
            (got, &body["error"]["details"]["reason"]),
            (status, &Value::from(reason)),
            "{body}"
        );
        check_error(status, &body);
    }
    for kind in [
        "application/json",
        "application/json; charset=UTF-8",
        "application/vnd.x+json",
        "application/x-www-form-urlencoded",
        "text/plain;charset=utf-8",
    ] {
        let (got, body) = send(
            "POST",
            "/v1/sessions",
            &[("content-type", kind), ("content-encoding", "identity")],
            "{}",
        )
        .await;
        assert_eq!(got, 201, "{kind}: {body}");
    }
    // The bytes of an artifact would not be those that were meant.
    let (got, _) = send(
        "PUT",
        "/v1/artifacts/artifact_x/content",
        &[("content-encoding", "gzip")],
        "x",
    )
    .await;
    assert!([404, 415].contains(&got), "{got}");
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
         Harn-Agents-Protocol-Version: {VERSION}\r\nConnection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
    );
    check(
        &exchange(&server, head.as_bytes(), Duration::from_secs(5)).await,
        501,
        "transfer_encoding",
    );
}

/// Whatever arrives: an answer with the errors' shape, or an end. Heads, addresses, queries, cursors and headers.
#[tokio::test]
async fn damaged_requests_get_a_proper_answer_or_none() {
    let server = Server::start().await;
    let authorized = format!(
        "Authorization: Bearer {KEY}\r\nHarn-Agents-Protocol-Version: {VERSION}\r\nConnection: close\r\n"
    );
    let good: Vec<Vec<u8>> = vec![
        get("/v1/tasks?limit=5&cursor=c1_0000000000000001&workspace_id=workspace_local&status=WORKING", &authorized),
        get("/v1/events?after_event_id=event_testlog1_0000000000000001&limit=2&session_id=session_1", &authorized),
        get("/v1/tasks/task_1/stream?after=event_1", &format!("{authorized}Last-Event-ID: event_testlog1_0000000000000001\r\nAccept: text/event-stream\r\n")),
        get("/v1/receipts/receipt_1?view=wire", &format!("{authorized}Accept: application/vnd.harn.receipt+json\r\nRange: bytes=0-5\r\nIf-None-Match: \"x\"\r\n")),
        get("/tlog/tile/0/x001/234.p/5", "Connection: close\r\n"),
        get("/v1/receipt-batches/consistency?from=1&to=2", &authorized),
        format!("POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\n{authorized}Idempotency-Key: once\r\nPrefer: respond-async\r\nContent-Length: 15\r\n\r\n{{\"metadata\":{{}}}}").into_bytes(),
        format!("POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\n{authorized}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n").into_bytes(),
    ];
    let mut damage = Damage(0x5eed);
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for number in 0..600 {
        let bytes = damage.apply(&good[number % good.len()]);
        let said = exchange(&server, &bytes, Duration::from_millis(400)).await;
        if !said.starts_with(b"HTTP/1.1 ") {
            assert!(
                said.is_empty() || !bytes.starts_with(b"GET"),
                "{}",
                said.escape_ascii()
            );
            continue;
        }
        let end = said.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else {
            panic!("half a head: {}", said.escape_ascii());
        };
        let head = String::from_utf8_lossy(&said[..end]).to_lowercase();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        *statuses.entry(status).or_default() += 1;
        assert!(
            status < 500 || [501, 505].contains(&status),
            "{head}: {}",
            bytes.escape_ascii()
        );
        assert!(
            head.contains("x-request-id: "),
            "{head}: {}",
            bytes.escape_ascii()
        );
        if status >= 400 && !bytes.starts_with(b"HEAD") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap().parse().unwrap();
            let body: Value = serde_json::from_slice(&said[end + 4..][..length]).unwrap();
            check_error(status, &body);
        }
    }
    // The damage reached both sides of the border.
    assert!(
        statuses.contains_key(&200) && statuses.contains_key(&400),
        "{statuses:?}"
    );
    assert_eq!(
        reqwest::get(format!("{}/healthz", server.url))
            .await
            .unwrap()
            .status(),
        200
    );
}

/// A small seeded source of damage.
struct Damage(u64);

impl Damage {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below.max(1) as u64).unwrap()
    }

    fn apply(&mut self, good: &[u8]) -> Vec<u8> {
        const PIECES: [&[u8]; 20] = [
            b"\r\n",
            b"\r\n\r\n",
            b"\0",
            b"\xff",
            b"%00",
            b"%ff",
            b"%",
            b"&limit=0",
            b"?",
            b"#",
            b"//",
            b"..",
            b" ",
            b"\t",
            b":",
            b"99999999999999999999",
            b"-1",
            b"=",
            b"c1_",
            b"\xe2\x80\xa8",
        ];
        let mut bytes = good.to_vec();
        for _ in 0..=self.next(3) {
            let at = self.next(bytes.len());
            match self.next(5) {
                0 => bytes[at] ^= 1 << self.next(8),
                1 => drop(bytes.remove(at)),
                2 => {
                    let piece = PIECES[self.next(PIECES.len())];
                    drop(bytes.splice(at..at, piece.iter().copied()));
                }
                3 => {
                    let end = (at + 1 + self.next(20)).min(bytes.len());
                    let again = bytes[at..end].repeat(1 + self.next(40));
                    drop(bytes.splice(at..at, again));
                }
                _ => {
                    let end = (at + 1 + self.next(20)).min(bytes.len());
                    drop(bytes.drain(at..end));
                }
            }
        }
        bytes
    }
}

/// The time for a head begins with the head: a connection that was quiet for nearly as long is not told that it was late.
#[tokio::test]
async fn u27_a_quiet_connection_is_used_again() {
    let mut config = config();
    config.header_read_timeout = Duration::from_secs(2);
    let server = Server::start_with(config).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = get(
        "/v1/sessions",
        &format!("Authorization: Bearer {KEY}\r\nHarn-Agents-Protocol-Version: {VERSION}\r\n"),
    );
    for quiet in [0, 1_850] {
        tokio::time::sleep(Duration::from_millis(quiet)).await;
        // In two pieces, so that the server waits in the middle of it. Writing fails where the connection was cut.
        let (first, rest) = request.split_at(20);
        let _ = stream.write_all(first).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _ = stream.write_all(rest).await;
        let mut said = vec![0; 4_096];
        let read = stream.read(&mut said).await.unwrap_or_default();
        let said = String::from_utf8_lossy(&said[..read]).into_owned();
        // On a busy machine the connection may be cut for its quiet: then nothing is said.
        let is_cut = quiet > 0 && said.is_empty();
        assert!(
            is_cut || said.starts_with("HTTP/1.1 200"),
            "{quiet}: {said}"
        );
    }
}
