//! `reprise diff`: where two runs part, from a server, from bundles, or from one of each.

use std::path::Path;

use canon::Value;
use runs::replay::Source;
use runs::replay::diff::{Reveal, compare};
use runs::workflow::{Registry, builtin};
use serde_json::json;

use crate::args::ServerArgs;
use crate::command::replay::{read_source, source_of};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, printable, shorten};

/// What `--help` shows at its end.
pub(crate) const EXAMPLES: &str = "Ids, times and positions are a run's own and not compared; neither are provider bookkeeping fields.\n\
    With two files nothing but files is read. Exit 0 when the runs are equal, 1 when they differ.\n\n\
    Examples:\n  reprise diff task_0123 task_replay_0123\n  reprise diff before.bundle after.bundle\n  \
    reprise diff task_0123 task_0456 --json | jq .first_divergence";

/// `reprise diff`
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The first run: a finished task, or a file that `reprise task export` wrote
    a: String,
    /// The second run
    b: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs it.
pub(crate) fn run(args: &DiffArgs) -> anyhow::Result<Exit> {
    let is_file = |name: &str| Path::new(name).is_file();
    if let Some(name) = [&args.a, &args.b]
        .into_iter()
        .find(|name| !is_file(name) && !name.starts_with("task_"))
    {
        let message = format!("`{name}` is neither a file nor the id of a task");
        let hint = "name a task, or a file that `reprise task export` wrote";
        return Err(Problem::new(message, hint).into());
    }
    let diff = match (is_file(&args.a), is_file(&args.b)) {
        (true, true) => compared(
            &read_source(args.a.as_ref())?,
            &read_source(args.b.as_ref())?,
        )?,
        (false, false) => crate::wait(async {
            let client = args.server.client()?;
            let path = ["v1", "tasks", &args.a, "diff"];
            client.get(&path, &[("other", &args.b)]).await
        })?,
        (true, false) => compared(&read_source(args.a.as_ref())?, &fetched(args, &args.b)?)?,
        (false, true) => compared(&fetched(args, &args.a)?, &read_source(args.b.as_ref())?)?,
    };
    let mut out = Output::stdout();
    if args.server.json {
        out.json(&diff)?;
    } else {
        Printer { out, diff: &diff }.all()?;
    }
    Ok(match diff.get("equal") {
        Some(Value::Bool(true)) => Exit::Ok,
        _ => Exit::No,
    })
}

fn compared(a: &Source, b: &Source) -> anyhow::Result<Value> {
    let diff = compare(a, b, &Registry::new(builtin()), Reveal::All);
    serde_json::to_value(diff).or_hint("the comparison", "report this")
}

fn fetched(args: &DiffArgs, task: &str) -> anyhow::Result<Source> {
    let bytes = crate::wait(async {
        let client = args.server.client()?;
        let path = ["v1", "tasks", task, "bundle"];
        client.get_bytes(&path, &[]).await
    })?;
    source_of(&bytes, &format!("`{task}`"))
}

/// Writes a comparison for people.
struct Printer<'a> {
    out: Output,
    diff: &'a Value,
}

impl Printer<'_> {
    fn all(&mut self) -> anyhow::Result<()> {
        self.runs()?;
        if self.diff.get("equal") == Some(&Value::Bool(true)) {
            let text = "equal: nothing differs but ids and times";
            let text = self.out.paint(Paint::Good, text);
            self.out.line("")?;
            return self.out.line(text);
        }
        self.parting()?;
        self.inputs()?;
        self.effects()?;
        self.end()?;
        self.usage()
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.diff.pointer(pointer).and_then(Value::as_str)
    }

    fn number(&self, pointer: &str) -> i64 {
        let number = self.diff.pointer(pointer).and_then(Value::as_i64);
        number.unwrap_or_default()
    }

    fn list(&self, pointer: &str) -> Vec<Value> {
        let list = self.diff.pointer(pointer).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    }

    fn heading(&mut self, text: &str) -> anyhow::Result<()> {
        let text = self.out.paint(Paint::Heading, text);
        self.out.line("")?;
        self.out.line(text)
    }

    fn runs(&mut self) -> anyhow::Result<()> {
        let mut table = Table::default();
        for side in ["a", "b"] {
            let text = |name: &str| self.text(&format!("/{side}/{name}")).unwrap_or_default();
            let mode = text("mode");
            let kind = match self.text(&format!("/{side}/source_task_id")) {
                Some(source) => format!("{mode} replay of {source}"),
                None => format!("workflow {}", text("workflow")),
            };
            let status = text("status");
            let paint = match status {
                "COMPLETED" => Paint::Good,
                _ => Paint::Bad,
            };
            table.row([
                (side.to_owned(), Some(Paint::Quiet)),
                (shorten(text("task_id"), 120), None),
                (shorten(status, 40), Some(paint)),
                (
                    format!("{} events", self.number(&format!("/{side}/events"))),
                    None,
                ),
                (shorten(&kind, 200), Some(Paint::Quiet)),
            ]);
        }
        table.print(&mut self.out, "")
    }

    fn parting(&mut self) -> anyhow::Result<()> {
        let what = match self.text("/first_divergence/what") {
            None => return Ok(()),
            Some("missing") => "only in a".to_owned(),
            Some("added") => "only in b".to_owned(),
            Some(_) => {
                let members = self.list("/first_divergence/members");
                let members: Vec<&str> = members.iter().filter_map(Value::as_str).collect();
                format!("differs in {}", members.join(", "))
            }
        };
        let cause = self
            .text("/first_divergence/override_key")
            .map(|key| format!(", overridden by {key}"))
            .unwrap_or_default();
        self.heading("first difference")?;
        let mut table = Table::default();
        for side in ["a", "b"] {
            let at = format!("/first_divergence/{side}");
            let Some(kind) = self.text(&format!("{at}/event")) else {
                continue;
            };
            let text = |name: &str| self.text(&format!("{at}/{name}")).unwrap_or_default();
            table.row([
                (side.to_owned(), Some(Paint::Quiet)),
                (
                    format!("event {}", self.number(&format!("{at}/sequence"))),
                    None,
                ),
                (shorten(kind, 80), None),
                (shorten(text("effect_key"), 120), None),
                (shorten(text("event_id"), 80), Some(Paint::Quiet)),
            ]);
        }
        table.print(&mut self.out, "  ")?;
        self.out.line(format_args!(
            "  {}",
            shorten(&format!("{what}{cause}"), 200)
        ))
    }

    fn inputs(&mut self) -> anyhow::Result<()> {
        let inputs = self.list("/inputs");
        if inputs.is_empty() {
            return Ok(());
        }
        self.heading("given")?;
        self.changes(&inputs, "  ")
    }

    /// Shows what differs member by member: its name, then the words.
    fn changes(&mut self, changes: &[Value], indent: &str) -> anyhow::Result<()> {
        for change in changes {
            let text = |name: &str| change.get(name).and_then(Value::as_str);
            let is_none = |name: &str| change.get(name).is_none_or(Value::is_null);
            let what = match text("what").unwrap_or_default() {
                // Whatever it belongs to is told by the line above.
                "request" | "value" => String::new(),
                what => what.replace('_', " "),
            };
            let mut title = vec![what];
            title.extend(text("member").map(str::to_owned));
            title.extend(text("role").map(|role| format!("({role})")));
            title.retain(|word| !word.is_empty());
            let which = match (is_none("before"), is_none("after")) {
                (true, false) => ", only in b",
                (false, true) => ", only in a",
                _ => "",
            };
            let title = shorten(&format!("{}{which}", title.join(" ")), 120);
            self.out.line(format_args!("{indent}{title}"))?;
            self.lines(change.get("text"), indent)?;
        }
        Ok(())
    }

    fn effects(&mut self) -> anyhow::Result<()> {
        let effects = self.list("/effects");
        if effects.is_empty() {
            return Ok(());
        }
        self.heading("asked and answered")?;
        for effect in &effects {
            let text = |name: &str| effect.get(name).and_then(Value::as_str).unwrap_or_default();
            let differs = |name: &str| effect.get(name).is_some_and(|value| !value.is_null());
            let mut notes = Vec::new();
            match text("what") {
                "missing" => notes.push("only in a"),
                "added" => notes.push("only in b"),
                _ => {
                    if differs("request") {
                        notes.push("asked differently");
                    }
                    if differs("value") || differs("outcome") {
                        notes.push("answered differently");
                    }
                }
            }
            if effect.get("overridden") == Some(&Value::Bool(true)) {
                notes.push("overridden");
            }
            match text("note") {
                "stale_input" => notes.push("the recorded answer was used"),
                "refreshed" => notes.push("performed live"),
                _ => {}
            }
            let key = self.out.paint(Paint::Waiting, &shorten(text("key"), 120));
            self.out
                .line(format_args!("  {key}  {}", notes.join(", ")))?;
            for (name, changes) in [("request", "request_changes"), ("value", "value_changes")] {
                let changes = effect.get(changes).and_then(Value::as_array);
                let changes = changes.cloned().unwrap_or_default();
                self.changes(&changes, "    ")?;
                let is_told = !changes.is_empty() || (name == "value" && differs("text"));
                if !is_told && text("what") == "changed" {
                    self.digests(effect, name)?;
                }
            }
            self.lines(effect.get("text"), "  ")?;
        }
        Ok(())
    }

    /// Shows digests where there are no words.
    fn digests(&mut self, effect: &Value, name: &str) -> anyhow::Result<()> {
        if effect.get(name).is_some_and(Value::is_object) {
            let digest = |member: &str| {
                let digest = effect.pointer(&format!("/{name}/{member}"));
                digest.and_then(Value::as_str).unwrap_or("not stated")
            };
            let (before, after) = (digest("before_sha256"), digest("after_sha256"));
            let lines = json!({"before": [format!("{name} {before}")], "after": [format!("{name} {after}")]});
            self.lines(Some(&lines), "  ")?;
        }
        Ok(())
    }

    fn lines(&mut self, text: Option<&Value>, indent: &str) -> anyhow::Result<()> {
        let Some(text) = text.filter(|text| text.is_object()) else {
            return Ok(());
        };
        for (member, sign, paint) in [("before", '-', Paint::Bad), ("after", '+', Paint::Good)] {
            let lines = text.get(member).and_then(Value::as_array);
            for line in lines.into_iter().flatten().filter_map(Value::as_str) {
                let line = printable(line).replace('\t', "    ");
                let line = self.out.paint(paint, &format!("{sign} {line}"));
                self.out.line(format_args!("{indent}  {line}"))?;
            }
        }
        let omitted = text.get("omitted").and_then(Value::as_u64).unwrap_or(0);
        if omitted > 0 {
            let note = self
                .out
                .paint(Paint::Quiet, &format!("… and {omitted} more lines"));
            self.out.line(format_args!("{indent}  {note}"))?;
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let failure = |side: &str| {
            let code = self.text(&format!("/{side}/failure/code"));
            let message = self.text(&format!("/{side}/failure/message"));
            let failure = code.map(|code| format!(" {code}: {}", message.unwrap_or_default()));
            let status = self.text(&format!("/{side}/status")).unwrap_or_default();
            format!("{status}{}", failure.unwrap_or_default())
        };
        let (a, b) = (failure("a"), failure("b"));
        let answer = self.diff.get("answer").filter(|answer| answer.is_object());
        if a == b && answer.is_none() {
            return Ok(());
        }
        self.heading("end")?;
        if a != b {
            let lines = json!({"before": [shorten(&a, 300)], "after": [shorten(&b, 300)]});
            self.lines(Some(&lines), "  ")?;
        }
        self.lines(answer, "  ")
    }

    fn usage(&mut self) -> anyhow::Result<()> {
        let mut unknown: Vec<String> = ["a", "b"]
            .iter()
            .flat_map(|side| self.list(&format!("/{side}/usage/price_unknown")))
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        self.heading("used")?;
        let mut table = Table::new(&["", "A", "B", "DIFFERENCE"]);
        for (name, member) in [
            ("model calls", "model_calls"),
            ("tokens read", "input_tokens"),
            ("tokens written", "output_tokens"),
        ] {
            let count = |side: &str| self.number(&format!("/{side}/usage/{member}")).to_string();
            let difference = self.number(&format!("/usage/{member}"));
            table.row([
                (name.to_owned(), Some(Paint::Quiet)),
                (count("a"), None),
                (count("b"), None),
                (format!("{difference:+}"), None),
            ]);
        }
        let cost = |side: &str| {
            let known = dollars(self.number(&format!("/{side}/usage/cost_micros")));
            let list = self.list(&format!("/{side}/usage/price_unknown"));
            match list.is_empty() {
                true => known,
                false => format!("{known} + unknown"),
            }
        };
        let difference = match self.diff.pointer("/usage/cost_micros") {
            Some(Value::Number(_)) => {
                let difference = self.number("/usage/cost_micros");
                let sign = if difference < 0 { "-" } else { "+" };
                format!("{sign}{}", dollars(difference.abs()))
            }
            _ => "unknown".to_owned(),
        };
        table.row([
            ("cost in USD".to_owned(), Some(Paint::Quiet)),
            (cost("a"), None),
            (cost("b"), None),
            (difference, None),
        ]);
        table.print(&mut self.out, "  ")?;
        for (note, names) in [
            ("no price is known for", unknown),
            ("the log states no use for", self.without_use()),
        ] {
            if !names.is_empty() {
                let text = shorten(&format!("{note} {}", names.join(", ")), 300);
                let text = self.out.paint(Paint::Quiet, &text);
                self.out.line(format_args!("  {text}"))?;
            }
        }
        Ok(())
    }

    /// Returns the model calls of which the log states no use.
    fn without_use(&self) -> Vec<String> {
        let sides = ["a", "b"].into_iter().flat_map(|side| {
            let keys = self.list(&format!("/{side}/usage/use_unknown"));
            keys.into_iter()
                .filter_map(move |key| Some(format!("{} of {side}", key.as_str()?)))
        });
        sides.collect()
    }
}

/// Writes millionths of a dollar exactly.
fn dollars(micros: i64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}
