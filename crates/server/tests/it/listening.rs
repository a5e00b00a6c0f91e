//! AP-REST-02, AP-ERR-05: where the server listens, how it stops.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use server::{ServeError, bind};

use crate::fixture::{Server, config};

#[tokio::test]
async fn ap_rest_02_plain_http_stays_on_this_machine_unless_told() {
    let mut open = config();
    open.listen = "0.0.0.0:0".parse().unwrap();
    let error = bind(open.clone()).await.unwrap_err();
    assert!(matches!(error, ServeError::PlainHttp { .. }));
    assert!(error.advice().contains("certificate"));
    open.allow_plain_http = true;
    assert!(bind(open).await.is_ok());
    let mut local = config();
    local.listen = "[::1]:0".parse().unwrap();
    // A machine without IPv6 cannot tell.
    if let Err(error) = bind(local).await {
        let ServeError::Bind { source, .. } = &error else {
            panic!("{error}");
        };
        let without_ipv6 = [ErrorKind::AddrNotAvailable, ErrorKind::Unsupported];
        assert!(without_ipv6.contains(&source.kind()), "{error}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_refused_with_advice() {
    let server = Server::start().await;
    let mut same = config();
    same.listen = server.address;
    let error = bind(same).await.unwrap_err();
    assert!(error.to_string().contains(&server.address.to_string()));
    assert!(error.advice().contains("another"));
}

#[tokio::test]
async fn ap_err_05_while_draining_work_is_refused_and_the_server_says_so() {
    let mut server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    // Holds the drain for its window.
    api.busy(&session).await;
    server.begin_stop();
    while !server.engine.is_draining() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let response = api.request("GET", "/v1/tasks").send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "service_unavailable");
    let ready = api
        .http
        .get(format!("{}/readyz", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(ready.status(), 503);
    let (_, health) = api.get("/health").await;
    assert_eq!(health["status"], json!("draining"));
    let address = server.address;
    server.stopped().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn http_2_is_spoken_to_those_who_know() {
    let server = Server::start().await;
    let http = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .build()
        .unwrap();
    let response = http.get(format!("{}/v1", server.url)).send().await.unwrap();
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    assert_eq!(response.status(), 200);
}
