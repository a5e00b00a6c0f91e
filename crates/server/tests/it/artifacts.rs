//! AP-ART.

use serde_json::json;

use crate::fixture::{Server, id, refused};

#[tokio::test]
async fn ap_art_04_05_uploaded_bytes_come_back_and_cannot_be_replaced() {
    let server = Server::start().await;
    let api = server.client();
    let body = json!({"kind": "file", "mime_type": "text/html", "visibility": "public"});
    let (_, artifact) = api.post("/v1/artifacts", body).await;
    let path = format!("/v1/artifacts/{}/content", id(&artifact));
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let (status, stored) = api
        .send(api.request("PUT", &path).body(bytes.clone()))
        .await;
    assert_eq!(
        (status, &stored["sha256"]),
        (200, &json!(canon::sha256(&bytes).hex()))
    );
    let response = api.request("GET", &path).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/html");
    assert_eq!(response.headers()["content-disposition"], "attachment");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(response.bytes().await.unwrap(), bytes);
    let same = api.send(api.request("PUT", &path).body(bytes)).await;
    assert_eq!(same.0, 200);
    let other = api.send(api.request("PUT", &path).body("other")).await;
    refused(&other, 409, "conflict", None);
    let large = api
        .send(api.request("PUT", &path).body(vec![0; 128 * 1024 + 1]))
        .await;
    refused(&large, 413, "payload_too_large", None);
    let unknown = api
        .send(
            api.request("PUT", "/v1/artifacts/artifact_x/content")
                .body("x"),
        )
        .await;
    refused(&unknown, 404, "resource_not_found", None);
}

#[tokio::test]
async fn a_type_that_is_no_media_type_is_kept_and_downloaded_as_bytes() {
    let server = Server::start().await;
    let api = server.client();
    for (given, sent) in [
        ("markdown", "application/octet-stream"),
        ("a b/c", "application/octet-stream"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
    ] {
        let body = json!({"kind": "file", "mime_type": given, "visibility": "public"});
        let (_, artifact) = api.post("/v1/artifacts", body).await;
        assert_eq!(artifact["mime_type"], given);
        let path = format!("/v1/artifacts/{}/content", id(&artifact));
        api.send(api.request("PUT", &path).body("x")).await;
        let response = api.request("GET", &path).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], sent);
    }
}
