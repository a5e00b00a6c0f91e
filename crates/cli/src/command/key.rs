//! `reprise key`: API keys of a data directory, also while a server is running. Each change is an event in the log.
//!
//! The text of a key exists in two places only: where it is shown once, and in the first key's file. The store has
//! its SHA-256.

mod first;
mod operator;

use canon::Digest;
use domain::{Timestamp, WorkspaceId};
use engine::port::{ApiKey, KeyStore, Store};
use engine::{AGENT, SCOPES};
use serde_json::{Value, json};
use store::SqliteStore;

use crate::args::{
    DataArgs, DirectoryArgs, KeyCommand, KeyCreateArgs, KeyGrantArgs, KeyRevokeArgs,
};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, inform, is_quiet, shorten};
use crate::time::now;

pub(crate) use operator::OperatorListener;

pub(crate) use first::{APPROVER_KEY_FILE, FirstKey, KEY_FILE, ensure_first_keys};

/// Runs one of them.
pub(crate) async fn run(command: KeyCommand) -> anyhow::Result<Exit> {
    match command {
        KeyCommand::Create(args) => create(args).await,
        KeyCommand::List(args) => list(args).await,
        KeyCommand::Grant(args) => grant(args).await,
        KeyCommand::Revoke(args) => revoke(args).await,
    }
}

/// Opens the data directory beside whoever works in it.
fn open(data: &DataArgs) -> anyhow::Result<SqliteStore> {
    SqliteStore::open_reader(&data.data).map_err(|error| {
        let hint = error.hint();
        Problem::new(error.to_string(), hint).into()
    })
}

async fn create(args: KeyCreateArgs) -> anyhow::Result<Exit> {
    let actor = args.actor.trim();
    if actor.is_empty() || actor.chars().count() > 200 || actor.chars().any(char::is_control) {
        return Err(Problem::new(
            "an actor has 1 to 200 printable characters",
            "name who uses the key, such as --actor ci",
        )
        .into());
    }
    if RESERVED_ACTORS.contains(&actor) {
        return Err(Problem::new(
            format!("`{actor}` is what the log calls the server's own part"),
            "name who uses the key, such as --actor ci",
        )
        .into());
    }
    let workspaces = workspaces(&args.workspace)?;
    let scopes = scopes(&args.scope, args.read_only)?;
    let expires_at = args.expires.as_deref().map(end).transpose()?;
    // A directory without a log is refused, not made.
    let store = open(&args.data)?;
    must_exist(&store, &args.workspace).await?;
    drop(store);
    let text = new_text()?;
    let key = ApiKey {
        workspaces,
        expires_at,
        ..ApiKey::new(new_id()?, digest(&text), actor, scopes, now())
    };
    operator::change(&args.data.data, key.clone()).await?;
    if args.json {
        Output::stdout().json(&json!({
            "id": key.id, "actor": key.actor, "scopes": key.scopes, "workspaces": key.workspaces, "key": text,
            "expires_at": key.expires_at.map(|time| time.to_string()),
        }))?;
        return Ok(Exit::Ok);
    }
    let until = expires_at.map_or_else(String::new, |end| format!(", until {end}"));
    inform(format_args!(
        "made {} for `{}`: {} in {}{until}",
        key.id,
        key.actor,
        key.scopes.join(" "),
        workspaces_text(&key)
    ));
    inform("this is the only time the key is shown");
    Output::stdout().line(&text)?;
    Ok(Exit::Ok)
}

/// Actors that no key has: events by them are the server's own.
const RESERVED_ACTORS: [&str; 3] = ["system", "agent", operator::ACTOR];

/// Refuses workspaces that are not there: a key of one would see nothing, and whatever gets that id later.
async fn must_exist(store: &SqliteStore, named: &[String]) -> anyhow::Result<()> {
    let ids: Vec<Box<str>> = named.iter().map(|id| id.as_str().into()).collect();
    let found = store.documents(ids).await.or_hint(
        "the workspaces cannot be read",
        "`reprise log verify` checks the data directory",
    )?;
    for (id, found) in named.iter().zip(found) {
        if found.is_none() {
            return Err(Problem::new(
                format!("there is no workspace `{id}`"),
                "`GET /v1/workspaces` lists them; `POST /v1/workspaces` creates one",
            )
            .into());
        }
    }
    Ok(())
}

fn workspaces(named: &[String]) -> anyhow::Result<Option<Vec<String>>> {
    for id in named {
        WorkspaceId::parse(id).map_err(|error| {
            Problem::new(
                error.to_string(),
                "a workspace id looks like workspace_local",
            )
        })?;
    }
    Ok((!named.is_empty()).then(|| named.to_vec()))
}

fn scopes(named: &[String], read_only: bool) -> anyhow::Result<Vec<String>> {
    if read_only {
        return Ok(vec!["*:read".to_owned()]);
    }
    if named.is_empty() {
        return Ok(vec!["*".to_owned()]);
    }
    for scope in named {
        if !SCOPES.contains(&scope.as_str())
            && !["*", "*:read", "*:write"].contains(&scope.as_str())
            && !names_agents(scope)
        {
            return Err(Problem::new(
                format!("`{scope}` is not a scope"),
                format!(
                    "the scopes are *, *:read, *:write, {}, {AGENT}NAME, {AGENT}PREFIX*",
                    SCOPES.join(", ")
                ),
            )
            .into());
        }
    }
    Ok(named.to_vec())
}

/// Returns whether a scope names an agent of the shared memory, or those that begin alike.
fn names_agents(scope: &str) -> bool {
    let pattern = scope.strip_prefix(AGENT).unwrap_or_default();
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    !pattern.is_empty() && !name.contains('*') && !name.chars().any(char::is_control)
}

async fn list(args: DirectoryArgs) -> anyhow::Result<Exit> {
    let store = open(&args.data)?;
    let keys = store.api_keys().await.or_hint(
        "the keys cannot be read",
        "`reprise log verify` checks the data directory",
    )?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&keys.iter().map(as_json).collect::<Vec<_>>())?;
        return Ok(Exit::Ok);
    }
    if is_quiet() {
        out.ids(keys.iter().map(|key| key.id.as_str()))?;
        return Ok(Exit::Ok);
    }
    if keys.is_empty() {
        inform("no keys");
        return Ok(Exit::Ok);
    }
    let mut rows = Table::new(&["KEY", "ACTOR", "STATE", "CREATED", "WORKSPACES", "SCOPES"]);
    for key in &keys {
        let (state, paint) = match key.revoked_at {
            Some(_) => ("revoked", Some(Paint::Bad)),
            None if key.is_expired(now()) => ("expired", Some(Paint::Bad)),
            None => ("active", None),
        };
        let created = key.created_at.to_string();
        rows.row([
            (key.id.clone(), None),
            (shorten(&key.actor, 40), None),
            (state.to_owned(), paint),
            (
                created
                    .chars()
                    .take(19)
                    .collect::<String>()
                    .replace('T', " "),
                None,
            ),
            (shorten(&workspaces_text(key), 60), None),
            (key.scopes.join(" "), None),
        ]);
    }
    rows.print(&mut out, "")?;
    Ok(Exit::Ok)
}

fn workspaces_text(key: &ApiKey) -> String {
    match &key.workspaces {
        Some(list) => list.join(" "),
        None => "all workspaces".to_owned(),
    }
}

/// Returns a key without its digest, which is nobody's business.
fn as_json(key: &ApiKey) -> Value {
    json!({
        "id": key.id,
        "actor": key.actor,
        "workspaces": key.workspaces,
        "scopes": key.scopes,
        "created_at": key.created_at.to_string(),
        "revoked_at": key.revoked_at.map(|time| time.to_string()),
        "expires_at": key.expires_at.map(|time| time.to_string()),
    })
}

/// Finds a key by its id.
async fn find(store: &SqliteStore, id: &str) -> anyhow::Result<ApiKey> {
    let keys = store.api_keys().await.or_hint(
        "the keys cannot be read",
        "`reprise log verify` checks the data directory",
    )?;
    let found = keys.into_iter().find(|key| key.id == id);
    found.ok_or_else(|| {
        Problem::new(
            format!("there is no key `{id}`"),
            "`reprise key list` shows the ids",
        )
        .answers_no()
        .into()
    })
}

async fn grant(args: KeyGrantArgs) -> anyhow::Result<Exit> {
    let store = open(&args.directory.data)?;
    let mut key = find(&store, &args.id).await?;
    let mut granted = scopes(std::slice::from_ref(&args.scope), false)?;
    granted.retain(|scope| !key.scopes.contains(scope));
    if granted.is_empty() {
        inform(format_args!("{} has {} already", key.id, args.scope));
        return print_key(args.directory.json, &key);
    }
    key.scopes.extend(granted);
    let id = key.id.clone();
    drop(store);
    operator::change(&args.directory.data.data, key.clone()).await?;
    inform(format_args!("{id} has {} now", args.scope));
    print_key(args.directory.json, &key)
}

/// Prints a key as JSON where that was asked for; its text is not known any more.
fn print_key(json: bool, key: &ApiKey) -> anyhow::Result<Exit> {
    if json {
        Output::stdout().json(&json!({
            "id": key.id, "actor": key.actor, "scopes": key.scopes, "workspaces": key.workspaces,
            "revoked_at": key.revoked_at.map(|time| time.to_string()),
        }))?;
    }
    Ok(Exit::Ok)
}

async fn revoke(args: KeyRevokeArgs) -> anyhow::Result<Exit> {
    let store = open(&args.directory.data)?;
    let key = find(&store, &args.id).await?;
    if key.revoked_at.is_some() {
        inform(format_args!("{} is already revoked", key.id));
        return print_key(args.directory.json, &key);
    }
    let id = key.id.clone();
    let revoked = ApiKey {
        revoked_at: Some(now()),
        ..key
    };
    drop(store);
    operator::change(&args.directory.data.data, revoked.clone()).await?;
    inform(format_args!(
        "revoked {id}; a running server refuses it within a second"
    ));
    print_key(args.directory.json, &revoked)
}

/// Reads when a key ends: a time, or how long from now on.
fn end(text: &str) -> anyhow::Result<Timestamp> {
    let hint = "write 4w, 30d, 12h, 90m or 45s, or a time such as 2027-01-31T00:00:00Z";
    let problem = |why: &str| Problem::new(format!("`{text}` {why}"), hint);
    let end = match crate::time::span(text) {
        Some(span) => Timestamp::from_micros(now().as_micros().saturating_add(span)),
        None => Timestamp::parse(text).map_err(|_| problem("is not a time"))?,
    };
    // Later than any time that can be written is as good as never, and is said by leaving it out.
    if end.as_micros() >= Timestamp::from_micros(i64::MAX).as_micros() {
        return Err(problem("is later than the year 9999").into());
    }
    match end > now() {
        true => Ok(end),
        false => Err(problem("is not in the future").into()),
    }
}

/// Returns the text of a new key: 256 random bits.
fn new_text() -> anyhow::Result<String> {
    Ok(format!("rpk_{}", random_hex::<32>()?))
}

fn new_id() -> anyhow::Result<String> {
    Ok(format!("key_{}", random_hex::<8>()?))
}

fn random_hex<const N: usize>() -> anyhow::Result<String> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).or_hint("cannot get random numbers", "check /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns what the store keeps of a key.
fn digest(text: &str) -> Digest {
    canon::sha256(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_auth_02_scopes_are_checked_when_a_key_is_made() {
        let named = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(scopes(&[], false).unwrap(), ["*"]);
        assert_eq!(scopes(&[], true).unwrap(), ["*:read"]);
        assert_eq!(
            scopes(&named(&["tasks:write"]), false).unwrap(),
            ["tasks:write"]
        );
        let error = scopes(&named(&["task:write"]), false).unwrap_err();
        assert_eq!(error.to_string(), "`task:write` is not a scope");
        assert!(workspaces(&named(&["session_1"])).is_err());
        assert_eq!(workspaces(&[]).unwrap(), None);
    }

    #[test]
    fn u23_an_end_is_a_span_or_a_time_ahead() {
        let ahead = |text: &str| end(text).unwrap().as_micros() - now().as_micros();
        for (text, seconds) in [
            ("2s", 2),
            ("90m", 5_400),
            ("12h", 43_200),
            ("30d", 2_592_000),
        ] {
            let left = seconds * 1_000_000 - ahead(text);
            assert!((0..1_000_000).contains(&left), "{text}: {left}");
        }
        assert_eq!(
            end("2999-01-31T00:00:00Z").unwrap().to_string(),
            "2999-01-31T00:00:00.000000Z"
        );
        for bad in [
            "",
            "d",
            "0s",
            "-1d",
            "3mo",
            "tomorrow",
            "2001-01-31T00:00:00Z",
            "3000000d",
            "99999999999999999999d",
            "é",
        ] {
            assert!(end(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_long_and_differ() {
        let (one, two) = (new_text().unwrap(), new_text().unwrap());
        assert_eq!(one.len(), 4 + 64);
        assert_ne!(one, two);
        assert_ne!(digest(&one), digest(&two));
    }
}
