//! What came of a replay, for people and for programs. The same whether a server ran it or not.

use serde_json::{Value, json};

use crate::client::Event;
use crate::exit::Exit;
use crate::output::{Output, Paint, Table, inform, plural, printable, shorten};

/// The result of a replay.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) task: String,
    pub(super) source: String,
    pub(super) mode: String,
    pub(super) status: String,
    /// True when the replay itself came to an end, whatever end that was.
    pub(super) completed: bool,
    pub(super) equal: bool,
    pub(super) events: u64,
    pub(super) applied: Vec<String>,
    pub(super) unused: Vec<String>,
    /// Overrides that name nothing in the source.
    pub(super) unmatched: Vec<String>,
    /// Effects that were answered from the record though they asked something else.
    pub(super) stale: Vec<String>,
    /// True when it was to ask something live.
    pub(super) wants_live: bool,
    /// True when every override must be asked for.
    pub(super) wants_all: bool,
    /// Effects that were performed live.
    pub(super) refreshed: Vec<String>,
    /// Effects that the source had performed live: repeated from its record.
    pub(super) refreshed_in_source: Vec<String>,
    /// `{code, message, details}`; null when nothing failed.
    pub(super) failure: Value,
    pub(super) answer: Option<String>,
    pub(super) source_answer: Option<String>,
    pub(super) receipt: Option<String>,
}

impl Report {
    /// Takes an event of the replay.
    pub(super) fn event(&mut self, event: &Event) {
        match event.kind.as_str() {
            "replay.started" => self.start(&event.payload),
            "replay.completed" => self.end(true, &event.payload),
            "replay.failed" => self.end(false, &event.payload),
            "vendor.effect_recorded" => {
                let key = event.raw.pointer("/replay/override_key");
                self.effect(&event.payload, key.and_then(Value::as_str));
            }
            _ => {}
        }
    }

    /// Takes the payload of `replay.completed` or `replay.failed`.
    pub(super) fn end(&mut self, completed: bool, payload: &Value) {
        self.completed = completed;
        if completed {
            self.equal = payload.get("result_equal") == Some(&Value::Bool(true));
            let events = payload.get("events_replayed").and_then(Value::as_u64);
            self.events = events.unwrap_or_default();
            self.applied = texts(payload.get("overrides_applied"));
            self.unused = texts(payload.get("overrides_unused"));
        } else {
            let member = |name: &str| payload.get(name).cloned().unwrap_or_default();
            self.failure = json!({
                "code": member("code"),
                "message": member("message"),
                "details": member("details"),
            });
        }
    }

    /// Takes the payload of `replay.started`.
    pub(super) fn start(&mut self, payload: &Value) {
        self.unmatched = texts(payload.get("unmatched_keys"));
    }

    /// Takes the payload of a recorded effect. Only what came into being in this replay carries the key of an override.
    pub(super) fn effect(&mut self, payload: &Value, override_key: Option<&str>) {
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        let key = text("effect_key").unwrap_or_default().to_owned();
        match text("replay_note") {
            Some("stale_input") => self.stale.push(key),
            Some("refreshed") if override_key.is_some() => self.refreshed.push(key),
            Some("refreshed") => self.refreshed_in_source.push(key),
            _ => {}
        }
    }

    /// Yes when the result is the recorded one, or when a run that was changed completed.
    pub(super) fn exit(&self) -> Exit {
        let changed = self.mode != "exact" && self.status == "COMPLETED";
        if self.asked_nothing() || self.wants_all && !self.unused.is_empty() {
            return Exit::No;
        }
        if self.completed && (self.equal || changed) {
            Exit::Ok
        } else {
            Exit::No
        }
    }

    /// True when it was to ask something live, and everything it needed was on record.
    fn asked_nothing(&self) -> bool {
        self.wants_live && self.completed && self.refreshed.is_empty()
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "task_id": self.task,
            "source_task_id": self.source,
            "mode": self.mode,
            "status": self.status,
            "completed": self.completed,
            "result_equal": self.equal,
            "events_replayed": self.events,
            "overrides_applied": self.applied,
            "overrides_unused": self.unused,
            "unmatched_keys": self.unmatched,
            "stale_inputs": self.stale,
            "refreshed": self.refreshed,
            "refreshed_in_source": self.refreshed_in_source,
            "failure": self.failure,
            "answer": self.answer,
            "source_answer": self.source_answer,
            "receipt_id": self.receipt,
        })
    }

    /// Prints it, and what to do next.
    pub(super) fn print(&self, as_json: bool, next: &[String]) -> anyhow::Result<()> {
        let mut out = Output::stdout();
        if as_json {
            return out.json(&self.to_json());
        }
        let (verdict, paint) = self.verdict();
        let mut table = Table::default();
        let mut row = |name: &str, value: &str, paint: Option<Paint>| {
            table.row([
                (name.to_owned(), Some(Paint::Quiet)),
                (shorten(value, 400), paint),
            ]);
        };
        row("replay", &self.task, None);
        row("of", &self.source, None);
        row("mode", &self.mode, None);
        row("result", &verdict, Some(paint));
        let lists = [
            ("changed", &self.applied, ""),
            ("unused", &self.unused, " (nothing asked for it)"),
            (
                "stale",
                &self.stale,
                match self.mode.as_str() {
                    "exact" => " (as in the source: the recorded answer to another request)",
                    _ => self.stale_note(),
                },
            ),
            ("live", &self.refreshed, " (performed now, not recorded)"),
            (
                "live",
                &self.refreshed_in_source,
                " (live in the source; nothing was performed now)",
            ),
        ];
        for (name, keys, note) in lists {
            for key in keys {
                let unknown = match (self.unmatched.contains(key), name) {
                    (true, "changed") => " (only the changed run asks for it)",
                    (true, _) => " (the source has no such key; --list shows its keys)",
                    (false, _) => note,
                };
                row(name, &format!("{key}{unknown}"), None);
            }
        }
        if self.asked_nothing() {
            let text = "nothing was asked: every effect has a matching record; --refresh-from KEY asks again from there on";
            row("live", text, Some(Paint::Bad));
        }
        for (name, text) in explain(&self.failure) {
            row(name, &text, Some(Paint::Bad));
        }
        if let Some(receipt) = &self.receipt {
            row("receipt", receipt, None);
        }
        table.print(&mut out, "")?;
        if let Some(answer) = &self.answer {
            out.line("")?;
            if !self.equal
                && let Some(before) = &self.source_answer
            {
                block(&mut out, "recorded", before)?;
            }
            block(&mut out, "answer", answer)?;
        }
        for command in next {
            inform(format_args!("next: {command}"));
        }
        Ok(())
    }

    /// Says what a stale answer is, and how to ask instead, as far as a replay with these changes may go on live.
    fn stale_note(&self) -> &'static str {
        let changes = |prefixes: &[&str]| {
            let mut keys = self.applied.iter();
            keys.any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)))
        };
        if self.source.starts_with("task_replay_") || changes(&["event:", "host:checkpoint:"]) {
            " (the recorded answer to another request)"
        } else if changes(&["host:approval:", "host:tools:", "secret:"]) {
            " (the recorded answer to another request; --refresh model asks instead)"
        } else {
            " (the recorded answer to another request; --refresh model,tools asks instead)"
        }
    }

    pub(super) fn verdict(&self) -> (String, Paint) {
        let (status, events) = (&self.status, plural(self.events, "event"));
        let is_exact = self.mode == "exact";
        match (self.completed, self.equal) {
            (true, true) if is_exact || self.applied.is_empty() => (
                format!("{status}, equal to the source ({events})"),
                Paint::Good,
            ),
            // The words are the same because nobody was asked what they would be now.
            (true, true) if !self.stale.is_empty() => (
                format!(
                    "{status}, changed, but it ends with the text of the source: recorded answers to other requests were used ({events})"
                ),
                Paint::Waiting,
            ),
            (true, true) => (
                format!("{status}, changed, with the same result as the source ({events})"),
                Paint::Good,
            ),
            (true, false) => (
                format!("{status}, with a different result from the source ({events})"),
                Paint::Waiting,
            ),
            (false, _) => (
                format!("{status}, the replay could not continue"),
                Paint::Bad,
            ),
        }
    }
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array);
    let texts = list.into_iter().flatten();
    texts
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

/// Writes what an agent said, as it said it.
fn block(out: &mut Output, name: &str, text: &str) -> anyhow::Result<()> {
    const LINES_MAX: usize = 40;
    out.line(out.paint(Paint::Quiet, name))?;
    let text = printable(text);
    for line in text.lines().take(LINES_MAX) {
        out.line(format_args!("  {line}"))?;
    }
    let more = text.lines().count().saturating_sub(LINES_MAX);
    if more > 0 {
        out.line(out.paint(Paint::Quiet, &format!("  … and {more} more lines")))?;
    }
    Ok(())
}

/// Says why, and names the first thing that stood in the way.
fn explain(failure: &Value) -> Vec<(&'static str, String)> {
    let text = |pointer: &str| failure.pointer(pointer).and_then(Value::as_str);
    let mut lines = Vec::new();
    let (Some(code), Some(message)) = (text("/code"), text("/message")) else {
        return lines;
    };
    lines.push(("failure", format!("{code}: {message}")));
    let place = |of: &str| {
        let number = failure.pointer(&format!("/details/{of}/sequence"));
        let event = text(&format!("/details/{of}/event_id"));
        match (number.and_then(Value::as_u64), event) {
            (Some(number), Some(event)) => format!(", event {number} of the source ({event})"),
            (Some(number), None) => format!(", event {number} of the source"),
            _ => String::new(),
        }
    };
    if let Some(kind) = text("/details/first_unavailable/type") {
        let names = ["key", "id"];
        let name = names
            .iter()
            .find_map(|name| text(&format!("/details/first_unavailable/{name}")));
        let reason = text("/details/first_unavailable/reason").unwrap_or("unknown");
        let also = failure.pointer("/details/also_unavailable_count");
        let also = match also.and_then(Value::as_u64) {
            Some(count) if count > 0 => format!("; {count} more"),
            _ => String::new(),
        };
        let name = name.map(|name| format!(" {name}")).unwrap_or_default();
        let place = place("first_unavailable");
        lines.push(("missing", format!("{kind}{name}: {reason}{place}{also}")));
    }
    if let Some(what) = text("/details/divergence/what") {
        let name = text("/details/divergence/key").or(text("/details/divergence/event"));
        let name = name.map(|name| format!(" {name}")).unwrap_or_default();
        lines.push(("diverged", format!("{what}{name}{}", place("divergence"))));
        for (title, member) in [("recorded", "expected_sha256"), ("found", "found_sha256")] {
            if let Some(digest) = text(&format!("/details/divergence/{member}")) {
                lines.push((title, digest.to_owned()));
            }
        }
    }
    lines
}
