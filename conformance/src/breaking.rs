//! A reverse proxy that breaks one rule.
//!
//! It stands in front of a real server, passes everything through and changes exactly what one [`Fault`] says, so that a
//! test can show that the runner notices that fault and nothing else. It is for tests on loopback: plain HTTP, no upgrade.

mod fault;
mod receipt;
mod rewrite;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, TRANSFER_ENCODING};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use fault::Fault;
use rewrite::{Frames, Reply, Sent};

/// Headers that belong to one connection.
const OF_THE_CONNECTION: [&str; 4] = ["host", "connection", "keep-alive", "transfer-encoding"];

/// Changes status and body of a JSON answer to a request for a path.
pub type Lie = fn(path: &str, status: &mut u16, body: &mut serde_json::Value);

/// A running proxy. It ends when it is dropped.
#[derive(Debug)]
pub struct BreakingProxy {
    url: String,
    task: JoinHandle<()>,
}

impl BreakingProxy {
    /// Starts a proxy on a free loopback port in front of `upstream`; without a fault it changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error when no port or no client can be had.
    pub async fn start(upstream: &str, fault: Option<Fault>) -> io::Result<Self> {
        Self::start_with(upstream, fault, None).await
    }

    /// Starts a proxy that passes requests on and lies about every answer in JSON.
    ///
    /// # Errors
    ///
    /// Returns an error when no port or no client can be had.
    pub async fn lying(upstream: &str, lie: Lie) -> io::Result<Self> {
        Self::start_with(upstream, None, Some(lie)).await
    }

    async fn start_with(
        upstream: &str,
        fault: Option<Fault>,
        lie: Option<Lie>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(io::Error::other)?;
        let route = Arc::new(Route {
            upstream: upstream.trim_end_matches('/').to_owned(),
            fault,
            lie,
            http,
        });
        let router = Router::new().fallback(forward).with_state(route);
        let task = tokio::spawn(async move {
            // The server ends only with its task; there is nobody left to tell then.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, task })
    }

    /// Returns the address of the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for BreakingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Route {
    upstream: String,
    fault: Option<Fault>,
    lie: Option<Lie>,
    http: reqwest::Client,
}

async fn forward(State(route): State<Arc<Route>>, request: Request) -> Response {
    match answer(&route, request).await {
        Ok(response) => response,
        Err(error) => {
            let mut response =
                Response::new(Body::from(format!("the server behind the proxy: {error}")));
            *response.status_mut() = axum::http::StatusCode::BAD_GATEWAY;
            response
        }
    }
}

async fn answer(route: &Route, request: Request) -> reqwest::Result<Response> {
    let (parts, body) = request.into_parts();
    let mut sent = Sent {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: passed_on(&parts.headers),
    };
    let has_body = parts.headers.contains_key(TRANSFER_ENCODING)
        || parts
            .headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0");
    if !has_body {
        sent.headers.remove(CONTENT_LENGTH);
    }
    let asked = sent.clone();
    if let Some(fault) = route.fault {
        rewrite::request(fault, &mut sent);
    }
    let joint = if sent.query.is_empty() { "" } else { "?" };
    let address = format!("{}{}{joint}{}", route.upstream, sent.path, sent.query);
    let mut builder = route
        .http
        .request(sent.method.clone(), address)
        .headers(sent.headers.clone());
    if has_body {
        builder = builder.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    let response = builder.send().await?;
    let status = response.status();
    let headers = passed_on(response.headers());
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();

    let mut reply = Reply {
        status: status.as_u16(),
        content_type: content_type.clone(),
        body: Vec::new(),
    };
    let body = if content_type.starts_with("text/event-stream") {
        if let Some(fault) = route.fault {
            rewrite::stream_head(fault, &mut reply);
        }
        stream_body(route.fault, &asked, response)
    } else {
        reply.body = response.bytes().await?.to_vec();
        if let Some(fault) = route.fault {
            rewrite::answer(fault, &asked, &mut reply);
        }
        if let (Some(lie), Ok(mut body)) = (route.lie, serde_json::from_slice(&reply.body)) {
            lie(&asked.path, &mut reply.status, &mut body);
            reply.body = body.to_string().into_bytes();
        }
        Body::from(std::mem::take(&mut reply.body))
    };
    let mut answer = Response::new(body);
    if let Ok(status) = axum::http::StatusCode::from_u16(reply.status) {
        *answer.status_mut() = status;
    }
    *answer.headers_mut() = headers;
    answer.headers_mut().remove(CONTENT_LENGTH);
    if reply.content_type != content_type
        && let Ok(value) = reply.content_type.parse()
    {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    Ok(answer)
}

fn stream_body(fault: Option<Fault>, asked: &Sent, response: reqwest::Response) -> Body {
    let Some(fault) = fault else {
        return Body::from_stream(response.bytes_stream());
    };
    let mut frames = Frames::new(fault, asked.headers.contains_key("last-event-id"));
    let first = stream::iter(frames.before().map(Ok));
    let pieces = response
        .bytes_stream()
        .map(move |piece| piece.map(|piece| frames.push(&piece)));
    let all = first.chain(pieces);
    if fault == Fault::StreamNeverEnds {
        Body::from_stream(all.chain(stream::pending()))
    } else {
        Body::from_stream(all)
    }
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let of_the_connection = |name: &HeaderName| OF_THE_CONNECTION.contains(&name.as_str());
    // Repeated lines stay repeated: some faults are about them.
    let mut kept = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| !of_the_connection(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Answers one connection with fixed bytes, in two pieces, and returns what it was sent.
    async fn canned(first: &'static str, second: &'static str) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut seen = vec![0; 4096];
            let length = socket.read(&mut seen).await.unwrap();
            socket.write_all(first.as_bytes()).await.unwrap();
            // The second piece waits for the reader, so a proxy that buffers would never finish.
            if !second.is_empty() {
                let mut more = [0; 1];
                let _ = tokio::time::timeout(
                    std::time::Duration::from_millis(200),
                    socket.read(&mut more),
                )
                .await;
                socket.write_all(second.as_bytes()).await.unwrap();
            }
            String::from_utf8_lossy(&seen[..length]).into_owned()
        });
        (url, task)
    }

    async fn through(fault: Option<Fault>, upstream: &str, request: &str, until: &str) -> String {
        let proxy = BreakingProxy::start(upstream, fault).await.unwrap();
        let mut socket = TcpStream::connect(proxy.url().trim_start_matches("http://"))
            .await
            .unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        let reading = async {
            let mut piece = [0; 4096];
            while !String::from_utf8_lossy(&seen).contains(until) {
                match socket.read(&mut piece).await.unwrap() {
                    0 => break,
                    length => seen.extend(&piece[..length]),
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), reading)
            .await
            .expect("the proxy answers");
        String::from_utf8(seen).unwrap()
    }

    #[tokio::test]
    async fn without_a_fault_lines_and_bytes_pass_unchanged() {
        let answer = "HTTP/1.1 418 I am\r\nContent-Type: application/json\r\nX-Request-Id: r\r\nContent-Length: 9\r\n\r\n{ \"a\": 1}";
        let (url, sent) = canned(answer, "").await;
        let request = "POST /v1/x?b=2&a=1 HTTP/1.1\r\nHost: h\r\nIdempotency-Key: one\r\nIdempotency-Key: two\r\nContent-Length: 2\r\n\r\n{}";
        let seen = through(None, &url, request, "1}").await;
        assert!(seen.starts_with("HTTP/1.1 418"), "{seen}");
        assert!(
            seen.contains("x-request-id: r") && seen.ends_with("{ \"a\": 1}"),
            "{seen}"
        );
        let sent = sent.await.unwrap();
        assert!(sent.starts_with("POST /v1/x?b=2&a=1 HTTP/1.1"), "{sent}");
        assert_eq!(sent.matches("idempotency-key: ").count(), 2, "{sent}");
    }

    #[tokio::test]
    async fn a_fault_changes_the_request_on_its_way() {
        let (url, sent) = canned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "").await;
        through(
            Some(Fault::KeysIgnored),
            &url,
            "POST /v1/x HTTP/1.1\r\nHost: h\r\nIdempotency-Key: one\r\n\r\n",
            "{}",
        )
        .await;
        assert!(!sent.await.unwrap().contains("idempotency-key"));
    }

    #[tokio::test]
    async fn frames_pass_as_they_come() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 1\nevent: a\ndata: {}\n\n";
        for (fault, expected) in [
            (None, "id: 1\nevent: a\n"),
            (Some(Fault::CarriageReturns), "id: 1\r\nevent: a\r\n"),
        ] {
            let (url, _) = canned(head, "id: 2\nevent: a\ndata: {}\n\n").await;
            let seen = through(
                fault,
                &url,
                "GET /v1/tasks/t/stream HTTP/1.1\r\nHost: h\r\n\r\n",
                "id: 2",
            )
            .await;
            assert!(seen.contains(expected), "{seen}");
        }
    }
}
