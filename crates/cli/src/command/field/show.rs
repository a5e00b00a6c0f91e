//! What the answers of a field look like to people.

use canon::Value;

use crate::output::{Output, Paint, Table, inform, is_quiet, plural, printable, shorten, width};

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns text that others wrote, such as a sentence that names an agent, on the one line it is meant for.
fn one_line(text: &str) -> String {
    shorten(text, usize::MAX)
}

/// Returns how many columns are left for words after others took theirs.
fn room(taken: usize) -> usize {
    width().map_or(usize::MAX, |width| width.saturating_sub(taken).max(20))
}

pub(super) fn status(
    out: &mut Output,
    status: &Value,
    agents: &Value,
    conflicts: &Value,
) -> anyhow::Result<()> {
    let counts = |name: &str| {
        let counts = status.get(name).and_then(Value::as_object);
        let counts = counts.into_iter().flatten();
        let counts: Vec<String> = counts
            .map(|(name, count)| one_line(&format!("{count} {name}")))
            .collect();
        match counts.is_empty() {
            true => "none".to_owned(),
            false => counts.join(", "),
        }
    };
    let mut rows = Table::default();
    for (name, value) in [
        ("epoch", number(status, "/epoch").to_string()),
        ("level", number(status, "/conformance_level").to_string()),
        ("units", counts("units")),
        ("conflicts", counts("conflicts")),
    ] {
        rows.row([(name.to_owned(), Some(Paint::Quiet)), (value, None)]);
    }
    rows.print(out, "")?;
    let agents = list(agents, "agents");
    if !agents.is_empty() {
        out.line("")?;
        let mut rows = Table::new(&["AGENT", "ROLE", "STATUS"]);
        for agent in agents {
            rows.row(
                ["/id", "/role", "/status"].map(|name| (shorten(text(agent, name), 60), None)),
            );
        }
        rows.print(out, "")?;
    }
    if !list(conflicts, "conflicts").is_empty() {
        out.line("")?;
        self::conflicts(out, conflicts)?;
    }
    Ok(())
}

pub(super) fn recorded(out: &mut Output, answer: &Value) -> anyhow::Result<()> {
    out.line(shorten(text(answer, "/memory_unit_id"), 120))?;
    for conflict in list(answer, "conflicts_detected") {
        let conflict = shorten(conflict.as_str().unwrap_or_default(), 120);
        inform(format_args!("it contradicts what is known: {conflict}"));
    }
    for warning in list(answer, "warnings") {
        inform(one_line(warning.as_str().unwrap_or_default()));
    }
    Ok(())
}

pub(super) fn attuned(out: &mut Output, answer: &Value) -> anyhow::Result<()> {
    let records = list(answer, "record");
    if is_quiet() {
        return out.ids(records.iter().map(|record| text(record, "/memory_unit/id")));
    }
    if records.is_empty() {
        inform("nothing that this agent should know");
    }
    for record in records {
        let score = record.get("relevance_score").and_then(Value::as_f64);
        let head = format!(
            "{:.2}  {} by {}  {}",
            score.unwrap_or_default(),
            shorten(text(record, "/memory_unit/type"), 60),
            shorten(text(record, "/memory_unit/source/agent_id"), 60),
            shorten(text(record, "/memory_unit/id"), 60),
        );
        out.line(out.paint(Paint::Heading, &head))?;
        for line in printable(text(record, "/memory_unit/content")).lines() {
            out.line(format_args!("      {line}"))?;
        }
        let reason = one_line(text(record, "/relevance_reason"));
        out.line(out.paint(Paint::Quiet, &format!("      {reason}")))?;
    }
    if !list(answer, "conflicts").is_empty() {
        out.line("")?;
        conflicts(out, answer)?;
    }
    Ok(())
}

pub(super) fn conflicts(out: &mut Output, answer: &Value) -> anyhow::Result<()> {
    let found = list(answer, "conflicts");
    if is_quiet() {
        return out.ids(found.iter().map(|conflict| text(conflict, "/id")));
    }
    if found.is_empty() {
        inform("no conflicts");
        return Ok(());
    }
    let mut rows = Table::new(&["CONFLICT", "STATUS", "FOUND", "UNITS"]);
    for conflict in found {
        let status = text(conflict, "/status");
        let paint = match status {
            "resolved" => Paint::Good,
            _ => Paint::Waiting,
        };
        let units = format!(
            "{} and {}",
            shorten(text(conflict, "/unit_a"), 60),
            shorten(text(conflict, "/unit_b"), 60)
        );
        rows.row([
            (shorten(text(conflict, "/id"), 60), None),
            (shorten(status, 20), Some(paint)),
            (shorten(text(conflict, "/detected_by"), 20), None),
            (units, None),
        ]);
    }
    rows.print(out, "")?;
    let total = number(answer, "/conflicts_total");
    let left = total.saturating_sub(found.len() as u64);
    if left > 0 {
        inform(format_args!("{left} of {total} conflicts are not shown"));
    }
    Ok(())
}

pub(super) fn merged(out: &mut Output, answer: &Value) -> anyhow::Result<()> {
    let conflict = shorten(text(answer, "/conflict/id"), 60);
    let status = shorten(text(answer, "/status"), 20);
    out.line(format_args!("{conflict} is {status}"))?;
    let winner = text(answer, "/conflict/resolution/winner_id");
    if !winner.is_empty() {
        out.line(format_args!("  {} stays", shorten(winner, 60)))?;
    }
    for unit in answer
        .pointer("/side_effects/superseded_units")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let unit = shorten(unit.as_str().unwrap_or_default(), 60);
        out.line(format_args!("  {unit} is superseded"))?;
    }
    let new = text(answer, "/side_effects/new_unit_id");
    if !new.is_empty() {
        out.line(format_args!("  {} replaces both", shorten(new, 60)))?;
    }
    Ok(())
}

pub(super) fn replayed(out: &mut Output, answer: &Value) -> anyhow::Result<()> {
    out.line(one_line(text(answer, "/summary")))?;
    let timeline = list(answer, "timeline");
    if timeline.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let mut rows = Table::new(&["EPOCH", "WHEN", "AGENT", "EVENT", "WHAT"]);
    for event in timeline {
        let when = text(event, "/timestamp").get(..19).unwrap_or_default();
        rows.row([
            (number(event, "/epoch").to_string(), None),
            (when.replace('T', " "), Some(Paint::Quiet)),
            (shorten(text(event, "/agent_id"), 30), None),
            (shorten(text(event, "/event_type"), 20), None),
            (shorten(text(event, "/description"), room(70)), None),
        ]);
    }
    rows.print(out, "")?;
    let total = number(answer, "/total_events");
    let left = total.saturating_sub(timeline.len() as u64);
    if left > 0 {
        inform(format_args!(
            "{left} of {total} events are not shown; --depth full_trace shows all"
        ));
    }
    Ok(())
}

pub(super) fn compacted(out: &mut Output, strategy: &str, answer: &Value) -> anyhow::Result<()> {
    let affected = number(answer, "/units_affected");
    if strategy == "purge" {
        let bytes = number(answer, "/storage_reclaimed_bytes");
        let units = plural(affected, "unit");
        out.line(format_args!("the text of {units} is erased, {bytes} bytes"))?;
        let made = answer.pointer("/derived_units").and_then(Value::as_array);
        if let Some(made) = made.filter(|made| !made.is_empty()) {
            let made = plural(made.len() as u64, "unit");
            out.line(format_args!(
                "{made} of these were derived from the others by the field"
            ))?;
        }
        let kept = answer
            .pointer("/derived_units_kept")
            .and_then(Value::as_array);
        for unit in kept.into_iter().flatten().filter_map(Value::as_str) {
            out.line(format_args!(
                "{unit} was derived from them and is in dispute: it keeps its text until the conflict ends and it is purged"
            ))?;
        }
        for unit in list(answer, "units_kept").iter().filter_map(Value::as_str) {
            let unit = shorten(unit, 60);
            out.line(format_args!(
                "{unit} is in an open conflict and keeps its text: end the conflict and purge it again"
            ))?;
        }
        if answer.get("erasure").and_then(Value::as_str) == Some("pending") {
            out.line(format_args!(
                "they are still in a file, because somebody is reading the database; the server erases them when that ends"
            ))?;
        }
        return Ok(());
    }
    let made = number(answer, "/synthesis_units_created");
    let summaries = match made {
        1 => "1 summary".to_owned(),
        made => format!("{made} summaries"),
    };
    out.line(format_args!(
        "{} archived, {summaries} written",
        plural(affected, "unit")
    ))
}
