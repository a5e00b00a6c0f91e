//! A second evaluator, written from the decision tables alone: slow, direct, and without a line of the crate.
//!
//! It reads the same documents as plain JSON, keeps the whole history, and computes every answer from it again. Numbers
//! are doubles; the generator writes only numbers that doubles hold exactly.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

/// What became of a released call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Committed,
    Pending,
    Started,
    Unknown,
    Withdrawn,
    Expired,
}

#[derive(Debug, Clone)]
pub(crate) struct OCall {
    pub(crate) id: String,
    pub(crate) tool: String,
    /// None when the arguments cannot be used.
    pub(crate) args: Option<Json>,
    pub(crate) text: String,
    pub(crate) step: u64,
    pub(crate) at: i64,
    pub(crate) fate: Fate,
    pub(crate) output: Option<Json>,
    pub(crate) target: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct OWaiting {
    pub(crate) asked: u64,
    pub(crate) calls: Vec<OCall>,
}

#[derive(Debug, Clone)]
pub(crate) struct Oracle {
    pub(crate) tools: BTreeMap<String, Json>,
    pub(crate) session: Json,
    pub(crate) principal: Json,
    pub(crate) unmatched_allowed: bool,
    pub(crate) wrapped: BTreeSet<String>,
    pub(crate) gate: String,
    pub(crate) enforce: bool,
    pub(crate) offered: BTreeSet<String>,
    pub(crate) calls: Vec<OCall>,
    pub(crate) commits: Vec<usize>,
    pub(crate) steps: u64,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) filter: Option<BTreeSet<String>>,
    pub(crate) waiting: BTreeMap<String, OWaiting>,
    pub(crate) checkpoints: u64,
    pub(crate) clock: i64,
    pub(crate) killed: bool,
    pub(crate) restored: bool,
    pub(crate) blocks: u64,
    pub(crate) blocks_in_a_row: u64,
    pub(crate) errors_in_a_row: u64,
    pub(crate) attempts: u64,
    pub(crate) cents: i64,
    pub(crate) state_version: u64,
    pub(crate) control_revision: u64,
}

/// A proposed call: id, tool, arguments if they can be used, their text.
#[derive(Debug, Clone)]
pub(crate) struct OProposed {
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) args: Option<Json>,
    pub(crate) text: String,
}

#[derive(Debug, Clone)]
pub(crate) struct OResponse {
    pub(crate) finish: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) calls: Vec<OProposed>,
}

/// What was said about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OVerdict {
    Allow,
    Ask,
    Block(Vec<String>),
}

type Fails = Vec<(u32, String)>;

fn list(value: &Json) -> &[Json] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or_default()
}

fn has(value: &Json, name: &str) -> bool {
    list(value).iter().any(|item| item == name)
}

pub(crate) fn find<'a>(path: &str, root: &'a Json) -> Option<&'a Json> {
    let mut value = root;
    for part in path.replace('[', ".[").split('.').skip(1) {
        value = match part.strip_prefix('[') {
            Some(index) => value
                .as_array()?
                .get(index.trim_end_matches(']').parse::<usize>().ok()?)?,
            None => value.as_object()?.get(part)?,
        };
    }
    Some(value)
}

fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

fn is_type(value: &Json, word: &str) -> bool {
    let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
    kind(value) == word || (word == "integer" && whole)
}

/// One operator: holds, does not, or cannot be decided.
fn operator(name: &str, operand: &Json, found: Option<&Json>) -> Option<bool> {
    if name == "exists" {
        return Some(found.is_some() == (operand == true));
    }
    let value = found?;
    let equals = |other: &Json| (kind(value) == kind(other)).then(|| same(value, other));
    let number = || value.as_f64().zip(operand.as_f64());
    let length = || match value {
        Json::String(text) => Some(text.chars().count() as f64),
        Json::Array(items) => Some(items.len() as f64),
        _ => None,
    };
    match name {
        "type" => Some(is_type(value, text(operand))),
        "equals" => equals(operand),
        "one_of" => {
            let results: Vec<Option<bool>> = list(operand).iter().map(equals).collect();
            if results.contains(&Some(true)) {
                Some(true)
            } else if results.contains(&Some(false)) {
                Some(false)
            } else {
                None
            }
        }
        "gte" => number().map(|(a, b)| a >= b),
        "lte" => number().map(|(a, b)| a <= b),
        "length_gte" => length().map(|len| len >= operand.as_f64().unwrap()),
        "length_lte" => length().map(|len| len <= operand.as_f64().unwrap()),
        "contains" => match (value, operand) {
            (Json::String(a), Json::String(b)) => Some(a.contains(b.as_str())),
            (Json::Array(items), other) => Some(items.iter().any(|item| same(item, other))),
            _ => None,
        },
        "regex" => value.as_str().map(|text| match operand.as_str().unwrap() {
            "^x" => text.starts_with('x'),
            "y$" => text.ends_with('y'),
            other => panic!("the generator writes no pattern {other}"),
        }),
        other => panic!("no operator {other}"),
    }
}

/// A whole entry without `ref`: false if one is false, else undecidable if one is, else true.
fn entry(entry: &Json, root: &Json) -> Option<bool> {
    let found = find(text(&entry["path"]), root);
    if entry["when_present"] == true && found.is_none() {
        return Some(true);
    }
    let mut result = Some(true);
    for (name, operand) in entry.as_object().unwrap() {
        if name == "path" || name == "when_present" || name == "ref" {
            continue;
        }
        match operator(name, operand, found) {
            Some(true) => {}
            Some(false) => return Some(false),
            None => result = None,
        }
    }
    result
}

fn all(entries: &Json, root: &Json) -> Option<bool> {
    let results: Vec<Option<bool>> = list(entries).iter().map(|one| entry(one, root)).collect();
    if results.contains(&Some(false)) {
        Some(false)
    } else if results.contains(&None) {
        None
    } else {
        Some(true)
    }
}

fn policy_allows(block: &Json, principal: &Json) -> bool {
    if block.is_null() {
        return true;
    }
    let rules = list(&block["rules"]);
    if rules
        .iter()
        .any(|rule| rule["effect"] == "deny" && all(&rule["when"], principal) != Some(false))
    {
        return false;
    }
    if rules
        .iter()
        .any(|rule| rule["effect"] == "allow" && all(&rule["when"], principal) == Some(true))
    {
        return true;
    }
    block["default"] == "allow"
}

impl Oracle {
    fn doc(&self, tool: &str) -> &Json {
        self.tools.get(tool).unwrap_or(&Json::Null)
    }

    fn committed(&self) -> impl DoubleEndedIterator<Item = &OCall> {
        self.commits.iter().map(|index| &self.calls[*index])
    }

    /// Pending, started and unknown calls, and those that wait for people in other responses.
    fn uncommitted(&self, except: Option<&str>) -> Vec<&OCall> {
        let open =
            |call: &&OCall| matches!(call.fate, Fate::Pending | Fate::Started | Fate::Unknown);
        let waiting = self
            .waiting
            .iter()
            .filter(|(name, _)| Some(name.as_str()) != except);
        let waiting = waiting.flat_map(|(_, waiting)| &waiting.calls);
        self.calls.iter().filter(open).chain(waiting).collect()
    }

    fn moves(&self, from: &str, to: &str) -> bool {
        has(&self.session["transitions"][from], to)
    }

    pub(crate) fn phase(&self) -> Option<String> {
        let initial = list(&self.session["phases"])
            .iter()
            .find(|phase| phase["initial"] == true)?;
        let mut phase = text(&initial["name"]).to_owned();
        for call in self.committed() {
            let target = text(&self.doc(&call.tool)["transitions"]["advances_to"]);
            if self.moves(&phase, target) {
                phase = target.to_owned();
            }
        }
        Some(phase)
    }

    fn slot(&self, name: &str) -> Option<Json> {
        let binding = |call: &&OCall| {
            list(&self.doc(&call.tool)["binds"])
                .iter()
                .any(|bind| bind["slot"] == name)
        };
        let call = self.committed().rev().find(binding)?;
        let binds = list(&self.doc(&call.tool)["binds"]);
        let bind = binds.iter().find(|bind| bind["slot"] == name)?;
        let root = if bind["from"] == "output" {
            call.output.as_ref()?
        } else {
            call.args.as_ref()?
        };
        find(text(&bind["path"]), root).cloned()
    }

    fn prior_values(pre: &Json, call: &OCall) -> Option<Vec<Json>> {
        let pairs = list(&pre["same_as_prior"]).iter();
        let values = pairs.map(|pair| {
            let root = if pair["prior_from"] == "output" {
                call.output.as_ref()
            } else {
                call.args.as_ref()
            };
            find(text(&pair["prior"]), root?).cloned()
        });
        values.collect()
    }

    fn met_for(&self, pre: &Json, values: &[Json]) -> bool {
        let equal = |other: &[Json]| other.iter().zip(values).all(|(a, b)| same(a, b));
        let latest = self.committed().rev().find(|call| {
            call.tool == text(&pre["requires_prior_tool"])
                && Self::prior_values(pre, call).is_some_and(|other| equal(&other))
        });
        let Some(call) = latest else {
            return false;
        };
        let conditions = &pre["with_output"];
        list(conditions).is_empty()
            || call
                .output
                .as_ref()
                .is_some_and(|output| all(conditions, output) == Some(true))
    }

    fn met(&self, pre: &Json, args: &Json) -> bool {
        let pairs = list(&pre["same_as_prior"]).iter();
        let values: Option<Vec<Json>> = pairs
            .map(|pair| find(text(&pair["argument"]), args).cloned())
            .collect();
        values.is_some_and(|values| self.met_for(pre, &values))
    }

    fn can_be_met(&self, pre: &Json) -> bool {
        self.committed()
            .filter(|call| call.tool == text(&pre["requires_prior_tool"]))
            .any(|call| {
                Self::prior_values(pre, call).is_some_and(|values| self.met_for(pre, &values))
            })
    }

    fn gate_open(&self, tool: &str) -> bool {
        let doc = self.doc(tool);
        if !doc["gate"].is_null() {
            return doc["gate"] == "allow";
        }
        let defaults = &self.session["risk_defaults"];
        let class = text(&doc["side_effect"]);
        if defaults.is_null() {
            return true;
        }
        match defaults[class].as_str() {
            Some(word) => word == "allow",
            None => class == "read",
        }
    }

    fn allowed_by_policy(&self, tool: &str) -> bool {
        policy_allows(&self.session["policy"], &self.principal)
            && policy_allows(&self.doc(tool)["policy"], &self.principal)
    }

    fn phase_is_wrong(&self, tool: &str) -> bool {
        let Some(phase) = self.phase() else {
            return false;
        };
        let transitions = &self.doc(tool)["transitions"];
        let valid = &transitions["valid_in_phases"];
        let target = text(&transitions["advances_to"]);
        (!valid.is_null() && !has(valid, &phase))
            || (!target.is_empty() && target != phase && !self.moves(&phase, target))
    }

    pub(crate) fn target(&self, tool: &str) -> Option<String> {
        let target = self.doc(tool)["transitions"]["advances_to"].as_str()?;
        (self.phase().as_deref() != Some(target)).then(|| target.to_owned())
    }

    fn closed_by_label(&self, tool: &str) -> bool {
        list(&self.session["label_gates"]).iter().any(|gate| {
            self.labels.contains(text(&gate["label"]))
                && if gate["block_tools"].is_null() {
                    !has(&gate["allow_only_tools"], tool)
                } else {
                    has(&gate["block_tools"], tool)
                }
        })
    }

    pub(crate) fn forbidden_tools(&self, with_open: bool) -> BTreeSet<String> {
        let open = if with_open {
            self.uncommitted(None)
        } else {
            Vec::new()
        };
        let calls = self.committed().chain(open);
        let names = calls.flat_map(|call| list(&self.doc(&call.tool)["forbids_after"]));
        names.map(|name| text(name).to_owned()).collect()
    }

    fn limit(&self, name: &str) -> Option<u64> {
        self.session["session_limits"][name].as_u64()
    }

    fn tool_limit(&self, tool: &str) -> Option<u64> {
        self.session["session_limits"]["max_calls_per_tool"][tool].as_u64()
    }

    /// Why a tool is removed from the request.
    pub(crate) fn removal(&self, tool: &str) -> Option<&'static str> {
        let known = self.tools.contains_key(tool);
        let open = self.uncommitted(None);
        let used = (self.commits.len() + open.len()) as u64;
        let of_tool = |calls: &mut dyn Iterator<Item = &OCall>| {
            calls.filter(|call| call.tool == tool).count() as u64
        };
        let used_by_tool = of_tool(&mut self.committed()) + of_tool(&mut open.iter().copied());
        let unmet = list(&self.doc(tool)["preconditions"])
            .iter()
            .any(|pre| !self.can_be_met(pre));
        if !known && !self.unmatched_allowed {
            Some("no_contract")
        } else if known && !self.gate_open(tool) {
            Some("risk_gate")
        } else if !self.allowed_by_policy(tool) {
            Some("policy_denied")
        } else if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.contains(tool))
        {
            Some("manual_filter")
        } else if self.phase_is_wrong(tool) {
            Some("wrong_phase")
        } else if unmet {
            Some("precondition_not_met")
        } else if self.forbidden_tools(true).contains(tool) {
            Some("forbidden_in_state")
        } else if self.closed_by_label(tool) {
            Some("label_gate")
        } else if self.limit("max_tool_calls").is_some_and(|max| used >= max)
            || self.tool_limit(tool).is_some_and(|max| used_by_tool >= max)
        {
            Some("limit_reached")
        } else {
            None
        }
    }

    /// P1, P2 and P5 to P7.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        if self.killed {
            Some("P1")
        } else if self.restored {
            Some("P2")
        } else if self.limit("max_steps").is_some_and(|max| self.steps >= max) {
            Some("P5")
        } else if self
            .limit("max_attempts")
            .is_some_and(|max| self.attempts >= max)
        {
            Some("P6")
        } else if self.session["session_limits"]["max_cost_per_session"]
            .as_f64()
            .is_some_and(|max| self.cents as f64 >= max * 100.0)
        {
            Some("P7")
        } else {
            None
        }
    }

    pub(crate) fn judge(
        &self,
        response: &OResponse,
        request: &Json,
        now: i64,
        proposal: Option<&str>,
        answers: &BTreeMap<String, String>,
    ) -> Vec<OVerdict> {
        let calls = &response.calls;
        if self.killed {
            return calls
                .iter()
                .map(|_| OVerdict::Block(vec!["killed".to_owned()]))
                .collect();
        }
        let mut fails: Vec<Fails> = calls
            .iter()
            .map(|call| self.first(response, call, request))
            .collect();
        self.second(calls, proposal, &mut fails);
        self.third(calls, now, proposal, &mut fails);
        let mut verdicts: Vec<OVerdict> = fails
            .into_iter()
            .map(|mut fails| {
                fails.sort_by_key(|(rank, _)| *rank);
                let mut words: Vec<String> = Vec::new();
                for (_, word) in fails {
                    if !words.contains(&word) {
                        words.push(word);
                    }
                }
                if words.is_empty() {
                    OVerdict::Allow
                } else {
                    OVerdict::Block(words)
                }
            })
            .collect();
        self.fourth(calls, proposal, answers, &mut verdicts);
        verdicts
    }

    fn first(&self, response: &OResponse, call: &OProposed, request: &Json) -> Fails {
        let mut fails: Fails = Vec::new();
        let doc = self.doc(&call.tool);
        let known = !doc.is_null();
        let mut fail = |rank: u32, word: &str| fails.push((rank, word.to_owned()));
        let twins = response
            .calls
            .iter()
            .filter(|other| other.id == call.id)
            .count();
        let format = &doc["response_format_invariants"];
        let has_text = response
            .content
            .as_ref()
            .is_some_and(|text| !text.is_empty());
        if call.args.is_none()
            || call.id.is_empty()
            || twins > 1
            || ["length", "content_filter"].contains(&response.finish)
            || (!format["finish_reason"].is_null()
                && !has(&format["finish_reason"], response.finish))
            || (format["content"] == "empty" && has_text)
            || (format["content"] == "required" && !has_text)
        {
            fail(10, "response_format_invalid");
        }
        if !self.offered.contains(&call.tool) || (!known && !self.unmatched_allowed) {
            fail(20, "unmatched_tool_blocked");
        }
        if known && !self.gate_open(&call.tool) {
            fail(30, "risk_gate_blocked");
        }
        if !self.allowed_by_policy(&call.tool) {
            fail(40, "policy_denied");
        }
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.contains(&call.tool))
        {
            fail(50, "manual_filter");
        }
        if self.phase_is_wrong(&call.tool) {
            fail(60, "illegal_phase_transition");
        }
        let reads_args =
            |pre: &&Json| call.args.is_some() || list(&pre["same_as_prior"]).is_empty();
        let nothing = json!({});
        let args = call.args.as_ref().unwrap_or(&nothing);
        let pre = list(&doc["preconditions"]).iter().filter(reads_args);
        if pre.clone().any(|pre| !self.met(pre, args)) {
            fail(70, "precondition_not_met");
        }
        if self.forbidden_tools(false).contains(&call.tool) {
            fail(80, "forbidden_tool");
        }
        if all(&doc["assertions"]["input_invariants"], request) != Some(true) {
            fail(90, "input_invariant_failed");
        }
        let views = response
            .calls
            .iter()
            .map(|call| json!({"id": call.id, "name": call.tool, "arguments": call.args}));
        let view = json!({
            "finish_reason": response.finish, "content": response.content, "tool_calls": views.collect::<Vec<_>>()
        });
        if all(&doc["assertions"]["output_invariants"], &view) != Some(true) {
            fail(100, "output_invariant_failed");
        }
        if call.args.is_none() {
            return fails;
        }
        let entries = &doc["argument_value_invariants"];
        if all(entries, args) != Some(true) {
            fail(110, "argument_value_mismatch");
        }
        for one in list(entries) {
            let found = find(text(&one["path"]), args);
            let Some(slot) = one["ref"].as_str() else {
                continue;
            };
            if found.is_none() && one["when_present"] == true {
                continue;
            }
            match self.slot(slot) {
                None => fail(120, "binding_not_found"),
                Some(bound) if found.is_some_and(|found| same(found, &bound)) => {}
                Some(_) => fail(130, "ref_mismatch"),
            }
        }
        fails
    }

    fn second(&self, calls: &[OProposed], proposal: Option<&str>, fails: &mut [Fails]) {
        let movers: Vec<(usize, String)> = calls
            .iter()
            .enumerate()
            .filter(|(index, _)| fails[*index].is_empty())
            .filter_map(|(index, call)| Some((index, self.target(&call.tool)?)))
            .collect();
        let open = self.uncommitted(proposal);
        let mut targets: BTreeSet<&str> =
            movers.iter().map(|(_, target)| target.as_str()).collect();
        targets.extend(open.iter().filter_map(|call| call.target.as_deref()));
        if targets.len() > 1 {
            for (index, _) in &movers {
                fails[*index].push((140, "ambiguous_phase_transition".to_owned()));
            }
        }
    }

    fn third(&self, calls: &[OProposed], now: i64, proposal: Option<&str>, fails: &mut [Fails]) {
        let now = now.max(self.clock);
        let limits = &self.session["session_limits"];
        // Everything that takes room: (tool, arguments, text, in a step?, release time).
        let mut taken: Vec<(String, Json, String)> = Vec::new();
        let open = self.uncommitted(proposal);
        let mut unreleased: Vec<(String, String)> = Vec::new();
        for call in &open {
            taken.push((
                call.tool.clone(),
                call.args.clone().unwrap_or(Json::Null),
                call.text.clone(),
            ));
        }
        for (name, waiting) in &self.waiting {
            if Some(name.as_str()) != proposal {
                unreleased.extend(
                    waiting
                        .calls
                        .iter()
                        .map(|call| (call.tool.clone(), call.text.clone())),
                );
            }
        }
        for (index, call) in calls.iter().enumerate() {
            if !fails[index].is_empty() {
                continue;
            }
            let tool = call.tool.as_str();
            let args = call.args.as_ref().unwrap();
            let mut found: Fails = Vec::new();
            let mut fail = |rank: u32, word: &str| found.push((rank, word.to_owned()));
            if self.closed_by_label(tool) {
                fail(150, "label_gate");
            }
            if taken
                .iter()
                .any(|(other, ..)| has(&self.doc(other)["forbids_after"], tool))
            {
                fail(160, "forbidden_tool");
            }
            let calls_so_far = (self.commits.len() + taken.len()) as u64;
            if self
                .limit("max_tool_calls")
                .is_some_and(|max| calls_so_far + 1 > max)
            {
                fail(170, "session_limit_exceeded");
            }
            let mine = self.committed().filter(|other| other.tool == tool).count()
                + taken.iter().filter(|(other, ..)| other == tool).count();
            if self
                .tool_limit(tool)
                .is_some_and(|max| mine as u64 + 1 > max)
            {
                fail(180, "session_limit_exceeded");
            }
            let rate = &limits["rate"];
            let rated = |tool: &str| {
                !rate.is_null() && (rate["tools"].is_null() || has(&rate["tools"], tool))
            };
            if rated(tool) {
                let start = now - rate["per_seconds"].as_i64().unwrap();
                let inside = |call: &&OCall| {
                    !matches!(call.fate, Fate::Withdrawn | Fate::Expired)
                        && call.at > start
                        && rated(&call.tool)
                };
                let count = self.calls.iter().filter(inside).count()
                    + unreleased.iter().filter(|(tool, _)| rated(tool)).count();
                if count as u64 + 1 > rate["max_calls"].as_u64().unwrap() {
                    fail(185, "session_limit_exceeded");
                }
            }
            let loops = &limits["loop_detection"];
            if !loops.is_null() {
                let window = loops["window"].as_u64().unwrap();
                let equal = |other: &&OCall| {
                    other.tool == tool
                        && other.text == call.text
                        && other.fate != Fate::Expired
                        && other.step + window > self.steps
                };
                let count = self.calls.iter().filter(equal).count()
                    + unreleased
                        .iter()
                        .filter(|(other, text)| other == tool && *text == call.text)
                        .count();
                if count as u64 + 1 >= loops["threshold"].as_u64().unwrap() {
                    fail(190, "loop_detected");
                }
            }
            for aggregate in list(&self.session["aggregates"]) {
                if has(&aggregate["tools"], tool)
                    && let Some((rank, word)) = self.aggregate(aggregate, args, &taken)
                {
                    fail(rank, word);
                }
            }
            for envelope in list(&self.session["envelopes"]) {
                for bound in list(&envelope["constrain"]) {
                    if bound["tool"] != tool {
                        continue;
                    }
                    let value = find(text(&bound["path"]), args).and_then(Json::as_f64);
                    match self.reference(envelope) {
                        None => fail(220, "envelope_not_established"),
                        Some(reference) => {
                            let inside = value.is_some_and(|value| {
                                if envelope["direction"] == "at_most" {
                                    value <= reference
                                } else {
                                    value >= reference
                                }
                            });
                            if !inside {
                                fail(230, "envelope_violation");
                            }
                        }
                    }
                }
            }
            if found.is_empty() {
                taken.push((call.tool.clone(), args.clone(), call.text.clone()));
                unreleased.push((call.tool.clone(), call.text.clone()));
            }
            fails[index] = found;
        }
    }

    fn aggregate(
        &self,
        aggregate: &Json,
        args: &Json,
        taken: &[(String, Json, String)],
    ) -> Option<(u32, &'static str)> {
        let metric = text(&aggregate["metric"]);
        let take = |args: &Json| match metric {
            "count" => Some(Json::Null),
            "count_distinct" => find(text(&aggregate["path"]), args).cloned(),
            _ => find(text(&aggregate["path"]), args)
                .filter(|value| value.is_number())
                .cloned(),
        };
        let Some(own) = take(args) else {
            return Some((200, "aggregate_path_missing"));
        };
        if metric == "sum" && own.as_f64().unwrap() < 0.0 && aggregate["allow_negative"] != true {
            return Some((210, "aggregate_limit_exceeded"));
        }
        let nothing = Json::Null;
        let committed = self
            .committed()
            .map(|call| (call.tool.as_str(), call.args.as_ref().unwrap_or(&nothing)));
        let open = taken.iter().map(|(tool, args, _)| (tool.as_str(), args));
        let feeding = committed
            .chain(open)
            .filter(|(tool, _)| has(&aggregate["tools"], tool));
        let mut values: Vec<Json> = feeding.filter_map(|(_, args)| take(args)).collect();
        values.push(own);
        let numbers = values.iter().filter_map(Json::as_f64);
        let result = match metric {
            "sum" => numbers.sum(),
            "count" => values.len() as f64,
            "max" => numbers.fold(f64::MIN, f64::max),
            _ => {
                let mut distinct: Vec<&Json> = Vec::new();
                for value in &values {
                    if !distinct.iter().any(|other| same(other, value)) {
                        distinct.push(value);
                    }
                }
                distinct.len() as f64
            }
        };
        (result > aggregate["lte"].as_f64().unwrap()).then_some((210, "aggregate_limit_exceeded"))
    }

    fn reference(&self, envelope: &Json) -> Option<f64> {
        let establish = &envelope["establish"];
        let values = self
            .committed()
            .filter(|call| establish["tool"] == call.tool.as_str())
            .filter_map(|call| {
                let root = if establish["from"] == "output" {
                    call.output.as_ref()
                } else {
                    call.args.as_ref()
                };
                find(text(&establish["path"]), root?)?.as_f64()
            });
        let tighter = if envelope["direction"] == "at_most" {
            f64::min
        } else {
            f64::max
        };
        values.reduce(tighter)
    }

    fn fourth(
        &self,
        calls: &[OProposed],
        proposal: Option<&str>,
        answers: &BTreeMap<String, String>,
        verdicts: &mut [OVerdict],
    ) {
        let own = proposal
            .and_then(|name| self.waiting.get(name))
            .map_or(0, |waiting| waiting.asked);
        let mut count = self.checkpoints - own;
        let mut questions = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let checkpoint = &self.doc(&call.tool)["checkpoint"];
            if verdicts[index] != OVerdict::Allow || checkpoint.is_null() || !self.enforce {
                continue;
            }
            if all(&checkpoint["when"], call.args.as_ref().unwrap()) == Some(false) {
                continue;
            }
            if count >= 10 {
                verdicts[index] = OVerdict::Block(vec!["checkpoint_budget_exceeded".to_owned()]);
            } else {
                count += 1;
                questions.push(index);
            }
        }
        for index in questions {
            let failed = verdicts
                .iter()
                .any(|verdict| matches!(verdict, OVerdict::Block(_)));
            if failed && self.gate == "reject_all" {
                return;
            }
            verdicts[index] = match answers.get(&calls[index].id).map(String::as_str) {
                None => OVerdict::Ask,
                Some("approve") => OVerdict::Allow,
                Some(word) => OVerdict::Block(vec![word.to_owned()]),
            };
        }
    }

    // What happened.

    fn kill(&mut self) {
        if !self.killed && !self.restored {
            self.killed = true;
            self.control_revision += 1;
        }
    }

    pub(crate) fn count_block(&mut self) {
        self.blocks += 1;
        self.blocks_in_a_row += 1;
        let max = self.session["session_limits"]["circuit_breaker"]["consecutive_blocks"].as_u64();
        if max.is_some_and(|max| self.blocks_in_a_row >= max) {
            self.kill();
        }
    }

    pub(crate) fn fail(&mut self, now: i64, attempted: bool) {
        self.clock = self.clock.max(now);
        self.attempts += u64::from(attempted);
        self.errors_in_a_row += 1;
        let max = self.session["session_limits"]["circuit_breaker"]["consecutive_errors"].as_u64();
        if max.is_some_and(|max| self.errors_in_a_row >= max) {
            self.kill();
        }
    }

    pub(crate) fn ask(
        &mut self,
        now: i64,
        proposal: &str,
        response: &OResponse,
        verdicts: &[OVerdict],
    ) {
        self.clock = self.clock.max(now);
        let standing = response.calls.iter().zip(verdicts);
        let standing = standing.filter(|(_, verdict)| !matches!(verdict, OVerdict::Block(_)));
        let calls = standing
            .map(|(call, _)| self.released(call, 0, now))
            .collect();
        let asked = verdicts
            .iter()
            .filter(|verdict| **verdict == OVerdict::Ask)
            .count() as u64;
        self.checkpoints += asked;
        self.waiting
            .insert(proposal.to_owned(), OWaiting { asked, calls });
    }

    fn released(&self, call: &OProposed, step: u64, now: i64) -> OCall {
        OCall {
            id: call.id.clone(),
            tool: call.tool.clone(),
            args: call.args.clone(),
            text: call.text.clone(),
            step,
            at: now.max(self.clock),
            fate: Fate::Pending,
            output: None,
            target: self.target(&call.tool),
        }
    }

    /// Settles a judged response; returns what happens to it.
    pub(crate) fn settle(
        &mut self,
        now: i64,
        proposal: Option<&str>,
        response: &OResponse,
        verdicts: &[OVerdict],
    ) -> &'static str {
        self.clock = self.clock.max(now);
        if let Some(proposal) = proposal {
            self.waiting.remove(proposal);
        }
        self.attempts += 1;
        self.cents += 1;
        self.errors_in_a_row = 0;
        let blocked = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, OVerdict::Block(_)))
            .count();
        let all_blocked = blocked == verdicts.len();
        let action = if blocked == 0 || !self.enforce {
            "release"
        } else {
            match self.gate.as_str() {
                "reject_all" => "reject",
                "strip_partial" if all_blocked => "reject",
                _ => "strip",
            }
        };
        if action == "reject" {
            self.count_block();
            return action;
        }
        if blocked == 0 {
            self.blocks_in_a_row = 0;
        }
        self.steps += 1;
        let step = self.steps;
        let kept: Vec<&OProposed> = response
            .calls
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| !self.enforce || **verdict == OVerdict::Allow)
            .map(|(call, _)| call)
            .collect();
        let released: Vec<OCall> = kept
            .iter()
            .map(|call| self.released(call, step, now))
            .collect();
        for call in released {
            let commits = self.doc(&call.tool)["commit_requirement"] == "none"
                || !self.wrapped.contains(&call.tool);
            self.calls.push(call);
            if commits {
                self.commit(self.calls.len() - 1);
            }
        }
        self.state_version += 1;
        if blocked > 0 && self.enforce {
            self.count_block();
        }
        action
    }

    fn commit(&mut self, index: usize) {
        self.calls[index].fate = Fate::Committed;
        self.commits.push(index);
        let labels = list(&self.doc(&self.calls[index].tool)["adds_labels"]).to_vec();
        self.labels
            .extend(labels.iter().map(|label| text(label).to_owned()));
    }

    /// Settles an open call by its place in the history.
    pub(crate) fn execute(&mut self, index: usize, outcome: &str, output: Option<Json>) {
        match outcome {
            "success" => {
                self.commit(index);
                self.calls[index].output = output;
                self.state_version += 1;
            }
            "unknown" => self.calls[index].fate = Fate::Unknown,
            _ => {
                self.calls[index].fate = Fate::Withdrawn;
                self.state_version += 1;
            }
        }
    }

    /// A tool result in a request: it belongs to the latest step that has the id.
    pub(crate) fn see(&mut self, id: &str, output: &Json) {
        let Some(index) = self.calls.iter().rposition(|call| call.id == id) else {
            return;
        };
        match self.calls[index].fate {
            Fate::Committed if self.calls[index].output.is_none() => {
                self.calls[index].output = Some(output.clone());
            }
            Fate::Pending => self.calls[index].fate = Fate::Unknown,
            Fate::Committed | Fate::Started | Fate::Unknown | Fate::Withdrawn | Fate::Expired => {}
        }
    }
}
