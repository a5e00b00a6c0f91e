//! What is logged of a request, and what is not.
//!
//! A program of its own: whether a log line is made at all is cached for the whole process, by whichever thread
//! reaches it first, so tests without a subscriber beside this one could turn its lines off.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets what it does not expect stops"
)]

#[path = "it/contract.rs"]
mod contract;
#[path = "it/fixture.rs"]
#[expect(
    dead_code,
    reason = "this program needs only a part of what the other tests share"
)]
mod fixture;

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use fixture::{KEY, Server};

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// One thread, so that everything the server logs goes to this test's subscriber.
#[tokio::test(flavor = "current_thread")]
async fn ap_auth_03_a_request_is_logged_without_its_key_or_content() {
    let written = Written::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(written.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let secret = json!({"role": "user", "content": "content-4711"});
    let (_, message) = api
        .post(
            &format!("/v1/sessions/{session}/messages?x=query-4711"),
            secret,
        )
        .await;
    assert_eq!(message["object"], "message");
    server
        .client_with("rk_presented_by_nobody")
        .get("/v1/tasks")
        .await;
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    // Lines of our own crates; the HTTP client of this test logs too.
    let own: String = text
        .lines()
        .filter(|line| line.contains(" server::") || line.contains(" engine"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(own.contains("request.id=req_"), "{own}");
    assert!(
        own.contains("route=\"/v1/sessions/{session_id}/messages\""),
        "{own}"
    );
    assert!(
        own.contains("status=201") && own.contains("actor=\"ann\""),
        "{own}"
    );
    assert!(own.contains("status=401"), "{own}");
    for hidden in [KEY, "rk_presented_by_nobody", "content-4711", "query-4711"] {
        assert!(!own.contains(hidden), "{hidden} in {own}");
    }
}
