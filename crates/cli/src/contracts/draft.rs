//! `reprise contracts init`: a first draft from tool definitions.
//!
//! Guesses, and says so: every guess carries a comment, and the draft stays outside of what is in force until a person
//! moves it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::InitArgs;
use super::files::read_text;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, printable, talk};

pub(super) fn run(args: &InitArgs) -> anyhow::Result<Exit> {
    let text = read_text(&args.tools)?;
    let hint = "a JSON list of tools, as OpenAI, Anthropic or MCP write them";
    let tools: Value =
        serde_json::from_str(&text).or_hint(format_args!("`{}`", args.tools.display()), hint)?;
    let list = tools.as_array().or_else(|| tools.get("tools")?.as_array());
    let mut left_out: Vec<Value> = Vec::new();
    let mut tools: Vec<Tool> = Vec::new();
    for (index, entry) in list.into_iter().flatten().enumerate() {
        match Tool::read(entry) {
            Some(tool) => tools.push(tool),
            // A tool without a contract is blocked, so that whoever moves the draft must know.
            None => {
                let name = entry.get("function").unwrap_or(entry).get("name");
                let name = name.and_then(Value::as_str).unwrap_or("(no name)");
                talk(format_args!(
                    "left out tool {} `{}`: a name has letters, digits, `_`, `-` and `.`, and does not begin with a dot",
                    index + 1,
                    printable(name)
                ));
                left_out.push(json!({"place": index + 1, "name": name}));
            }
        }
    }
    if tools.is_empty() {
        let message = format!("`{}` names no tools", args.tools.display());
        return Err(Problem::new(message, hint).into());
    }
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
            talk(format_args!("kept `{}`: it exists", path.display()));
            kept.push(path);
        }
    }
    if args.json {
        out.json(&json!({"written": written, "kept": kept, "left_out": left_out}))?;
    }
    talk("a draft: read every GUESS, then move the files to where your contracts are");
    let is_whole = kept.is_empty() && left_out.is_empty();
    Ok(if is_whole { Exit::Ok } else { Exit::No })
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
}

impl Tool {
    fn read(tool: &Value) -> Option<Self> {
        let inner = tool.get("function").unwrap_or(tool);
        let name = inner.get("name")?.as_str()?;
        let schemas = ["parameters", "input_schema", "inputSchema"];
        let schema = schemas.iter().find_map(|name| inner.get(*name));
        let hint = |name: &str| tool.get("annotations")?.get(name)?.as_bool();
        let description = inner.get("description").and_then(Value::as_str);
        // The name becomes a file name.
        let fits = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
        (!name.is_empty() && name.chars().all(fits) && !name.starts_with('.')).then(|| Self {
            name: name.to_owned(),
            description: description.unwrap_or_default().to_owned(),
            schema: schema.cloned().unwrap_or(Value::Null),
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint"),
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
            ("financial", "its name speaks of money")
        } else if has(&["delete", "remove", "drop", "destroy", "purge", "cancel"]) {
            ("destructive", "its name speaks of removing")
        } else if has(&[
            "grant",
            "revoke",
            "permission",
            "role",
            "admin",
            "config",
            "deploy",
        ]) {
            ("admin", "its name speaks of rights or settings")
        } else if has(&[
            "get", "list", "find", "search", "read", "fetch", "look", "query", "show",
        ]) {
            ("read", "its name speaks of reading")
        } else {
            (
                "write",
                "its name does not say; writing is the stricter side of reading",
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
            let note = if bound.is_empty() {
                ""
            } else {
                " # GUESS: the bound"
            };
            let _ = writeln!(
                text,
                "  - {{ path: {path}, type: {kind}{bound}{present} }}{note}"
            );
        }
        text
    }
}
