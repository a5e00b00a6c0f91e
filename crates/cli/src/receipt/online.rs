//! Receipts on a server, by their id or their task's.

use serde_json::Value;

use super::report::Findings;
use crate::args::Connection;
use crate::client::{Client, Page, Target, Write, fresh_key};
use crate::exit::Problem;

fn client(connection: &Connection) -> anyhow::Result<Client> {
    Client::new(Target::find(connection)?)
}

/// Returns a receipt's id; for a task that of its receipt.
async fn receipt_id(client: &Client, name: &str) -> anyhow::Result<String> {
    if !name.starts_with("task_") {
        return Ok(name.to_owned());
    }
    let list = client.get(&["v1", "tasks", name, "receipts"], &[]).await?;
    let receipts = Page::read(&list)?.data;
    let first = receipts
        .first()
        .and_then(|receipt| receipt.get("id")?.as_str());
    if let Some(id) = first {
        return Ok(id.to_owned());
    }
    let problem = if client.task(name).await?.status.is_terminal() {
        let hint = "a persona whose `receipt_policy` is `disabled` leaves none";
        Problem::new(format!("task `{name}` ended without a receipt"), hint)
    } else {
        let hint = "a task has a receipt once it has ended; `reprise task watch` follows it";
        Problem::new(format!("task `{name}` has no receipt yet"), hint)
    };
    Err(problem.answers_no().into())
}

/// Refuses a name that can only have been meant as a file: asking a server for it would not help.
fn check_name(name: &str, what: &str) -> Result<(), Problem> {
    if name.starts_with("task_") || name.starts_with(&format!("{what}_")) {
        return Ok(());
    }
    let name = crate::output::shorten(name, 80);
    let message = format!("`{name}` is neither a file nor the id of a {what} or a task");
    let hint = "`reprise task list` shows tasks; a file must be there and be readable";
    Err(Problem::new(message, hint))
}

/// Reads a receipt.
pub(crate) async fn receipt(connection: &Connection, name: &str) -> anyhow::Result<Value> {
    check_name(name, "receipt").map_err(Problem::answers_no)?;
    let client = client(connection)?;
    let id = receipt_id(&client, name).await?;
    client.get(&["v1", "receipts", &id], &[]).await
}

/// Says what the last verification on the server found. A receipt nobody verified is unverified (AP-RCPT-05).
pub(crate) fn last_verdict(receipt: &Value) -> String {
    let verdict = receipt
        .get("verification")
        .filter(|value| value.is_object());
    let Some(verdict) = verdict else {
        return "not verified yet; run `receipt verify`".to_owned();
    };
    let text = |name: &str| {
        verdict
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("unknown")
    };
    match verdict.get("valid") {
        Some(Value::Bool(true)) => format!("valid when checked at {}", text("checked_at")),
        _ => format!(
            "INVALID ({}) when checked at {}",
            text("reason"),
            text("checked_at")
        ),
    }
}

/// Has the server verify a receipt.
pub(crate) async fn verify(
    connection: &Connection,
    name: &str,
    options: Value,
) -> anyhow::Result<Findings> {
    // Not a no: that would say that a receipt is there and does not hold.
    check_name(name, "receipt")?;
    let client = client(connection)?;
    let id = receipt_id(&client, name).await?;
    let key = fresh_key()?;
    let write = Write {
        body: options,
        key: &key,
    };
    let verdict = client
        .post(&["v1", "receipts", &id, "verify"], write)
        .await?;
    Ok(Findings::of_verdict(&verdict))
}

/// Reads the proof that a receipt is in the log.
pub(crate) async fn proof(connection: &Connection, name: &str) -> anyhow::Result<Value> {
    check_name(name, "receipt").map_err(Problem::answers_no)?;
    let client = client(connection)?;
    let id = receipt_id(&client, name).await?;
    client.get(&["v1", "receipts", &id, "proof"], &[]).await
}

/// Reads the trust records of a session, or of a task's session, and the server's keys.
pub(crate) async fn trust(connection: &Connection, name: &str) -> anyhow::Result<(Value, Value)> {
    check_name(name, "session")?;
    let client = client(connection)?;
    let mut session = name.to_owned();
    if name.starts_with("task_") {
        let task = client.get(&["v1", "tasks", name], &[]).await?;
        let of_task = task.get("session_id").and_then(Value::as_str);
        session = of_task.unwrap_or_default().to_owned();
    }
    let export = client
        .get(&["v1", "sessions", &session, "trust-chain"], &[])
        .await?;
    let keys = client.get(&[".well-known", "jwks.json"], &[]).await?;
    Ok((export, keys))
}
