//! Values of secrets do not come back, whoever holds them and however they are spelt (AP-PRIV-02, AP-PRIV-04).

use canon::sha256;
use runs::workflow::{EffectKind, EffectOutcome};
use serde_json::{Value, json};

use crate::fixture::{
    Fake, Reply, ask, events, hello, outside, outside_with, perform, perform_with_secrets, python,
    vault,
};

/// Set for every test by whoever runs it, and like no other text.
const VARIABLE: &str = "CARGO_MANIFEST_DIR";
const VALUE: &str = env!("CARGO_MANIFEST_DIR");

fn provider(url: &str) -> String {
    format!(
        "[[providers]]\nid = \"main\"\nkind = \"openai\"\nbase_url = \"{url}/v1/\"\nmodel = \"m\"\n\
         api_key = {{ env = \"{VARIABLE}\" }}\n"
    )
}

/// A provider that repeats its key is heard once, and not even then with the key.
#[tokio::test]
async fn ap_priv_02_a_key_of_the_environment_does_not_come_back() {
    let whole = json!({"id": VALUE, "model": VALUE, "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": format!("your key is {VALUE}")}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}});
    let half = VALUE.len() / 2;
    let piece = |text: &str| json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]});
    let stream = events(&[
        piece("your key is "),
        piece(&VALUE[..half]),
        piece(&VALUE[half..]),
    ]) + "data: [DONE]\n\n";
    let refusal = json!({"error": {"message": format!("no such key {VALUE}")}}).to_string();
    for reply in [
        Reply::Whole(
            200,
            vec![("content-type", "application/json")],
            whole.to_string(),
        ),
        Reply::Stream(vec![stream]),
        Reply::Whole(401, Vec::new(), refusal),
    ] {
        let fake = Fake::start([reply]).await;
        let (performed, shown) = ask(&outside(&provider(&fake.url)), hello()).await;
        let seen = fake.seen()[0].headers["authorization"].clone();
        assert_eq!(seen.to_str().unwrap(), format!("Bearer {VALUE}"));
        let all = format!("{performed:?} {}", shown.concat());
        assert!(!all.contains(VALUE), "{all}");
        assert!(
            all.contains(&format!("[redacted:secret:{VARIABLE}]")),
            "{all}"
        );
    }
}

/// It is hidden before anybody has used it, and from those who should not know it.
#[tokio::test]
async fn ap_priv_02_a_key_of_the_environment_is_hidden_from_the_start() {
    let tool = format!(
        "host_env = [\"{VARIABLE}\"]\n\
         [[tools]]\nname = \"say\"\nargv = [\"sh\", \"-c\", \"echo $0\", \"{VALUE}\"]\n"
    );
    let bearer = format!(
        "[[mcp_servers]]\nid = \"web\"\nurl = \"http://127.0.0.1:9/mcp\"\nbearer = {{ env = \"{VARIABLE}\" }}\n"
    );
    for keys in [provider("http://127.0.0.1:9"), bearer] {
        let outside = outside(&format!("{tool}{keys}"));
        let marker = format!("[redacted:secret:{VARIABLE}]");
        let said = perform(&outside, EffectKind::LocalTool, json!({"tool": "say"})).await;
        assert_eq!(said.value["stdout"], format!("{marker}\n"));
        let request = json!({"capability": "env", "name": VARIABLE});
        let fact = perform(&outside, EffectKind::Host, request).await;
        assert_eq!(fact.value["value"], marker);
    }
}

/// Runs a Python program that knows a secret.
async fn run(secret: &str, more: &str, program: &str) -> EffectOutcome {
    let (_folder, vault) = vault(&[("token", secret)]);
    let text = format!(
        "[[tools]]\nname = \"run\"\nargv = [\"{}\", \"-c\", \"{{program}}\"]\n\
         secrets = {{ TOKEN = \"token\" }}\n{more}\n\
         [tools.parameters]\ntype = \"object\"\n[tools.parameters.properties]\nprogram = {{ type = \"string\" }}\n",
        python()
    );
    let outside = outside_with(&text, &vault);
    let program = format!(
        "import base64, json, os, sys, urllib.parse as u\nt = os.environ['TOKEN']\n{program}"
    );
    let request = json!({"tool": "run", "arguments": {"program": program}});
    perform_with_secrets(&outside, EffectKind::LocalTool, request, &["token"]).await
}

#[tokio::test]
async fn ap_priv_02_other_spellings_of_a_value_are_hidden() {
    let secret = "pl\u{e9}nted/canary value \u{1f511}+(x)~1";
    for spelling in [
        "u.quote(t)",
        "u.quote(t, safe='')",
        "u.quote_plus(t)",
        "u.quote(t, safe=\"!'()*\")",
        "u.quote(t, safe=\";,/?:@&=+$!'()*#\")",
        "u.quote(t).lower()",
        "json.dumps(t)",
        "json.dumps(t, ensure_ascii=False)",
        "json.dumps(t).replace('/', '\\\\/')",
        "json.dumps(t).replace('\\\\u00e9', '\\\\u00E9').replace('\\\\ud83d\\\\udd11', '\\\\uD83D\\\\uDD11')",
        "base64.b64encode(t.encode()).decode()",
    ] {
        let performed = run(secret, "", &format!("print('<' + {spelling} + '>')")).await;
        assert!(performed.ok, "{performed:?}");
        let said = performed.value["stdout"].as_str().unwrap();
        assert_eq!(
            said.replace('"', "").trim(),
            "<[redacted:secret:token]>",
            "{spelling}"
        );
    }
}

#[tokio::test]
async fn ap_priv_02_the_lines_of_a_long_value_are_hidden_one_by_one() {
    let secret = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7VJTU\n  t9Us8cKjMzEfYyjiW==\n-----END KEY-----\n";
    let program = "for n, line in enumerate(t.splitlines()): print(n, '>', line)\nprint('yes')";
    let performed = run(secret, "", program).await;
    let marker = "[redacted:secret:token]";
    assert_eq!(
        performed.value["stdout"],
        // What every key begins and ends with is no secret.
        format!(
            "0 > -----BEGIN KEY-----\n1 > {marker}\n2 > {marker}\n3 >   {marker}\n4 > -----END KEY-----\nyes\n"
        )
    );
    // Cut in the middle of a line.
    let performed = run(
        secret,
        "output_bytes_max = 12",
        "print('key:', t.splitlines()[2])",
    )
    .await;
    assert_eq!(performed.value["stdout"], "key: ");
    // A short line could be anything.
    let performed = run("yes\nno\nplanted-canary-value", "", "print('yes or no')").await;
    assert_eq!(performed.value["stdout"], "yes or no\n");
}

/// AP-PRIV-04: a file that holds a secret and nothing else is told without a digest.
#[tokio::test]
async fn ap_priv_04_the_digest_of_a_file_that_is_a_secret_is_not_told() {
    const SECRET: &str = "1234-5678";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("old"), SECRET).unwrap();
    std::fs::write(folder.path().join("gone"), format!("{SECRET}\r\n")).unwrap();
    let performed = run(
        SECRET,
        &format!("folder = \"{}\"", folder.path().display()),
        "w = lambda name, text: open(name, 'w').write(text)\n\
         w('bare', t)\nw('line', t + '\\n')\nw('coded', base64.b64encode(t.encode()).decode())\n\
         w('old', 'more ' + t)\nos.remove('gone')\nos.symlink(t, 'link')\nw(t + '.txt', 'plain')",
    )
    .await;
    let observed = performed.observed.unwrap();
    let more = Some(sha256(format!("more {SECRET}").as_bytes()));
    let plain = Some(sha256(b"plain"));
    let told: Vec<_> = observed
        .fs_writes
        .iter()
        .map(|change| {
            let (path, operation) = (change.path.as_str(), change.operation.as_str());
            (path, operation, change.before_sha256, change.after_sha256)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("[redacted:secret:token].txt", "create", None, plain),
            ("bare", "create", None, None),
            ("coded", "create", None, None),
            ("gone", "delete", None, None),
            ("line", "create", None, None),
            ("link", "create", None, None),
            ("old", "modify", None, more),
        ]
    );
}

/// What a scripted provider says is held against the secrets like everybody's words.
#[tokio::test]
async fn ap_priv_02_scripted_answers_are_scrubbed_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.yaml");
    let script = "answers:\n  - when: { contains: fail }\n    error: { code: provider_error, message: planted-canary }\n  \
        - answer: it is planted-canary here\n";
    std::fs::write(&file, script).unwrap();
    let (_folder, vault) = vault(&[("token", "planted-canary")]);
    let text = format!(
        "[[providers]]\nid = \"script\"\nkind = \"scripted\"\nfile = \"{}\"\n",
        file.display()
    );
    let outside = outside_with(&text, &vault);
    let asked =
        |words: &str| -> Value { json!({"messages": [{"role": "user", "content": words}]}) };
    for words in ["fail", "hello"] {
        let (performed, shown) = ask(&outside, asked(words)).await;
        let all = format!("{performed:?} {}", shown.concat());
        assert!(!all.contains("canary"), "{all}");
        assert!(all.contains("[redacted:secret:token]"), "{all}");
    }
}
