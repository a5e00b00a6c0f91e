//! Which provider answers, answers from a file, and the effects that stay with the built-in performer.

use effects::Outside;
use engine::port::{Deltas, Performer};
use runs::workflow::EffectKind;
use serde_json::{Value, json};

use crate::fixture::{
    ask, assert_error, config, confinement, effect, hello, outside, outside_with, perform, vault,
};

fn scripted(text: &str) -> (tempfile::TempDir, Outside) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.yaml");
    std::fs::write(&file, text).unwrap();
    let text = format!(
        "[[providers]]\nid = \"script\"\nkind = \"scripted\"\nfile = \"{}\"\n",
        file.display()
    );
    let outside = outside(&text);
    (folder, outside)
}

fn says(text: &str) -> Value {
    json!({"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": text}]})
}

#[tokio::test]
async fn without_providers_the_offline_model_answers() {
    let outside = outside("");
    for request in [
        hello(),
        json!({"provider": "offline", "messages": [{"content": "hello"}]}),
    ] {
        let (performed, _) = ask(&outside, request).await;
        assert!(performed.ok);
        assert_eq!(performed.model.unwrap().provider, "offline");
        let content = performed.value["choices"][0]["message"]["content"]
            .as_str()
            .unwrap();
        assert!(content.starts_with("I read: hello"), "{content}");
    }
}

#[tokio::test]
async fn a_provider_that_nobody_configured_is_unknown() {
    let (performed, _) = ask(&outside(""), json!({"provider": "other", "messages": []})).await;
    assert_error(&performed, "provider_unknown");
    let text =
        "[[providers]]\nid = \"main\"\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1\"\n";
    let (performed, _) = ask(&outside(text), hello()).await;
    assert_error(&performed, "model_unknown");
}

const SCRIPT: &str = r#"
model: rehearsal
answers:
  - when: { key: "llm:main:1", contains: weather }
    answer: Let me look.
    tool_calls:
      - name: forecast
        arguments: { place: Rome, days: 2 }
      - name: broken
        arguments: "{not json"
    usage: { prompt_tokens: 12, completion_tokens: 4 }
  - when: { key: "llm:main:2" }
    answer: It rains.
  - when: { contains: too many }
    error: { code: provider_rate_limited, message: try later, status: 429, retry_after_ms: 2000 }
  - answer: yes
"#;

#[tokio::test]
async fn a_script_answers_by_key_and_by_what_was_said() {
    let (_folder, outside) = scripted(SCRIPT);
    let (performed, shown) = ask(&outside, says("how is the weather?")).await;
    assert!(performed.ok, "{performed:?}");
    assert_eq!(shown.concat(), "Let me look.");
    assert!(shown.len() > 1);
    let choice = &performed.value["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = &choice["message"]["tool_calls"];
    assert_eq!(
        calls[0]["function"],
        json!({"name": "forecast", "arguments": "{\"days\":2,\"place\":\"Rome\"}"})
    );
    assert_eq!(calls[1]["function"]["arguments"], "{not json");
    assert_eq!(performed.value["usage"]["total_tokens"], 16);
    let used = performed.model.unwrap();
    assert_eq!(
        (used.provider.as_str(), used.model.as_str()),
        ("script", "rehearsal")
    );
    assert_eq!(used.cost_micros, Some(0));

    let asked = effect("llm:main:2", EffectKind::Model, says("how is the weather?"));
    let performed = outside.perform(asked, Deltas::none()).await;
    assert_eq!(
        performed.value["choices"][0]["message"]["content"],
        "It rains."
    );

    let (performed, _) = ask(&outside, says("too many of them")).await;
    assert_eq!(
        performed.value,
        json!({"code": "provider_rate_limited", "message": "try later", "status": 429, "retry_after_ms": 2000})
    );
    assert!(!performed.ok);

    // `yes` is text here, not a boolean.
    let (performed, _) = ask(&outside, says("anything")).await;
    assert_eq!(performed.value["choices"][0]["message"]["content"], "yes");
}

/// A call repeated after a crash must get what it got before.
#[tokio::test]
async fn a_script_gives_the_same_answer_to_the_same_call_whatever_came_between() {
    let (_folder, outside) = scripted(SCRIPT);
    let (first, _) = ask(&outside, says("how is the weather?")).await;
    ask(&outside, says("something else")).await;
    let (again, _) = ask(&outside, says("how is the weather?")).await;
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_script_without_an_answer_says_so() {
    let (_folder, outside) = scripted("answers: [{when: {key: other}, answer: x}]");
    let (performed, _) = ask(&outside, hello()).await;
    assert_error(&performed, "provider_refused");
}

#[test]
fn a_configuration_that_cannot_work_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let script = |text: &str| {
        let file = folder.path().join(format!("{}.yaml", text.len()));
        std::fs::write(&file, text).unwrap();
        format!(
            "[[providers]]\nid = \"p\"\nkind = \"scripted\"\nfile = \"{}\"\n",
            file.display()
        )
    };
    let twice = "[[providers]]\nid = \"p\"\nkind = \"openai\"\n".repeat(2);
    for (text, expected) in [
        (twice, "provider `p`: is defined twice"),
        (
            "[[providers]]\nid = \"a b\"\nkind = \"openai\"\n".to_owned(),
            "provider `a b`: a name",
        ),
        (
            "[[providers]]\nid = \"p\"\nkind = \"openai\"\nbase_url = \"ftp://x\"\n".to_owned(),
            "`base_url` must",
        ),
        (
            "[[providers]]\nid = \"p\"\nkind = \"openai\"\nbase_url = \"nowhere\"\n".to_owned(),
            "`base_url` is no",
        ),
        (
            "[[providers]]\nid = \"p\"\nkind = \"scripted\"\n".to_owned(),
            "needs `file`",
        ),
        (
            "[[providers]]\nid = \"p\"\nkind = \"scripted\"\nfile = \"/nowhere.yaml\"\n".to_owned(),
            "cannot read",
        ),
        (script("answers: [{when: {key: x}}]"), "answer 1 needs"),
        (
            script("answers: [{answer: x, error: {code: y}}]"),
            "answer 1 needs",
        ),
        (script("answers: [{anwser: x}]"), "anwser"),
        (script("answers: [{answer: x}]\nanswers: []"), "answers"),
    ] {
        let error = Outside::new(config(&text), None, confinement()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_secret_is_a_handle_and_its_value_stays_inside() {
    let (_folder, vault) = vault(&[("token", "planted-canary")]);
    vault.put("token", &"planted-canary-two".into()).unwrap();
    let outside = outside_with("", &vault);
    let handle = json!({"name": "token", "vault_id": "local", "version": 2});
    for request in [
        json!({"name": "token"}),
        json!({"name": "token", "vault_id": "local"}),
    ] {
        let performed = perform(&outside, EffectKind::Secret, request).await;
        assert!(performed.ok);
        assert_eq!(performed.value, handle);
    }
    for request in [
        json!({"name": "none"}),
        json!({"name": "token", "vault_id": "other"}),
        json!({"name": "../key"}),
        json!({}),
    ] {
        let performed = perform(&outside, EffectKind::Secret, request).await;
        assert_error(&performed, "secret_unknown");
    }
}

#[tokio::test]
async fn the_environment_is_read_only_where_allowed() {
    let outside = outside("host_env = [\"CARGO_PKG_NAME\", \"REPRISE_TEST_NOT_SET\"]");
    let read = |name: &str| json!({"capability": "env", "name": name});
    let performed = perform(&outside, EffectKind::Host, read("CARGO_PKG_NAME")).await;
    assert_eq!(
        performed.value,
        json!({"name": "CARGO_PKG_NAME", "value": "effects"})
    );
    let performed = perform(&outside, EffectKind::Host, read("REPRISE_TEST_NOT_SET")).await;
    assert_eq!(performed.value["value"], Value::Null);
    let performed = perform(&outside, EffectKind::Host, read("PATH")).await;
    assert_error(&performed, "env_not_allowed");
    let performed = perform(&outside, EffectKind::Host, json!({"capability": "moon"})).await;
    assert_error(&performed, "capability_unknown");
}

/// S19: a key is not sent where everybody on the way can read it.
#[test]
fn a_key_goes_to_no_plain_address_but_of_this_machine() {
    let provider = |url: &str, key: &str| {
        format!("[[providers]]\nid = \"p\"\nkind = \"openai\"\nbase_url = \"{url}\"\n{key}\n")
    };
    let server =
        |url: &str, key: &str| format!("[[mcp_servers]]\nid = \"s\"\nurl = \"{url}\"\n{key}\n");
    let made = |text: &str| Outside::new(config(text), None, confinement()).map(drop);
    for url in [
        "http://models.example/v1",
        "http://10.0.0.7/v1",
        "http://[fd00::1]/v1",
        "http://127.0.0.1.example/v1",
    ] {
        for text in [
            provider(url, "api_key = { env = \"KEY\" }"),
            provider(url, "api_key = { secret = \"key\" }"),
            server(url, "bearer = { env = \"KEY\" }"),
            server(url, "secret_headers = { \"x-key\" = \"key\" }"),
        ] {
            let error = made(&text).unwrap_err().to_string();
            assert!(error.contains("plain http://"), "{text}: {error}");
        }
        // Without a key there is nothing to lose.
        made(&provider(url, "")).unwrap();
        made(&server(url, "")).unwrap();
    }
    for url in [
        "https://models.example/v1",
        "http://127.0.0.1:9/v1",
        "http://[::1]:9/v1",
        "http://localhost:9/v1",
    ] {
        made(&provider(url, "api_key = { env = \"KEY\" }")).unwrap();
        made(&server(url, "bearer = { env = \"KEY\" }")).unwrap();
    }
}
