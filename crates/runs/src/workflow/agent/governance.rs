//! Contracts in the agent: tools are narrowed before the model is asked, and a call is made only if the contracts release
//! it and the execution checks hold.
//!
//! Contracts come with the persona's snapshot, times as results of effects, so that a replay judges again and comes to the
//! same verdicts. Fails closed: contracts that cannot be read, a time that is missing or an event that cannot be end the run.

mod execution;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::{Digest, Map, Value};
use contracts::{
    Answer, Answers, ApprovalRequest, ApprovalResponse, AttemptCost, Call as Judged, CallKey,
    Decimal, Decision, Event, Executors, FinishReason, JudgeContext, Judgement, Narrowing,
    OfferedTool, Options, Price, ProposedCall, Refusal, Release, Request, Responded, Response,
    Rules, SessionStart, Settlement, Source, State, Status, ToolChoice, compile_recorded, judge,
    narrow, precheck, question, read_answer, refused, settle, settled,
};
use domain::{ContractTexts, Kind, ModelUse, Timestamp, payload};
use serde::Deserialize as _;
use serde_json::json;

use super::super::governed::apply_rules_version;
use super::super::{EffectAnswer, Note};
use super::note;
pub use execution::{failure_in_result, is_unknown, ruled_output};

/// The contracts of a run and what happened under them.
#[derive(Debug)]
pub(super) struct Governance {
    rules: Rules,
    state: State,
    /// `provider/model` as the persona names them.
    model: (String, String),
    /// The response that is being judged.
    open: Option<Open>,
    /// The released calls that are being made, by the provider's id.
    running: BTreeMap<String, CallKey>,
    /// The step of the answer whose calls are being made; none where nothing of it was released.
    released: Option<u64>,
    /// The last time that was recorded.
    now: Timestamp,
    manner: ContractHandling,
}

/// How a version of the agent goes about contracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ContractHandling {
    /// One question after the other, counted with the decision.
    OneByOne,
    /// All questions of an answer together, each told when it is asked; retries, timeouts and expiry as contracts say.
    Together,
    /// The same, and calls that count when they are released are made.
    Counted,
}

/// A response that is being judged.
#[derive(Debug)]
struct Open {
    request: Request,
    response: Response,
    cost: Option<Decimal>,
    proposal: Option<String>,
    answers: Answers,
    asked: u64,
    questions: Vec<(ApprovalRequest, Judged)>,
}

/// What becomes of a response.
pub(super) enum Judgment {
    /// Somebody is asked about calls first, with these requests.
    Ask {
        /// One for each call.
        requests: Vec<Value>,
        /// What to record.
        note: Option<Note>,
    },
    /// Calls may be made, but for those that are refused.
    Settled {
        /// The places of refused calls in the answer, with the reason.
        refused: BTreeMap<usize, String>,
        /// Calls that somebody consented to.
        consented: BTreeSet<String>,
        /// What to record.
        note: Note,
    },
}

/// A fault of governance itself: the run ends.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) details: Map<String, Value>,
}

impl Fault {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Map::new(),
        }
    }
}

/// Checks that a run can begin under contracts.
///
/// # Errors
/// Why it cannot.
pub fn check_contracts(texts: &ContractTexts) -> Result<(), String> {
    let named = Map::from_iter([
        ("provider".to_owned(), "any".into()),
        ("model".to_owned(), "any".into()),
    ]);
    let (at, manner) = (Timestamp::from_micros(0), ContractHandling::Counted);
    match Governance::begin(texts, &Value::Null, &named, at, manner) {
        Ok(_) => Ok(()),
        Err(fault) => Err(fault.message),
    }
}

/// Returns the pattern by which contracts exclude the model of a persona, in whatever case it is written.
pub fn excluded_model(texts: &ContractTexts, provider: &str, model: &str) -> Option<String> {
    let session = texts.session.as_ref()?;
    // Most sets exclude nothing, and need not be compiled for this.
    if !session.text.contains("provider_constraints") {
        return None;
    }
    let named = Map::from_iter([
        ("provider".to_owned(), provider.into()),
        ("model".to_owned(), model.into()),
    ]);
    let (at, manner) = (Timestamp::from_micros(0), ContractHandling::Counted);
    let mut begun = Governance::begin(texts, &Value::Null, &named, at, manner).ok()?;
    begun.rules = begun.rules.in_any_case();
    contracts::model_excluded(&begun.rules, provider, model)
}

/// Returns the contracts that a persona's snapshot holds; none when it names none.
pub(super) fn texts(persona: Option<&Value>) -> Option<Result<ContractTexts, Fault>> {
    let member = persona?
        .get("contracts")
        .filter(|member| !member.is_null())?;
    let read = ContractTexts::deserialize(member);
    Some(read.map_err(|error| {
        let message = format!("the contracts of this task cannot be read: {error}");
        Fault::new("contracts_unreadable", message)
    }))
}

/// Returns the digest of the contracts that a persona's snapshot holds, and who the agent is for their policies.
///
/// # Errors
/// They cannot be read.
pub(crate) fn recorded_contracts(
    persona: &Value,
) -> Result<Option<(Digest, contracts::Value)>, String> {
    let Some(texts) = texts(Some(persona)) else {
        return Ok(None);
    };
    let found = texts.and_then(|texts| Ok((texts.sha256, principal(&texts, persona)?)));
    found.map(Some).map_err(|fault| fault.message)
}

impl Governance {
    /// Begins under recorded contracts at a recorded time.
    pub(super) fn begin(
        texts: &ContractTexts,
        persona: &Value,
        model: &Map<String, Value>,
        at: Timestamp,
        manner: ContractHandling,
    ) -> Result<Self, Fault> {
        let source = |file: &domain::ContractText| Source {
            file: file.file.clone(),
            text: file.text.clone(),
        };
        let files: Vec<Source> = texts.files.iter().map(source).collect();
        let compiled = compile_recorded(&files, texts.session.as_ref().map(source).as_ref())
            .map_err(|error| Fault::new("contracts_unreadable", error.to_string()))?;
        if compiled.digest() != texts.sha256 {
            let message =
                "the recorded contracts do not have the digest that was recorded with them";
            return Err(Fault::new("contracts_unreadable", message));
        }
        let text = |name: &str| model.get(name).and_then(Value::as_str);
        let named = text("provider").zip(text("model"));
        let mut options = Options::new("task");
        options.executors = Executors::All;
        options.server = true;
        options.answers_checkpoints = true;
        options.principal = Some(principal(texts, persona)?);
        // As it was recorded: a model that differs in case alone is refused where a persona is written and a task submitted.
        apply_rules_version(None, &mut options);
        let (provider, name) = named.unwrap_or(("default", "default"));
        // What a call cost is recorded with its answer; the table is only asked whether it can be known.
        if compiled.limits_cost() {
            let price = Price {
                input: Decimal::ZERO,
                output: Decimal::ZERO,
                cache_read: None,
                cache_write: None,
            };
            options.prices.set(&format!("{provider}/{name}"), price);
        }
        let model = (provider.to_owned(), name.to_owned());
        let compiled = Arc::new(compiled);
        let rules = Rules::new(Arc::clone(&compiled), options)
            .map_err(|error| Fault::new("contracts_unreadable", error.to_string()))?;
        if rules.constrains_providers() && named.is_none() {
            let message = "the contracts exclude models, and the persona does not name its provider and model";
            return Err(Fault::new("contract_refused", message));
        }
        let begin = SessionStart {
            session_id: "task".to_owned(),
            agent: compiled.session().agent.clone(),
            at,
            compiled: compiled.digest(),
            labels: Vec::new(),
            slots: BTreeMap::new(),
        };
        let state = State::begin(&compiled, &begin)
            .map_err(|error| Fault::new("contracts_unreadable", error.to_string()))?;
        Ok(Self {
            rules,
            state,
            model,
            open: None,
            running: BTreeMap::new(),
            released: None,
            now: at,
            manner,
        })
    }

    /// Decides which tools the model may see, and whether it may be asked.
    pub(super) fn plan(
        &mut self,
        offered: Vec<OfferedTool>,
        sent: impl FnOnce() -> Value,
    ) -> Result<(Narrowing, Option<Note>), Fault> {
        let narrowing = narrow(&self.rules, &self.state, &offered);
        self.advance(&Event::Narrowed {
            narrowing: narrowing.clone(),
        })?;
        let view = if self.rules.compiled().reads_input() {
            sent()
        } else {
            Value::Null
        };
        let request = Request {
            provider: self.model.0.clone(),
            model: self.model.1.clone(),
            tools: offered,
            choice: ToolChoice::Auto,
            unsupported: None,
            view: exact(&view)?,
        };
        if let Err(refusal) = precheck(&self.rules, &self.state, &request, &narrowing) {
            return Err(self.refusal(&refusal));
        }
        let told = (!narrowing.removed.is_empty())
            .then(|| decided(payload::ContractDecided::default().narrowing(json!(narrowing))));
        self.open = Some(Open {
            request,
            response: Response {
                finish_reason: FinishReason::Other,
                content: None,
                calls: Vec::new(),
            },
            cost: None,
            proposal: None,
            answers: Answers::new(),
            asked: 0,
            questions: Vec::new(),
        });
        Ok((narrowing, told))
    }

    /// Says that the model was asked and gave no answer that could be judged.
    pub(super) fn unanswered(&mut self) -> Result<(), Fault> {
        self.open = None;
        self.released = None;
        self.advance(&Event::Failed {
            at: self.now,
            attempted: true,
        })
    }

    /// Says that an answer is not judged to the end, because somebody interrupted: nothing of it is released.
    pub(super) fn abandoned(&mut self) -> Result<(), Fault> {
        self.released = None;
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        self.advance(&Event::Responded(Responded {
            at: self.now,
            proposal: open.proposal,
            cost: open.cost,
            usage_unknown: self.rules.compiled().limits_cost() && open.cost.is_none(),
            release: Release::Blocked,
        }))
    }

    /// Takes the model's answer, to be judged.
    pub(super) fn answered(&mut self, answer: &Value, used: Option<&ModelUse>) {
        let Some(open) = &mut self.open else { return };
        open.response = response_of(answer);
        let micros = used.and_then(|used| used.cost_micros);
        open.cost = micros.map(|micros| Decimal::from(micros).shifted_right(6));
    }

    /// Judges the response at a time, with what people answered so far.
    pub(super) fn judge(&mut self, at: Timestamp) -> Result<Judgment, Fault> {
        self.now = at;
        let Some(mut open) = self.open.take() else {
            return Err(Fault::new(
                "contract_fault",
                "there is no response to judge",
            ));
        };
        let occasion = JudgeContext {
            request: &open.request,
            now: at,
            proposal: open.proposal.as_deref(),
            answers: &open.answers,
        };
        let judgement = judge(&self.rules, &self.state, &open.response, occasion);
        let asked = judgement.needing_approval().take(match self.manner {
            ContractHandling::OneByOne => 1,
            ContractHandling::Together | ContractHandling::Counted => usize::MAX,
        });
        let asked: Vec<Judged> = asked.map(|verdict| verdict.call().clone()).collect();
        if !asked.is_empty() {
            return self.ask(open, &judgement, asked, at);
        }
        let settlement = settle(&self.rules, &judgement, self.state.attempts() + 1, 0);
        let cost = AttemptCost {
            at,
            cost: open.cost,
        };
        let proposal = open.proposal.take();
        let event = settled(
            &self.rules,
            &judgement,
            &settlement,
            cost,
            proposal.as_deref(),
        );
        let (Some(event), Some(decision)) = (event, decision_of(&settlement)) else {
            let message = "a response was settled while people were asked";
            return Err(Fault::new("contract_fault", message));
        };
        self.advance(&event)?;
        self.released = match settlement {
            Settlement::Release(_) | Settlement::Strip { .. } => Some(self.state.steps()),
            Settlement::Reject(_) | Settlement::Retry { .. } | Settlement::Wait => None,
        };
        let refused = refused_calls(&judgement, &settlement, decision);
        let told = payload::ContractDecided::default().decision(json!(decision));
        let approved = open
            .answers
            .iter()
            .filter(|(_, answer)| matches!(answer, Answer::Approved { .. }));
        Ok(Judgment::Settled {
            refused,
            consented: approved.map(|(id, _)| id.clone()).collect(),
            note: decided(match self.manner {
                ContractHandling::OneByOne => told.asked(open.asked),
                // Questions were told when they were asked: they count whatever becomes of them.
                ContractHandling::Together | ContractHandling::Counted => told,
            }),
        })
    }

    fn ask(
        &mut self,
        mut open: Open,
        judgement: &Judgement,
        calls: Vec<Judged>,
        at: Timestamp,
    ) -> Result<Judgment, Fault> {
        let first = open.asked + 1;
        open.asked += calls.len() as u64;
        let proposal = open.proposal.take();
        let proposal =
            proposal.unwrap_or_else(|| format!("response-{}", self.state.attempts() + 1));
        self.advance(&Event::Asked {
            at,
            proposal: proposal.clone(),
            asked: open.asked,
            calls: judgement.standing_calls(),
        })?;
        let mut requests = Vec::with_capacity(calls.len());
        for (number, call) in (first..).zip(calls) {
            let id = format!("{proposal}-{number}");
            match question(&self.rules, &self.state, &call, &id, at) {
                Some(asked) => {
                    requests.push(self.request(&asked, &call));
                    open.questions.push((asked, call));
                }
                // What cannot be shown cannot be consented to.
                None => {
                    let no = Answer::Denied { detail: None };
                    open.answers.insert(call.id, no);
                }
            }
        }
        open.proposal = Some(proposal);
        let nobody = open.questions.is_empty();
        let told = match self.manner {
            ContractHandling::OneByOne => None,
            ContractHandling::Together | ContractHandling::Counted => {
                Some(decided(asked_note(self, &open)))
            }
        };
        self.open = Some(open);
        if nobody {
            return self.judge(at);
        }
        Ok(Judgment::Ask {
            requests,
            note: told,
        })
    }

    /// What somebody who is asked about a call sees.
    fn request(&self, asked: &ApprovalRequest, call: &Judged) -> Value {
        let contract = self.rules.compiled().contract(&call.tool);
        let mut request = json!({
            "reason": asked.reason,
            "action": {"name": asked.tool_name, "input": asked.arguments},
            "contract": {
                "file": contract.map(|contract| contract.file.as_str()),
                "contract_sha256": self.rules.compiled().digest(),
                "arguments_sha256": call.arguments_digest,
                "context": asked.context,
                "timeout_seconds": asked.timeout_seconds,
                "requested_at": asked.requested_at,
            },
        });
        if let (
            ContractHandling::Together | ContractHandling::Counted,
            Some(Value::Object(contract)),
        ) = (self.manner, request.get_mut("contract"))
        {
            contract.insert("tool_call_id".to_owned(), call.id.as_str().into());
        }
        request
    }

    /// Takes what people answered, in the order in which they were asked. Who may answer was checked by whoever took the
    /// answers; each counts from when it came.
    pub(super) fn consented(&mut self, answers: &[EffectAnswer], at: Timestamp) {
        let Some(open) = &mut self.open else { return };
        for (place, (asked, call)) in std::mem::take(&mut open.questions).into_iter().enumerate() {
            let answer = answers.get(place).filter(|answer| answer.ok);
            let member = |name: &str| answer.and_then(|answer| answer.value.get(name));
            let approved = member("approved").and_then(Value::as_bool);
            let came = match self.manner {
                ContractHandling::OneByOne => None,
                ContractHandling::Together | ContractHandling::Counted => {
                    member("answered_at").and_then(|time| Timestamp::deserialize(time).ok())
                }
            };
            let response = ApprovalResponse {
                checkpoint_id: asked.checkpoint_id.clone(),
                decision: if approved == Some(true) {
                    "approve"
                } else {
                    "deny"
                }
                .to_owned(),
                decided_by: "approver".to_owned(),
                decided_at: at.to_string(),
                reason: None,
            };
            // A time of its own lies between question and reading; any other is of another clock and says nothing.
            let came = came.filter(|came| (asked.requested_at..=at).contains(came));
            let at = came.unwrap_or(at);
            let answer = read_answer(&self.rules, &self.state, &asked, &call, &response, at);
            open.answers.insert(call.id, answer);
        }
    }

    fn refusal(&self, refusal: &Refusal) -> Fault {
        let decision = refused(&self.rules, &self.state, refusal);
        let check = refusal.check().as_str();
        let (reason, detail) = match refusal {
            Refusal::Killed { cause } => ("killed", cause.clone()),
            Refusal::Inactive => ("inactive", String::new()),
            Refusal::ProviderIncompatible { pattern } => ("provider_incompatible", pattern.clone()),
            Refusal::Unsupported { member } => ("unsupported", member.clone()),
            Refusal::Blocked { reason, detail, .. } => (reason.as_str(), detail.clone()),
        };
        let mut fault = Fault::new(
            "contract_refused",
            format!("the contracts do not let the agent go on: {reason} ({detail})"),
        );
        let details =
            json!({"check": check, "reason": reason, "detail": detail, "decision": decision});
        fault.details = super::members(details);
        fault
    }

    fn advance(&mut self, event: &Event) -> Result<(), Fault> {
        self.state
            .advance(self.rules.compiled(), event)
            .map_err(|error| Fault::new("contract_fault", error.to_string()))
    }
}

/// Reads an answer of the model as contracts see it.
pub(crate) fn response_of(answer: &Value) -> Response {
    let text = |value: &Value, pointer: &str| {
        let found = value.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let calls = answer
        .pointer("/choices/0/message/tool_calls")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    Response {
        finish_reason: FinishReason::named(&text(answer, "/choices/0/finish_reason"))
            .unwrap_or(FinishReason::Other),
        content: answer
            .pointer("/choices/0/message/content")
            .and_then(Value::as_str)
            .map(str::to_owned),
        calls: calls
            .iter()
            .map(|call| ProposedCall {
                id: text(call, "/id"),
                name: text(call, "/function/name"),
                arguments: super::tools::written_arguments(call).to_owned(),
            })
            .collect(),
    }
}

/// Who runs, for policies: what the configuration says of the agent, and the persona. Never who submitted the Task, because
/// a run does not depend on that.
fn principal(texts: &ContractTexts, persona: &Value) -> Result<contracts::Value, Fault> {
    let mut principal = texts.principal.clone();
    for (name, member) in [
        ("persona", "name"),
        ("persona_version", "version"),
        ("autonomy_tier", "autonomy_tier"),
    ] {
        let value = persona.get(member).cloned().unwrap_or_default();
        principal.insert(name.to_owned(), value);
    }
    exact(&Value::Object(principal))
}

/// Reads a value as rules see it, with its numbers as they are written.
pub(super) fn exact(value: &Value) -> Result<contracts::Value, Fault> {
    let text = serde_json::to_string(value).unwrap_or_default();
    contracts::json::read(
        &text,
        contracts::json::Limits::MESSAGE,
        contracts::json::Numbers::Any,
    )
    .map_err(|error| {
        Fault::new(
            "contract_refused",
            format!("the request cannot be judged: {error}"),
        )
    })
}

fn decision_of(settlement: &Settlement) -> Option<&Decision> {
    match settlement {
        Settlement::Release(decision)
        | Settlement::Strip { decision, .. }
        | Settlement::Reject(decision)
        | Settlement::Retry { decision, .. } => Some(decision),
        Settlement::Wait => None,
    }
}

/// Returns the calls that are not made, and why. Where the whole response is refused, calls that hold by themselves are
/// refused with it.
fn refused_calls(
    judgement: &Judgement,
    settlement: &Settlement,
    decision: &Decision,
) -> BTreeMap<usize, String> {
    let whole = matches!(settlement, Settlement::Reject(_) | Settlement::Retry { .. });
    let verdicts = judgement.verdicts().iter().enumerate().filter_map(|(place, verdict)| {
        let own = verdict.status() == Status::Block;
        let why = match (own, verdict.first_failure()) {
            (true, Some(failure)) => sentence(failure.reason.as_str(), failure.detail.as_deref()),
            (true, None) => sentence("blocked", None),
            (false, _) if whole => {
                let first = decision.reason.map_or("blocked", |reason| reason.as_str());
                format!("refused by contract together with another call of the same answer ({first})")
            }
            (false, _) => return None,
        };
        Some((place, why))
    });
    verdicts.collect()
}

fn sentence(reason: &str, detail: Option<&str>) -> String {
    match detail {
        Some(detail) if !detail.is_empty() => format!("refused by contract: {reason} ({detail})"),
        _ => format!("refused by contract: {reason}"),
    }
}

/// What is told when people are asked.
fn asked_note(governance: &Governance, open: &Open) -> payload::ContractDecided {
    let questions = open.questions.iter().map(|(asked, call)| {
        json!({
            "tool_call_id": call.id,
            "tool_name": asked.tool_name,
            "arguments_sha256": call.arguments_digest,
        })
    });
    let questions: Vec<Value> = questions.collect();
    let told = payload::ContractDecided::default().asked(questions.len() as u64);
    let contract = governance.rules.compiled().digest();
    told.questions(questions).contract_sha256(json!(contract))
}

fn decided(told: payload::ContractDecided) -> Note {
    note(Kind::ContractDecided, told.into_members())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excluded_model_is_excluded_in_any_case() {
        let session = domain::ContractText {
            file: "session.yaml".to_owned(),
            text: "schema_version: \"1.0\"\nprovider_constraints: { block_incompatible: [\"openai/gpt-3.5-*\"] }\n"
                .to_owned(),
        };
        let source = Source {
            file: session.file.clone(),
            text: session.text.clone(),
        };
        let texts = ContractTexts {
            name: "set".to_owned(),
            sha256: compile_recorded(&[], Some(&source)).unwrap().digest(),
            files: Vec::new(),
            session: Some(session),
            principal: Map::new(),
        };
        for (provider, model, excluded) in [
            ("openai", "gpt-3.5-turbo", true),
            ("OpenAI", "GPT-3.5-Turbo", true),
            ("openai", "gpt-4o", false),
        ] {
            let found = excluded_model(&texts, provider, model);
            assert_eq!(found.is_some(), excluded, "{provider}/{model}");
        }
    }
}
