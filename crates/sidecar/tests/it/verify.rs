//! The verify algorithm against the vectors, over files in memory.

use std::collections::BTreeMap;

use canon::{Digest, Value};
use serde_json::json;
use sidecar::{
    AgentFiles, Content, FileError, Files, Verification, VerifyOptions, read_sidecar, sidecar_hash,
    tree_hash, verify,
};

use crate::vectors::{Vector, group};

#[derive(Default)]
struct Memory(BTreeMap<String, Vec<u8>>);

impl Memory {
    fn with(mut self, path: &str, text: &str) -> Self {
        self.0.insert(path.to_owned(), text.as_bytes().to_vec());
        self
    }
}

impl Files for Memory {
    fn read(&self, path: &str, keep_bytes_max: u64) -> Result<Content, FileError> {
        let bytes = self.0.get(path).ok_or(FileError::Missing)?;
        let len = bytes.len() as u64;
        Ok(Content {
            digest: canon::sha256(bytes),
            len,
            bytes: (len <= keep_bytes_max).then(|| bytes.clone()),
        })
    }

    fn is_file(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    fn tree(&self, path: &str) -> Result<Vec<(String, Digest)>, FileError> {
        let prefix = format!("{path}/");
        Ok(self
            .0
            .iter()
            .filter_map(|(name, bytes)| {
                let name = name.strip_prefix(&prefix)?;
                Some((name.to_owned(), canon::sha256(bytes)))
            })
            .collect())
    }

    fn relative(&self, _: &str) -> Option<String> {
        None
    }
}

const NO_AGENT: AgentFiles = AgentFiles {
    config: None,
    tools: Vec::new(),
    policy: None,
};

const INPUTS: VerifyOptions = VerifyOptions {
    outputs: false,
    before_run: false,
    agent: NO_AGENT,
};

const ALL: VerifyOptions = VerifyOptions {
    outputs: true,
    before_run: false,
    agent: NO_AGENT,
};

const ALL_BEFORE: VerifyOptions = VerifyOptions {
    outputs: true,
    before_run: true,
    agent: NO_AGENT,
};

fn memory(vector: &Vector) -> Memory {
    vector.body["files"]
        .as_object()
        .unwrap()
        .iter()
        .fold(Memory::default(), |memory, (path, text)| {
            memory.with(path, text.as_str().unwrap())
        })
}

/// RB-VER-05, RB-VER-06, RB-VSN-03; the program itself runs these vectors on real directories.
#[test]
fn all_25_verify_vectors_agree() {
    let vectors = group("verify");
    assert_eq!(vectors.len(), 25);
    for vector in &vectors {
        let (id, expect) = (&vector.id, &vector.body["expect"]);
        let files = memory(vector);
        let Some(bytes) = files.0.get("docs/report.replay.json") else {
            assert_eq!(expect["error"], "sidecar_not_found", "{id}");
            continue;
        };
        let strict = vector.body["flags"] == json!(["--strict"]);
        match read_sidecar(bytes, strict) {
            Err(error) => assert_eq!(error.code(), expect["error"], "{id}"),
            Ok(read) => {
                let outcome = verify(&read, &files, &INPUTS);
                assert_eq!(outcome.clean(), expect["exit"] == 0, "{id}");
                let warnings = expect.get("warnings").cloned().unwrap_or(json!([]));
                assert_eq!(json!(outcome.warnings), warnings, "{id}");
                assert_eq!(brief_form(&outcome), expect["checks"], "{id}");
            }
        }
    }
}

/// The members that the vectors name.
fn brief_form(outcome: &Verification) -> Value {
    let mut checks = serde_json::to_value(&outcome.checks).unwrap();
    for check in checks.as_array_mut().unwrap() {
        let check = check.as_object_mut().unwrap();
        for name in ["path", "expected", "detail"] {
            check.remove(name);
        }
    }
    checks
}

#[test]
fn all_8_dual_path_vectors_agree() {
    let vectors = group("brief-dual-path");
    assert_eq!(vectors.len(), 8);
    let mut document = group("sidecar-schema")[0].body["document"].clone();
    for vector in &vectors {
        document["brief"] = json!({"path": "brief", "hash": vector.body["recorded"]});
        let mut files = Memory::default();
        files.0.insert("brief".to_owned(), vector.input());
        let read = read_sidecar(document.to_string().as_bytes(), true).unwrap();
        let checks = serde_json::to_value(verify(&read, &files, &INPUTS).checks).unwrap();
        let expect = &vector.body["expect"];
        assert_eq!(checks[1]["result"], expect["result"], "{}", vector.id);
        assert_eq!(checks[1]["matched"], expect["matched"], "{}", vector.id);
        if expect["result"] == "FAIL" {
            assert_eq!(checks[1]["actual"], expect["actual"], "{}", vector.id);
        }
    }
}

/// RB-CAN-10: a construct without lossless form is named, never hashed.
#[test]
fn a_lossy_token_is_an_unsupported_construct() {
    let document = &group("sidecar-schema")[0].body["document"];
    let read = read_sidecar(document.to_string().as_bytes(), true).unwrap();
    for (token, reason) in [
        ("%YAML 1.1\n---\na: yes\n", "unsupported_construct"),
        ("__proto__: 1\n", "unsupported_construct"),
        ("a: 1\na: 2\n", "parse_error"),
    ] {
        let files = Memory::default().with("tokens/demo.yml", token);
        let checks = serde_json::to_value(verify(&read, &files, &INPUTS).checks).unwrap();
        assert_eq!(checks[0]["reason"], reason);
        assert_eq!(checks[0]["actual"], json!(null));
    }
    let mut files = Memory::default();
    files
        .0
        .insert("tokens/demo.yml".to_owned(), vec![b' '; 5 << 20]);
    let checks = serde_json::to_value(verify(&read, &files, &INPUTS).checks).unwrap();
    assert_eq!(checks[0]["reason"], "too_large");
}

/// Section 10.2: one line per input, outputs only when asked, unstable outputs as notes.
#[test]
fn general_sidecars_check_each_artifact_by_its_mode() {
    let files = Memory::default()
        .with("p.md", "# P\n")
        .with("c.yml", "b: 2\na: 1\n")
        .with("d/x", "1")
        .with("d/y/z", "2")
        .with("out.txt", "now")
        .with("report.md", "# R\n")
        .with("t.jsonl", "{}\n")
        .with(
            "parent.replay.json",
            "{ \"b\": 1, \"a\": 2, \"signature\": {} }",
        );
    let hash = |text: &str| canon::sha256(text.as_bytes()).to_string();
    let tree = tree_hash(&files.tree("d").unwrap()).to_string();
    let parent = sidecar_hash(&json!({"a": 2, "b": 1})).to_string();
    let artifact = |path: &str, hash: &str, mode: &str, stable: bool| json!({"role": "x", "path": path, "hash": hash, "mode": mode, "stable": stable});
    let mut document = json!({
        "schema_version": 1, "kind": "agent-run",
        "tool": {"name": "t", "version": "1", "commit": null, "dirty": null},
        "platform": "p", "invoked_at": "2026-01-02T03:04:05Z", "argv": ["a"],
        "inputs": [
            artifact("p.md", &hash("# P\n"), "raw-bytes", false),
            artifact("c.yml", &hash(r#"{"a":1,"b":2}"#), "canonical-json", false),
            artifact("d", &tree, "tree", false),
        ],
        "outputs": [
            artifact("out.txt", &hash("now"), "raw-bytes", true),
            artifact("out.txt", &hash("then"), "raw-bytes", false),
        ],
        "report": artifact("report.md", &hash("# R\n"), "raw-bytes", false),
        "trace": {"path": "t.jsonl", "hash": hash("{}\n")},
        "parent": {"path": "parent.replay.json", "hash": parent},
    });
    let run = |document: &Value, options: &VerifyOptions| {
        let read = read_sidecar(document.to_string().as_bytes(), true).unwrap();
        let outcome = verify(&read, &files, options);
        let lines: Vec<String> = outcome
            .checks
            .iter()
            .map(|check| format!("{:?} {}", check.result, check.field))
            .collect();
        (outcome.clean(), lines.join(", "))
    };
    assert_eq!(
        run(&document, &INPUTS),
        (
            true,
            "Ok inputs/0, Ok inputs/1, Ok inputs/2, Ok trace, Ok parent".to_owned()
        )
    );
    assert_eq!(
        run(&document, &ALL).1,
        "Ok inputs/0, Ok inputs/1, Ok inputs/2, Ok trace, Ok parent, Ok outputs/0, Note outputs/1, Ok report, Note block"
    );
    assert!(run(&document, &ALL).0);
    assert_eq!(
        run(&document, &ALL_BEFORE),
        (true, "Ok inputs/0, Ok inputs/1, Ok inputs/2, Note trace, Ok parent, Note outputs/0, Note outputs/1, Note report, Note block".to_owned())
    );
    document["outputs"][1]["stable"] = json!(true);
    document["inputs"][1]["hash"] = json!(hash("x"));
    document["parent"]["path"] = json!("gone.replay.json");
    assert_eq!(
        run(&document, &ALL),
        (false, "Ok inputs/0, Fail inputs/1, Ok inputs/2, Ok trace, Ok outputs/0, Fail outputs/1, Ok report, Note block".to_owned())
    );
}

/// Section 10.2: what defines the agent is compared with the files named, and fails when it was not recorded.
#[test]
fn agents_are_compared_by_what_defines_them() {
    let hash = |text: &str| canon::sha256(text.as_bytes()).to_string();
    let mut document = json!({
        "schema_version": 1, "kind": "agent-run",
        "tool": {"name": "t", "version": "1", "commit": null, "dirty": null},
        "platform": "p", "invoked_at": "2026-01-02T03:04:05Z", "argv": ["a"], "inputs": [],
        "agent": {
            "name": "demo", "config_hash": hash(r#"{"a":1}"#), "policy_hash": hash("permit;"),
            "tools": [
                {"name": "read", "schema_hash": hash("{}")},
                {"name": "write", "schema_hash": hash(r#"{"type":"object"}"#)},
            ],
        },
        "trace": {"hash": hash("x")},
    });
    let content = |text: &str| Content {
        digest: canon::sha256(text.as_bytes()),
        len: text.len() as u64,
        bytes: Some(text.as_bytes().to_vec()),
    };
    let tool = |name: &str, text: &str| (name.to_owned(), content(text));
    let options = VerifyOptions {
        agent: AgentFiles {
            config: Some(content("a: 1 # one")),
            tools: vec![
                tool("write", "type: object"),
                tool("read", "{ }"),
                tool("run", "{}"),
            ],
            policy: Some(content("permit;")),
        },
        ..INPUTS
    };
    let run = |document: &Value| {
        let read = read_sidecar(document.to_string().as_bytes(), true).unwrap();
        let checks = verify(&read, &Memory::default(), &options).checks;
        let line = |check: &sidecar::Check| {
            let reason = check.reason.map_or("", |reason| reason.name());
            format!("{:?} {} {reason}", check.result, check.field)
        };
        checks.iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(
        run(&document),
        [
            "Note trace not_checked",
            "Ok agent ",
            "Ok agent/tools/1 ",
            "Ok agent/tools/0 ",
            "Fail agent/tools not_recorded",
            "Ok agent/policy ",
        ]
    );
    document["agent"]["policy_hash"] = json!(hash("forbid;"));
    document["agent"]["tools"][0]["schema_hash"] = json!(hash("[]"));
    let lines = run(&document);
    assert_eq!(lines[3], "Fail agent/tools/0 hash_mismatch");
    assert_eq!(lines[5], "Fail agent/policy hash_mismatch");
    document.as_object_mut().unwrap().remove("agent");
    let lines = run(&document);
    assert!(
        lines[1..].iter().all(|line| line.ends_with("not_recorded")),
        "{lines:?}"
    );
}
