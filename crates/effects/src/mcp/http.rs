//! A server behind an address: the SDK's HTTP client with bounded answers.
//!
//! The SDK reads a whole JSON answer whatever its length. Answers to the two requests whose length a stranger
//! decides, calls and lists of tools, are therefore read here; everything else is left to the SDK. One that is too long
//! ends as an error of that request: other calls on the connection have nothing to do with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::flood::Flood;

const SESSION_HEADER: &str = "mcp-session-id";
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

type HttpError = StreamableHttpError<reqwest::Error>;

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) inner: reqwest::Client,
    pub(super) flood: Flood,
}

impl StreamableHttpClient for Client {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let ours = match &message {
            JsonRpcMessage::Request(request) => match request.request {
                ClientRequest::CallToolRequest(_) | ClientRequest::ListToolsRequest(_) => {
                    Some(request.id.clone())
                }
                _ => None,
            },
            _ => None,
        };
        let Some(id) = ours else {
            let max = self.flood.message_bytes_max();
            let inner = &self.inner;
            return inner
                .post_message_with_max_sse_event_size(
                    uri,
                    message,
                    session_id,
                    auth_header,
                    custom_headers,
                    max,
                )
                .await;
        };
        let in_session = session_id.is_some();
        let mut request = self
            .inner
            .post(uri.as_ref())
            .header(ACCEPT, format!("{EVENTS}, {JSON}"))
            .headers(custom_headers.into_iter().collect());
        if let Some(token) = auth_header {
            request = request.bearer_auth(token);
        }
        if let Some(session) = session_id {
            request = request.header(SESSION_HEADER, session.as_ref());
        }
        let response = request.json(&message).send().await?;
        self.answer(response, id, in_session).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let max = self.flood.message_bytes_max();
        let inner = &self.inner;
        inner
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                max,
            )
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        let inner = &self.inner;
        inner
            .delete_session(uri, session_id, auth_header, custom_headers)
            .await
    }
}

impl Client {
    async fn answer(
        &self,
        response: Response,
        id: RequestId,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && in_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let header = |name: HeaderName| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let kind = header(CONTENT_TYPE).unwrap_or_default();
        let session = header(HeaderName::from_static(SESSION_HEADER));
        let wait = header(RETRY_AFTER);
        if status.is_success() && kind.starts_with(EVENTS) {
            let events = self.events(response, id);
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        if !kind.starts_with(JSON) {
            return Err(match status.is_success() {
                true => StreamableHttpError::UnexpectedContentType(Some(kind)),
                false => HttpStatusError::new(status.as_u16(), wait).into(),
            });
        }
        let Some(body) = self.read(response).await? else {
            return Ok(StreamableHttpPostResponse::Json(
                self.flood.cut(id),
                session,
            ));
        };
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(_) if !status.is_success() => {
                Err(HttpStatusError::new(status.as_u16(), wait).into())
            }
            Err(error) => Err(StreamableHttpError::Deserialize(error)),
        }
    }

    /// Returns the events of a response, with the last one in our words when there are too many.
    fn events(
        &self,
        response: Response,
        id: RequestId,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let (max, mut total) = (self.flood.message_bytes_max(), 0_usize);
        let is_cut = Arc::new(AtomicBool::new(false));
        let cuts = Arc::clone(&is_cut);
        let bytes = response
            .bytes_stream()
            .map_err(std::io::Error::other)
            .and_then(move |piece| {
                total = total.saturating_add(piece.len());
                std::future::ready(if total <= max {
                    Ok(piece)
                } else {
                    cuts.store(true, Ordering::Relaxed);
                    Err(std::io::Error::other("the server sent too much"))
                })
            });
        let flood = self.flood.clone();
        SseStream::from_bytes_stream(bytes)
            .map(move |event| match event {
                Err(_) if is_cut.load(Ordering::Relaxed) => Ok(Sse {
                    data: serde_json::to_string(&flood.cut(id.clone())).ok(),
                    ..Sse::default()
                }),
                event => event,
            })
            .boxed()
    }

    /// Reads a whole answer; none when it is too long.
    async fn read(&self, mut response: Response) -> Result<Option<Vec<u8>>, HttpError> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            if body.len() + piece.len() > self.flood.message_bytes_max() {
                return Ok(None);
            }
            body.extend_from_slice(&piece);
        }
        Ok(Some(body))
    }
}
