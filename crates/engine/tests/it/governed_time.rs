//! Governed sessions and time: what nobody executes expires, what runs does not, questions time out by themselves, and a
//! session whose program is not heard any more is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use canon::{Digest, Map, Value};
use domain::{
    ContractText, Govern, GovernedFiles, GovernedOperation, NewGoverned, Preflight, Proposal,
    ProposedTool, Report, ReportedOutcome, StartedCall, State, Status, TaskId, Timestamp,
    ToolOffer, WorkspaceId,
};
use engine::port::{BoxFuture, Clock, MemoryStore, Store as _};
use engine::{Caller, Engine, Parts, Refused};
use serde_json::json;

use crate::support::{caller, parts};

/// Time that a test moves; waiting takes next to none.
#[derive(Debug)]
struct ExternalMember(AtomicI64);

impl ExternalMember {
    fn pass(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for ExternalMember {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration.min(Duration::from_millis(5))))
    }
}

struct World {
    store: Arc<MemoryStore>,
    clock: Arc<ExternalMember>,
    engine: Engine,
}

impl World {
    async fn new() -> Self {
        let store = Arc::new(MemoryStore::new("testlog1", [7; 32]));
        let clock = Arc::new(ExternalMember(AtomicI64::new(1_800_000_000_000_000)));
        Self::on(store, clock).await
    }

    async fn on(store: Arc<MemoryStore>, clock: Arc<ExternalMember>) -> Self {
        let parts = Parts {
            clock: clock.clone(),
            ..parts(store.clone())
        };
        let engine = Engine::start(parts).await.unwrap();
        Self {
            store,
            clock,
            engine,
        }
    }

    /// The process is gone; another one finds what was durable.
    async fn crashed(self) -> Self {
        Self::on(Arc::new(self.store.reopened()), self.clock.clone()).await
    }

    async fn open(&self, id: &str, contract: &str) {
        let new = NewGoverned {
            session_id: Some(id.to_owned()),
            workspace_id: None,
            compiled_digest: None,
            contracts: Some(GovernedFiles {
                files: vec![ContractText {
                    file: "pay.yaml".to_owned(),
                    text: contract.to_owned(),
                }],
                session: None,
            }),
            unknown_members: Vec::new(),
            principal: None,
            options: Map::new(),
            workflow: None,
        };
        let request = Govern::Open(Box::new(new));
        self.engine.govern(&program(), request, None).await.unwrap();
    }

    async fn act(&self, id: &str, operation: GovernedOperation) -> Result<Value, Refused> {
        let request = Govern::Do {
            session: id.to_owned(),
            workspace_id: None,
            operation: Box::new(operation),
        };
        let answer = self.engine.govern(&program(), request, None).await;
        answer.map(|(answer, _)| answer)
    }

    /// Has a call of the tool judged.
    async fn propose(&self, id: &str) -> Value {
        let state = self.state(id).await;
        let preflight = Preflight {
            expected_state_version: state["stateVersion"].as_u64().unwrap(),
            offered_tools: vec![ToolOffer {
                name: "pay".to_owned(),
                schema: Some(serde_json::json!({})),
                hosted: false,
            }],
            request_digest: None,
            provider: "openai".to_owned(),
            model: "m".to_owned(),
            forced_tool: None,
            request: None,
        };
        let prepared = self.act(id, GovernedOperation::Preflight(preflight)).await;
        let prepared = prepared.unwrap()["prepared_request_id"].clone();
        let proposal = Proposal {
            prepared_request_id: prepared.as_str().unwrap().to_owned(),
            finish_reason: "tool_calls".to_owned(),
            content_digest: None,
            without_text: false,
            content: None,
            tool_calls: vec![ProposedTool {
                id: "c".to_owned(),
                name: "pay".to_owned(),
                arguments: "{}".to_owned(),
            }],
            usage: None,
        };
        let answer = self.act(id, GovernedOperation::Propose(proposal)).await;
        answer.unwrap()
    }

    async fn report(&self, id: &str, proposal: &Value) -> Result<Value, Refused> {
        let digest = proposal["verdicts"][0]["arguments_digest"]
            .as_str()
            .unwrap();
        let report = Report {
            proposal_id: proposal["proposal_id"].as_str().unwrap().to_owned(),
            call_id: "c".to_owned(),
            arguments_digest: Digest::parse(digest).unwrap(),
            outcome: ReportedOutcome::Success,
            output_fields: Map::new(),
            output_digest: None,
            started_at: None,
            ended_at: None,
            error_code: None,
        };
        self.act(id, GovernedOperation::Report(report)).await
    }

    async fn beat(&self, id: &str, started: Option<&Value>) {
        let started = started.map(|proposal| StartedCall {
            proposal_id: proposal["proposal_id"].as_str().unwrap().to_owned(),
            call_id: "c".to_owned(),
        });
        let started = started.into_iter().collect();
        let operation = GovernedOperation::Heartbeat { started };
        self.act(id, operation).await.unwrap();
    }

    async fn state(&self, id: &str) -> Value {
        self.engine
            .governed(&program(), id, None, true)
            .await
            .unwrap()
    }

    async fn status(&self, id: &str) -> Status {
        let id = TaskId::governed(&WorkspaceId::local(), id);
        let found = self
            .store
            .documents(vec![id.as_str().into()])
            .await
            .unwrap();
        match &found[0].as_ref().unwrap().state {
            State::Task(task) => task.status,
            other => panic!("{other:?}"),
        }
    }

    /// Gives the engine time to look after its sessions.
    async fn tended(&self) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    async fn becomes(&self, id: &str, status: Status) {
        for _ in 0..400 {
            if self.status(id).await == status {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{id} is {:?}", self.status(id).await);
    }
}

fn program() -> Caller {
    caller("ann", &["*"])
}

const PLAIN: &str = "tool: pay\nside_effect: write\n";
const ASKING: &str =
    "tool: pay\nside_effect: write\ncheckpoint: { reason: large, timeout_seconds: 900 }\n";

#[track_caller]
fn code(refused: Result<Value, Refused>) -> String {
    match refused {
        Err(Refused::Governed(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn u30_a_session_whose_program_is_silent_for_ten_minutes_is_given_up() {
    let world = World::new().await;
    world.open("quiet", PLAIN).await;
    world.clock.pass(599);
    world.tended().await;
    assert_eq!(world.status("quiet").await, Status::Working);
    // A sign of life counts from when it came.
    world.beat("quiet", None).await;
    world.clock.pass(599);
    world.tended().await;
    assert_eq!(world.status("quiet").await, Status::Working);
    world.clock.pass(2);
    world.becomes("quiet", Status::Failed).await;
    let label = GovernedOperation::AddLabel {
        label: "x".to_owned(),
    };
    assert_eq!(code(world.act("quiet", label).await), "session_lost");
}

#[tokio::test]
async fn u30_a_session_with_a_call_outstanding_is_not_given_up_before_it_is_settled() {
    let world = World::new().await;
    world.open("busy", PLAIN).await;
    let proposal = world.propose("busy").await;
    assert_eq!(proposal["status"], "allowed", "{proposal}");
    // The executor runs: it does not expire, and the session waits for its report.
    world.beat("busy", Some(&proposal)).await;
    for _ in 0..3 {
        world.clock.pass(601);
        world.tended().await;
        assert_eq!(world.status("busy").await, Status::Working);
    }
    let reported = world.report("busy", &proposal).await.unwrap();
    assert_eq!(reported["committed"], true);
    world.clock.pass(601);
    world.becomes("busy", Status::Failed).await;
}

#[tokio::test]
async fn a_call_that_nobody_executes_for_ten_minutes_expires_and_a_later_report_is_a_bypass() {
    let world = World::new().await;
    world.open("slow", PLAIN).await;
    let proposal = world.propose("slow").await;
    assert_eq!(
        world.state("slow").await["pending"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // Its program is there, and says nothing of the call.
    world.clock.pass(300);
    world.beat("slow", None).await;
    assert_eq!(
        world.state("slow").await["pending"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    world.clock.pass(301);
    world.beat("slow", None).await;
    let state = world.state("slow").await;
    assert_eq!(state["pending"], json!([]), "{state}");
    assert_eq!(state["totalToolCalls"], 0);
    assert_eq!(code(world.report("slow", &proposal).await), "expired");
    let state = world.state("slow").await;
    assert_eq!(state["health"]["authorityState"], "compromised", "{state}");
}

#[tokio::test]
async fn questions_time_out_by_themselves_also_over_a_restart() {
    for restarts in [false, true] {
        let world = World::new().await;
        world.open("asks", ASKING).await;
        let proposal = world.propose("asks").await;
        assert_eq!(proposal["status"], "pending_approval", "{proposal}");
        // Longer than a program may be silent: what waits for people is outstanding.
        world.clock.pass(899);
        world.tended().await;
        assert_eq!(world.status("asks").await, Status::Working);
        let world = match restarts {
            true => world.crashed().await,
            false => world,
        };
        world.clock.pass(2);
        let id = proposal["proposal_id"].as_str().unwrap().to_owned();
        let mut settled = Value::Null;
        for _ in 0..400 {
            // Nobody sends anything: the record itself must say it.
            let head = world.store.head();
            tokio::time::sleep(Duration::from_millis(10)).await;
            let shown = world
                .engine
                .governed_proposal(&program(), ("asks", None), &id, Duration::ZERO)
                .await
                .unwrap();
            if shown["verdicts"][0]["reason"] == "checkpoint_timeout" {
                assert!(world.store.head() >= head);
                settled = shown;
                break;
            }
        }
        assert_eq!(settled["status"], "expired", "{settled}");
        let (waiting, _) = world
            .engine
            .waiting_approvals(domain::Position::START, 10)
            .await
            .unwrap();
        assert_eq!(waiting, []);
    }
}
