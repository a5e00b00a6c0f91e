//! How an input is taken: judged on the newest state of its session, and durable with everything it brings about.

use std::sync::Arc;

use canon::{Map, Value};
use domain::{
    AppendMessage, Command, Document, EffectResult, Event, GovernTask, GovernedAnswer,
    GovernedInput, GovernedOperation, Kind, MessageId, Move, NewMessage, Order, PermissionId,
    Position, Problem, Refusal, Report, Role, SessionId, State, Status, Task, TaskId, payload,
};
use runs::workflow::governed::{
    InputOutcome, Parties, SessionEnd, Subject, awaited, fields_agree, ids_are_plain, is_work,
};
use serde_json::json;

use super::fold::GovernedFold;
use super::{Governed, intent, no_session};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::{ReadEvents, Scope};
use crate::refused::Refused;
use crate::turn::{ClaimRequest, CommitContents, Lease, SESSION_CLOSED};

/// How often an input is judged again because its Task has gone on.
pub(super) const STALE_TRIES: usize = 50;

impl Engine {
    /// Has a session take an input: judged on its newest state, and durable with everything it brings about. An input that
    /// ends it may close its Session in the same commit: then that is what is answered.
    pub(crate) async fn take_input(
        &self,
        caller: &Caller,
        document: &Document,
        operation: GovernedOperation,
        claim: Option<ClaimRequest>,
        idempotency_key: Option<String>,
        closes: Option<&SessionId>,
    ) -> Result<Governed, Refused> {
        let shared = &self.shared;
        let known = shared.governed.find(document, shared.clock.now())?;
        if caller.key_id.is_some() {
            known.liveness().heard = shared.clock.now();
        }
        let mut slot = self.hold_known(&known).await?;
        // The same request may have come twice at once, and the other one was first.
        if let Some(claim) = claim
            && let Some(done) = self.claimed(claim).await?
        {
            let name = operation.name();
            let answer = match closes {
                // The Session answers, and it is asked next.
                Some(_) => Ok(Value::Null),
                None => {
                    self.recorded_answer(document.key, done.answer, name)
                        .await?
                }
            };
            return Ok(Governed { answer, done: None });
        }
        for _ in 0..STALE_TRIES {
            let current = self.shared_document(known.id.as_str()).await?;
            let current = current.ok_or_else(no_session)?;
            let State::Task(task) = &current.state else {
                return Err(no_session());
            };
            // Taken out as long as it may be ahead of the log: whoever is stopped here leaves nothing wrong behind.
            let mut folded = self.folded(slot.take(), &current, task).await?;
            let mut input = self.input(caller, &folded, operation.clone());
            if task.status.is_terminal() {
                let answer = ended_answer(&folded, task, &input);
                let answer = match &input.operation {
                    GovernedOperation::Report(report) => {
                        self.late_report(caller, (&known.id, task), &folded, report, answer)
                            .await?
                    }
                    _ => answer,
                };
                return Ok(Governed { answer, done: None });
            }
            let asked;
            (folded, input, asked) = self.asked(&current, task, folded, input).await?;
            if let Err(refused) = asked {
                *slot = Some(folded);
                return Err(refused);
            }
            // Held until the input is durable: nothing moves in the workflow while its session is judged.
            let mut held = self.hold_workflow(&folded, task).await?;
            if let Some(of) = held.take() {
                if let Err(refused) = of.check_separation(&input) {
                    *slot = Some(folded);
                    self.unlock_workflow(of, &CommitContents::default(), false);
                    return Err(refused);
                }
                of.notify_session(&folded, &mut input)?;
                held = Some(of);
            }
            let taken;
            (folded, input, taken) = match is_long(&input.operation) {
                true => {
                    let judged = self.run_judgement(&task.created_by, move || {
                        let taken = folded.subject.take(&input);
                        (folded, input, taken)
                    });
                    judged.await?
                }
                false => {
                    let taken = folded.subject.take(&input);
                    (folded, input, taken)
                }
            };
            if !taken.changed {
                let answer = taken.answer;
                *slot = Some(folded);
                if let Some(held) = held {
                    self.unlock_workflow(held, &CommitContents::default(), false);
                }
                return Ok(Governed { answer, done: None });
            }
            if taken.end.is_some() {
                self.load_task_log(current.key).await?;
            }
            let told = match &mut held {
                // What was stopped with its workflow ends by itself: nothing is written to a workflow that is over.
                Some(held) if !held.is_over() => {
                    let party = held.new_party(&input);
                    self.record_news(&Caller::system(), held, &taken.news, party)?
                }
                Some(_) | None => None,
            };
            let order = GovernTask {
                id: known.id.clone(),
                version: current.version,
                answer: answered(&taken, &input),
                moves: self.moves(folded.inputs, &input, &taken),
                workflow: told.map(Box::new),
            };
            let order = Order::GovernTask(Box::new(order));
            let (before, order) = match closes {
                Some(session) => (Some(order), Order::CloseSession(session.clone())),
                None => (None, order),
            };
            let command = Command {
                actor: caller.actor.clone(),
                idempotency_key: idempotency_key.clone(),
                order,
            };
            match self.order_both(before, command, claim, Lease::None).await {
                Ok(done) if done.changed => {
                    folded.committed(&done.written, current.key, input.at);
                    self.note_places(current.key, task, &folded);
                    let mut liveness = known.liveness();
                    liveness.deadline = folded.next_deadline(input.at);
                    liveness.is_folded = true;
                    drop(liveness);
                    if let Subject::Workflow(workflow) = &folded.subject {
                        self.wake_stopped(&task.workspace_id, workflow);
                    }
                    *slot = Some(folded);
                    if let Some(held) = held {
                        self.unlock_workflow(held, &done.written, true);
                    }
                    let (answer, done) = (taken.answer, Some(done));
                    return Ok(Governed { answer, done });
                }
                // The same request came twice at once, and the other one was first.
                Ok(_) if closes.is_some() => {
                    let answer = Ok(Value::Null);
                    return Ok(Governed { answer, done: None });
                }
                Ok(done) => {
                    let name = operation.name();
                    let answer = self.recorded_answer(current.key, done.answer, name).await?;
                    return Ok(Governed { answer, done: None });
                }
                Err(Refused::Domain(Refusal::Stale)) => {}
                Err(other) => return Err(other),
            }
        }
        Err(Refused::Busy { what: "session" })
    }

    /// Keeps the report of an execution that comes after the end of its session. The Task's own record is closed and has its
    /// receipt: it becomes a Message of the Session.
    async fn late_report(
        &self,
        caller: &Caller,
        (task_id, task): (&TaskId, &Task),
        folded: &GovernedFold,
        report: &Report,
        refused: Result<Value, Problem>,
    ) -> Result<Result<Value, Problem>, Refused> {
        let Some((executed, known)) = folded.session()?.reported(report) else {
            return Ok(refused);
        };
        if let Some(answer) = known {
            return Ok(Ok(answer));
        }
        let named = json!(["late_report", task_id, report]);
        let body: String = canon::sha256(&canon::jcs(&named))
            .hex()
            .chars()
            .take(32)
            .collect();
        let id = MessageId::from_body(&body);
        let mut recorded = true;
        if self.shared_document(id.as_str()).await?.is_none() {
            let text = format!(
                "The execution of {} ({}) was reported after the session had ended.",
                executed
                    .get("tool")
                    .and_then(Value::as_str)
                    .unwrap_or("a call"),
                report.call_id
            );
            let message = NewMessage {
                id,
                salt: self.shared.ids.salt(),
                role: Role::Tool,
                parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
                metadata: Map::from_iter([("late_report".to_owned(), executed)]),
            };
            let append = Order::AppendMessage(AppendMessage {
                session_id: task.session_id.clone(),
                message,
            });
            let freed = folded.session()?.late_releases(report);
            recorded = self
                .keep_late(caller, (folded, task), append, &freed)
                .await?;
        }
        Ok(refused.map_err(|problem| problem.with("recorded", recorded)))
    }

    /// Writes a late report, in one commit with what its workflow hears of it. Returns false where the Session is closed and
    /// takes nothing more: the workflow hears of it all the same.
    async fn keep_late(
        &self,
        caller: &Caller,
        (folded, task): (&GovernedFold, &Task),
        append: Order,
        freed: &[Value],
    ) -> Result<bool, Refused> {
        let command = |order: Order| Command {
            actor: caller.actor.clone(),
            idempotency_key: None,
            order,
        };
        for _ in 0..STALE_TRIES {
            let mut held = match freed.is_empty() {
                true => None,
                false => self.hold_workflow(folded, task).await?,
            };
            let told = match &mut held {
                Some(held) if !held.is_over() => {
                    self.record_news(&Caller::system(), held, freed, None)?
                }
                Some(_) | None => None,
            };
            let told = told.map(|told| Order::GovernTask(Box::new(told)));
            let append = command(append.clone());
            let ordered = self
                .order_both(told.clone(), append, None, Lease::None)
                .await;
            let (done, recorded) = match (ordered, told) {
                (Ok(done), _) => (done, true),
                (Err(Refused::Domain(Refusal::Stale)), _) => continue,
                (Err(Refused::Domain(Refusal::Conflict { reason, .. })), told)
                    if reason == SESSION_CLOSED =>
                {
                    let Some(told) = told else { return Ok(false) };
                    let done = self.order(command(told), None, Lease::None).await?;
                    (done, false)
                }
                (Err(other), _) => return Err(other),
            };
            if let Some(held) = held {
                self.unlock_workflow(held, &done.written, done.changed);
            }
            return Ok(recorded);
        }
        Err(Refused::Busy { what: "session" })
    }

    /// Asks [`Engine::may_ask`], where schemas are read it keeps nobody waiting.
    async fn asked(
        &self,
        document: &Arc<Document>,
        task: &Task,
        folded: GovernedFold,
        input: GovernedInput,
    ) -> Result<(GovernedFold, GovernedInput, Result<(), Refused>), Refused> {
        if !matches!(input.operation, GovernedOperation::Preflight(_)) {
            let asked = self.may_ask(&folded, task, &input);
            return Ok((folded, input, asked));
        }
        let (engine, document) = (self.clone(), Arc::clone(document));
        self.run_judgement(&task.created_by, move || {
            let asked = match &document.state {
                State::Task(task) => engine.may_ask(&folded, task, &input),
                _ => Err(no_session()),
            };
            (folded, input, asked)
        })
        .await
    }

    /// What holds for new sessions holds for those that were open before, nobody both works and decides in a session, and what
    /// cannot be checked is not prepared. None of this is recorded: it says nothing about the session.
    fn may_ask(
        &self,
        folded: &GovernedFold,
        task: &Task,
        input: &GovernedInput,
    ) -> Result<(), Refused> {
        check_separation(folded.parties(), task, input)?;
        let (Subject::Session(session), Some(start)) = (&folded.subject, folded.start()) else {
            return Ok(());
        };
        let operation = &input.operation;
        ids_are_plain(operation)?;
        match operation {
            GovernedOperation::AddLabel { label } => {
                let key = input.key_id.as_deref();
                Ok(session.label_left(label, (&input.actor, key), &task.created_by)?)
            }
            GovernedOperation::Preflight(asked) => {
                self.still_admitted(start, session.replaced())?;
                session.model_agrees(asked)?;
                session.model_is_named(asked)?;
                let missing = session.schemas_missing(asked);
                if !missing.is_empty() {
                    let message = "contracts check the schemas of these tools: send them in \
                                   `offered_tools` or `request.tools`";
                    let problem = Problem::new(422, "schema_required", message);
                    return Err(problem.with("tools", missing).into());
                }
                session.request_handed_in(asked)?;
                session.request_judgeable(asked)?;
                let wrong = session.schemas_wrong(asked)?;
                if !wrong.is_empty() {
                    let message =
                        "contracts check the schemas of these tools, and they cannot be read";
                    let problem = Problem::new(422, "schema_invalid", message);
                    return Err(problem.with("schemas", wrong).into());
                }
                session.room_left(input.at)?;
                Ok(session.attempts_left(input.at)?)
            }
            GovernedOperation::Propose(proposed) => {
                self.still_admitted(start, session.replaced())?;
                Ok(session.content_handed_in(proposed)?)
            }
            GovernedOperation::Report(report) => {
                fields_agree(report)?;
                Ok(session.error_listed(report)?)
            }
            _ => Ok(()),
        }
    }

    /// Makes an input of an operation, at a time that is not before the last one.
    pub(super) fn input(
        &self,
        caller: &Caller,
        folded: &GovernedFold,
        operation: GovernedOperation,
    ) -> GovernedInput {
        let shared = &self.shared;
        GovernedInput {
            at: shared.clock.now().max(folded.last),
            actor: caller.actor.clone(),
            key_id: caller.key_id.clone(),
            request_id: PermissionId::from_body(&shared.ids.body()),
            operation: folded.kept(operation),
            workflow: None,
        }
    }

    /// Writes down an input and what it brought about, in the order in which a replay comes to it.
    pub(super) fn moves(
        &self,
        inputs: u64,
        input: &GovernedInput,
        taken: &InputOutcome,
    ) -> Vec<Move> {
        let ids = &self.shared.ids;
        let effect = awaited(inputs + 1);
        let mut moves = vec![Move::RecordEffect(EffectResult {
            key: effect.key,
            kind: effect.kind.record_kind().to_owned(),
            ok: true,
            value: serde_json::to_value(input).unwrap_or_default(),
            provider_request_id: None,
            model: None,
            observed: None,
            interrupted_through: None,
        })];
        for note in &taken.notes {
            let payload = note.payload.clone();
            moves.push(match note.kind {
                Kind::ToolApprovalRequired => Move::Pose {
                    request: input.request_id.clone(),
                    payload,
                },
                kind => Move::Note { kind, payload },
            });
        }
        for (request, reason) in &taken.withdrawn {
            moves.push(Move::Withdraw {
                request: request.clone(),
                reason: (*reason).to_owned(),
            });
        }
        match &taken.end {
            None => moves.push(Move::RequestEffect(intent(inputs + 2))),
            Some(SessionEnd::Canceled { reason }) => {
                moves.push(Move::RequestEffect(intent(inputs + 2)));
                moves.push(Move::Cancel {
                    ids: self.end_ids(),
                    reason: reason.clone(),
                });
            }
            Some(SessionEnd::Completed { text }) => {
                let message = NewMessage {
                    id: MessageId::from_body(&ids.body()),
                    salt: ids.salt(),
                    role: Role::Assistant,
                    parts: vec![json!({"type": "text", "text": text, "visibility": "public"})],
                    metadata: Map::new(),
                };
                let messages = vec![message.id.clone()];
                moves.push(Move::Say(message));
                moves.push(Move::Complete {
                    ids: self.end_ids(),
                    summary: text.clone(),
                    messages,
                });
            }
            Some(SessionEnd::Failed { code, message }) => moves.push(Move::Fail {
                ids: self.end_ids(),
                code: (*code).to_owned(),
                message: message.clone(),
                details: Map::new(),
            }),
        }
        moves
    }

    /// Finds what a session answered to an input: the commit that recorded it also says so.
    pub(super) async fn recorded_answer(
        &self,
        task: Position,
        at: Position,
        operation: &str,
    ) -> Result<Result<Value, Problem>, Refused> {
        let query = ReadEvents {
            scope: Scope::Task(task),
            after: Position(at.0.saturating_sub(1)),
            limit: 32,
        };
        for stored in self.shared.store.events(query).await? {
            let mut event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
                detail: error.to_string(),
            })?;
            let is_answer = event.kind() == Ok(Kind::ContractDecided)
                && payload::ContractDecided::of(&event.payload).operation() == Some(operation);
            if is_answer {
                crate::view::resolve_blobs(&*self.shared.store, Arc::make_mut(&mut event.payload))
                    .await?;
                return Ok(answer_in(&event.payload));
            }
        }
        Err(Refused::Internal {
            detail: "an input was recorded without its answer".to_owned(),
        })
    }
}

/// Refuses an input of somebody who decided and would work, or works and would decide.
pub(super) fn check_separation(
    parties: &Parties,
    task: &Task,
    input: &GovernedInput,
) -> Result<(), Refused> {
    let (actor, key) = (input.actor.as_str(), input.key_id.as_deref());
    if is_work(&input.operation) && parties.is_decider(actor, key) {
        return Err(separation_refused(
            "whoever decides in a session does not work in it or in its workflow",
        ));
    }
    let decides = matches!(input.operation, GovernedOperation::Decide(_));
    match decides && (task.created_by == actor || parties.is_worker(actor, key)) {
        true => Err(separation_refused(
            "whoever works in a session or its workflow does not decide in it",
        )),
        false => Ok(()),
    }
}

pub(super) fn separation_refused(message: &str) -> Refused {
    let problem = Problem::new(403, "approver_must_differ", message);
    problem.with("rule", "approver_must_differ").into()
}

/// Returns the answer to a permission request that an input is.
fn answered(taken: &InputOutcome, input: &GovernedInput) -> Option<GovernedAnswer> {
    let (request, approved) = taken.decided.clone()?;
    let GovernedOperation::Decide(decide) = &input.operation else {
        return None;
    };
    let mut remarks = Map::new();
    remarks.insert("decided_by".to_owned(), decide.decided_by.clone().into());
    // The name is what somebody wrote; whose key it was is known.
    remarks.insert("actor".to_owned(), input.actor.clone().into());
    let key = input.key_id.clone();
    remarks.extend(key.map(|key| ("key_id".to_owned(), key.into())));
    if let Some(reason) = &decide.reason {
        remarks.insert("reason".to_owned(), reason.clone().into());
    }
    Some(GovernedAnswer {
        request,
        approved,
        remarks,
        key_id: input.key_id.clone(),
    })
}

/// True for what may be judged for long.
fn is_long(operation: &GovernedOperation) -> bool {
    matches!(
        operation,
        GovernedOperation::Preflight(_)
            | GovernedOperation::Propose(_)
            | GovernedOperation::Report(_)
            | GovernedOperation::Decide(_)
            | GovernedOperation::Tick
    )
}

/// Answers for a session that is over: what only tells how it ended is still answered.
fn ended_answer(
    folded: &GovernedFold,
    task: &Task,
    input: &GovernedInput,
) -> Result<Value, Problem> {
    let killed = task.status == Status::Canceled;
    let Subject::Session(session) = &folded.subject else {
        return Err(Problem::new(410, "ended", "the workflow has ended"));
    };
    match &input.operation {
        GovernedOperation::Kill { .. } => return Ok(json!({"killed": killed})),
        GovernedOperation::Restore => return Ok(session.shown()),
        GovernedOperation::Heartbeat { .. } if session.is_over() => {
            let (state_version, control_revision) = session.versions();
            return Ok(json!({
                "state_version": state_version,
                "control_revision": control_revision,
                "killed": killed,
            }));
        }
        _ => {}
    }
    Err(session
        .closed_problem()
        .unwrap_or_else(|| match task.status {
            Status::Failed => {
                let message = "the session was given up: its program was not heard for ten minutes";
                Problem::new(410, "session_lost", message)
            }
            _ => Problem::new(410, "killed", "the session was killed"),
        }))
}

fn answer_in(payload: &Map<String, Value>) -> Result<Value, Problem> {
    let said = payload::ContractDecided::of(payload);
    let Some(problem) = said.problem() else {
        return Ok(said.answer().cloned().unwrap_or_default());
    };
    let text = |name: &str| {
        problem
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let status = problem.get("status").and_then(Value::as_u64);
    let status = status.and_then(|status| u16::try_from(status).ok());
    let members = problem.get("members").and_then(Value::as_object);
    Err(Problem {
        members: members.cloned().unwrap_or_default(),
        ..Problem::new(status.unwrap_or(409), text("code"), text("message"))
    })
}
