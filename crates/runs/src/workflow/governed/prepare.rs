//! Before the model is asked: a request is bound to the state.

use canon::Value;
use contracts::{
    Event, Mode, Narrowing, OfferedTool, PatternBudget, Refusal, Request, ToolChoice,
    check_attempts, check_workflow, narrow, precheck, refused,
};
use domain::{Preflight, Problem, RulesVersion, Timestamp, ToolOffer};
use serde_json::json;

use super::kept_request::{KeptRequest, RequestText};
use super::request_form::RequestForm;
use super::session::{GovernedSession, PREPARED_MICROS, age};

const PREPARED_MAX: usize = 256;

/// What a session may hold of prepared requests before it takes another one.
const PREPARED_BYTES_MAX: usize = 16 << 20;

/// A request that is bound to the state.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) at: Timestamp,
    pub(super) state_version: u64,
    pub(super) control_revision: u64,
    pub(super) request: KeptRequest,
    /// Kept where the difference to what it would have done is told.
    pub(super) narrowing: Option<Narrowing>,
}

impl GovernedSession {
    pub(super) fn preflight(
        &mut self,
        asked: &Preflight,
        now: Timestamp,
    ) -> Result<Value, Problem> {
        let (version, revision) = self.versions();
        if asked.expected_state_version != version {
            let message = "the session has moved on: read its state again";
            return Err(stale(message, version, revision));
        }
        if self.prepared.len() >= PREPARED_MAX {
            let message = "too many prepared requests wait for their proposal";
            return Err(Problem::new(429, "too_many_prepared", message));
        }
        let tools: Vec<OfferedTool> = asked
            .offered_tools
            .iter()
            .map(offered)
            .collect::<Result<_, _>>()?;
        let log_only = self.rules.options().mode == Mode::LogOnly;
        let narrowing = match log_only {
            true => Narrowing::default(),
            false => narrow(&self.rules, &self.state, &tools),
        };
        // What cannot be read is refused whether or not anything looks at it.
        exact(asked.request.as_ref().unwrap_or(&Value::Null))?;
        let request = Request {
            provider: asked.provider.clone(),
            model: asked.model.clone(),
            tools,
            choice: match &asked.forced_tool {
                Some(tool) => ToolChoice::Named(tool.clone()),
                None => ToolChoice::Auto,
            },
            unsupported: None,
            // Nothing looks at it before there are calls.
            view: contracts::Value::Null,
        };
        if !log_only {
            self.advance(&Event::Narrowed {
                narrowing: narrowing.clone(),
            })?;
            self.told.say(|said| said.narrowing(json!(narrowing)));
            let checked = precheck(&self.rules, &self.state, &request, &narrowing);
            let checked = checked.and_then(|()| check_workflow(self.seat.as_ref()));
            if let Err(refusal) = checked
                && self.rules.enforces()
            {
                return Err(self.refuse(&refusal, now));
            }
        }
        self.told.changed = true;
        let warnings = match log_only {
            true => Vec::new(),
            false => self.unchecked_keywords(&request.tools),
        };
        self.prepared_count += 1;
        let (state_version, control_revision) = self.versions();
        let all: Vec<String> = request.tools.iter().map(|tool| tool.name.clone()).collect();
        let (allowed, removed) = match self.rules.enforces() {
            true => (narrowing.allowed.clone(), json!(narrowing.removed)),
            // Nothing is taken away where verdicts do not block.
            false => (all, json!([])),
        };
        let compiled = self.rules.compiled();
        let prepared = Prepared {
            at: now,
            state_version,
            control_revision,
            request: KeptRequest::of(compiled, self.rules_version, asked, request.choice),
            narrowing: (self.rules.options().mode == Mode::Shadow).then_some(narrowing),
        };
        self.prepared.insert(self.prepared_count, prepared);
        let mut answer = json!({
            "prepared_request_id": prepared_id(self.prepared_count),
            "state_version": state_version,
            "control_revision": control_revision,
            "allowed_tools": allowed,
            "removed": removed,
        });
        if let (false, Value::Object(members)) = (warnings.is_empty(), &mut answer) {
            members.insert("warnings".to_owned(), warnings.into());
        }
        Ok(answer)
    }

    /// Tells once per tool which keywords of its schema are not checked, and again where these are others.
    fn unchecked_keywords(&mut self, tools: &[OfferedTool]) -> Vec<Value> {
        if self.rules_version < RulesVersion::Bounds {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        for tool in tools {
            let compiled = self.rules.compiled();
            let schema = tool.schema.as_ref();
            let Some(form) = schema.and_then(|schema| {
                compiled.schema_form(&tool.name, schema, &mut PatternBudget::recorded())
            }) else {
                continue;
            };
            let ignored = form.ignored;
            if ignored.is_empty() || self.schemas_told.get(&tool.name) == Some(&ignored) {
                continue;
            }
            let message = "these keywords of the tool's schema are not checked: demand what they say in its contract";
            warnings.push(json!({"code": "schema_keyword_ignored", "message": message, "tool": tool.name, "keywords": ignored}));
            self.schemas_told.insert(tool.name.clone(), ignored);
        }
        warnings
    }

    /// Refuses a request with something in it that cannot be judged, as a program is refused that has its client wrapped.
    ///
    /// # Errors
    /// Names the member.
    pub fn request_judgeable(&self, asked: &Preflight) -> Result<(), Problem> {
        if !self.rules.enforces() {
            return Ok(());
        }
        let compiled = self.rules.compiled();
        let mut tools = asked.offered_tools.iter();
        let handed = RequestForm::of(asked);
        if handed == RequestForm::Unknown && tools.any(|tool| compiled.reads_request(&tool.name)) {
            let message = "contracts look at the request, and `provider` is neither `openai` nor `anthropic`: \
                           a compatible server counts as the provider whose API it speaks";
            return Err(
                Problem::new(422, "provider_unknown", message).with("provider", &asked.provider)
            );
        }
        match handed.unsupported(asked) {
            Some(member) => {
                let message = format!("the request has `{member}`, which cannot be judged");
                Err(Problem::new(422, "unsupported_request", message).with("member", member))
            }
            None => Ok(()),
        }
    }

    /// Refuses a request where those that are under way use up the attempts: their responses are not here yet, and each counts.
    ///
    /// # Errors
    /// Why the model is not asked.
    pub fn attempts_left(&self, now: Timestamp) -> Result<(), Problem> {
        let usable = |prepared: &&Prepared| age(prepared.at, now) < PREPARED_MICROS;
        let under_way = self.prepared.values().filter(usable).count() as u64;
        let checked = check_attempts(&self.rules, &self.state, under_way);
        // A limit that is reached without them is a block that is recorded.
        let is_reached = check_attempts(&self.rules, &self.state, 0).is_err();
        let (Err(refusal), true, false) = (checked, self.rules.enforces(), is_reached) else {
            return Ok(());
        };
        let decision = refused(&self.rules, &self.state, &refusal);
        let message = "requests that are prepared and not proposed use up `max_attempts`: propose their responses first";
        Err(Problem::new(403, "session_limit_exceeded", message)
            .with("decision", decision)
            .with("prepared", under_way))
    }

    /// Refuses a request while those that wait for their proposal take up the room for them.
    ///
    /// # Errors
    /// They do.
    pub fn room_left(&self, now: Timestamp) -> Result<(), Problem> {
        let usable = |prepared: &&Prepared| age(prepared.at, now) < PREPARED_MICROS;
        let usable = self.prepared.values().filter(usable);
        let held: usize = usable.map(|prepared| prepared.request.bytes()).sum();
        match held < PREPARED_BYTES_MAX {
            true => Ok(()),
            false => {
                let message = "the prepared requests that wait for their proposal are too large together: propose their responses first";
                Err(Problem::new(429, "too_many_prepared", message).with("bytes", held))
            }
        }
    }

    /// Refuses a request that is not the one that is asked about.
    ///
    /// # Errors
    /// It names another model than is stated: the constraints on models would look at the wrong one.
    pub fn model_agrees(&self, asked: &Preflight) -> Result<(), Problem> {
        let request = asked.request.as_ref();
        let member = |name: &str| {
            let member = request.and_then(|request| request.get(name));
            member.filter(|member| !member.is_null())
        };
        if let Some(named) = member("model").filter(|named| **named != asked.model) {
            let message = "`request.model` is another model than `model`";
            return Err(Problem::new(409, "model_differs", message).with("model", named));
        }
        let same = |named: &Value| {
            let named = named.as_str();
            named.is_some_and(|named| named.eq_ignore_ascii_case(&asked.provider))
        };
        match member("provider").filter(|named| !same(named)) {
            Some(named) => {
                let message = "`request.provider` is another provider than `provider`";
                Err(Problem::new(409, "provider_differs", message).with("provider", named))
            }
            None => Ok(()),
        }
    }

    /// Refuses a provider or a model that patterns cannot be held against, where contracts exclude some: what is not known would
    /// match none of them.
    ///
    /// # Errors
    /// Names which of both.
    pub fn model_is_named(&self, asked: &Preflight) -> Result<(), Problem> {
        if !self.rules.enforces() || !self.rules.excludes_models() {
            return Ok(());
        }
        let known = ["openai", "anthropic"];
        if !known
            .iter()
            .any(|name| asked.provider.eq_ignore_ascii_case(name))
        {
            let message = "the contracts exclude models, and `provider` is neither `openai` nor `anthropic`: \
                           a compatible server counts as the provider whose API it speaks";
            return Err(
                Problem::new(422, "provider_unknown", message).with("provider", &asked.provider)
            );
        }
        let is_name =
            !asked.model.is_empty() && asked.model.bytes().all(|byte| byte.is_ascii_graphic());
        match is_name {
            true => Ok(()),
            false => {
                let message = "the contracts exclude models, and `model` is not a name: \
                               it is empty, or has spaces or characters beyond ASCII";
                Err(Problem::new(422, "model_unknown", message).with("model", &asked.model))
            }
        }
    }

    /// Returns the offered tools whose contract checks the schema and that came without one.
    pub fn schemas_missing(&self, asked: &Preflight) -> Vec<String> {
        if !self.rules.enforces() {
            return Vec::new();
        }
        let compiled = self.rules.compiled();
        let tools = asked.offered_tools.iter().filter(|tool| {
            !tool.hosted && tool.schema.is_none() && compiled.reads_schema(&tool.name)
        });
        tools.map(|tool| tool.name.clone()).collect()
    }

    /// Refuses a request that contracts look at and that was not handed in: a check that looks at nothing would hold.
    ///
    /// # Errors
    /// The tools whose contracts look at it.
    pub fn request_handed_in(&self, asked: &Preflight) -> Result<(), Problem> {
        // Every request has messages; without them it is not the request.
        let request = asked.request.as_ref();
        let has = |name: &str| request.is_some_and(|request| request.get(name).is_some());
        let is_there =
            has("messages") || self.rules_version >= RulesVersion::Requests && has("input");
        if is_there || self.rules.options().mode == Mode::LogOnly {
            return Ok(());
        }
        let compiled = self.rules.compiled();
        let names = asked.offered_tools.iter().map(|tool| tool.name.as_str());
        let tools: Vec<&str> = names.filter(|name| compiled.reads_request(name)).collect();
        if tools.is_empty() {
            return Ok(());
        }
        let message = "the contracts of these tools look at the request: send it as `request`, with its `messages`";
        Err(Problem::new(422, "request_required", message).with("tools", tools))
    }

    /// Returns what is wrong with offered schemas that contracts check: one that cannot be read would allow everything.
    ///
    /// # Errors
    /// A schema cannot be judged.
    pub fn schemas_wrong(&self, asked: &Preflight) -> Result<Vec<Value>, Problem> {
        let mut wrong = Vec::new();
        if self.rules.options().mode == Mode::LogOnly {
            return Ok(wrong);
        }
        let mut patterns = PatternBudget::of_schemas();
        for tool in asked.offered_tools.iter().filter(|tool| !tool.hosted) {
            let Some(schema) = tool.schema.as_ref().map(exact).transpose()? else {
                continue;
            };
            let compiled = self.rules.compiled();
            let form = compiled.schema_form(&tool.name, &schema, &mut patterns);
            // What would cost too much is not looked at in any mode.
            let form = form.filter(|form| form.is_too_large || self.rules.enforces());
            let findings = form.map(|form| form.wrong).unwrap_or_default();
            if !findings.is_empty() {
                wrong.push(json!({"tool": tool.name, "findings": findings}));
            }
        }
        Ok(wrong)
    }

    /// Says why the model is not asked. What a limit or a rule refuses counts as a block.
    fn refuse(&mut self, refusal: &Refusal, now: Timestamp) -> Problem {
        if let Some(decision) = refused(&self.rules, &self.state, refusal) {
            if let Err(fault) = self.advance(&Event::Refused { at: now }) {
                return fault;
            }
            let reason = decision.reason.map_or("blocked", |reason| reason.as_str());
            let message = match &decision.detail {
                Some(detail) => format!("refused by contract: {reason} ({detail})"),
                None => format!("refused by contract: {reason}"),
            };
            let problem = Problem::new(403, reason, message).with("decision", &decision);
            self.told.say(|said| said.decision(json!(decision)));
            return problem;
        }
        match refusal {
            Refusal::ProviderIncompatible { pattern } => {
                let message = format!("the contracts exclude this model: {pattern}");
                Problem::new(403, "provider_incompatible", message).with("pattern", pattern)
            }
            Refusal::Unsupported { member } => {
                let message = format!("the request has `{member}`, which cannot be judged");
                Problem::new(422, "unsupported_request", message).with("member", member)
            }
            Refusal::Killed { cause } => Problem::new(410, "killed", cause.clone()),
            Refusal::Inactive => Problem::new(410, "restored", "the session has ended"),
            Refusal::Blocked { reason, .. } => {
                Problem::new(403, reason.as_str(), "refused by contract")
            }
        }
    }
}

/// Returns a request on record as rules see it; none where they cannot look at it.
pub(crate) fn recorded_request(
    rules_version: RulesVersion,
    asked: &Preflight,
) -> Option<contracts::Value> {
    let handed = RequestForm::of(asked);
    let is_seen = match rules_version < RulesVersion::Requests {
        true => asked.request.is_some(),
        false => !matches!(handed, RequestForm::Nothing | RequestForm::Unknown),
    };
    let is_readable = exact(asked.request.as_ref().unwrap_or(&Value::Null)).is_ok();
    (is_seen && is_readable).then(|| RequestText::of(rules_version, asked).view())
}

pub(super) fn stale(message: &str, version: u64, revision: u64) -> Problem {
    Problem::new(409, "stale", message)
        .with("state_version", version)
        .with("control_revision", revision)
}

pub(super) const PREPARED: &str = "prepared_";

fn prepared_id(number: u64) -> String {
    format!("{PREPARED}{number}")
}

pub(super) fn prepared_number(id: &str) -> Option<u64> {
    id.strip_prefix(PREPARED)?.parse().ok()
}

fn offered(tool: &ToolOffer) -> Result<OfferedTool, Problem> {
    Ok(OfferedTool {
        name: tool.name.clone(),
        schema: tool.schema.as_ref().map(exact).transpose()?,
        hosted: tool.hosted,
    })
}

/// Reads a value as rules see it, with its numbers as they are written.
fn exact(value: &Value) -> Result<contracts::Value, Problem> {
    let text = value.to_string();
    let limits = contracts::json::Limits::MESSAGE;
    contracts::json::read(&text, limits, contracts::json::Numbers::Any)
        .map_err(|error| Problem::new(400, "malformed", format!("it cannot be judged: {error}")))
}
