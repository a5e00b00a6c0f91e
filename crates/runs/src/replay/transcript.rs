//! A run as people read it: what was given, what was asked and answered step by step, who decided what, how it ended.
//!
//! Pure, over the log of one Task, finished or not. The log holds requests as digests: the workflow says them again over
//! the recorded answers, and each says whether it has the recorded digest. A model request repeats everything that was
//! said before it; the whole telling names each message once, and one step alone is told whole.

use std::collections::BTreeMap;

use canon::{Digest, Value, jcs, sha256};
use domain::{Kind, Status, TaskId, Timestamp, payload};
use serde::Serialize;

use super::diff::requests::{RequestOfRun, is_answer_public, requests_of};
use super::diff::{Reveal, Usage, answer, failure, is_input_public, usage};
use super::keys::readable;
use super::source::{EffectPlaces, Source};
use crate::workflow::{Registry, Transcript};

/// A run, told.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunTranscript {
    /// `run_transcript`.
    pub object: &'static str,
    /// The Task.
    pub task_id: TaskId,
    /// Its Session.
    pub session_id: Option<String>,
    /// Its Workspace.
    pub workspace_id: Option<String>,
    /// The workflow that runs.
    pub workflow: String,
    /// The persona as it was when the Task was submitted; null without one.
    pub persona: Value,
    /// For a replay: what it replays and how; null otherwise.
    pub replay: Value,
    /// The state that the log ends in.
    pub status: Status,
    /// When it was submitted.
    pub submitted_at: Option<Timestamp>,
    /// Who submitted it.
    pub submitted_by: Option<String>,
    /// When its last event was committed.
    pub last_event_at: Option<Timestamp>,
    /// The bytes that this was made from.
    pub made_from: TranscriptSource,
    /// What was asked; null when this reader may not see it.
    pub input: Value,
    /// Steps in all, whichever of them are told here.
    pub steps_total: usize,
    /// The steps, in the order of the log.
    pub steps: Vec<Step>,
    /// What was answered, once it completed.
    pub answer: Option<String>,
    /// Why it failed; null otherwise.
    pub failure: Value,
    /// What its model calls used.
    pub usage: Usage,
}

/// Which bytes a telling was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TranscriptSource {
    /// Events of the log.
    pub events: usize,
    /// The first of them.
    pub first_event_id: Option<String>,
    /// The last of them.
    pub last_event_id: Option<String>,
    /// SHA-256 over these events, each followed by a line feed: for a finished run the digest in its receipt.
    pub log_sha256: Digest,
    /// True once the Task has ended: nothing is added any more.
    pub sealed: bool,
    /// The receipt that commits to them.
    pub receipt_id: Option<String>,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A call of a model.
    Model,
    /// A call of a tool.
    Tool,
    /// A tool that the model called and that was not used.
    ToolRefused,
    /// A request for approval.
    Approval,
    /// A question.
    Question,
    /// Something the run needed to know: its tools, its memory, a handle of a secret, the time.
    Fact,
}

/// Whether something has its recorded digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// It has.
    Matches,
    /// It has another one: what is shown is not what was recorded.
    Differs,
    /// It could not be put together from the record.
    Unavailable,
    /// It is not public, and this reader sees digests alone.
    Hidden,
    /// The log states none.
    NotStated,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// Its number, from 1.
    pub step: usize,
    /// What it is.
    pub what: StepKind,
    /// The effect key; none for a tool that was not used.
    pub key: Option<String>,
    /// The event that says that it was asked for.
    pub requested: Option<Mark>,
    /// The event that holds the answer; none while it is waited for.
    pub recorded: Option<Mark>,
    /// From one to the other.
    pub duration_ms: Option<u64>,
    /// What was asked. Of a model call the messages that the one before it had are left out, unless this step is told
    /// alone.
    pub request: Value,
    /// Of a model call: where the messages and tools are that are left out.
    pub request_continues: Option<SharedPrefix>,
    /// The digest of the whole request as the log states it.
    pub request_sha256: Option<String>,
    /// Whether the request above, put together whole, has that digest.
    pub request_check: Check,
    /// `ok` or `error`; none while it is waited for.
    pub outcome: Option<String>,
    /// What was answered, as it is recorded.
    pub value: Value,
    /// The digest of the answer as the log states it.
    pub value_sha256: Option<String>,
    /// Whether the answer above has that digest.
    pub value_check: Check,
    /// The answer in words.
    pub text: Option<String>,
    /// Of a model call: provider, model, tokens, cost in millionths of a dollar.
    pub used: Value,
    /// Of a tool: what was called.
    pub tool: Option<ToolCall>,
    /// Of a tool: what it did beside answering, as far as that was observed.
    pub side_effects: Value,
    /// Of an approval or a question: who answered, what and why.
    pub decision: Option<Decision>,
    /// `overridden`, `stale_input` or `refreshed` in a replay that did not take the recorded answer to this request.
    pub note: Option<String>,
}

/// A place in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The event.
    pub event_id: String,
    /// Its number in the log of the Task, from 1.
    pub sequence: u64,
    /// When it was committed.
    pub at: Timestamp,
}

/// What a model request has in common with an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SharedPrefix {
    /// The step of the earlier one.
    pub step: usize,
    /// How many messages, from the first, stand there.
    pub messages: u64,
    /// True when the tools are those of the earlier one.
    pub same_tools: bool,
}

/// What was called.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    /// The name that the model used.
    pub name: Option<String>,
    /// The id that the model gave the call.
    pub call_id: Option<String>,
    /// The arguments.
    pub arguments: Value,
    /// Why it was not used.
    pub refused: Option<String>,
}

/// What somebody decided or answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// The permission request.
    pub request_id: Option<String>,
    /// What is asked to be done; null for a question.
    pub action: Value,
    /// SHA-256 of the canonical form of the action's input.
    pub input_sha256: Option<Digest>,
    /// In words.
    pub reason_asked: Option<String>,
    /// None while nobody has decided.
    pub approved: Option<bool>,
    /// Who decided.
    pub actor: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub at: Option<Timestamp>,
}

/// Tells a run. `beside` is the run that it replays, when that is at hand; `only` is the number of the one step that is
/// told, whole.
pub fn transcript(
    source: &Source,
    beside: Option<&Source>,
    workflows: &Registry,
    reveal: Reveal,
    only: Option<usize>,
) -> RunTranscript {
    let asked = requests_of(source, beside.unwrap_or(source), workflows);
    let uses = (0..source.len())
        .filter(|index| source.kind(*index) == Some(Kind::AgentToolUse))
        .filter_map(|index| Some((source.key_of(index)?, index)));
    let teller = TranscriptBuilder {
        source,
        asked,
        uses: uses.collect(),
        reveal,
    };
    let steps = teller.steps(only);
    let first = source.event(0);
    let submitted = source.payload(0);
    let is_told = reveal == Reveal::All || is_input_public(source);
    let said = payload::TaskSubmitted::of(&submitted);
    RunTranscript {
        object: "run_transcript",
        task_id: source.task_id.clone(),
        session_id: first.and_then(|event| Some(event.session_id.as_ref()?.to_string())),
        workspace_id: first.and_then(|event| Some(event.workspace_id.as_ref()?.to_string())),
        workflow: source.workflow().0.to_owned(),
        persona: said
            .persona()
            .filter(|_| is_told)
            .cloned()
            .unwrap_or_default(),
        replay: said.replay().map_or(Value::Null, |replay| {
            Value::Object(replay.members().clone())
        }),
        status: source.status,
        submitted_at: first.map(|event| event.created_at),
        submitted_by: first.and_then(|event| event.actor.clone()),
        last_event_at: source.events().last().map(|event| event.created_at),
        made_from: TranscriptSource {
            events: source.len(),
            first_event_id: first.map(|event| event.id.to_string()),
            last_event_id: source.events().last().map(|event| event.id.to_string()),
            log_sha256: source.log_sha256,
            sealed: source.status.is_terminal(),
            receipt_id: source
                .receipt
                .as_ref()
                .map(|receipt| receipt.id().to_owned()),
        },
        input: match is_told {
            true => source.start(|index| source.payload(index)).0.input,
            false => Value::Null,
        },
        steps_total: teller.places().len(),
        steps,
        answer: answer(source),
        failure: failure(source),
        usage: usage(source),
    }
}

/// Where a step stands in the log.
enum At<'a> {
    Effect(&'a str, EffectPlaces),
    Refused(usize),
}

struct TranscriptBuilder<'a> {
    source: &'a Source,
    asked: BTreeMap<String, RequestOfRun>,
    /// Where the agent says that it uses a tool, by the key of the effect.
    uses: BTreeMap<&'a str, usize>,
    reveal: Reveal,
}

impl<'a> TranscriptBuilder<'a> {
    /// Returns what counts as a step, in the order of the log.
    fn places(&self) -> Vec<At<'a>> {
        let source = self.source;
        let effects = source.effects().into_iter().map(|(key, places)| {
            let place = places.requested.or(places.asked).or(places.recorded);
            (place.unwrap_or_default(), At::Effect(key, places))
        });
        let refused = (0..source.len()).filter(|index| {
            source.kind(*index) == Some(Kind::AgentToolUse) && source.key_of(*index).is_none()
        });
        let refused = refused.map(|index| (index, At::Refused(index)));
        let mut steps: Vec<(usize, At<'a>)> = effects.chain(refused).collect();
        steps.sort_by_key(|(place, _)| *place);
        steps.into_iter().map(|(_, step)| step).collect()
    }

    fn steps(&self, only: Option<usize>) -> Vec<Step> {
        let mut before: Option<(usize, Transcript, Value)> = None;
        let mut steps = Vec::new();
        for (number, at) in (1..).zip(self.places()) {
            let is_told = only.is_none_or(|only| only == number);
            match at {
                At::Refused(index) if is_told => steps.push(self.refused(number, index)),
                At::Effect(key, places) if is_told => {
                    let earlier = before.as_ref().filter(|_| only.is_none());
                    steps.push(self.effect(number, key, places, earlier));
                }
                At::Refused(_) | At::Effect(..) => {}
            }
            if let At::Effect(key, _) = at
                && let Some(asked) = self.asked.get(key)
                && let Some(messages) = &asked.wanted.messages
            {
                let tools = asked.wanted.request.get("tools").cloned();
                before = Some((number, messages.clone(), tools.unwrap_or_default()));
            }
        }
        steps
    }

    fn effect(
        &self,
        number: usize,
        key: &str,
        places: EffectPlaces,
        earlier: Option<&(usize, Transcript, Value)>,
    ) -> Step {
        let source = self.source;
        let event = |place: Option<usize>| place.and_then(|place| source.event(place));
        let (requested, recorded) = (event(places.requested), event(places.recorded));
        let intent = requested.map(|event| payload::EffectRequested::of(&event.payload));
        let result = recorded.map(|event| payload::EffectRecorded::of(&event.payload));
        let kind = intent.and_then(|said| said.kind());
        let kind = kind.or_else(|| result.and_then(|said| said.kind()));
        let what = match (places.asked.and_then(|place| source.kind(place)), kind) {
            (Some(Kind::ToolApprovalRequired), _) => StepKind::Approval,
            (Some(_), _) => StepKind::Question,
            (None, Some("llm_provider_response")) => StepKind::Model,
            (None, Some("mcp_tool_return" | "tool_result")) => StepKind::Tool,
            (None, _) => StepKind::Fact,
        };
        let stated = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
        let given = |value: Option<&Value>| value.cloned().unwrap_or_default();
        let duration = || {
            let micros = recorded?.created_at.as_micros() - requested?.created_at.as_micros();
            u64::try_from(micros / 1_000).ok()
        };
        let (request, request_continues, request_check) = self.request(key, earlier);
        let (value, value_check) = self.value(key, places.recorded);
        let is_overridden = recorded
            .and_then(|event| event.replay.as_ref())
            .is_some_and(|mark| mark.override_key.is_some());
        let note =
            recorded.and_then(|event| payload::ReplayedEffect::of(&event.payload).replay_note());
        let note = note.or(is_overridden.then_some("overridden"));
        Step {
            step: number,
            what,
            key: Some(key.to_owned()),
            requested: self.mark(places.requested),
            recorded: self.mark(places.recorded),
            duration_ms: duration(),
            request,
            request_continues,
            request_sha256: stated(intent.and_then(|said| said.request_sha256())),
            request_check,
            outcome: result.and_then(|said| said.outcome()).map(str::to_owned),
            text: (!value.is_null()).then(|| readable(&value)),
            value,
            value_sha256: stated(result.and_then(|said| said.value_sha256())),
            value_check,
            used: given(result.and_then(|said| said.model())),
            tool: (what == StepKind::Tool).then(|| self.tool_call(key)),
            side_effects: given(result.and_then(|said| said.side_effects())),
            decision: places.asked.map(|place| self.decision(place)),
            note: note.map(str::to_owned),
        }
    }

    fn refused(&self, number: usize, index: usize) -> Step {
        let payload = self.source.payload(index);
        let tool = called(payload::ToolUse::of(&payload));
        let is_same = |at: &usize, kind: Kind| {
            let event = self.source.event(*at);
            // Whatever tells of a call names it so.
            let id = event.and_then(|event| payload::ToolUse::of(&event.payload).tool_call_id());
            self.source.kind(*at) == Some(kind) && id == tool.call_id.as_deref()
        };
        let after = (index + 1)..self.source.len();
        let denied = after.clone().find(|at| is_same(at, Kind::ToolDenied));
        let told = after.clone().find(|at| is_same(at, Kind::AgentToolResult));
        let why = told.and_then(|at| {
            let payload = self.source.payload(at);
            let output = payload::ToolResult::of(&payload).output()?;
            Some(output.get("message")?.as_str()?.to_owned())
        });
        let why = why.or_else(|| {
            let payload = self.source.payload(denied?);
            payload::Decided::of(&payload).reason().map(str::to_owned)
        });
        Step {
            step: number,
            what: StepKind::ToolRefused,
            key: None,
            requested: self.mark(Some(index)),
            recorded: self.mark(denied.or(told)),
            duration_ms: None,
            request: Value::Null,
            request_continues: None,
            request_sha256: None,
            request_check: Check::NotStated,
            outcome: Some("refused".to_owned()),
            value: Value::Null,
            value_sha256: None,
            value_check: Check::NotStated,
            text: why.clone(),
            used: Value::Null,
            tool: Some(ToolCall {
                refused: why,
                ..tool
            }),
            side_effects: Value::Null,
            decision: None,
            note: None,
        }
    }

    fn mark(&self, place: Option<usize>) -> Option<Mark> {
        let place = place?;
        let event = self.source.event(place)?;
        Some(Mark {
            event_id: event.id.to_string(),
            sequence: place as u64 + 1,
            at: event.created_at,
        })
    }

    fn request(
        &self,
        key: &str,
        earlier: Option<&(usize, Transcript, Value)>,
    ) -> (Value, Option<SharedPrefix>, Check) {
        let Some(asked) = self.asked.get(key) else {
            return (Value::Null, None, Check::Unavailable);
        };
        if self.reveal == Reveal::Public && !asked.is_open {
            return (Value::Null, None, Check::Hidden);
        }
        let check = match asked.matches {
            true => Check::Matches,
            false => Check::Differs,
        };
        let mut request = asked.wanted.request.clone();
        let mut continues = None;
        if let (Some(messages), Value::Object(members)) = (&asked.wanted.messages, &mut request) {
            let shared = earlier.and_then(|(step, before, tools)| {
                Some((*step, before.len(), messages.since(before)?, tools))
            });
            let told = match shared {
                Some((step, count, added, tools)) => {
                    let same_tools = !tools.is_null() && members.get("tools") == Some(tools);
                    if same_tools {
                        members.remove("tools");
                    }
                    continues = Some(SharedPrefix {
                        step,
                        messages: count,
                        same_tools,
                    });
                    Value::Array(added)
                }
                None => messages.to_value(),
            };
            members.insert("messages".to_owned(), told);
        }
        (request, continues, check)
    }

    fn value(&self, key: &str, recorded: Option<usize>) -> (Value, Check) {
        let Some(place) = recorded else {
            return (Value::Null, Check::NotStated);
        };
        if self.reveal == Reveal::Public && !is_answer_public(self.source, key) {
            return (Value::Null, Check::Hidden);
        }
        let Some(answer) = self.source.answer(place) else {
            return (Value::Null, Check::Unavailable);
        };
        let event = self.source.event(place);
        let stated =
            event.and_then(|event| payload::EffectRecorded::of(&event.payload).value_sha256());
        let check = match stated {
            None => Check::NotStated,
            Some(stated) if stated == sha256(&jcs(&answer.value)) => Check::Matches,
            Some(_) => Check::Differs,
        };
        (answer.value, check)
    }

    fn tool_call(&self, key: &str) -> ToolCall {
        let used = self.uses.get(key);
        let payload = used.map(|index| self.source.payload(*index));
        called(payload::ToolUse::of(&payload.unwrap_or_default()))
    }

    fn decision(&self, asked: usize) -> Decision {
        let source = self.source;
        let payload = source.payload(asked);
        let request = payload::Asked::of(&payload);
        let said = (asked + 1..source.len()).find(|index| {
            let kind = source.kind(*index);
            let answers = [Kind::UserToolConfirmation, Kind::UserInputSubmitted];
            let event = source.event(*index);
            let id = event.and_then(|event| payload::Answered::of(&event.payload).request_id());
            kind.is_some_and(|kind| answers.contains(&kind)) && id == request.request_id()
        });
        let answered = said.and_then(|index| source.event(index));
        let words = said.map(|index| source.payload(index)).unwrap_or_default();
        let words = payload::Answered::of(&words);
        let action = request.action().cloned().unwrap_or_default();
        let asked = request.request().and_then(|request| {
            let words = request.get("reason").or(request.get("question"));
            Some(words?.as_str()?.to_owned())
        });
        Decision {
            input_sha256: action.get("input").map(|input| sha256(&jcs(input))),
            action,
            reason_asked: asked,
            approved: words.approved(),
            actor: answered.and_then(|event| event.actor.clone()),
            reason: words
                .remarks()
                .and_then(|remarks| Some(remarks.get("reason")?.as_str()?.to_owned())),
            at: answered.map(|event| event.created_at),
            request_id: request.request_id().map(str::to_owned),
        }
    }
}

/// Returns a tool call as the agent told it.
fn called(said: payload::Said<'_, payload::ToolUse>) -> ToolCall {
    ToolCall {
        name: said.name().map(str::to_owned),
        call_id: said.tool_call_id().map(str::to_owned),
        arguments: said.input().cloned().unwrap_or_default(),
        refused: None,
    }
}
