//! Facts of a general sidecar that are shown and not judged (section 10.2): how the run ended, its models, its sampling,
//! its trace, what was left out.

use ::sidecar::{General, Model, Sampling, Trace};
use canon::Number;

/// Returns a name and a text for each fact that was recorded.
pub(super) fn lines(general: &General) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(ended) = ended(general) {
        lines.push(("ended", ended));
    }
    if let Some(id) = &general.run_id {
        lines.push(("run", id.clone()));
    }
    if let Some(cwd) = &general.cwd {
        lines.push(("cwd", cwd.clone()));
    }
    for known in general.models.iter().flatten() {
        lines.push(("model", model(known)));
    }
    if let Some(sampling) = &general.sampling {
        lines.push(("sampling", sampled(sampling)));
    }
    if let Some(trace) = general.trace.as_ref().and_then(traced) {
        lines.push(("trace", trace));
    }
    for redaction in general.redactions.iter().flatten() {
        let text = format!("{}: {}", redaction.pointer, redaction.reason);
        lines.push(("redacted", text));
    }
    lines
}

fn ended(general: &General) -> Option<String> {
    let status = general.exit_code.as_ref();
    match (&general.finished_at, status) {
        (Some(time), Some(status)) => Some(format!("{time}, exit status {status}")),
        (Some(time), None) => Some(time.clone()),
        (None, Some(status)) => Some(format!("exit status {status}")),
        (None, None) => None,
    }
}

fn model(model: &Model) -> String {
    let ids = model.provider_request_ids.len();
    let mut text = format!("{} by {}, {ids} request ids", model.id, model.provider);
    let mut add = |part: String| text.push_str(&format!(", {part}"));
    if let Some(reported) = &model.reported_ids {
        add(format!("reported as {}", reported.join(" and ")));
    }
    if let Some(endpoint) = &model.endpoint {
        add(format!("at {endpoint}"));
    }
    let counts = [
        ("calls", &model.calls),
        ("tokens in", &model.tokens_in),
        ("tokens out", &model.tokens_out),
    ];
    for (name, count) in counts {
        if let Some(count) = count {
            add(format!("{count} {name}"));
        }
    }
    text
}

fn sampled(sampling: &Sampling) -> String {
    let single = [
        ("n", &sampling.n),
        ("temperature", &sampling.temperature),
        ("top_p", &sampling.top_p),
        ("max_tokens", &sampling.max_tokens),
        ("seed", &sampling.seed),
        ("concurrency", &sampling.concurrency),
    ];
    let single = single
        .iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", value.as_ref()?)));
    let seeds = sampling.seeds.iter().map(|seeds| {
        let seeds: Vec<String> = seeds.iter().map(Number::to_string).collect();
        format!("seeds {}", seeds.join(" "))
    });
    let parts: Vec<String> = single.chain(seeds).collect();
    parts.join(", ")
}

fn traced(trace: &Trace) -> Option<String> {
    let events = trace
        .events
        .as_ref()
        .map(|events| format!("{events} events"));
    let session = trace.session_id.as_ref().map(|id| format!("session {id}"));
    let parts: Vec<String> = [events, trace.format.clone(), session]
        .into_iter()
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
