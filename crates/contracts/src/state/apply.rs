//! The fold: one event, one change.
//!
//! Refuses only what cannot have happened to this session; whatever the functions of this crate decided is accepted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use domain::Timestamp;

use super::commit::digest;
use super::{
    CallOrder, CallRecord, CompletedStep, CountedCall, Lifecycle, Money, Pending, PendingStatus,
    PriorCalls, Progress, Recent, Slot, State, Total, WaitingResponse,
};
use crate::compile::Compiled;
use crate::contract::CommitRequirement;
use crate::decimal::Decimal;
use crate::event::{Call, CallKey, Event, Outcome, Release, Responded, SessionStart, ShownOutput};
use crate::json::{self, Limits, Numbers};
use crate::value::Value;

/// An event that cannot have happened to this session: the record is damaged or foreign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImpossibleEvent(String);

impl State {
    /// Begins a session.
    ///
    /// # Errors
    /// The session began under other contracts, or with a slot that is not JSON.
    pub fn begin(compiled: &Compiled, begin: &SessionStart) -> Result<Self, ImpossibleEvent> {
        if begin.compiled != compiled.digest() {
            let message = "the session began under contracts with another digest";
            return Err(ImpossibleEvent(message.to_owned()));
        }
        let mut slots = BTreeMap::new();
        for (name, text) in &begin.slots {
            let value = json::read(text, Limits::OUTPUT, Numbers::Any)
                .map_err(|error| ImpossibleEvent(format!("slot `{name}`: {error}")))?;
            let set_by = 0;
            let value = Some(value);
            slots.insert(name.clone(), Slot { value, set_by });
        }
        let session = &compiled.session;
        Ok(Self {
            session_id: begin.session_id.clone(),
            agent: begin.agent.clone(),
            started_at: begin.at,
            clock: begin.at,
            lifecycle: Lifecycle::Open,
            state_version: 0,
            control_revision: 0,
            phase: compiled.initial_phase().map(ToOwned::to_owned),
            commits: 0,
            tool_calls: 0,
            tool_call_counts: BTreeMap::new(),
            total_cost: Money::Exact(Decimal::ZERO),
            actual_cost: Money::Exact(Decimal::ZERO),
            usage_unknown: false,
            forbidden: BTreeSet::new(),
            facts: BTreeMap::new(),
            prior: vec![PriorCalls::default(); compiled.preconditions.len()],
            slots,
            totals: session
                .aggregates
                .iter()
                .map(|entry| Total::new(entry.metric))
                .collect(),
            envelopes: vec![None; session.envelopes.len()],
            labels: begin.labels.iter().cloned().collect(),
            filter: None,
            pending: BTreeMap::new(),
            counted: BTreeMap::new(),
            begun: BTreeMap::new(),
            waiting: BTreeMap::new(),
            calls: BTreeMap::new(),
            recent: Recent::new(session.limits.loops.map(|loops| loops.window)),
            releases: VecDeque::new(),
            attempts: 0,
            checkpoints: 0,
            unguarded: 0,
            blocks_in_a_row: 0,
            blocks: 0,
            errors_in_a_row: 0,
            errors: 0,
            shadow_evaluations: 0,
            bypassed: false,
            last_narrowing: None,
        })
    }

    /// Applies one event.
    ///
    /// # Errors
    /// The event names a call or a response that this session does not have.
    pub fn apply(mut self, compiled: &Compiled, event: &Event) -> Result<Self, ImpossibleEvent> {
        self.advance(compiled, event)?;
        Ok(self)
    }

    /// Applies one event in place; an event that is refused changes nothing.
    ///
    /// # Errors
    /// As [`State::apply`].
    pub fn advance(&mut self, compiled: &Compiled, event: &Event) -> Result<(), ImpossibleEvent> {
        match event {
            Event::Narrowed { narrowing } => self.last_narrowing = Some(narrowing.clone()),
            Event::OutputsSeen { outputs } => self.see_outputs(compiled, outputs),
            Event::Refused { at } | Event::ExecutionRefused { at } => {
                self.advance_clock(*at);
                self.count_block(compiled);
            }
            Event::Failed { at, attempted } => {
                self.advance_clock(*at);
                self.attempts += u64::from(*attempted);
                self.count_error(compiled);
            }
            Event::Asked {
                at,
                proposal,
                asked,
                calls,
            } => self.wait(compiled, *at, proposal, *asked, calls),
            Event::Responded(responded) => self.respond(compiled, responded),
            Event::Started { call } => match self.counted.remove(call) {
                Some(counted) => drop(self.begun.insert(call.clone(), counted.call)),
                None => self.pending_mut(call)?.status = PendingStatus::Started,
            },
            Event::Settled {
                call,
                outcome,
                output,
            } => self.settle(compiled, call, *outcome, output.as_deref())?,
            Event::Expired { call } => self.expire(compiled, call)?,
            Event::LabelAdded { label } => {
                let added = self.is_open() && self.labels.insert(label.clone());
                self.control_revision += u64::from(added);
            }
            Event::Filtered { tools } => {
                if self.is_open() {
                    self.filter = tools.as_ref().map(|tools| tools.iter().cloned().collect());
                    self.control_revision += 1;
                }
            }
            Event::Killed { cause } => self.kill(cause),
            Event::Restored => {
                if self.is_open() {
                    self.lifecycle = Lifecycle::Restored;
                    self.control_revision += 1;
                }
            }
            Event::Bypassed => {
                self.control_revision += u64::from(!self.bypassed);
                self.bypassed = true;
            }
            Event::HandedOff => self.control_revision += 1,
            Event::Unguarded { last } => {
                self.unguarded += 1;
                if *last {
                    self.kill("too many calls without backing");
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lifecycle == Lifecycle::Open
    }

    fn advance_clock(&mut self, at: Timestamp) {
        self.clock = self.clock.max(at);
    }

    fn kill(&mut self, cause: &str) {
        if self.is_open() {
            self.lifecycle = Lifecycle::Killed {
                cause: cause.to_owned(),
            };
            self.control_revision += 1;
        }
    }

    fn count_block(&mut self, compiled: &Compiled) {
        self.blocks += 1;
        self.blocks_in_a_row += 1;
        let breaker = compiled.session.limits.breaker;
        if breaker.is_some_and(|breaker| self.blocks_in_a_row >= breaker.blocks) {
            self.kill("circuit breaker: too many blocked responses in a row");
        }
    }

    fn count_error(&mut self, compiled: &Compiled) {
        self.errors += 1;
        self.errors_in_a_row += 1;
        let breaker = compiled.session.limits.breaker;
        if breaker.is_some_and(|breaker| self.errors_in_a_row >= breaker.errors) {
            self.kill("circuit breaker: too many errors in a row");
        }
    }

    fn wait(
        &mut self,
        compiled: &Compiled,
        at: Timestamp,
        proposal: &str,
        asked: u64,
        calls: &[Call],
    ) {
        self.advance_clock(at);
        let before = self
            .waiting
            .get(proposal)
            .map_or(0, |waiting| waiting.asked);
        self.checkpoints += asked.saturating_sub(before);
        let calls = calls.iter().map(|call| {
            let moves_to = self.target(compiled, &call.tool);
            (call.clone(), arguments(call), moves_to)
        });
        let waiting = WaitingResponse {
            since: at,
            asked: asked.max(before),
            calls: calls.collect(),
        };
        self.waiting.insert(proposal.to_owned(), waiting);
    }

    /// Returns the phase that a call of a tool moves to from here.
    fn target(&self, compiled: &Compiled, tool: &str) -> Option<String> {
        let contract = compiled.contract(tool)?;
        let target = contract.advances_to.as_ref()?;
        (self.phase.as_deref() != Some(&target.name)).then(|| target.name.clone())
    }

    fn respond(&mut self, compiled: &Compiled, responded: &Responded) {
        self.advance_clock(responded.at);
        if let Some(proposal) = &responded.proposal {
            self.waiting.remove(proposal);
        }
        self.attempts += 1;
        self.actual_cost = self.actual_cost.plus(responded.cost);
        let released = match &responded.release {
            Release::Step { calls, stripped } => {
                self.errors_in_a_row = 0;
                if *stripped == 0 {
                    self.blocks_in_a_row = 0;
                }
                self.step(compiled, responded, calls);
                if *stripped > 0 {
                    self.count_block(compiled);
                }
                true
            }
            Release::Shadow { calls, would_block } => {
                self.errors_in_a_row = 0;
                if *would_block == 0 {
                    self.blocks_in_a_row = 0;
                }
                self.shadow_evaluations += u64::from(*would_block > 0);
                self.step(compiled, responded, calls);
                true
            }
            Release::Logged { tools } => {
                self.errors_in_a_row = 0;
                self.blocks_in_a_row = 0;
                self.log_step(responded, tools);
                true
            }
            Release::Blocked => {
                self.errors_in_a_row = 0;
                self.count_block(compiled);
                false
            }
            Release::Discarded => false,
        };
        self.usage_unknown |= responded.usage_unknown;
        if released {
            self.state_version += 1;
            self.total_cost = self.total_cost.plus(responded.cost);
        }
    }

    fn step(&mut self, compiled: &Compiled, responded: &Responded, calls: &[Call]) {
        let step = self.recent.steps() + 1;
        let phase_before = self.phase.clone();
        let targets: Vec<Option<String>> = calls
            .iter()
            .map(|call| self.target(compiled, &call.tool))
            .collect();
        for (index, (call, moves_to)) in calls.iter().zip(targets).enumerate() {
            let order = CallOrder { step, index };
            let key = CallKey {
                step,
                id: call.id.clone(),
            };
            self.note_release(compiled, call, &key, responded.at);
            if call.commits {
                self.commit(compiled, call, arguments(call), order);
                self.note_counted(compiled, call, key, (order, responded.at));
                continue;
            }
            let record = CallRecord {
                tool: call.tool.clone(),
                order,
                progress: Progress::Pending,
            };
            self.calls.insert(call.id.clone(), record);
            let pending = Pending {
                call: call.clone(),
                arguments: arguments(call),
                order,
                since: responded.at,
                status: PendingStatus::Released,
                moves_to,
            };
            self.pending.insert(key, pending);
        }
        let completed = CompletedStep {
            index: step,
            phase_before,
            phase_after: self.phase.clone(),
            tools: calls.iter().map(|call| call.tool.clone()).collect(),
            cost: responded.cost,
        };
        let prints = calls
            .iter()
            .map(|call| (call.tool.clone(), call.arguments_digest));
        self.recent.push(completed, prints.collect());
    }

    fn log_step(&mut self, responded: &Responded, tools: &[String]) {
        for tool in tools {
            self.tool_calls += 1;
            *self.tool_call_counts.entry(tool.clone()).or_default() += 1;
        }
        let completed = CompletedStep {
            index: self.recent.steps() + 1,
            phase_before: self.phase.clone(),
            phase_after: self.phase.clone(),
            tools: tools.to_vec(),
            cost: responded.cost,
        };
        self.recent.push(completed, Vec::new());
    }

    /// Remembers a call that counts although nobody reports it: it may still be executed, once and in time.
    fn note_counted(
        &mut self,
        compiled: &Compiled,
        call: &Call,
        key: CallKey,
        (order, since): (CallOrder, Timestamp),
    ) {
        while let Some(first) = self.counted.first_entry() {
            if !first.get().is_late(since) {
                break;
            }
            first.remove();
        }
        let contract = compiled.contract(&call.tool);
        let requirement = contract.map(|contract| contract.commit_requirement);
        if requirement == Some(CommitRequirement::None) {
            let call = call.clone();
            self.counted.insert(key, CountedCall { call, order, since });
        }
    }

    /// Remembers a release for the rate limit, and forgets those that left its window.
    fn note_release(&mut self, compiled: &Compiled, call: &Call, key: &CallKey, at: Timestamp) {
        let Some(rate) = &compiled.session.limits.rate else {
            return;
        };
        let window = micros(rate.per_seconds);
        let start = self.clock.as_micros().saturating_sub(window);
        while self
            .releases
            .front()
            .is_some_and(|(time, _)| time.as_micros() <= start)
        {
            self.releases.pop_front();
        }
        if rate.counts(&call.tool) {
            // Times are kept in order even if a clock ran backwards.
            self.releases.push_back((at.max(self.clock), key.clone()));
        }
    }

    fn pending_mut(&mut self, key: &CallKey) -> Result<&mut Pending, ImpossibleEvent> {
        let missing = || {
            ImpossibleEvent(format!(
                "call `{}` of step {} is not pending",
                key.id, key.step
            ))
        };
        self.pending.get_mut(key).ok_or_else(missing)
    }

    fn settle(
        &mut self,
        compiled: &Compiled,
        key: &CallKey,
        outcome: Outcome,
        output: Option<&str>,
    ) -> Result<(), ImpossibleEvent> {
        if self.begun.contains_key(key) {
            self.settle_counted(compiled, key, outcome, output);
            return Ok(());
        }
        self.pending_mut(key)?;
        match outcome {
            Outcome::Unknown => {
                self.pending_mut(key)?.status = PendingStatus::Unknown;
            }
            Outcome::Success => {
                if let Some(pending) = self.pending.remove(key) {
                    let latest = self.is_latest(key, &pending);
                    let later = self.calls.get(&key.id).cloned();
                    self.commit(compiled, &pending.call, pending.arguments, pending.order);
                    if let Some(output) = output {
                        self.take_output(compiled, &key.id, output);
                    }
                    // Another call of this id came later: results in messages belong to that one.
                    if let Some(later) = later.filter(|_| !latest) {
                        self.calls.insert(key.id.clone(), later);
                    }
                    self.state_version += 1;
                }
            }
            Outcome::ExpectedError | Outcome::Error => {
                self.withdraw(key);
                self.state_version += 1;
            }
        }
        Ok(())
    }

    /// A call that counted at its release has ended: only what it returned is news.
    fn settle_counted(
        &mut self,
        compiled: &Compiled,
        key: &CallKey,
        outcome: Outcome,
        output: Option<&str>,
    ) {
        if outcome == Outcome::Unknown {
            return;
        }
        self.begun.remove(key);
        let record = self.calls.get(&key.id);
        // Another call of this id came later: results belong to that one.
        let is_latest = record.is_some_and(|record| record.order.step == key.step);
        let output = output.filter(|_| outcome == Outcome::Success && is_latest);
        if let Some(output) = output {
            let changed = self.take_output(compiled, &key.id, output);
            self.state_version += u64::from(changed);
        }
    }

    fn is_latest(&self, key: &CallKey, pending: &Pending) -> bool {
        let record = self.calls.get(&key.id);
        record.is_none_or(|record| record.order <= pending.order)
    }

    fn withdraw(&mut self, key: &CallKey) -> Option<Pending> {
        let pending = self.pending.remove(key)?;
        self.releases.retain(|(_, other)| other != key);
        if self.is_latest(key, &pending)
            && let Some(record) = self.calls.get_mut(&key.id)
        {
            record.progress = Progress::Withdrawn;
        }
        Some(pending)
    }

    fn expire(&mut self, _compiled: &Compiled, key: &CallKey) -> Result<(), ImpossibleEvent> {
        if self.pending_mut(key)?.status != PendingStatus::Released {
            let message = format!("call `{}` was started and cannot expire", key.id);
            return Err(ImpossibleEvent(message));
        }
        if let Some(pending) = self.withdraw(key) {
            let call = &pending.call;
            self.recent
                .forget(key.step, &call.tool, call.arguments_digest);
            self.state_version += 1;
        }
        Ok(())
    }

    fn see_outputs(&mut self, compiled: &Compiled, outputs: &[ShownOutput]) {
        let mut changed = false;
        for output in outputs {
            let record = self.calls.get(&output.call_id);
            let Some((progress, order)) = record.map(|record| (&record.progress, record.order))
            else {
                continue;
            };
            match progress {
                Progress::Committed { .. } => {
                    changed |= self.take_output(compiled, &output.call_id, &output.text);
                }
                // Somebody ran the tool around its executor: what it did is not known.
                Progress::Pending => {
                    let key = CallKey {
                        step: order.step,
                        id: output.call_id.clone(),
                    };
                    if let Some(pending) = self.pending.get_mut(&key)
                        && pending.status == PendingStatus::Released
                    {
                        pending.status = PendingStatus::Unknown;
                    }
                }
                Progress::Known { .. } | Progress::Withdrawn => {}
            }
        }
        self.state_version += u64::from(changed);
    }

    /// Returns the outputs that can change something: a request repeats those of the whole conversation.
    pub(crate) fn news(&self, outputs: &[ShownOutput]) -> Vec<ShownOutput> {
        let is_new = |output: &&ShownOutput| {
            let record = self.calls.get(&output.call_id);
            match record.map(|record| &record.progress) {
                Some(Progress::Committed { .. }) => true,
                Some(Progress::Pending) => {
                    let mut pending = self.pending.iter();
                    pending.any(|(key, pending)| {
                        key.id == output.call_id && pending.status == PendingStatus::Released
                    })
                }
                Some(Progress::Known { .. } | Progress::Withdrawn) | None => false,
            }
        };
        outputs.iter().filter(is_new).cloned().collect()
    }

    /// Returns what the program should hear about outputs before they are taken in.
    pub fn output_diagnostics(&self, outputs: &[ShownOutput]) -> Vec<(&'static str, String)> {
        let mut heard = Vec::new();
        for output in outputs {
            let record = self.calls.get(&output.call_id);
            let name = match record.map(|record| &record.progress) {
                Some(Progress::Known { output: known }) if *known != digest(&output.text) => {
                    "tool_output_changed"
                }
                Some(Progress::Pending) => "result_without_execution",
                Some(Progress::Known { .. } | Progress::Committed { .. } | Progress::Withdrawn)
                | None => continue,
            };
            heard.push((name, output.call_id.clone()));
        }
        heard
    }
}

pub(crate) fn micros(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX)
}

/// Returns the arguments of a call as a value; nothing where they could not be judged, which only shadow releases.
fn arguments(call: &Call) -> Option<Value> {
    json::read(&call.arguments, Limits::ARGUMENTS, Numbers::Doubles).ok()
}
