//! `reprise task show`: a run as a person wants to read it, from a server or from a bundle alone.
//!
//! What is told is the server's transcript of the run (`runs::replay::transcript`); a bundle is told by the same code.
//! Nothing is cut off: lines are as long as what was said.

use std::path::Path;

use canon::{Value, jcs, sha256};
use runs::replay::diff::Reveal;
use runs::replay::transcript::transcript;
use runs::replay::{Bundle, message_words};
use runs::workflow::{Registry, builtin};

use crate::args::TaskShowArgs;
use crate::client::{Client, Page, Target};
use crate::command::replay::{read_bytes, source_of};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Pager, Paint, plural, printable};

/// Shows a run.
pub(super) async fn run(args: TaskShowArgs) -> anyhow::Result<Exit> {
    let file = Path::new(&args.task);
    let told = match file.is_file() {
        true => of_bundle(file, args.step)?,
        false => {
            let client = Client::new(Target::find(&args.connection)?)?;
            let step = args.step.map(|step| step.to_string());
            let query: Vec<(&str, &str)> =
                step.iter().map(|step| ("step", step.as_str())).collect();
            let path = ["v1", "tasks", &args.task, "transcript"];
            client.get(&path, &query).await?
        }
    };
    if args.raw {
        return raw(&args, &told).await;
    }
    if args.json {
        Output::stdout().json(&told)?;
        return Ok(verdict(&told));
    }
    let mut out = Pager::start(args.no_pager);
    TranscriptPrinter {
        out: &mut out,
        told: &told,
        is_whole: args.step.is_some(),
    }
    .all()?;
    out.finish();
    Ok(verdict(&told))
}

/// Looking at a run is no judgement of how it ended; a request that is not the recorded one is.
fn verdict(told: &Value) -> Exit {
    let steps = told.get("steps").and_then(Value::as_array);
    let differs = steps.into_iter().flatten().any(|step| {
        let check = |name: &str| step.get(name).and_then(Value::as_str) == Some("differs");
        check("request_check") || check("value_check")
    });
    match differs {
        true => Exit::No,
        false => Exit::Ok,
    }
}

fn of_bundle(file: &Path, step: Option<usize>) -> anyhow::Result<Value> {
    let source = source_of(&read_bytes(file)?, &format!("`{}`", file.display()))?;
    let told = transcript(&source, None, &Registry::new(builtin()), Reveal::All, step);
    if let Some(step) = step
        && step > told.steps_total
    {
        let message = format!("the run has {} steps, not {step}", told.steps_total);
        return Err(Problem::new(message, "`reprise task show TASK` numbers them").into());
    }
    serde_json::to_value(told).or_hint("the transcript", "report this")
}

/// Writes the stored bytes of events, each after its digest; content that lies beside an event follows it.
async fn raw(args: &TaskShowArgs, told: &Value) -> anyhow::Result<Exit> {
    let file = Path::new(&args.task);
    let mut out = Output::stdout();
    let wanted = wanted_events(told, args.step.is_some());
    let is_wanted = |event: &Value| {
        let id = event.get("id").and_then(Value::as_str);
        wanted.is_empty() || id.is_some_and(|id| wanted.iter().any(|wanted| wanted == id))
    };
    if file.is_file() {
        let bundle = Bundle::read(&read_bytes(file)?).or_hint(
            format_args!("`{}`", file.display()),
            "name a file that `reprise task export` wrote",
        )?;
        for (bytes, event) in bundle.events() {
            let value: Value = serde_json::from_slice(bytes).or_hint("an event", "report this")?;
            if !is_wanted(&value) {
                continue;
            }
            stored(&mut out, bytes)?;
            for (member, digest) in external_members(&value) {
                let blob = bundle
                    .blobs()
                    .iter()
                    .find(|(known, _)| known.to_string() == digest);
                match blob {
                    Some((_, bytes)) => beside(&mut out, &event.id, &member, bytes)?,
                    None => out.line(format_args!("{digest}  {member}: not in the bundle"))?,
                }
            }
        }
        return Ok(Exit::Ok);
    }
    let client = Client::new(Target::find(&args.connection)?)?;
    let mut after: Option<String> = None;
    loop {
        let mut query = vec![("limit", "200")];
        if let Some(after) = &after {
            query.push(("after_event_id", after));
        }
        let path = ["v1", "tasks", &args.task, "events"];
        let page = Page::read(&client.get(&path, &query).await?)?;
        for event in page.data.iter().filter(|event| is_wanted(event)) {
            // Stored events are canonical: these are their bytes.
            stored(&mut out, &jcs(event))?;
            let id = event.get("id").and_then(Value::as_str).unwrap_or_default();
            for (member, digest) in external_members(event) {
                let path = ["v1", "artifacts", id, "content"];
                match client.get_bytes(&path, &[("member", &member)]).await {
                    Ok(bytes) => beside(&mut out, id, &member, &bytes)?,
                    Err(error) => out.line(format_args!("{digest}  {member}: {error}"))?,
                }
            }
        }
        let last = page.data.last().and_then(|event| event.get("id")?.as_str());
        match (last, page.data.len()) {
            (Some(last), 200) => after = Some(last.to_owned()),
            _ => return Ok(Exit::Ok),
        }
    }
}

fn stored(out: &mut Output, bytes: &[u8]) -> anyhow::Result<()> {
    let text = String::from_utf8_lossy(bytes);
    out.line(format_args!("{}  {text}", sha256(bytes)))
}

fn beside(out: &mut Output, event: &str, member: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let text = printable(&String::from_utf8_lossy(bytes));
    out.line(format_args!(
        "{}  {event} `{member}`  {text}",
        sha256(bytes)
    ))
}

/// Returns what an event keeps beside itself: member and digest.
fn external_members(event: &Value) -> Vec<(String, String)> {
    let listed = event.pointer("/payload/blobs").and_then(Value::as_object);
    let listed = listed
        .into_iter()
        .flatten()
        .filter_map(|(member, described)| {
            let digest = described.get("sha256")?.as_str()?;
            Some((member.clone(), digest.to_owned()))
        });
    listed.collect()
}

/// Returns the events of the steps that are told; none for all.
fn wanted_events(told: &Value, is_narrowed: bool) -> Vec<String> {
    if !is_narrowed {
        return Vec::new();
    }
    let steps = told.get("steps").and_then(Value::as_array);
    let places = steps.into_iter().flatten().flat_map(|step| {
        ["/requested/event_id", "/recorded/event_id"].map(|place| step.pointer(place).cloned())
    });
    let ids = places
        .flatten()
        .filter_map(|id| id.as_str().map(str::to_owned));
    ids.collect()
}

/// Writes a transcript for people.
struct TranscriptPrinter<'a> {
    out: &'a mut Pager,
    told: &'a Value,
    /// True when one step is told, with everything.
    is_whole: bool,
}

impl TranscriptPrinter<'_> {
    fn all(&mut self) -> anyhow::Result<()> {
        if !self.is_whole {
            self.head()?;
        }
        let steps = self.told.get("steps").and_then(Value::as_array);
        for step in steps.into_iter().flatten() {
            self.step(step)?;
        }
        if !self.is_whole {
            self.end()?;
        }
        Ok(())
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.out.line(text)
    }

    fn heading(&mut self, text: &str) -> anyhow::Result<()> {
        let text = self.out.paint(Paint::Heading, text);
        self.line("")?;
        self.line(&text)
    }

    /// Writes text under an indentation, all of it.
    fn block(&mut self, indent: &str, text: &str) -> anyhow::Result<()> {
        for line in printable(text).lines() {
            self.line(&format!("{indent}{line}"))?;
        }
        Ok(())
    }

    fn head(&mut self) -> anyhow::Result<()> {
        let told = self.told;
        let text = |pointer: &str| text_at(told, pointer);
        let status = text("/status");
        let painted = self.out.paint(status_paint(&status), &status);
        self.line(&format!("{}  {painted}", text("/task_id")))?;
        let persona = match text("/persona/name").as_str() {
            "" => String::new(),
            name => format!(", persona {name}@{}", text("/persona/version")),
        };
        self.line(&format!(
            "workflow {}{persona}, submitted by {} at {}",
            text("/workflow"),
            text("/submitted_by"),
            text("/submitted_at"),
        ))?;
        if !text("/replay/source_task_id").is_empty() {
            self.line(&format!(
                "{} replay of {}",
                text("/replay/mode"),
                text("/replay/source_task_id")
            ))?;
        }
        self.heading("Asked")?;
        match told.get("input") {
            Some(Value::String(input)) => self.block("  ", input),
            Some(Value::Null) | None => self.line("  (not visible to this key)"),
            Some(other) => self.block("  ", &format!("{other:#}")),
        }
    }

    fn step(&mut self, step: &Value) -> anyhow::Result<()> {
        let text = |pointer: &str| text_at(step, pointer);
        let what = text("/what");
        let title = match what.as_str() {
            "model" => "model",
            "tool" => "tool",
            "tool_refused" => "tool, not used:",
            "approval" => "approval",
            "question" => "question",
            _ => "looked up",
        };
        let name = match text("/tool/name") {
            name if name.is_empty() => text("/key"),
            name => name,
        };
        let mut facts = Vec::new();
        if let Some(ms) = step.get("duration_ms").and_then(Value::as_u64) {
            facts.push(duration(ms));
        }
        facts.extend(used(step));
        if text("/outcome") == "error" {
            facts.push("error".to_owned());
        }
        facts.extend(
            step.get("note")
                .and_then(Value::as_str)
                .map(|note| note.replace('_', " ")),
        );
        let number = step.get("step").and_then(Value::as_u64).unwrap_or_default();
        self.heading(&format!("{number}  {title} {name}"))?;
        if !facts.is_empty() {
            let facts = self.out.paint(Paint::Quiet, &facts.join("  "));
            self.line(&format!("  {facts}"))?;
        }
        match what.as_str() {
            "model" => self.model(step)?,
            "tool" | "tool_refused" => self.tool(step)?,
            "approval" | "question" => return self.decision(step),
            _ => self.fact(step)?,
        }
        self.answer(step)
    }

    fn model(&mut self, step: &Value) -> anyhow::Result<()> {
        self.check(step)?;
        let Some(Value::Object(request)) = step.get("request") else {
            return Ok(());
        };
        let mut settings = request.clone();
        let messages = settings.remove("messages");
        let tools = settings.remove("tools");
        if !settings.is_empty() {
            self.line(&format!("  settings  {}", Value::Object(settings)))?;
        }
        if let Some(Value::Array(tools)) = tools {
            let names: Vec<String> = tools
                .iter()
                .map(|tool| text_at(tool, "/function/name"))
                .collect();
            self.line(&format!("  tools     {}", printable(&names.join(", "))))?;
            if self.is_whole {
                for tool in &tools {
                    self.block("    ", &format!("{tool:#}"))?;
                }
            }
        }
        let earlier = step
            .get("request_continues")
            .filter(|earlier| earlier.is_object());
        if let Some(earlier) = earlier {
            let count = earlier
                .get("messages")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let before = earlier
                .get("step")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let same = match earlier.get("same_tools") {
                Some(Value::Bool(true)) => ", and the same tools",
                _ => "",
            };
            let text = format!("messages 1 to {count} as in step {before}{same}; then:");
            let text = self.out.paint(Paint::Quiet, &text);
            self.line(&format!("  {text}"))?;
        }
        let messages = messages.as_ref().and_then(Value::as_array);
        for message in messages.into_iter().flatten() {
            let role = text_at(message, "/role");
            let role = self.out.paint(Paint::Heading, &printable(&role));
            self.line(&format!("  {role}"))?;
            self.block("    ", &message_words(message))?;
        }
        Ok(())
    }

    fn check(&mut self, step: &Value) -> anyhow::Result<()> {
        let digest = text_at(step, "/request_sha256");
        let (paint, text) = match text_at(step, "/request_check").as_str() {
            "matches" => (Paint::Quiet, format!("request   {digest}, as recorded")),
            "differs" => (
                Paint::Bad,
                format!(
                    "request   NOT as recorded: the record says {digest}, what follows has a different digest"
                ),
            ),
            "hidden" => (
                Paint::Waiting,
                format!("request   {digest} (not visible to this key)"),
            ),
            _ => (
                Paint::Waiting,
                format!("request   {digest}; its text cannot be reconstructed from this record"),
            ),
        };
        let text = self.out.paint(paint, &text);
        self.line(&format!("  {text}"))
    }

    fn tool(&mut self, step: &Value) -> anyhow::Result<()> {
        if text_at(step, "/what") == "tool" {
            self.check(step)?;
        }
        let arguments = step.pointer("/tool/arguments").cloned().unwrap_or_default();
        self.line("  arguments")?;
        let text = match self.is_whole {
            true => format!("{arguments:#}"),
            false => arguments.to_string(),
        };
        self.block("    ", &text)?;
        let effects = step
            .get("side_effects")
            .filter(|effects| effects.is_object());
        if let (Some(effects), true) = (effects, self.is_whole) {
            self.line("  side effects")?;
            self.block("    ", &format!("{effects:#}"))?;
        }
        Ok(())
    }

    fn fact(&mut self, step: &Value) -> anyhow::Result<()> {
        if self.is_whole {
            self.check(step)?;
            let request = step.get("request").cloned().unwrap_or_default();
            self.block("  ", &format!("{request:#}"))?;
        }
        Ok(())
    }

    fn answer(&mut self, step: &Value) -> anyhow::Result<()> {
        let what = text_at(step, "/what");
        match text_at(step, "/value_check").as_str() {
            "differs" => {
                let text = "answer    NOT as recorded: its digest is different";
                let text = self.out.paint(Paint::Bad, text);
                self.line(&format!("  {text}"))?;
            }
            "hidden" => return self.line("  answer    (not visible to this key)"),
            "unavailable" => return self.line("  answer    (no longer in the record)"),
            _ => {}
        }
        let Some(text) = step.get("text").and_then(Value::as_str) else {
            return match text_at(step, "/outcome").as_str() {
                "" => self.line("  no answer yet"),
                _ => Ok(()),
            };
        };
        if what == "fact" && !self.is_whole {
            // A list of tools says more than anybody wants to read twice: `--step` shows it.
            return self.line(&format!("  {}", fact_words(step, text)));
        }
        let word = match (what.as_str(), text_at(step, "/outcome").as_str()) {
            ("tool_refused", _) => "refused",
            (_, "error") => "error",
            ("tool", _) => "result",
            _ => "answer",
        };
        let paint = match word {
            "error" | "refused" => Paint::Bad,
            _ => Paint::Heading,
        };
        let word = self.out.paint(paint, word);
        self.line(&format!("  {word}"))?;
        self.block("    ", text)?;
        if self.is_whole && what != "tool_refused" {
            let value = step.get("value").cloned().unwrap_or_default();
            self.line(&format!(
                "  as recorded, {}",
                text_at(step, "/value_sha256")
            ))?;
            self.block("    ", &format!("{value:#}"))?;
        }
        Ok(())
    }

    fn decision(&mut self, step: &Value) -> anyhow::Result<()> {
        let text = |pointer: &str| text_at(step, pointer);
        self.block("  ", &text("/decision/reason_asked"))?;
        if let Some(action) = step
            .pointer("/decision/action")
            .filter(|action| action.is_object())
        {
            let input = action.get("input").cloned().unwrap_or_default();
            self.line(&format!(
                "  action    {}",
                printable(&text_at(action, "/name"))
            ))?;
            self.line(&format!("  arguments {}", printable(&input.to_string())))?;
            self.line(&format!("  digest    {}", text("/decision/input_sha256")))?;
        }
        let approved = step.pointer("/decision/approved").and_then(Value::as_bool);
        let is_approval = text("/what") == "approval";
        let (paint, word) = match (is_approval, approved) {
            (_, None) if text("/outcome").is_empty() => (Paint::Waiting, "nobody has decided yet"),
            (true, Some(true)) => (Paint::Good, "approved"),
            (true, Some(false)) => (Paint::Bad, "denied"),
            _ => (Paint::Good, "answered"),
        };
        let word = self.out.paint(paint, word);
        let by = match text("/decision/actor").as_str() {
            "" => String::new(),
            actor => format!(" by {} at {}", printable(actor), text("/decision/at")),
        };
        self.line(&format!("  {word}{by}"))?;
        if !text("/decision/reason").is_empty() {
            self.line(&format!(
                "  because   {}",
                printable(&text("/decision/reason"))
            ))?;
        }
        let answered = step
            .pointer("/value/text")
            .or(step.pointer("/value/answer"));
        match answered {
            Some(Value::String(text)) if !is_approval => self.block("    ", text),
            _ => Ok(()),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let told = self.told;
        let text = |pointer: &str| text_at(told, pointer);
        self.heading("End")?;
        let status = text("/status");
        let status = self.out.paint(status_paint(&status), &status);
        self.line(&format!("  {status} at {}", text("/last_event_at")))?;
        if !text("/failure/code").is_empty() {
            self.line(&format!(
                "  {}: {}",
                text("/failure/code"),
                printable(&text("/failure/message"))
            ))?;
        }
        if let Some(answer) = told.get("answer").and_then(Value::as_str) {
            self.block("    ", answer)?;
        }
        let number = |name: &str| {
            let number = told.pointer(&format!("/usage/{name}"));
            number.and_then(Value::as_u64).unwrap_or_default()
        };
        let unknown = told
            .pointer("/usage/price_unknown")
            .and_then(Value::as_array);
        let cost = match unknown.is_some_and(|models| !models.is_empty()) {
            true => "cost unknown".to_owned(),
            false => dollars(number("cost_micros")),
        };
        self.line(&format!(
            "  {}, {} read, {} written, {cost}",
            plural(number("model_calls"), "model call"),
            plural(number("input_tokens"), "token"),
            number("output_tokens"),
        ))?;
        let sealed = match told.pointer("/made_from/sealed") {
            Some(Value::Bool(true)) => "sealed",
            _ => "the run continues",
        };
        let made = format!(
            "  made from {} events, {} ({sealed})",
            told.pointer("/made_from/events")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
            text("/made_from/log_sha256"),
        );
        let made = self.out.paint(Paint::Quiet, &made);
        self.line(&made)
    }
}

fn text_at(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn status_paint(status: &str) -> Paint {
    match status {
        "COMPLETED" => Paint::Good,
        "FAILED" | "CANCELED" => Paint::Bad,
        _ => Paint::Waiting,
    }
}

/// Says in one line what was looked up.
fn fact_words(step: &Value, text: &str) -> String {
    if let Some(tools) = step.pointer("/value/tools").and_then(Value::as_array) {
        let names: Vec<String> = tools.iter().map(|tool| text_at(tool, "/name")).collect();
        return format!("the tools: {}", printable(&names.join(", ")));
    }
    if let Some(messages) = step.pointer("/value/messages").and_then(Value::as_array) {
        return format!("{} messages of the session", messages.len());
    }
    match step.get("value") {
        Some(value @ (Value::Object(_) | Value::Array(_))) => printable(&value.to_string()),
        _ => printable(text),
    }
}

fn used(step: &Value) -> Vec<String> {
    let Some(used) = step.get("used").filter(|used| used.is_object()) else {
        return Vec::new();
    };
    let number = |name: &str| used.get(name).and_then(Value::as_u64);
    let mut facts = vec![printable(&format!(
        "{}/{}",
        text_at(used, "/provider"),
        text_at(used, "/model")
    ))];
    if let (Some(read), Some(written)) = (number("input_tokens"), number("output_tokens")) {
        facts.push(format!("{read} + {written} tokens"));
    }
    facts.push(match number("cost_micros") {
        Some(cost) => dollars(cost),
        None => "cost unknown".to_owned(),
    });
    facts
}

fn dollars(micros: u64) -> String {
    format!("${}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        _ => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}
