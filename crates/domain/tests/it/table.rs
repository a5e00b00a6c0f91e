//! Every status of a Task against what a worker does with it and what clients ask of it (cancel, interrupt, answer), as one
//! table: a changed transition shows up as a changed line. Submits, replays, imports and governed sessions have tests of
//! their own.

use std::sync::Arc;

use canon::{Map, sha256};
use domain::{
    AdvanceTask, Answer, AnswerRequest, Ask, CancelTask, Command, Document, Draft, EffectIntent,
    EffectResult, EndIds, EventName, InterruptTask, Kind, Links, MessageId, Move, NewMessage,
    Order, OutcomeId, Permission, PermissionId, Position, ReceiptId, RequestReply, Role, Scratch,
    Session, SessionId, State, Status, Task, TaskId, Timestamp, WorkspaceId, decide, seal,
};

fn document(key: u64, id: &str, state: State) -> Document {
    let time = Timestamp::from_micros(0);
    Document {
        key: Position(key),
        id: id.into(),
        version: 1,
        tip: Position(key),
        links: Links::default(),
        created_at: time,
        updated_at: time,
        state,
    }
}

/// A world with one Task in a status, and the request it waits for when it waits.
fn world(status: Status) -> Scratch {
    let session_id = SessionId::from_body("1");
    let task_id = TaskId::from_body("1");
    let request = PermissionId::from_body("1");
    let mut scratch = Scratch::default();
    scratch.insert(document(
        1,
        session_id.as_str(),
        State::Session(Session {
            workspace_id: WorkspaceId::local(),
            root_session_id: None,
            parent_session_id: None,
            branch_id: None,
            mode_id: None,
            persona_id: None,
            model_policy: None,
            summary: None,
            metadata: Position(1),
            appended: 0,
            dropped: vec![],
            closed: false,
            imported: false,
            replaying: None,
        }),
    ));
    let mut task = document(2, task_id.as_str(), State::Task(task(&session_id, status)));
    if let State::Task(state) = &mut task.state
        && status.is_waiting()
    {
        state.waits_for = Some(request.clone());
    }
    scratch.insert(task);
    let ask = if status == Status::AuthRequired {
        Ask::Approval
    } else {
        Ask::Input
    };
    scratch.insert(document(
        3,
        request.as_str(),
        State::Permission(Permission {
            task_id,
            session_id,
            workspace_id: WorkspaceId::local(),
            ask,
            effect_key: "host:approval:1".to_owned(),
            action: None,
            asked: Position(3),
            answer: Answer::Pending,
        }),
    ));
    scratch
}

fn task(session_id: &SessionId, status: Status) -> Task {
    let json = serde_json::json!({
        "session_id": session_id,
        "workspace_id": WorkspaceId::local(),
        "status": status,
        "created_by": "a",
        "workflow": "agent",
        "branch_id": null,
        "parent_task_id": null,
        "submitted": 2,
        "input": 2,
        "waits_for": null,
        "requests": 0,
        "started_at": null,
        "completed_at": null,
        "canceled_at": null,
        "outcome_id": null,
        "receipt_id": null,
        "failure": null,
    });
    serde_json::from_value(json).unwrap()
}

fn ids() -> EndIds {
    EndIds {
        outcome_id: OutcomeId::from_body("1"),
        receipt_id: ReceiptId::from_body("1"),
    }
}

fn message() -> NewMessage {
    NewMessage {
        id: MessageId::from_body("9"),
        salt: "s".to_owned(),
        role: Role::User,
        parts: vec![serde_json::json!({"type": "text", "text": "x", "visibility": "public"})],
        metadata: Map::new(),
    }
}

fn advance(step: Move) -> Order {
    Order::AdvanceTask(AdvanceTask {
        id: TaskId::from_body("1"),
        workflow: Some(sha256(b"w")),
        moves: vec![step],
    })
}

fn ask(ask: Ask) -> Order {
    advance(Move::Ask {
        request: PermissionId::from_body("2"),
        ask,
        effect_key: "host:approval:2".to_owned(),
        request_body: canon::Value::Null,
        action: canon::Value::Null,
    })
}

fn orders() -> Vec<(&'static str, Order)> {
    let id = TaskId::from_body("1");
    let answer = |reply| {
        Order::AnswerRequest(AnswerRequest {
            answered_at: None,
            key_id: None,
            id: PermissionId::from_body("1"),
            reply,
            remarks: Map::new(),
        })
    };
    vec![
        (
            "start",
            advance(Move::Start {
                workflow_digest: sha256(b"w"),
            }),
        ),
        ("recover", advance(Move::Recover)),
        (
            "request effect",
            advance(Move::RequestEffect(EffectIntent {
                key: "llm:main:1".to_owned(),
                kind: "llm_provider_response".to_owned(),
                request_sha256: sha256(b"r"),
                repeatable: true,
                parts: None,
            })),
        ),
        (
            "record effect",
            advance(Move::RecordEffect(EffectResult {
                key: "llm:main:1".to_owned(),
                kind: "llm_provider_response".to_owned(),
                ok: true,
                value: canon::Value::Null,
                provider_request_id: None,
                model: None,
                observed: None,
                interrupted_through: None,
            })),
        ),
        ("ask for input", ask(Ask::Input)),
        ("ask for approval", ask(Ask::Approval)),
        ("say", advance(Move::Say(message()))),
        (
            "complete",
            advance(Move::Complete {
                ids: ids(),
                summary: "s".to_owned(),
                messages: vec![],
            }),
        ),
        (
            "fail",
            advance(Move::Fail {
                ids: ids(),
                code: "c".to_owned(),
                message: "m".to_owned(),
                details: Map::new(),
            }),
        ),
        (
            "cancel",
            Order::CancelTask(CancelTask {
                id: id.clone(),
                receipt: None,
                ids: ids(),
                reason: None,
            }),
        ),
        (
            "interrupt",
            Order::InterruptTask(InterruptTask {
                id,
                message: message(),
            }),
        ),
        ("answer approve", answer(RequestReply::Approve)),
        ("answer deny", answer(RequestReply::Deny)),
        ("answer message", answer(RequestReply::Message(message()))),
    ]
}

/// Puts in what only sealing knows of the record of a decision.
fn completed(mut drafts: Vec<Draft>) -> Vec<Draft> {
    for draft in &mut drafts {
        if draft.kind == Kind::TrustRecorded {
            let record = serde_json::json!({"entry_hash": sha256(b"record")});
            Arc::make_mut(&mut draft.payload).insert("record".to_owned(), record);
        }
    }
    drafts
}

fn outcome(status: Status, order: Order) -> String {
    let mut scratch = world(status);
    let command = Command {
        actor: "a".to_owned(),
        idempotency_key: None,
        order,
    };
    let decision = match decide(&scratch, &command) {
        Ok(decision) => decision,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    let kinds: Vec<&str> = decision
        .drafts
        .iter()
        .map(|draft| draft.kind.as_str())
        .collect();
    // `apply` takes whatever `decide` returned.
    seal(
        &EventName::new("testlog1"),
        &mut scratch,
        &completed(decision.drafts),
        Position(10),
        Timestamp::from_micros(1),
    )
    .unwrap();
    let after = scratch.iter().find_map(|document| match &document.state {
        State::Task(task) => Some(task.status),
        _ => None,
    });
    format!(
        "{} by {}",
        after.unwrap().as_str(),
        if kinds.is_empty() {
            "nothing".to_owned()
        } else {
            kinds.join(" ")
        }
    )
}

#[test]
fn asking_again_what_was_answered_meanwhile_sends_the_worker_back_to_the_log() {
    let mut scratch = world(Status::Working);
    let answer = Order::AnswerRequest(AnswerRequest {
        answered_at: None,
        key_id: None,
        id: PermissionId::from_body("1"),
        reply: RequestReply::Approve,
        remarks: Map::new(),
    });
    let command = |order| Command {
        actor: "a".to_owned(),
        idempotency_key: None,
        order,
    };
    let answered = decide(&scratch, &command(answer)).unwrap();
    let log = EventName::new("testlog1");
    seal(
        &log,
        &mut scratch,
        &completed(answered.drafts),
        Position(10),
        Timestamp::from_micros(1),
    )
    .unwrap();
    let again = advance(Move::Ask {
        request: PermissionId::from_body("1"),
        ask: Ask::Input,
        effect_key: "host:approval:1".to_owned(),
        request_body: canon::Value::Null,
        action: canon::Value::Null,
    });
    assert_eq!(
        decide(&scratch, &command(again)),
        Err(domain::Refusal::Stale)
    );
}

#[test]
fn ap_life_02_and_04_every_status_against_every_order() {
    let mut table = String::new();
    for status in Status::ALL {
        for (name, order) in orders() {
            table.push_str(&format!(
                "{} + {name}: {}\n",
                status.as_str(),
                outcome(status, order)
            ));
        }
    }
    insta::assert_snapshot!(table);
}
