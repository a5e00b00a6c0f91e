//! What compiles, what does not, and that everything wrong is found at once with its place.

use std::fmt::Write as _;
use std::sync::Arc;

use contracts::{Condition, Options, Rules, Source, compile};

use crate::support::{desk_files, desk_options, file, source};

fn found(contracts: &[(&str, &str)], session: &str) -> Vec<String> {
    let contracts: Vec<Source> = contracts
        .iter()
        .map(|(name, text)| source(name, text))
        .collect();
    let session = (!session.is_empty()).then(|| source("session", session));
    match compile(&contracts, session.as_ref()) {
        Ok(compiled) => compiled
            .warnings()
            .iter()
            .map(ToString::to_string)
            .collect(),
        Err(error) => error.findings().iter().map(ToString::to_string).collect(),
    }
}

const V: &str = "schema_version: \"1.0\"\n";

#[test]
fn two_lines_are_a_contract() {
    assert!(found(&[("a", "tool: a\nside_effect: read\n")], "").is_empty());
}

#[test]
fn everything_wrong_is_found_at_once_with_line_and_column() {
    let text = "tool: b\nside_effct: read\ngate: maybe\ntimeouts: { total_ms: 0 }\n\
                argument_value_invariants:\n  - { path: \"amount\", gte: 1 }\n  - { path: \"$.a\" }\n  \
                - { path: \"$.a\", gte: 5, lte: 1 }\n  - { path: \"$.a\", regex: \"(\" }\n  - { path: \"$.a\", one_of: [] }\n\
                schema_derived: \"yes\"\ntool: c\n";
    let findings = found(&[("a", text)], "schema_version: 1.0\nmax_steps: 3\n");
    let expected = [
        "a.yaml:1:1: error[missing_key]: key `side_effect` is missing",
        "a.yaml:1:7: error[contradiction]: the file is named `a.yaml` and its tool `b`: they must be the same",
        "a.yaml:2:1: error[unknown_key]: unknown key `side_effct`: did you mean `side_effect`?",
        "a.yaml:3:7: error[bad_value]: `maybe` is not one of `allow`, `block`",
        "a.yaml:4:23: error[bad_value]: expected an integer from 1 to 3600000, found `0`",
        "a.yaml:6:13: error[bad_value]: `amount` is not a path: it does not start with `$`",
        "a.yaml:7:5: error[missing_key]: an invariant needs an operator beside `path`",
        "a.yaml:8:5: error[contradiction]: `gte` is above `lte`: nothing satisfies it",
        "a.yaml:9:27: error[bad_value]: `(`: the pattern does not compile: error: unclosed group",
        "a.yaml:10:28: error[contradiction]: `one_of` is empty: nothing satisfies it",
        "a.yaml:11:17: error[wrong_type]: expected true or false, found a text",
        "a.yaml:12:1: error[duplicate_key]: key `tool` occurs twice",
        "session.yaml:1:17: error[bad_value]: the only schema version is \"1.0\", in quotes",
        "session.yaml:2:1: error[unknown_key]: unknown key `max_steps`: known are `schema_version`, `agent`, `phases`, \
         `transitions`, `session_limits`, `risk_defaults`, `policy`, `provider_constraints`, `aggregates`, `envelopes`, \
         `label_gates`",
    ];
    assert_eq!(findings, expected);
}

#[test]
fn what_one_file_hides_is_found_in_the_others() {
    let pay = "tool: pay\nside_effect: writ\npreconditions: [ { requires_prior_tool: nope } ]\n\
               argument_value_invariants: [ { path: \"$.x\", ref: gone } ]\n";
    let session = format!(
        "{V}phases:\n  - {{ name: a, initial: true }}\n  - {{ name: b, initial: true }}\ntransitions: {{ a: [zz] }}\n"
    );
    assert_eq!(
        found(&[("pay", pay)], &session),
        [
            "pay.yaml:2:14: error[bad_value]: `writ` is not one of `read`, `write`, `destructive`, `admin`, `financial`",
            "pay.yaml:3:41: error[unknown_name]: tool `nope` has no contract",
            "pay.yaml:4:30: error[unknown_name]: slot `gone` is bound by no contract",
            "session.yaml:3:3: error[bad_value]: at least one phase is `terminal`",
            "session.yaml:3:3: error[bad_value]: exactly one phase is `initial`, found 2",
            "session.yaml:5:20: error[unknown_name]: phase `zz` is declared nowhere",
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_not_blamed_on_others() {
    let note = "tool: note\nside_effect: read\npreconditions: [ { requires_prior_tool: pay } ]\n\
                argument_value_invariants: [ { path: \"$.x\", ref: order } ]\ntransitions: { advances_to: b }\n";
    assert_eq!(
        found(
            &[("note", note), ("pay", "tool: pay\n  side_effect: read\n")],
            "schema_version: \"1.0\"\nphases: [\n"
        ),
        [
            "pay.yaml:2:14: error[syntax]: mapping values are not allowed in this context",
            "session.yaml:3:1: error[syntax]: while parsing a node, did not find expected node content",
        ]
    );
}

fn phases(list: &str, transitions: &str) -> Vec<String> {
    found(
        &[],
        &format!("{V}phases: {list}\ntransitions: {transitions}\n"),
    )
}

#[test]
fn r37_cycles_are_legal_unless_nothing_leads_out() {
    let list = "[{name: a, initial: true}, {name: b}, {name: c, terminal: true}]";
    assert!(phases(list, "{a: [b], b: [a, c]}").is_empty());
    let circular = phases(list, "{a: [b, c], b: [b]}");
    assert!(
        circular[0].contains("circular transitions: phase `b`"),
        "{circular:?}"
    );
    let dead = phases(list, "{a: [b, c]}");
    assert!(dead[0].contains("error[dead_end]"), "{dead:?}");
    let unreachable = phases(list, "{a: [c], b: [c]}");
    assert!(
        unreachable[0].contains("error[unreachable_phase]: no transition leads to phase `b`"),
        "{unreachable:?}"
    );
    let unknown = phases(list, "{a: [b, d], b: [c]}");
    assert!(
        unknown[0].contains("phase `d` is declared nowhere"),
        "{unknown:?}"
    );
    let terminal = phases(list, "{a: [b], b: [c], c: [a]}");
    assert!(
        terminal[0].contains("is terminal and has successors"),
        "{terminal:?}"
    );
    let two = phases(
        "[{name: a, initial: true}, {name: b, initial: true, terminal: true}]",
        "{a: [b]}",
    );
    assert!(
        two[0].contains("exactly one phase is `initial`, found 2"),
        "{two:?}"
    );
    let none = phases("[{name: a, initial: true}]", "{}");
    assert!(
        none[0].contains("at least one phase is `terminal`"),
        "{none:?}"
    );
    let map = phases("{a: {initial: true}}", "{}");
    assert!(map[0].contains("expected a list, found a map"), "{map:?}");
}

#[test]
fn r34_labels_need_no_declaration_but_phases_tools_and_slots_do() {
    let session = format!("{V}label_gates: [{{ label: anything, block_tools: [a] }}]\n");
    assert!(found(&[("a", "tool: a\nside_effect: read")], &session).is_empty());
    let contract = "tool: a\nside_effect: read\ntransitions: { valid_in_phases: [x] }\n\
                    preconditions: [{ requires_prior_tool: b }]\nforbids_after: [c]\n\
                    argument_value_invariants: [{ path: \"$.x\", ref: s }]";
    let findings = found(&[("a", contract)], "").join("\n");
    for part in [
        "the session file has no phases",
        "tool `b` has no contract",
        "tool `c` has no contract",
        "slot `s` is bound by no contract",
    ] {
        assert!(findings.contains(part), "{findings}");
    }
    let session = format!(
        "{V}session_limits: {{ max_calls_per_tool: {{ b: 1 }} }}\naggregates: [{{ name: g, metric: count, tools: [d], lte: 1 }}]"
    );
    let findings = found(&[("a", "tool: a\nside_effect: read")], &session).join("\n");
    assert!(
        findings.contains("tool `b` has no contract")
            && findings.contains("tool `d` has no contract"),
        "{findings}"
    );
}

#[test]
fn evidence_that_proves_nothing_is_refused_for_high_risk() {
    for (text, wrong) in [
        (
            "tool: a\nside_effect: financial\nevidence_class: ack_only",
            true,
        ),
        (
            "tool: a\nside_effect: admin\nevidence_class: unverifiable\ncommit_requirement: none",
            true,
        ),
        (
            "tool: a\nside_effect: write\nevidence_class: unverifiable",
            true,
        ),
        (
            "tool: a\nside_effect: write\nevidence_class: unverifiable\ncommit_requirement: none",
            false,
        ),
        (
            "tool: a\nside_effect: write\nevidence_class: ack_only",
            false,
        ),
        (
            "tool: a\nside_effect: write\nretries: { max_attempts: 2 }",
            true,
        ),
        (
            "tool: a\nside_effect: read\nretries: { max_attempts: 2 }",
            false,
        ),
    ] {
        assert_eq!(!found(&[("a", text)], "").is_empty(), wrong, "{text}");
    }
}

#[test]
fn tools_that_can_never_be_called_are_warned_about() {
    let session =
        format!("{V}risk_defaults: {{}}\nsession_limits: {{ max_calls_per_tool: {{ c: 0 }} }}");
    let files = [
        ("a", "tool: a\nside_effect: write"),
        (
            "b",
            "tool: b\nside_effect: read\npreconditions: [{ requires_prior_tool: a }]",
        ),
        ("c", "tool: c\nside_effect: read"),
        (
            "d",
            "tool: d\nside_effect: read\npreconditions: [{ requires_prior_tool: d }]",
        ),
        ("e", "tool: e\nside_effect: read"),
    ];
    assert_eq!(
        found(&files, &session),
        [
            "a.yaml:1:7: warning[never_callable]: tool `a` can never be called: its risk gate is `block`",
            "b.yaml:1:7: warning[never_callable]: tool `b` can never be called: it needs `a`, which can never be called",
            "c.yaml:1:7: warning[never_callable]: tool `c` can never be called: `max_calls_per_tool` is 0",
            "d.yaml:1:7: warning[never_callable]: tool `d` can never be called: it needs an earlier call of itself",
        ]
    );
}

#[test]
fn the_digest_is_that_of_the_meaning() {
    let digest = |contract: &str, session: &str| {
        let session = (!session.is_empty()).then(|| source("session", session));
        compile(&[source("a", contract)], session.as_ref())
            .unwrap()
            .digest()
    };
    let plain = digest("tool: a\nside_effect: read\n", "");
    assert_eq!(plain, digest("# why\nside_effect: \"read\"\ntool: a\n", ""));
    assert_ne!(plain, digest("tool: a\nside_effect: write\n", ""));
    assert_ne!(plain, digest("tool: a\nside_effect: read\n", V));
    let number = |text: &str| {
        digest(
            &format!(
                "tool: a\nside_effect: read\nargument_value_invariants: [{{ path: \"$.a\", equals: {text} }}]"
            ),
            "",
        )
    };
    assert_eq!(number("1"), number("1.0"));
    assert_ne!(number("1"), number("\"1\""));
}

#[test]
fn r35_sizes_of_files_and_lists() {
    let contract = |count: usize| {
        let mut text = "tool: a\nside_effect: read\nargument_value_invariants:\n".to_owned();
        for _ in 0..count {
            text.push_str("  - { path: \"$.a\", exists: true }\n");
        }
        text
    };
    assert!(found(&[("a", &contract(256))], "").is_empty());
    assert!(found(&[("a", &contract(257))], "")[0].contains("too_large"));
    let long = "x".repeat(129);
    assert!(
        found(&[(&long, &format!("tool: {long}\nside_effect: read"))], "")[0]
            .contains("1 to 128 bytes")
    );
    let pattern = "a".repeat(1_001);
    let regex = format!(
        "tool: a\nside_effect: read\nargument_value_invariants: [{{ path: \"$.a\", regex: \"{pattern}\" }}]"
    );
    assert!(found(&[("a", &regex)], "")[0].contains("at most 1,000 characters"));
    let bomb = regex.replace(&pattern, "((a{100}){100}){100}");
    assert!(found(&[("a", &bomb)], "")[0].contains("too large together"));
    let sources: Vec<Source> = (0..1_001)
        .map(|number| {
            source(
                &format!("t{number}"),
                &format!("tool: t{number}\nside_effect: read"),
            )
        })
        .collect();
    assert!(compile(&sources, None).is_err());
    assert!(compile(&sources[..1_000], None).is_ok());
    let mut list = "[{name: p0, initial: true}".to_owned();
    for number in 1..257 {
        let _ = write!(list, ", {{name: p{number}}}");
    }
    assert!(
        phases(&format!("{list}]"), "{}")
            .iter()
            .any(|finding| finding.contains("too_large"))
    );
}

fn condition(change: impl FnOnce(&mut Options)) -> Condition {
    let compiled = compile(&desk_files(), Some(&file("session"))).unwrap();
    let mut options = desk_options();
    change(&mut options);
    Rules::new(Arc::new(compiled), options)
        .unwrap_err()
        .condition()
}

#[test]
fn r4_options_are_checked_at_start_with_their_condition() {
    assert_eq!(
        condition(|options| options.principal = None),
        Condition::PolicyWithoutPrincipal
    );
    assert_eq!(
        condition(|options| options.executors = contracts::Executors::Named(Default::default())),
        Condition::ConstraintsWithoutWrapper
    );
    assert_eq!(
        condition(|options| options.answers_checkpoints = false),
        Condition::CheckpointWithoutHandler
    );
    for change in [
        (|options: &mut Options| options.retries_max = 6) as fn(&mut Options),
        |options| options.unguarded_calls_max = 0,
        |options| options.session_id = "a b".to_owned(),
        |options| options.session_id = String::new(),
        |options| options.labels = vec!["bad label".to_owned()],
        |options| options.labels = (0..65).map(|number| format!("l{number}")).collect(),
        |options| options.agent = Some("somebody".to_owned()),
        |options| options.principal = Some("x".repeat(70_000).into()),
    ] {
        assert_eq!(condition(change), Condition::InvalidOption);
    }
    let compiled = Arc::new(compile(&desk_files(), Some(&file("session"))).unwrap());
    let mut options = desk_options();
    options.retries_max = 9;
    options.labels = vec!["a b".to_owned(), "c d".to_owned()];
    assert_eq!(
        Rules::new(compiled, options).unwrap_err().findings().len(),
        3
    );
}

#[test]
fn a_null_principal_is_a_principal() {
    let compiled = Arc::new(compile(&desk_files(), Some(&file("session"))).unwrap());
    let mut options = desk_options();
    options.principal = Some(contracts::Value::Null);
    assert!(Rules::new(compiled, options).is_ok());
}

/// Files as an editor reads them.
fn as_json(text: &str) -> serde_json::Value {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false, };
    serde_saphyr::from_str_with_options(text, options).unwrap()
}

#[test]
fn the_schemas_accept_what_compiles_and_refuse_typing_errors() {
    let schema = |text: &str| {
        let schema: serde_json::Value = serde_json::from_str(text).unwrap();
        jsonschema::validator_for(&schema).unwrap()
    };
    let contract = schema(contracts::CONTRACT_SCHEMA);
    for file in desk_files() {
        let json = as_json(&file.text);
        assert!(
            contract.is_valid(&json),
            "{} {:?}",
            file.file,
            contract.validate(&json).err()
        );
    }
    let session = schema(contracts::SESSION_SCHEMA);
    let mut json = as_json(&file("session").text);
    assert!(
        session.is_valid(&json),
        "{:?}",
        session.validate(&json).err()
    );
    json["max_steps"] = 3.into();
    assert!(!session.is_valid(&json));
    for bad in [
        r#"{"tool":"a"}"#,
        r#"{"tool":"a","side_effect":"reads"}"#,
        r#"{"tool":"a","side_effect":"read","sideEffect":1}"#,
        r#"{"tool":"a","side_effect":"read","argument_value_invariants":[{"path":"$.a"}]}"#,
        r#"{"tool":"a","side_effect":"read","policy":{"rules":[{"id":"x","effect":"allow","when":[{"path":"$.a","ref":"s"}]}]}}"#,
    ] {
        assert!(
            !contract.is_valid(&serde_json::from_str(bad).unwrap()),
            "{bad}"
        );
        let text = serde_json::from_str::<serde_json::Value>(bad)
            .unwrap()
            .to_string();
        assert!(!found(&[("a", &text)], "").is_empty(), "{bad}");
    }
}

#[test]
fn the_schemas_know_exactly_the_keys_that_the_reader_knows() {
    for (schema, text, is_session) in [
        (contracts::CONTRACT_SCHEMA, "zzz: 1\n", false),
        (contracts::SESSION_SCHEMA, "zzz: 1\n", true),
    ] {
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let findings = if is_session {
            found(&[], text)
        } else {
            found(&[("a", text)], "")
        };
        let unknown = findings
            .iter()
            .find(|finding| finding.contains("unknown key"))
            .unwrap();
        let (_, known) = unknown.split_once("known are ").unwrap();
        let known: std::collections::BTreeSet<&str> = known
            .split(", ")
            .map(|name| name.trim_matches('`'))
            .collect();
        let listed = schema["properties"].as_object().unwrap();
        let listed: std::collections::BTreeSet<&str> = listed.keys().map(String::as_str).collect();
        assert_eq!(known, listed);
    }
}

#[test]
fn an_absent_attribute_never_grants() {
    let rule = |effect: &str, entry: &str| {
        let text = format!(
            "tool: a\nside_effect: read\npolicy:\n  rules:\n    - {{ id: r, effect: {effect}, when: [ {entry} ] }}"
        );
        compile(&[source("a", &text)], None)
    };
    let lenient = "{ path: $.role, one_of: [desk], when_present: true }";
    let error = rule("allow", lenient).unwrap_err();
    assert!(
        error.findings()[0].message.contains("when_present"),
        "{error:?}"
    );
    // The careful side may be lenient: it denies more.
    assert!(rule("deny", lenient).is_ok());
    assert!(rule("allow", "{ path: $.role, exists: false }").is_ok());
}
