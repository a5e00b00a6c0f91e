//! TLS on the listener.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use server::{ServeError, Tls, bind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::fixture::{Server, config};

/// A folder for one test's files.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("reprise-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn ap_rest_02_tls_answers_over_http_1_and_http_2() {
    let folder = Folder::new("tls");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = Tls {
        cert: folder.0.join("cert.pem"),
        key: folder.0.join("key.pem"),
    };
    std::fs::write(&files.cert, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let mut secure = config();
    secure.tls = Some(files);
    let server = Server::start_with(secure).await;
    assert!(server.url.starts_with("https://127.0.0.1:"));
    for (offered, chosen) in [("http/1.1", "http/1.1"), ("h2", "h2")] {
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![offered.into()];
        let socket = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, socket).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(chosen.as_bytes()));
        if offered == "http/1.1" {
            let request = b"GET /v1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(answer.contains(&format!("\"{}\"", "protocol_discovery")));
        }
    }
    // Plain HTTP on a TLS port gets no answer and does not disturb the others.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain
        .write_all(b"GET /v1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"));
}

#[tokio::test]
async fn files_that_are_no_certificate_are_refused_with_advice() {
    let folder = Folder::new("no-tls");
    let cert = folder.0.join("cert.pem");
    std::fs::write(&cert, "not a certificate").unwrap();
    let mut broken = config();
    broken.tls = Some(Tls {
        cert: cert.clone(),
        key: cert.clone(),
    });
    let error = bind(broken).await.unwrap_err();
    assert!(matches!(error, ServeError::Tls { .. }), "{error}");
    assert!(error.advice().contains("PEM"));
    let mut absent = config();
    absent.tls = Some(Tls {
        cert: folder.0.join("nothing.pem"),
        key: cert,
    });
    let error = bind(absent).await.unwrap_err().to_string();
    assert!(error.contains("nothing.pem"), "{error}");
}
