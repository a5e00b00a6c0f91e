//! The list of settings with their comments, and the file made of it.
//!
//! A test compares the list with the settings themselves, so that none is forgotten.

use std::fmt::Write;

use toml::{Table, Value};

use super::{Place, Settings};

/// One setting.
#[derive(Debug)]
pub(super) struct Key {
    section: &'static str,
    name: &'static str,
    comment: &'static str,
}

impl Key {
    /// Returns the environment variable that sets it; lists have none.
    pub(super) fn variable(&self) -> Option<String> {
        if self.section.is_empty() && LISTS.contains(&self.name) {
            return None;
        }
        let path = match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}_{}", self.name),
        };
        Some(format!("REPRISE_{}", path.to_uppercase()))
    }

    /// Returns where it stands.
    pub(super) fn place(&self) -> Place {
        (self.section, self.name)
    }
}

const fn key(section: &'static str, name: &'static str, comment: &'static str) -> Key {
    Key {
        section,
        name,
        comment,
    }
}

/// Settings that are lists of tables: no variable can hold one.
const LISTS: [&str; 7] = [
    "connectors",
    "providers",
    "tools",
    "mcp_servers",
    "contracts",
    "approval_webhooks",
    "host_env",
];

/// The sections in the order of the file.
pub(super) const SECTIONS: [&str; 4] = ["governed", "log", "tls", "limits"];

/// Every setting, in the order of the file.
pub(super) const KEYS: &[Key] = &[
    key(
        "",
        "data",
        "Data directory: the log, the keys, the lock. One server per directory.",
    ),
    key(
        "",
        "listen",
        "Address and port. Port 0 takes any free one; the file `address` in the data directory tells which.",
    ),
    key(
        "",
        "allow_plain_http",
        "Listen without TLS on an address that other machines can reach.",
    ),
    key(
        "",
        "public_url",
        "Where clients reach this server when that is not the listening address; empty for that address.",
    ),
    key(
        "",
        "allowed_hosts",
        "Further host names by which clients may call this server; a server on loopback refuses others with 421.",
    ),
    key(
        "",
        "card_object",
        "What the agent card calls itself: harn_agent_card (the contract) or agent_card (an earlier draft).",
    ),
    key(
        "",
        "issuer_id",
        "Who issues receipts here; empty for a name of this log's own. Set the same value on servers whose replay receipts must match.",
    ),
    key(
        "",
        "issuer_name",
        "The issuer's name in receipts; empty for none.",
    ),
    key(
        "",
        "origin",
        "The name of the receipt log in signed heads, chosen when the log is made, such as log.example.com/receipts; empty for a generated one. `reprise receipt rotate-key --origin` changes it.",
    ),
    key(
        "",
        "replay_conformance",
        "Give replay receipts the issuer of the conformance fixture and echo placeholder digests; for conformance runs.",
    ),
    key(
        "",
        "examples",
        "Offer the example workflows ask, approve, hold and replay-fixture to new tasks; for a tour and for conformance runs.",
    ),
    key(
        "",
        "retention_days",
        "Days for which events are kept whole; `reprise log prune` may then reduce finished tasks to headers. 0 keeps them forever.",
    ),
    key(
        "",
        "connectors",
        "Connectors that the API lists; see the example at the end.",
    ),
    key(
        "",
        "providers",
        "Model providers; without one the built-in offline model answers. An example is at the end; more in docs/agents.md.",
    ),
    key("", "tools", "Local commands that agents may use."),
    key("", "mcp_servers", "MCP servers whose tools agents may use."),
    key(
        "",
        "contracts",
        "Sets of contracts that personas may name. See docs/contracts.md.",
    ),
    key(
        "",
        "approval_webhooks",
        "Addresses that are notified when somebody has to approve something, each with `url` and `secret_env`, the variable that holds its secret. See docs/contracts.md.",
    ),
    key(
        "",
        "host_env",
        "Names of environment variables that workflows may read.",
    ),
    key(
        "fields",
        "level",
        "How much of the memory protocol is offered under /akashik and /mcp: 0, 1, 2 or 3. See docs/memory.md.",
    ),
    key(
        "fields",
        "embeddings_provider",
        "The provider (of kind openai) whose embeddings rank what agents are shown; empty for the built-in hash-1024.",
    ),
    key(
        "fields",
        "embeddings_model",
        "Its model, such as text-embedding-3-small.",
    ),
    key(
        "fields",
        "vote_timeout_s",
        "Seconds after its first vote at which an undecided conflict is escalated to the operator; 0 for never.",
    ),
    key(
        "governed",
        "mode",
        "The weakest mode in which a program may open a governed session: log-only, shadow or enforce.",
    ),
    key(
        "governed",
        "unmatched_policy",
        "Whether a governed session may allow tools that have no contract: allow or block.",
    ),
    key(
        "governed",
        "contracts",
        "Whether a governed session may bring its own contracts (any), or must name a configured set (configured).",
    ),
    key(
        "log",
        "format",
        "Lines for people (text) or for programs (json), on stderr.",
    ),
    key(
        "log",
        "level",
        "error, warn, info, debug or trace; also per part, such as info,engine=debug.",
    ),
    key(
        "tls",
        "cert",
        "Certificate chain for HTTPS, a PEM file; empty for plain HTTP.",
    ),
    key(
        "tls",
        "key",
        "Private key for HTTPS, a PEM file; empty for plain HTTP.",
    ),
    key("limits", "batch_len_max", "Commands that share one commit."),
    key(
        "limits",
        "pending_commands_max",
        "Commands that may wait for a commit; more are refused with 503.",
    ),
    key(
        "limits",
        "workers_max",
        "Tasks worked on at the same time; shared out by caller, and a quarter more for those below their share.",
    ),
    key(
        "limits",
        "open_tasks_max",
        "Open tasks, including those that wait for a person; shared out by caller, more are refused with 429.",
    ),
    key(
        "limits",
        "stored_mib_max",
        "MiB of events and content that all workspaces may store; shared out by workspace, and a quarter more for those below their share; more is refused with 429. 0 for seven tenths of what is stored and free at the start.",
    ),
    key(
        "limits",
        "streams_max",
        "Event streams open at the same time; shared out by key, more are refused with 429.",
    ),
    key(
        "limits",
        "fork_messages_max",
        "Messages that a fork may copy, and first messages of a session.",
    ),
    key(
        "limits",
        "settle_window_ms",
        "How long a submit waits for its task to finish before it answers.",
    ),
    key(
        "limits",
        "start_window_ms",
        "How long a submit waits for a free worker to begin.",
    ),
    key(
        "limits",
        "idempotency_window_s",
        "How long an Idempotency-Key is remembered; at least a day.",
    ),
    key(
        "limits",
        "leaf_interval_ms",
        "How long a receipt may wait for its place in the receipt log; asking for its proof ends the wait.",
    ),
    key(
        "limits",
        "head_leaves_max",
        "Receipts in the log after which a new head is signed.",
    ),
    key(
        "limits",
        "head_interval_ms",
        "How long receipts may be in the log before a head that covers them is signed.",
    ),
    key(
        "limits",
        "receipt_window_ms",
        "How long the receipts list of a running task waits for its receipt.",
    ),
    key(
        "limits",
        "drain_window_ms",
        "How long a shutdown waits for running tasks; they resume after the next start.",
    ),
    key(
        "limits",
        "body_bytes_max",
        "The largest JSON body of a request.",
    ),
    key(
        "limits",
        "artifact_bytes_max",
        "The largest uploaded content of an artifact.",
    ),
    key(
        "limits",
        "large_bodies_bytes_max",
        "Bytes of bodies above 1 MiB in memory at the same time (imports, bundles); shared out by key, more wait, then 429.",
    ),
    key(
        "limits",
        "uploads_bytes_max",
        "Bytes of uploads that have not arrived whole yet, on the disk; shared out by key, more wait, then 429.",
    ),
    key(
        "limits",
        "connections_max",
        "Connections open at the same time; more wait to be accepted.",
    ),
    key(
        "limits",
        "request_timeout_ms",
        "How long a request may take until its answer begins.",
    ),
    key(
        "limits",
        "header_read_timeout_ms",
        "How long a client may take to send the head of a request, and to complete the TLS handshake.",
    ),
    key(
        "limits",
        "sse_heartbeat_ms",
        "Heartbeat interval of idle streams.",
    ),
    key(
        "limits",
        "shutdown_timeout_ms",
        "How long a shutdown waits for requests that are being answered.",
    ),
    key(
        "limits",
        "requests_per_second",
        "Requests a second that each actor may send; 0 for any number.",
    ),
    key(
        "limits",
        "requests_burst",
        "Requests that an actor may send at once, when requests_per_second is not 0.",
    ),
];

const HEAD: &str = "\
# Settings of `reprise serve`. A line that begins with `#` and a name shows a default: remove the `#` to change it.
# Flags win over environment variables (named in brackets), variables over this file. All since 0.1.
";

const CONNECTOR_EXAMPLE: &str = "
# A connector, as the API shows it: DISABLED, because deliveries are not served yet. Any number of them, after everything
# else.
#   [[connectors]]
#   id = \"connector_deploys\"
#   provider = \"github\"
#   workspace_id = \"workspace_local\"
#   event_kinds = [\"push\"]
#   webhook = { path = \"/hooks/deploys\" }
#   metadata = { team = \"platform\" }
";

const AGENT_EXAMPLE: &str = "
# A model, a command and an MCP server for agents. The key is stored with `reprise vault set openai`; a persona (`reprise persona
# apply --help`) then names the tools `count_words` and `files`.
#   [[providers]]
#   id = \"main\"
#   kind = \"openai\"
#   base_url = \"https://api.openai.com/v1\"
#   api_key = { secret = \"openai\" }
#   model = \"gpt-4o-mini\"
#
#   [[tools]]
#   name = \"count_words\"
#   description = \"Counts the words of a file.\"
#   argv = [\"wc\", \"-w\", \"--\", \"{file}\"]
#   folder = \"agent-files\"
#   read_only = true
#   parameters = { type = \"object\", required = [\"file\"], properties = { file = { type = \"string\" } } }
#
#   [[mcp_servers]]
#   id = \"files\"
#   command = [\"/usr/local/bin/mcp-server-filesystem\", \"/srv/agent-files\"]
#   write = [\"/srv/agent-files\"]
";

const PRICES_EXAMPLE: &str = "
# What models cost, beside the table that ships with the program; yours win. Millionths of a US dollar for a million tokens.
# A price that is not known is named as unknown, never counted as 0.
#   [prices]
#   table = \"ours-2026-11\"
#   [[prices.models]]
#   provider = \"main\"
#   model = \"gpt-4o-mini\"
#   input = 150_000
#   cached_input = 75_000
#   output = 600_000
";

/// Returns the configuration file with every default in it, commented out.
pub(crate) fn print() -> String {
    let mut text = HEAD.to_owned();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            let _ = write!(text, "\n#[{section}]");
        }
        let variable = key
            .variable()
            .map(|name| format!(" [{name}]"))
            .unwrap_or_default();
        let value = default_of(key).unwrap_or_else(|| Value::String(String::new()));
        let _ = write!(
            text,
            "\n# {}{variable}\n#{} = {value}\n",
            key.comment, key.name
        );
    }
    text.push_str(AGENT_EXAMPLE);
    text.push_str(PRICES_EXAMPLE);
    text.push_str(CONNECTOR_EXAMPLE);
    text
}

/// Reads a variable's text as the kind of value that the default is.
pub(super) fn like_default(key: &Key, text: &str) -> Value {
    let parsed = match default_of(key) {
        Some(Value::Integer(_)) => text.trim().parse().ok().map(Value::Integer),
        Some(Value::Boolean(_)) => text.trim().parse().ok().map(Value::Boolean),
        _ => None,
    };
    // Text that is no number stays text: the check that follows says what was expected.
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn default_of(key: &Key) -> Option<Value> {
    let defaults = Table::try_from(Settings::default()).ok()?;
    match key.section {
        "" => defaults.get(key.name).cloned(),
        section => defaults.get(section)?.get(key.name).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Removes the mark of every line that shows a default.
    fn uncommented(text: &str) -> String {
        let lines = text.lines().map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_is_printed_reads_back_to_the_defaults() {
        let printed = print();
        assert_eq!(
            toml::from_str::<Settings>(&printed).unwrap(),
            Settings::default()
        );
        let text = uncommented(&printed);
        assert_eq!(
            toml::from_str::<Settings>(&text).unwrap(),
            Settings::default()
        );
        let keys = text
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'));
        assert_eq!(keys.count(), KEYS.len());
    }

    #[test]
    fn the_connector_example_works() {
        let lines = CONNECTOR_EXAMPLE
            .lines()
            .filter_map(|line| line.strip_prefix("#   "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let settings: Settings = toml::from_str(&text).unwrap();
        assert_eq!(settings.connectors.len(), 1);
    }

    #[test]
    fn the_example_of_prices_works() {
        let lines = PRICES_EXAMPLE
            .lines()
            .filter_map(|line| line.strip_prefix("#   "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let settings: Settings = toml::from_str(&text).unwrap();
        assert_eq!(settings.prices.unwrap().models.len(), 1);
    }

    #[test]
    fn every_setting_is_listed_and_nothing_else() {
        let defaults = Table::try_from(Settings::default()).unwrap();
        let mut actual = BTreeSet::new();
        for (name, value) in &defaults {
            match value {
                Value::Table(inner) => {
                    actual.extend(inner.keys().map(|key| format!("{name}.{key}")));
                }
                _ => {
                    actual.insert(format!(".{name}"));
                }
            }
        }
        let listed: BTreeSet<String> = KEYS
            .iter()
            .map(|key| format!("{}.{}", key.section, key.name))
            .collect();
        assert_eq!(listed, actual);
    }
}
