//! The fenced block of a report, rendered from a sidecar and never read back.
//!
//! Always valid YAML: a string that is not a safe plain scalar is written in JSON quotes. Request ids
//! appear as counts only.

use canon::{Digest, Number};

use crate::block::{Ahd, Artifact, Conditions, General, HashedFile, Sidecar};
use crate::shell::shell_line;
use crate::yaml::{Resolved, resolve_plain};

/// The info string that marks a replay block in a report, of any kind.
pub const INFO_STRING: &str = "yaml ahd-replay";

/// Returns the replay block, from fence to fence, without a final newline.
pub fn yaml_block(sidecar: &Sidecar) -> String {
    let mut lines = Lines::default();
    match sidecar {
        Sidecar::Ahd(ahd) => ahd_lines(ahd, &mut lines),
        Sidecar::General(general) => general_lines(general, &mut lines),
    }
    format!("```{INFO_STRING}\n{}```", lines.0)
}

/// Returns the `sh` block with the command, from fence to fence, without a final newline.
pub fn shell_block(sidecar: &Sidecar) -> String {
    let (name, version) = sidecar.tool();
    let word = |text: &str| shell_line(&[text.to_owned()]);
    let mut text = match sidecar.commit() {
        Some(commit) => {
            let short: String = commit.chars().take(12).collect();
            let rebuild = match sidecar {
                Sidecar::Ahd(_) => "npm ci && npm run build".to_owned(),
                Sidecar::General(_) => format!(": rebuild {}", word(name)),
            };
            format!("git checkout {short}\n{rebuild}\n")
        }
        None => format!(": install {} {}\n", word(name), word(version)),
    };
    if let Sidecar::General(general) = sidecar
        && let Some(cwd) = general.cwd.as_deref().filter(|cwd| *cwd != ".")
    {
        text.push_str(&format!("cd {}\n", word(cwd)));
    }
    if sidecar.argv().is_empty() {
        text.push_str(": the command was not recorded\n");
    } else {
        text.push_str(&shell_line(sidecar.argv()));
        text.push('\n');
    }
    // An argument may hold lines of backticks; the fence is longer than any of them.
    let longest = text
        .split(|char| char != '`')
        .map(str::len)
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    format!("{fence}sh\n{text}{fence}")
}

fn ahd_lines(ahd: &Ahd, lines: &mut Lines) {
    lines.number(0, "schema_version", &ahd.schema_version);
    lines.text(0, "kind", &ahd.kind);
    lines.text(0, "ahd_version", &ahd.ahd_version);
    lines.optional(0, "ahd_commit", ahd.ahd_commit.as_deref());
    if ahd.git_dirty == Some(true) {
        lines.bare(0, "git_dirty", "true");
    }
    lines.text(0, "node_version", &ahd.node_version);
    lines.text(0, "platform", &ahd.platform);
    lines.text(0, "invoked_at", &ahd.invoked_at);
    for (name, file) in [("token", Some(&ahd.token)), ("brief", ahd.brief.as_ref())] {
        if let Some(HashedFile { path, hash }) = file {
            lines.heading(0, name);
            lines.text(2, "path", path);
            lines.hash(2, "hash", hash);
        }
    }
    lines.heading(0, "sampling");
    lines.number(2, "n", &ahd.sampling.n);
    lines.maybe_number(2, "temperature", ahd.sampling.temperature.as_ref());
    lines.maybe_number(2, "seed", ahd.sampling.seed.as_ref());
    let models: Vec<_> = ahd
        .models
        .iter()
        .map(|model| (&model.id, &model.provider, model.provider_request_ids.len()))
        .collect();
    lines.models(&models);
    lines.conditions(&ahd.conditions);
    if ahd.backfilled == Some(true) {
        lines.bare(0, "backfilled", "true");
    }
}

fn general_lines(general: &General, lines: &mut Lines) {
    lines.number(0, "schema_version", &general.schema_version);
    lines.text(0, "kind", &general.kind);
    lines.heading(0, "tool");
    lines.text(2, "name", &general.tool.name);
    lines.text(2, "version", &general.tool.version);
    lines.optional(2, "commit", general.tool.commit.as_deref());
    if general.tool.dirty == Some(true) {
        lines.bare(2, "dirty", "true");
    }
    if let Some(runtime) = &general.runtime {
        lines.heading(0, "runtime");
        lines.text(2, "name", &runtime.name);
        lines.text(2, "version", &runtime.version);
    }
    lines.text(0, "platform", &general.platform);
    lines.text(0, "invoked_at", &general.invoked_at);
    lines.artifacts("inputs", &general.inputs);
    if let Some(outputs) = &general.outputs {
        lines.artifacts("outputs", outputs);
    }
    if let Some(sampling) = &general.sampling {
        let members = [
            ("n", &sampling.n),
            ("temperature", &sampling.temperature),
            ("top_p", &sampling.top_p),
            ("max_tokens", &sampling.max_tokens),
            ("seed", &sampling.seed),
            ("concurrency", &sampling.concurrency),
        ];
        if members.iter().any(|(_, value)| value.is_some()) {
            lines.heading(0, "sampling");
        }
        for (name, value) in members {
            if let Some(value) = value {
                lines.number(2, name, value);
            }
        }
    }
    if let Some(models) = &general.models {
        let models: Vec<_> = models
            .iter()
            .map(|model| (&model.id, &model.provider, model.provider_request_ids.len()))
            .collect();
        lines.models(&models);
    }
    if let Some(conditions) = &general.conditions {
        lines.conditions(conditions);
    }
    if let Some(parent) = &general.parent {
        lines.heading(0, "parent");
        lines.hash(2, "hash", &parent.hash);
        if let Some(relation) = &parent.relation {
            lines.text(2, "relation", relation);
        }
    }
    if general.backfilled == Some(true) {
        lines.bare(0, "backfilled", "true");
    }
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn bare(&mut self, indent: usize, name: &str, value: &str) {
        self.0.push_str(&format!("{:indent$}{name}: {value}\n", ""));
    }

    fn heading(&mut self, indent: usize, name: &str) {
        self.0.push_str(&format!("{:indent$}{name}:\n", ""));
    }

    fn text(&mut self, indent: usize, name: &str, value: &str) {
        self.bare(indent, name, &scalar(value, false));
    }

    fn optional(&mut self, indent: usize, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(indent, name, value),
            None => self.bare(indent, name, "null"),
        }
    }

    fn number(&mut self, indent: usize, name: &str, value: &Number) {
        self.bare(indent, name, &number(value));
    }

    fn maybe_number(&mut self, indent: usize, name: &str, value: Option<&Number>) {
        self.bare(indent, name, &value.map_or("null".to_owned(), number));
    }

    fn hash(&mut self, indent: usize, name: &str, hash: &Digest) {
        let short: String = hash.hex().chars().take(12).collect();
        self.bare(indent, name, &format!("sha256:{short}"));
    }

    fn models(&mut self, models: &[(&String, &String, usize)]) {
        if models.is_empty() {
            return self.bare(0, "models", "[]");
        }
        self.heading(0, "models");
        for (id, provider, captured) in models {
            self.text(2, "- id", id);
            self.text(4, "provider", provider);
            self.bare(4, "provider_request_ids", &format!("{captured} captured"));
        }
    }

    fn artifacts(&mut self, name: &str, artifacts: &[Artifact]) {
        if artifacts.is_empty() {
            return self.bare(0, name, "[]");
        }
        self.heading(0, name);
        for artifact in artifacts {
            self.text(2, "- role", &artifact.role);
            self.text(4, "path", &artifact.path);
            self.hash(4, "hash", &artifact.hash);
            self.bare(4, "mode", artifact.mode.name());
        }
    }

    fn conditions(&mut self, conditions: &Conditions) {
        let list = |items: &[String]| {
            let items: Vec<String> = items.iter().map(|item| scalar(item, true)).collect();
            format!("[{}]", items.join(", "))
        };
        self.heading(0, "conditions");
        self.bare(2, "requested", &list(&conditions.requested));
        self.bare(2, "effective", &list(&conditions.effective));
    }
}

fn number(value: &Number) -> String {
    if value.is_f64() {
        value.as_f64().map_or("null".to_owned(), canon::number)
    } else {
        value.to_string()
    }
}

/// Returns a string as a YAML scalar: plain where that is safe, else in JSON quotes.
fn scalar(text: &str, in_flow: bool) -> String {
    if is_safe(text, in_flow) {
        return text.to_owned();
    }
    let json = canon::jcs(&canon::Value::String(text.to_owned()));
    let mut out = String::with_capacity(json.len());
    for char in String::from_utf8_lossy(&json).chars() {
        // JSON leaves these as they are; YAML does not count them as printable, or breaks lines there.
        if matches!(
            char,
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        ) {
            out.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            out.push(char);
        }
    }
    out
}

fn is_safe(text: &str, in_flow: bool) -> bool {
    let first = |char: char| char.is_ascii_alphanumeric() || "_./+=-".contains(char);
    let rest = |char: char| first(char) || ":@, ".contains(char);
    text.starts_with(first)
        && text.chars().all(rest)
        && !text.contains(": ")
        && !text.ends_with([':', ' '])
        // A hyphen alone or before a space starts a list, and some readers refuse one as a word of a flow list.
        && text != "-"
        && !text.starts_with("- ")
        && !text.starts_with("---")
        && !text.starts_with("...")
        && !(in_flow && (text.contains(',') || text.split(' ').any(|word| word == "-")))
        && resolve_plain(text) == Resolved::Text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rb_md_06_only_safe_strings_stay_plain() {
        for text in [
            "a",
            "a b",
            "cf:@cf/x",
            "-x",
            "--n",
            "a, b",
            "2026-01-02T03:04:05Z",
            "=",
            "a - b",
        ] {
            assert_eq!(scalar(text, false), text);
        }
        for text in [
            "", " a", "a ", "a: b", "a:", "@a", ",a", ":a", "- a", "-", "---", "---a", "...",
            "...a", "true", "null", "~", "1", "1.0", "0x1", ".inf", "é", "a#b", "a\tb",
        ] {
            assert!(scalar(text, false).starts_with('"'), "{text}");
        }
        assert_eq!(scalar("a, b", true), "\"a, b\"");
        assert_eq!(scalar("a - b", true), "\"a - b\"");
        assert_eq!(scalar("a\u{85}\u{feff}", false), "\"a\\u0085\\ufeff\"");
    }
}
