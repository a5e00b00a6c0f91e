//! `contracts backtest` of governed sessions, against a server with files on disk: the contracts that a session ran under have
//! nothing to say that was not said then, and other contracts show by exactly what they change.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::governed::Program;
use crate::world::World;

const SESSIONS: &str = "/api/v1/replay/sessions";

const FILES: [(&str, &str); 6] = [
    (
        "pay.yaml",
        "tool: pay\nside_effect: write\nschema_derived: false\nadds_labels: [paid]\n\
         argument_value_invariants: [ { path: \"$.n\", type: integer, lte: 100, when_present: true } ]\n",
    ),
    (
        "ask.yaml",
        "tool: ask\nside_effect: write\nschema_derived: false\ncheckpoint: { reason: look, timeout_seconds: 2 }\n",
    ),
    (
        "pick.yaml",
        "tool: pick\nside_effect: read\nschema_derived: false\nbinds: [ { slot: o, from: arguments, path: \"$.o\" } ]\n",
    ),
    (
        "ship.yaml",
        "tool: ship\nside_effect: write\nschema_derived: false\nargument_value_invariants: [ { path: \"$.o\", ref: o } ]\n",
    ),
    (
        "vip.yaml",
        "tool: vip\nside_effect: write\nschema_derived: false\npolicy: { rules: [ { id: r, effect: allow, when: [ { path: \"$.vip\", equals: true } ] } ] }\n",
    ),
    (
        "session.yaml",
        "schema_version: \"1.0\"\nsession_limits: { max_cost_per_session: 1.00 }\nlabel_gates: [ { label: fraud, block_tools: [pay, ask] } ]\n",
    ),
];

const WORKFLOW: &str = "schema_version: \"1.0\"\nworkflow: two\nroles:\n  - { name: desk, session_contract: desk/session.yaml }\n\
    \x20 - { name: payer, session_contract: payer/session.yaml }\nhandoffs: [ { from: desk, to: payer } ]\n\
    shared_resources: [ { name: order, path: \"$.o\", tools: [pay], mode: exclusive } ]\n";

/// A program that drives one session.
struct Driven<'a> {
    program: &'a Program<'a>,
    id: String,
}

impl<'a> Driven<'a> {
    fn open(program: &'a Program<'a>, id: &str, more: Value) -> Self {
        let (session, contracts): (Vec<_>, Vec<_>) =
            FILES.iter().partition(|(file, _)| *file == "session.yaml");
        let file = |(file, text): &(&str, &str)| json!({"file": file, "text": text});
        let contracts: Vec<Value> = contracts.into_iter().map(file).collect();
        let mut new = json!({"session_id": id, "principal": {"vip": false},
            "pricing": {"openai/m": {"input": "100", "output": "100"}},
            "contracts": {"contracts": contracts, "session": file(session[0])}});
        for (name, value) in more.as_object().unwrap() {
            new[name] = value.clone();
        }
        program.post(SESSIONS, new);
        let id = id.to_owned();
        Self { program, id }
    }

    fn path(&self, rest: &str) -> String {
        format!("{SESSIONS}/{}{rest}", self.id)
    }

    fn prepare(&self) -> Value {
        let version = self.program.get(&self.path(""))["stateVersion"].clone();
        let names = ["pay", "ask", "pick", "ship", "vip", "other"];
        let tools = names.map(|name| json!({"name": name, "schema": {}}));
        let asked = json!({"expected_state_version": version, "offered_tools": tools,
            "provider": "openai", "model": "m"});
        self.program.post(&self.path("/preflight"), asked)
    }

    fn propose(&self, calls: &[(&str, &str, Value)]) -> Value {
        let ready = self.prepare();
        self.propose_to(&ready, calls)
    }

    fn propose_to(&self, ready: &Value, calls: &[(&str, &str, Value)]) -> Value {
        let calls = calls.iter().map(|(id, name, arguments)| {
            json!({"id": id, "name": name, "arguments": arguments.to_string()})
        });
        let proposal = json!({"prepared_request_id": ready["prepared_request_id"],
            "finish_reason": "tool_calls", "tool_calls": calls.collect::<Vec<_>>(),
            "usage": {"input": 10, "output": 10}});
        self.program.post(&self.path("/proposals"), proposal)
    }

    fn report(&self, proposal: &Value, call: usize) {
        let verdict = &proposal["verdicts"][call];
        let report = json!({"proposal_id": proposal["proposal_id"], "call_id": verdict["call_id"],
            "arguments_digest": verdict["arguments_digest"], "outcome": "success"});
        self.program.post(&self.path("/receipts"), report);
    }

    /// Proposes a call that is expected to end so, and reports it where it is released.
    fn call(&self, id: &str, tool: &str, arguments: Value, status: &str) -> Value {
        let proposal = self.propose(&[(id, tool, arguments)]);
        assert_eq!(proposal["status"], status, "{proposal}");
        if status == "allowed" {
            self.report(&proposal, 0);
        }
        proposal
    }

    fn decide(&self, proposal: &Value, decision: &str) -> Value {
        let id = proposal["proposal_id"].as_str().unwrap();
        let body = json!({"decision": decision, "decided_by": "bea"});
        let path = self.path(&format!("/proposals/{id}/approve"));
        let (status, answer) = self.program.send("approver-key", &path, Some(body));
        assert_eq!(status, 200, "{answer}");
        answer
    }

    fn post(&self, rest: &str, body: Value) -> Value {
        self.program.post(&self.path(rest), body)
    }

    fn end(self) {
        self.post("/restore", json!({}));
    }
}

/// Everything that a session can bring with it or hear from outside.
fn sessions(program: &Program<'_>) {
    let open = |id: &str, more: Value| Driven::open(program, id, more);
    // Labels at the beginning, and one that came later.
    let labelled = open("labelled", json!({"labels": ["fraud"]}));
    labelled.call("a", "pay", json!({"n": 1}), "blocked");
    labelled.end();
    let later = open("later", json!({}));
    later.call("a", "pay", json!({"n": 1}), "allowed");
    later.post("/labels", json!({"label": "fraud"}));
    later.call("b", "pay", json!({"n": 2}), "blocked");
    later.end();
    // A filter that was set and cleared.
    let filtered = open("filtered", json!({}));
    filtered.post("/tool-filter", json!({"tools": ["pick"]}));
    filtered.call("a", "pay", json!({"n": 1}), "blocked");
    filtered.post("/tool-filter", json!({"tools": null}));
    filtered.call("b", "pay", json!({"n": 1}), "allowed");
    filtered.end();
    // Options, and a policy that said no.
    let options = open(
        "options",
        json!({"unmatched_policy": "allow", "gate": "strip_partial"}),
    );
    options.call("a", "other", json!({}), "allowed");
    let stripped = options.propose(&[
        ("b", "pay", json!({"n": 500})),
        ("c", "pick", json!({"o": 1})),
    ]);
    options.report(&stripped, 1);
    options.call("d", "vip", json!({}), "blocked");
    options.end();
    // People: two answers wait at a time, one is denied with what came beside it, one times out, one hears of a label.
    let people = open("people", json!({}));
    let first = people.call("a", "ask", json!({"n": 1}), "pending_approval");
    let second = people.propose(&[
        ("b", "ask", json!({"n": 2})),
        ("c", "pick", json!({"o": 1})),
    ]);
    people.call("d", "pay", json!({"n": 3}), "allowed");
    assert_eq!(people.decide(&second, "deny")["status"], "denied");
    assert_eq!(people.decide(&first, "approve")["status"], "approved");
    people.report(&first, 0);
    people.call("e", "ask", json!({"n": 4}), "pending_approval");
    std::thread::sleep(Duration::from_millis(2_200));
    people.call("f", "pick", json!({"o": 2}), "allowed");
    let marked = people.call("g", "ask", json!({"n": 5}), "pending_approval");
    people.post("/labels", json!({"label": "fraud"}));
    assert_eq!(people.decide(&marked, "approve")["status"], "blocked");
    people.end();
    // An answer that was out of date when it came.
    let stale = open("stale", json!({}));
    let (one, two) = (stale.prepare(), stale.prepare());
    let released = stale.propose_to(&one, &[("a", "pay", json!({"n": 1}))]);
    let late = json!({"prepared_request_id": two["prepared_request_id"], "finish_reason": "tool_calls",
        "tool_calls": [{"id": "b", "name": "pay", "arguments": "{}"}], "usage": {"input": 1, "output": 1}});
    let (status, _) = program.send("api-key", &stale.path("/proposals"), Some(late));
    assert_eq!(status, 409);
    stale.report(&released, 0);
    stale.end();
    // A workflow: a thing that another session holds, and a slot that was carried.
    let source = json!({"file": "workflow.yaml", "text": WORKFLOW});
    let place = json!({"type": "root", "workflow_id": "w", "role": "desk", "source": source});
    let root = open("root", json!({"workflow": place}));
    root.call("a", "pick", json!({"o": 7}), "allowed");
    let held = root.propose(&[("b", "pay", json!({"o": 7}))]);
    root.post("/labels", json!({"label": "vip"}));
    let offer = json!({"to_role": "payer", "summary": "go on", "carry": ["o"]});
    let offer = root.post("/handoffs", offer)["handoff_id"].clone();
    let place = json!({"type": "child", "handoff_id": offer, "role": "payer"});
    let child = open("child", json!({"workflow": place}));
    let busy = child.call("a", "pay", json!({"o": 7}), "blocked");
    assert_eq!(busy["verdicts"][0]["detail"], "resource_busy", "{busy}");
    child.call("b", "ship", json!({"o": 7}), "allowed");
    child.call("c", "ship", json!({"o": 8}), "blocked");
    root.report(&held, 0);
    child.call("d", "pay", json!({"o": 7}), "allowed");
    child.end();
    root.end();
}

#[test]
fn u32_a_backtest_under_the_same_contracts_has_nothing_to_say() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    sessions(&program);
    let folder = world.home.path().join("rules");
    fs::create_dir(&folder).unwrap();
    for (file, text) in FILES {
        fs::write(folder.join(file), text).unwrap();
    }
    let data = world.data();
    let data = data.to_str().unwrap();
    let report = world.json(&["contracts", "backtest", "rules", data, "--json"]);
    let changes = &report["changes"];
    assert_eq!(changes["stopped"], 0, "{report:#}");
    assert_eq!(changes["now_asked"], 0, "{report:#}");
    assert_eq!(changes["loosened"], 0, "{report:#}");
    assert_eq!(report["calls"]["not_judgeable"], 0, "{report:#}");
    assert_eq!(report["runs"].as_array().unwrap().len(), 8, "{report:#}");
    assert!(report["calls"]["blocked"].as_u64() > Some(5), "{report:#}");

    // What these contracts change is what is told, and nothing else.
    let session = FILES[5].1.replace("label: fraud", "label: vip");
    fs::write(folder.join("session.yaml"), session).unwrap();
    let principal = world.home.path().join("who.json");
    fs::write(&principal, r#"{"vip":false}"#).unwrap();
    let changed = [
        "contracts",
        "backtest",
        "rules",
        data,
        "--principal",
        "who.json",
        "--json",
    ];
    let report = world.json(&changed);
    let runs = report["runs"].as_array().unwrap();
    let told = |run: &Value| {
        let calls = |member: &str| run[member].as_array().map_or(0, Vec::len);
        let first = usize::from(run["first_blocked"].is_object());
        (first + calls("later_blocked"), calls("loosened"))
    };
    let told: Vec<(usize, usize)> = runs.iter().map(told).collect();
    // The labelled ones are let further, and the child of the labelled root is not let pay.
    assert_eq!(
        told.iter().map(|(stopped, _)| stopped).sum::<usize>(),
        1,
        "{report:#}"
    );
    assert_eq!(
        told.iter().map(|(_, loosened)| loosened).sum::<usize>(),
        2,
        "{report:#}"
    );
    // Without knowing who called, other contracts with a policy cannot judge.
    let unknown = world.run(&["contracts", "backtest", "rules", data]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("--principal"), "{unknown:?}");
}

/// Rules look at a request in one shape, whoever reads it: a backtest must not look at it in another.
#[test]
fn u32_a_backtest_sees_a_request_as_it_was_judged() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    let contract = "tool: pay\nside_effect: write\nschema_derived: false\nassertions:\n  input_invariants:\n\
        \x20   - { path: \"$.system\", equals: desk }\n    - { path: \"$.tools[0]\", equals: pay }\n";
    let function = json!({"name": "pay", "parameters": {"type": "object"}});
    let talk = json!([{"role": "user", "content": "hello"}]);
    let requests = [
        (
            "openai",
            json!({"messages": [{"role": "system", "content": "desk"}], "tools": [{"type": "function", "function": function}]}),
        ),
        ("openai", json!({"input": "hello", "instructions": "desk"})),
        (
            "anthropic",
            json!({"system": [{"type": "text", "text": "desk"}], "messages": talk, "max_tokens": 9}),
        ),
        // Refused then, and now.
        (
            "openai",
            json!({"messages": [{"role": "system", "content": "other"}], "system": "desk"}),
        ),
    ];
    for (number, (provider, request)) in requests.into_iter().enumerate() {
        let id = format!("seen-{number}");
        program.post(
            SESSIONS,
            json!({"session_id": id, "contracts": {"contracts": [{"file": "pay.yaml", "text": contract}]}}),
        );
        let driven = Driven {
            program: &program,
            id,
        };
        let asked = json!({"expected_state_version": 0, "offered_tools": [{"name": "pay"}],
            "provider": provider, "model": "m", "request": request});
        let ready = driven.post("/preflight", asked);
        let proposal = driven.propose_to(&ready, &[("a", "pay", json!({}))]);
        let status = if number == 3 { "blocked" } else { "allowed" };
        assert_eq!(proposal["status"], status, "{number}: {proposal}");
        driven.end();
    }
    let folder = world.home.path().join("rules");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("pay.yaml"), contract).unwrap();
    let data = world.data();
    let data = data.to_str().unwrap();
    let report = world.json(&["contracts", "backtest", "rules", data, "--json"]);
    assert_eq!(report["changes"]["as_before"], 4, "{report:#}");
    assert_eq!(report["calls"]["blocked"], 1, "{report:#}");

    // A run counts once, in how many ways it may be given, and what is not looked at is named.
    let task = report["runs"][0]["task_id"].as_str().unwrap();
    let bundles = world.home.path().join("bundles");
    fs::create_dir_all(bundles.join("more")).unwrap();
    world.ok(&["task", "export", task, "bundles/one.json"]);
    let twice = ["contracts", "backtest", "rules", data, "bundles"];
    let found = world.run(&twice);
    assert!(found.stdout.contains("4 runs judged"), "{found:?}");
    assert!(
        found.stdout.contains("1 run given more than once"),
        "{found:?}"
    );
    assert!(found.stderr.contains("bundles/more"), "{found:?}");

    // What was changed after it was sealed is not judged.
    let one = fs::read_to_string(bundles.join("one.json")).unwrap();
    let changed = bundles.join("changed.json");
    fs::write(
        &changed,
        one.replace("\"call_id\":\"a\"", "\"call_id\":\"b\""),
    )
    .unwrap();
    let found = world.run(&["contracts", "backtest", "rules", "bundles/changed.json"]);
    assert_eq!(found.code, 2, "{found:?}");
    assert!(found.stderr.contains("(damaged: "), "{found:?}");

    // The same as a pack: recorded runs must be judged as they went.
    let pack = world.home.path().join("pack");
    fs::create_dir_all(pack.join("recordings")).unwrap();
    fs::rename(&folder, pack.join("contracts")).unwrap();
    fs::rename(bundles.join("one.json"), pack.join("recordings/one.json")).unwrap();
    let told = world.ok(&["contracts", "test", "pack"]);
    assert!(told.contains("ok recordings/one"), "{told}");
    let stricter = contract.replace("equals: desk", "equals: till");
    fs::write(pack.join("contracts/pay.yaml"), stricter).unwrap();
    fs::write(pack.join("recordings/two.json"), "{}").unwrap();
    let told = world.run(&["contracts", "test", "pack"]);
    assert_eq!(told.code, 1, "{told:?}");
    let line = "turn 1, pay: made then, blocked now (input_invariant_failed: $.system)";
    assert!(told.stdout.contains(line), "{told:?}");
    assert!(told.stdout.contains("FAIL recordings/two"), "{told:?}");
}

#[test]
fn a_draft_from_recorded_runs_is_of_calls_that_were_made() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    let driven = Driven::open(&program, "drafted", json!({}));
    driven.call("a", "nowhere", json!({"secret": 1}), "blocked");
    driven.call("b", "pay", json!({"n": 500}), "blocked");
    driven.call("c", "pay", json!({"n": 50}), "allowed");
    driven.end();
    let data = world.data();
    world.ok(&[
        "contracts",
        "init",
        data.to_str().unwrap(),
        "--output",
        "draft",
    ]);
    let draft = world.home.path().join("draft");
    assert!(!draft.join("nowhere.yaml").exists());
    let pay = fs::read_to_string(draft.join("pay.yaml")).unwrap();
    assert!(pay.contains("Called 1 time in 1 recorded run"), "{pay}");
    let ask = fs::read_to_string(draft.join("ask.yaml")).unwrap();
    assert!(ask.contains("never called"), "{ask}");
}

#[test]
fn a_check_names_what_of_a_schema_nothing_checks() {
    let world = World::new();
    let folder = world.home.path().join("rules");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("pay.yaml"), "tool: pay\nside_effect: write\n").unwrap();
    let tools = r#"[{"name":"pay","input_schema":{"type":"object","properties":{"n":{"anyOf":[{"type":"integer"}]}}}},
        {"name":"look","input_schema":{}}]"#;
    fs::write(world.home.path().join("tools.json"), tools).unwrap();
    let report = world.json(&[
        "contracts",
        "check",
        "rules",
        "--tools",
        "tools.json",
        "--json",
    ]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(
        report["schemas"][0]["ignored"],
        json!(["anyOf"]),
        "{report}"
    );
    assert_eq!(report["schemas"][1]["has_contract"], false, "{report}");
    let said = world.ok(&["contracts", "check", "rules", "--tools", "tools.json"]);
    assert!(said.contains("warning[schema_keyword_ignored]"), "{said}");
    let wrong = r#"[{"name":"pay","input_schema":{"type":"objekt"}}]"#;
    fs::write(world.home.path().join("tools.json"), wrong).unwrap();
    let refused = world.run(&["contracts", "check", "rules", "--tools", "tools.json"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.stdout.contains("error[schema_invalid]"),
        "{refused:?}"
    );
}

#[test]
fn a_check_of_tools_refuses_what_a_session_would_not_take() {
    let world = World::new();
    let folder = world.home.path().join("rules");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("pay.yaml"), "tool: pay\nside_effect: write\n").unwrap();
    let check = |tools: &str| {
        fs::write(world.home.path().join("tools.json"), tools).unwrap();
        world.run(&["contracts", "check", "rules", "--tools", "tools.json"])
    };
    for (tools, code, said) in [
        (
            r#"[{"name":"pay","parameters":{},"input_schema":{"required":["q"]}}]"#,
            1,
            "two schemas",
        ),
        (
            r#"[{"name":"pay","parameters":{},"function":{"name":"pay","parameters":{"required":["q"]}}}]"#,
            1,
            "two schemas",
        ),
        (
            r#"[{"name":"pay","function":{"name":"look","parameters":{}}}]"#,
            1,
            "two names",
        ),
        (
            r#"[{"name":"pay","input_schema":{}},{"name":"pay","input_schema":{"required":["q"]}}]"#,
            1,
            "defined twice",
        ),
        (r#"[{"name":5}]"#, 1, "has no name"),
        (
            r#"[{"name":"pay","schema":{"type":"objekt"}}]"#,
            1,
            "schema_invalid",
        ),
        (
            r#"[{"name":"pay","input_schema":{"required":["q"],"required":[]}}]"#,
            2,
            "duplicate member name `required` at line 1",
        ),
        ("[]", 2, "does not define tools"),
        ("5", 2, "does not define tools"),
        (
            r#"[{"name":"pay"},{"type":"web_search"}]"#,
            0,
            "tool `web_search`: warning: it has no contract",
        ),
        (
            r#"[{"name":"look"}]"#,
            0,
            "tool `pay`: warning: it has a contract, but the file of tools",
        ),
    ] {
        let got = check(tools);
        assert_eq!(got.code, code, "{tools}: {got:?}");
        assert!(
            (got.stdout.clone() + &got.stderr).contains(said),
            "{tools}: {got:?}"
        );
    }
    // Contracts that do not compile have nothing to say about tools.
    fs::write(folder.join("pay.yaml"), "tool: pay\nside_effct: write\n").unwrap();
    let got = check(r#"[{"name":"pay"}]"#);
    assert_eq!(got.code, 1, "{got:?}");
    assert!(!got.stdout.contains("no contract"), "{got:?}");
}

#[test]
fn a_check_of_tools_looks_at_the_contracts_of_every_role() {
    let world = World::new();
    let folder = world.home.path().join("job");
    for (role, contract) in [
        (
            "desk",
            "tool: pay\nside_effect: write\nschema_derived: false\n",
        ),
        ("payer", "tool: pay\nside_effect: write\n"),
    ] {
        fs::create_dir_all(folder.join(role)).unwrap();
        fs::write(folder.join(role).join("pay.yaml"), contract).unwrap();
        let session = "schema_version: \"1.0\"\n";
        fs::write(folder.join(role).join("session.yaml"), session).unwrap();
    }
    let workflow = "schema_version: \"1.0\"\nworkflow: job\nroles:\n  - { name: desk, session_contract: desk/session.yaml }\n  \
                    - { name: payer, session_contract: payer/session.yaml }\nhandoffs: [ { from: desk, to: payer } ]\n";
    fs::write(folder.join("workflow.yaml"), workflow).unwrap();
    let tools = r#"[{"name":"pay","input_schema":{"type":"objekt"}}]"#;
    fs::write(world.home.path().join("tools.json"), tools).unwrap();
    let got = world.run(&["contracts", "check", "job", "--tools", "tools.json"]);
    assert_eq!(got.code, 1, "{got:?}");
    assert!(
        got.stdout
            .contains("role payer, tool `pay`: error[schema_invalid]"),
        "{got:?}"
    );
}

#[test]
fn approvals_show_every_call_that_one_decision_releases() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    let driven = Driven::open(&program, "several", json!({}));
    let asked = driven.propose(&[
        ("a", "ask", json!({"n": 1})),
        ("b", "ask", json!({"n": 1_000_000})),
        ("c", "ask", json!({"to": "somebody else"})),
    ]);
    assert_eq!(asked["status"], "pending_approval", "{asked}");
    let list = program.get("/api/v1/replay/approvals?status=pending");
    let request = list["data"][0]["id"].as_str().unwrap();
    let listed = world.ok(&["approvals", "list", "--all"]);
    assert!(listed.contains("ask (and 2 more) {\"n\":1}"), "{listed}");
    let shown = world.ok(&["approvals", "show", request]);
    for part in [
        "3 calls, decided together",
        "Call 1 of 3: ask",
        "Call 2 of 3: ask",
        "\"n\": 1000000",
        "Call 3 of 3: ask",
        "\"to\": \"somebody else\"",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    // What was looked at is all of them.
    let looked_at = json!([{"n": 1}, {"n": 1_000_000}, {"to": "somebody else"}]);
    let digest = canon::sha256(&canon::jcs(&looked_at)).to_string();
    assert!(shown.contains(&digest), "{digest} in {shown}");
}

#[test]
fn a_run_that_is_not_judged_is_named_with_the_reason() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    for (id, ends) in [("over", true), ("open", false)] {
        let driven = Driven::open(&program, id, json!({}));
        driven.call(id, "pay", json!({"n": 1}), "allowed");
        if ends {
            program.post(&format!("{SESSIONS}/{id}/restore"), json!({}));
        }
    }
    drop(server);
    let rules = world.home.path().join("rules");
    fs::create_dir(&rules).unwrap();
    for (file, text) in FILES {
        fs::write(rules.join(file), text).unwrap();
    }
    world.ok(&["log", "export", "out"]);
    let judged = || {
        let principal = world.home.path().join("principal.json");
        fs::write(&principal, r#"{"vip":false}"#).unwrap();
        world.run(&[
            "contracts",
            "backtest",
            "rules",
            "out",
            "--principal",
            "principal.json",
        ])
    };
    let open = judged();
    assert!(open.stderr.contains("(not ended yet)"), "{open:?}");
    // With a damaged line nobody can say that a run goes on.
    let events = world.home.path().join("out/events.jsonl");
    let text = fs::read_to_string(&events).unwrap();
    let end = text
        .lines()
        .position(|line| line.contains("task.completed"));
    let lines = text
        .lines()
        .enumerate()
        .map(|(number, line)| match Some(number) == end {
            true => "{\"damaged\"",
            false => line,
        });
    fs::write(&events, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let damaged = judged();
    assert!(damaged.stderr.contains("damaged"), "{damaged:?}");
    assert!(!damaged.stderr.contains("not ended yet"), "{damaged:?}");
}

#[test]
fn who_decided_is_shown_by_the_program_too() {
    let world = World::new();
    let server = world.serve();
    let program = Program::new(&world, &server);
    let driven = Driven::open(&program, "shown", json!({}));
    let asked = driven.call("a", "ask", json!({"n": 1}), "pending_approval");
    assert_eq!(driven.decide(&asked, "approve")["status"], "approved");
    let list = program.get("/api/v1/replay/approvals?status=decided");
    let request = list["data"][0]["id"].as_str().unwrap();
    let shown = world.ok(&["approvals", "show", request]);
    assert!(
        shown.contains("approver") && shown.contains("bea"),
        "{shown}"
    );
    let key = list["data"][0]["key_id"].as_str().unwrap();
    assert!(shown.contains(key), "{key} in {shown}");
    let task = list["data"][0]["task_id"].as_str().unwrap();
    let events = program.get(&format!("/v1/tasks/{task}/events?limit=200"));
    let mut events = events["data"].as_array().unwrap().iter();
    let decided = events.find(|event| event["payload"]["operation"] == "decide");
    let file = world.home.path().join("decided.json");
    fs::write(&file, decided.unwrap().to_string()).unwrap();
    let said = world.ok(&["contracts", "explain", "decided.json"]);
    assert!(said.contains("approved by approver"), "{said}");
    assert!(said.contains("signed \"bea\""), "{said}");
    let json = world.json(&["contracts", "explain", "decided.json", "--json"]);
    assert_eq!(json["decided"]["actor"], "approver", "{json}");
}
