//! Contracts in the agent: tools are narrowed before the model is asked, and a call is made only if the contracts release
//! it and the execution checks hold.
//!
//! Contracts come with the persona's snapshot, times as results of effects, so that a replay judges again and comes to the
//! same verdicts. Fails closed: contracts that cannot be read, a time that is missing or an event that cannot be end the run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use canon::{Map, Value};
use contracts::{
    Answer, Answers, ApprovalRequest, ApprovalResponse, AttemptCost, Begin, Call as Judged,
    CallKey, Decimal, Decision, Event, Executors, FinishReason, Judgement, Narrowing, Occasion,
    OfferedTool, Options, Outcome, Price, ProposedCall, Refusal, Release, Request, Responded,
    Response, Rules, Settlement, Source, State, Status, ToolChoice, check_execution, compile,
    judge, narrow, precheck, question, read_answer, refused, settle, settled,
};
use domain::{ContractTexts, Kind, ModelUse, Timestamp};
use serde::Deserialize as _;
use serde_json::json;

use super::super::{EffectAnswer, Note};
use super::note;

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
    /// The last time that was recorded.
    now: Timestamp,
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
    question: Option<(ApprovalRequest, Judged)>,
}

/// What becomes of a response.
pub(super) enum Judgment {
    /// Somebody is asked about a call first, with this request.
    Ask(Value),
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
    match Governance::begin(texts, &Value::Null, &named, Timestamp::from_micros(0)) {
        Ok(_) => Ok(()),
        Err(fault) => Err(fault.message),
    }
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

impl Governance {
    /// Begins under recorded contracts at a recorded time.
    pub(super) fn begin(
        texts: &ContractTexts,
        persona: &Value,
        model: &Map<String, Value>,
        at: Timestamp,
    ) -> Result<Self, Fault> {
        let source = |file: &domain::ContractText| Source {
            file: file.file.clone(),
            text: file.text.clone(),
        };
        let files: Vec<Source> = texts.files.iter().map(source).collect();
        let compiled = compile(&files, texts.session.as_ref().map(source).as_ref())
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
        let begin = Begin {
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
            now: at,
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
            .then(|| note(Kind::ContractDecided, json!({"narrowing": narrowing})));
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
            question: None,
        });
        Ok((narrowing, told))
    }

    /// Says that the model was asked and gave no answer that could be judged.
    pub(super) fn unanswered(&mut self) -> Result<(), Fault> {
        self.open = None;
        self.advance(&Event::Failed {
            at: self.now,
            attempted: true,
        })
    }

    /// Says that an answer is not judged to the end, because somebody interrupted: nothing of it is released.
    pub(super) fn abandoned(&mut self) -> Result<(), Fault> {
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
        let text = |value: &Value, pointer: &str| {
            let found = value.pointer(pointer).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let calls = answer
            .pointer("/choices/0/message/tool_calls")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        open.response = Response {
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
        };
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
        let occasion = Occasion {
            request: &open.request,
            now: at,
            proposal: open.proposal.as_deref(),
            answers: &open.answers,
        };
        let judgement = judge(&self.rules, &self.state, &open.response, occasion);
        if let Some(call) = judgement
            .asked()
            .next()
            .map(|verdict| verdict.call().clone())
        {
            return self.ask(open, &judgement, call, at);
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
        let refused = refused_calls(&judgement, &settlement, decision);
        let approved = open
            .answers
            .iter()
            .filter(|(_, answer)| matches!(answer, Answer::Approved { .. }));
        Ok(Judgment::Settled {
            refused,
            consented: approved.map(|(id, _)| id.clone()).collect(),
            note: note(
                Kind::ContractDecided,
                json!({"decision": decision, "asked": open.asked}),
            ),
        })
    }

    fn ask(
        &mut self,
        mut open: Open,
        judgement: &Judgement,
        call: Judged,
        at: Timestamp,
    ) -> Result<Judgment, Fault> {
        open.asked += 1;
        let proposal = open.proposal.take();
        let proposal =
            proposal.unwrap_or_else(|| format!("response-{}", self.state.attempts() + 1));
        self.advance(&Event::Asked {
            at,
            proposal: proposal.clone(),
            asked: open.asked,
            calls: judgement.standing(),
        })?;
        let id = format!("{proposal}-{}", open.asked);
        open.proposal = Some(proposal);
        let Some(asked) = question(&self.rules, &self.state, &call, &id, at) else {
            // What cannot be shown cannot be consented to.
            open.answers
                .insert(call.id, Answer::Denied { detail: None });
            self.open = Some(open);
            return self.judge(at);
        };
        let contract = self.rules.compiled().contract(&call.tool);
        let request = json!({
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
        open.question = Some((asked, call));
        self.open = Some(open);
        Ok(Judgment::Ask(request))
    }

    /// Takes what somebody answered. Who may answer was checked by whoever took the answer.
    pub(super) fn consented(&mut self, answer: Option<&EffectAnswer>, at: Timestamp) {
        let Some(open) = &mut self.open else { return };
        let Some((asked, call)) = open.question.take() else {
            return;
        };
        let approved = answer
            .filter(|answer| answer.ok)
            .and_then(|answer| answer.value.get("approved"))
            .and_then(Value::as_bool);
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
        let answer = read_answer(&self.rules, &self.state, &asked, &call, &response, at);
        open.answers.insert(call.id, answer);
    }

    /// Checks a released call once more before it is made; the reason if it is not to be.
    pub(super) fn start(
        &mut self,
        id: &str,
        tool: &str,
        arguments: &str,
    ) -> Result<Result<(), (String, Note)>, Fault> {
        match check_execution(&self.rules, &self.state, tool, Some(id), arguments) {
            Ok(call) => {
                self.advance(&Event::Started { call: call.clone() })?;
                self.running.insert(id.to_owned(), call);
                Ok(Ok(()))
            }
            Err(refusal) => {
                self.advance(&Event::ExecutionRefused { at: self.now })?;
                let word = refusal.reason().map(|reason| reason.as_str());
                let (word, detail) = (word.unwrap_or("inactive"), refusal.detail());
                let told = json!({"execution": {
                    "call_id": id,
                    "tool_name": tool,
                    "check": refusal.check().map(|check| check.as_str()),
                    "reason": word,
                    "detail": detail,
                }});
                Ok(Err((
                    sentence(word, detail.as_deref()),
                    note(Kind::ContractDecided, told),
                )))
            }
        }
    }

    /// Says that a released call is not made, for a reason that is not the contracts'.
    pub(super) fn dropped(&mut self, id: &str) -> Result<(), Fault> {
        let found = self.state.unsettled().find(|(key, _)| key.id == id);
        let Some(call) = found.map(|(key, _)| key.clone()) else {
            return Ok(());
        };
        self.running.remove(id);
        self.settled(call, Outcome::Error, None)
    }

    /// Says what a tool gave.
    pub(super) fn ended(
        &mut self,
        id: &str,
        tool: &str,
        answer: Option<&EffectAnswer>,
    ) -> Result<(), Fault> {
        let Some(call) = self.running.remove(id) else {
            return Ok(());
        };
        let contract = self.rules.compiled().contract(tool);
        let failed = |code: &str| match code {
            "interrupted" | "tool_timeout" | "effect_result_unknown" => Outcome::Unknown,
            code if contract.is_some_and(|contract| {
                contract.allowed_errors.iter().any(|known| known == code)
            }) =>
            {
                Outcome::ExpectedError
            }
            _ => Outcome::Error,
        };
        let (outcome, output) = match answer {
            None => (Outcome::Unknown, None),
            Some(answer) => match failure_code(answer) {
                Some(code) => (failed(&code), None),
                None => (Outcome::Success, Some(output(&answer.value))),
            },
        };
        self.settled(call, outcome, output)
    }

    fn settled(
        &mut self,
        call: CallKey,
        outcome: Outcome,
        output: Option<String>,
    ) -> Result<(), Fault> {
        self.advance(&Event::Settled {
            call,
            outcome,
            output,
        })
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

/// Returns the word for how a tool failed; none when it did not.
fn failure_code(answer: &EffectAnswer) -> Option<String> {
    let value = &answer.value;
    if !answer.ok {
        let code = value.get("code").and_then(Value::as_str);
        return Some(code.unwrap_or("error").to_owned());
    }
    if value.get("isError") == Some(&Value::Bool(true)) {
        return Some("error".to_owned());
    }
    let exit = value.get("exit_code").and_then(Value::as_i64);
    exit.filter(|code| *code != 0)
        .map(|code| format!("exit_{code}"))
}

/// Returns what rules read of a tool's output: what an MCP server structured or said, what a command printed, else the value.
fn output(value: &Value) -> String {
    if let Some(structured) = value.get("structuredContent") {
        return serde_json::to_string(structured).unwrap_or_default();
    }
    match value.get("stdout").and_then(Value::as_str) {
        Some(printed) => printed.to_owned(),
        None => super::tools::readable(value),
    }
}
