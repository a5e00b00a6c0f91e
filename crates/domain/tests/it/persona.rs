//! Personas: one definition per name and version, and what a Task keeps of it.

use std::sync::Arc;

use canon::Map;
use domain::{
    Command, CreatePersona, CreateSession, CreateWorkspace, Documents, Order, PersonaId,
    PersonaSpec, Position, Refusal, Scratch, SessionId, State, SubmitTask, TaskId, TaskInput,
    Timestamp, UpdatePersona, WorkspaceId, decide, seal,
};
use serde_json::{Value, json};

struct World {
    scratch: Scratch,
    next: u64,
}

impl World {
    fn new() -> Self {
        Self {
            scratch: Scratch::default(),
            next: 1,
        }
    }

    /// Decides and folds; returns the payloads of what happened.
    fn order(&mut self, order: Order) -> Result<Vec<Map<String, Value>>, Refusal> {
        let command = Command {
            actor: "a".to_owned(),
            idempotency_key: None,
            order,
        };
        let decision = decide(&self.scratch, &command)?;
        let log = domain::EventName::new("testlog1");
        let (first, now) = (Position(self.next), Timestamp::from_micros(0));
        seal(&log, &mut self.scratch, &decision.drafts, first, now).unwrap();
        self.next += decision.drafts.len() as u64;
        Ok(decision
            .drafts
            .into_iter()
            .map(|draft| Arc::unwrap_or_clone(draft.payload))
            .collect())
    }

    fn version(&self, id: &PersonaId) -> u64 {
        self.scratch.document(id.as_str()).unwrap().version
    }
}

fn spec(members: Value) -> PersonaSpec {
    let mut spec = json!({
        "name": "reviewer", "version": "1", "entry_workflow": "agent", "description": "d",
        "autonomy_tier": "suggest", "receipt_policy": "required",
    });
    let members = members.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(members);
    serde_json::from_value(spec).unwrap()
}

fn create(members: Value) -> Order {
    Order::CreatePersona(CreatePersona {
        persona: spec(members),
        metadata: Map::new(),
    })
}

#[test]
fn a_definition_is_made_once_and_another_of_the_same_version_refused() {
    let mut world = World::new();
    assert_eq!(world.order(create(json!({}))).unwrap().len(), 1);
    assert_eq!(world.order(create(json!({}))).unwrap().len(), 0);
    let refusal = world.order(create(json!({"tools": ["a"]}))).unwrap_err();
    assert!(matches!(
        refusal,
        Refusal::Conflict {
            reason: "persona_exists",
            ..
        }
    ));
    let next = create(json!({"tools": ["a"], "version": "2"}));
    assert_eq!(world.order(next).unwrap().len(), 1);
}

#[test]
fn a_change_is_made_on_what_was_read() {
    let mut world = World::new();
    world.order(create(json!({}))).unwrap();
    let id = PersonaId::of("reviewer", "1");
    let update = |document_version, members| {
        Order::UpdatePersona(UpdatePersona {
            id: PersonaId::of("reviewer", "1"),
            document_version,
            persona: spec(members),
            metadata: Map::new(),
        })
    };
    assert_eq!(world.order(update(1, json!({}))).unwrap().len(), 0);
    let changed = json!({"description": "e"});
    assert_eq!(world.order(update(1, changed.clone())).unwrap().len(), 1);
    assert_eq!(world.version(&id), 2);
    let stale = world.order(update(1, json!({"description": "f"})));
    assert_eq!(stale, Err(Refusal::Stale));
    // What was changed is what a definition is compared with.
    assert!(world.order(create(json!({}))).is_err());
    assert_eq!(world.order(create(changed)).unwrap().len(), 0);
}

#[test]
fn members_that_say_nothing_leave_the_digest_alone() {
    let mut world = World::new();
    let bare = world.order(create(json!({}))).unwrap();
    let stored = bare[0]["persona"].as_object().unwrap();
    assert_eq!(stored.len(), 6, "{stored:?}");
    let spelled = json!({"tools": [], "model": {}, "limits": {}, "memory": "none", "isolated_replay": false, "owner": null});
    assert_eq!(world.order(create(spelled)).unwrap().len(), 0);
}

#[test]
fn a_task_keeps_a_copy_even_when_it_moves_into_a_blob() {
    let mut world = World::new();
    let order = CreateWorkspace {
        id: WorkspaceId::local(),
        branch_id: domain::BranchId::from_body("local"),
        new: domain::NewWorkspace {
            name: "local".to_owned(),
            root: "r".to_owned(),
            metadata: Map::new(),
        },
    };
    world.order(Order::CreateWorkspace(order)).unwrap();
    let id = PersonaId::of("reviewer", "1");
    let session_id = SessionId::from_body("1");
    let order = CreateSession {
        id: session_id.clone(),
        workspace_id: WorkspaceId::local(),
        mode_id: None,
        persona_id: Some(id.clone()),
        model_policy: None,
        initial_messages: vec![],
        metadata: Map::new(),
    };
    world.order(Order::CreateSession(order)).unwrap();
    let Some(State::Session(session)) = world
        .scratch
        .document(session_id.as_str())
        .map(|document| &document.state)
    else {
        panic!("no session");
    };
    assert_eq!(session.persona_id, Some(id.clone()));
    for (number, prompt, inline) in [(1, 10, true), (2, 10_000, false)] {
        let task_id = TaskId::from_body(&number.to_string());
        let order = SubmitTask {
            id: task_id.clone(),
            session_id: session_id.clone(),
            workspace_id: None,
            branch_id: None,
            parent_task_id: None,
            workflow: "agent".to_owned(),
            persona: Some(
                spec(json!({"system_prompt": "x".repeat(prompt)})).snapshot(id.clone(), None),
            ),
            input: TaskInput::Object(Map::new()),
            metadata: Map::new(),
        };
        let payloads = world.order(Order::SubmitTask(order)).unwrap();
        assert_eq!(payloads[0].contains_key("persona"), inline);
        assert_eq!(
            domain::blob_reference(&payloads[0], "persona").is_some(),
            !inline
        );
        let Some(State::Task(task)) = world
            .scratch
            .document(task_id.as_str())
            .map(|document| &document.state)
        else {
            panic!("no task");
        };
        let persona = task.persona.as_ref().unwrap();
        assert_eq!(persona.reference(), format!("{id}@1"));
    }
}
