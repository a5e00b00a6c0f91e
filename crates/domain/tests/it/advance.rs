//! The order that a worker has to keep, whoever it is: a bad order is refused by `decide` and changes nothing.

use canon::{Map, Value, sha256};
use domain::{
    AdvanceTask, Command, CreateSession, CreateWorkspace, Documents, EffectIntent, EffectResult,
    EndIds, EventName, Move, NewWorkspace, Order, OutcomeId, Position, ReceiptId, Refusal, Scratch,
    SessionId, State, SubmitTask, TaskId, TaskInput, Timestamp, WorkspaceId, decide, seal,
};

/// A log with one Task.
struct Log {
    scratch: Scratch,
    next: u64,
}

impl Log {
    fn new() -> Self {
        let mut log = Self {
            scratch: Scratch::default(),
            next: 1,
        };
        let workspace = CreateWorkspace {
            id: WorkspaceId::local(),
            branch_id: domain::BranchId::from_body("local"),
            new: NewWorkspace {
                name: "local".to_owned(),
                root: "/".to_owned(),
                metadata: Map::new(),
            },
        };
        log.run(Order::CreateWorkspace(workspace)).unwrap();
        let session = CreateSession {
            id: SessionId::from_body("1"),
            workspace_id: WorkspaceId::local(),
            mode_id: None,
            persona_id: None,
            model_policy: None,
            initial_messages: vec![],
            metadata: Map::new(),
        };
        log.run(Order::CreateSession(session)).unwrap();
        let task = SubmitTask {
            id: TaskId::from_body("1"),
            session_id: SessionId::from_body("1"),
            workspace_id: None,
            branch_id: None,
            parent_task_id: None,
            workflow: "agent".to_owned(),
            persona: None,
            input: TaskInput::Object(Map::new()),
            metadata: Map::new(),
        };
        log.run(Order::SubmitTask(task)).unwrap();
        log
    }

    fn run(&mut self, order: Order) -> Result<(), Refusal> {
        let command = Command {
            actor: "a".to_owned(),
            idempotency_key: None,
            order,
        };
        let drafts = decide(&self.scratch, &command)?.drafts;
        let name = EventName::new("testlog1");
        let first = Position(self.next);
        let stamp = Timestamp::from_micros(1);
        let sealed = seal(&name, &mut self.scratch, &drafts, first, stamp).unwrap();
        self.next += sealed.len() as u64;
        Ok(())
    }

    fn advance(&mut self, version: Option<&str>, moves: Vec<Move>) -> Result<(), Refusal> {
        self.run(Order::AdvanceTask(AdvanceTask {
            id: TaskId::from_body("1"),
            workflow: version.map(|version| sha256(version.as_bytes())),
            moves,
        }))
    }

    /// The Task's ledger, as it is stored.
    fn ledger(&self) -> Value {
        match &self.scratch.document("task_1").unwrap().state {
            State::Task(task) => serde_json::to_value(&task.ledger).unwrap(),
            other => unreachable!("{other:?}"),
        }
    }
}

fn start() -> Move {
    Move::Start {
        workflow_digest: sha256(b"v1"),
    }
}

fn request(key: &str) -> Move {
    Move::RequestEffect(EffectIntent {
        key: key.to_owned(),
        kind: "llm_provider_response".to_owned(),
        request_sha256: sha256(b"r"),
        repeatable: true,
        parts: None,
    })
}

fn record(key: &str) -> Move {
    Move::RecordEffect(EffectResult {
        key: key.to_owned(),
        kind: "llm_provider_response".to_owned(),
        ok: true,
        value: Value::Null,
        provider_request_id: None,
        model: None,
        observed: None,
        interrupted_through: None,
    })
}

fn checkpoint(number: u64) -> Move {
    Move::Checkpoint {
        number,
        state: Value::Null,
    }
}

fn fail() -> Move {
    Move::Fail {
        ids: EndIds {
            outcome_id: OutcomeId::from_body("1"),
            receipt_id: ReceiptId::from_body("1"),
        },
        code: "c".to_owned(),
        message: "m".to_owned(),
        details: Map::new(),
    }
}

/// What one order says after others, and why it is refused.
type Case = (
    &'static str,
    Vec<Vec<Move>>,
    Vec<Move>,
    Option<&'static str>,
);

#[test]
fn a_worker_that_does_not_keep_the_order_is_refused() {
    let v1 = Some("v1");
    let cases: Vec<Case> = vec![
        (
            "a result without an intent",
            vec![vec![start()]],
            vec![record("llm:main:1")],
            Some("effect `llm:main:1` was not requested, or has a result"),
        ),
        (
            "an intent and its result in one order",
            vec![vec![start()]],
            vec![request("llm:main:1"), record("llm:main:1")],
            None,
        ),
        (
            "a result before its intent",
            vec![vec![start()]],
            vec![record("llm:main:1"), request("llm:main:1")],
            Some("effect `llm:main:1` was not requested, or has a result"),
        ),
        (
            "a second result",
            vec![
                vec![start(), request("llm:main:1")],
                vec![record("llm:main:1")],
            ],
            vec![record("llm:main:1")],
            Some("effect `llm:main:1` was not requested, or has a result"),
        ),
        (
            "a second intent",
            vec![vec![start(), request("llm:main:1")]],
            vec![request("llm:main:1")],
            Some("effect `llm:main:1` was requested before"),
        ),
        (
            "a second intent after the result",
            vec![
                vec![start(), request("llm:main:1"), request("llm:main:2")],
                vec![record("llm:main:1"), record("llm:main:2")],
            ],
            vec![request("llm:main:1")],
            Some("effect `llm:main:1` was requested before"),
        ),
        (
            "results in another order than their intents",
            vec![vec![
                start(),
                request("host:tool.a:1"),
                request("host:tool.b:1"),
            ]],
            vec![record("host:tool.b:1"), record("host:tool.a:1")],
            None,
        ),
        (
            "a key without a number, twice",
            vec![
                vec![start(), request("secret:token")],
                vec![record("secret:token")],
            ],
            vec![request("secret:token")],
            Some("effect `secret:token` was requested before"),
        ),
        (
            "a first checkpoint that is not the first",
            vec![vec![start()]],
            vec![checkpoint(2)],
            Some("checkpoint 2 is not the one after the last"),
        ),
        (
            "checkpoints that count up",
            vec![vec![start(), checkpoint(1)]],
            vec![checkpoint(2)],
            None,
        ),
        (
            "two checkpoints in one order",
            vec![vec![start(), checkpoint(1)]],
            vec![checkpoint(2), checkpoint(3)],
            None,
        ),
        (
            "two checkpoints the wrong way round",
            vec![vec![start()]],
            vec![checkpoint(2), checkpoint(1)],
            Some("checkpoint 2 is not the one after the last"),
        ),
        (
            "a checkpoint twice in one order",
            vec![vec![start()]],
            vec![checkpoint(1), checkpoint(1)],
            Some("checkpoint 1 is not the one after the last"),
        ),
        (
            "a checkpoint again",
            vec![vec![start(), checkpoint(1)]],
            vec![checkpoint(1)],
            Some("checkpoint 1 is not the one after the last"),
        ),
        (
            "a checkpoint without a number",
            vec![vec![start()]],
            vec![checkpoint(0)],
            Some("checkpoint 0 is not the one after the last"),
        ),
    ];
    for (name, before, order, expected) in cases {
        let mut log = Log::new();
        for moves in before {
            log.advance(v1, moves)
                .unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        }
        let head = log.next;
        let refused = log.advance(v1, order).err();
        let message = refused.as_ref().map(ToString::to_string);
        assert_eq!(message.as_deref(), expected, "{name}");
        if let Some(refusal) = refused {
            assert!(
                matches!(
                    refusal,
                    Refusal::Conflict {
                        reason: "out_of_order",
                        ..
                    }
                ),
                "{name}"
            );
            assert_eq!(log.next, head, "{name}: nothing is written");
        }
    }
}

#[test]
fn a_task_goes_on_under_the_version_of_the_workflow_that_it_began_with() {
    let begun = || {
        let mut log = Log::new();
        log.advance(Some("v1"), vec![start()]).unwrap();
        log
    };
    let other = "the task goes on under the version of its workflow that it began with";
    for version in [Some("v2"), None] {
        let refused = begun().advance(version, vec![request("llm:main:1")]);
        assert_eq!(refused.unwrap_err().to_string(), other, "{version:?}");
    }
    let mut log = Log::new();
    let refused = log.advance(Some("v2"), vec![start()]);
    assert_eq!(refused.unwrap_err().to_string(), other);
    // That a Task cannot go on is nothing that its workflow says.
    begun().advance(None, vec![fail()]).unwrap();
    let refused = begun().advance(Some("v2"), vec![fail()]);
    assert_eq!(refused.unwrap_err().to_string(), other);
}

#[test]
fn what_is_known_of_a_tasks_work_does_not_grow_with_it_and_ends_with_it() {
    let mut log = Log::new();
    log.advance(Some("v1"), vec![start()]).unwrap();
    for number in 1..=100 {
        let key = format!("llm:main:{number}");
        log.advance(Some("v1"), vec![request(&key), record(&key)])
            .unwrap();
    }
    let expected = serde_json::json!({"workflow": sha256(b"v1"), "last": {"llm:main": 100}});
    assert_eq!(log.ledger(), expected);
    log.advance(None, vec![fail()]).unwrap();
    assert_eq!(log.ledger(), Value::Null);
}
