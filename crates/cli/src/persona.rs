//! `reprise persona`: define agents from files, list and show them; and what `--persona` of other commands means.

mod file;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use domain::PersonaId;
use serde_json::Value;

use crate::args::ServerArgs;
use crate::client::{Client, Page, Task, Write, fresh_key};
use crate::exit::{Exit, Problem};
use crate::listing::{Listing, text};
use crate::output::{Output, Paint, Table, inform, is_quiet, shorten, warn};

const EXAMPLE: &str = "\
A file, here reviewer.yaml; the same members in TOML or JSON work as well:

  name: reviewer
  version: \"1\"
  entry_workflow: agent
  description: Reviews a change and says what it would do
  autonomy_tier: suggest        # shadow, suggest, act_with_approval, act_auto
  receipt_policy: required      # required, optional, disabled
  system_prompt: |
    You review changes. Be brief, name files and lines.
  model: {temperature: 0}       # and provider: and model:, for one that the server's configuration has
  tools: []                     # commands and MCP servers of the configuration: [count_words, files, git.diff]
  limits: {steps_max: 8, tokens_max: 20000}

It runs on a server without any configuration, where the offline model answers. docs/agents.md says what else a file
can hold, and how providers and tools are configured.

A name and version are defined once: the same file again changes nothing, different content needs a new version.

Examples:
  reprise persona apply reviewer.yaml
  reprise task submit 'Review the last commit' --persona reviewer";

/// `reprise persona`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Define the persona in a file (YAML, TOML or JSON)
    #[command(after_help = EXAMPLE)]
    Apply(ApplyArgs),
    /// List personas, oldest first
    #[command(after_help = "Examples:\n  reprise persona list\n  reprise persona list --json")]
    List(Listing),
    /// Show a persona
    #[command(
        after_help = "A name means the version that was defined last.\n\nExamples:\n  \
        reprise persona show reviewer\n  reprise persona show reviewer@1 --json\n  reprise persona show persona_0123"
    )]
    Show(ShowArgs),
}

/// `reprise persona apply`
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The file: .yaml, .yml, .toml or .json; `-` reads YAML from stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

/// `reprise persona show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Its id, its name, or NAME@VERSION
    #[arg(value_name = "PERSONA")]
    persona: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs one of them.
pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Apply(args) => apply(args).await,
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
    }
}

async fn apply(args: ApplyArgs) -> anyhow::Result<Exit> {
    let body = file::read(&args.file)?;
    let client = args.server.client()?;
    let key = fresh_key()?;
    let made = client
        .post(&["v1", "personas"], Write { body, key: &key })
        .await?;
    for warning in warnings(&client, &made).await {
        warn(format_args!("warning: {warning}"));
    }
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&made)?;
        return Ok(Exit::Ok);
    }
    if is_quiet() {
        out.ids([text(&made, "id")])?;
        return Ok(Exit::Ok);
    }
    let name = text(&made, "name");
    out.line(format_args!(
        "{}  {}@{}",
        shorten(text(&made, "id"), 120),
        shorten(name, 80),
        shorten(text(&made, "version"), 80)
    ))?;
    inform(format_args!(
        "to run it: reprise task submit TEXT --persona {}",
        shorten(name, 80)
    ));
    Ok(Exit::Ok)
}

/// Says which tools and which provider of a persona the server does not have: its tasks would fail one after the other.
async fn warnings(client: &Client, persona: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let wanted = persona.get("tools").and_then(Value::as_array);
    let wanted: Vec<&str> = wanted
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !wanted.is_empty()
        && let Ok((tools, _)) = client.list(&["v1", "tools"], &[], 10_000).await
    {
        let is_there = |name: &str| {
            let server = name.split(['.', ':']).next().unwrap_or(name);
            tools.iter().any(|tool| {
                let known = text(tool, "name");
                known == name || (known == server && text(tool, "source") == "mcp_server")
            })
        };
        let lacking = wanted.iter().filter(|name| !is_there(name));
        warnings.extend(lacking.map(|name| {
            format!(
                "the server has no tool `{}`: add it to its configuration",
                shorten(name, 80)
            )
        }));
    }
    let provider = persona.pointer("/model/provider").and_then(Value::as_str);
    if let Some(provider) = provider
        && let Ok(catalog) = client.get(&["v1", "provider-catalog"], &[]).await
    {
        let known = catalog.get("providers").and_then(Value::as_array);
        let mut known = known.into_iter().flatten();
        if !known.any(|known| text(known, "id") == provider) {
            warnings.push(format!(
                "the server has no provider `{}`: add it to its configuration",
                shorten(provider, 80)
            ));
        }
    }
    warnings
}

/// What is known of a persona that a task runs under.
#[derive(Debug)]
pub(crate) struct PersonaName {
    /// What people call it.
    pub(crate) name: String,
    /// The workflow of its tasks.
    pub(crate) workflow: String,
}

/// Returns the personas of some tasks by id, as far as this key may see them.
pub(crate) async fn names(client: &Client, tasks: &[Task]) -> BTreeMap<String, PersonaName> {
    let mut names = BTreeMap::new();
    for task in tasks {
        let Some(id) = task.raw.get("persona_id").and_then(Value::as_str) else {
            continue;
        };
        if names.contains_key(id) {
            continue;
        }
        let known = match client.get(&["v1", "personas", id], &[]).await {
            Ok(persona) => PersonaName {
                name: format!("{}@{}", text(&persona, "name"), text(&persona, "version")),
                workflow: text(&persona, "entry_workflow").to_owned(),
            },
            Err(_) => PersonaName {
                name: id.to_owned(),
                workflow: "(the persona's)".to_owned(),
            },
        };
        names.insert(id.to_owned(), known);
    }
    names
}

async fn list(listing: Listing) -> anyhow::Result<Exit> {
    let client = listing.server.client()?;
    let wanted = listing.limit();
    let mut pages = Pages::default();
    let mut found: Vec<Value> = Vec::new();
    while found.len() < wanted {
        let Some(page) = pages.next(&client).await? else {
            break;
        };
        found.extend(page);
    }
    let more = found.len() > wanted || pages.has_more();
    found.truncate(wanted);
    let none = "no personas; `reprise persona apply --help` shows how to define one";
    listing.print(found, more, none, |found| {
        let heading = ["PERSONA", "NAME", "VERSION", "WORKFLOW", "TIER", "RECEIPTS"];
        let mut rows = Table::new(&heading);
        for persona in found {
            let members = [
                "id",
                "name",
                "version",
                "entry_workflow",
                "autonomy_tier",
                "receipt_policy",
            ];
            rows.row(members.map(|member| (shorten(text(persona, member), 60), None)));
        }
        rows
    })
}

async fn show(args: ShowArgs) -> anyhow::Result<Exit> {
    let client = args.server.client()?;
    let id = resolve(&client, &args.persona).await?;
    let persona = client.get(&["v1", "personas", &id], &[]).await?;
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&persona)?;
        return Ok(Exit::Ok);
    }
    let mut rows = Table::default();
    let members = persona.as_object().into_iter().flatten();
    let first = ["id", "name", "version", "description", "entry_workflow"];
    let ordered = first
        .into_iter()
        .filter_map(|name| Some((name, persona.get(name)?)));
    let rest = members
        .map(|(name, value)| (name.as_str(), value))
        .filter(|(name, _)| !first.contains(name) && !["object", "system_prompt"].contains(name));
    for (name, value) in ordered.chain(rest) {
        let value = match value {
            Value::Null => continue,
            Value::Array(items) if items.is_empty() => continue,
            Value::Object(members) if members.is_empty() => continue,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        rows.row([
            (name.to_owned(), Some(Paint::Quiet)),
            (shorten(&value, 200), None),
        ]);
    }
    rows.print(&mut out, "")?;
    for line in text(&persona, "system_prompt").lines() {
        out.line(format_args!("  {}", crate::output::printable(line)))?;
    }
    Ok(Exit::Ok)
}

/// Returns the id of what people call a persona: an id, `NAME@VERSION`, or a name, which means the version defined last.
///
/// # Errors
/// No persona has that name.
pub(crate) async fn resolve(client: &Client, words: &str) -> anyhow::Result<String> {
    if let Ok(id) = PersonaId::parse(words) {
        return Ok(id.to_string());
    }
    if let Some((name, version)) = words.rsplit_once('@') {
        return Ok(PersonaId::of(name, version).to_string());
    }
    let mut pages = Pages::default();
    let mut newest = None;
    while let Some(page) = pages.next(client).await? {
        let named = page
            .into_iter()
            .rfind(|persona| text(persona, "name") == words);
        newest = named.or(newest);
    }
    match newest {
        Some(persona) => Ok(text(&persona, "id").to_owned()),
        None => Err(Problem::new(
            format!("no persona is called `{}`", shorten(words, 80)),
            "`reprise persona list` shows them; `reprise persona apply FILE` defines one",
        )
        .answers_no()
        .into()),
    }
}

/// The list of personas, page by page.
#[derive(Default)]
struct Pages {
    cursor: Option<String>,
    ended: bool,
}

impl Pages {
    async fn next(&mut self, client: &Client) -> anyhow::Result<Option<Vec<Value>>> {
        if self.ended {
            return Ok(None);
        }
        let mut query = vec![("limit", "200")];
        if let Some(cursor) = &self.cursor {
            query.push(("cursor", cursor));
        }
        let page = Page::read(&client.get(&["v1", "personas"], &query).await?)?;
        // A server that gives nothing and promises more would be asked forever.
        self.ended = page.next.is_none() || page.data.is_empty();
        self.cursor = page.next;
        Ok(Some(page.data))
    }

    fn has_more(&self) -> bool {
        !self.ended
    }
}
