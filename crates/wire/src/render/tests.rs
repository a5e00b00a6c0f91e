//! Rendering: one document of each kind, every member of the contract.

use domain::{
    Activity, ArtifactKind, Ask, BranchId, Links, Message, OutcomeId, PermissionId, Role, Session,
    SessionId, Task, TaskId, Visibility, WorkspaceId,
};

use super::*;

fn document(id: &str, state: State) -> Document {
    Document {
        key: Position(1),
        id: id.into(),
        version: 1,
        tip: Position(1),
        links: Links::default(),
        created_at: Timestamp::from_micros(0),
        updated_at: Timestamp::from_micros(1),
        state,
    }
}

fn rendered(id: &str, state: State, payloads: &[(u64, Value)], extra: Extra) -> Value {
    let payloads = payloads
        .iter()
        .map(|(at, payload)| {
            let payload = payload.as_object().unwrap().clone();
            (Position(*at), Content::Filled(payload))
        })
        .collect();
    let document = document(id, state);
    let view = View {
        document,
        payloads,
        extra,
    };
    let shown = resource(&view);
    let text = String::from_utf8(shown.bytes()).unwrap();
    let value = shown.value();
    assert_eq!(text, value.to_string());
    for name in ["id", "object", "created_at", "updated_at", "metadata"] {
        assert!(value.get(name).is_some(), "AP-ENV-01 {name}");
    }
    assert!(value["metadata"].is_object());
    assert_eq!(value["created_at"], "1970-01-01T00:00:00.000000Z");
    value
}

fn has(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value.get(name).is_some(), "`{name}` in {value}");
    }
}

fn session_state() -> Session {
    Session {
        workspace_id: WorkspaceId::local(),
        root_session_id: None,
        parent_session_id: None,
        branch_id: None,
        mode_id: None,
        persona_id: None,
        model_policy: None,
        summary: None,
        metadata: Position(1),
        appended: 3,
        dropped: vec![],
        closed: false,
        imported: false,
        replaying: None,
    }
}

fn task_state() -> Task {
    Task {
        session_id: SessionId::from_body("1"),
        workspace_id: WorkspaceId::local(),
        status: Status::Working,
        created_by: "ann".to_owned(),
        workflow: "agent".to_owned(),
        persona: None,
        branch_id: None,
        parent_task_id: None,
        submitted: Position(1),
        input: Position(2),
        waits_for: None,
        waits_also: None,
        requests: 0,
        interrupts: Vec::new(),
        ledger: None,
        started_at: None,
        completed_at: None,
        canceled_at: None,
        outcome_id: None,
        receipt_id: None,
        failure: None,
        replay: None,
        imported: None,
    }
}

#[test]
fn ap_ws_01_a_workspace_shows_every_member() {
    let state = State::Workspace(Workspace {
        name: "n".to_owned(),
        root: "harn://x".to_owned(),
        default_branch_id: BranchId::from_body("1"),
        capabilities: vec!["a".to_owned()],
        quota_id: None,
        metadata: Position(1),
    });
    let value = rendered(
        "workspace_1",
        state,
        &[(1, json!({"metadata": {"k": 1}}))],
        Extra::None,
    );
    assert_eq!(value["object"], "workspace");
    assert_eq!(value["metadata"], json!({"k": 1}));
    has(
        &value,
        &[
            "name",
            "root",
            "default_branch_id",
            "host",
            "repository",
            "tenant_id",
            "capabilities",
            "connectors",
            "quota_id",
        ],
    );
}

#[test]
fn ap_sess_01_a_session_shows_state_and_transcript() {
    let extra = Extra::Session {
        activity: Activity::Paused,
        last_event_id: Some("event_a_1".to_owned()),
    };
    let value = rendered("session_1", State::Session(session_state()), &[], extra);
    assert_eq!(value["state"], "PAUSED");
    assert_eq!(value["last_event_id"], "event_a_1");
    assert_eq!(
        value["transcript"],
        json!({"object": "transcript_summary", "message_count": 3, "messages_url": "/v1/sessions/session_1/messages"})
    );
    assert_eq!(value["mode_id"], "ask");
    assert_eq!(value.get("model_policy"), None);
    has(
        &value,
        &[
            "persona_id",
            "root_session_id",
            "parent_session_id",
            "branch_id",
            "live_clients",
            "live_controller_id",
            "summary",
            "expires_at",
        ],
    );
    let with_policy = Session {
        model_policy: Some(json!({"provider": "p", "model": "m"})),
        ..session_state()
    };
    let value = rendered("session_1", State::Session(with_policy), &[], Extra::None);
    assert_eq!(value["model_policy"]["model"], "m");
}

#[test]
fn ap_task_02_c_15_a_tasks_input_is_a_message_without_object_or_the_object_itself() {
    let message = json!({"message_id": "message_1", "role": "user", "parts": [{"type": "text"}], "metadata": {}});
    let value = rendered(
        "task_1",
        State::Task(task_state()),
        &[(1, json!({"metadata": {"a": true}})), (2, message)],
        Extra::None,
    );
    assert_eq!(
        value["input"],
        json!({"id": "message_1", "role": "user", "parts": [{"type": "text"}], "created_at": "1970-01-01T00:00:00.000000Z"})
    );
    assert_eq!(value["metadata"], json!({"a": true}));
    has(
        &value,
        &[
            "session_id",
            "workspace_id",
            "status",
            "created_by",
            "persona_id",
            "branch_id",
            "parent_task_id",
            "assigned_agent_id",
            "receipt_id",
            "outcome_id",
            "quota_id",
            "started_at",
            "completed_at",
            "canceled_at",
            "failure",
        ],
    );
    let object = Task {
        input: Position(1),
        ..task_state()
    };
    let payload = json!({"input": {"x": 1}, "metadata": {}});
    let value = rendered("task_1", State::Task(object), &[(1, payload)], Extra::None);
    assert_eq!(value["input"], json!({"x": 1}));
}

#[test]
fn ap_task_10_a_failed_task_says_why() {
    let failed = Task {
        status: Status::Failed,
        failure: Some(Position(9)),
        ..task_state()
    };
    let failure = json!({"code": "c", "message": "m", "details": {}});
    let value = rendered(
        "task_1",
        State::Task(failed),
        &[(9, json!({"failure": failure}))],
        Extra::None,
    );
    assert_eq!(value["failure"], failure);
    assert_eq!(value["status"], "FAILED");
}

fn message_state() -> Message {
    Message {
        session_id: SessionId::from_body("1"),
        task_id: None,
        role: Role::Agent,
        source: Position(4),
    }
}

#[test]
fn ap_msg_01_a_message_has_its_workspace_role_and_parts() {
    let state = State::Message(message_state());
    let extra = Extra::Message {
        workspace_id: Some(WorkspaceId::local()),
    };
    let payload = json!({"parts": [1], "metadata": {"m": 1}});
    let value = rendered("message_1", state, &[(4, payload)], extra);
    assert_eq!(value["role"], "agent");
    assert_eq!(value["parts"], json!([1]));
    assert_eq!(value["workspace_id"], "workspace_local");
    assert_eq!(value.get("task_id"), Some(&Value::Null));
    assert_eq!(value["metadata"], json!({"m": 1}));
}

#[test]
fn ap_art_02_c_07_an_artifacts_digest_has_no_prefix() {
    let state = State::Artifact(Artifact {
        kind: ArtifactKind::Log,
        mime_type: "text/plain".to_owned(),
        uri: None,
        visibility: Visibility::ReceiptOnly,
        sha256: Some(canon::sha256(b"x")),
        bytes: None,
        workspace_id: WorkspaceId::local(),
        session_id: None,
        task_id: None,
        source: Position(1),
    });
    let value = rendered("artifact_1", state, &[], Extra::None);
    assert_eq!(value["sha256"], canon::sha256(b"x").hex());
    assert_eq!(value["visibility"], "receipt_only");
    has(
        &value,
        &[
            "kind",
            "mime_type",
            "uri",
            "workspace_id",
            "session_id",
            "task_id",
            "receipt_id",
        ],
    );
}

#[test]
fn ap_out_01_c_06_outcome_words() {
    for (status, word) in [
        (Status::Completed, "SUCCEEDED"),
        (Status::Failed, "FAILED"),
        (Status::Canceled, "CANCELED"),
    ] {
        let state = State::Outcome(Outcome {
            task_id: TaskId::from_body("1"),
            session_id: SessionId::from_body("1"),
            workspace_id: WorkspaceId::local(),
            status,
            receipt_id: None,
            source: Position(1),
        });
        let message = View {
            document: document("message_1", State::Message(message_state())),
            payloads: BTreeMap::new(),
            extra: Extra::None,
        };
        let extra = Extra::Outcome {
            messages: vec![message],
        };
        let value = rendered(
            OutcomeId::from_body("1").as_str(),
            state,
            &[(1, json!({"summary": "s", "failure": null}))],
            extra,
        );
        assert_eq!(value["status"], word);
        assert_eq!(value["summary"], "s");
        assert_eq!(value["messages"][0]["id"], "message_1");
        assert_eq!(value["messages"].as_array().unwrap().len(), 1);
        has(
            &value,
            &[
                "task_id",
                "artifacts",
                "handoffs",
                "receipt_id",
                "failure",
                "cost",
                "metrics",
                "workspace_id",
            ],
        );
    }
}

#[test]
fn ap_prm_01_a_permission_request_shows_what_was_asked_and_answered() {
    let state = |answer| {
        State::Permission(Permission {
            task_id: TaskId::from_body("1"),
            session_id: SessionId::from_body("1"),
            workspace_id: WorkspaceId::local(),
            ask: Ask::Approval,
            effect_key: "host:approval:1".to_owned(),
            action: None,
            asked: Position(1),
            answer,
        })
    };
    let id = PermissionId::from_body("1");
    let asked = (1, json!({"request": {"q": 1}, "action": {"name": "act"}}));
    let value = rendered(
        id.as_str(),
        state(Answer::Pending),
        std::slice::from_ref(&asked),
        Extra::None,
    );
    assert_eq!(value["object"], "permission_request");
    assert_eq!(value["status"], "pending");
    assert_eq!(value["source"], "hitl");
    assert_eq!(value["request"], json!({"q": 1}));
    assert_eq!(value["action"], json!({"name": "act"}));
    assert_eq!(value.get("response"), Some(&Value::Null));
    let answer = Answer::Denied {
        at: Position(2),
        digest: canon::sha256(b""),
    };
    let answered = (2, json!({"approved": false, "remarks": {"reason": "no"}}));
    let value = rendered(id.as_str(), state(answer), &[asked, answered], Extra::None);
    assert_eq!(value["status"], "denied");
    assert_eq!(
        value["response"],
        json!({"approved": false, "reason": "no"})
    );
}

#[test]
fn ap_br_01_and_ap_vault_01_branches_and_vaults() {
    let state = State::Branch(Branch {
        workspace_id: WorkspaceId::local(),
        kind: domain::BranchKind::Session,
        base_ref: "main".to_owned(),
        parent_branch_id: None,
        session_id: None,
        task_id: None,
        created_by: "ann".to_owned(),
        metadata: Position(1),
    });
    let value = rendered("branch_1", state, &[], Extra::None);
    assert_eq!(value["kind"], "session");
    has(
        &value,
        &[
            "workspace_id",
            "base_ref",
            "parent_branch_id",
            "session_id",
            "task_id",
            "worktree_uri",
            "created_by",
            "merged_into",
        ],
    );
    let state = State::Vault(Vault {
        workspace_id: None,
        provider: "env".to_owned(),
        capabilities: vec!["read".to_owned()],
        metadata: Position(1),
    });
    let value = rendered("vault_1", state, &[], Extra::None);
    assert_eq!(value.get("workspace_id"), Some(&Value::Null));
    assert_eq!(value["capabilities"], json!(["read"]));
}
