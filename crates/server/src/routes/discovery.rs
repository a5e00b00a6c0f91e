//! What the server says about itself.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use canon::Value;
use wire::card;

use super::Routes;
use crate::app::{App, VERSION};
use crate::call::{Call, json_bytes, ok};
use crate::failure::{Failure, Reply};

/// A card is for everybody and stays small; the list of Personas has them all.
const CARD_PERSONAS_MAX: usize = 100;

pub(super) fn open(routes: Routes) -> Routes {
    routes
        .get_parts("/", start_page)
        .get_parts("/health", health)
        .get_parts("/version", version)
        .get_parts("/openapi.json", openapi)
        .get_parts("/v1", discovery)
        .get_parts("/v1/agent-card", agent_card)
}

pub(super) fn guarded(routes: Routes) -> Routes {
    routes
        .get("/v1/runtime", runtime)
        .get("/v1/capabilities", capabilities)
        .get("/v1/provider-catalog", provider_catalog)
        .get("/v1/tools", tools)
        .get("/v1/tools/{tool_id}", tool)
        .get("/v1/skills", skills)
        .get("/v1/skills/{skill_id}", skill)
        .get("/v1/connectors", connectors)
        .get("/v1/connectors/{connector_id}", connector)
}

async fn health(State(app): State<Arc<App>>) -> Response {
    ok(&card::health(VERSION, app.engine.is_draining()))
}

async fn version() -> Response {
    ok(&card::version(VERSION))
}

async fn openapi(State(app): State<Arc<App>>) -> Response {
    json_bytes(app.openapi())
}

async fn discovery(State(app): State<Arc<App>>) -> Response {
    ok(&card::discovery(app.config.retention_days))
}

async fn agent_card(State(app): State<Arc<App>>) -> Reply {
    let personas = app.engine.persona_ids(CARD_PERSONAS_MAX).await?;
    let object = &app.config.card_object;
    let card = card::agent_card(app.about(), object, &app.skills(), &personas);
    Ok(ok(&card))
}

async fn runtime(_: Call) -> Response {
    ok(&card::runtime(VERSION))
}

async fn capabilities(_: Call) -> Response {
    ok(&card::capabilities())
}

async fn provider_catalog(call: Call) -> Response {
    let providers = &call.app.config.providers;
    ok(&card::provider_catalog(VERSION, providers))
}

async fn tools(call: Call) -> Reply {
    let all = call.app.config.tools.iter().map(card::Tool::resource);
    call.page_of(all.collect())
}

async fn tool(call: Call) -> Reply {
    let all: Vec<Value> = call
        .app
        .config
        .tools
        .iter()
        .map(card::Tool::resource)
        .collect();
    find(&all, call.param("tool_id"), "tool")
}

/// For whoever opens the printed address in a browser. It needs no key and shows nothing that does.
async fn start_page() -> Response {
    const PAGE: &str = include_str!("start.html");
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE.replace("VERSION", VERSION)).into_response()
}

fn all_skills(call: &Call) -> Vec<Value> {
    let at = call.app.began_at;
    let skills = call.app.skills();
    skills.iter().map(|skill| skill.resource(at)).collect()
}

async fn skills(call: Call) -> Reply {
    let all = all_skills(&call);
    call.page_of(all)
}

async fn skill(call: Call) -> Reply {
    let all = all_skills(&call);
    find(&all, call.param("skill_id"), "skill")
}

fn visible_connectors(call: &Call) -> Vec<Value> {
    let at = call.app.began_at;
    let seen = call.app.config.connectors.iter().filter(|connector| {
        let workspace = domain::WorkspaceId::parse(&connector.workspace_id).ok();
        call.caller.sees(workspace.as_ref())
    });
    seen.map(|connector| connector.resource(at)).collect()
}

async fn connectors(call: Call) -> Reply {
    let mut all = visible_connectors(&call);
    if let Some(workspace) = call.query("workspace_id")? {
        all.retain(|connector| connector.get("workspace_id") == Some(&workspace.into()));
    }
    call.page_of(all)
}

async fn connector(call: Call) -> Reply {
    let all = visible_connectors(&call);
    find(&all, call.param("connector_id"), "connector")
}

fn find(all: &[Value], id: &str, object: &'static str) -> Reply {
    let found = all
        .iter()
        .find(|value| value.get("id").and_then(Value::as_str) == Some(id));
    found.map(ok).ok_or_else(|| Failure::not_found(object))
}
