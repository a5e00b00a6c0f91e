//! Sessions of one workflow: they hear of each other, share limits and things, hand work over, and stop together.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use contracts::driver::{Control, DriveError, Driver, Label, Record};
use contracts::governed::{
    CreateError, ExecutorEnd, Fault, Governed, Hooks, ModelAnswer, ModelClient,
};
use contracts::wire::Wire;
use contracts::workflow::{
    HandoffRequest, MemberStatus, Seat, Workflow, WorkflowEvent, WorkflowRefusal, compile_workflow,
};
use contracts::{
    ApprovalRequest, ApprovalResponse, BlockReason, Executors, Options, Rules, compile,
};
use domain::Timestamp;

use crate::support::{at, chat_request, chat_response, source};

const FILE: &str = r#"
schema_version: "1.0"
workflow: returns
roles:
  - { name: desk, session_contract: desk/session.yaml }
  - { name: inspector, session_contract: inspector/session.yaml }
handoffs:
  - { from: desk, to: inspector }
limits: { max_tool_calls: 4 }
shared_resources:
  - { name: order, path: "$.order_id", tools: [pay], mode: exclusive }
"#;

const PAY: &str = "tool: pay\nside_effect: write\n\
    binds: [{ slot: order, from: arguments, path: \"$.order_id\" }]\n";

fn workflow() -> Arc<Workflow> {
    Arc::new(compile_workflow(&source("workflow", FILE)).unwrap())
}

fn rules(session_id: &str) -> Rules {
    rules_under(session_id, Some("session"))
}

/// Rules with a session file of this name, or without one.
fn rules_under(session_id: &str, file: Option<&str>) -> Rules {
    let session = file.map(|file| source(file, "schema_version: \"1.0\"\n"));
    let compiled = compile(&[source("pay", PAY)], session.as_ref()).unwrap();
    let mut options = Options::new(session_id);
    options.executors = Executors::Named(["pay".to_owned()].into());
    Rules::new(Arc::new(compiled), options).unwrap()
}

/// What everybody in the workflow is told, and how far each has heard it.
type Board = Rc<RefCell<Vec<(String, WorkflowEvent)>>>;

/// Reads what others wrote on the board, and writes on it.
struct Member {
    id: String,
    board: Board,
    read: usize,
    ticks: i64,
}

impl Hooks for Member {
    fn now(&mut self) -> Timestamp {
        self.ticks += 1;
        at(self.ticks)
    }

    fn record(&mut self, _record: &Record) -> Result<(), Fault> {
        Ok(())
    }

    fn ask(&mut self, _request: &ApprovalRequest) -> Option<ApprovalResponse> {
        None
    }

    fn workflow_changed(&mut self, event: &WorkflowEvent) {
        let entry = (self.id.clone(), event.clone());
        self.board.borrow_mut().push(entry);
    }

    fn workflow_news(&mut self) -> Vec<WorkflowEvent> {
        let board = self.board.borrow();
        let news = board.iter().skip(self.read);
        let news = news.filter(|(from, _)| *from != self.id);
        let news = news.map(|(_, event)| event.clone()).collect();
        self.read = board.len();
        news
    }
}

/// A model that wants to pay for one order after the other.
#[derive(Default)]
struct Model(VecDeque<&'static str>);

impl ModelClient for Model {
    type Error = ();

    fn send(&mut self, _wire: Wire, _body: &[u8]) -> Result<ModelAnswer, ()> {
        let order = self.0.pop_front().ok_or(())?;
        let id = format!("call-{order}-{}", self.0.len());
        let arguments = format!(r#"{{"order_id":"{order}"}}"#);
        Ok(ModelAnswer {
            body: chat_response(&[(&id, "pay", &arguments)]),
            is_sse: false,
        })
    }
}

type Session = Governed<Model, Member>;

fn member(id: &str, board: &Board) -> Member {
    Member {
        id: id.to_owned(),
        board: Rc::clone(board),
        read: board.borrow().len(),
        ticks: 0,
    }
}

fn root(board: &Board, orders: &[&'static str]) -> Session {
    let rules = rules("s1");
    let seat = Seat::root(workflow(), "w", &rules, "desk").unwrap();
    let model = Model(orders.iter().copied().collect());
    let mut session = Governed::start_root(model, rules, member("s1", board), seat).unwrap();
    session.wrap("pay", Box::new(|_, _| ExecutorEnd::Success(None)));
    session
}

/// Another program takes the offer: all it has is what was told.
fn child(board: &Board, id: &str, handoff: &str, orders: &[&'static str]) -> Session {
    let mut state = contracts::workflow::WorkflowState::default();
    for (_, event) in board.borrow().iter() {
        state = state.apply(event).unwrap();
    }
    let rules = rules(id);
    let taken = Seat::child(workflow(), "w", state, handoff, &rules, at(100));
    let (seat, offer) = taken.unwrap();
    let model = Model(orders.iter().copied().collect());
    let hooks = member(id, board);
    let mut session = Governed::start_child(model, rules, hooks, seat, &offer).unwrap();
    session.wrap("pay", Box::new(|_, _| ExecutorEnd::Success(None)));
    session
}

fn ask(session: &mut Session) -> Result<(), String> {
    match session.create(Wire::OpenAiChat, &chat_request(&["pay"])) {
        Ok(_) => Ok(()),
        Err(CreateError::Refused(DriveError::Contract(decision))) => {
            assert_eq!(decision.reason, Some(BlockReason::SessionLimitExceeded));
            Err(decision.detail.unwrap_or_default())
        }
        Err(other) => Err(other.to_string()),
    }
}

fn offer(session: &mut Session, carry: &[&str]) -> Result<String, WorkflowRefusal> {
    let at = session.workflow_state();
    let offers = at.map_or(0, |seen| seen.open_offers.len());
    let id = format!("offer-{offers}");
    let wanted = HandoffRequest {
        handoff_id: &id,
        to_role: "inspector",
        summary: "look at the frame",
        carry,
        expires_in_seconds: None,
    };
    session.handoff(wanted).map(|offer| offer.handoff_id)
}

fn label(session: &mut Session, label: &str) {
    let label = Label::new(label).unwrap();
    session.control(Control::AddLabel(label)).unwrap();
}

#[test]
fn a_session_hands_over_and_both_see_it() {
    let board = Board::default();
    let mut desk = root(&board, &["A"]);
    ask(&mut desk).unwrap();
    desk.execute("pay", None, r#"{"order_id":"A"}"#).unwrap();
    label(&mut desk, "vip");
    let refused = offer(&mut desk, &["no_such_slot"]);
    assert_eq!(
        refused,
        Err(WorkflowRefusal::SlotNotSet("no_such_slot".to_owned()))
    );
    let revision = desk.driver().state().control_revision;
    let id = offer(&mut desk, &["order"]).unwrap();
    let seen = desk.workflow_state().unwrap();
    assert_eq!(
        (seen.role.as_deref(), seen.open_offers.len()),
        (Some("desk"), 1)
    );
    let mut inspector = child(&board, "s2", &id, &[]);
    let state = inspector.driver().state();
    assert_eq!(
        (state.labels, state.total_tool_calls),
        (vec!["vip".to_owned()], 0)
    );
    let seen = inspector.workflow_state().unwrap();
    assert_eq!(seen.role.as_deref(), Some("inspector"));
    assert_eq!(seen.sessions[1].parent.as_deref(), Some("s1"));
    // The parent hears of it: one control action, and it stays open.
    let seen = desk.workflow_state().unwrap();
    assert_eq!((seen.sessions.len(), seen.open_offers.len()), (2, 0));
    assert_eq!(desk.driver().state().control_revision, revision + 1);
    assert_eq!(seen.tool_calls, 1);
}

#[test]
fn a_thing_that_another_session_holds_is_busy_until_its_call_is_settled() {
    let board = Board::default();
    let mut desk = root(&board, &["A"]);
    let id = offer(&mut desk, &[]).unwrap();
    let mut inspector = child(&board, "s2", &id, &["A", "B", "A"]);
    ask(&mut desk).unwrap();
    assert_eq!(ask(&mut inspector), Err("resource_busy".to_owned()));
    assert_eq!(ask(&mut inspector), Ok(()), "another order is free");
    desk.execute("pay", None, r#"{"order_id":"A"}"#).unwrap();
    assert_eq!(ask(&mut inspector), Ok(()), "settled");
}

#[test]
fn limits_of_the_workflow_stop_every_session() {
    let board = Board::default();
    let mut desk = root(&board, &["A", "B", "C"]);
    let id = offer(&mut desk, &[]).unwrap();
    let mut inspector = child(&board, "s2", &id, &["D", "E"]);
    for _ in 0..3 {
        ask(&mut desk).unwrap();
    }
    ask(&mut inspector).unwrap();
    assert_eq!(ask(&mut inspector), Err("workflow".to_owned()));
    assert_eq!(ask(&mut desk), Err("workflow".to_owned()));
    assert_eq!(desk.workflow_state().unwrap().tool_calls, 4);
}

#[test]
fn a_killed_root_stops_its_children_and_an_ended_child_nobody() {
    let board = Board::default();
    let mut desk = root(&board, &["A"]);
    let (first, second) = (
        offer(&mut desk, &[]).unwrap(),
        offer(&mut desk, &[]).unwrap(),
    );
    let mut inspector = child(&board, "s2", &first, &["B"]);
    let mut other = child(&board, "s3", &second, &[]);
    other.restore();
    let seen = desk.workflow_state().unwrap();
    let statuses: Vec<MemberStatus> = seen.sessions.iter().map(|member| member.status).collect();
    assert_eq!(
        statuses,
        [MemberStatus::Open, MemberStatus::Open, MemberStatus::Ended]
    );
    let cause = "enough".to_owned();
    desk.control(Control::Kill { cause }).unwrap();
    let stopped = ask(&mut inspector).unwrap_err();
    assert!(stopped.contains("came from was stopped"), "{stopped}");
    assert_eq!(
        offer(&mut desk, &[]),
        Err(WorkflowRefusal::UnknownSession("s1".to_owned()))
    );
}

#[test]
fn a_child_begins_with_every_label_that_its_parent_has_by_then() {
    let board = Board::default();
    let mut desk = root(&board, &[]);
    let handoff = offer(&mut desk, &[]).unwrap();
    label(&mut desk, "fraud");
    let inspector = child(&board, "s2", &handoff, &[]);
    assert_eq!(inspector.driver().state().labels, ["fraud"]);
}

#[test]
fn a_session_of_a_role_is_under_the_session_file_of_the_role() {
    for file in [
        Some("desk/session"),
        Some("contracts/desk/session"),
        Some("session"),
    ] {
        let seat = Seat::root(workflow(), "w", &rules_under("s1", file), "desk");
        assert!(seat.is_ok(), "{file:?}");
    }
    for file in [
        None,
        Some("till/session"),
        Some("desk/other"),
        Some("inspector/session"),
    ] {
        let seat = Seat::root(workflow(), "w", &rules_under("s1", file), "desk");
        let refused = matches!(seat, Err(WorkflowRefusal::OtherContract { .. }));
        assert!(refused, "{file:?}");
    }
}

#[test]
fn outside_of_a_workflow_there_is_nothing_to_hand_over() {
    let rules = rules("s1");
    let board = Board::default();
    let mut alone = Governed::start(Model::default(), rules, member("s1", &board)).unwrap();
    assert!(alone.workflow_state().is_none());
    assert_eq!(offer(&mut alone, &[]), Err(WorkflowRefusal::NoWorkflow));
}

/// The same on bytes.
#[test]
fn a_driver_of_a_workflow_hears_hands_over_and_stops() {
    let open = rules("s1");
    let seat = Seat::root(workflow(), "w", &open, "desk").unwrap();
    let mut desk = Driver::open_root(open, at(0), seat).unwrap();
    let wanted = HandoffRequest {
        handoff_id: "h1",
        to_role: "inspector",
        summary: "look",
        carry: &[],
        expires_in_seconds: Some(60),
    };
    let offer = desk.handoff(wanted, at(1)).unwrap();
    assert_eq!(offer.expires_at, at(61));
    let told = desk.workflow_news();
    let state = told.iter().fold(Default::default(), |state, event| {
        contracts::workflow::WorkflowState::apply(state, event).unwrap()
    });
    let rules = rules("s2");
    let (seat, offer) = Seat::child(workflow(), "w", state, "h1", &rules, at(2)).unwrap();
    let mut inspector = Driver::open_child(rules, at(2), seat, &offer).unwrap();
    for event in inspector.workflow_news() {
        desk.apply_event(&event, at(3)).unwrap();
    }
    assert_eq!(desk.state().control_revision, 1);
    assert_eq!(desk.workflow_state(at(3)).unwrap().sessions.len(), 2);
    let cause = "enough".to_owned();
    desk.control(Control::Kill { cause }, at(4)).unwrap();
    for event in desk.workflow_news() {
        inspector.apply_event(&event, at(5)).unwrap();
    }
    let body = br#"{"model":"gpt-4o","messages":[]}"#;
    assert!(inspector.plan(Wire::OpenAiChat, body, at(6)).is_err());
    assert!(inspector.state().killed);
}
