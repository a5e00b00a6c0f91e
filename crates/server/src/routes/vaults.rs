//! Vaults: where secrets live, never what they are.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use canon::Value;
use domain::ResourceKind;

use super::{Routes, write};
use crate::call::Call;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/vaults", list)
        .post("/v1/vaults", write)
        .get("/v1/vaults/{vault_id}", read)
        .put("/v1/vaults/{vault_id}/secrets/{name}", put_secret)
        .delete("/v1/vaults/{vault_id}/secrets/{name}", delete_secret)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id"])?;
    call.page(ResourceKind::Vault, filters).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Vault, "vault_id").await
}

/// Write-only: no path gives a value back.
async fn put_secret(mut call: Call) -> Reply {
    let body = call.json().await?;
    let Some(Value::String(value)) = body.get("value") else {
        return Err(Failure::invalid("value", "must be a string"));
    };
    call.app
        .engine
        .put_secret(
            &call.caller,
            call.param("vault_id"),
            call.param("name"),
            value,
        )
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn delete_secret(call: Call) -> Reply {
    call.app
        .engine
        .delete_secret(&call.caller, call.param("vault_id"), call.param("name"))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
