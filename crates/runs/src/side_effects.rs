//! What effects did, as the events of a log tell it: model calls, tool calls, changed files, contacted hosts.

use std::collections::{BTreeMap, BTreeSet};

use canon::{Digest, Map, Value, jcs, sha256};
use domain::{Observed, blob_reference, payload};
use receipts::{
    Budget, FileOperation, FileWrite, Micros, ModelCall, ModelRef, NetworkEgress, Redaction,
    SideEffects, ToolCall, ToolStatus,
};
use serde::Deserialize as _;

/// What was done, collected from payloads in the order of the log.
#[derive(Debug, Clone, Default)]
pub struct SideEffectSummary {
    /// Answered model calls, with what they cost.
    pub model_calls: Vec<ModelCall>,
    /// Tool calls, changed files and contacted hosts.
    pub side_effects: SideEffects,
    /// Names and arguments of tool calls, until their results come.
    tools: BTreeMap<String, Used>,
    /// Lists of side effects that somebody could not observe.
    not_observed: BTreeSet<String>,
    /// True when some provider told counts of tokens that cannot be counts.
    usage_unknown: bool,
    /// Digests that would betray a secret (AP-PRIV-04).
    withheld: Vec<String>,
}

/// A tool call whose result has not come.
#[derive(Debug, Clone)]
struct Used {
    tool: String,
    call_id: String,
    input_hash: Option<Digest>,
    /// True where the agent tells the attempt: such a call is listed even if its result never comes.
    is_listed: bool,
}

/// Reads a call of a governed session: providers may use an id again, so that it is one only with its proposal.
fn governed_call(call: &Value) -> Option<(String, Used)> {
    let text = |member: &str| call.get(member).and_then(Value::as_str);
    let (call_id, proposal) = (text("call_id")?, text("proposal_id")?);
    let used = Used {
        tool: text("tool")?.to_owned(),
        call_id: call_id.to_owned(),
        input_hash: text("arguments_sha256").and_then(|digest| Digest::parse(digest).ok()),
        is_listed: true,
    };
    Some((format!("governed:{proposal}:{call_id}"), used))
}

impl SideEffectSummary {
    /// Takes the payload of `agent.tool_use`.
    pub fn uses_tool(&mut self, payload: &Map<String, Value>) {
        let said = payload::ToolUse::of(payload);
        if let Some(key) = said.effect_key() {
            let call = Used {
                tool: said.name().unwrap_or("unknown").to_owned(),
                call_id: said.tool_call_id().unwrap_or(key).to_owned(),
                // A large input is a blob, whose digest is the same.
                input_hash: match said.input() {
                    Some(input) => Some(sha256(&jcs(input))),
                    None => blob_reference(payload, "input"),
                },
                is_listed: said.attempt().is_some(),
            };
            self.tools.insert(key.to_owned(), call);
        }
    }

    /// Takes a decision about a governed session: the calls that it released, or the report of one.
    ///
    /// What nobody reports is listed at the end: it may have had its effect.
    pub fn governed(&mut self, payload: &Map<String, Value>) {
        let said = payload::ContractDecided::of(payload);
        let released = said.released().and_then(Value::as_array);
        for call in released.into_iter().flatten() {
            if let Some((key, used)) = governed_call(call) {
                self.tools.insert(key, used);
            }
        }
        let Some(executed) = said.executed() else {
            return;
        };
        let Some((key, used)) = governed_call(executed) else {
            return;
        };
        let text = |member: &str| executed.get(member).and_then(Value::as_str);
        // Nobody knows yet: a later report may say it, and the end lists it if none does.
        if text("outcome") == Some("unknown") {
            return;
        }
        // The first report counts; another one about the same call was refused.
        if self.tools.remove(&key).is_none() {
            return;
        }
        self.side_effects.tool_calls.push(ToolCall {
            tool: used.tool,
            call_id: used.call_id,
            status: match text("outcome") {
                Some("success") => ToolStatus::Succeeded,
                _ => ToolStatus::Failed,
            },
            input_hash: used.input_hash,
            output_hash: text("output_sha256").and_then(|digest| Digest::parse(digest).ok()),
            sandbox: None,
        });
    }

    /// Lists the calls that ran when the Task ended: they may have had their effect.
    pub fn end(&mut self) {
        let running = std::mem::take(&mut self.tools).into_values();
        let running = running.filter(|call| call.is_listed);
        self.side_effects
            .tool_calls
            .extend(running.map(|call| ToolCall {
                tool: call.tool,
                call_id: call.call_id,
                status: ToolStatus::Canceled,
                input_hash: call.input_hash,
                output_hash: None,
                sandbox: None,
            }));
    }

    /// Takes the payload of `vendor.effect_recorded`.
    pub fn effect(&mut self, payload: &Map<String, Value>) {
        let said = payload::EffectRecorded::of(payload);
        match said.kind() {
            Some("llm_provider_response") if said.outcome() == Some("ok") => self.call(said),
            Some("mcp_tool_return" | "tool_result") => self.tool(said),
            _ => {}
        }
        self.observed(said);
    }

    /// Takes the same of an effect that must not pass for harmless because nobody looked.
    pub fn live_effect(&mut self, payload: &Map<String, Value>) {
        self.effect(payload);
        // Receipts of replays have no place for limits.
        for call in &mut self.side_effects.tool_calls {
            call.sandbox = None;
        }
        let said = payload::EffectRecorded::of(payload);
        let is_tool = matches!(said.kind(), Some("mcp_tool_return" | "tool_result"));
        if is_tool && said.side_effects().is_none() {
            let lists = ["fs_writes", "network_egress"];
            self.not_observed.extend(lists.map(str::to_owned));
        }
    }

    /// Returns what was used up in a time.
    pub fn consumed(&self, wall_time_ms: u64) -> Budget {
        let sum = |amount: fn(&ModelCall) -> u64| {
            let amounts = self.model_calls.iter().map(amount);
            amounts.fold(0, u64::saturating_add)
        };
        Budget {
            usd: Micros(sum(|call| call.cost.map_or(0, |cost| cost.0))),
            input_tokens: sum(|call| call.input_tokens),
            output_tokens: sum(|call| call.output_tokens),
            tool_calls: self.side_effects.tool_calls.len() as u64,
            wall_time_ms,
        }
    }

    /// Names what nobody saw, where an empty list would say that nothing happened, and what must not be told.
    pub fn redactions(&self) -> Vec<Redaction> {
        let lists = self.not_observed.iter();
        let lists = lists.map(|list| (format!("/side_effects/{list}"), "not_observed"));
        let withheld = self.withheld.iter().map(|field| (field.clone(), "secret"));
        let tokens = ["input_tokens", "output_tokens"].map(|member| {
            (
                format!("/autonomy_budget/consumed/{member}"),
                "usage_unknown",
            )
        });
        let tokens = tokens.into_iter().filter(|_| self.usage_unknown);
        lists
            .chain(withheld)
            .chain(tokens)
            .map(|(field, reason)| Redaction {
                field,
                reason: reason.to_owned(),
                proof_hash: None,
            })
            .collect()
    }

    fn tool(&mut self, said: payload::Said<'_, payload::EffectRecorded>) {
        let key = said.effect_key().and_then(Value::as_str);
        let key = key.unwrap_or_default();
        let call = self.tools.remove(key).unwrap_or_else(|| Used {
            tool: key.to_owned(),
            call_id: key.to_owned(),
            input_hash: None,
            is_listed: false,
        });
        self.side_effects.tool_calls.push(ToolCall {
            tool: call.tool,
            call_id: call.call_id,
            status: if said.outcome() == Some("ok") {
                ToolStatus::Succeeded
            } else {
                ToolStatus::Failed
            },
            input_hash: call.input_hash,
            output_hash: said.value_sha256(),
            sandbox: said
                .side_effects()
                .and_then(|observed| observed.get("sandbox"))
                .filter(|limits| limits.is_object())
                .cloned(),
        });
    }

    fn observed(&mut self, said: payload::Said<'_, payload::EffectRecorded>) {
        let observed = said
            .side_effects()
            .and_then(|observed| Observed::deserialize(observed).ok());
        let Some(observed) = observed else { return };
        for (index, change) in (self.side_effects.fs_writes.len()..).zip(&observed.fs_writes) {
            let (before, after) = (change.before_sha256, change.after_sha256);
            // A file that is there has a digest, unless whoever looked kept it back.
            for (is_there, digest, member) in [
                (change.operation != "create", before, "before_sha256"),
                (change.operation != "delete", after, "after_sha256"),
            ] {
                if is_there && digest.is_none() {
                    let field = format!("/side_effects/fs_writes/{index}/{member}");
                    self.withheld.push(field);
                }
            }
        }
        let writes = observed.fs_writes.into_iter().map(|change| FileWrite {
            path: change.path,
            operation: match change.operation.as_str() {
                "create" => FileOperation::Create,
                "delete" => FileOperation::Delete,
                _ => FileOperation::Modify,
            },
            before_sha256: change.before_sha256,
            after_sha256: change.after_sha256,
        });
        self.side_effects.fs_writes.extend(writes);
        let egress = observed
            .network_egress
            .into_iter()
            .map(|egress| NetworkEgress {
                destination: egress.destination,
                purpose: egress.purpose,
                bytes_sent: egress.bytes_sent,
            });
        self.side_effects.network_egress.extend(egress);
        self.not_observed.extend(observed.not_observed);
    }

    fn call(&mut self, said: payload::Said<'_, payload::EffectRecorded>) {
        let facts = said.model().and_then(Value::as_object);
        let member = |name: &str| facts.and_then(|facts| facts.get(name));
        let number = |name: &str| member(name).and_then(Value::as_u64).unwrap_or(0);
        let word = |name: &str| {
            member(name)
                .and_then(Value::as_str)
                .unwrap_or("unknown")
                .to_owned()
        };
        self.usage_unknown |= member("usage_unknown") == Some(&Value::Bool(true));
        self.model_calls.push(ModelCall {
            model: ModelRef {
                provider: word("provider"),
                model: word("model"),
                version: None,
                reason: None,
            },
            input_tokens: number("input_tokens"),
            output_tokens: number("output_tokens"),
            cost: member("cost_micros").and_then(Value::as_u64).map(Micros),
            price_table: member("price_table")
                .and_then(Value::as_str)
                .map(str::to_owned),
        });
    }
}
