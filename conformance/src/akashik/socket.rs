//! An agent that listens over a WebSocket.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Message, client};

use super::ground::Field;
use crate::json::text;
use crate::miss::{Miss, fail};

/// An open socket.
pub(crate) struct Socket {
    socket: WebSocketStream<TcpStream>,
    within: Duration,
}

impl Socket {
    /// Opens the socket of an agent that subscribed before; none when the server names none that this runner can open.
    pub(crate) async fn open(field: &Field<'_>, agent: &str) -> Result<Option<Self>, Miss> {
        let listed = field
            .made("SUBSCRIBE", agent, json!({"action": "list"}))
            .await?;
        let Ok(url) = reqwest::Url::parse(text(&listed, "push.websocket_url")) else {
            return Ok(None);
        };
        // The address that was given for the server counts, not the one that it has for itself.
        let wire = &field.ground.wire;
        let (Some(host), Some(port)) = (wire.base.host_str(), wire.base.port_or_known_default())
        else {
            return Ok(None);
        };
        if url.scheme() != "ws" || wire.base.scheme() != "http" {
            return Ok(None);
        }
        let within = wire.timeout.min(Duration::from_secs(5));
        let path = url.query().map_or_else(
            || url.path().to_owned(),
            |query| format!("{}?{query}", url.path()),
        );
        let opened = async {
            let request = client::ClientRequestBuilder::new(
                format!("ws://{host}:{port}{path}").parse().ok()?,
            );
            let mut request = request.into_client_request().ok()?;
            let key = HeaderValue::from_str(&format!("Bearer {}", wire.key)).ok()?;
            request.headers_mut().insert("authorization", key);
            let stream = TcpStream::connect((host, port)).await.ok()?;
            let opened = tokio_tungstenite::client_async(request, stream).await;
            opened.ok().map(|(socket, _)| socket)
        };
        match timeout(within, opened).await {
            Ok(Some(socket)) => Ok(Some(Self { socket, within })),
            Ok(None) | Err(_) => fail("an open WebSocket", format!("none at {url}")),
        }
    }

    /// Waits for the next text frame.
    pub(crate) async fn next(&mut self) -> Result<Value, Miss> {
        loop {
            let said = timeout(self.within, self.socket.next()).await;
            match said {
                Ok(Some(Ok(Message::Text(said)))) => {
                    let read = serde_json::from_str(&said);
                    return read.or_else(|_| fail("a notification", said.to_string()));
                }
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                said => return fail("a notification", format!("{said:?}")),
            }
        }
    }
}
