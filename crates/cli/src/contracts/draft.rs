//! `reprise contracts init`: a first draft from tool definitions or recorded runs.
//!
//! Guesses, and says so: every guess carries a comment, and the draft stays outside of what is in force until a person
//! moves it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::InitArgs;
use super::observed::{self, ObservedTool};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, inform, printable};

const HINT: &str = "a JSON list of tools, as OpenAI, Anthropic or MCP write them, or recorded runs: a bundle, a folder of \
                    bundles, an export or a data directory";

/// A tool as a file of definitions has it.
pub(super) struct Defined {
    pub(super) name: String,
    /// None for a tool that the provider runs itself.
    pub(super) schema: Option<Value>,
    /// Why nobody would take the definition.
    pub(super) wrong: Option<String>,
}

/// Reads a file of tool definitions, in its order.
pub(super) fn schemas(path: &Path) -> anyhow::Result<Vec<Defined>> {
    let hint = "a JSON list of tools, as OpenAI, Anthropic or MCP write them";
    let list = definitions(path)?.unwrap_or_default();
    if list.is_empty() {
        let message = format!("`{}` does not define tools", path.display());
        return Err(Problem::new(message, hint).into());
    }
    // Tools that the provider runs have a type and no name; contracts know them by the type.
    let hosted = |tool: &Value| {
        let is_named = tool.get("name").is_some() || tool.get("function").is_some();
        let kind = tool.get("type").and_then(Value::as_str);
        kind.filter(|kind| !is_named && !["function", "custom"].contains(kind))
            .map(str::to_owned)
    };
    let (provided, own): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|tool| hosted(tool).is_some());
    let (tools, left_out) = defined(&own);
    let tools = tools.into_iter().map(|tool| Defined {
        name: tool.name,
        schema: Some(tool.schema),
        wrong: None,
    });
    let left_out = left_out.into_iter().map(|left| Defined {
        name: left.name,
        schema: None,
        wrong: Some(left.why.to_owned()),
    });
    let provided = provided.iter().filter_map(hosted).map(|name| Defined {
        name,
        schema: None,
        wrong: None,
    });
    Ok(tools.chain(left_out).chain(provided).collect())
}

/// Names that files of their own have: a contract cannot be called so.
const RESERVED: [&str; 2] = ["session", "workflow"];

pub(super) fn run(args: &InitArgs) -> anyhow::Result<Exit> {
    let (tools, left_out) = match definitions(&args.tools)? {
        Some(list) => defined(&list),
        None => recorded_tools(&args.tools)?,
    };
    for left in &left_out {
        inform(format_args!("left out {}", printable(&left.to_string())));
    }
    if tools.is_empty() {
        let message = format!("`{}` names no tools", args.tools.display());
        return Err(Problem::new(message, HINT).into());
    }
    let left_out: Vec<Value> = left_out.iter().map(SkippedTool::as_json).collect();
    fs::create_dir_all(&args.output).or_hint(
        format_args!("`{}`", args.output.display()),
        "name a folder that can be made",
    )?;
    let mut out = Output::stdout();
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for tool in &tools {
        let path = args.output.join(format!("{}.yaml", tool.name));
        files.push((path, tool.contract()));
    }
    files.push((args.output.join("session.yaml"), SESSION.to_owned()));
    let (mut written, mut kept) = (Vec::new(), Vec::new());
    for (path, text) in files {
        if write_new(&path, &text)? {
            if !args.json {
                out.line(path.display())?;
            }
            written.push(path);
        } else {
            inform(format_args!("kept `{}`: it exists", path.display()));
            kept.push(path);
        }
    }
    if args.json {
        out.json(&json!({"written": written, "kept": kept, "left_out": left_out}))?;
    }
    inform("a draft: read every GUESS, then move the files to where your contracts are");
    let is_whole = kept.is_empty() && left_out.is_empty();
    Ok(if is_whole { Exit::Ok } else { Exit::No })
}

/// A tool that gets no contract. Without one it is blocked, so that whoever moves the draft must know.
struct SkippedTool {
    place: usize,
    name: String,
    why: &'static str,
}

impl SkippedTool {
    fn as_json(&self) -> Value {
        json!({"place": self.place, "name": self.name, "why": self.why})
    }
}

impl std::fmt::Display for SkippedTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tool {} `{}`: {}", self.place, self.name, self.why)
    }
}

/// Reads a JSON list of tools; none when the path holds something else, such as a recorded run.
fn definitions(path: &Path) -> anyhow::Result<Option<Vec<Value>>> {
    if path.is_dir() {
        return Ok(None);
    }
    let bytes = fs::read(path).or_hint(format_args!("`{}`", path.display()), HINT)?;
    // Whoever reads one of two members of the same name reads another schema than the next.
    let list = match canon::read(&bytes, canon::Integers::Safe) {
        Ok(Value::Array(list)) => Some(list),
        Ok(Value::Object(mut members)) => match members.remove("tools") {
            Some(Value::Array(list)) => Some(list),
            Some(_) | None => None,
        },
        Ok(_) => Some(Vec::new()),
        Err(error) => {
            // A bundle is more than one JSON document.
            if crate::command::replay::read_source(path).is_err() {
                return Err(error).or_hint(format_args!("`{}`", path.display()), HINT);
            }
            None
        }
    };
    Ok(list)
}

fn defined(list: &[Value]) -> (Vec<Tool>, Vec<SkippedTool>) {
    let (mut tools, mut left_out) = (Vec::new(), Vec::new());
    for (index, entry) in list.iter().enumerate() {
        let read = Tool::read(entry).and_then(|tool| {
            let before = tools.iter().find(|known: &&Tool| known.name == tool.name);
            match before.is_some_and(|known| known.schema != tool.schema) {
                true => Err("it is defined twice, with two schemas"),
                false => Ok((tool, before.is_none())),
            }
        });
        match read {
            Ok((tool, is_new)) => tools.extend(is_new.then_some(tool)),
            Err(why) => {
                let name = entry.get("function").unwrap_or(entry).get("name");
                let name = name.and_then(Value::as_str).unwrap_or("(no name)");
                left_out.push(SkippedTool {
                    place: index + 1,
                    name: name.to_owned(),
                    why,
                });
            }
        }
    }
    (tools, left_out)
}

fn recorded_tools(path: &Path) -> anyhow::Result<(Vec<Tool>, Vec<SkippedTool>)> {
    let (seen, unread) = observed::read(path)?;
    for name in &unread.unreadable {
        inform(format_args!("not read: {}", printable(name)));
    }
    let (mut tools, mut left_out) = (Vec::new(), Vec::new());
    for (index, (name, seen)) in seen.into_iter().enumerate() {
        let definition = json!({"name": name, "parameters": seen.schema()});
        match Tool::read(&definition) {
            Ok(tool) => tools.push(Tool {
                seen: Some(seen),
                ..tool
            }),
            Err(why) => left_out.push(SkippedTool {
                place: index + 1,
                name,
                why,
            }),
        }
    }
    Ok((tools, left_out))
}

/// Writes a file that does not exist yet; returns false when it does.
fn write_new(path: &Path, text: &str) -> anyhow::Result<bool> {
    use std::io::Write as _;
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path);
    match file {
        Ok(mut file) => {
            let hint = "check the disk";
            file.write_all(text.as_bytes())
                .or_hint(format_args!("`{}`", path.display()), hint)?;
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).or_hint(format_args!("`{}`", path.display()), "check the folder"),
    }
}

const SESSION: &str = "# A draft. Limits are GUESSES: set them to what a good run needs, with some room.\n\
schema_version: \"1.0\"\n\
session_limits:\n  max_steps: 50\n  max_attempts: 100\n  max_tool_calls: 100\n  \
loop_detection: { window: 5, threshold: 3 }\n  circuit_breaker: { consecutive_blocks: 5, consecutive_errors: 3 }\n\
# Tools of these classes need `gate: allow` in their own contract.\n\
risk_defaults: { read: allow, write: allow, destructive: block, admin: block, financial: block }\n";

/// A tool definition.
struct Tool {
    name: String,
    description: String,
    schema: Value,
    read_only: Option<bool>,
    destructive: Option<bool>,
    /// What recorded runs show of it.
    seen: Option<ObservedTool>,
}

impl Tool {
    fn read(tool: &Value) -> Result<Self, &'static str> {
        let inner = tool.get("function").unwrap_or(tool);
        let name = inner.get("name").and_then(Value::as_str);
        let name = name.ok_or("it has no name")?;
        // The name becomes a file name.
        let fits = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
        if name.is_empty() || !name.chars().all(fits) || name.starts_with('.') {
            return Err(
                "a name has letters, digits, `_`, `-` and `.`, and does not begin with a dot",
            );
        }
        if RESERVED.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(
                "`session.yaml` and `workflow.yaml` are files of their own: rename the tool",
            );
        }
        // An entry that can be read in two ways would be judged by one and carried out by the other.
        let outer = tool.get("name").and_then(Value::as_str);
        if outer.is_some_and(|outer| outer != name) {
            return Err("it has two names");
        }
        let schemas = ["parameters", "input_schema", "inputSchema", "schema"];
        let forms = [Some(tool), tool.get("function")];
        let forms = forms.into_iter().flatten();
        let schemas = forms.flat_map(|form| schemas.iter().filter_map(|name| form.get(*name)));
        let schemas: Vec<&Value> = schemas.collect();
        let schema = schemas.first().copied();
        if schemas.iter().any(|other| Some(*other) != schema) {
            return Err("it has two schemas");
        }
        let hint = |name: &str| tool.get("annotations")?.get(name)?.as_bool();
        let description = inner.get("description").and_then(Value::as_str);
        Ok(Self {
            name: name.to_owned(),
            description: description.unwrap_or_default().to_owned(),
            schema: schema.cloned().unwrap_or(Value::Null),
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint"),
            seen: None,
        })
    }

    /// Guesses the risk class: what the definition says, else the words of the name, else the stricter side.
    fn side_effect(&self) -> (&'static str, &'static str) {
        if self.read_only == Some(true) {
            return ("read", "the definition says it only reads");
        }
        if self.destructive == Some(true) {
            return ("destructive", "the definition says it destroys");
        }
        let name = self.name.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        if has(&[
            "pay",
            "refund",
            "charge",
            "transfer",
            "invoice",
            "buy",
            "order_place",
        ]) {
            ("financial", "its name suggests money")
        } else if has(&["delete", "remove", "drop", "destroy", "purge", "cancel"]) {
            ("destructive", "its name suggests deleting")
        } else if has(&[
            "grant",
            "revoke",
            "permission",
            "role",
            "admin",
            "config",
            "deploy",
        ]) {
            ("admin", "its name suggests rights or settings")
        } else if has(&[
            "get", "list", "find", "search", "read", "fetch", "look", "query", "show",
        ]) {
            ("read", "its name suggests reading")
        } else {
            (
                "write",
                "its name does not say; writing is stricter than reading",
            )
        }
    }

    fn contract(&self) -> String {
        let (class, why) = self.side_effect();
        let mut text = String::new();
        let summary = crate::output::shorten(&self.description, 100);
        if !summary.is_empty() {
            let _ = writeln!(text, "# {summary}");
        }
        let name = Value::from(self.name.as_str());
        let _ = writeln!(text, "tool: {name}");
        let _ = writeln!(text, "side_effect: {class} # GUESS: {why}");
        if ["destructive", "admin", "financial"].contains(&class) {
            let _ = writeln!(
                text,
                "# gate: allow # GUESS: closed by `risk_defaults` until you decide"
            );
        }
        let _ = writeln!(
            text,
            "# The schema that the tool is offered with is checked too (`schema_derived: true`)."
        );
        let lines = self.argument_lines();
        if !lines.is_empty() {
            let _ = writeln!(text, "argument_value_invariants:");
            text.push_str(&lines);
        }
        if let Some(seen) = &self.seen {
            text.push_str(&seen_lines(seen));
        }
        text
    }

    /// Writes down what the schema already says, as a place to tighten it.
    fn argument_lines(&self) -> String {
        let mut text = String::new();
        let required: Vec<&str> = self
            .schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let properties = self.schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            let Some(kind) = schema.get("type").and_then(Value::as_str) else {
                continue;
            };
            let path = format!("$[{}]", Value::from(name.as_str()));
            let path = Value::from(path);
            let present = if required.contains(&name.as_str()) {
                ""
            } else {
                ", when_present: true"
            };
            let bound = match kind {
                "string" => ", length_lte: 2000",
                "number" | "integer" => ", gte: 0",
                _ => "",
            };
            let seen = self.seen.as_ref();
            let seen = seen.and_then(|seen| seen.arguments.get(name)?.note());
            let note = match (bound.is_empty(), seen) {
                (true, None) => String::new(),
                (true, Some(seen)) => format!(" # {seen}"),
                (false, None) => " # GUESS: the bound".to_owned(),
                (false, Some(seen)) => format!(" # GUESS: the bound; {seen}"),
            };
            let _ = writeln!(
                text,
                "  - {{ path: {path}, type: {kind}{bound}{present} }}{note}"
            );
        }
        text
    }
}

/// Says how often a tool was seen, and which order a precondition could demand.
fn seen_lines(seen: &ObservedTool) -> String {
    let mut text = String::new();
    if seen.calls == 0 {
        let _ = writeln!(text, "# Offered in the recorded runs, and never called.");
        return text;
    }
    let _ = writeln!(
        text,
        "# Called {} in {}.",
        many_times(seen.calls),
        crate::output::plural(seen.runs, "recorded run")
    );
    let after = seen.after.iter().flatten();
    let mut after = after
        .filter(|tool| RESERVED.iter().all(|own| own != tool))
        .peekable();
    if after.peek().is_some() {
        let _ = writeln!(
            text,
            "# preconditions: # GUESS: these had returned before every call that was seen"
        );
        for tool in after {
            let tool = Value::from(tool.as_str());
            let _ = writeln!(text, "#   - requires_prior_tool: {tool}");
        }
    }
    text
}

fn many_times(count: usize) -> String {
    crate::output::plural(count, "time")
}
