//! One call: what is asked, how long it may take, and what an answer or its lack is called.

use std::sync::Arc;
use std::time::Duration;

use canon::{Map, Value};
use rmcp::model::{CallToolRequestParams, CallToolResponse, PaginatedRequestParams, Tool};
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use runs::workflow::Effect;
use secrecy::ExposeSecret;
use serde_json::json;
use tokio::time::timeout;

use super::connection::Connection;
use super::flood::Flood;
use super::{McpError, Server};
use crate::secrets::Secrets;
use crate::tool::timeout_ms;
use crate::vault::SecretHandle;

/// How many tools of one server are taken.
const TOOLS_MAX: usize = 1_000;

impl Server {
    /// Calls a tool.
    pub(super) async fn call(&self, effect: &Effect, secrets: &Secrets) -> Result<Value, McpError> {
        let request = &effect.request;
        let tool = request
            .get("tool")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let mut arguments = match request.get("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(members)) => members.clone(),
            Some(_) => {
                return Err(McpError::Failed(
                    "tool_arguments_invalid",
                    format!("arguments of `{tool}` are not an object"),
                ));
            }
        };
        for (name, handle) in request
            .get("secrets")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let handle = serde_json::from_value::<SecretHandle>(handle.clone()).map_err(|_| {
                McpError::Failed(
                    "secret_unknown",
                    format!("`{name}` is not a handle of a secret"),
                )
            })?;
            let value = secrets.value_of(&handle).map_err(McpError::Secret)?;
            arguments.insert(name.clone(), value.expose_secret().into());
        }
        let connection = self.connected(secrets, &effect.secrets).await?;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let answer = self
            .bounded(
                &connection,
                timeout_ms(self.config.timeout_ms, request),
                connection.service.call_tool_once(params),
            )
            .await?;
        let CallToolResponse::Complete(result) = answer else {
            return Err(McpError::Failed(
                "mcp_protocol_error",
                format!("`{tool}` needs more than one call, which is not supported"),
            ));
        };
        let mut value = json!({
            "content": serde_json::to_value(&result.content).unwrap_or_default(),
            "isError": result.is_error.unwrap_or(false),
        });
        if let (Some(structured), Some(members)) =
            (result.structured_content, value.as_object_mut())
        {
            members.insert("structuredContent".to_owned(), structured);
        }
        Ok(value)
    }

    /// Returns the tools that the server offers.
    pub(crate) async fn tools(&self, secrets: &Secrets) -> Result<Vec<Tool>, McpError> {
        // No run has handles yet: it asks for the tools first.
        let handles = secrets.newest(self.secrets()).map_err(McpError::Secret)?;
        let connection = self.connected(secrets, &handles).await?;
        let list = async {
            let mut tools = Vec::new();
            let mut cursor = None;
            loop {
                let params = PaginatedRequestParams::default().with_cursor(cursor);
                let page = connection.service.list_tools(Some(params)).await?;
                tools.extend(page.tools);
                cursor = page.next_cursor;
                if cursor.is_none() || tools.len() > TOOLS_MAX {
                    return Ok(tools);
                }
            }
        };
        let tools = self
            .bounded(&connection, self.config.timeout_ms, list)
            .await?;
        if tools.len() > TOOLS_MAX {
            let said = format!("more than {TOOLS_MAX} tools");
            return Err(McpError::Failed("mcp_output_too_large", said));
        }
        Ok(tools)
    }

    /// Waits for an answer until it takes too long, becomes too much, or cannot come any more.
    async fn bounded<T>(
        &self,
        connection: &Arc<Connection>,
        limit: u64,
        answer: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, McpError> {
        let flood = &connection.flood;
        flood.new_call();
        let outcome = tokio::select! {
            biased;
            () = flood.exceeded() => None,
            outcome = timeout(Duration::from_millis(limit), answer) => Some(outcome),
        };
        flood.new_call();
        let (code, said) = match outcome {
            Some(Ok(Ok(answer))) => return Ok(answer),
            Some(Ok(Err(ServiceError::McpError(error)))) if flood.is_cut(&error) => {
                // Only this answer was too long.
                let (code, said) = flood_error(flood);
                return Err(McpError::Failed(code, said));
            }
            Some(Ok(Err(ServiceError::McpError(error)))) => {
                // The server is well; it only says no.
                let said = format!("error {}: {}", error.code.0, error.message);
                return Err(McpError::Failed("mcp_protocol_error", said));
            }
            None => flood_error(flood),
            Some(_) if flood.is_noticed() => flood_error(flood),
            Some(Err(_)) => ("mcp_timeout", format!("no answer within {limit} ms")),
            Some(Ok(Err(error))) => failure(&error),
        };
        self.forget(connection).await;
        Err(McpError::Failed(code, said))
    }
}

pub(super) fn flood_error(flood: &Flood) -> (&'static str, String) {
    let max = flood.message_bytes_max();
    (
        "mcp_output_too_large",
        format!("the server sent more than {max} bytes at once"),
    )
}

fn failure(error: &ServiceError) -> (&'static str, String) {
    let code = match error {
        ServiceError::TransportSend(sent) => {
            match sent
                .error
                .downcast_ref::<StreamableHttpError<reqwest::Error>>()
            {
                Some(
                    StreamableHttpError::Deserialize(_)
                    | StreamableHttpError::UnexpectedContentType(_)
                    | StreamableHttpError::UnexpectedServerResponse(_),
                ) => "mcp_protocol_error",
                _ => "mcp_unavailable",
            }
        }
        ServiceError::UnexpectedResponse => "mcp_protocol_error",
        _ => "mcp_unavailable",
    };
    let said = match error {
        ServiceError::TransportClosed => "the connection closed during the call".to_owned(),
        ServiceError::TransportSend(_) => "the call could not be delivered or answered".to_owned(),
        other => other.to_string(),
    };
    (code, said)
}
