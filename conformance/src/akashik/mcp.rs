//! The protocol as tools of an MCP server: AK-MCP.

use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use super::ground::{Field, Ground, list, same, same_texts, texts, unit};
use super::{Row, row};
use crate::json::{at, show, text};
use crate::miss::{Checked, Miss, fail, need, unseen};
use crate::sse::{Item, Parser};

pub(crate) const ROWS: &[Row] = &[
    row!("AK-MCP-01", 3, "there is no tool for SUBSCRIBE", Always no_subscribe),
    row!("AK-MCP-02", 3, "an agent may leave by a tool", Always leave),
    row!("AK-MCP-03", 3, "arguments are those of payload and envelope", Always arguments),
    row!("AK-MCP-04", 3, "answers are structured and spoken, failures marked", Always answers),
    row!("AK-MCP-05", 3, "only tools of what is offered are listed", Always offered),
    row!("AK-MCP-06", 3, "the same answers as over HTTP", Always alike),
];

const PATH: &str = "/mcp";
const REVISION: &str = "2025-11-25";

/// Speaks to the tools, one request after the other.
struct Tools<'a> {
    ground: &'a Ground,
    session: Option<HeaderValue>,
}

impl<'a> Tools<'a> {
    /// Greets the server; without one there is nothing to see.
    async fn open(ground: &'a Ground) -> Result<Tools<'a>, Miss> {
        let mut tools = Tools {
            ground,
            session: None,
        };
        let hello = json!({
            "protocolVersion": REVISION, "capabilities": {},
            "clientInfo": {"name": "conformance", "version": "1"},
        });
        let answer = tools.send("initialize", hello).await?;
        if answer.status == 404 {
            return unseen("there is no MCP server at /mcp");
        }
        answer.want(&[200])?;
        tools.session = answer.headers.get("mcp-session-id").cloned();
        Ok(tools)
    }

    async fn send(&self, method: &str, params: Value) -> Result<crate::wire::Answer, Miss> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut call = self
            .ground
            .wire
            .post(PATH, &request)
            .version(None)
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", REVISION);
        if let Some(session) = self
            .session
            .as_ref()
            .and_then(|session| session.to_str().ok())
        {
            call = call.header("Mcp-Session-Id", session);
        }
        call.send().await
    }

    async fn ask(&self, method: &str, params: Value) -> Result<Value, Miss> {
        let answer = self.send(method, params).await?;
        answer.want(&[200])?;
        if !answer
            .header("content-type")
            .starts_with("text/event-stream")
        {
            return answer.value();
        }
        let items = Parser::default().push(&answer.body);
        let found = items.iter().find_map(|item| match item {
            Item::Frame(frame) => serde_json::from_str(frame.data.as_deref()?).ok(),
            Item::Comment(_) => None,
        });
        found.map_or_else(|| fail("an answer", answer.found()), Ok)
    }

    /// Calls a tool and returns its result.
    async fn call(&self, tool: &str, arguments: Value) -> Result<Value, Miss> {
        let params = json!({"name": format!("akashik_{tool}"), "arguments": arguments});
        let answer = self.ask("tools/call", params).await?;
        let result = at(&answer, "result");
        need(
            result.is_object(),
            format!("a result of {tool}"),
            show(&answer),
        )?;
        Ok(result.clone())
    }

    async fn names(&self) -> Result<Vec<String>, Miss> {
        let listed = self.ask("tools/list", json!({})).await?;
        let mut names = texts(&list(&listed, "result.tools"), "name");
        names.retain(|name| name.starts_with("akashik_"));
        names.sort();
        Ok(names)
    }
}

/// Requires success and returns what was said.
fn said(result: &Value) -> Result<Value, Miss> {
    need(at(result, "isError") != true, "no error", show(result))?;
    Ok(at(result, "structuredContent").clone())
}

fn named(field: &Field<'_>, agent: &str, more: Value) -> Value {
    let mut arguments = json!({"agent_id": agent, "field": field.name});
    if let (Value::Object(arguments), Value::Object(more)) = (&mut arguments, more) {
        arguments.extend(more);
    }
    arguments
}

async fn no_subscribe(ground: &Ground) -> Checked {
    let tools = Tools::open(ground).await?;
    let names = tools.names().await?;
    let none = !names.iter().any(|name| name == "akashik_subscribe");
    need(
        none && !names.is_empty(),
        "tools, and none for SUBSCRIBE",
        format!("{names:?}"),
    )
}

async fn leave(ground: &Ground) -> Checked {
    if ground.level < 1 {
        return unseen("DEREGISTER comes with level 1");
    }
    let tools = Tools::open(ground).await?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let answer = said(
        &tools
            .call("deregister", named(&field, "ann", json!({})))
            .await?,
    )?;
    same("`status`", at(&answer, "status"), &json!("ok"))?;
    let agents = field.view("agents").await?;
    same_texts("agents", &texts(&list(&agents, "agents"), "id"), &["bob"])
}

async fn arguments(ground: &Ground) -> Checked {
    let tools = Tools::open(ground).await?;
    let field = ground.field();
    let joined = named(&field, "ann", json!({"role": "analyst", "epoch": 10}));
    said(&tools.call("register", joined).await?)?;
    let status = field.view("field/status").await?;
    same(
        "the clock by the sender's epoch",
        at(&status, "epoch"),
        &json!(11),
    )?;
    let record = named(&field, "ann", unit("a note", json!({"message_id": "m-1"})));
    let first = said(&tools.call("record", record.clone()).await?)?;
    let second = said(&tools.call("record", record).await?)?;
    same("a message that came again", &second, &first)?;
    let nobody = json!({"field": field.name, "role": "analyst"});
    let result = tools.call("register", nobody).await?;
    same("`agent_id` is needed", at(&result, "isError"), &json!(true))
}

async fn answers(ground: &Ground) -> Checked {
    let tools = Tools::open(ground).await?;
    let field = ground.field_of(&["ann"]).await?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 1}});
    for (agent, failed) in [("ann", false), ("nobody", true)] {
        let result = tools
            .call("attune", named(&field, agent, scope.clone()))
            .await?;
        let content = list(&result, "content");
        let spoken = content
            .first()
            .map(|item| text(item, "text"))
            .unwrap_or_default();
        let spoken: Value = serde_json::from_str(spoken).unwrap_or_default();
        let holds = content.len() == 1
            && (at(&result, "isError") == true) == failed
            && spoken == *at(&result, "structuredContent")
            && at(&spoken, "code").is_string() == failed;
        need(
            holds,
            "the same JSON, structured and as text",
            show(&result),
        )?;
    }
    Ok(())
}

async fn offered(ground: &Ground) -> Checked {
    let tools = Tools::open(ground).await?;
    let mut expected: Vec<&str> = ["register", "record", "attune"].to_vec();
    if ground.level >= 1 {
        expected.extend(["detect", "deregister"]);
    }
    if ground.level >= 2 {
        expected.extend(["merge", "replay", "compact"]);
    }
    let named = |name: &&str| format!("akashik_{name}");
    let found = tools.names().await?;
    let missing: Vec<String> = expected.iter().map(named).collect();
    let missing: Vec<&String> = missing
        .iter()
        .filter(|name| !found.contains(name))
        .collect();
    need(
        missing.is_empty(),
        format!("{missing:?}"),
        format!("{found:?}"),
    )?;
    // Operations of the extension may be tools too, where they are offered.
    if ground.level >= 2 {
        expected.push("handoff");
    }
    if ground.level >= 3 {
        expected.extend(["coordinate", "session"]);
    }
    let expected: Vec<String> = expected.iter().map(named).collect();
    let more: Vec<&String> = found
        .iter()
        .filter(|name| !expected.contains(name))
        .collect();
    need(more.is_empty(), "no other tools", format!("{more:?}"))
}

async fn alike(ground: &Ground) -> Checked {
    let tools = Tools::open(ground).await?;
    let field = ground.field_of(&["ann", "bob"]).await?;
    let id = field.note("ann", "a note", json!({})).await?;
    let scope = json!({"scope": {"role": "analyst", "max_units": 5}});
    let mut asked = vec![
        ("ATTUNE", scope, "bob"),
        ("RECORD", json!({"mode": "committed"}), "bob"),
        ("RECORD", unit("a note", json!({"type": "gossip"})), "bob"),
        ("ATTUNE", json!({}), "nobody"),
    ];
    if ground.level >= 2 {
        for depth in ["summary", "detailed", "full_trace"] {
            let target = json!({"target_type": "memory_unit", "target_id": id, "depth": depth});
            asked.push(("REPLAY", target, "bob"));
        }
    }
    for (operation, payload, agent) in asked {
        let tool = operation.to_ascii_lowercase();
        let result = tools
            .call(&tool, named(&field, agent, payload.clone()))
            .await?;
        let mut by_tool = at(&result, "structuredContent").clone();
        let mut by_http = field.say(operation, agent, payload).await?.value()?;
        // Each is a message of its own.
        for answer in [&mut by_tool, &mut by_http] {
            if let Some(members) = answer.as_object_mut() {
                members.remove("epoch");
            }
        }
        same(&format!("{operation} over both"), &by_tool, &by_http)?;
    }
    Ok(())
}
