//! Vaults: where secrets live, never what they are.

use axum::http::StatusCode;
use domain::ResourceKind;
use engine::Request;
use wire::decode;

use super::Routes;
use crate::call::Call;
use crate::failure::Reply;

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get("/v1/vaults", list)
        .post("/v1/vaults", create)
        .get("/v1/vaults/{vault_id}", read)
}

async fn list(call: Call) -> Reply {
    let filters = call.filters(&["workspace_id"])?;
    call.page(ResourceKind::Vault, filters).await
}

async fn create(mut call: Call) -> Reply {
    let body = call.json().await?;
    let new = decode::create_vault(&body)?;
    let request = Request::CreateVault {
        workspace_id: new.workspace_id,
        provider: new.provider,
        capabilities: new.capabilities,
        metadata: new.metadata,
    };
    call.write(request, body, StatusCode::CREATED).await
}

async fn read(call: Call) -> Reply {
    call.read(ResourceKind::Vault, "vault_id").await
}
